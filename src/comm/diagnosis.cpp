#include "ddp/diagnosis.hpp"

#include <stdexcept>

#include "comm/flight_dump.hpp"

namespace ddp {

std::string dump_records(const std::string& path) {
  const auto author = comm::CurrentAuthor::copy();
  if (!author) throw std::logic_error("dump_records: this process has made no process group");
  return comm::dump_with_threads(*author, {"call"}, "dump_records", path);
}

}  // namespace ddp
