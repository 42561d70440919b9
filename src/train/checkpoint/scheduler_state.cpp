#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include "ddp/rate_scheduler.hpp"
#include "train/checkpoint/parts.hpp"

namespace ddp::checkpoint {
namespace {

using torch::optim::LRScheduler;
using Plateau = torch::optim::ReduceLROnPlateauScheduler;

// LibTorch's schedulers neither save nor show what they count. A derived class may name what is protected.
struct Counted : LRScheduler {
  static constexpr auto step_count = &Counted::step_count_;
};

// An explicit instantiation may name what is private ([temp.spec.general]/6).
template <auto Best, auto BadEpochs, auto CooldownCounter, auto LastEpoch>
struct Expose {
  friend float& best(Plateau& scheduler) { return scheduler.*Best; }
  friend int& num_bad_epochs(Plateau& scheduler) { return scheduler.*BadEpochs; }
  friend int& cooldown_counter(Plateau& scheduler) { return scheduler.*CooldownCounter; }
  friend int& last_epoch(Plateau& scheduler) { return scheduler.*LastEpoch; }
};
float& best(Plateau&);
int& num_bad_epochs(Plateau&);
int& cooldown_counter(Plateau&);
int& last_epoch(Plateau&);
template struct Expose<&Plateau::best, &Plateau::num_bad_epochs, &Plateau::cooldown_counter, &Plateau::last_epoch>;

// C++'s scheduler decides by the number of steps before, Python's by the number of this one, which it counts from 1:
// where a run changes the language, the next step decides by the number that it would have had.
class SchedulerPart : public Part {
 public:
  explicit SchedulerPart(LRScheduler& scheduler) : scheduler_(scheduler) {}

  Value state(Tensors) const override {
    const std::int64_t steps = scheduler_.*Counted::step_count;
    auto dict = empty_dict();
    dict.insert("last_epoch", steps - 1);
    dict.insert("_step_count", steps);
    return dict;
  }
  Commit stage(const Place& place) override {
    const auto last = place.at("last_epoch").integer();
    if (last < -1 || last > INT32_MAX) place.fail("has no such last_epoch: " + std::to_string(last));
    return [this, steps = static_cast<unsigned>(last + 1)] { scheduler_.*Counted::step_count = steps; };
  }

 private:
  LRScheduler& scheduler_;
};

// It counts as Python's schedulers do. Its base rates are this run's, not the file's: they are read before the
// optimizer takes its state.
class RateSchedulerPart : public Part {
 public:
  explicit RateSchedulerPart(RateScheduler& scheduler) : scheduler_(scheduler) {}

  Value state(Tensors) const override {
    auto dict = empty_dict();
    dict.insert("last_epoch", scheduler_.steps());
    dict.insert("_step_count", scheduler_.steps() + 1);
    return dict;
  }
  Commit stage(const Place& place) override {
    const auto steps = place.at("last_epoch").integer();
    if (steps < 0 || steps > INT32_MAX) place.fail("has no such last_epoch: " + std::to_string(steps));
    return [this, steps, rates = scheduler_.base_rates()] { scheduler_.restore(steps, rates); };
  }

 private:
  RateScheduler& scheduler_;
};

class PlateauPart : public Part {
 public:
  explicit PlateauPart(Plateau& scheduler) : scheduler_(scheduler) {}

  Value state(Tensors) const override {
    auto dict = empty_dict();
    dict.insert("best", static_cast<double>(best(scheduler_)));
    dict.insert("num_bad_epochs", std::int64_t{num_bad_epochs(scheduler_)});
    dict.insert("cooldown_counter", std::int64_t{cooldown_counter(scheduler_)});
    dict.insert("last_epoch", std::int64_t{last_epoch(scheduler_)});
    return dict;
  }
  Commit stage(const Place& place) override {
    const auto count = [&](const char* name) { return static_cast<int>(place.at(name).integer()); };
    return [this, value = static_cast<float>(place.at("best").number()), bad = count("num_bad_epochs"),
            cooldown = count("cooldown_counter"), last = count("last_epoch")] {
      best(scheduler_) = value;
      num_bad_epochs(scheduler_) = bad;
      cooldown_counter(scheduler_) = cooldown;
      last_epoch(scheduler_) = last;
    };
  }

 private:
  Plateau& scheduler_;
};

}  // namespace

std::unique_ptr<Part> make_part(LRScheduler& scheduler) {
  if (auto* const rates = dynamic_cast<RateScheduler*>(&scheduler)) return std::make_unique<RateSchedulerPart>(*rates);
  return std::make_unique<SchedulerPart>(scheduler);
}
std::unique_ptr<Part> make_part(Plateau& scheduler) { return std::make_unique<PlateauPart>(scheduler); }

}  // namespace ddp::checkpoint
