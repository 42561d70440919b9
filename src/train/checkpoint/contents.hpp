#pragma once
/// contents.hpp: what stands in a checkpoint's file, and under which keys; knows no ranks and no files.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ddp/checkpoint.hpp"
#include "train/checkpoint/parts.hpp"

namespace ddp::checkpoint {

/// The parts of a run that are the same on all ranks: "model", "optimizer", "scheduler", "sampler" (a second one of a
/// kind is "optimizer_2") and "values".
class Contents {
 public:
  explicit Contents(std::shared_ptr<torch::nn::Module> module);

  void add(const std::string& kind, const void* object, std::unique_ptr<Part> part);
  void add(const std::string& name, CheckpointValue value);

  struct State {
    Dict root;
    ModuleTree module;
  };
  /// Errors: std::exception for a state that cannot be written.
  State state(const Progress& progress, Tensors tensors) const;
  /// Checks all and changes nothing. Errors: std::exception
  std::vector<Commit> stage(const Place& root) const;
  static Progress progress_in(const Place& root);
  /// A line for each key, "<key> <number>", in which the number differs where the state does. Without the values, which
  /// a rank may have of its own where the file has none, and the samplers, of which some may be a sample behind.
  std::vector<std::string> fingerprints(const Progress& progress) const;
  /// What only the file or only the run has and what need not stop the run, in words.
  std::vector<std::string> remarks(const Place& root) const;

 private:
  struct Entry {
    std::string key;
    const void* object;
    std::unique_ptr<Part> part;
  };
  Dict parts_state(const Progress& progress, Tensors tensors) const;
  void require_all_known(const Place& root) const;

  std::shared_ptr<torch::nn::Module> module_;
  std::vector<Entry> parts_;
  std::vector<std::pair<std::string, CheckpointValue>> values_;
};

/// A file that ddp has not written need not have what Python does not know.
bool is_of_ddp(const Place& root);

}  // namespace ddp::checkpoint
