#include "train/checkpoint/unpickler.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "train/checkpoint/pickle_format.hpp"
#include "train/checkpoint/rebuild.hpp"

namespace ddp::checkpoint {
namespace {

// Each value of a tree is written in one byte or more, unless it is referred to several times, which torch.save()
// does for values that hold few others.
constexpr std::size_t kNodesPerByte = 16;
constexpr std::size_t kFewNodes = 10000;
[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

// Classes that are a dict to us, also where they have Python 2's names, of which there are several for collections.
bool is_dict_class(const std::string& name) {
  const auto dot = name.find('.');
  const auto module = name.substr(0, dot), type = name.substr(std::min(dot, name.size() - 1) + 1);
  return (type == "OrderedDict" || type == "Counter") &&
         (module == "collections" || module == "UserDict" || module == "UserList" || module == "UserString");
}

bool is_list_class(const std::string& name) { return name == "builtins.set" || name == "__builtin__.set"; }

}  // namespace

Unpickler::Unpickler(std::string_view pickle, LoadStorage load_storage, std::size_t tensor_bytes)
    : pickle_(pickle),
      nodes_left_(kNodesPerByte * pickle.size() + kFewNodes),
      tensor_bytes_left_(tensor_bytes),
      load_storage_(std::move(load_storage)) {}

Value Unpickler::run() {
  while (!has_ended_) step(raw<unsigned char>());
  return value_of(pop());
}

void Unpickler::push(Item item) {
  if (stack_.size() > pickle::kMost + 1000) fail("its pickle has too many values at once");
  stack_.push_back(std::move(item));
}

template <class Integer>
Integer Unpickler::raw() {
  Integer value{};
  if (pickle_.size() - at_ < sizeof value) fail("its pickle ends too early");
  std::memcpy(&value, pickle_.data() + at_, sizeof value);
  at_ += sizeof value;
  return value;
}

std::string Unpickler::bytes(std::size_t size) {
  if (pickle_.size() - at_ < size) fail("its pickle ends too early");
  at_ += size;
  return std::string(pickle_.substr(at_ - size, size));
}

std::string Unpickler::line() {
  const auto end = pickle_.find('\n', at_);
  if (end == std::string_view::npos) fail("its pickle ends too early");
  auto text = bytes(end - at_);
  ++at_;
  return text;
}

Unpickler::Item& Unpickler::top() {
  if (stack_.empty() || stack_.back().kind == Item::Kind::mark) fail("its pickle takes values that are not there");
  return stack_.back();
}

Unpickler::Item Unpickler::pop() {
  auto item = std::move(top());
  stack_.pop_back();
  return item;
}

Unpickler::Items Unpickler::pop_to_mark() {
  const auto is_mark = [](const Item& item) { return item.kind == Item::Kind::mark; };
  const auto mark = std::find_if(stack_.rbegin(), stack_.rend(), is_mark);
  if (mark == stack_.rend()) fail("its pickle has no mark where it needs one");
  Items items(std::make_move_iterator(mark.base()), std::make_move_iterator(stack_.end()));
  stack_.erase(mark.base() - 1, stack_.end());
  return items;
}

void Unpickler::step(unsigned char op) {
  if (step_constant(op) || step_container(op)) return;
  switch (op) {
    case pickle::proto:
      if (raw<unsigned char>() != pickle::kProtocol) fail("its pickle has another protocol than torch.save() uses");
      return;
    case pickle::stop:
      has_ended_ = true;
      return;
    case pickle::mark:
      return push(Item{.kind = Item::Kind::mark});
    case pickle::global:
      return push_name();
    case pickle::bin_persid:
      return push_storage();
    case pickle::reduce:
    case pickle::new_obj:
      return call();
    case pickle::build:
      return build();
    case pickle::bin_get:
      return get(raw<std::uint8_t>());
    case pickle::long_bin_get:
      return get(raw<std::uint32_t>());
    case pickle::bin_put:
      memo_[raw<std::uint8_t>()] = top();
      return;
    case pickle::long_bin_put:
      memo_[raw<std::uint32_t>()] = top();
      return;
    default:
      fail("its pickle has opcode " + std::to_string(op) + ", which is not allowed");
  }
}

bool Unpickler::step_constant(unsigned char op) {
  switch (op) {
    case pickle::none:
      return push(Value()), true;
    case pickle::new_true:
      return push(Value(true)), true;
    case pickle::new_false:
      return push(Value(false)), true;
    case pickle::bin_int:
      return push(Value(std::int64_t{raw<std::int32_t>()})), true;
    case pickle::bin_int1:
      return push(Value(std::int64_t{raw<std::uint8_t>()})), true;
    case pickle::bin_int2:
      return push(Value(std::int64_t{raw<std::uint16_t>()})), true;
    case pickle::long1:
      return push_integer(), true;
    case pickle::bin_float: {
      auto digits = bytes(sizeof(double));
      std::reverse(digits.begin(), digits.end());
      double value = 0;
      std::memcpy(&value, digits.data(), sizeof value);
      return push(Value(value)), true;
    }
    case pickle::bin_unicode:
      return push(Value(bytes(raw<std::uint32_t>()))), true;
    case pickle::short_bin_string:
      return push(Value(bytes(raw<std::uint8_t>()))), true;
    default:
      return false;
  }
}

bool Unpickler::step_container(unsigned char op) {
  const auto take = [this](std::size_t count) {
    Items items(count);
    for (auto item = items.rbegin(); item != items.rend(); ++item) *item = pop();
    return items;
  };
  switch (op) {
    case pickle::empty_list:
    case pickle::empty_set:
      return push_container(empty_list()), true;
    case pickle::empty_dict:
      return push_container(empty_dict()), true;
    case pickle::empty_tuple:
      return push_tuple({}), true;
    case pickle::tuple1:
    case pickle::tuple2:
    case pickle::tuple3:
      return push_tuple(take(1U + (op - pickle::tuple1))), true;
    case pickle::tuple:
      return push_tuple(pop_to_mark()), true;
    case pickle::append:
      return append(take(1)), true;
    case pickle::appends:
      return append(pop_to_mark()), true;
    case pickle::set_item:
      return set_items(take(2)), true;
    case pickle::set_items:
      return set_items(pop_to_mark()), true;
    default:
      return false;
  }
}

// Little-endian, two's complement, as short as it may be.
void Unpickler::push_integer() {
  const auto digits = bytes(raw<std::uint8_t>());
  std::int64_t value = !digits.empty() && (digits.back() & 0x80) != 0 ? -1 : 0;
  if (digits.size() > sizeof value) fail("it has an integer of more than 64 bits");
  if (!digits.empty()) std::memcpy(&value, digits.data(), digits.size());
  push(Value(value));
}

void Unpickler::push_container(Value value) {
  if (containers_.size() > pickle::kMost + 1000) fail("its pickle has too many lists and dicts");
  containers_.emplace(value.internalToPointer(), Container());
  kept_.push_back({.value = value});
  push(std::move(value));
}

void Unpickler::push_tuple(Items elements) {
  Item tuple{.kind = Item::Kind::tuple};
  for (const auto& element : elements) {
    Container whole{.nodes = tuple.nodes, .depth = tuple.depth};
    put_inside(whole, element);
    tuple.nodes = whole.nodes;
    tuple.depth = whole.depth;
  }
  tuple.tuple = std::make_shared<PickleTuple>(PickleTuple{.elements = std::move(elements)});
  push(std::move(tuple));
}

void Unpickler::push_name() {
  auto name = line();
  name += '.' + line();
  if (!is_dict_class(name) && !is_list_class(name) && !is_known_name(name))
    fail("it uses " + name + ", which is neither a value nor a tensor and is not loaded");
  push(Item{.kind = Item::Kind::name, .value = Value(std::move(name))});
}

void Unpickler::push_storage() {
  const auto id = pop();
  const auto is_storage = [&] {
    if (id.kind != Item::Kind::tuple || id.tuple->elements.size() < 3) return false;
    const auto& [word, type, key] = std::tie(id.tuple->elements[0], id.tuple->elements[1], id.tuple->elements[2]);
    return word.is_text() && word.value.toStringRef() == "storage" && type.kind == Item::Kind::name && key.is_text();
  };
  if (!is_storage()) fail("its pickle refers to something else than a tensor's storage");
  const auto& parts = id.tuple->elements;
  const auto dtype = dtype_of_storage(parts[1].value.toStringRef());
  push(Item{.kind = Item::Kind::storage, .storage = load_storage_(parts[2].value.toStringRef()), .dtype = dtype});
}

void Unpickler::get(std::uint32_t place) {
  const auto found = memo_.find(place);
  if (found == memo_.end()) fail("its pickle refers to a value that is not there");
  push(found->second);
}

Unpickler::Container& Unpickler::container_of(const Item& item) {
  const auto found = item.kind == Item::Kind::value && item.value.isPtrType()
                         ? containers_.find(item.value.internalToPointer())
                         : containers_.end();
  if (found == containers_.end()) fail("its pickle puts values into what is no list or dict");
  if (found->second.is_inside) fail("its pickle changes a value that stands in another one already");
  return found->second;
}

void Unpickler::put_inside(Container& container, const Item& item) {
  auto nodes = item.nodes;
  auto depth = item.depth;
  if (item.kind == Item::Kind::value && item.value.isPtrType()) {
    if (const auto found = containers_.find(item.value.internalToPointer()); found != containers_.end()) {
      found->second.is_inside = true;
      nodes = found->second.nodes;
      depth = found->second.depth;
    }
  }
  if (item.kind == Item::Kind::value && item.value.isTensor()) {
    const auto& tensor = item.value.toTensor();
    const auto bytes = std::min(tensor.nbytes(), tensor.storage().nbytes());
    if (bytes > tensor_bytes_left_) fail("its values hold the same tensors too often");
    tensor_bytes_left_ -= bytes;
  }
  container.nodes += nodes;
  container.depth = std::max(container.depth, depth + 1);
  if (container.depth > pickle::kDeepestRead) fail("its values lie too deep in each other");
  if (nodes > nodes_left_) fail("its values contain each other too often");
  nodes_left_ -= nodes;
}

void Unpickler::append(Items items) {
  auto& container = container_of(top());
  if (!top().value.isList()) fail("its pickle appends to what is no list");
  auto list = top().value.toList();
  for (const auto& item : items) {
    if (item.kind == Item::Kind::value && item.value.is(top().value)) fail("its pickle puts a list into itself");
    put_inside(container, item);
    list.push_back(value_of(item));
  }
}

void Unpickler::set_items(Items items) {
  auto& container = container_of(top());
  if (!top().value.isGenericDict() || items.size() % 2 != 0) fail("its pickle sets entries of what is no dict");
  auto dict = top().value.toGenericDict();
  for (std::size_t i = 0; i < items.size(); i += 2) {
    const auto key = value_of(items[i]);
    if (!key.isString() && !key.isInt() && !key.isBool() && !key.isDouble())
      fail("a dict of it has " + kind_of(key) + " as a key");
    if (items[i + 1].kind == Item::Kind::value && items[i + 1].value.is(top().value))
      fail("its pickle puts a dict into itself");
    put_inside(container, items[i + 1]);
    dict.insert_or_assign(key, value_of(items[i + 1]));
  }
}

// A class or function is called with a tuple.
void Unpickler::call() {
  const auto arguments = pop();
  const auto callee = pop();
  if (callee.kind != Item::Kind::name || arguments.kind != Item::Kind::tuple)
    fail("its pickle calls what is no class or function");
  const auto& name = callee.value.toStringRef();
  const auto& values = arguments.tuple->elements;
  const bool is_dict = is_dict_class(name);
  if (!is_dict && !is_list_class(name)) return push(rebuild(name, values));
  if (values.empty()) return push_container(is_dict ? Value(empty_dict()) : Value(empty_list()));
  if (values.size() != 1 || (is_dict ? !values[0].value.isGenericDict() : !values[0].value.isList()))
    fail("its pickle makes a " + name + " of something else");
  push(values[0]);  // the dict or list itself, whose class is of no interest here
}

// The attributes of a dict, like _metadata of a state_dict, are not read.
void Unpickler::build() {
  pop();
  if (top().kind != Item::Kind::value || !top().value.isGenericDict())
    fail("its pickle gives attributes to what is no dict");
}

Value Unpickler::value_of(const Item& item) {
  switch (item.kind) {
    case Item::Kind::value:
    case Item::Kind::name:
      return item.value;
    case Item::Kind::tuple: {
      auto& tuple = *item.tuple;
      std::vector<Value> values;
      if (tuple.value.isTuple()) return tuple.value;
      for (const auto& element : tuple.elements) values.push_back(value_of(element));
      return tuple.value = c10::ivalue::Tuple::create(std::move(values));
    }
    default:
      fail("its pickle has a tensor's storage where a value was expected");
  }
}

}  // namespace ddp::checkpoint
