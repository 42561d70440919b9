#include "ddp/checkpoint.hpp"

#include <functional>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddp/error.hpp"
#include "ddp/log.hpp"
#include "ddp/process_group.hpp"
#include "train/checkpoint_file.hpp"
#include "train/checkpoint_state.hpp"

namespace ddp {
namespace {

using checkpoint::Commit;
using checkpoint::InputArchive;
using checkpoint::OutputArchive;

constexpr const char* kKey = "ddp_checkpoint";  // of all that is not the module's, at the archive's top
constexpr const char* kIntact = "the file is as it was before";
constexpr const char* kUnchanged =
    "nothing was loaded; give the run the same model, optimizers and samplers, or another file";

std::int64_t read_number(InputArchive& archive, const std::string& key) {
  c10::IValue value;
  archive.read(key, value);
  return value.toInt();
}

// An exception's text, or nullopt. LibTorch's own carry a stack trace below the first lines.
std::optional<std::string> error_of(const std::function<void()>& action) {
  try {
    action();
    return std::nullopt;
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
}

at::Device device_of(const torch::nn::Module& module) {
  for (const auto& tensor : module.parameters()) return tensor.device();
  for (const auto& tensor : module.buffers()) return tensor.device();
  return at::kCPU;
}

}  // namespace

struct Checkpoint::Impl {
  std::filesystem::path path;
  std::shared_ptr<torch::nn::Module> module;
  std::shared_ptr<ProcessGroup> group;  // null: a run of one process
  std::vector<std::unique_ptr<checkpoint::Part>> parts;

  bool reads_file() const { return !group || group->rank() == 0; }
  Origin origin() const { return group ? group->origin() : Origin{.rank = 0, .world_size = 1}; }
  std::string write(const Progress& progress) const;
  std::string offer() const;
  std::vector<Commit> stage(std::string_view bytes, Progress& progress) const;
  void require_none_failed(const std::optional<std::string>& error) const;
  [[noreturn]] void fail(const std::string& what, const char* remedy) const {
    throw CheckpointError(origin(), "checkpoint", what, remedy);
  }
};

// The bytes of a checkpoint of now.
std::string Checkpoint::Impl::write(const Progress& progress) const {
  OutputArchive archive;
  checkpoint::write_module(*module, archive);
  OutputArchive rest(archive.compilation_unit());
  rest.write("epoch", c10::IValue(progress.epoch));
  rest.write("step", c10::IValue(progress.step));
  rest.write("world_size", c10::IValue(std::int64_t{origin().world_size}));
  rest.write("parts", c10::IValue(static_cast<std::int64_t>(parts.size())));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    OutputArchive part(archive.compilation_unit());
    parts[i]->write(part);
    rest.write("part" + std::to_string(i), part);
  }
  archive.write(kKey, rest);
  std::ostringstream stream;
  archive.save_to(stream);
  return checkpoint::seal(std::move(stream).str());
}

// What the rank that has the file tells all: "-" there is none, "!" and an error, "+" and the bytes.
std::string Checkpoint::Impl::offer() const {
  std::string offer;
  const auto error = error_of([&] {
    const auto bytes = checkpoint::read(path);
    if (bytes) checkpoint::verify_seal(*bytes, path);
    offer = bytes ? '+' + *bytes : "-";
  });
  return error ? '!' + *error : offer;
}

// Checks all and changes nothing; the commits put it in place.
std::vector<Commit> Checkpoint::Impl::stage(std::string_view bytes, Progress& progress) const {
  InputArchive archive;
  InputArchive rest;
  archive.load_from(bytes.data(), bytes.size(), device_of(*module));
  archive.read(kKey, rest);
  progress = {.epoch = read_number(rest, "epoch"), .step = read_number(rest, "step")};
  std::vector<Commit> commits{checkpoint::stage_module(*module, archive, kKey)};
  const auto saved_parts = static_cast<std::size_t>(read_number(rest, "parts"));
  if (saved_parts != parts.size())
    throw std::runtime_error("it holds " + std::to_string(saved_parts) + " optimizers and samplers, here are " +
                             std::to_string(parts.size()));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    auto part = std::make_shared<InputArchive>();
    rest.read("part" + std::to_string(i), *part);
    commits.push_back(parts[i]->stage(std::move(part)));
  }
  return commits;
}

// Collective. What one rank could not restore, no rank restores.
void Checkpoint::Impl::require_none_failed(const std::optional<std::string>& error) const {
  if (!group) {
    if (error) fail(path.string() + " cannot be loaded: " + *error, kUnchanged);
    return;
  }
  const auto all = group->all_gather_bytes(error ? '!' + *error : "", {.label = "checkpoint fits"});
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (!all[rank].empty())
      fail(path.string() + " cannot be loaded on rank " + std::to_string(rank) + ": " + all[rank].substr(1),
           kUnchanged);
}

Checkpoint::Checkpoint(std::filesystem::path path, std::shared_ptr<torch::nn::Module> module,
                       std::shared_ptr<ProcessGroup> group)
    : impl_(new Impl{std::move(path), std::move(module), std::move(group), {}}) {
  if (!impl_->module) throw std::logic_error("checkpoint: needs a module");
}

Checkpoint::~Checkpoint() = default;

void Checkpoint::add(torch::optim::Optimizer& optimizer) {
  impl_->parts.push_back(checkpoint::make_part(optimizer, impl_->module));
}

void Checkpoint::add(DistributedSampler& sampler) { impl_->parts.push_back(checkpoint::make_part(sampler)); }

Progress Checkpoint::load_or_start() {
  auto offer = impl_->reads_file() ? impl_->offer() : std::string();
  if (impl_->group) offer = impl_->group->broadcast_bytes(std::move(offer), 0, {.label = "checkpoint"});
  if (offer.front() == '!') impl_->fail(offer.substr(1), "nothing was loaded");
  if (offer.front() == '-') {
    log::info("checkpoint: no {} yet, a new run starts", impl_->path.string());
    return {};
  }
  Progress progress;
  std::vector<Commit> commits;
  const auto error = error_of([&] { commits = impl_->stage(std::string_view(offer).substr(1), progress); });
  impl_->require_none_failed(error);
  for (const auto& commit : commits) commit();
  log::info("checkpoint: {} loaded, the run goes on with epoch {}, step {}", impl_->path.string(), progress.epoch,
            progress.step);
  return progress;
}

void Checkpoint::save(const Progress& progress) {
  std::string verdict;
  if (impl_->reads_file()) {
    const auto error = error_of([&] { checkpoint::write(impl_->path, impl_->write(progress)); });
    if (error) verdict = '!' + *error;
  }
  if (impl_->group) verdict = impl_->group->broadcast_bytes(std::move(verdict), 0, {.label = "checkpoint saved"});
  if (!verdict.empty()) impl_->fail(verdict.substr(1), kIntact);
  log::info("checkpoint: saved {}", impl_->path.string());
}

const std::filesystem::path& Checkpoint::path() const noexcept { return impl_->path; }

}  // namespace ddp
