// One rank of two for sync_batch_norm_parity.py: sync_batch_norm_run RANK FOLDER
// FOLDER/given.pt has the rows of rank 0, BatchNorm2d's state, and for each step inputs and factors, [batch, 3, 4, 5].
// Writes FOLDER/norm.RANK.pt, of a SyncBatchNorm, and FOLDER/converted.RANK.pt, of a converted BatchNorm2d: for each
// step outputs and gradients of the input, weight and bias, in this order; in the end the state.
#include <torch/torch.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include "ddp/run.hpp"
#include "ddp/state_dict.hpp"
#include "ddp/sync_batch_norm.hpp"

namespace {

using Given = c10::Dict<c10::IValue, c10::IValue>;

std::shared_ptr<ddp::ProcessGroup> group_of(int rank, const std::string& folder) {
  ddp::Environment environment;
  environment.rank = environment.local_rank = rank;
  environment.world_size = environment.local_world_size = 2;
  environment.source = "code";
  return ddp::init_process_group(
      {.timeout = std::chrono::seconds(25), .environment = environment, .store_file = folder + "/store"});
}

torch::Tensor own_rows(const torch::Tensor& whole, const Given& given, int rank) {
  const auto split = given.at("rows").toInt();
  return rank == 0 ? whole.slice(0, 0, split) : whole.slice(0, split);
}

template <class Norm>
void train(Norm norm, const Given& given, int rank, const std::string& path) {
  norm->to(torch::kDouble);  // the count of batches, too, which is an integer in Python
  norm->num_batches_tracked.set_data(norm->num_batches_tracked.to(torch::kLong));
  ddp::load_state_dict(*norm, given.at("state"));
  c10::impl::GenericList results(c10::AnyType::get());
  for (const auto& step : given.at("steps").toListRef()) {
    const auto& tensors = step.toTupleRef().elements();
    norm->zero_grad();
    const auto input = own_rows(tensors[0].toTensor(), given, rank).clone().requires_grad_();
    const auto output = norm->forward(input);
    (output.sin() * own_rows(tensors[1].toTensor(), given, rank)).sum().backward();
    for (const auto& tensor : {output.detach(), input.grad(), norm->weight.grad(), norm->bias.grad()})
      results.push_back(tensor.clone());
  }
  c10::impl::GenericDict all(c10::StringType::get(), c10::AnyType::get());
  all.insert("results", results);
  all.insert("state", ddp::state_dict(*norm));
  ddp::save_pt(path, all);
}

}  // namespace

int main(int, char** arguments) {
  return ddp::run([&] {
    const int rank = std::atoi(arguments[1]);
    const std::string folder = arguments[2], ending = "." + std::to_string(rank) + ".pt";
    const auto group = group_of(rank, folder);
    const auto given = ddp::load_pt(folder + "/given.pt").toGenericDict();
    train(ddp::SyncBatchNorm(torch::nn::BatchNormOptions(3), group), given, rank, folder + "/norm" + ending);
    torch::nn::BatchNorm2d converted(3);
    ddp::convert_sync_batchnorm(converted, group);
    train(converted, given, rank, folder + "/converted" + ending);
  });
}
