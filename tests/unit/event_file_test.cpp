// TensorBoard's files, down to their bytes. tests/interop/event_files.py reads them with tensorboard itself.
#include "report/event_file.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "report/crc32c.hpp"
#include "report/event.hpp"
#include "report/protobuf.hpp"
#include "report/tf_record.hpp"
#include "support/temp_folder.hpp"
#include "support/text.hpp"
#include "unit/log_heard.hpp"

namespace ddp::report {
namespace {

using ::ddp::testing::contains;
using ::ddp::testing::contents;
using ::ddp::testing::count;
using ::ddp::testing::heard;
using ::ddp::testing::TempFolder;

/// The messages of a file's records; what is behind the last whole one is an error.
std::vector<std::string> records(const std::string& bytes) {
  std::vector<std::string> messages;
  for (std::size_t at = 0; at < bytes.size();) {
    std::uint64_t length = 0;
    if (bytes.size() - at < 16) return {"torn"};
    std::memcpy(&length, bytes.data() + at, sizeof length);
    if (length > bytes.size() - at - 16) return {"torn"};
    messages.push_back(bytes.substr(at + 12, length));
    at += length + 16;
  }
  return messages;
}

void limit_file_size(rlim_t bytes) {
  rlimit limit{};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  limit.rlim_cur = bytes;
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

TEST(Crc32c, HasTheValuesOfRfc3720) {
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43U);
  std::string ascending;
  for (char byte = 0; byte < 32; ++byte) ascending += byte;
  EXPECT_EQ(crc32c(ascending), 0x46DD794EU);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
}

TEST(ProtobufMessage, WritesTheExamplesOfItsSpecification) {
  EXPECT_EQ(ProtobufMessage().integer(1, 150).bytes(), "\x08\x96\x01");
  EXPECT_EQ(ProtobufMessage().text(2, "testing").bytes(), "\x12\x07testing");
  EXPECT_EQ(ProtobufMessage().message(3, ProtobufMessage().integer(1, 150)).bytes(), "\x1a\x03\x08\x96\x01");
  EXPECT_EQ(ProtobufMessage().integer(1, -2).bytes(), "\x08\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01");
  EXPECT_EQ(ProtobufMessage().float32(2, 1).bytes(), std::string("\x15\0\0\x80\x3f", 5));
  EXPECT_EQ(ProtobufMessage().float64(1, 1).bytes(), std::string("\x09\0\0\0\0\0\0\xf0\x3f", 9));
  const std::array<double, 2> values{1, 0};
  EXPECT_EQ(ProtobufMessage().packed(6, values).bytes(),
            std::string("\x32\x10\0\0\0\0\0\0\xf0\x3f", 10) + std::string(8, '\0'));
}

TEST(TfRecord, IsWhatTensorFlowWrites) {
  // The first record of a file by TensorFlow's own writer: an event of a time and "brain.Event:2".
  const std::string event(
      "\x09\0\0\0\0\0\0\xf0\x3f\x1a\x0d"
      "brain.Event:2",
      24);
  EXPECT_EQ(version_event(1), event);
  const auto record = tf_record(event);
  EXPECT_EQ(record.substr(0, 12), std::string("\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22", 12));
  EXPECT_EQ(record.substr(12, event.size()), event);
  EXPECT_EQ(record.size(), event.size() + 16);
}

TEST(EventFile, HasANameThatTensorBoardKnowsAndNoTwoAreOne) {
  const TempFolder folder;
  const EventFile a(folder.path(), ".x"), b(folder.path(), ".x");
  EXPECT_NE(a.path(), b.path());
  for (const auto* file : {&a, &b}) {
    EXPECT_TRUE(contains(file->path(), (folder / "events.out.tfevents.1").string()))
        << "a time of today has ten digits";
    EXPECT_TRUE(contains(file->path(), "." + std::to_string(::getpid()) + "."));
    EXPECT_TRUE(file->path().ends_with(".x"));
  }
  EXPECT_EQ(folder.files().size(), 2U);
}

TEST(EventFile, HoldsWhatWasFlushedWhateverBecomesOfTheProcess) {
  const TempFolder folder;
  heard([&] {
    EventFile file(folder.path(), "");
    file.append("one");
    file.append("two");
    file.flush();
    file.append("three");
    ::_exit(0);
  });
  EXPECT_EQ(records(contents(folder / folder.files().at(0))), (std::vector<std::string>{"one", "two"}));
}

TEST(EventFile, AForkedChildsCopyWritesNothing) {
  const TempFolder folder;
  {
    EventFile file(folder.path(), "");
    file.append("one");
    const pid_t child = ::fork();
    if (child == 0) {
      file.append("the child's");
      file.flush();
      ::_exit(0);
    }
    ::waitpid(child, nullptr, 0);
    file.append("two");
  }
  EXPECT_EQ(records(contents(folder / folder.files().at(0))), (std::vector<std::string>{"one", "two"}));
}

TEST(EventFile, AFullDiskIsSaidOnceAndTheFileHoldsWholeRecords) {
  const TempFolder folder;
  const auto text = heard([&] {
    EventFile file(folder.path(), "");
    const auto put = [&](char letter) {
      file.append(std::string(84, letter));  // 100 bytes with its frame
      file.flush();
    };
    put('a');
    limit_file_size(150);
    put('b');
    put('c');
    limit_file_size(1000);
    put('d');
  });
  EXPECT_EQ(records(contents(folder / folder.files().at(0))),
            (std::vector<std::string>{std::string(84, 'a'), std::string(84, 'd')}));
  EXPECT_EQ(count(text, "could not be written: File too large; what it lacks is lost, and the program goes on"), 1)
      << text;
}

TEST(EventFile, AFolderThatIsNotThereIsAnErrorWithItsName) {
  try {
    const EventFile file("/proc/none", "");
    ADD_FAILURE() << "no exception";
  } catch (const std::system_error& error) {
    EXPECT_TRUE(contains(error.what(), "the file \"/proc/none/events.out.tfevents."));
    EXPECT_TRUE(contains(error.what(), "cannot be made: No such file or directory"));
  }
}

}  // namespace
}  // namespace ddp::report
