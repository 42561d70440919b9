// Which files a Checkpoint keeps, and writing them beside the training.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "ddp/checkpoint.hpp"
#include "ddp/error.hpp"
#include "support/temp_folder.hpp"
#include "support/text.hpp"
#include "support/thrown.hpp"

namespace ddp {
namespace {

namespace fs = std::filesystem;
using namespace testing;
using Best = CheckpointOptions::Best;

std::vector<std::string> sorted_files(const TempFolder& folder) {
  auto files = folder.files();
  std::sort(files.begin(), files.end());
  return files;
}

std::int64_t epoch_in(const fs::path& path, const torch::nn::Linear& net) {
  return Checkpoint(path, net).load_or_start().epoch;
}

TEST(CheckpointFiles, AreAsManyAsAreToBeKept) {
  const TempFolder folder;
  const torch::nn::Linear net(2, 2);
  Checkpoint checkpoint(folder / "run.pt", net, CheckpointOptions{.keep_last = 3});
  for (std::int64_t epoch = 1; epoch <= 5; ++epoch) checkpoint.save({.epoch = epoch});
  EXPECT_EQ(sorted_files(folder), (std::vector<std::string>{"run.1.pt", "run.2.pt", "run.pt"}));
  EXPECT_EQ(epoch_in(folder / "run.pt", net), 5);
  EXPECT_EQ(epoch_in(folder / "run.1.pt", net), 4);
  EXPECT_EQ(epoch_in(folder / "run.2.pt", net), 3);
}

TEST(CheckpointFiles, KeepTheBestApart) {
  const TempFolder folder;
  const torch::nn::Linear net(2, 2);
  const auto path = folder / "run.pt";
  const CheckpointOptions options{.keep_best = Best::lowest};
  {
    Checkpoint checkpoint(path, net, options);
    checkpoint.save({.epoch = 1});
    EXPECT_EQ(sorted_files(folder), std::vector<std::string>{"run.pt"});
    checkpoint.save({.epoch = 2, .metric = 0.5});
    checkpoint.save({.epoch = 3, .metric = std::numeric_limits<double>::quiet_NaN()});
    checkpoint.save({.epoch = 4, .metric = 0.7});
    EXPECT_EQ(epoch_in(folder / "run.best.pt", net), 2);
  }
  Checkpoint resumed(path, net, options);
  const auto progress = resumed.load_or_start();
  EXPECT_EQ(progress.epoch, 4);
  EXPECT_EQ(progress.metric, 0.7);
  resumed.save({.epoch = 5, .metric = 0.6});
  EXPECT_EQ(epoch_in(folder / "run.best.pt", net), 2) << "a run that goes on knows the best one before";
  resumed.save({.epoch = 6, .metric = 0.4});
  EXPECT_EQ(epoch_in(folder / "run.best.pt", net), 6);
  EXPECT_EQ(sorted_files(folder), (std::vector<std::string>{"run.best.pt", "run.pt"}));
}

TEST(CheckpointFiles, AreNotTheBestOneUnderAnotherName) {
  const TempFolder folder;
  const torch::nn::Linear net(2, 2);
  Checkpoint checkpoint(folder / "run.pt", net, CheckpointOptions{.keep_last = 2, .keep_best = Best::lowest});
  checkpoint.save({.epoch = 1, .metric = 2});
  checkpoint.save({.epoch = 2, .metric = 1});
  const auto best = contents(folder / "run.best.pt");
  fs::copy_file(folder / "run.1.pt", folder / "run.pt", fs::copy_options::overwrite_existing);
  EXPECT_EQ(contents(folder / "run.best.pt"), best);
  EXPECT_EQ(epoch_in(folder / "run.best.pt", net), 2);
}

TEST(CheckpointFiles, KeepTheHighestOnRequest) {
  const TempFolder folder;
  const torch::nn::Linear net(2, 2);
  Checkpoint checkpoint(folder / "run.pt", net, CheckpointOptions{.keep_best = Best::highest});
  checkpoint.save({.epoch = 1, .metric = 0.5});
  checkpoint.save({.epoch = 2, .metric = 0.9});
  checkpoint.save({.epoch = 3, .metric = 0.8});
  EXPECT_EQ(epoch_in(folder / "run.best.pt", net), 2);
}

TEST(CheckpointFiles, NeedACountOfOneOrMore) {
  const torch::nn::Linear net(2, 2);
  EXPECT_THROW(Checkpoint("run.pt", net, CheckpointOptions{.keep_last = 0}), std::logic_error);
}

TEST(CheckpointFiles, WrittenInTheBackgroundHoldTheStateOfTheirMoment) {
  const TempFolder folder;
  const torch::nn::Linear net(512, 2048);  // 4 MiB
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  Checkpoint checkpoint(folder / "run.pt", net, CheckpointOptions{.background = true}, optimizer);
  for (std::int64_t step = 1; step <= 3; ++step) {
    {
      const torch::NoGradGuard no_grad;
      net->weight.fill_(static_cast<double>(step));
    }
    checkpoint.save({.step = step});
    const torch::NoGradGuard no_grad;
    net->weight.fill_(-1);
  }
  checkpoint.wait();
  EXPECT_EQ(checkpoint.load_or_start().step, 3);
  EXPECT_TRUE(net->weight.eq(3).all().item<bool>());
}

TEST(CheckpointFiles, AreFinishedByTheDestructor) {
  const TempFolder folder;
  const torch::nn::Linear net(512, 2048);
  Checkpoint(folder / "run.pt", net, CheckpointOptions{.background = true}).save({.epoch = 8});
  EXPECT_EQ(epoch_in(folder / "run.pt", net), 8);
  EXPECT_EQ(folder.files(), std::vector<std::string>{"run.pt"});
}

// A rename over a folder fails, once the file itself is written.
TEST(CheckpointFiles, ThatFailedInTheBackgroundAreAnErrorOfTheNextCallOnce) {
  const TempFolder folder;
  const torch::nn::Linear net(2, 2);
  fs::create_directory(folder / "here");
  Checkpoint checkpoint(folder / "here/run.pt", net, CheckpointOptions{.background = true});
  checkpoint.save({.epoch = 1});
  checkpoint.wait();
  fs::rename(folder / "here", folder / "there");
  checkpoint.save({.epoch = 2});
  EXPECT_TRUE(contains(error_of<CheckpointError>([&] { checkpoint.save({.epoch = 3}); }), "No such file or directory"));
  EXPECT_EQ(error_of<CheckpointError>([&] { checkpoint.wait(); }), "no error");
  fs::rename(folder / "there", folder / "here");
  checkpoint.save({.epoch = 4});
  checkpoint.wait();
  EXPECT_EQ(epoch_in(folder / "here/run.pt", net), 4);
}

TEST(CheckpointFiles, FollowALinkToWhereItLeads) {
  const TempFolder folder;
  const torch::nn::Linear net(2, 2);
  fs::create_directory(folder / "disk");
  fs::create_symlink(folder / "disk/real.pt", folder / "run.pt");
  Checkpoint checkpoint(folder / "run.pt", net, CheckpointOptions{.keep_last = 2});
  for (const int epoch : {1, 2}) {
    checkpoint.save({.epoch = epoch});
    EXPECT_TRUE(fs::is_symlink(folder / "run.pt"));
    EXPECT_EQ(epoch_in(folder / "disk/real.pt", net), epoch);
  }
  EXPECT_EQ(epoch_in(folder / "disk/real.1.pt", net), 1);
  EXPECT_EQ(checkpoint.load_or_start().epoch, 2);
}

TEST(CheckpointFiles, OfTwoWritersAtOnceAreWhole) {
  const TempFolder folder;
  const auto path = folder / "run.pt";
  const auto write = [&](int* refused) {
    const torch::nn::Linear net(256, 256);
    Checkpoint checkpoint(path, net);
    for (int i = 0; i < 50; ++i) {
      const auto text = error_of<CheckpointError>([&] { checkpoint.save({.epoch = i}); });
      if (text == "no error") continue;
      EXPECT_TRUE(contains(text, "is being written by another process or Checkpoint"));
      ++*refused;
    }
  };
  const torch::nn::Linear net(256, 256);
  Checkpoint(path, net).save({});
  int refused[2] = {};
  std::thread other(write, &refused[1]);
  std::thread reader([&] {
    for (int i = 0; i < 50; ++i) epoch_in(path, torch::nn::Linear(256, 256));
  });
  write(&refused[0]);
  other.join();
  reader.join();
  EXPECT_LT(refused[0] + refused[1], 100);
  EXPECT_EQ(folder.files(), std::vector<std::string>{"run.pt"});
}

TEST(CheckpointFiles, ThatFailedInTheBackgroundWereNotTheBest) {
  const TempFolder folder;
  const torch::nn::Linear net(2, 2);
  fs::create_directory(folder / "here");
  Checkpoint checkpoint(folder / "here/run.pt", net, CheckpointOptions{.background = true, .keep_best = Best::lowest});
  checkpoint.save({.epoch = 1, .metric = 5});
  checkpoint.wait();
  fs::rename(folder / "here", folder / "there");
  checkpoint.save({.epoch = 2, .metric = 1});
  EXPECT_NE(error_of<CheckpointError>([&] { checkpoint.wait(); }), "no error");
  fs::rename(folder / "there", folder / "here");
  checkpoint.save({.epoch = 3, .metric = 3});
  checkpoint.wait();
  EXPECT_EQ(epoch_in(folder / "here/run.best.pt", net), 3);
}

TEST(CheckpointFiles, ForgetTheBestOneOfTheOtherDirection) {
  const TempFolder folder;
  const torch::nn::Linear net(2, 2);
  Checkpoint(folder / "run.pt", net, CheckpointOptions{.keep_best = Best::lowest}).save({.epoch = 1, .metric = 5});
  Checkpoint checkpoint(folder / "run.pt", net, CheckpointOptions{.keep_best = Best::highest});
  checkpoint.load_or_start();
  checkpoint.save({.epoch = 2, .metric = 4});
  EXPECT_EQ(epoch_in(folder / "run.best.pt", net), 2);
}

TEST(CheckpointFiles, NeedAPath) {
  const torch::nn::Linear net(2, 2);
  EXPECT_THROW(Checkpoint("", net), std::logic_error);
}

TEST(CheckpointFiles, OfAFailedSaveLeaveTheEarlierOnesAsTheyWere) {
  const TempFolder folder;
  const torch::nn::Linear net(2, 2);
  Checkpoint checkpoint(folder / "run.pt", net, CheckpointOptions{.keep_last = 2, .keep_best = Best::lowest});
  checkpoint.save({.epoch = 1, .metric = 1});
  checkpoint.save({.epoch = 2, .metric = 2});
  const auto files = sorted_files(folder);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit limited{.rlim_cur = 1000, .rlim_max = before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &limited);
  const auto text = error_of<CheckpointError>([&] { checkpoint.save({.epoch = 3, .metric = 0}); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_TRUE(contains(text, "File too large"));
  EXPECT_EQ(sorted_files(folder), files);
  EXPECT_EQ(epoch_in(folder / "run.pt", net), 2);
  EXPECT_EQ(epoch_in(folder / "run.1.pt", net), 1);
  EXPECT_EQ(epoch_in(folder / "run.best.pt", net), 1);
  checkpoint.save({.epoch = 4, .metric = 0.5});
  EXPECT_EQ(epoch_in(folder / "run.best.pt", net), 4) << "the metric of a file that is not there does not count";
}

}  // namespace
}  // namespace ddp
