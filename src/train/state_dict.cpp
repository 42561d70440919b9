#include "ddp/state_dict.hpp"

#include "ddp/error.hpp"
#include "train/checkpoint/error_text.hpp"
#include "train/checkpoint/file.hpp"
#include "train/checkpoint/parts.hpp"

namespace ddp {
namespace {

template <class Action>
void or_checkpoint_error(const std::string& what, const char* remedy, const Action& action) {
  if (const auto error = checkpoint::error_of(action)) throw CheckpointError({}, "checkpoint", what + *error, remedy);
}

}  // namespace

c10::IValue load_pt(const std::filesystem::path& path) {
  c10::IValue value;
  or_checkpoint_error("", "", [&] {
    const auto bytes = checkpoint::read(path);
    if (!bytes) throw std::runtime_error(path.string() + " does not exist");
    try {
      value = checkpoint::read_pt(bytes);
    } catch (const std::exception& error) {
      throw std::runtime_error(path.string() + ": " + checkpoint::text_of(error));
    }
  });
  return value;
}

void save_pt(const std::filesystem::path& path, const c10::IValue& value) {
  or_checkpoint_error("", "the file is as it was before", [&] {
    checkpoint::NewFile file(checkpoint::resolved(path));
    checkpoint::write_pt(checkpoint::to_write(value, checkpoint::Tensors::shared), {.is_sealed = true},
                         [&](std::string_view bytes) { file.write(bytes); });
    file.finish();
    file.replace(1);
  });
}

c10::IValue state_dict(const torch::nn::Module& module) {
  c10::IValue state;
  or_checkpoint_error("the module's state cannot be taken: ", "",
                      [&] { state = checkpoint::state_of(module, checkpoint::Tensors::shared).values; });
  return state;
}

void load_state_dict(torch::nn::Module& module, const c10::IValue& state) {
  or_checkpoint_error("the state does not fit the module: ", "nothing was loaded",
                      [&] { checkpoint::stage_module(module, {state, ""})(); });
}

c10::IValue state_dict(torch::optim::Optimizer& optimizer) {
  return checkpoint::make_part(optimizer, nullptr)->state(checkpoint::Tensors::shared);
}

void load_state_dict(torch::optim::Optimizer& optimizer, const c10::IValue& state) {
  or_checkpoint_error("the state does not fit the optimizer: ", "nothing was loaded",
                      [&] { checkpoint::make_part(optimizer, nullptr)->stage({state, ""})(); });
}

}  // namespace ddp
