#include "ddp/distributed_sampler.hpp"
#include "train/checkpoint/parts.hpp"

namespace ddp::checkpoint {
namespace {

DistributedSamplerState read(const Place& place) {
  const auto number = [&](const char* name) {
    const auto value = place.at(name).integer();
    if (value < 0) place.fail("has a negative " + std::string(name));
    return static_cast<std::size_t>(value);
  };
  return {.seed = static_cast<std::uint64_t>(place.at("seed").integer()),
          .epoch = number("epoch"),
          .position = number("position"),
          .dataset_size = number("dataset_size"),
          .num_replicas = static_cast<int>(number("num_replicas")),
          .offset = number("offset")};
}

class SamplerPart : public Part {
 public:
  explicit SamplerPart(DistributedSampler& sampler) : sampler_(sampler) {}

  Value state(Tensors) const override {
    const auto state = sampler_.state();
    auto dict = empty_dict();
    const auto put = [&](const char* name, auto number) { dict.insert(name, static_cast<std::int64_t>(number)); };
    put("seed", state.seed);
    put("epoch", state.epoch);
    put("position", state.position);
    put("dataset_size", state.dataset_size);
    put("num_replicas", state.num_replicas);
    put("offset", state.offset);
    return dict;
  }

  // A sampler of the same kind takes the state first, and refuses what does not fit.
  Commit stage(const Place& place) override {
    DistributedSampler rehearsal(sampler_.dataset_size(), {.num_replicas = sampler_.num_replicas(),
                                                           .rank = sampler_.rank(),
                                                           .drop_last = sampler_.drop_last(),
                                                           .pad = sampler_.pads()});
    rehearsal.restore(read(place));
    return [this, saved = rehearsal.state()] { sampler_.restore(saved); };
  }

 private:
  DistributedSampler& sampler_;
};

}  // namespace

std::unique_ptr<Part> make_part(DistributedSampler& sampler) { return std::make_unique<SamplerPart>(sampler); }

}  // namespace ddp::checkpoint
