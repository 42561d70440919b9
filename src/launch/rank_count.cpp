#include "launch/rank_count.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "base/cores.hpp"
#include "base/descriptor.hpp"
#include "ddp/error.hpp"

namespace ddp::launch {
namespace {

constexpr int kDriverMilliseconds = 30'000;  // it may have to wake every GPU

int ask_driver() {
  void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) return 0;
  const auto start = reinterpret_cast<int (*)(unsigned)>(::dlsym(driver, "cuInit"));
  const auto count = reinterpret_cast<int (*)(int*)>(::dlsym(driver, "cuDeviceGetCount"));
  int devices = 0;
  if (start == nullptr || count == nullptr || start(0) != 0 || count(&devices) != 0) return 0;
  return devices;
}

int cores() { return std::max(1, static_cast<int>(allowed_cores())); }

}  // namespace

int visible_gpus() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return 0;
  const Descriptor answer(ends[0]);
  Descriptor told(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return 0;
  if (pid == 0) {
    const int devices = ask_driver();
    const bool is_told = ::write(told.get(), &devices, sizeof devices) == sizeof devices;
    ::_exit(is_told ? 0 : 1);
  }
  told.close();
  int devices = 0;
  pollfd ready{answer.get(), POLLIN, 0};
  if (::poll(&ready, 1, kDriverMilliseconds) != 1 || ::read(answer.get(), &devices, sizeof devices) != sizeof devices) {
    devices = 0;
    ::kill(pid, SIGKILL);
  }
  ::waitpid(pid, nullptr, 0);
  return devices;
}

int local_ranks(const std::string& text) {
  if (text == "cpu") return cores();
  if (text == "gpu" || text == "auto") {
    const int gpus = visible_gpus();
    if (gpus > 0) return gpus;
    if (text == "auto") return cores();
    throw ConfigError({}, "ddprun", "--nproc-per-node gpu: this machine shows no GPU",
                      "see nvidia-smi and CUDA_VISIBLE_DEVICES, or give a number");
  }
  const bool digits = !text.empty() && text.size() < 6 && text.find_first_not_of("0123456789") == std::string::npos;
  return digits ? std::stoi(text) : 0;
}

}  // namespace ddp::launch
