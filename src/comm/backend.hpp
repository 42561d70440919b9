#pragma once
/// backend.hpp: the engines that move the bytes. Each is made in a file of its own.

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>
#include <string_view>

#include "ddp/environment.hpp"

namespace ddp::comm {

/// The backend that "auto" or a name stands for on this build.
/// Errors: ConfigError for a name that is unknown or that this build has no backend for.
std::string choose_backend(std::string_view name, const Environment& environment);

/// What every backend of several ranks is made from.
struct BackendSetup {
  c10::intrusive_ptr<c10d::Store> store;
  Environment environment;
};

/// LibTorch's Gloo. Its own time limit lies beyond any of ours, so that ours are the ones that end waits.
/// Collective; blocks until all ranks are connected.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendSetup& setup);

}  // namespace ddp::comm
