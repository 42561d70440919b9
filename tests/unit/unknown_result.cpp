// Compiled by a test: with DDP_UNKNOWN_TYPE it must fail, and say what to do.
#include "ddp/tensor_visitor.hpp"

struct Unknown {};

void visit_results(const std::tuple<at::Tensor, std::optional<std::vector<at::Tensor>>, int>& known,
                   [[maybe_unused]] const Unknown& unknown) {
  auto count = [](const at::Tensor&) {};
  ddp::visit_tensors(known, count);
#ifdef DDP_UNKNOWN_TYPE
  ddp::visit_tensors(unknown, count);
#endif
}
