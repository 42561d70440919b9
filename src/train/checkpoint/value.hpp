#pragma once
/// value.hpp: what a checkpoint's file holds: a tree of dicts, lists and tuples with tensors, numbers and texts.

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddp::checkpoint {

using Value = c10::IValue;
using Dict = c10::impl::GenericDict;  ///< keeps the order of insertion
using List = c10::impl::GenericList;

Dict empty_dict();
List empty_list();
/// "a str", "a tensor", ...: Python's word for what it is, with its article.
std::string kind_of(const Value& value);

/// FNV-1a over the whole tree: kinds, keys and the tensors' dtypes, shapes and elements, wherever these lie.
std::uint64_t hash_of(const Value& value);

/// A place in a tree that was read, and the way to it, which errors name.
/// Errors: std::runtime_error where the place is of another kind than is asked for.
class Place {
 public:
  Place(Value value, std::string path) : value_(std::move(value)), path_(std::move(path)) {}

  const Value& value() const { return value_; }
  const std::string& path() const { return path_; }
  bool is_none() const { return value_.isNone(); }

  bool has(const std::string& key) const { return find(key).has_value(); }
  Place at(const std::string& key) const;
  std::optional<Place> find(const std::string& key) const;
  /// The elements of a list or tuple.
  std::vector<Place> items() const;
  Dict dict() const;

  bool boolean() const;
  std::int64_t integer() const;
  double number() const;  ///< an integer, too, and a tensor of one element
  std::string text() const;
  at::Tensor tensor() const;
  /// A copy of it, for which require_own_elements() holds.
  at::Tensor own_tensor() const;

  /// No tensor in it is larger than its storage: to copy it takes no more memory than the file has.
  void require_own_elements() const;

  [[noreturn]] void fail(const std::string& what) const;

 private:
  [[noreturn]] void expected(const char* kind) const;
  Place inside(Value value, const std::string& key) const;

  Value value_;
  std::string path_;
};

}  // namespace ddp::checkpoint
