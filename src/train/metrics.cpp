#include "ddp/metrics.hpp"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/distributed_sampler.hpp"
#include "ddp/process_group.hpp"

namespace ddp {
namespace {

/// What a rank has to give: which rows, or why it cannot.
struct Offer {
  std::string problem;
  std::int64_t rows = 0;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> row_sizes;
  bool shape_known = false;  ///< false: no rows, so that dtype and row_sizes are the other ranks'

  std::int64_t row_bytes() const {
    std::int64_t bytes = static_cast<std::int64_t>(c10::elementSize(dtype));
    for (const auto size : row_sizes) bytes *= size;
    return bytes;
  }
};

/// The numbers of an offer, or a '!' and its problem.
std::string packed(const Offer& offer) {
  if (!offer.problem.empty()) return "!" + offer.problem;
  std::vector<std::int64_t> numbers = {offer.rows, static_cast<std::int64_t>(offer.dtype), offer.shape_known ? 1 : 0};
  numbers.insert(numbers.end(), offer.row_sizes.begin(), offer.row_sizes.end());
  std::string bytes(1, '=');
  bytes.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(std::int64_t));
  return bytes;
}

Offer unpacked(std::string_view bytes) {
  if (bytes.front() == '!') return {.problem = std::string(bytes.substr(1)), .row_sizes = {}};
  std::vector<std::int64_t> numbers((bytes.size() - 1) / sizeof(std::int64_t));
  std::memcpy(numbers.data(), bytes.data() + 1, numbers.size() * sizeof(std::int64_t));
  return {.problem = {},
          .rows = numbers[0],
          .dtype = static_cast<at::ScalarType>(numbers[1]),
          .row_sizes = {numbers.begin() + 3, numbers.end()},
          .shape_known = numbers[2] != 0};
}

std::string problem_of(std::int64_t rows, const DistributedSampler& sampler, const ProcessGroup& group) {
  if (sampler.num_replicas() != group.size() || sampler.rank() != group.rank()) {
    return "its sampler is that of rank " + std::to_string(sampler.rank()) + " of " +
           std::to_string(sampler.num_replicas()) + " replicas, the group's size is " + std::to_string(group.size());
  }
  std::size_t covered = 0;
  for (int rank = 0; rank < sampler.num_replicas(); ++rank) covered += sampler.size_of(rank);
  if (covered < sampler.dataset_size()) {
    return "its sampler leaves out " + std::to_string(sampler.dataset_size() - covered) + " of " +
           std::to_string(sampler.dataset_size()) + " samples; make one without drop_last for the evaluation";
  }
  if (rows != static_cast<std::int64_t>(sampler.size())) {
    return "it has predictions for " + std::to_string(rows) + " samples of " + std::to_string(sampler.size());
  }
  return {};
}

Offer offer_of(const at::Tensor& local, const DistributedSampler& sampler, const ProcessGroup& group) {
  const bool has_rows = local.defined() && local.dim() > 0;
  Offer offer;
  offer.rows = has_rows ? local.size(0) : 0;
  offer.problem = problem_of(offer.rows, sampler, group);
  if (local.defined() && !has_rows) offer.problem = "its predictions have no first dimension to count samples by";
  if (has_rows) {
    offer.dtype = local.scalar_type();
    offer.row_sizes.assign(local.sizes().begin() + 1, local.sizes().end());
    offer.shape_known = offer.rows > 0;
  }
  return offer;
}

/// Dtype and row sizes of all. The same exception on every rank, since all have the same offers.
Offer common_shape(const std::vector<Offer>& offers) {
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    if (offers[rank].problem.empty()) continue;
    throw std::logic_error("gather_predictions: rank " + std::to_string(rank) + ": " + offers[rank].problem);
  }
  const auto first = std::find_if(offers.begin(), offers.end(), [](const Offer& offer) { return offer.shape_known; });
  if (first == offers.end()) return offers.front();
  for (auto offer = first; offer != offers.end(); ++offer) {
    if (!offer->shape_known || (offer->dtype == first->dtype && offer->row_sizes == first->row_sizes)) continue;
    throw std::logic_error("gather_predictions: ranks " + std::to_string(first - offers.begin()) + " and " +
                           std::to_string(offer - offers.begin()) +
                           " have predictions of different dtypes or shapes of a sample");
  }
  return *first;
}

/// uint8 [rows, bytes of a row] on `device`: one way of copying rows for every dtype.
at::Tensor as_bytes(const at::Tensor& local, const Offer& shape, at::Device device) {
  const auto bytes = at::TensorOptions().dtype(at::kByte).device(device);
  if (!local.defined() || local.numel() == 0) {
    return at::empty({local.defined() ? local.size(0) : 0, shape.row_bytes()}, bytes);
  }
  const auto rows = local.detach().to(device).resolve_conj().resolve_neg().contiguous();
  return rows.view({rows.size(0), rows.numel() / rows.size(0)}).view(at::kByte);
}

}  // namespace

at::Tensor gather_predictions(const at::Tensor& local, const DistributedSampler& sampler, ProcessGroup& group) {
  std::vector<Offer> offers;
  const auto own = packed(offer_of(local, sampler, group));
  for (const auto& bytes : group.all_gather_bytes(own, {.label = "shapes of predictions"})) {
    offers.push_back(unpacked(bytes));
  }
  const Offer shape = common_shape(offers);
  const auto parts = group.all_gather(as_bytes(local, shape, group.device()), {.label = "predictions"});

  const auto samples = static_cast<std::int64_t>(sampler.dataset_size());
  auto result_sizes = shape.row_sizes;
  result_sizes.insert(result_sizes.begin(), samples);
  auto result = at::empty(result_sizes, at::TensorOptions().dtype(shape.dtype).device(group.device()));
  if (result.numel() == 0) return result;

  auto rows = result.view({samples, result.numel() / samples}).view(at::kByte);
  for (int rank = 0; rank < group.size(); ++rank) {
    // Row k of a rank is element k * size + rank of the epoch's order; beyond the dataset begins the padding.
    const auto own_rows = std::max<std::int64_t>(0, (samples - rank + group.size() - 1) / group.size());
    const auto indices = sampler.indices_of(rank);
    const std::vector<std::int64_t> places(indices.begin(), indices.begin() + own_rows);
    rows.index_copy_(0, at::tensor(places, at::kLong).to(group.device()),
                     parts[static_cast<std::size_t>(rank)].narrow(0, 0, own_rows));
  }
  return result;
}

}  // namespace ddp
