// The examples run, learn, go on where they were and show what they did. DDPRUN, FASHION_MNIST and RESNET are the paths
// of the programs.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "process/launched.hpp"
#include "support/temp_folder.hpp"
#include "support/text.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;

constexpr auto kLimit = 25s;  // for each of the runs

std::string big_endian(const std::vector<std::uint32_t>& numbers) {
  std::string bytes;
  for (const auto number : numbers)
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> static_cast<unsigned>(shift));
  return bytes;
}

/// Files of Fashion-MNIST's names, format and size, of which LibTorch's reader takes no other. The lighter an image,
/// the higher its class.
void write_images(const std::filesystem::path& folder, const std::string& part, std::uint32_t count) {
  std::mt19937 random(count);
  std::string pixels(std::size_t{count} * 28 * 28, '\0'), labels(count, '\0');
  for (auto& label : labels) label = static_cast<char>(random() % 10);
  for (std::size_t i = 0; i < pixels.size(); ++i)
    pixels[i] = static_cast<char>(labels[i / (std::size_t{28} * 28)] * 20 + random() % 76);
  overwrite(folder / (part + "-images-idx3-ubyte"), big_endian({2051, count, 28, 28}) + pixels);
  overwrite(folder / (part + "-labels-idx1-ubyte"), big_endian({2049, count}) + labels);
}

class Example : public ::testing::Test {
 protected:
  Example() {
    for (const auto* name : {"data", "straight", "resumed"}) std::filesystem::create_directory(folder_ / name);
    write_images(folder_ / "data", "train", 60000);
    write_images(folder_ / "data", "t10k", 10000);
  }

  /// One epoch on two ranks, with its files in a folder.
  test::Launched start(const std::string& folder, const std::vector<std::string>& more = {},
                       const std::string& program = FASHION_MNIST) const {
    std::vector<std::string> words{DDPRUN,   "--nproc-per-node", "2", program, "--epochs", "1",
                                   "--data", folder_ / "data"};
    words.insert(words.end(), more.begin(), more.end());
    return start_in(folder, words);
  }
  /// Checks instead of training.
  test::Launched check() const {
    return start_in("straight", {DDPRUN, "--check", FASHION_MNIST, "--data", folder_ / "data"});
  }
  test::Launched start_in(const std::string& folder, const std::vector<std::string>& words) const {
    return test::Launched(words, [&] {
      if (::chdir((folder_ / folder).c_str()) != 0) ::_exit(98);
    });
  }
  std::filesystem::path logs(const std::string& folder) const { return folder_ / folder / "runs/fashion_mnist"; }
  std::string checkpoint(const std::string& folder) const { return contents(folder_ / folder / "run.pt"); }

 private:
  TempFolder folder_;
};

/// The run's scalars and picture, of so many writers, which wrote at least so many losses.
void expect_logs(const std::filesystem::path& folder, int writers, int losses) {
  int event_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    event_files += entry.path().filename().string().starts_with("events.out.tfevents.") ? 1 : 0;
  }
  EXPECT_EQ(event_files, writers);
  const auto scalars = contents(folder / "scalars.csv");
  EXPECT_EQ(count(scalars, "wall_time,step,tag,value\n"), 1);
  EXPECT_EQ(count(scalars, ",469,accuracy,0."), 1);
  EXPECT_GE(count(scalars, ",loss,"), losses) << scalars;
  EXPECT_TRUE(contents(folder / "curves.png").starts_with("\x89PNG"));
}

/// Where a run that was resumed began.
int first_step(const test::Launched& run) {
  const std::string begin = "checkpoint: run.pt loaded, the run goes on with epoch 0, step ";
  EXPECT_TRUE(contains(run.text(), begin));
  const auto at = run.text().find(begin);
  return at == std::string::npos ? -1 : std::stoi(run.text().substr(at + begin.size()));
}

TEST_F(Example, EndsAtItsTargetAndReportsTimeAndThroughput) {
  auto run = start("straight", {"--epochs", "3", "--target-accuracy", "0.01"});
  ASSERT_EQ(run.finish(kLimit), 0) << run.text();
  EXPECT_EQ(count(run.text(), "accuracy on the 10,000 test images"), 1) << run.text();
  EXPECT_EQ(count(run.text(), ": target after "), 1) << run.text();
  EXPECT_EQ(count(run.text(), " samples/s, scaling efficiency "), 1) << run.text();
  expect_logs(logs("straight"), 1, 10);
}

TEST_F(Example, PassesItsCheck) {
  auto run = check();
  ASSERT_EQ(run.finish(kLimit), 0) << run.text();
  EXPECT_EQ(count(run.text(), "ok    "), 6) << run.text();
  EXPECT_FALSE(contains(run.text(), "accuracy on")) << "it trained";
}

TEST_F(Example, KilledAndThenAskedToStopInsideAnEpochItGoesOnToTheBit) {
  auto straight = start("straight");
  ASSERT_EQ(straight.finish(kLimit), 0) << straight.text();

  auto killed = start("resumed");
  killed.read_until("checkpoint: saved run.pt", 1, kLimit);
  killed.signal(SIGKILL);  // the ranks die with their launcher
  ASSERT_EQ(killed.finish(kLimit), -SIGKILL);
  ASSERT_FALSE(contains(killed.text(), "accuracy")) << "it was over";

  auto stopped = start("resumed", {"--resume"});
  stopped.read_until(" of 469 loss ", 2, kLimit);
  stopped.signal(SIGTERM);
  ASSERT_EQ(stopped.finish(kLimit), 0) << stopped.text();
  ASSERT_FALSE(contains(stopped.text(), "accuracy")) << "it was over";
  EXPECT_EQ(count(stopped.text(), "all ranks are to stop after this step: SIGTERM on "), 1) << stopped.text();

  auto resumed = start("resumed", {"--resume"});
  ASSERT_EQ(resumed.finish(kLimit), 0) << resumed.text();
  const auto step = first_step(resumed);
  EXPECT_GT(step, first_step(stopped) + 50);
  EXPECT_TRUE(contains(resumed.text(), ": epoch 0 step " + std::to_string(step + 1) + " of 469 loss "));
  EXPECT_EQ(count(resumed.text(), " of 469 loss "), (469 - step + 49) / 50);
  EXPECT_TRUE(checkpoint("resumed") == checkpoint("straight")) << "the files differ";
  EXPECT_FALSE(contains(resumed.text(), "target after"));
  expect_logs(logs("resumed"), 3, 2 + (469 - step + 49) / 50);  // what the killed one had not flushed is gone
}

/// The numbers that stand behind `word` in the text.
std::vector<double> numbers_after(const std::string& text, const std::string& word) {
  std::vector<double> numbers;
  for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at + 1))
    numbers.push_back(std::stod(text.substr(at + word.size())));
  return numbers;
}

TEST_F(Example, AResNetWithSynchronisedBatchNormLearns) {
  auto run = start("straight", {"--width", "4", "--batch", "32", "--steps", "31"}, RESNET);
  ASSERT_EQ(run.finish(kLimit), 0) << run.text();
  const auto losses = numbers_after(run.text(), " loss ");
  ASSERT_EQ(losses.size(), 4) << run.text();
  EXPECT_LT(losses.back(), losses.front() * 0.6) << run.text();
  const auto accuracy = numbers_after(run.text(), "accuracy on the 10,000 test images: ");
  ASSERT_EQ(accuracy.size(), 1) << run.text();
  EXPECT_GT(accuracy[0], 15) << run.text();  // guessing gives 10
  EXPECT_TRUE(contains(run.text(), "checkpoint: saved resnet.pt"));
}

}  // namespace
}  // namespace ddp::testing
