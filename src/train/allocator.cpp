#include "train/allocator.hpp"

#include <cstdlib>  // first: it says whether this is glibc
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <mutex>
#include <string_view>

#include "ddp/log.hpp"

namespace ddp {
namespace {

#ifdef __GLIBC__
// The largest that glibc takes. Tensors above it are mapped by themselves, whatever is set here.
constexpr int kMapAbove = 32 << 20;
// What stays at the end of the heap: more than a step of most models that train on a CPU.
constexpr int kKeep = 1 << 30;

bool user_has_chosen() {
  for (const char* name : {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_"})
    if (std::getenv(name) != nullptr) return true;
  const char* const tunables = std::getenv("GLIBC_TUNABLES");
  return tunables != nullptr && std::string_view(tunables).find("glibc.malloc") != std::string_view::npos;
}

void keep_once() {
  if (user_has_chosen() || mallopt(M_MMAP_THRESHOLD, kMapAbove) == 0 || mallopt(M_TRIM_THRESHOLD, kKeep) == 0) return;
  log::info(
      "the allocator keeps up to 1 GB of freed memory for the next step; keep_freed_memory = false leaves it alone");
}
#else
void keep_once() {}
#endif

}  // namespace

void keep_freed_memory() {
  static std::once_flag once;
  std::call_once(once, keep_once);
}

}  // namespace ddp
