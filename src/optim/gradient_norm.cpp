#include "optim/gradient_norm.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

#include "optim/update.hpp"

namespace ddp::optim {
namespace {

// A part of a gradient, whose sum is formed by one thread. Its length is the same everywhere, for the bits hang on it.
struct Part {
  const at::Tensor* gradient;
  std::int64_t begin;
  std::int64_t count;
};
constexpr std::int64_t kPart = std::int64_t{1} << 15;

bool has_loop(const at::Tensor& gradient) {
  return gradient.is_cpu() && gradient.is_non_overlapping_and_dense() &&
         (gradient.scalar_type() == at::kFloat || gradient.scalar_type() == at::kDouble);
}

template <class T>
double sum_of(const Part& part) {
  return sum_of_squares(part.gradient->const_data_ptr<T>() + part.begin, static_cast<std::size_t>(part.count));
}

// Waits for a device once, not for each gradient.
double sum_by_libtorch(const std::vector<at::Tensor>& gradients) {
  std::map<std::string, std::vector<at::Tensor>> norms;  // by device
  for (const auto& gradient : gradients) {
    const auto values = gradient.is_complex() ? at::view_as_real(gradient.resolve_conj()) : gradient;
    norms[gradient.device().str()].push_back(at::linalg_vector_norm(values, 2, {}, false, at::kDouble));
  }
  double total = 0;
  for (const auto& [device, of_device] : norms) total += at::stack(of_device).square().sum().item<double>();
  return total;
}

}  // namespace

double sum_of_squares(const std::vector<at::Tensor>& gradients) {
  std::vector<Part> parts;
  std::vector<at::Tensor> others;
  for (const auto& gradient : gradients) {
    if (!has_loop(gradient)) {
      others.push_back(gradient);
      continue;
    }
    for (std::int64_t begin = 0; begin < gradient.numel(); begin += kPart)
      parts.push_back({&gradient, begin, std::min(kPart, gradient.numel() - begin)});
  }
  std::vector<double> sums(parts.size());
  at::parallel_for(0, static_cast<std::int64_t>(parts.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
      sums[i] = parts[i].gradient->scalar_type() == at::kFloat ? sum_of<float>(parts[i]) : sum_of<double>(parts[i]);
  });
  auto total = sum_by_libtorch(others);
  for (const auto sum : sums) total += sum;
  return total;
}

}  // namespace ddp::optim
