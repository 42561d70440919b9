#pragma once
/// unpickler.hpp: reads the pickle in a file of torch.save(): values and tensors, and nothing that could run.
///
/// It knows the opcodes and the classes that Python's torch.load(weights_only=True) knows; of those, not the ones
/// of sparse, quantized and nested tensors.

#include <c10/core/Storage.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "train/checkpoint/value.hpp"

namespace ddp::checkpoint {

/// What an opcode works on: a value; a class or function by its name; a tuple, whose elements may be such; a
/// storage of a tensor; or a mark.
struct PickleTuple;
struct PickleItem {
  enum class Kind { value, name, tuple, storage, mark };

  Kind kind = Kind::value;
  Value value{};  ///< a name's is a text
  std::shared_ptr<PickleTuple> tuple{};
  c10::Storage storage{};
  at::ScalarType dtype = at::kByte;  ///< of a storage
  std::size_t nodes = 1;             ///< values in it, itself included
  int depth = 1;

  bool is_text() const { return kind == Kind::value && value.isString(); }
};

struct PickleTuple {
  std::vector<PickleItem> elements;
  Value value{};  ///< the same as a value, once it has been asked for
};

/// Errors: std::runtime_error for whatever is not as torch.save() writes it: opcodes, classes, sizes, offsets, and
/// values so deep or so often contained in each other that taking them apart would not end.
class Unpickler {
 public:
  /// Gives a storage's bytes by its key. Errors: std::exception
  using LoadStorage = std::function<c10::Storage(const std::string& key)>;

  /// `tensor_bytes`: of tensors in lists and dicts, one that stands in several of them counted each time.
  Unpickler(std::string_view pickle, LoadStorage load_storage, std::size_t tensor_bytes);
  Value run();

 private:
  using Item = PickleItem;
  using Items = std::vector<PickleItem>;
  /// Of a list or dict, however many items stand for it.
  struct Container {
    std::size_t nodes = 1;
    int depth = 1;
    bool is_inside = false;  ///< of another one, from when on it is as it is
  };

  void step(unsigned char op);
  bool step_constant(unsigned char op);
  bool step_container(unsigned char op);
  template <class Integer>
  Integer raw();
  std::string bytes(std::size_t size);
  std::string line();
  void push(Item item);
  void push(Value value) { push(Item{.value = std::move(value)}); }
  Item pop();
  Item& top();
  Items pop_to_mark();

  void push_integer();
  void push_container(Value value);
  void push_tuple(Items elements);
  void push_name();
  void push_storage();
  void get(std::uint32_t place);
  void append(Items items);
  void set_items(Items items);
  void call();
  void build();
  Value value_of(const Item& item);
  void put_inside(Container& container, const Item& item);
  Container& container_of(const Item& item);

  std::string_view pickle_;
  std::size_t at_ = 0;
  bool has_ended_ = false;
  std::size_t nodes_left_;
  std::size_t tensor_bytes_left_;
  LoadStorage load_storage_;
  Items stack_;
  std::unordered_map<std::uint32_t, Item> memo_;
  std::unordered_map<const void*, Container> containers_;
  Items kept_;  ///< so that no container's address is used again
};

}  // namespace ddp::checkpoint
