#pragma once
/// sessions.hpp: the sessions of this process, and what becomes of them when it ends: by an
/// exception in ddp::run, by std::terminate, by exit().

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <memory>
#include <string_view>

#include "comm/device_side.hpp"
#include "comm/session.hpp"

namespace ddp::comm {

/// How long rank 0 stays for the others. Ranks that did the same work are apart by less; a rank
/// that needs rank 0's store for longer does so without it.
constexpr std::chrono::seconds kFarewell{5};
/// The same once the group is broken: the others have been told by then.
constexpr std::chrono::seconds kBrokenFarewell{1};

/// Keeps the session until it has been left, and installs the handlers for std::terminate and exit().
void remember(const std::shared_ptr<Session>& session);

/// Forgets what is over: sessions that this rank has left and whose others need it no more, and parked backends.
void forget_ended();

/// Fails the sessions that an exception has orphaned and whose text nobody will say any more.
void fail_orphans() noexcept;

/// Fails every session that is still open, with this text.
void fail_all(std::string_view text) noexcept;

/// Lets calls end that nobody has waited for, says goodbye in every session and stays a few seconds at most where
/// others still need this rank.
void leave_all() noexcept;

/// Keeps a backend that cannot be destroyed, its threads with it, and what it has on a device, if anything: where calls
/// of `session` still run, until they have ended and another group is made or the process leaves; where it is broken,
/// to the end of the process.
void park(c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<DeviceSide> device_side,
          std::shared_ptr<Session> session);

/// The process ends: nothing new may begin on a device, for what that needs of LibTorch may be gone already.
bool is_leaving() noexcept;
/// The process is past its exit handlers, so that nothing may be destroyed that has threads.
bool is_exiting() noexcept;

/// This rank has not left all groups of several ranks.
bool has_company() noexcept;

/// Who this process is, for texts: the newest session's rank; rank -1 if there has been none.
Origin latest_origin() noexcept;

}  // namespace ddp::comm
