#include "train/checkpoint/optimizer_layout.hpp"

#include <ATen/Functions.h>

#include <deque>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <typeindex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ddp/optim.hpp"
#include "train/checkpoint/optimizer_fields.hpp"

namespace ddp::checkpoint {
namespace {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

class FieldWriter {
 public:
  explicit FieldWriter(Tensors tensors) : tensors_(tensors) {}

  template <class Field>
  void operator()(const char* name, const Field& field) {
    put(name, value_of(field));
  }
  void operator()(const char* name, const at::Tensor& field) {
    if (field.defined()) put(name, to_write(field, tensors_));
  }
  void of_parameter(const char* name, const at::Tensor& field, bool) { (*this)(name, field); }
  // Python counts in a tensor of float32.
  void steps(const char* name, std::int64_t steps) {
    put(name, at::scalar_tensor(static_cast<double>(steps), at::kFloat));
  }
  void constant(const char* name, bool value) { put(name, value); }
  void choice(const char* name, const Value& value) { put(name, value); }

  Dict take() { return dict_; }

 private:
  void put(const char* name, const Value& value) { dict_.insert(name, value); }

  static Value value_of(double field) { return field; }
  static Value value_of(std::int64_t field) { return field; }
  static Value value_of(bool field) { return field; }
  static Value value_of(const std::string& field) { return field; }
  static Value value_of(const std::tuple<double, double>& field) {
    return c10::ivalue::Tuple::create(std::get<0>(field), std::get<1>(field));
  }
  template <class Field>
  Value value_of(const std::optional<Field>& field) const {
    return field ? value_of(*field) : Value();
  }
  Value value_of(const std::deque<at::Tensor>& field) const { return list_of(field); }
  Value value_of(const std::vector<at::Tensor>& field) const { return list_of(field); }
  template <class TensorList>
  Value list_of(const TensorList& field) const {
    auto list = empty_list();
    for (const auto& tensor : field) list.push_back(tensor.defined() ? Value(to_write(tensor, tensors_)) : Value());
    return list;
  }

  Tensors tensors_;
  Dict dict_ = empty_dict();
};

// Reads options, all of which must be there, or the state of a parameter, in which some may be missing.
class FieldReader {
 public:
  explicit FieldReader(const Place& options) : place_(options) {}
  FieldReader(const Place& state, const at::Tensor& parameter) : place_(state), parameter_(parameter) {}

  template <class Field>
  void operator()(const char* name, Field& field) {
    if (!parameter_.defined()) {
      read(place_.at(name), field);
    } else if (const auto found = place_.find(name); found && !found->is_none()) {
      read(*found, field);
      has_read_ = true;
    }
  }
  void of_parameter(const char* name, at::Tensor& field, bool is_needed) {
    const auto found = place_.find(name);
    if (!found || found->is_none()) {
      if (is_needed) missing_ = name;
      return;
    }
    const auto saved = found->tensor();
    if (saved.sizes() != parameter_.sizes()) {
      std::ostringstream shapes;
      shapes << "has the shape " << saved.sizes() << " for a parameter " << parameter_.sizes();
      found->fail(shapes.str());
    }
    field = at::empty_like(parameter_, parameter_.options().requires_grad(false)).copy_(saved);
    has_read_ = true;
  }
  void steps(const char* name, std::int64_t& steps) {
    if (const auto found = place_.find(name)) steps = static_cast<std::int64_t>(found->number());
  }
  void constant(const char* name, bool value) {
    const auto found = place_.find(name);
    if (found && !found->is_none() && found->boolean() != value)
      found->fail(std::string("is ") + (value ? "False" : "True") + ", which C++'s optimizer of this name cannot do");
  }
  void choice(const char*, const Value&) {}

  /// Anything of a parameter's state was there; Python's may be None throughout. Errors: then all that is needed must
  /// be.
  bool has_read() const {
    if (has_read_ && !missing_.empty()) place_.fail("has no \"" + missing_ + '"');
    return has_read_;
  }

 private:
  static void read(const Place& place, double& field) { field = place.number(); }
  static void read(const Place& place, std::int64_t& field) { field = place.integer(); }
  static void read(const Place& place, bool& field) { field = place.boolean(); }
  static void read(const Place& place, std::string& field) { field = place.text(); }
  static void read(const Place& place, std::tuple<double, double>& field) {
    const auto items = place.items();
    if (items.size() != 2) place.fail("has not two elements");
    field = {items[0].number(), items[1].number()};
  }
  template <class Field>
  void read(const Place& place, std::optional<Field>& field) const {
    field.reset();
    if (!place.is_none()) read(place, field.emplace());
  }
  void read(const Place& place, at::Tensor& field) const {
    if (!place.is_none())
      field = place.value().isTensor() ? place.own_tensor().to(parameter_.device())
                                       : at::scalar_tensor(place.number(), parameter_.options().requires_grad(false));
  }
  void read(const Place& place, std::deque<at::Tensor>& field) const { read_list(place, field); }
  void read(const Place& place, std::vector<at::Tensor>& field) const { read_list(place, field); }
  template <class TensorList>
  void read_list(const Place& place, TensorList& field) const {
    field.clear();
    for (const auto& item : place.items()) read(item, field.emplace_back());
  }

  Place place_;
  at::Tensor parameter_;
  bool has_read_ = false;
  std::string missing_;
};

template <class LibTorchs, class Options, class State>
OptimizerLayout layout_of() {
  return {
      .libtorchs = &typeid(LibTorchs),
      .write_options =
          [](OptimizerOptions& options) {
            FieldWriter writer(Tensors::shared);
            visit_fields(static_cast<Options&>(options), writer);
            return writer.take();
          },
      .read_options =
          [](const Place& place, OptimizerOptions& options) {
            FieldReader reader(place);
            visit_fields(static_cast<Options&>(options), reader);
          },
      .assign_options =
          [](OptimizerOptions& to, const OptimizerOptions& from) {
            static_cast<Options&>(to) = static_cast<const Options&>(from);
          },
      .write_state =
          [](OptimizerParamState& state, OptimizerOptions& options, Tensors tensors) {
            FieldWriter writer(tensors);
            visit_fields(static_cast<State&>(state), static_cast<Options&>(options), writer);
            return writer.take();
          },
      .read_state = [](const Place& place, OptimizerOptions& options,
                       const at::Tensor& parameter) -> std::unique_ptr<OptimizerParamState> {
        auto state = std::make_unique<State>();
        FieldReader reader(place, parameter);
        visit_fields(*state, static_cast<Options&>(options), reader);
        return reader.has_read() ? std::move(state) : nullptr;
      },
  };
}

}  // namespace

const OptimizerLayout* find_layout(const std::type_info& type) {
  using namespace torch::optim;
  namespace fused = ddp::optim;
  static const std::unordered_map<std::type_index, OptimizerLayout> layouts{
      {typeid(SGD), layout_of<SGD, SGDOptions, SGDParamState>()},
      {typeid(fused::SGD), layout_of<SGD, SGDOptions, SGDParamState>()},
      {typeid(Adam), layout_of<Adam, AdamOptions, AdamParamState>()},
      {typeid(fused::Adam), layout_of<Adam, AdamOptions, AdamParamState>()},
      {typeid(AdamW), layout_of<AdamW, AdamWOptions, AdamWParamState>()},
      {typeid(fused::AdamW), layout_of<AdamW, AdamWOptions, AdamWParamState>()},
      {typeid(RMSprop), layout_of<RMSprop, RMSpropOptions, RMSpropParamState>()},
      {typeid(Adagrad), layout_of<Adagrad, AdagradOptions, AdagradParamState>()},
      {typeid(LBFGS), layout_of<LBFGS, LBFGSOptions, LBFGSParamState>()}};
  const auto found = layouts.find(type);
  return found == layouts.end() ? nullptr : &found->second;
}

}  // namespace ddp::checkpoint
