#include "ddp/checkpoint.hpp"

#include <ATen/ops/from_blob.h>
#include <c10/util/Type.h>
#include <torch/optim/schedulers/step_lr.h>

#include <cmath>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "comm/sessions.hpp"
#include "ddp/distributed_sampler.hpp"
#include "ddp/error.hpp"
#include "ddp/log.hpp"
#include "ddp/process_group.hpp"
#include "ddp/rate_scheduler.hpp"
#include "train/checkpoint/contents.hpp"
#include "train/checkpoint/error_text.hpp"
#include "train/checkpoint/file.hpp"
#include "train/checkpoint/file_job.hpp"
#include "train/checkpoint/rank_state.hpp"

namespace ddp {
namespace {

using checkpoint::Commit;
using checkpoint::Dict;
using checkpoint::Place;
using checkpoint::Tensors;
using Best = CheckpointOptions::Best;
using Failure = std::optional<std::string>;

constexpr std::int64_t kLayout = 1;  // of the dict, which stands in it
constexpr const char* kIntact = "the file is as it was before";
constexpr const char* kDamaged = "nothing was loaded; go on from another file, such as an earlier or the best one";
constexpr const char* kUnchanged =
    "nothing was loaded; give the run the same model and parts, in the same order, or another file";

const char* name_of(Best best) { return best == Best::none ? "none" : best == Best::lowest ? "lowest" : "highest"; }

std::string keys_of(const Place& root) {
  constexpr std::size_t kShown = 5;
  std::string text;
  std::size_t shown = 0;
  for (const auto& entry : root.dict()) {
    if (++shown > kShown) return text + ", ...";
    text += (text.empty() ? "\"" : ", \"") + (entry.key().isString() ? entry.key().toStringRef() : "...") + '"';
  }
  return text.empty() ? "nothing" : text;
}

at::Device device_of(const torch::nn::Module& module) {
  for (const auto& tensor : module.parameters()) return tensor.device();
  for (const auto& tensor : module.buffers()) return tensor.device();
  return at::kCPU;
}

// The key of the first line in which two lists of fingerprints differ.
std::string first_difference(const std::string& a, const std::string& b) {
  std::istringstream lines(a), others(b);
  std::string line, other;
  while (std::getline(lines, line) && std::getline(others, other) && line == other) {
  }
  return (line == other ? other : line).substr(0, line.find(' '));
}

const std::shared_ptr<torch::nn::Module>& present(const std::shared_ptr<torch::nn::Module>& module) {
  if (!module) throw std::logic_error("checkpoint: needs a module");
  return module;
}

}  // namespace

struct Checkpoint::Impl {
  Impl(std::filesystem::path file, std::shared_ptr<torch::nn::Module> the_module,
       std::shared_ptr<ProcessGroup> the_group, const CheckpointOptions& the_options)
      : path(std::move(file)),
        group(std::move(the_group)),
        options(the_options),
        module(present(the_module)),
        contents(module),
        rank_state(group ? group->device() : device_of(*module)) {
    if (path.empty()) throw std::logic_error("checkpoint: needs the path of its file, and got an empty one");
    if (options.keep_last < 1)
      throw std::logic_error("checkpoint: keep_last is " + std::to_string(options.keep_last) +
                             ", but one file is kept at least");
  }

  int rank() const { return group ? group->rank() : 0; }
  int world_size() const { return group ? group->size() : 1; }
  Origin origin() const { return group ? group->origin() : Origin{.rank = 0, .world_size = 1}; }

  void require_not_begun() const {
    if (has_begun) throw std::logic_error("checkpoint: add() comes before load_or_start() and save()");
  }
  std::size_t parameters_outside(torch::optim::Optimizer& optimizer) const;
  Failure on_rank0(const std::function<void()>& work);
  void require_written(const Failure& error);
  void require_none_failed(const Failure& error, const char* remedy);
  bool is_best(const Progress& progress) const;
  void or_best_before(const std::function<void()>& write);
  std::vector<std::string> gather_rank_states();
  checkpoint::FileJob::File file_of(const Progress& progress, const std::vector<std::string>& ranks) const;
  std::shared_ptr<std::string> receive_file();
  std::vector<Commit> stage(const Place& root, Progress& progress);
  void verify_same(const Progress& progress, Failure error);
  [[noreturn]] void fail(const std::string& what, const char* remedy) const {
    throw CheckpointError(origin(), "checkpoint", what, remedy);
  }

  std::filesystem::path path;
  std::shared_ptr<ProcessGroup> group;  // null: a run of one process
  CheckpointOptions options;
  std::shared_ptr<torch::nn::Module> module;
  checkpoint::Contents contents;
  checkpoint::RankState rank_state;
  CheckpointValue reducer_memory;       // empty without a wrapper
  std::optional<double> best_metric;    // of all files so far
  std::optional<double> metric_before;  // the last one of which is not there yet
  std::vector<std::string> remarks;     // on the file that was loaded
  bool has_begun = false;               // to load or save
  bool is_writing = false;              // in the background, on rank 0; known to all ranks
  checkpoint::FileJob job;
};

std::size_t Checkpoint::Impl::parameters_outside(torch::optim::Optimizer& optimizer) const {
  std::unordered_set<const c10::TensorImpl*> own;
  for (const auto& parameter : module->parameters()) own.insert(parameter.unsafeGetTensorImpl());
  std::size_t outside = 0;
  for (const auto& parameters : optimizer.param_groups())
    for (const auto& parameter : parameters.params()) outside += own.contains(parameter.unsafeGetTensorImpl()) ? 0 : 1;
  return outside;
}

// Collective. The others wait outside of the backend, as long as it takes. Returns rank 0's error on every rank.
Failure Checkpoint::Impl::on_rank0(const std::function<void()>& work) {
  if (!group) return checkpoint::error_of(work);
  Failure error;
  group->rank0_section([&] { error = checkpoint::error_of(work); },
                       {.timeout = options.timeout, .label = "Checkpoint"});
  const auto text = group->broadcast_bytes(error ? '!' + *error : "", 0, {.label = "Checkpoint"});
  return text.empty() ? std::nullopt : Failure(text.substr(1));
}

void Checkpoint::Impl::require_written(const Failure& error) {
  if (error) fail(*error, kIntact);
}

// Collective. What one rank could not restore, no rank restores.
void Checkpoint::Impl::require_none_failed(const Failure& error, const char* remedy) {
  if (!group) {
    if (error) fail(path.string() + " cannot be loaded: " + *error, remedy);
    return;
  }
  const auto all = group->all_gather_bytes(error ? '!' + *error : "", {.label = "Checkpoint::load_or_start()"});
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (!all[rank].empty())
      fail(path.string() + " cannot be loaded on rank " + std::to_string(rank) + ": " + all[rank].substr(1), remedy);
}

bool Checkpoint::Impl::is_best(const Progress& progress) const {
  if (options.keep_best == Best::none || !progress.metric || std::isnan(*progress.metric)) return false;
  if (!best_metric) return true;
  return options.keep_best == Best::lowest ? *progress.metric < *best_metric : *progress.metric > *best_metric;
}

// The metric of a file that could not be written does not count.
void Checkpoint::Impl::or_best_before(const std::function<void()>& write) {
  try {
    write();
  } catch (...) {
    best_metric = metric_before;
    throw;
  }
}

// Collective. On rank 0 what each rank keeps for itself, or an error on all.
std::vector<std::string> Checkpoint::Impl::gather_rank_states() {
  std::string own;
  const auto error = checkpoint::error_of([&] { own = '+' + rank_state.to_bytes(); });
  if (error) own = '!' + *error;
  auto all = group ? group->gather_bytes(own, 0, {.label = "Checkpoint::save()"}) : std::vector{own};
  std::string verdict;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].front() == '!') verdict = "rank " + std::to_string(rank) + ": " + all[rank].substr(1);
    all[rank].erase(0, 1);
  }
  if (group) verdict = group->broadcast_bytes(std::move(verdict), 0, {.label = "Checkpoint::save()"});
  if (!verdict.empty()) fail(verdict, kIntact);
  return all;
}

checkpoint::FileJob::File Checkpoint::Impl::file_of(const Progress& progress,
                                                    const std::vector<std::string>& ranks) const {
  auto state = contents.state(progress, options.background ? Tensors::copied : Tensors::shared);
  auto about = checkpoint::empty_dict();
  about.insert("layout", kLayout);
  about.insert("world_size", std::int64_t{world_size()});
  about.insert("keep_best", name_of(options.keep_best));
  about.insert("best_metric", best_metric ? c10::IValue(*best_metric) : c10::IValue());
  about.insert("reducer", reducer_memory.state ? reducer_memory.state() : c10::IValue());
  state.root.insert("ranks", checkpoint::RankState::from_bytes(ranks));
  state.root.insert("ddp", about);
  return {.path = path,
          .keep_last = options.keep_last,
          .progress = progress,
          .root = state.root,
          .module = std::move(state.module)};
}

// Collective. Null where there is no file.
std::shared_ptr<std::string> Checkpoint::Impl::receive_file() {
  std::shared_ptr<std::string> bytes;
  const auto error = on_rank0([&] {
    bytes = checkpoint::read(path);
    if (bytes && !checkpoint::can_be_saved(path))
      log::warn("checkpoint: {} is there, but its folder cannot be written: save() will fail", path.string());
  });
  if (error) fail(*error, "nothing was loaded");
  if (world_size() == 1) return bytes;
  const auto size = group->broadcast_bytes(bytes ? std::to_string(bytes->size()) : "", 0, {.label = "Checkpoint"});
  if (size.empty()) return nullptr;
  if (!bytes) bytes = std::make_shared<std::string>(std::stoull(size), '\0');
  auto tensor = at::from_blob(bytes->data(), {static_cast<std::int64_t>(bytes->size())}, at::kByte);
  group->broadcast(tensor, 0, {.label = "Checkpoint"});  // in place: no rank holds the file twice
  return bytes;
}

// Checks all and changes nothing; the commits put it in place.
std::vector<Commit> Checkpoint::Impl::stage(const Place& root, Progress& progress) {
  if (!root.value().isGenericDict()) root.fail("is " + checkpoint::kind_of(root.value()) + " and no checkpoint");
  if (!root.has("model"))
    root.fail("has no \"model\", but " + keys_of(root) +
              "; a state_dict is loaded by load_state_dict(*net, load_pt(path))");
  if (checkpoint::is_of_ddp(root) && root.at("ddp").at("layout").integer() != kLayout)
    root.fail("has a layout that this version of ddp does not know");
  progress = checkpoint::Contents::progress_in(root);
  auto commits = contents.stage(root);
  remarks = contents.remarks(root);
  for (auto& remark : rank_state.remarks(root, world_size())) remarks.push_back(std::move(remark));
  if (checkpoint::RankState::fits(root, world_size())) commits.push_back(rank_state.stage(root.at("ranks"), rank()));
  std::optional<double> best;  // as far as it was chosen in the same way
  if (const auto about = root.find("ddp"); about && about->at("keep_best").text() == name_of(options.keep_best))
    if (const auto metric = about->at("best_metric"); !metric.is_none()) best = metric.number();
  commits.push_back([this, best] { best_metric = best; });
  const auto memory = root.has("ddp") ? root.at("ddp").find("reducer") : std::nullopt;
  if (memory && !memory->is_none() && reducer_memory.stage) commits.push_back(reducer_memory.stage(memory->value()));
  return commits;
}

// Collective. All ranks have loaded the same bytes; what they made of them must be the same as well.
void Checkpoint::Impl::verify_same(const Progress& progress, Failure error) {
  if (!error && world_size() == 1) return;
  std::vector<std::string> lines;
  if (!error) error = checkpoint::error_of([&] { lines = contents.fingerprints(progress); });
  if (error) lines = {'!' + *error};
  std::string own;
  for (const auto& line : lines) own += line + '\n';
  const auto all = group ? group->all_gather_bytes(own, {.label = "Checkpoint::load_or_start()"}) : std::vector{own};
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].starts_with('!'))
      fail("while rank " + std::to_string(rank) + " took its state from " + path.string() + ": " + all[rank].substr(1),
           "the run cannot go on with a part of it");
    if (all[rank] != all[0])
      fail("after loading " + path.string() + " rank " + std::to_string(rank) + " holds another \"" +
               first_difference(all[0], all[rank]) + "\" than rank 0",
           "give every rank the same parts; a tensor of it may share memory with another one");
  }
}

Checkpoint::Checkpoint(std::filesystem::path path, std::shared_ptr<torch::nn::Module> module,
                       std::shared_ptr<ProcessGroup> group, const CheckpointOptions& options)
    : impl_(new Impl(std::move(path), std::move(module), std::move(group), options)) {}

Checkpoint::~Checkpoint() = default;

void Checkpoint::add(torch::optim::Optimizer& optimizer) {
  impl_->require_not_begun();
  if (const auto strangers = impl_->parameters_outside(optimizer); strangers > 0)
    log::warn("checkpoint: {} parameters of an optimizer are not the model's: they are neither kept nor averaged",
              strangers);
  impl_->contents.add("optimizer", &optimizer, checkpoint::make_part(optimizer, impl_->module));
}
void Checkpoint::add(torch::optim::LRScheduler& scheduler) {
  impl_->require_not_begun();
  impl_->contents.add("scheduler", &scheduler, checkpoint::make_part(scheduler));
  const auto& type = typeid(scheduler);
  if (type != typeid(torch::optim::StepLR) && type != typeid(RateScheduler))
    log::warn("checkpoint: of {} the number of its steps is kept; what else it remembers is to be added as values",
              c10::demangle(type.name()));
}
void Checkpoint::add(torch::optim::ReduceLROnPlateauScheduler& scheduler) {
  impl_->require_not_begun();
  impl_->contents.add("scheduler", &scheduler, checkpoint::make_part(scheduler));
}
void Checkpoint::add(DistributedSampler& sampler) {
  impl_->require_not_begun();
  impl_->contents.add("sampler", &sampler, checkpoint::make_part(sampler));
}
void Checkpoint::add(const std::string& name, CheckpointValue value) {
  impl_->require_not_begun();
  value.of_each_rank ? impl_->rank_state.keep(name, std::move(value)) : impl_->contents.add(name, std::move(value));
}

void Checkpoint::require_run_of_one() {
  const auto self = comm::latest_origin();
  if (self.world_size > 1)
    throw std::logic_error("checkpoint: this is rank " + std::to_string(self.rank) + " of " +
                           std::to_string(self.world_size) +
                           ", and a plain module does not say with whom: give the DistributedDataParallel, or the "
                           "module with its group");
}

void Checkpoint::keep_wrapper(std::shared_ptr<CommHook> hook, CheckpointValue reducer_memory) {
  impl_->rank_state.keep(std::move(hook));
  impl_->reducer_memory = std::move(reducer_memory);
}

Progress Checkpoint::load_or_start() {
  wait();
  const auto bytes = impl_->receive_file();
  const auto name = impl_->path.string();
  if (!bytes) {
    log::info("checkpoint: no {} yet, a new run starts", name);
    return {};
  }
  Progress progress;
  std::vector<Commit> commits;
  c10::IValue root;
  impl_->require_none_failed(checkpoint::error_of([&] { root = checkpoint::read_pt(bytes); }), kDamaged);
  impl_->require_none_failed(checkpoint::error_of([&] { commits = impl_->stage({root, ""}, progress); }), kUnchanged);
  const auto error = checkpoint::error_of([&] {
    for (const auto& commit : commits) commit();
  });
  impl_->verify_same(progress, error);
  for (const auto& remark : impl_->remarks) log::warn("checkpoint: {}: {}", name, remark);
  log::info("checkpoint: {} loaded, the run goes on with epoch {}, step {}", name, progress.epoch, progress.step);
  return progress;
}

void Checkpoint::save(const Progress& progress) {
  wait();
  const auto ranks = impl_->gather_rank_states();
  impl_->require_written(impl_->on_rank0([&] {
    const bool is_best = impl_->is_best(progress);
    impl_->metric_before = std::exchange(impl_->best_metric, is_best ? progress.metric : impl_->best_metric);
    impl_->or_best_before([&] {
      auto file = impl_->file_of(progress, ranks);
      file.is_best = is_best;
      impl_->options.background ? impl_->job.start(std::move(file)) : impl_->job.write(file);
    });
  }));
  impl_->is_writing = impl_->options.background;
}

void Checkpoint::wait() {
  impl_->has_begun = true;
  if (!std::exchange(impl_->is_writing, false)) return;
  impl_->require_written(impl_->on_rank0([&] { impl_->or_best_before([&] { impl_->job.wait(); }); }));
}

const std::filesystem::path& Checkpoint::path() const noexcept { return impl_->path; }

}  // namespace ddp
