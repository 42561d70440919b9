#include "comm/quiet.hpp"

#include <c10/util/Logging.h>

#include <cstdlib>
#include <mutex>

namespace ddp::comm {
namespace {

constexpr int kErrors = 2;  // LibTorch's levels: 0 info, 1 warning, 2 error

struct Level {
  std::mutex mutex;
  int depth = 0;
  int before = 0;
};

Level& level() {
  static auto* const one = new Level;
  return *one;
}

}  // namespace

Quiet::Quiet() {
  const std::lock_guard lock(level().mutex);
  if (level().depth++ > 0) return;
  level().before = FLAGS_caffe2_log_level;
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr && FLAGS_caffe2_log_level < kErrors)
    FLAGS_caffe2_log_level = kErrors;
}

Quiet::~Quiet() {
  const std::lock_guard lock(level().mutex);
  if (--level().depth == 0) FLAGS_caffe2_log_level = level().before;
}

}  // namespace ddp::comm
