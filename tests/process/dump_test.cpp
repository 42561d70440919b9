// What ranks leave in files when a call times out, when they are asked, and by call.
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "comm/planned_calls.hpp"
#include "ddp/diagnosis.hpp"
#include "ddp/distributed_data_parallel.hpp"
#include "ddp/phase.hpp"
#include "process/dump_fixture.hpp"
#include "support/training.hpp"

namespace ddp::testing {
namespace {

void expect_success(const std::vector<Outcome>& outcomes) {
  for (const auto& outcome : outcomes)
    EXPECT_TRUE(outcome.succeeded()) << "rank " << outcome.rank << ": " << outcome.ending() << '\n' << outcome.output;
}

bool has_dump(const std::filesystem::path& folder, int rank) {
  const auto begin = "ddp_rank" + std::to_string(rank) + '_';
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto name = entry.path().filename().string();
    if (name.starts_with(begin) && name.ends_with(".json")) return true;
  }
  return false;
}

__attribute__((noinline)) void stay_in_user_code(const std::filesystem::path& folder, int rank) {
  const auto limit = std::chrono::steady_clock::now() + 15s;
  while (!has_dump(folder, rank) && std::chrono::steady_clock::now() < limit) std::this_thread::sleep_for(1ms);
  asm volatile("");  // no tail call
}

/// The text of the error of a call that rank 1 does not come to.
std::string error_of_a_call(ProcessGroup& group) {
  auto tensor = at::ones({5});
  try {
    group.all_reduce(tensor, ReduceOp::max, {.label = "accuracy"});
  } catch (const CommError& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(Dumps, ATimeoutLeavesAFileOfEveryRankAlsoOfOneThatIsInUserCode) {
  expect_success(observe_ranks(3, [&](const Environment& environment) {
    const auto group = join(environment, 1s);
    make_three_steps(*group);
    if (group->rank() == 1) {
      const Phase phase("validation");
      return stay_in_user_code(folder().path(), 1);
    }
    const auto text = error_of_a_call(*group);
    EXPECT_TRUE(contains(text, "timed out after 1.0 s"));
    EXPECT_TRUE(text.ends_with("\n  this rank's calls are in " + file_of(group->rank()))) << text;
    EXPECT_TRUE(error_of_a_call(*group).ends_with(".json")) << "a later call";
  }));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(in_dump_of(rank,
                         "[d['format'], d['why'], 'timed out after' in d['error'], d['rank'], d['world_size'], "
                         "d['step'], [(g['ranks'], g['rank_in_group'], g['backend'] in ('shm', 'gloo'), "
                         "g['last_completed']) for g in d['groups']]]"),
              "[1, 'timeout', True, " + std::to_string(rank) + ", 3, 3, [([0, 1, 2], " + std::to_string(rank) +
                  ", True, 3)]]");
  }
  EXPECT_EQ(in_dump_of(0,
                       "[(c['number'], c['operation'], c['dtype'], c['shape'], c['reduce_op'], c['root'], c['step'], "
                       "c['made_by'], c['state']) for c in d['groups'][0]['calls'] if c['label'] == 'loss']"),
            "[(1, 'all_reduce', 'Float', [8, 8], 'sum', None, 0, 'program', 'completed'), "
            "(2, 'all_reduce', 'Float', [8, 8], 'sum', None, 1, 'program', 'completed'), "
            "(3, 'all_reduce', 'Float', [8, 8], 'sum', None, 2, 'program', 'completed')]");
  EXPECT_EQ(in_dump_of(2,
                       "[(c['number'], c['reduce_op'], c['state'] != 'completed', c['ended']) "
                       "for c in d['groups'][0]['calls'] if c['label'] == 'accuracy']"),
            "[(4, 'max', True, None)]");
  const auto main_thread_is_in = [](const std::string& function) {
    return "[d['phase'], [(t['is_main'], t['thread'] == d['pid'], any('" + function +
           "' in frame for frame in t['stack'])) for t in d['threads']][0]]";
  };
  EXPECT_EQ(in_dump_of(0, main_thread_is_in("error_of_a_call")), "[None, (True, True, True)]");
  EXPECT_EQ(in_dump_of(1, main_thread_is_in("stay_in_user_code")), "['validation', (True, True, True)]");
}

TEST_F(Dumps, AMonitoredBarrierThatTimesOutLeavesThemOnTheRankThatDoesNotComeToo) {
  expect_success(observe_ranks(2, [&](const Environment& environment) {
    const auto group = join(environment, 500ms);
    if (group->rank() == 1) return stay_in_user_code(folder().path(), 1);
    EXPECT_THROW(group->monitored_barrier(), TimeoutError);
  }));
  EXPECT_EQ(in_dump_of(0, "d['why']"), "timeout");
  EXPECT_EQ(in_dump_of(1, "[d['why'], 'rank 1 did not come within' in d['error']]"), "['timeout', True]");
}

TEST_F(Dumps, TimesAreThoseOfTheWallClock) {
  const auto before = std::chrono::system_clock::now().time_since_epoch();
  run_ranks(2, [&](const Group& group) {
    make_three_steps(*group);
    dump_records();
    group->barrier();
  });
  const auto seconds = [](auto time) { return std::to_string(std::chrono::duration<double>(time).count()); };
  const auto after = std::chrono::system_clock::now().time_since_epoch();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(in_dump_of(rank, "[" + seconds(before) +
                                   " - 0.1 < c['queued'] <= c['started'] <= c['ended'] <= "
                                   "d['wall_time'] < " +
                                   seconds(after) +
                                   " + 0.1 for c in d['groups'][0]['calls'] "
                                   "if c['label'] == 'loss']"),
              "[True, True, True]");
  }
}

TEST_F(Dumps, RanksThatWaitInCallsThatNeverMeetLeaveThemToo) {
  expect_success(observe_ranks(2, [&](const Environment& environment) {
    const auto group = join(environment);
    try {
      if (group->rank() == 0) group->monitored_barrier();
      auto tensor = at::ones({64});
      group->all_reduce(tensor);
      ADD_FAILURE() << "no exception";
    } catch (const CallMismatchError& error) {
      EXPECT_TRUE(contains(error.what(), "\n  this rank's calls are in " + file_of(group->rank()) + "; make the same"));
    }
  }));
  EXPECT_EQ(in_dump_of(0, "[d['why'], d['groups'][0]['calls'][-1]['operation']]"), "['mismatch', 'monitored_barrier']");
  EXPECT_EQ(in_dump_of(1, "[d['why'], d['groups'][0]['calls'][-1]['operation']]"), "['mismatch', 'all_reduce']");
}

TEST_F(Dumps, AnExceptionOfTheProgramLeavesNone) {
  run_ranks(2, [&](const Group& group) {
    if (group->rank() == 0) return group->fail("the data is bad");
    EXPECT_THROW(group->barrier(), PeerLostError);
  });
  EXPECT_EQ(folder().files(), std::vector<std::string>{});
}

TEST_F(Dumps, AFolderThatIsNotThereIsOneWarningAndTheErrorStays) {
  ::setenv("DDP_DUMP_DIR", (folder() / "none").c_str(), 1);
  const Gate given_up;
  const auto outcomes = observe_ranks(2, [&](const Environment& environment) {
    const auto group = join(environment, 500ms);
    if (group->rank() == 1) return given_up.pass();
    for (const auto& text : {error_of_a_call(*group), error_of_a_call(*group)}) {
      EXPECT_TRUE(contains(text, "timed out after 0.5 s"));
      EXPECT_FALSE(contains(text, "calls are in"));
    }
    EXPECT_THROW(dump_records(), Error);
    given_up.open();
  });
  expect_success(outcomes);
  const auto& output = outcomes[0].output;
  EXPECT_EQ(count(output, "cannot write " + (folder() / "none/ddp_rank0_").string()), 1) << output;
  EXPECT_EQ(count(output, ": No such file or directory; set DDP_DUMP_DIR"), 1) << output;
}

// As on a full disk.
TEST_F(Dumps, AFileThatMayNotGrowIsAnErrorAndLeavesNothing) {
  run_ranks(2, [&](const Group& group) {
    make_three_steps(*group);
    const rlimit small{64, RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &small);
    try {
      dump_records();
      ADD_FAILURE() << "no exception";
    } catch (const Error& error) {
      EXPECT_TRUE(contains(error.what(), "dump_records: cannot write "));
      EXPECT_TRUE(contains(error.what(), ": File too large; set DDP_DUMP_DIR"));
    }
  });
  EXPECT_EQ(folder().files(), std::vector<std::string>{});
}

TEST_F(Dumps, ALinkInTheirPlaceIsNotFollowedAndTheFileIsTheUsersAlone) {
  overwrite(folder() / "victim", "untouched");
  run_ranks(2, [&](const Group& group) {
    const auto path = dump_records();
    EXPECT_EQ(path, file_of(group->rank()));
    std::filesystem::remove(path);
    std::filesystem::create_symlink(folder() / "victim", path);
    EXPECT_EQ(dump_records(), path);
    struct stat status{};
    ASSERT_EQ(::lstat(path.c_str(), &status), 0);
    EXPECT_TRUE(S_ISREG(status.st_mode));
    EXPECT_EQ(status.st_mode & 0777U, 0600U);
  });
  EXPECT_EQ(contents(folder() / "victim"), "untouched");
  EXPECT_EQ(in_dump_of(1, "d['why']"), "call");
}

TEST_F(Dumps, ByCallGoWhereTheCallerSaysAndNameEveryParameterOfABucket) {
  expect_success(observe_ranks(2, [&](const Environment& environment) {
    EXPECT_THROW(dump_records(), std::logic_error) << "it is no rank yet";
    const auto group = join(environment);
    DistributedDataParallel model(Perceptron(), group);
    const auto batch = Batch::of_step(0, 4);
    squared_error(model(batch.input), batch.target).backward();
    auto message = at::ones({3});
    if (group->rank() == 0)
      group->send(message, 1, {.label = "\xC3\xA9\"\\\n\xFF"});
    else
      group->recv(message, 0);
    const std::string path = folder() / ("own" + std::to_string(group->rank()));
    EXPECT_EQ(dump_records(path), path);
    EXPECT_EQ(of_json(path, "sorted(d['groups'][0]['buckets'][0]['parameters'])"),
              "['layer0.bias', 'layer0.weight', 'layer1.bias', 'layer1.weight', 'layer2.bias', 'layer2.weight', "
              "'layer3.bias', 'layer3.weight']");
    EXPECT_EQ(of_json(path,
                      "[(c['made_by'], c['number'] >= b['from_call']) for b in d['groups'][0]['buckets'] "
                      "for c in d['groups'][0]['calls'] if c['label'] == b['label']]"),
              "[('wrapped model', True)]");
    EXPECT_EQ(of_json(path,
                      "[(c['message'], [hex(ord(character)) for character in c['label'] or '']) "
                      "for c in d['groups'][0]['calls'] if 'message' in c]"),
              group->rank() == 0 ? "[({'to': 1, 'number': 1}, ['0xe9', '0x22', '0x5c', '0xa', '0xfffd'])]"
                                 : "[({'from': 0, 'number': 1}, [])]");
    group->shutdown();
  }));
}

TEST_F(Dumps, HaveTheSubGroupsUntilTheyHaveGone) {
  run_ranks(3, [&](const Group& group) {
    auto part = group->new_group({0, 2});
    if (part) part->barrier({.label = "in part"});
    const std::string path = folder() / std::to_string(group->rank());
    dump_records(path);
    EXPECT_EQ(of_json(path, "[(g['ranks'], g['rank_in_group']) for g in d['groups']]"),
              group->rank() == 1 ? "[([0, 1, 2], 1)]"
                                 : "[([0, 1, 2], " + std::to_string(group->rank()) + "), ([0, 2], " +
                                       std::to_string(group->rank() / 2) + ")]");
    group->barrier();
    part.reset();
    // The rank that keeps the part's watch has it until the other one has gone, and forgets it when a group ends after
    // that.
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    do {
      init_process_group({.environment = Environment{}})->shutdown();
      dump_records(path);
    } while (of_json(path, "len(d['groups'])") != "1" && std::chrono::steady_clock::now() < limit);
    EXPECT_EQ(of_json(path, "len(d['groups'])"), "1");
  });
}

TEST_F(Dumps, AreToBeHadAloneToo) {
  expect_success(observe_ranks(1, [&](const Environment& environment) {
    const auto group = join(environment);
    make_three_steps(*group);
    const auto path = dump_records();
    EXPECT_EQ(path, file_of(0));
  }));
  EXPECT_EQ(in_dump_of(0, "[d['groups'][0]['last_completed'], d['groups'][0]['backend']]"), "[3, None]");
}

}  // namespace
}  // namespace ddp::testing
