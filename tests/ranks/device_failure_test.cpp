// What a rank learns where its device, another rank or their settings fail; and that the device does not wait for ever.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "comm/planned_calls.hpp"
#include "support/device_ranks.hpp"
#include "support/thrown.hpp"

namespace ddp::testing {
namespace {

using std::chrono::milliseconds;

class DeviceFailure : public DeviceRanks {
 protected:
  static std::vector<Outcome> observe(int world, const std::string& way,
                                      const std::function<void(ProcessGroupOptions&)>& change,
                                      const std::function<void(ProcessGroup&)>& body) {
    return observe_ranks(world, [=](const Environment& environment) {
      auto options = options_for(way, environment);
      change(options);
      const auto group = init_process_group(options);
      body(*group);
      group->shutdown();
    });
  }
  static void nothing(ProcessGroupOptions&) {}

  /// The group is broken: the device is told soon.
  static void expect_abort() {
    int aborts = 0;
    for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
         aborts == 0 && std::chrono::steady_clock::now() < end;)
      aborts += fake_engine_calls("abort");
    EXPECT_EQ(aborts, 1);
  }

  /// Calls until the group is broken, as a training does that goes on without looking.
  static std::string text_of_breakage(ProcessGroup& group) {
    return error_of<Error>([&] {
      for (;;) group.barrier();
    });
  }
};

TEST_F(DeviceFailure, ACallThatTheDeviceDoesNotEndTimesOutAndIsAborted) {
  const auto outcomes = observe(
      2, kOnTheFake,
      [](ProcessGroupOptions& options) {
        options.timeout = milliseconds(700);
        fake_engine().polls_until_progress = -1;  // the device hangs
      },
      [](ProcessGroup& group) {
        auto tensor = torch::ones({8}).to(group.device());
        group.all_reduce(tensor);  // returns: the host does not wait
        const auto text = text_of_breakage(group);
        EXPECT_NE(text.find("all_reduce #1"), std::string::npos) << text;
        expect_abort();
      });
  for (const auto& outcome : outcomes) EXPECT_TRUE(outcome.succeeded()) << outcome.output;
}

TEST_F(DeviceFailure, ALaterCallsShorterTimeoutCountsBehindOneThatHangs) {
  const auto outcomes = observe(
      2, kOnTheFake, [](ProcessGroupOptions&) { fake_engine().polls_until_progress = -1; },
      [](ProcessGroup& group) {
        auto tensor = torch::ones({8}).to(group.device());
        group.all_reduce(tensor);
        group.broadcast(tensor, 0, {.timeout = milliseconds(300)});
        const auto text = text_of_breakage(group);
        EXPECT_NE(text.find("broadcast #2"), std::string::npos) << text;
      });
  for (const auto& outcome : outcomes) EXPECT_TRUE(outcome.succeeded()) << outcome.output;
}

// Of the calls in a graph nothing is known when it runs; but a rank's death is.
TEST_F(DeviceFailure, WhatAGraphMayWaitForIsAbortedWhenARankDies) {
  const auto outcomes = observe(2, kOnTheFake, nothing, [](ProcessGroup& group) {
    auto tensor = torch::ones({8}).to(group.device());
    fake_accelerator().is_capturing = true;
    group.all_reduce(tensor);
    fake_accelerator().is_capturing = false;
    group.barrier();
    if (group.rank() == 1) ::kill(::getpid(), SIGKILL);
    EXPECT_NE(text_of_breakage(group).find("rank 1 died"), std::string::npos);
    expect_abort();
  });
  EXPECT_TRUE(outcomes[0].succeeded()) << outcomes[0].output;
}

TEST_F(DeviceFailure, AnErrorThatShowsOnTheDeviceBreaksTheGroupByItsText) {
  const auto outcomes = observe(
      2, kOnTheFake, [](ProcessGroupOptions&) { fake_engine().fails = true; },
      [](ProcessGroup& group) {
        auto tensor = torch::ones({8}).to(group.device());
        group.all_reduce(tensor);
        const auto text = text_of_breakage(group);
        EXPECT_NE(text.find("the device failed"), std::string::npos) << text;
      });
  for (const auto& outcome : outcomes) EXPECT_TRUE(outcome.succeeded()) << outcome.output;
}

TEST_F(DeviceFailure, ADeadRankIsNamedAndWhatTheDeviceWaitsForIsAborted) {
  for (const std::string way : {"fake", "gloo", "shm"}) {
    const auto outcomes = observe(3, way, nothing, [](ProcessGroup& group) {
      auto tensor = torch::ones({8}).to(group.device());
      group.all_reduce(tensor);
      if (group.rank() == 1) ::kill(::getpid(), SIGKILL);
      const auto text = error_of<PeerLostError>([&] {
        for (;;) group.all_reduce(tensor);
      });
      EXPECT_NE(text.find("rank 1 died"), std::string::npos) << text;
    });
    for (const auto& outcome : outcomes) EXPECT_TRUE(outcome.rank == 1 || outcome.succeeded()) << way << outcome.output;
  }
}

TEST_F(DeviceFailure, ARankThatLeftInOrderIsNamedByACallThatItHasNotMade) {
  for (const std::string way : {"fake", "gloo", "shm"}) {
    const auto outcomes = observe(2, way, nothing, [](ProcessGroup& group) {
      auto tensor = torch::ones({8}).to(group.device());
      group.all_reduce(tensor);
      if (group.rank() == 1) return;
      const auto text = error_of<PeerLostError>([&] {
        for (;;) comm::PlannedCalls::all_reduce(group, tensor).wait();  // no ranks compare anything, as with buckets
      });
      EXPECT_NE(text.find("rank 1 left the group after call #1"), std::string::npos) << text;
    });
    for (const auto& outcome : outcomes) EXPECT_TRUE(outcome.succeeded()) << way << outcome.output;
  }
}

TEST_F(DeviceFailure, AProcessMayEndWithCallsUnderWay) {
  for (const std::string way : {"fake", "gloo", "shm"})
    for (const bool exits : {true, false}) {
      const auto outcomes = observe_ranks(2,
                                          [&](const Environment& environment) {
                                            auto group = init_process_group(options_for(way, environment));
                                            for (int i = 0; i < 10; ++i) {
                                              auto tensor = torch::ones({1000}).to(group->device());
                                              static_cast<void>(group->all_reduce_async(tensor));
                                            }
                                            if (exits) std::exit(0);
                                            group.reset();
                                          },
                                          {.run_exit_handlers = true});
      for (const auto& outcome : outcomes)
        EXPECT_TRUE(outcome.succeeded()) << way << outcome.ending() << outcome.output;
    }
}

TEST_F(DeviceFailure, TwoRanksOnOneDeviceAreRefusedOnBothWithTheWayOut) {
  const auto outcomes =
      observe(2, kOnTheFake, [](ProcessGroupOptions&) { fake_engine().is_shared = true; }, [](ProcessGroup&) {});
  for (const auto& outcome : outcomes) {
    EXPECT_FALSE(outcome.succeeded());
    EXPECT_NE(outcome.output.find("two ranks have one device, fake-0: rank 0 ("), std::string::npos) << outcome.output;
    EXPECT_NE(outcome.output.find("to share a device, use backend \"gloo\" or \"shm\""), std::string::npos)
        << outcome.output;
  }
}

TEST_F(DeviceFailure, RanksThatShareADeviceWorkThroughTheHostsMemory) {
  for (const std::string way : {"gloo", "shm"}) {
    const auto outcomes = observe(
        2, way, [](ProcessGroupOptions& options) { options.device = kFakeDevice; },
        [](ProcessGroup& group) {
          EXPECT_EQ(group.device(), kFakeDevice);
          auto tensor = torch::full({8}, group.rank() + 1.0F).to(group.device());
          group.all_reduce(tensor);
          EXPECT_TRUE(torch::equal(tensor.cpu(), torch::full({8}, 3.0F)));
        });
    for (const auto& outcome : outcomes) EXPECT_TRUE(outcome.succeeded()) << outcome.output;
  }
}

TEST_F(DeviceFailure, LibrariesOfDifferentVersionsAreNamedOnAllRanks) {
  const auto outcomes = observe_ranks(2, [](const Environment& environment) {
    const auto options = options_for(kOnTheFake, environment);
    fake_engine().library_version = 1 + environment.rank;
    init_process_group(options);
  });
  for (const auto& outcome : outcomes) {
    EXPECT_FALSE(outcome.succeeded());
    EXPECT_NE(outcome.output.find("the ranks have different libraries: rank "), std::string::npos) << outcome.output;
    EXPECT_NE(outcome.output.find("has fake 2"), std::string::npos) << outcome.output;
  }
}

TEST_F(DeviceFailure, ARankOnTheCpuAmongRanksOnDevicesIsNamed) {
  const auto outcomes = observe_ranks(2, [](const Environment& environment) {
    auto options = options_for("gloo", environment);
    if (environment.rank == 1) options.device.reset();
    init_process_group(options);
  });
  for (const auto& outcome : outcomes) {
    EXPECT_FALSE(outcome.succeeded());
    EXPECT_NE(outcome.output.find("has \"gloo on "), std::string::npos) << outcome.output;
  }
}

TEST_F(DeviceFailure, ARankWithoutItsDeviceTellsAllThatItCannotTakePart) {
  for (const int troubled : {0, 2}) {
    const auto begin = std::chrono::steady_clock::now();
    const auto outcomes = observe_ranks(3, [&](const Environment& environment) {
      auto options = options_for("gloo", environment);
      if (environment.rank == troubled) options.device = at::Device(kFakeDevice.type(), 9);
      init_process_group(options);
    });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));  // not the timeout
    for (const auto& outcome : outcomes) {
      EXPECT_FALSE(outcome.succeeded());
      const std::string words = outcome.rank == troubled ? "the other ranks are told" : ") cannot take part: ";
      EXPECT_NE(outcome.output.find(words), std::string::npos) << outcome.output;
      EXPECT_NE(outcome.output.find("there is no fake device 9: this process sees 4"), std::string::npos);
    }
  }
}

TEST_F(DeviceFailure, ADeviceThatIsNotThereIsAConfigError) {
  for (const auto& outcome : observe_ranks(1, [](const Environment& environment) {
         auto options = options_for("gloo", environment);
         options.device = at::Device(kFakeDevice.type(), 9);
         EXPECT_NE(error_of<ConfigError>([&] {
                     init_process_group(options);
                   }).find("there is no fake device 9: this process sees 4"),
                   std::string::npos);
         options = options_for(kOnTheFake, environment);
         options.environment->local_rank = 4;
         EXPECT_NE(error_of<ConfigError>([&] {
                     init_process_group(options);
                   }).find("local rank 4 has no fake device: this process sees 4"),
                   std::string::npos);
         options.device = at::Device(at::kCPU);
         EXPECT_NE(
             error_of<ConfigError>([&] { init_process_group(options); }).find("backend \"fake\" does not work on cpu"),
             std::string::npos);
       }))
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
}

}  // namespace
}  // namespace ddp::testing
