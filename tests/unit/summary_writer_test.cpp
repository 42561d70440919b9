// A world of one. tests/ranks has several, and tests/interop/event_files.py reads the files with tensorboard itself.
#include "ddp/summary_writer.hpp"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <stdexcept>
#include <string>

#include "ddp/error.hpp"
#include "ddp/process_group.hpp"
#include "support/temp_folder.hpp"
#include "support/text.hpp"
#include "support/thrown.hpp"
#include "unit/log_heard.hpp"

namespace ddp {
namespace {

using ::ddp::testing::contains;
using ::ddp::testing::contents;
using ::ddp::testing::count;
using ::ddp::testing::error_of;
using ::ddp::testing::heard;
using ::ddp::testing::TempFolder;
using std::chrono::hours;
using std::chrono::milliseconds;

std::shared_ptr<ProcessGroup> alone() { return init_process_group({.environment = Environment{}}); }

class SummaryWriterTest : public ::testing::Test {
 protected:
  SummaryWriter writer(const SummaryWriterOptions& options = {}) const {
    return {folder.path() / "run", *group, options};
  }

  const TempFolder folder;
  const std::shared_ptr<ProcessGroup> group = alone();
};

TEST_F(SummaryWriterTest, MakesItsFolderAndAFileOfItsOwn) {
  const auto a = writer(), b = writer({.filename_suffix = ".b"});
  EXPECT_NE(a.file(), b.file());
  EXPECT_EQ(a.file().parent_path(), folder.path() / "run");
  EXPECT_TRUE(b.file().string().ends_with(".b"));
  EXPECT_TRUE(contains(contents(a.file()), "brain.Event:2")) << "it is there before anything is added";
}

TEST_F(SummaryWriterTest, WritesAtOnceOrLaterOrWhenFlushedOrDestroyed) {
  auto at_once = writer({.flush_interval = milliseconds(0)});
  at_once.add_scalar("loss", 1, 1);
  EXPECT_TRUE(contains(contents(at_once.file()), "loss"));

  std::filesystem::path file;
  {
    auto later = writer({.flush_interval = hours(1)});
    file = later.file();
    later.add_scalar("first", 1, 1);
    EXPECT_FALSE(contains(contents(file), "first"));
    later.flush();
    EXPECT_TRUE(contains(contents(file), "first"));
    later.add_scalar("second", 1, 1);
    later = writer();
    EXPECT_TRUE(contains(contents(file), "second"));
    file = later.file();
    later.add_text("third", "words", 1);
  }
  EXPECT_TRUE(contains(contents(file), "third"));
}

TEST_F(SummaryWriterTest, WritesScalarsToTheCsvToo) {
  {
    auto own = writer({.csv = true});
    own.add_scalar("loss", 0.1, 3, SummaryWriter::Time(milliseconds(1500)));
    own.add_mean("mean", torch::tensor({1.0, 2.0}).set_requires_grad(true), 4, SummaryWriter::Time());
    own.add_mean("number", 5, 4, SummaryWriter::Time());
  }
  EXPECT_EQ(contents(folder / "run/scalars.csv"),
            "wall_time,step,tag,value\n1.500000,3,loss,0.1\n0.000000,4,mean,1.5\n0.000000,4,number,5\n");
}

TEST_F(SummaryWriterTest, AFolderThatCannotBeMadeIsAConfigError) {
  ::ddp::testing::overwrite(folder / "file", "");
  EXPECT_EQ(error_of<ConfigError>([&] { SummaryWriter(folder / "file/run", *group); }),
            "rank 0 of 1: SummaryWriter: the folder \"" + (folder / "file/run").string() +
                "\" cannot be made: Not a directory; give a folder where this process may write");
  EXPECT_TRUE(
      contains(error_of<ConfigError>([&] { SummaryWriter("/proc", *group); }), "SummaryWriter: the file \"/proc/"));
}

TEST_F(SummaryWriterTest, RefusesWhatDoesNotFit) {
  auto own = writer();
  EXPECT_EQ(error_of([&] { own.add_scalar("", 1, 1); }), "SummaryWriter: the tag is empty");
  EXPECT_TRUE(
      contains(error_of([&] { own.add_histogram("grad", at::Tensor(), 1); }), "\"grad\": the tensor is undefined"));
  EXPECT_TRUE(contains(error_of([&] { own.add_histogram("c", torch::ones(2, torch::kComplexFloat), 1); }), "real"));
  for (const auto& image : {at::Tensor(), torch::ones({2, 2}), torch::ones({2, 4, 4}), torch::ones({3, 0, 4})}) {
    EXPECT_TRUE(contains(error_of([&] { own.add_image("i", image, 1); }), "\"i\": an image is a tensor [1,"));
  }
  EXPECT_TRUE(contains(error_of([&] { own.add_image("i", torch::ones({1, 2, 2}, torch::kInt), 1); }), "uint8"));
}

TEST_F(SummaryWriterTest, SaysInWordsWhatAHistogramLeavesOut) {
  const auto text = heard([&] {
    auto own = writer();
    for (int i = 0; i < 2; ++i) {
      own.add_histogram("some", torch::tensor({1.0, std::nan(""), HUGE_VAL, 2.0}), i);
      own.add_histogram("none", torch::full(3, NAN), i);
      own.add_histogram("empty", torch::empty(0), i);
      own.add_histogram("fine", torch::ones(3), i);
    }
  });
  EXPECT_EQ(count(text, "the histogram \"some\" leaves out 2 of 4 elements, which are infinite or not a number"), 1);
  EXPECT_EQ(count(text, "the histogram \"none\" is left out: all its 3 elements are infinite or not a number"), 1);
  EXPECT_EQ(count(text, "the histogram \"empty\" is left out: the tensor has no elements"), 1);
  EXPECT_EQ(count(text, "histogram"), 3) << text;
}

TEST_F(SummaryWriterTest, LeavesTensorsAsTheyAre) {
  auto own = writer();
  const auto values = torch::tensor({1.0, 2.0, 3.0}).set_requires_grad(true);
  own.add_histogram("h", values * 2, 1);
  const auto image = torch::tensor({-1.0F, 0.5F, 2.0F, NAN}).view({1, 2, 2});
  const auto before = image.clone();
  own.add_image("i", image, 1);
  EXPECT_TRUE(torch::equal(image.nan_to_num(), before.nan_to_num()));
  EXPECT_FALSE(values.grad().defined());
}

}  // namespace
}  // namespace ddp
