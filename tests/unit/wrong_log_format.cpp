// Must compile as it is, and must not with DDP_WRONG_FORMAT: format strings are checked at compile time.
#include "ddp/log.hpp"

void speak() {
  ddp::log::info("step {:d}", 3);
#ifdef DDP_WRONG_FORMAT
  ddp::log::info("step {:d}", "three");
#endif
}
