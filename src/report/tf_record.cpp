#include "report/tf_record.hpp"

#include <bit>
#include <cstdint>

#include "report/crc32c.hpp"
#include "report/protobuf.hpp"

namespace ddp::report {
namespace {

std::uint32_t masked_crc(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xA282EAD8U; }

}  // namespace

std::string tf_record(std::string_view data) {
  std::string record;
  append_fixed64(record, data.size());
  append_fixed32(record, masked_crc(record));
  record += data;
  append_fixed32(record, masked_crc(data));
  return record;
}

}  // namespace ddp::report
