#include "report/event.hpp"

#include "report/histogram.hpp"
#include "report/protobuf.hpp"

namespace ddp::report {
namespace {

using Message = ProtobufMessage;

Message stamped(const Stamp& stamp) {
  Message event;
  event.float64(1, stamp.wall_time).integer(2, stamp.step);
  return event;
}

/// An event with one value: what `content` adds to a Summary.Value that has its tag.
template <class Content>
std::string value_event(const Stamp& stamp, std::string_view tag, Content content) {
  Message value;
  value.text(1, tag);
  content(value);
  return stamped(stamp).message(5, Message().message(1, value)).bytes();
}

}  // namespace

std::string version_event(double wall_time) { return Message().float64(1, wall_time).text(3, "brain.Event:2").bytes(); }

std::string restart_event(const Stamp& stamp) {
  constexpr int start = 1;  // SessionLog.START
  return stamped(stamp).message(7, Message().integer(1, start)).bytes();
}

std::string scalar_event(const Stamp& stamp, std::string_view tag, double value) {
  return value_event(stamp, tag, [&](Message& content) { content.float32(2, static_cast<float>(value)); });
}

std::string histogram_event(const Stamp& stamp, std::string_view tag, const Histogram& histogram) {
  const auto buckets = histogram.buckets();
  Message message;
  message.float64(1, histogram.min()).float64(2, histogram.max()).float64(3, static_cast<double>(histogram.finite()));
  message.float64(4, histogram.sum()).float64(5, histogram.sum_of_squares());
  message.packed(6, buckets.limits).packed(7, buckets.counts);
  return value_event(stamp, tag, [&](Message& content) { content.message(5, message); });
}

std::string image_event(const Stamp& stamp, std::string_view tag, const EncodedImage& image) {
  Message message;
  message.integer(1, image.height).integer(2, image.width).integer(3, image.channels).text(4, image.png);
  return value_event(stamp, tag, [&](Message& content) { content.message(4, message); });
}

std::string text_event(const Stamp& stamp, std::string_view tag, std::string_view text) {
  constexpr int string_type = 7;  // DT_STRING
  const auto shape = Message().message(2, Message().integer(1, 1));
  const auto tensor = Message().integer(1, string_type).message(2, shape).text(8, text);
  const auto metadata = Message().message(1, Message().text(1, "text"));  // the plugin that shows it
  return value_event(stamp, tag, [&](Message& content) { content.message(8, tensor).message(9, metadata); });
}

}  // namespace ddp::report
