#include "comm/summary.hpp"

#include <ATen/Parallel.h>
#include <torch/version.h>

#include "comm/backend.hpp"
#include "ddp/log.hpp"

namespace ddp::comm {
namespace {

// "alpha (ranks 0-1), beta (ranks 2-3)": hosts in the order of their first rank.
std::string hosts_of(const std::vector<Arrival>& arrivals) {
  std::vector<std::pair<std::string, std::vector<int>>> hosts;
  for (const auto& arrival : arrivals) {
    auto known = hosts.begin();
    while (known != hosts.end() && known->first != arrival.host) ++known;
    if (known == hosts.end()) known = hosts.insert(known, {arrival.host, {}});
    known->second.push_back(arrival.rank);
  }
  std::string text;
  for (const auto& [host, ranks] : hosts) {
    if (!text.empty()) text += ", ";
    text += host + " (" + std::to_string(ranks.size()) + (ranks.size() == 1 ? " rank" : " ranks") + ')';
  }
  return text;
}

std::string version_of_nccl() {
  if constexpr (kHasNccl)
    return nccl_version();
  else
    return "not built in";
}

}  // namespace

void log_summary(const std::vector<Arrival>& arrivals, const std::string& backend) {
  log::info("world size {}, hosts: {}", arrivals.size(), hosts_of(arrivals));
  log::info("backend {}, LibTorch {}, Gloo of LibTorch {}, NCCL {}, threads a rank: {}", backend, TORCH_VERSION,
            TORCH_VERSION, version_of_nccl(), at::get_num_threads());
}

}  // namespace ddp::comm
