#pragma once
/// flat_parameters.hpp: moves parameters' data so that they lie side by side.

#include <string>
#include <unordered_set>
#include <vector>

#include "reduce/parameter.hpp"

namespace ddp {

/// A parameter stays the tensor that it is, with its values, strides, version, gradient and hooks; what alone changes
/// is where its data are. They live as long as it does, whatever becomes of this object. Threads: one at a time, while
/// nobody else uses the parameters.
class FlatParameters {
 public:
  /// On the CPU, those of one dtype in this order; on a device they stay where they are. So do those of which something
  /// else knows where they are: another tensor over the same memory, or whoever gave the memory, if not LibTorch; and
  /// those with gaps or overlaps, and tensors of a special kind. A line of the log names them, once each.
  void lay(const std::vector<Parameter>& parameters);

 private:
  void tell(const std::vector<std::string>& left);

  std::unordered_set<std::string> told_;
};

}  // namespace ddp
