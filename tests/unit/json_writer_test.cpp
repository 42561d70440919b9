#include "base/json_writer.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <limits>
#include <string>

#include "base/descriptor.hpp"
#include "support/python.hpp"
#include "support/temp_folder.hpp"

namespace ddp {
namespace {

using testing::of_json;

/// A file with what `write` has written.
class Written {
 public:
  explicit Written(const std::function<void(JsonWriter&)>& write) : path_(folder_ / "written.json") {
    const Descriptor file(::open(path_.c_str(), O_WRONLY | O_CREAT, 0600));
    JsonWriter json(file.get());
    write(json);
    EXPECT_EQ(json.finish(), 0);
  }
  std::string text() const { return testing::contents(path_); }
  std::string read(const std::string& expression) const { return of_json(path_, expression); }

 private:
  testing::TempFolder folder_;
  std::string path_;
};

TEST(JsonWriter, WritesObjectsArraysAndEveryKindOfValue) {
  const Written written([](JsonWriter& json) {
    json.begin_object();
    json.field("text", "a");
    json.field("yes", true);
    json.field("no", false);
    json.null_field("nothing");
    json.field("number", -7);
    json.key("list");
    json.begin_array();
    json.value(1U);
    json.new_line();
    json.begin_object();
    json.end_object();
    json.begin_array();
    json.end_array();
    json.end_array();
    json.field("last", std::string_view("b"));
    json.end_object();
  });
  EXPECT_EQ(written.text(),
            "{\"text\":\"a\",\"yes\":true,\"no\":false,\"nothing\":null,\"number\":-7,\"list\":[1,\n{},[]],"
            "\"last\":\"b\"}");
  EXPECT_EQ(written.read("list(d)"), "['text', 'yes', 'no', 'nothing', 'number', 'list', 'last']");
}

TEST(JsonWriter, WritesNumbersToTheirLimits) {
  const Written written([](JsonWriter& json) {
    json.begin_array();
    json.value(std::numeric_limits<std::int64_t>::min());
    json.value(std::numeric_limits<std::int64_t>::max());
    json.value(std::numeric_limits<std::uint64_t>::max());
    json.value(0);
    json.end_array();
  });
  EXPECT_EQ(written.read("d"), "[-9223372036854775808, 9223372036854775807, 18446744073709551615, 0]");
}

TEST(JsonWriter, WritesTimesInSeconds) {
  using std::chrono::nanoseconds;
  const Written written([](JsonWriter& json) {
    json.begin_array();
    for (const auto time : {nanoseconds(0), nanoseconds(1'500'000'000), nanoseconds(-1'000'001'000),
                            nanoseconds(1'732'900'000'000'001'999), nanoseconds(-999)})
      json.value(time);
    json.end_array();
  });
  EXPECT_EQ(written.text(), "[0.000000,1.500000,-1.000001,1732900000.000001,0.000000]");
}

TEST(JsonWriter, EscapesWhatJsonDoesNotTake) {
  std::string hostile = "quote \" back \\ line \n";
  for (char byte = 0; byte < 0x20; ++byte) hostile += byte;
  hostile += "\x7f</script>";
  const Written written([&](JsonWriter& json) {
    json.begin_object();
    json.field(hostile, std::string_view(hostile));
    json.end_object();
  });
  EXPECT_EQ(
      written.read("[[ord(c) for c in text] for text in list(d.items())[0]] == 2 * [[*b'quote \" back \\\\ line ', "
                   "10, *range(32), 127, *b'</script>']]"),
      "True");
}

TEST(JsonWriter, KeepsUtf8AndReplacesWhatIsNone) {
  const auto read_of = [](const std::string& text) {
    const Written written([&](JsonWriter& json) { json.value(std::string_view(text)); });
    return written.read("[hex(ord(c)) for c in d]");
  };
  EXPECT_EQ(read_of("\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"), "['0xe9', '0x20ac', '0x1f600']");
  EXPECT_EQ(read_of("\xF4\x8F\xBF\xBF\xED\x9F\xBF\xEE\x80\x80"), "['0x10ffff', '0xd7ff', '0xe000']");
  EXPECT_EQ(read_of("a\x80z"), "['0x61', '0xfffd', '0x7a']") << "a continuation alone";
  EXPECT_EQ(read_of("a\xE2\x82"), "['0x61', '0xfffd', '0xfffd']") << "cut";
  EXPECT_EQ(read_of("\xE2\x82z"), "['0xfffd', '0xfffd', '0x7a']") << "cut in the middle";
  EXPECT_EQ(read_of("\xC0\xAF"), "['0xfffd', '0xfffd']") << "too long a form";
  EXPECT_EQ(read_of("\xE0\x9F\xBF"), "['0xfffd', '0xfffd', '0xfffd']") << "too long a form";
  EXPECT_EQ(read_of("\xED\xA0\x80"), "['0xfffd', '0xfffd', '0xfffd']") << "half of a surrogate pair";
  EXPECT_EQ(read_of("\xF0\x8F\xBF\xBF"), "['0xfffd', '0xfffd', '0xfffd', '0xfffd']") << "too long a form";
  EXPECT_EQ(read_of("\xF4\x90\x80\x80"), "['0xfffd', '0xfffd', '0xfffd', '0xfffd']") << "past the end";
  EXPECT_EQ(read_of("\xF5\xFF"), "['0xfffd', '0xfffd']") << "bytes that UTF-8 does not have";
}

TEST(JsonWriter, WritesMoreThanItHoldsBack) {
  const Written written([](JsonWriter& json) {
    json.begin_array();
    for (int i = 0; i < 10'000; ++i) json.value("\xE2\x82\xAC");
    json.end_array();
  });
  EXPECT_EQ(written.read("[len(d), set(d) == {chr(0x20ac)}]"), "[10000, True]");
}

TEST(JsonWriter, KeepsTheFirstError) {
  const Descriptor full(::open("/dev/full", O_WRONLY));
  JsonWriter json(full.get());
  json.begin_array();
  for (int i = 0; i < 10'000; ++i) json.value(i);
  json.end_array();
  EXPECT_EQ(json.finish(), ENOSPC);
  JsonWriter nowhere(-1);
  nowhere.null();
  EXPECT_EQ(nowhere.finish(), EBADF);
}

}  // namespace
}  // namespace ddp
