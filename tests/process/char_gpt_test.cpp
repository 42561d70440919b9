// The character GPT learns a small text, and goes on where it was. DDPRUN and CHAR_GPT are the paths of the programs.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
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

/// Sentences of three words each, in which a word says little of the next one.
std::string small_text() {
  const std::vector<std::string> words{"red", "fish", "swim", "home"};
  std::mt19937 random(1);
  std::string text;
  for (int i = 0; i < 1500; ++i) text += words[random() % words.size()] + (i % 3 == 2 ? ".\n" : " ");
  return text;
}

class CharGpt : public ::testing::Test {
 protected:
  CharGpt() {
    for (const auto* name : {"straight", "resumed"}) std::filesystem::create_directory(folder_ / name);
    overwrite(folder_ / "text.txt", small_text());
  }

  /// On two ranks, with its files in a folder.
  test::Launched start(const std::string& folder, int steps) const {
    return test::Launched({DDPRUN,      "--nproc-per-node",
                           "2",         CHAR_GPT,
                           "--text",    folder_ / "text.txt",
                           "--steps",   std::to_string(steps),
                           "--batch",   "8",
                           "--context", "16",
                           "--width",   "64",
                           "--layers",  "2",
                           "--heads",   "2",
                           "--sample",  "240"},
                          [&] {
                            if (::chdir((folder_ / folder).c_str()) != 0) ::_exit(98);
                          });
  }
  std::string checkpoint(const std::string& folder) const { return contents(folder_ / folder / "char_gpt.pt"); }

 private:
  TempFolder folder_;
};

/// The last number that stands behind `word`.
double last_after(const std::string& text, const std::string& word) {
  const auto at = text.rfind(word);
  return at == std::string::npos ? -1 : std::stod(text.substr(at + word.size()));
}

TEST_F(CharGpt, LearnsASmallTextOnTwoRanksAndWritesItsWords) {
  auto run = start("straight", 201);
  ASSERT_EQ(run.finish(kLimit), 0) << run.text();
  const auto& text = run.text();
  EXPECT_TRUE(contains(text, "training plan: local batch 8 in each of 2 micro-batches, global batch 32 on 2 ranks; "));
  EXPECT_EQ(count(text, "training plan: "), 1) << "no warning: " << text;
  EXPECT_GT(last_after(text, "step 0 of 201 loss "), 5) << "256 characters are alike at first: their logarithm is 5.5";
  EXPECT_LT(last_after(text, " of 201 loss "), 1) << "four words, of five characters each: 0.3 for each one";
  const auto sample = text.substr(text.rfind("step 201"));
  for (const auto* word : {"red", "fish", "swim", "home", ".\n"})
    EXPECT_GE(count(sample, word), 3) << word << " in " << sample;
}

TEST_F(CharGpt, AskedToStopItGoesOnToTheBit) {
  auto straight = start("straight", 61);
  ASSERT_EQ(straight.finish(kLimit), 0) << straight.text();

  auto stopped = start("resumed", 61);
  stopped.read_until(" of 61 loss ", 2, kLimit);
  stopped.signal(SIGTERM);
  ASSERT_EQ(stopped.finish(kLimit), 0) << stopped.text();
  ASSERT_LT(last_after(stopped.text(), "checkpoint: saved char_gpt.pt, epoch 0, step "), 61) << "it was over";

  auto resumed = start("resumed", 61);
  ASSERT_EQ(resumed.finish(kLimit), 0) << resumed.text();
  EXPECT_TRUE(contains(resumed.text(), "checkpoint: char_gpt.pt loaded, the run goes on with epoch 0, step "));
  EXPECT_TRUE(checkpoint("resumed") == checkpoint("straight")) << "the files differ";
}

}  // namespace
}  // namespace ddp::testing
