#include "reduce/grad_hooks.hpp"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>

#include "reduce/graph_search.hpp"

namespace ddp {

namespace autograd = torch::autograd;
using Accumulator = decltype(autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

struct GradHooks::Impl : std::enable_shared_from_this<GradHooks::Impl> {
  GradEvents events;
  std::vector<Accumulator> accumulators;  // kept alive: a parameter holds its own weakly
  std::vector<std::uintptr_t> keys;
  std::mutex mutex;
  struct Task {
    int id;  // grows: a nested task has a larger one than its parent
    std::thread::id thread;
    std::weak_ptr<void> life;  // of the callback that the task holds, so of the task
  };
  std::vector<GraphSearch::WeakNode> roots;  // of the outputs given to watch()
  std::vector<Task> tasks;  // graph tasks whose end has been asked for; nested ones beside their parent

  void hook(std::size_t index, const at::Tensor& parameter);
  void follow_task();
  bool is_outermost(int id, bool inside_a_node);
  void on_task_end(int id);
};

namespace {

class GradientHook : public autograd::FunctionPostHook {
 public:
  explicit GradientHook(std::function<void(bool)> call) : call_(std::move(call)) {}
  autograd::variable_list operator()(const autograd::variable_list& outputs,
                                     const autograd::variable_list& gradients) override {
    call_(!gradients.empty() && gradients[0].defined());
    return outputs;
  }

 private:
  std::function<void(bool)> call_;  // whether there was a gradient to accumulate
};

class OutputHook : public autograd::FunctionPreHook {
 public:
  explicit OutputHook(std::function<void()> call) : call_(std::move(call)) {}
  autograd::variable_list operator()(const autograd::variable_list& gradients) override {
    call_();
    return gradients;
  }

 private:
  std::function<void()> call_;
};

// Calls once, after the node that runs a nested backward is done, each time it is armed.
class OnceAfterNode : public autograd::FunctionPostHook {
 public:
  OnceAfterNode(const void* owner, std::function<void()> call) : owner_(owner), call_(std::move(call)) {}
  autograd::variable_list operator()(const autograd::variable_list& outputs, const autograd::variable_list&) override {
    if (std::exchange(armed_, false)) call_();
    return outputs;
  }
  bool arm(const void* owner) {
    if (owner != owner_) return false;
    return armed_ = true;
  }

 private:
  const void* owner_;
  std::function<void()> call_;
  bool armed_ = true;
};

// autograd::grad() and backward(inputs) execute a chosen part of the graph.
bool executes_whole_graph() {
  const auto* chosen = autograd::get_current_graph_task_exec_info();
  return chosen == nullptr || chosen->empty();
}

}  // namespace

void GradHooks::Impl::follow_task() {
  const int id = autograd::get_current_graph_task_id();
  std::shared_ptr<int> life;
  bool only_dead_before = false;
  {
    const std::lock_guard lock(mutex);
    if (std::any_of(tasks.begin(), tasks.end(), [&](const Task& task) { return task.id == id; })) return;
    const auto dead = std::erase_if(tasks, [](const Task& task) { return task.life.expired(); });
    only_dead_before = dead > 0 && tasks.empty();
    life = std::make_shared<int>();
    tasks.push_back({id, std::this_thread::get_id(), life});
  }
  autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this(), id, life] {
    if (const auto self = weak.lock()) self->on_task_end(id);
  });
  if (only_dead_before) events.abandoned();
}

// Beyond 60 levels the engine runs a nested backward on a thread of its own, where no outer node is
// known; then the outer task, followed from another thread, is the sign.
bool GradHooks::Impl::is_outermost(int id, bool inside_a_node) {
  const std::lock_guard lock(mutex);
  const bool outermost = !inside_a_node && std::none_of(tasks.begin(), tasks.end(), [&](const Task& task) {
    return task.id < id && task.thread != std::this_thread::get_id() && !task.life.expired();
  });
  if (outermost)
    tasks.clear();
  else
    std::erase_if(tasks, [&](const Task& task) { return task.id == id; });
  return outermost;
}

// A callback belongs to the graph task in which it was queued. Where that one runs inside a node of
// another (activation checkpointing), the wait goes on in the outer one.
void GradHooks::Impl::on_task_end(int id) {
  const auto outer_node = autograd::get_current_node();
  if (is_outermost(id, static_cast<bool>(outer_node))) return events.finish();
  if (!outer_node) return;
  for (const auto& hook : outer_node->post_hooks())
    if (auto* mine = dynamic_cast<OnceAfterNode*>(hook.get()); mine != nullptr && mine->arm(this)) return;
  outer_node->add_post_hook(std::make_unique<OnceAfterNode>(this, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->follow_task();
  }));
}

void GradHooks::Impl::hook(std::size_t index, const at::Tensor& parameter) {
  auto accumulator = autograd::impl::grad_accumulator(parameter);
  keys[index] = accumulator->add_post_hook(std::make_unique<GradientHook>([this, index](bool has_gradient) {
    follow_task();
    if (has_gradient) events.on_gradient(index);
  }));
  accumulators[index] = std::move(accumulator);
}

GradHooks::GradHooks(const std::vector<at::Tensor>& parameters, GradEvents events) : impl_(std::make_shared<Impl>()) {
  impl_->events = std::move(events);
  impl_->accumulators.resize(parameters.size());
  impl_->keys.resize(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) impl_->hook(i, parameters[i]);
}

void GradHooks::hook_again(std::size_t index, const at::Tensor& parameter) {
  impl_->accumulators[index]->del_post_hook(impl_->keys[index]);
  impl_->hook(index, parameter);
}

GradHooks::~GradHooks() {
  for (std::size_t i = 0; i < impl_->keys.size(); ++i) impl_->accumulators[i]->del_post_hook(impl_->keys[i]);
}

void GradHooks::watch(const at::Tensor& output) {
  if (!output.defined() || output.is_leaf()) return;
  std::erase_if(impl_->roots, [](const auto& root) { return root.expired(); });
  impl_->roots.push_back(detail::weak(output.grad_fn()));
  output.grad_fn()->add_pre_hook(std::make_unique<OutputHook>([weak = std::weak_ptr(impl_)] {
    const auto impl = weak.lock();
    if (!impl || !executes_whole_graph()) return;
    impl->follow_task();
    impl->events.on_backward();
  }));
}

std::optional<std::vector<bool>> GradHooks::reachable() {
  GraphSearch search;
  for (const auto& root : impl_->roots) search.visit(root);
  if (search.is_empty()) return std::nullopt;
  std::vector<bool> found;
  for (const auto& accumulator : impl_->accumulators) found.push_back(search.found(*accumulator));
  return found;
}

void GradHooks::reset() {
  std::lock_guard lock(impl_->mutex);
  impl_->tasks.clear();
}

std::optional<std::size_t> GradHooks::first_unhooked(const std::vector<at::Tensor>& parameters,
                                                     std::size_t from) const {
  for (std::size_t i = from; i < parameters.size(); ++i)
    if (autograd::impl::try_get_grad_accumulator(parameters[i]) != impl_->accumulators[i]) return i;
  return std::nullopt;
}

bool GradHooks::inside_backward() { return autograd::get_current_graph_task_id() != -1; }

bool GradHooks::is_hooked(const at::Tensor& parameter) {
  const auto accumulator = autograd::impl::try_get_grad_accumulator(parameter);
  if (!accumulator) return false;
  const auto& hooks = accumulator->post_hooks();
  return std::any_of(hooks.begin(), hooks.end(),
                     [](const auto& hook) { return dynamic_cast<const GradientHook*>(hook.get()) != nullptr; });
}

}  // namespace ddp
