#include "base/version.hpp"

namespace ddp {

const char* library_version() noexcept { return DDP_VERSION; }

}  // namespace ddp
