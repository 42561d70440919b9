#include "train/smoke_test/request.hpp"

#include <atomic>
#include <cstdlib>
#include <string>

#include "ddp/error.hpp"
#include "ddp/process_group.hpp"

namespace ddp::smoke {
namespace {

std::atomic<int> running{0};

}  // namespace

Request request() {
  const char* const value = std::getenv("DDP_CHECK");
  const std::string text = value == nullptr ? "" : value;
  if (text.empty() || text == "0") return Request::none;
  if (text == "1") return Request::brief;
  if (text == "long") return Request::extended;
  throw ConfigError(Origin{}, "smoke test", "DDP_CHECK=" + text + " is no check", "1, long, or 0 for none");
}

Running::Running() { ++running; }
Running::~Running() { --running; }

void refuse_unchecked(const ProcessGroup& group) {
  if (running > 0 || request() == Request::none) return;
  throw ConfigError(group.origin(), "smoke test",
                    "DDP_CHECK is set, but this program trains without having called ddp::smoke_test_on_request()",
                    "call it at the start of main(), as smoke_test.hpp shows, or unset DDP_CHECK");
}

}  // namespace ddp::smoke
