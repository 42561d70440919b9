#pragma once
/// version.hpp: which version of the library this is.

namespace ddp {

/// "0.1.0"
const char* library_version() noexcept;

}  // namespace ddp
