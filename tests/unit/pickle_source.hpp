#pragma once
/// pickle_source.hpp: pickles and .pt files that a test writes byte by byte, as nobody's writer does.

#include <caffe2/serialize/inline_container.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddp::testing {

using Records = std::vector<std::pair<std::string, std::string>>;

/// A zip archive of these records, as torch.save() writes it.
inline std::shared_ptr<std::string> archive_of(const Records& records) {
  auto bytes = std::make_shared<std::string>();
  caffe2::serialize::PyTorchStreamWriter writer([&](const void* data, std::size_t size) {
    bytes->append(static_cast<const char*>(data), size);
    return size;
  });
  for (const auto& [name, content] : records) writer.writeRecord(name, content.data(), content.size());
  writer.writeEndOfFile();
  return bytes;
}

/// A file whose pickle is protocol 2, `body`, STOP; with the bytes of a storage "0".
inline std::shared_ptr<std::string> file_of(const std::string& body, const std::string& storage = "") {
  return archive_of({{"data.pkl", "\x80\x02" + body + "."}, {"byteorder", "little"}, {"data/0", storage}});
}

inline std::string raw(std::uint64_t number, std::size_t bytes) {
  return {reinterpret_cast<const char*>(&number), bytes};
}
inline std::string text_op(std::string_view text) { return "X" + raw(text.size(), 4) + std::string(text); }
inline std::string int_op(std::int64_t number) { return "\x8a\x08" + raw(static_cast<std::uint64_t>(number), 8); }
inline std::string global_op(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}
inline std::string ints_op(const std::vector<std::int64_t>& numbers) {
  std::string body = "(";
  for (const auto number : numbers) body += int_op(number);
  return body + "t";
}
inline std::string storage_op(const std::string& type, const std::string& key, std::int64_t elements) {
  return "(" + text_op("storage") + global_op("torch", type) + text_op(key) + text_op("cpu") + int_op(elements) + "tQ";
}

/// A call of torch._utils._rebuild_tensor_v2.
struct TensorOp {
  std::string type = "FloatStorage";
  std::string key = "0";
  std::int64_t elements = 4;
  std::int64_t offset = 0;
  std::vector<std::int64_t> sizes = {4};
  std::vector<std::int64_t> strides = {1};

  std::string body() const {
    return global_op("torch._utils", "_rebuild_tensor_v2") + "(" + storage_op(type, key, elements) + int_op(offset) +
           ints_op(sizes) + ints_op(strides) + "\x89" + global_op("collections", "OrderedDict") + ")RtR";
  }
};

}  // namespace ddp::testing
