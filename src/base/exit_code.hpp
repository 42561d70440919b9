#pragma once
/// exit_code.hpp: what a rank's exit code tells its launcher.

namespace ddp {

/// This rank ended only because it lost another one: the launcher looks for the cause elsewhere.
/// Neither 1, which any exception gives, nor one that a shell gives (126 on); EX_PROTOCOL of sysexits.h.
inline constexpr int kLostPeerExitCode = 76;

}  // namespace ddp
