#pragma once
/// tf_record.hpp: the frame around each event of TensorBoard's files.

#include <string>
#include <string_view>

namespace ddp::report {

/// Length in 8 bytes, its checksum, `data`, its checksum; checksums are masked as TensorFlow's record_writer.cc does.
std::string tf_record(std::string_view data);

}  // namespace ddp::report
