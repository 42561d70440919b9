#include "base/replaced_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "support/temp_folder.hpp"

namespace ddp {
namespace {

using Names = std::vector<std::string>;
using testing::contents;
using testing::TempFolder;

void write(const ReplacedFile& file, std::string_view text) {
  ASSERT_EQ(::write(file.descriptor(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

int replace(const std::string& path, std::string_view text) {
  ReplacedFile file(path.c_str());
  if (const int error = file.open(); error != 0) return error;
  write(file, text);
  return file.commit();
}

TEST(ReplacedFile, AppearsCompleteAndForItsOwnerAlone) {
  const TempFolder folder;
  const std::string path = folder / "a";
  ReplacedFile file(path.c_str());
  ASSERT_EQ(file.open(), 0);
  write(file, "text");
  EXPECT_FALSE(std::filesystem::exists(path));
  ASSERT_EQ(file.commit(), 0);
  EXPECT_EQ(contents(path), "text");
  struct stat status{};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  EXPECT_EQ(folder.files(), Names{"a"});
}

TEST(ReplacedFile, ReplacesTheFormerOne) {
  const TempFolder folder;
  EXPECT_EQ(replace(folder / "a", "first, which is longer"), 0);
  EXPECT_EQ(replace(folder / "a", "second"), 0);
  EXPECT_EQ(contents(folder / "a"), "second");
  EXPECT_EQ(folder.files(), Names{"a"});
}

TEST(ReplacedFile, LeavesNothingWithoutACommit) {
  const TempFolder folder;
  const std::string path = folder / "a";
  ASSERT_EQ(replace(path, "kept"), 0);
  {
    ReplacedFile file(path.c_str());
    ASSERT_EQ(file.open(), 0);
    write(file, "half");
    EXPECT_EQ(folder.files().size(), 2U);
  }
  EXPECT_EQ(folder.files(), Names{"a"});
  EXPECT_EQ(contents(path), "kept");
}

TEST(ReplacedFile, FollowsNoLinkInItsPlace) {
  const TempFolder folder;
  testing::overwrite(folder / "victim", "untouched");
  std::filesystem::create_symlink(folder / "victim", folder / "a");
  EXPECT_EQ(replace(folder / "a", "text"), 0);
  EXPECT_EQ(contents(folder / "victim"), "untouched");
  EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(folder / "a")));
  EXPECT_EQ(contents(folder / "a"), "text");
}

TEST(ReplacedFile, SaysWhyItCannotBe) {
  const TempFolder folder;
  EXPECT_EQ(replace(folder / "none/a", ""), ENOENT);
  std::filesystem::create_directory(folder / "taken");
  EXPECT_EQ(replace(folder / "taken", ""), EISDIR);
  EXPECT_EQ(replace(folder / std::string(250, 'x'), ""), ENAMETOOLONG);
  EXPECT_EQ(replace('/' + std::string(5000, 'x'), ""), ENAMETOOLONG);
  EXPECT_EQ(folder.files(), Names{"taken"});
}

}  // namespace
}  // namespace ddp
