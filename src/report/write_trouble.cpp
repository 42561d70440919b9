#include "report/write_trouble.hpp"

#include <system_error>

#include "ddp/log.hpp"

namespace ddp::report {

void WriteTrouble::note(const std::string& path, int error) noexcept {
  if (error == 0 || said_) return;
  said_ = true;
  log::all.warn("\"{}\" could not be written: {}; what it lacks is lost, and the program goes on", path,
                std::generic_category().message(error));
}

}  // namespace ddp::report
