#include "train/checkpoint/pickle_writer.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "train/checkpoint/pickle_format.hpp"

namespace ddp::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "pickle's integers and the tensors' bytes are little-endian");

constexpr std::size_t kBatch = 1000;  // as many as Python's pickle gives a list or dict at once

// As Python's decoder understands it: RFC 3629, and surrogates on their own.
bool is_utf8(const std::string& text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = [&](std::size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0U; };
    const auto lead = byte(i);
    const std::size_t length = lead < 0x80   ? 1
                               : lead < 0xc2 ? 0
                               : lead < 0xe0 ? 2
                               : lead < 0xf0 ? 3
                               : lead < 0xf5 ? 4
                                             : 0;
    if (length == 0) return false;
    for (std::size_t k = 1; k < length; ++k)
      if ((byte(i + k) & 0xc0U) != 0x80U) return false;
    if ((lead == 0xe0 && byte(i + 1) < 0xa0) || (lead == 0xf0 && byte(i + 1) < 0x90) ||
        (lead == 0xf4 && byte(i + 1) > 0x8f))
      return false;
    i += length;
  }
  return true;
}

const pickle::DtypeName& name_of(at::ScalarType dtype) {
  const auto* found = std::find_if(pickle::kDtypes.begin(), pickle::kDtypes.end(),
                                   [&](const auto& known) { return known.dtype == dtype; });
  if (found == pickle::kDtypes.end())
    throw std::runtime_error(std::string("a tensor of dtype ") + c10::toString(dtype) + " cannot be written");
  return *found;
}

}  // namespace

PickleWriter::PickleWriter() {
  op(pickle::proto);
  op(pickle::kProtocol);
}

std::string PickleWriter::finish() {
  op(pickle::stop);
  if (bytes_.size() > pickle::kLongest)
    throw std::runtime_error("values of more than 256 MiB beside the tensors cannot be written; make them a tensor");
  return std::move(bytes_);
}

template <class Integer>
void PickleWriter::raw(Integer value) {
  bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void PickleWriter::value(const Value& value) {
  if (++depth_ > pickle::kDeepest) throw std::runtime_error("values that lie so deep in each other cannot be written");
  if (value.isTensor())
    tensor(value.toTensor());
  else if (value.isString())
    text(value.toStringRef());
  else if (value.isGenericDict())
    dict(value.toGenericDict());
  else if (value.isList())
    list(value.toListRef());
  else if (value.isTuple())
    tuple(value.toTupleRef().elements().vec());
  else if (value.isDouble())
    number(value.toDouble());
  else if (value.isInt())
    integer(value.toInt());
  else if (value.isBool())
    op(value.toBool() ? pickle::new_true : pickle::new_false);
  else if (value.isNone())
    op(pickle::none);
  else if (value.isComplexDouble())
    complex(value.toComplexDouble());
  else if (value.isDevice())
    device(value.toDevice());
  else
    throw std::runtime_error(kind_of(value) + " cannot be written");
  --depth_;
}

void PickleWriter::integer(std::int64_t value) {
  if (value >= 0 && value <= std::numeric_limits<std::uint8_t>::max()) {
    op(pickle::bin_int1);
    raw(static_cast<std::uint8_t>(value));
  } else if (value == static_cast<std::int32_t>(value)) {
    op(pickle::bin_int);
    raw(static_cast<std::int32_t>(value));
  } else {
    op(pickle::long1);
    raw(static_cast<std::uint8_t>(sizeof value));
    raw(value);
  }
}

void PickleWriter::number(double value) {
  op(pickle::bin_float);
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  std::reverse(std::begin(bytes), std::end(bytes));  // the only big-endian number
  bytes_.append(bytes, sizeof bytes);
}

void PickleWriter::text(const std::string& text) {
  auto& place = texts_[text];
  if (place != 0) return recall(place);
  if (!is_utf8(text)) throw std::runtime_error("a text that is not UTF-8 cannot be written; keep bytes in a tensor");
  if (text.size() > pickle::kLongest) throw std::runtime_error("a text of more than 256 MiB cannot be written");
  op(pickle::bin_unicode);
  raw(static_cast<std::uint32_t>(text.size()));
  bytes_ += text;
  remember(place);
}

void PickleWriter::global(std::string_view module, std::string_view name) {
  op(pickle::global);
  bytes_.append(module).append(1, '\n').append(name).append(1, '\n');
}

// Counts from 1: 0 is no place.
void PickleWriter::remember(std::uint32_t& place) {
  place = ++remembered_;
  op(pickle::long_bin_put);
  raw(place);
}

void PickleWriter::recall(std::uint32_t place) {
  op(pickle::long_bin_get);
  raw(place);
}

void PickleWriter::complex(c10::complex<double> value) {
  global("builtins", "complex");
  number(value.real());
  number(value.imag());
  op(pickle::tuple2);
  op(pickle::reduce);
}

void PickleWriter::device(at::Device device) {
  global("torch", "device");
  text(device.str());
  op(pickle::tuple1);
  op(pickle::reduce);
}

void PickleWriter::count_container() {
  if (++containers_ > pickle::kMost)
    throw std::runtime_error("more than a million lists, dicts and tensors cannot be written");
}

void PickleWriter::key(const Value& key) {
  if (!key.isString() && !key.isInt() && !key.isBool() && !key.isDouble())
    throw std::runtime_error(kind_of(key) + " as a dict's key cannot be written");
  value(key);
}

void PickleWriter::dict(const Dict& dict) {
  count_container();
  op(pickle::empty_dict);
  std::size_t entries = 0;
  for (const auto& entry : dict) {
    if (entries++ % kBatch == 0) op(pickle::mark);
    key(entry.key());
    value(entry.value());
    if (entries % kBatch == 0 || entries == dict.size()) op(pickle::set_items);
  }
}

void PickleWriter::list(c10::ArrayRef<Value> values) {
  count_container();
  op(pickle::empty_list);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % kBatch == 0) op(pickle::mark);
    value(values[i]);
    if ((i + 1) % kBatch == 0 || i + 1 == values.size()) op(pickle::appends);
  }
}

void PickleWriter::tuple(c10::ArrayRef<Value> values) {
  if (values.size() >= pickle::kMost) throw std::runtime_error("a tuple of a million elements cannot be written");
  op(pickle::mark);
  for (const auto& one : values) value(one);
  op(pickle::tuple);
}

void PickleWriter::sizes(at::IntArrayRef sizes) {
  op(pickle::mark);
  for (const auto size : sizes) integer(size);
  op(pickle::tuple);
}

// What torch.save() writes: a function of torch._utils, called with a storage and how the tensor lies in it.
void PickleWriter::tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) return op(pickle::none);
  auto& place = places_[tensor.unsafeGetTensorImpl()];
  if (place != 0) return recall(place);
  if (tensor.layout() != at::kStrided || tensor.is_quantized())
    throw std::runtime_error("a sparse or quantized tensor cannot be written");
  count_container();
  const auto& dtype = name_of(tensor.scalar_type());
  global("torch._utils", dtype.storage ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  op(pickle::mark);
  op(pickle::mark);
  text("storage");
  dtype.storage ? global("torch", dtype.storage) : global("torch.storage", "UntypedStorage");
  text(std::to_string(tensors_.size()));
  text("cpu");
  integer(dtype.storage ? tensor.numel() : static_cast<std::int64_t>(tensor.nbytes()));
  op(pickle::tuple);
  op(pickle::bin_persid);
  integer(0);
  sizes(tensor.sizes());
  sizes(tensor.strides());
  op(pickle::new_false);  // requires no gradient
  global("collections", "OrderedDict");
  op(pickle::empty_tuple);
  op(pickle::reduce);  // has no hooks
  if (!dtype.storage) global("torch", dtype.name);
  op(pickle::tuple);
  op(pickle::reduce);
  remember(place);
  tensors_.push_back(tensor);
}

bool has_storage_class(at::ScalarType dtype) { return name_of(dtype).storage != nullptr; }

}  // namespace ddp::checkpoint
