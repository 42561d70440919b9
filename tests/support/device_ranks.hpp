#pragma once
/// device_ranks.hpp: several ranks that work on the fake accelerator, each on a device of its own.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "ddp/process_group.hpp"
#include "support/fake_device_backend.hpp"
#include "support/ranks.hpp"

namespace ddp::testing {

inline const std::string kOnTheFake = "fake";

/// A way is "fake", the accelerator's own engine, or "gloo" or "shm", through the host's memory.
class DeviceRanks : public ::testing::Test {
 protected:
  using Body = std::function<void(ProcessGroup& group, at::Device device)>;

  static ProcessGroupOptions options_for(const std::string& way, const Environment& environment) {
    fake_accelerator();
    if (!comm::device_backend(kOnTheFake)) comm::add_device_backend(std::make_shared<FakeDeviceBackend>());
    ProcessGroupOptions options;
    options.backend = way;
    options.environment = environment;
    options.timeout = std::chrono::seconds(20);
    if (way != kOnTheFake)
      options.device = at::Device(kFakeDevice.type(), static_cast<at::DeviceIndex>(environment.rank));
    return options;
  }

  static void run(int world, const std::string& way, const Body& body) {
    const auto on_rank = [&](const Environment& environment) {
      const auto group = init_process_group(options_for(way, environment));
      try {
        body(*group, group->device());
      } catch (const std::exception& error) {
        group->fail(error.what());
        throw;
      }
      group->shutdown();
    };
    for (const auto& outcome : observe_ranks(world, on_rank))
      EXPECT_TRUE(outcome.succeeded()) << "rank " << outcome.rank << " ended by " << outcome.ending() << '\n'
                                       << outcome.output;
  }

  /// How often the engine of this process was asked for calls whose notes begin so, since the last question.
  static int fake_engine_calls(const std::string& begin) {
    int count = 0;
    for (const auto& note : fake_engine().take_notes()) count += note.starts_with(begin);
    return count;
  }
};

inline std::string name_of_way(const ::testing::TestParamInfo<const char*>& info) { return info.param; }

}  // namespace ddp::testing
