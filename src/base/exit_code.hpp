#pragma once
/// exit_code.hpp: what a rank's exit code tells its launcher.

namespace ddp {

/// This rank ended only because it lost another one: the launcher looks for the cause elsewhere.
/// Neither 1, which any exception gives, nor one that a shell gives (126 on); EX_PROTOCOL of sysexits.h.
inline constexpr int kLostPeerExitCode = 76;

/// A call did not end, or never could: not this rank's doing, and its error names whose. EX_TEMPFAIL of sysexits.h.
inline constexpr int kStalledExitCode = 75;

}  // namespace ddp
