#pragma once
/// grad_hooks.hpp: tells when a parameter's gradient has been accumulated and when the backward is
/// over. All of autograd's internals that this library touches are in its .cpp and in graph_search.cpp.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace ddp {

/// What the hooks call. An exception out of any of them leaves the same backward() with its type.
struct GradEvents {
  /// A backward has reached an output given to watch(), whether or not it will reach a parameter.
  std::function<void()> on_backward;
  /// A gradient has been accumulated into parameter(index).grad(). May come more than once a backward;
  /// an undefined gradient, as a function of the user's may return, is none.
  std::function<void(std::size_t index)> on_gradient;
  /// The outermost backward that called one of the others is over. Not called when it throws.
  std::function<void()> finish;
  /// A new backward begins, and the one before it has ended by an exception.
  std::function<void()> abandoned;
};

/// Threads: on_gradient may be called from several autograd threads at once.
/// Lifetime: the destructor removes the hooks; destroy it outside backward().
class GradHooks {
 public:
  /// `parameters` are leaves that require gradients.
  GradHooks(const std::vector<at::Tensor>& parameters, GradEvents events);
  ~GradHooks();
  GradHooks(const GradHooks&) = delete;
  GradHooks& operator=(const GradHooks&) = delete;

  /// Sees backwards through `output`, but not autograd::grad(), which accumulates no gradients.
  void watch(const at::Tensor& output);

  /// The parameters that a backward through any of the watched outputs that still live can reach; none where no output
  /// is known, as when an inner module was called instead of the wrapper. A part of the graph that is recomputed during
  /// backward (activation checkpointing) cannot be seen.
  std::optional<std::vector<bool>> reachable();

  /// Forgets a backward that has thrown.
  void reset();

  /// The first parameter, from index `from` on, whose hook will not fire any more: its data was replaced, by
  /// torch::load() or to().
  std::optional<std::size_t> first_unhooked(const std::vector<at::Tensor>& parameters, std::size_t from = 0) const;
  /// Hooks it again.
  void hook_again(std::size_t index, const at::Tensor& parameter);

  /// True inside a node of a backward that runs on this thread, as when a forward is recomputed there.
  static bool inside_backward();

  /// True while any GradHooks lives on this parameter.
  static bool is_hooked(const at::Tensor& parameter);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddp
