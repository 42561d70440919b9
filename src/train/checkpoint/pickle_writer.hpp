#pragma once
/// pickle_writer.hpp: a tree of values as Python's pickle, in words that torch.load(weights_only=True) knows.

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "train/checkpoint/value.hpp"

namespace ddp::checkpoint {

/// Opcode by opcode, so that the file can be two things at once: see pt_file.cpp.
/// Tensors: on the CPU, dense. Their bytes become the records "data/0", "data/1", ...; one that comes again is
/// referred to.
class PickleWriter {
 public:
  PickleWriter();

  /// Errors: std::runtime_error for a tensor or a value that Python would not read, and for more than is read here.
  void value(const Value& value);
  void text(const std::string& text);
  void global(std::string_view module, std::string_view name);
  /// Announces a list or dict that op() makes.
  void count_container();
  void op(unsigned char op) { bytes_ += static_cast<char>(op); }

  /// Ends the pickle and returns it. Errors: std::runtime_error for one that is too long to be read.
  std::string finish();
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

 private:
  template <class Integer>
  void raw(Integer value);
  void integer(std::int64_t value);
  void number(double value);
  void dict(const Dict& dict);
  void key(const Value& key);
  void complex(c10::complex<double> value);
  void device(at::Device device);
  void list(c10::ArrayRef<Value> values);
  void tuple(c10::ArrayRef<Value> values);
  void tensor(const at::Tensor& tensor);
  void sizes(at::IntArrayRef sizes);
  void remember(std::uint32_t& place);
  void recall(std::uint32_t place);

  std::string bytes_;
  int depth_ = 0;
  std::uint32_t remembered_ = 0;
  std::size_t containers_ = 0;
  std::unordered_map<std::string, std::uint32_t> texts_;
  std::unordered_map<const void*, std::uint32_t> places_;  ///< of tensors
  std::vector<at::Tensor> tensors_;
};

/// Whether LibTorch's own reader knows the dtype, too.
bool has_storage_class(at::ScalarType dtype);

}  // namespace ddp::checkpoint
