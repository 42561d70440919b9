#include "comm/device_watch.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <future>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "comm/sessions.hpp"
#include "comm/text_of.hpp"
#include "ddp/log.hpp"

namespace ddp::comm {
namespace {

// Two hundred questions a second cost nothing; a step lasts longer, and only records and errors wait for the answer.
constexpr int kPaceMilliseconds = 5;
// Where graphs may run, of which nothing is known.
constexpr int kSlowPaceMilliseconds = 200;
constexpr std::chrono::seconds kAbortLimit{1};

Descriptor event() {
  Descriptor made(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (made.get() < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  return made;
}

}  // namespace

DeviceWatch::DeviceWatch(std::shared_ptr<const DeviceBackend> engine, at::Device device,
                         c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<Session> session)
    : engine_(std::move(engine)),
      device_(device),
      backend_(std::move(backend)),
      session_(std::move(session)),
      wake_(event()),
      thread_("ddp-device", [this](int stop) { run(stop); }) {}

void DeviceWatch::follow(std::shared_ptr<Work::State> state, c10::intrusive_ptr<c10d::Work> work,
                         const EndOnDevice& end) {
  state->begun(work, end.stream.value());
  if (end.is_recorded) {
    state->complete(nullptr);
    if (has_recorded_.exchange(true)) return;
  } else {
    const std::lock_guard lock(mutex_);
    under_way_.push_back({std::move(state), std::move(work)});
    if (under_way_.size() > 1) return;
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
}

void DeviceWatch::run(int stop) {
  // Else a question could make a context on the first device, which belongs to another rank.
  c10::impl::VirtualGuardImpl(device_.type()).setDevice(device_);
  engine_->enter_polling_thread();
  std::array<pollfd, 2> events{{{stop, POLLIN, 0}, {wake_.get(), POLLIN, 0}}};
  for (bool is_busy = false; events[0].revents == 0;) {
    const int pause = is_busy ? kPaceMilliseconds : has_recorded_ && !is_aborted_ ? kSlowPaceMilliseconds : -1;
    ::poll(events.data(), is_busy ? 1 : 2, pause);
    std::uint64_t count = 0;
    [[maybe_unused]] const auto taken = ::read(wake_.get(), &count, sizeof count);
    is_busy = look();
  }
}

bool DeviceWatch::look() {
  if (has_recorded_ && !is_exiting() && session_->health().breakage()) abort_all();
  while (const auto front = first()) {
    if (is_exiting()) return false;  // the device's library may be gone
    if (session_->health().breakage()) {
      abort_all();
      return false;
    }
    bool is_over = false;
    std::exception_ptr error;
    try {
      is_over = front->work->isCompleted();
      error = front->work->exception();
    } catch (const std::exception&) {  // the device itself has failed
      error = std::current_exception();
    }
    if (!is_over && !error) {
      end_hopeless();
      if (session_->health().breakage()) continue;
      return true;
    }
    drop_first();
    front->state->complete_unseen(error);
  }
  return false;
}

std::optional<DeviceWatch::Followed> DeviceWatch::first() {
  const std::lock_guard lock(mutex_);
  return under_way_.empty() ? std::nullopt : std::optional(under_way_.front());
}

// Asks all, for a later one may have less time, and a rank that has left may have made the first one.
void DeviceWatch::end_hopeless() {
  std::deque<Followed> all;
  {
    const std::lock_guard lock(mutex_);
    all = under_way_;
  }
  for (const auto& followed : all) {
    if (followed.state->is_left_alone()) return;
    if (followed.state->is_overdue()) return followed.state->expire();
  }
}

void DeviceWatch::drop_first() {
  const std::lock_guard lock(mutex_);
  under_way_.pop_front();
}

// An engine may not come back from it, where graphs live that hold its calls.
void DeviceWatch::abort_all() noexcept {
  if (!std::exchange(is_aborted_, true)) {
    log::all.debug("the group is broken: what the device still waits for is aborted");
    try {
      const auto ended = std::make_shared<std::promise<void>>();
      std::thread([backend = backend_, device = device_, ended] {
        try {
          c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
          backend->abort();
        } catch (const std::exception&) {
          log::all.debug("it could not be aborted: {}", text_of(std::current_exception()));
        }
        ended->set_value();
      }).detach();
      ended->get_future().wait_for(kAbortLimit);
    } catch (const std::exception&) {  // no thread
    }
  }
  const auto aborted = std::make_exception_ptr(std::runtime_error("aborted, as the group is broken"));
  while (const auto front = first()) {
    drop_first();
    front->state->complete(aborted);
  }
}

}  // namespace ddp::comm
