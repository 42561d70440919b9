// init_process_group: from an environment to a group of connected ranks.
#include <ATen/Parallel.h>
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string>

#include "base/cores.hpp"
#include "comm/backend.hpp"
#include "comm/backend_shm.hpp"
#include "comm/dump_signals.hpp"
#include "comm/process_group_impl.hpp"
#include "comm/sessions.hpp"
#include "comm/shm_room.hpp"
#include "comm/summary.hpp"
#include "ddp/log.hpp"
#include "ddp/process_group.hpp"

namespace ddp {
namespace {

constexpr std::string_view kPart = "init_process_group";

void require_sensible(const Environment& environment, const std::string& store_file) {
  const Origin none;
  if (environment.world_size < 1)
    throw ConfigError(none, kPart, "the world size is " + std::to_string(environment.world_size));
  if (environment.rank < 0 || environment.rank >= environment.world_size)
    throw ConfigError(none, kPart,
                      "rank " + std::to_string(environment.rank) + " is not below the world size " +
                          std::to_string(environment.world_size),
                      "ranks count from 0");
  const bool has_address = !environment.master_address.empty() && environment.master_port != 0;
  if (environment.world_size > 1 && store_file.empty() && !has_address)
    throw ConfigError({environment.rank, environment.world_size}, kPart, "no address to meet the other ranks at",
                      "set MASTER_ADDR and MASTER_PORT, or use a store file");
}

/// What the variable says in seconds; none where it is not set.
std::optional<std::chrono::milliseconds> seconds_in(const char* variable, double least, const char* remedy) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return std::nullopt;
  double seconds = 0;
  const auto* const end = text + std::string_view(text).size();
  const auto result = std::from_chars(text, end, seconds);
  constexpr double kYear = 365.0 * 24 * 3600;
  if (result.ec != std::errc() || result.ptr != end || !(seconds >= least) || seconds > kYear)
    throw ConfigError({}, kPart, std::string(variable) + '=' + text + " is no number of seconds", remedy);
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

std::chrono::milliseconds timeout_of(const ProcessGroupOptions& options) {
  if (options.timeout) return *options.timeout;
  constexpr double millisecond = 1e-3;
  return seconds_in("DDP_TIMEOUT", millisecond, "set it to a positive number, 1800 for half an hour")
      .value_or(std::chrono::minutes(30));
}

std::chrono::milliseconds warn_after_of(const ProcessGroupOptions& options) {
  if (options.warn_after) return *options.warn_after;
  return seconds_in("DDP_WARN_AFTER", 0, "set it to 60 for a minute, or to 0 for no warnings")
      .value_or(std::chrono::seconds(60));
}

int ranks_here(const std::vector<comm::Arrival>& arrivals, int rank) {
  const auto& host = arrivals[static_cast<std::size_t>(rank)].host;
  return static_cast<int>(
      std::count_if(arrivals.begin(), arrivals.end(), [&](const auto& one) { return one.host == host; }));
}

// Ranks on one host share its cores: LibTorch's default would give each rank all of them.
void share_cores(int ranks) {
  if (ranks <= 1 || std::getenv("OMP_NUM_THREADS") != nullptr) return;
  at::set_num_threads(threads_per_rank(allowed_cores(), ranks));
}

void look_for_room(int ranks) {
  if (const auto text = comm::too_little_room("/dev/shm", ranks); !text.empty()) log::warn("{}", text);
}

// The other ranks wait for this one, so it meets them, if they are about to come, to say why it does not take part.
void tell_of(const ConfigError& error, const ProcessGroup::Impl& impl, const ProcessGroupOptions& options) {
  constexpr std::chrono::milliseconds limit{10000};
  std::string line = error.what();
  log::all.warn("{}; the other ranks are told", line);
  std::replace(line.begin(), line.end(), '\n', ' ');
  try {
    comm::Session::join(impl.environment, {options.store_file, options.backend, {}, line},
                        std::min(impl.timeout, limit));
  } catch (const Error&) {  // they have heard it, or cannot be met
  }
}

// What the ranks compare when they meet.
comm::Session::Rendezvous rendezvous_of(const ProcessGroup::Impl& impl, const std::string& backend,
                                        const std::string& store_file) {
  comm::Session::Rendezvous meeting{store_file, backend, {}, {}};
  if (!impl.engine) return meeting;
  if (impl.engine->name() == impl.host_backend)
    meeting.backend += std::string(" on ") + c10::DeviceTypeName(impl.device.type(), true);
  meeting.device = impl.engine->identity(impl.device);
  return meeting;
}

// Before anything touches another device. Gives the backend's name.
std::string choose(ProcessGroup::Impl& impl, const ProcessGroupOptions& options) {
  try {
    const auto wanted = comm::choose_backend(options.backend, impl.environment, options.device);
    auto choice = comm::choose_device(wanted, impl.environment, options.device);
    impl.host_backend = std::move(choice.host);
    impl.engine = std::move(choice.engine);
    impl.device = choice.device;
    impl.nccl = options.nccl;
    return wanted;
  } catch (const ConfigError& error) {
    if (impl.environment.world_size > 1) tell_of(error, impl, options);
    throw;
  }
}

void introduce(const Environment& environment, const std::string& host) {
  log::set_identity({environment.rank, environment.world_size, environment.single_host() ? std::string() : host});
}

}  // namespace

comm::BackendSetup ProcessGroup::Impl::setup() const {
  const auto is_broken = [weak = std::weak_ptr(session)] {
    const auto alive = weak.lock();
    return !alive || alive->health().breakage().has_value();
  };
  const auto has_left = [weak = std::weak_ptr(session)](int rank) {
    const auto alive = weak.lock();
    return !alive || alive->health().departure(alive->ranks()[static_cast<std::size_t>(rank)]).has_value();
  };
  return {session->store(), environment, device, is_broken, has_left, nccl};
}

void ProcessGroup::Impl::connect(std::string_view part, const Impl* parent, const std::vector<int>& ranks) {
  struct Made {
    c10::intrusive_ptr<c10d::Backend> host, on_device;
  };
  const auto made = std::make_shared<Made>();
  const bool splits = parent && engine && engine->can_split();
  // A rank that leaves at once must not meet one that still connects, so nobody returns before all are there.
  const auto meet = [made, setup = setup(), engine = engine, ranks, from = splits ? parent->device_side : nullptr,
                     name = host_backend] {
    made->host = comm::make_host_backend(name, setup);
    made->host->barrier()->wait();
    if (engine) made->on_device = from ? engine->split(from->backend(), setup, ranks) : engine->make(setup);
  };
  try {
    session->run_abandonable(part, timeout, meet);
  } catch (...) {
    session->leave();
    session->wait_for_others(comm::kFarewell);  // one that still joins is to learn why, and needs rank 0's store for it
    throw;
  }
  owned_backend = std::move(made->host);
  backend = owned_backend.get();
  if (made->on_device)
    device_side = std::make_shared<comm::DeviceSide>(engine, device, std::move(made->on_device), session);
  backend_name = device_side ? device_side->backend().getBackendName() : backend->getBackendName();
  session->set_backend(backend_name);
  shm = dynamic_cast<comm::ShmBackend*>(backend);
  if (shm) session->set_progress(shm->engine());
}

void ProcessGroup::Impl::help_to_split(std::string_view part, const std::vector<int>& ranks) const {
  if (!engine || !engine->can_split()) return;
  session->run_abandonable(part, timeout, [setup = setup(), engine = engine, parent = device_side, ranks] {
    engine->split(parent->backend(), setup, ranks);
  });
}

std::shared_ptr<ProcessGroup> init_process_group(const ProcessGroupOptions& options) {
  comm::fail_orphans();
  comm::forget_ended();
  auto impl = std::make_unique<ProcessGroup::Impl>();
  impl->environment = options.environment ? *options.environment : Environment::from_variables();
  require_sensible(impl->environment, options.store_file);
  impl->timeout = timeout_of(options);
  const auto warn_after = warn_after_of(options);
  static_cast<void>(comm::dump_signals_are_wanted());  // a senseless value is an error now, not once the ranks have met
  const auto wanted = choose(*impl, options);
  introduce(impl->environment, {});
  if (impl->environment.world_size == 1) {
    impl->backend_name = "none";
    impl->session = comm::Session::alone(impl->environment);
  } else {
    impl->session =
        comm::Session::join(impl->environment, rendezvous_of(*impl, wanted, options.store_file), impl->timeout);
    impl->session->set_warn_after(warn_after);
    comm::remember(impl->session);
    introduce(impl->environment, impl->session->arrivals()[static_cast<std::size_t>(impl->environment.rank)].host);
    if (wanted == "nccl") look_for_room(ranks_here(impl->session->arrivals(), impl->environment.rank));
    impl->connect(kPart);
  }
  share_cores(ranks_here(impl->session->arrivals(), impl->environment.rank));
  if (comm::kHasNccl && wanted == "auto" && !options.device)
    log::info("this process sees no GPU, so the ranks work on the CPU");
  comm::log_summary(impl->session->arrivals(),
                    impl->backend_name + (impl->engine ? " on " + impl->device.str() : std::string()));
  return std::make_shared<ProcessGroup>(std::move(impl));
}

}  // namespace ddp
