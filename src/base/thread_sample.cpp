#include "base/thread_sample.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>
#include <vector>

namespace ddp {
namespace {

namespace fs = std::filesystem;

struct SystemCall {
  long number;
  std::string_view name;
  bool of_descriptor = false;  // its first argument is one
};

/// Those in which threads are found waiting. Arm has none of the older ones.
constexpr auto kSystemCalls = std::to_array<SystemCall>({
#ifdef SYS_poll
    {SYS_poll, "poll"},
    {SYS_select, "select"},
    {SYS_pause, "pause"},
    {SYS_open, "open"},
    {SYS_epoll_wait, "epoll_wait"},
    {SYS_vfork, "vfork"},
#endif
    {SYS_read, "read", true},
    {SYS_readv, "readv", true},
    {SYS_pread64, "pread", true},
    {SYS_preadv, "preadv", true},
    {SYS_write, "write", true},
    {SYS_writev, "writev", true},
    {SYS_pwrite64, "pwrite", true},
    {SYS_pwritev, "pwritev", true},
    {SYS_recvfrom, "recv", true},
    {SYS_recvmsg, "recvmsg", true},
    {SYS_recvmmsg, "recvmmsg", true},
    {SYS_sendto, "send", true},
    {SYS_sendmsg, "sendmsg", true},
    {SYS_connect, "connect", true},
    {SYS_accept, "accept", true},
    {SYS_accept4, "accept", true},
    {SYS_ioctl, "ioctl", true},
    {SYS_flock, "flock", true},
    {SYS_fcntl, "fcntl", true},
    {SYS_fsync, "fsync", true},
    {SYS_fdatasync, "fdatasync", true},
    {SYS_ftruncate, "ftruncate", true},
    {SYS_fallocate, "fallocate", true},
    {SYS_getdents64, "getdents", true},
    {SYS_close, "close", true},
    {SYS_sendfile, "sendfile"},
    {SYS_openat, "openat"},
    {SYS_newfstatat, "stat"},
    {SYS_unlinkat, "unlink"},
    {SYS_futex, "futex"},
    {SYS_ppoll, "ppoll"},
    {SYS_pselect6, "pselect"},
    {SYS_epoll_pwait, "epoll_wait"},
    {SYS_nanosleep, "nanosleep"},
    {SYS_clock_nanosleep, "nanosleep"},
    {SYS_sched_yield, "sched_yield"},
    {SYS_wait4, "wait4"},
    {SYS_waitid, "waitid"},
    {SYS_rt_sigsuspend, "sigsuspend"},
    {SYS_rt_sigtimedwait, "sigtimedwait"},
    {SYS_semop, "semop"},
    {SYS_semtimedop, "semtimedop"},
    {SYS_msgrcv, "msgrcv"},
    {SYS_mmap, "mmap"},
    {SYS_munmap, "munmap"},
    {SYS_mprotect, "mprotect"},
    {SYS_madvise, "madvise"},
    {SYS_msync, "msync"},
    {SYS_mlock, "mlock"},
    {SYS_io_getevents, "io_getevents"},
    {SYS_clone, "clone"},
    {SYS_execve, "execve"},
    {SYS_exit_group, "exit"},
});

/// Empty where the file cannot be read: it may also vanish after it has been opened.
std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  std::string text;
  std::getline(file, text, '\0');
  return text;
}

std::chrono::nanoseconds from_ticks(std::uint64_t ticks) {
  static const auto per_second = static_cast<std::uint64_t>(std::max(1L, ::sysconf(_SC_CLK_TCK)));
  return std::chrono::nanoseconds(ticks * (1'000'000'000 / per_second));
}

/// "77 (a name) with ) in it) S 1 ...": what follows the name, from proc(5)'s third field on.
bool read_stat(const std::string& text, ThreadSample& sample) {
  constexpr std::size_t first = 3, last_needed = 22;
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos) return false;
  std::istringstream rest(text.substr(name_end + 1));
  const std::vector<std::string> fields(std::istream_iterator<std::string>{rest}, {});
  if (fields.size() <= last_needed - first) return false;
  const auto number = [&](std::size_t field) {
    return field - first < fields.size() ? std::strtoull(fields[field - first].c_str(), nullptr, 10) : 0;
  };
  sample.state = fields[0][0];
  sample.major_faults = number(12);
  sample.on_core = from_ticks(number(14) + number(15));
  sample.started = number(22);
  sample.waited_for_disk = from_ticks(number(42));
  return true;
}

void read_status(const std::string& text, ThreadSample& sample) {
  const auto number = [&](const char* name, int base) {
    const auto at = text.find("\n" + std::string(name) + ":");
    return at == std::string::npos ? 0 : std::strtoull(text.c_str() + text.find(':', at) + 1, nullptr, base);
  };
  sample.waits = number("voluntary_ctxt_switches", 10);
  sample.tracer = static_cast<pid_t>(number("TracerPid", 10));
  sample.blocked_signals = number("SigBlk", 16);
  sample.pending_signals = number("SigPnd", 16);
}

/// stat counts the time on a core too, in ticks of 10 ms: both lag behind, so the larger one counts.
void read_schedstat(const std::string& text, ThreadSample& sample) {
  std::istringstream fields(text);
  std::int64_t on_core = 0, waited = 0;
  if (!(fields >> on_core >> waited)) return;
  sample.on_core = std::max(sample.on_core, std::chrono::nanoseconds(on_core));
  sample.waited_for_core = std::chrono::nanoseconds(waited);
}

/// From "0 0x3 0x7ffc... ...": the call's number and its arguments; "running" and "-1 ..." (in no call) give nothing.
std::string described_call(const std::string& text, const fs::path& process) {
  std::istringstream fields(text);
  long number = -1;
  std::uint64_t argument = 0;
  if (!(fields >> number >> std::hex >> argument) || number < 0) return {};
  const auto* call = std::ranges::find(kSystemCalls, number, &SystemCall::number);
  if (call == kSystemCalls.end()) return "system call " + std::to_string(number);
  std::string name(call->name);
  if (!call->of_descriptor) return name;
  std::error_code unseen;
  const auto file = fs::read_symlink(process / "fd" / std::to_string(argument), unseen);
  return unseen ? name : name + " of " + file.string();
}

}  // namespace

std::optional<ThreadSample> sample_thread(const ThreadId& thread, const fs::path& proc) {
  const auto process = proc / std::to_string(thread.process);
  const auto folder = process / "task" / std::to_string(thread.thread);
  ThreadSample sample;
  sample.taken = std::chrono::steady_clock::now().time_since_epoch();
  if (!read_stat(text_of(folder / "stat"), sample)) return std::nullopt;
  if (thread.started != 0 && thread.started != sample.started) return std::nullopt;
  read_status(text_of(folder / "status"), sample);
  read_schedstat(text_of(folder / "schedstat"), sample);
  sample.system_call = described_call(text_of(folder / "syscall"), process);
  sample.kernel_function = text_of(folder / "wchan");
  if (sample.kernel_function == "0") sample.kernel_function.clear();
  return sample;
}

ThreadId this_thread() {
  ThreadId self{::getpid(), static_cast<pid_t>(::syscall(SYS_gettid))};
  if (const auto sample = sample_thread(self)) self.started = sample->started;
  return self;
}

}  // namespace ddp
