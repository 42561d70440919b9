#pragma once
/// shm_forbid.hpp: makes single system calls fail, as other kernels and machines do.

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace ddp::comm::shm::testing {

inline constexpr std::uint32_t kPopulateWrite = 23;  // MADV_POPULATE_WRITE
inline constexpr std::uint32_t kKeepSize = 1;        // FALLOC_FL_KEEP_SIZE: alone it allocates
inline constexpr std::uint32_t kPunchHole = 2;       // FALLOC_FL_PUNCH_HOLE

/// From here on this process's `call` fails with `error` where its argument has that value.
inline void forbid(long call, unsigned argument, std::uint32_t value, int error) {
  const auto number = static_cast<std::uint32_t>(offsetof(seccomp_data, nr));
  const auto place = static_cast<std::uint32_t>(offsetof(seccomp_data, args) + 8 * argument);  // its low half
  std::array<sock_filter, 6> rules{{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, number),
                                    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 3),
                                    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, place),
                                    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1),
                                    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error)),
                                    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)}};
  const sock_fprog program{rules.size(), rules.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    throw std::runtime_error("seccomp");
  }
}

}  // namespace ddp::comm::shm::testing
