#pragma once
/// event.hpp: the messages of TensorBoard's event files. Field numbers are those of event.proto, summary.proto and
/// tensor.proto in tensorboard/compat/proto.

#include <cstdint>
#include <string>
#include <string_view>

namespace ddp::report {

class Histogram;

struct Stamp {
  double wall_time = 0;  ///< seconds since 1970
  std::int64_t step = 0;
};

struct EncodedImage {
  std::int64_t height = 0, width = 0, channels = 0;
  std::string png;
};

/// The first of every file.
std::string version_event(double wall_time);
/// What was written before with this step or a later one is to be forgotten.
std::string restart_event(const Stamp& stamp);
std::string scalar_event(const Stamp& stamp, std::string_view tag, double value);
/// Of a histogram with at least one finite value.
std::string histogram_event(const Stamp& stamp, std::string_view tag, const Histogram& histogram);
std::string image_event(const Stamp& stamp, std::string_view tag, const EncodedImage& image);
std::string text_event(const Stamp& stamp, std::string_view tag, std::string_view text);

}  // namespace ddp::report
