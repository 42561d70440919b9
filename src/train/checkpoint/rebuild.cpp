#include "train/checkpoint/rebuild.hpp"

#include <ATen/Functions.h>
#include <c10/util/safe_numerics.h>

#include <algorithm>
#include <array>
#include <optional>
#include <stdexcept>
#include <string_view>

#include "train/checkpoint/pickle_format.hpp"

namespace ddp::checkpoint {
namespace {

using Kind = PickleItem::Kind;
using Arguments = std::vector<PickleItem>;

constexpr std::array<std::string_view, 16> kFunctions{"torch._utils._rebuild_tensor",
                                                      "torch._utils._rebuild_tensor_v2",
                                                      "torch._utils._rebuild_tensor_v3",
                                                      "torch._utils._rebuild_parameter",
                                                      "torch._utils._rebuild_parameter_with_state",
                                                      "torch._utils._rebuild_device_tensor_from_cpu_tensor",
                                                      "torch._tensor._rebuild_from_type_v2",
                                                      "torch.nn.parameter.Parameter",
                                                      "torch.Tensor",
                                                      "torch.Size",
                                                      "torch.device",
                                                      "_codecs.encode",
                                                      "builtins.bytearray",
                                                      "builtins.complex",
                                                      "__builtin__.bytearray",
                                                      "__builtin__.complex"};
constexpr std::string_view kTorch = "torch.";
constexpr std::string_view kUntyped = "torch.storage.UntypedStorage";

const pickle::DtypeName* find_dtype(std::string_view name, const char* pickle::DtypeName::* member) {
  if (name.substr(0, kTorch.size()) != kTorch) return nullptr;
  name.remove_prefix(kTorch.size());
  const auto* found = std::find_if(pickle::kDtypes.begin(), pickle::kDtypes.end(), [&](const auto& known) {
    return known.*member != nullptr && name == known.*member;
  });
  return found == pickle::kDtypes.end() ? nullptr : found;
}

[[noreturn]] void refuse(const std::string& name) {
  throw std::runtime_error("its pickle calls " + name + " with other arguments than torch.save() does");
}

const PickleItem& argument(const Arguments& arguments, std::size_t i, const std::string& name) {
  if (i >= arguments.size()) refuse(name);
  return arguments[i];
}

std::vector<std::int64_t> integers(const PickleItem& item, const std::string& name) {
  if (item.kind != Kind::tuple) refuse(name);
  std::vector<std::int64_t> values;
  for (const auto& element : item.tuple->elements) {
    if (element.kind != Kind::value || !element.value.isInt()) refuse(name);
    values.push_back(element.value.toInt());
  }
  return values;
}

// Elements may lie upon each other, as expand() lets them: nothing is copied here.
void require_inside(const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides,
                    std::int64_t offset, std::uint64_t elements, const std::string& name) {
  if (sizes.size() != strides.size() || offset < 0) refuse(name);
  std::uint64_t count = 1, last = static_cast<std::uint64_t>(offset);
  bool fits = true, is_empty = false;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0 || strides[i] < 0) refuse(name);
    std::uint64_t step = 0;
    is_empty |= sizes[i] == 0;
    fits &= !c10::mul_overflows(count, std::max<std::uint64_t>(static_cast<std::uint64_t>(sizes[i]), 1), &count);
    fits &= sizes[i] == 0 || (!c10::mul_overflows(static_cast<std::uint64_t>(sizes[i] - 1),
                                                  static_cast<std::uint64_t>(strides[i]), &step) &&
                              !c10::add_overflows(last, step, &last));
  }
  const bool is_within = count <= INT64_MAX && (is_empty || last < elements);
  if (!fits || !is_within) throw std::runtime_error("a tensor of it is larger than its storage");
}

// {"conj": True} or {"neg": True} for a view of these kinds. Other metadata belongs to devices that are not here.
at::Tensor with_metadata(at::Tensor tensor, const Arguments& arguments, std::size_t i, const std::string& name) {
  if (i >= arguments.size() || arguments[i].value.isNone()) return tensor;
  if (!arguments[i].value.isGenericDict()) refuse(name);
  for (const auto& entry : arguments[i].value.toGenericDict()) {
    const auto& key = entry.key().isString() ? entry.key().toStringRef() : name;
    if (!entry.value().isBool() || (key != "conj" && key != "neg"))
      throw std::runtime_error("a tensor of it has the metadata \"" + key + "\", which is not known");
    if (!entry.value().toBool()) continue;
    if (key == "conj" && !tensor.is_complex()) refuse(name);
    tensor = key == "conj" ? at::_conj(tensor) : at::_neg_view(tensor);
  }
  return tensor;
}

at::Tensor tensor(const Arguments& arguments, const std::string& name, std::optional<at::ScalarType> dtype) {
  const auto& storage = argument(arguments, 0, name);
  const auto& offset = argument(arguments, 1, name);
  if (storage.kind != Kind::storage || offset.kind != Kind::value || !offset.value.isInt()) refuse(name);
  const auto sizes = integers(argument(arguments, 2, name), name);
  const auto strides = integers(argument(arguments, 3, name), name);
  const auto type = dtype.value_or(storage.dtype);
  require_inside(sizes, strides, offset.value.toInt(), storage.storage.nbytes() / c10::elementSize(type), name);
  return at::empty({0}, at::TensorOptions(type)).set_(storage.storage, offset.value.toInt(), sizes, strides);
}

Value tensor_v3(const Arguments& arguments, const std::string& name) {
  const auto& dtype = argument(arguments, 6, name);
  const auto* known =
      dtype.kind == Kind::name ? find_dtype(dtype.value.toStringRef(), &pickle::DtypeName::name) : nullptr;
  if (!known) refuse(name);
  return with_metadata(tensor(arguments, name, known->dtype), arguments, 7, name);
}

// A subclass of Tensor, or one with attributes: the tensor alone.
Value from_type(const Arguments& arguments, const std::string& name) {
  const auto& function = argument(arguments, 0, name);
  const auto& inner = argument(arguments, 2, name);
  if (function.kind != Kind::name || inner.kind != Kind::tuple || function.value.toStringRef() == name) refuse(name);
  return rebuild(function.value.toStringRef(), inner.tuple->elements);
}

Value first_tensor(const Arguments& arguments, const std::string& name) {
  const auto& item = argument(arguments, 0, name);
  if (item.kind != Kind::value || !item.value.isTensor()) refuse(name);
  return item.value;
}

Value size(const Arguments& arguments, const std::string& name) {
  std::vector<Value> values;
  for (const auto value : integers(argument(arguments, 0, name), name)) values.emplace_back(value);
  return c10::ivalue::Tuple::create(std::move(values));
}

Value complex(const Arguments& arguments, const std::string& name) {
  const auto part = [&](std::size_t i) {
    const auto& item = argument(arguments, i, name);
    if (item.kind != Kind::value || !item.value.isDouble()) refuse(name);
    return item.value.toDouble();
  };
  return Value(c10::complex<double>(part(0), part(1)));
}

// Bytes travel as the text whose code points they are, in UTF-8.
Value text(const Arguments& arguments, const std::string& name) {
  if (arguments.empty()) return std::string();
  const auto& item = arguments[0];
  if (!item.is_text()) refuse(name);
  if (name != "_codecs.encode") return item.value;
  std::string bytes;
  const auto& source = item.value.toStringRef();
  for (std::size_t i = 0; i < source.size(); ++i) {
    const auto byte = static_cast<unsigned char>(source[i]);
    const bool is_pair = (byte == 0xc2 || byte == 0xc3) && i + 1 < source.size();
    if (byte >= 0x80 && !is_pair) refuse(name);
    bytes += is_pair ? static_cast<char>((byte << 6U) | (static_cast<unsigned char>(source[++i]) & 0x3fU)) : source[i];
  }
  return bytes;
}

}  // namespace

bool is_known_name(const std::string& name) {
  return std::find(kFunctions.begin(), kFunctions.end(), name) != kFunctions.end() || name == kUntyped ||
         find_dtype(name, &pickle::DtypeName::storage) || find_dtype(name, &pickle::DtypeName::name);
}

at::ScalarType dtype_of_storage(const std::string& name) {
  if (name == kUntyped) return at::kByte;
  if (const auto* known = find_dtype(name, &pickle::DtypeName::storage)) return known->dtype;
  throw std::runtime_error("its pickle takes " + name + " for a class of storages");
}

Value rebuild(const std::string& name, const Arguments& arguments) {
  if (name == "torch._utils._rebuild_tensor_v3") return tensor_v3(arguments, name);
  if (name == "torch._utils._rebuild_tensor_v2" || name == "torch._utils._rebuild_tensor")
    return with_metadata(tensor(arguments, name, std::nullopt), arguments, 6, name);
  if (name == "torch._tensor._rebuild_from_type_v2") return from_type(arguments, name);
  if (name == "torch.Size") return size(arguments, name);
  if (name.ends_with(".complex")) return complex(arguments, name);
  if (name == "_codecs.encode" || name == "torch.device" || name.ends_with(".bytearray")) return text(arguments, name);
  return first_tensor(arguments, name);
}

}  // namespace ddp::checkpoint
