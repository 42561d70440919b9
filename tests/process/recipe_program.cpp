// Trains a small network and prints, from rank 0, where it ended. Asks nobody who started it:
//   recipe_program                      is a rank
//   recipe_program spawn NODES NODE     starts two ranks itself, on machine number NODE of NODES
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "ddp/distributed_data_parallel.hpp"
#include "ddp/run.hpp"
#include "ddp/spawn.hpp"
#include "support/training.hpp"

namespace {

// FNV-1a over the bits of all parameters.
std::uint64_t fingerprint(const std::vector<torch::Tensor>& parameters) {
  std::uint64_t hash = 14695981039346656037ULL;
  for (const auto& parameter : parameters) {
    const auto dense = parameter.detach().contiguous();
    const auto* bytes = static_cast<const unsigned char*>(dense.const_data_ptr());
    for (std::size_t i = 0; i < dense.nbytes(); ++i) hash = (hash ^ bytes[i]) * 1099511628211ULL;
  }
  return hash;
}

void train() {
  const auto group = ddp::init_process_group();
  ddp::testing::Perceptron net(7 + static_cast<std::uint64_t>(group->rank()));
  ddp::DistributedDataParallel model(net, group);
  const auto optimizer = ddp::testing::sgd_with_momentum(model->parameters());
  for (int step = 0; step < 20; ++step) {
    const auto batch = ddp::testing::Batch::of_step(step, 12).of_rank(group->rank(), group->size());
    optimizer->zero_grad();
    ddp::testing::squared_error(model(batch.input), batch.target).backward();
    optimizer->step();
  }
  const auto mine = std::to_string(fingerprint(net->parameters()));
  const auto all = group->all_gather_bytes(mine);
  if (group->rank() != 0) return;
  std::printf("world %d from %s\n", group->size(), group->environment().source.c_str());
  for (const auto& fingerprint_of_rank : all) std::printf("weights %s\n", fingerprint_of_rank.c_str());
}

void spawn(int nodes, int node) {
  const auto body = [](int /*local_rank*/) { train(); };
  if (nodes == 1) return ddp::spawn(2, body);
  ddp::spawn(2, body, {.nnodes = nodes, .node_rank = node, .master_addr = "node-a", .master_port = 29500});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return ddp::run(train);
  spawn(std::atoi(argv[2]), std::atoi(argv[3]));
}
