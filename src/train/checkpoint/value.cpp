#include "train/checkpoint/value.hpp"

#include <cstring>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "train/checkpoint/checksum.hpp"

namespace ddp::checkpoint {
namespace {

// Feeds a tree to a checksum, with a word before each part that says what and how long it is.
class TreeHash {
 public:
  void add(const Value& value) {
    if (value.isTensor()) return add(value.toTensor());
    if (value.isString()) return add(value.toStringRef());
    if (value.isGenericDict()) return add(value.toGenericDict());
    if (value.isList()) return add_all('l', value.toListRef());
    if (value.isTuple()) return add_all('t', value.toTupleRef().elements());
    if (value.isDouble()) return add_number('d', value.toDouble());
    if (value.isInt()) return add_number('i', value.toInt());
    if (value.isBool()) return add_number('b', value.toBool());
    if (value.isNone()) return add_number('n', 0);
    add(kind_of(value));
  }
  std::uint64_t result() { return sum_.result(); }

 private:
  void add(const std::string& text) {
    add_number('s', text.size());
    sum_.add(text);
  }
  void add(const Dict& dict) {
    add_number('m', dict.size());
    for (const auto& entry : dict) {
      add(entry.key());
      add(entry.value());
    }
  }
  void add(const at::Tensor& tensor) {
    if (!tensor.defined()) return add_number('u', 0);
    add_number('x', static_cast<int>(tensor.scalar_type()));
    for (const auto size : tensor.sizes()) add_number('z', size);
    const auto dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
    sum_.add({static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()});
  }
  template <class Values>
  void add_all(char kind, const Values& values) {
    add_number(kind, values.size());
    for (const auto& value : values) add(value);
  }
  template <class Number>
  void add_number(char kind, Number number) {
    char bytes[sizeof kind + sizeof number];
    std::memcpy(bytes, &kind, sizeof kind);
    std::memcpy(bytes + sizeof kind, &number, sizeof number);
    sum_.add({bytes, sizeof bytes});
  }

  Checksum sum_;
};

}  // namespace

Dict empty_dict() { return Dict(c10::AnyType::get(), c10::AnyType::get()); }
List empty_list() { return List(c10::AnyType::get()); }

std::string kind_of(const Value& value) {
  if (value.isTensor()) return "a tensor";
  if (value.isString()) return "a str";
  if (value.isGenericDict()) return "a dict";
  if (value.isList()) return "a list";
  if (value.isTuple()) return "a tuple";
  if (value.isDouble()) return "a float";
  if (value.isInt()) return "an int";
  if (value.isBool()) return "a bool";
  if (value.isNone()) return "None";
  if (value.isComplexDouble()) return "a complex";
  if (value.isDevice()) return "a device";
  return value.tagKind();
}

std::uint64_t hash_of(const Value& value) {
  TreeHash hash;
  hash.add(value);
  return hash.result();
}

Place Place::inside(Value value, const std::string& key) const {
  return {std::move(value), path_.empty() ? key : path_ + '.' + key};
}

std::optional<Place> Place::find(const std::string& key) const {
  const auto entries = dict();
  const auto found = entries.find(key);
  if (found == entries.end()) return std::nullopt;
  return inside(found->value(), key);
}

Place Place::at(const std::string& key) const {
  if (auto found = find(key)) return *found;
  throw std::runtime_error((path_.empty() ? "it" : path_) + " has no \"" + key + '"');
}

std::vector<Place> Place::items() const {
  std::vector<Place> places;
  const auto collect = [&](const auto& values) {
    for (std::size_t i = 0; i < values.size(); ++i) places.push_back(inside(values[i], std::to_string(i)));
  };
  if (value_.isTuple())
    collect(value_.toTupleRef().elements());
  else if (value_.isList())
    collect(value_.toListRef());
  else
    expected("a list");
  return places;
}

Dict Place::dict() const {
  if (!value_.isGenericDict()) expected("a dict");
  return value_.toGenericDict();
}

bool Place::boolean() const {
  if (!value_.isBool()) expected("a bool");
  return value_.toBool();
}

std::int64_t Place::integer() const {
  if (!value_.isInt()) expected("an int");
  return value_.toInt();
}

double Place::number() const {
  if (value_.isInt()) return static_cast<double>(value_.toInt());
  if (value_.isTensor() && value_.toTensor().numel() == 1) return value_.toTensor().item().toDouble();
  if (!value_.isDouble()) expected("a number");
  return value_.toDouble();
}

std::string Place::text() const {
  if (!value_.isString()) expected("a str");
  return value_.toStringRef();
}

at::Tensor Place::own_tensor() const {
  require_own_elements();
  return tensor().clone();
}

void Place::require_own_elements() const {
  if (value_.isTensor() && value_.toTensor().nbytes() > value_.toTensor().storage().nbytes())
    fail("is an expanded tensor, whose elements lie upon each other");
  if (value_.isList() || value_.isTuple())
    for (const auto& item : items()) item.require_own_elements();
  if (value_.isGenericDict())
    for (const auto& entry : value_.toGenericDict()) inside(entry.value(), "of a dict").require_own_elements();
}

at::Tensor Place::tensor() const {
  if (!value_.isTensor()) expected("a tensor");
  return value_.toTensor();
}

void Place::fail(const std::string& what) const {
  throw std::runtime_error((path_.empty() ? "it" : path_) + ' ' + what);
}
void Place::expected(const char* kind) const { fail("is " + kind_of(value_) + ", where " + kind + " was expected"); }

}  // namespace ddp::checkpoint
