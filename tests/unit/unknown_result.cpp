// Compiled by tests: with one of the macros it must fail, and say what to do.
#include "ddp/tensor_visitor.hpp"

struct Unknown {};
struct Unchangeable {
  at::Tensor tensor;
};
template <>
struct ddp::TensorVisitor<Unchangeable> {
  static void visit(const Unchangeable& value, auto& f) { visit_tensors(value.tensor, f); }
};

void visit_results(const std::tuple<at::Tensor, std::optional<std::vector<at::Tensor>>, int, Unchangeable>& known,
                   [[maybe_unused]] const Unknown& unknown) {
  auto count = [](const at::Tensor&) {};
  ddp::visit_tensors(known, count);
#ifdef DDP_UNKNOWN_TYPE
  ddp::visit_tensors(unknown, count);
#endif
}

void move_batch(std::tuple<at::Tensor, std::vector<bool>, std::string>& batch,
                [[maybe_unused]] std::vector<Unchangeable>& unchangeable) {
  auto copy = [](const at::Tensor& tensor) { return tensor; };
  ddp::replace_tensors(batch, copy);
#ifdef DDP_UNCHANGEABLE_TYPE
  ddp::replace_tensors(unchangeable, copy);
#endif
}
