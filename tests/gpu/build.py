"""Configures and builds what the check runs."""

import os
import pathlib
import re
import shutil

import found
from running import run

# As GoogleTest's own build would install it.
GTEST_CONFIG = """
foreach(name gtest gtest_main)
  add_library(GTest::${name} STATIC IMPORTED)
  set_target_properties(GTest::${name} PROPERTIES IMPORTED_LOCATION ${CMAKE_CURRENT_LIST_DIR}/lib/lib${name}.a
    INTERFACE_INCLUDE_DIRECTORIES ${CMAKE_CURRENT_LIST_DIR}/include)
endforeach()
set_property(TARGET GTest::gtest PROPERTY INTERFACE_LINK_LIBRARIES Threads::Threads)
set_property(TARGET GTest::gtest_main PROPERTY INTERFACE_LINK_LIBRARIES GTest::gtest)
"""
TARGETS = ("gpu_tests", "benchmark_train", "gpu_data_parallel")


class Build:
    """A build folder and what it is made from."""

    def __init__(self, root, folder, logs):
        self.root = root
        self.folder = folder
        self.logs = logs
        self.deps = found.find_deps()
        self.is_configured = (folder / "CMakeCache.txt").exists()
        self.torch = found.find_torch(self.cached("Torch_DIR") if self.is_configured else None)
        self.cmake = found.find_cmake(self.torch, self.deps)
        self.bin = pathlib.Path(self.cached("CMAKE_RUNTIME_OUTPUT_DIRECTORY") or folder / "bin")

    def cached(self, name):
        if not self.is_configured:
            return None
        line = re.search(rf"^{name}:\w+=(.*)$", (self.folder / "CMakeCache.txt").read_text(), re.MULTILINE)
        return line.group(1) if line else None

    def generator(self):
        ninja = found.tool("ninja", self.torch, self.deps)
        if ninja:
            return ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        if shutil.which("make"):
            return ["-G", "Unix Makefiles", "-DCMAKE_MAKE_PROGRAM=" + shutil.which("make")]
        raise found.Missing("neither ninja nor make is here")

    def googletest(self, headers, limit):
        """Where cmake finds it; what was packed is compiled first."""
        packed = self.deps / "gtest" if self.deps else None
        if packed is None or headers["GoogleTest"] != packed / "include":
            return []
        prefix = self.folder / "googletest"
        (prefix / "lib").mkdir(parents=True, exist_ok=True)
        shutil.copytree(packed / "include", prefix / "include", dirs_exist_ok=True)
        for name, source in (("gtest", "gtest-all"), ("gtest_main", "gtest_main")):
            compiled = prefix / f"{source}.o"
            compiler = f'{os.environ.get("CXX", "c++")} -std=c++17 -O1 -fPIC -I"{packed}/include" -I"{packed}"'
            script = (f'{compiler} -c "{packed}/src/{source}.cc" -o "{compiled}" && '
                      f'ar rcs "{prefix}/lib/lib{name}.a" "{compiled}"')
            result = run(["sh", "-c", script], limit, self.logs / f"{name}.log")
            if not result.ok:
                raise found.Missing(f"GoogleTest from {packed} does not compile: {result.why()}")
        (prefix / "GTestConfig.cmake").write_text(GTEST_CONFIG)
        return [f"-DGTest_DIR={prefix}"]

    def packed_cuda(self):
        """Headers that torch's packages lack are looked for there last."""
        cuda = self.deps / "cuda" if self.deps else None
        if cuda and cuda.is_dir() and not os.environ.get("CUDA_PATH"):
            return {"CUDA_PATH": str(cuda)}
        return {}

    def configure(self, architecture, limit):
        """`architecture`: of the GPU that is here, "9.0"; None: all. Returns a Result."""
        headers = found.find_headers(self.deps)
        arguments = [*self.generator(), f"-DTorch_DIR={self.torch.config}", "-DDDP_WITH_NCCL=ON",
                     f"-DCMAKE_RUNTIME_OUTPUT_DIRECTORY={self.folder / 'bin'}", "-DDDP_BUILD_TESTS=ON",
                     "-DDDP_BUILD_LAUNCHER=OFF", "-DDDP_BUILD_EXAMPLES=OFF", "-DDDP_INSTALL=OFF",
                     f"-DDDP_GLOO_INCLUDE_DIR={headers['Gloo']}", f"-DDDP_SPDLOG_INCLUDE_DIR={headers['spdlog']}",
                     f"-DDDP_SPDLOG_FMT_INCLUDE_DIR={headers['fmt']}", f"-DDDP_SPIN={shutil.which('spin') or 'false'}",
                     *self.googletest(headers, limit)]
        if architecture:
            arguments.append(f"-DTORCH_CUDA_ARCH_LIST={architecture}")
        command = [self.cmake, "--preset", "cuda", "-B", self.folder, *arguments]
        return run(command, limit, self.logs / "configure.log", self.packed_cuda(), self.root)

    def build(self, jobs, limit):
        command = [self.cmake, "--build", self.folder, "-j", str(jobs), "--target", *TARGETS]
        return run(command, limit, self.logs / "build.log", self.packed_cuda(), self.root)

    def describe(self):
        return {"version": self.torch.version, "folder": str(self.torch.root), "from": self.torch.source,
                "python": self.torch.python, "nvcc": self.cached("DDP_NVCC"),
                "kernels": self.cached("DDP_CUDA_KERNELS")}


def jobs():
    """A compiler that reads torch takes up to 2 GB."""
    gigabytes = 2
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            gigabytes = int(line.split()[1]) // 2**20
    return max(1, min(len(os.sched_getaffinity(0)), gigabytes // 2))
