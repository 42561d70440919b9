# Installs library, headers, launcher and the package that find_package(ddp) reads.
include(CMakePackageConfigHelpers)

set(DDP_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/ddp)

install(TARGETS ddp EXPORT ddpTargets FILE_SET HEADERS)
if(TARGET ddprun)
  install(TARGETS ddprun ddprun_store)
endif()
install(EXPORT ddpTargets NAMESPACE ddp:: DESTINATION ${DDP_PACKAGE_DIR})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/ddpConfig.cmake.in ${PROJECT_BINARY_DIR}/ddpConfig.cmake
                              INSTALL_DESTINATION ${DDP_PACKAGE_DIR} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ddpConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ddpConfig.cmake ${PROJECT_BINARY_DIR}/ddpConfigVersion.cmake
              ${CMAKE_CURRENT_LIST_DIR}/ddp_libtorch.cmake
        DESTINATION ${DDP_PACKAGE_DIR})
