#include "base/frame_names.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <map>
#include <memory>
#include <typeinfo>
#include <vector>

namespace ddp {
namespace {

/// Neither exported nor in the dynamic symbol table.
[[gnu::noinline]] int function_of_this_file(int number) { return number + getpid(); }

template <class T>
std::uintptr_t address_of(T* function) {
  return reinterpret_cast<std::uintptr_t>(function);
}

TEST(FrameNames, AFunctionThatIsNotExportedHasItsName) {
  const std::array addresses{address_of(&function_of_this_file) + 1};
  const auto line = frame_names(addresses)[0];
  EXPECT_EQ(line.find("ddp::(anonymous namespace)::function_of_this_file(int) in unit_base(+0x"), 0u) << line;
  EXPECT_EQ(line.back(), ')');
}

TEST(FrameNames, LinesComeInTheOrderOfTheAddresses) {
  const std::array<std::uintptr_t, 4> addresses{0x10, address_of(&function_of_this_file), 0x7, 0x10};
  const auto lines = frame_names(addresses);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0], "0x10");
  EXPECT_NE(lines[1].find("function_of_this_file"), std::string::npos) << lines[1];
  EXPECT_EQ(lines[2], "0x7");
  EXPECT_EQ(lines[3], "0x10");
  EXPECT_TRUE(frame_names({}).empty());
}

TEST(ReadableName, IsDemangledOrLeftAsItIs) {
  EXPECT_EQ(readable_name("_ZN3ddp5trainERi"), "ddp::train(int&)");
  EXPECT_EQ(readable_name("epoll_wait"), "epoll_wait");
  EXPECT_EQ(readable_name("_Znonsense"), "_Znonsense");
  EXPECT_EQ(readable_name(""), "");
}

using Long = std::map<std::string, std::vector<std::unique_ptr<std::map<int, std::string>>>>;
template <class... T>
struct Step {
  template <class U>
  struct Inner {};
};
struct Named {};

TEST(ReadableName, LongTemplatesLoseTheirArgumentsFirst) {
  EXPECT_EQ(readable_name(typeid(Step<Long, Long>::Inner<Long>).name()),
            "ddp::(anonymous namespace)::Step<...>::Inner<...>");
  EXPECT_EQ(readable_name(typeid(Step<int>::Inner<Named>).name()),
            "ddp::(anonymous namespace)::Step<int>::Inner<ddp::(anonymous namespace)::Named>");
}

TEST(ReadableName, ThenFunctionsLoseTheirs) {
  std::string many = "_ZN3ddp4stepE";
  for (int i = 0; i < 30; ++i) many += "PKcS1_";
  EXPECT_EQ(readable_name(many), "ddp::step(...)");
}

TEST(ReadableName, OperatorsAreNoBrackets) {
  const std::string arguments = "IJ" + std::string(100, 'i') + "EE";  // 100 ints
  EXPECT_EQ(readable_name("_ZN4ListI" + arguments.substr(1) + "lsEi"), "List<...>::operator<<(int)");
  EXPECT_EQ(readable_name("_ZN4ListI" + arguments.substr(1) + "ptEv"), "List<...>::operator->()");
  EXPECT_EQ(readable_name("_ZN4ListI" + arguments.substr(1) + "clEi"), "List<...>::operator()(int)");
}

TEST(ReadableName, AtLastItIsCutOff) {
  const auto cut = readable_name("_Z900" + std::string(900, 'a') + "v");
  EXPECT_EQ(cut, std::string(117, 'a') + "...");
  EXPECT_EQ(readable_name(std::string(20000, 'b')).size(), 120u);
}

}  // namespace
}  // namespace ddp
