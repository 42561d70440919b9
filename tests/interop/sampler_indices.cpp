// Reads settings, a line each: dataset size, num_replicas, shuffle, seed, drop_last, epoch.
// Writes for each rank a line: how many samples it has, and their indices.

#include <iostream>

#include "ddp/distributed_sampler.hpp"

int main() {
  std::size_t size = 0;
  std::size_t epoch = 0;
  ddp::DistributedSamplerOptions options;
  int num_replicas = 0;
  while (std::cin >> size >> num_replicas >> options.shuffle >> options.seed >> options.drop_last >> epoch) {
    options.num_replicas = num_replicas;
    for (int rank = 0; rank < num_replicas; ++rank) {
      options.rank = rank;
      ddp::DistributedSampler sampler(size, options);
      sampler.set_epoch(epoch);
      sampler.reset();
      std::cout << sampler.size() << ' ';
      while (const auto batch = sampler.next(3)) {
        for (const auto index : *batch) std::cout << index << ' ';
      }
      std::cout << '\n';
    }
  }
}
