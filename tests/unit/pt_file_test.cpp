// What a .pt file holds, there and back.

#include "train/checkpoint/pt_file.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "pickle_source.hpp"
#include "support/text.hpp"
#include "support/thrown.hpp"

namespace ddp::checkpoint {
namespace {

using namespace ddp::testing;

std::shared_ptr<std::string> bytes_of(const Value& value, const ModuleTree* module = nullptr) {
  auto bytes = std::make_shared<std::string>();
  write_pt(value, {.module = module}, [&](std::string_view part) { *bytes += part; });
  return bytes;
}

Value there_and_back(const Value& value) { return read_pt(bytes_of(value)); }

TEST(PtFile, KeepsEveryKindOfValue) {
  auto dict = empty_dict();
  dict.insert("none", Value());
  dict.insert("true", true);
  dict.insert("text", "h\u00e4llo\n");
  dict.insert(7, "a key that is a number");
  for (const std::int64_t number : {0L, 255L, 256L, -1L, 2147483648L, std::numeric_limits<std::int64_t>::min()})
    dict.insert("int " + std::to_string(number), number);
  dict.insert("float", 0.1);
  dict.insert("complex", c10::complex<double>(1.5, -2));
  dict.insert("infinity", -std::numeric_limits<double>::infinity());
  dict.insert("tuple", c10::ivalue::Tuple::create(std::vector<Value>{1, "b", Value()}));
  auto list = empty_list();
  for (int i = 0; i < 2500; ++i) list.push_back(i);
  dict.insert("list", list);
  dict.insert("empty", empty_list());
  const Place read(there_and_back(dict), "");
  EXPECT_EQ(read.dict().size(), dict.size());
  EXPECT_EQ(hash_of(read.value()), hash_of(dict));
  EXPECT_EQ(read.at("text").text(), "h\u00e4llo\n");
  EXPECT_EQ(read.at("list").items()[2499].integer(), 2499);
  EXPECT_EQ(read.dict().at(7).toStringRef(), "a key that is a number");
}

TEST(PtFile, KeepsTensorsOfEveryDtypeAndLayout) {
  const std::vector<at::ScalarType> dtypes{
      at::kFloat,  at::kDouble, at::kHalf,          at::kBFloat16,      at::kLong,         at::kInt,
      at::kShort,  at::kChar,   at::kByte,          at::kBool,          at::kComplexFloat, at::kUInt16,
      at::kUInt32, at::kUInt64, at::kComplexDouble, at::kFloat8_e4m3fn, at::kFloat8_e5m2};
  auto list = empty_list();
  for (const auto dtype : dtypes) list.push_back(at::arange(12, at::kFloat).view({3, 4}).to(dtype));
  list.push_back(at::arange(12, at::kFloat).view({3, 4}).t());
  list.push_back(at::zeros({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast));
  list.push_back(at::zeros({3, 0, 2}));
  list.push_back(at::scalar_tensor(5));
  const auto read = there_and_back(list);
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto &saved = list.get(i).toTensor(), loaded = read.toListRef()[i].toTensor();
    EXPECT_EQ(loaded.scalar_type(), saved.scalar_type());
    EXPECT_EQ(loaded.sizes(), saved.sizes());
    EXPECT_EQ(loaded.strides(), saved.strides());
    EXPECT_EQ(hash_of(loaded), hash_of(saved)) << i;
  }
}

TEST(PtFile, WritesATensorThatComesTwiceOnce) {
  const auto tensor = at::zeros({1 << 16});
  auto list = empty_list();
  list.push_back(tensor);
  const auto once = bytes_of(list)->size();
  list.push_back(tensor);
  EXPECT_LT(bytes_of(list)->size(), once + 100);
  const auto read = there_and_back(list);
  EXPECT_TRUE(read.toListRef()[0].toTensor().is_alias_of(read.toListRef()[1].toTensor()));
}

TEST(PtFile, RefusesToWriteWhatPythonWouldNotRead) {
  const auto sparse = at::zeros({3}).to_sparse();
  EXPECT_TRUE(contains(error_of([&] { bytes_of(sparse); }), "sparse"));
  auto nested = empty_list();
  for (int i = 0; i < 200; ++i) {
    auto outer = empty_list();
    outer.push_back(nested);
    nested = outer;
  }
  EXPECT_TRUE(contains(error_of([&] { bytes_of(nested); }), "so deep"));
  EXPECT_TRUE(contains(error_of([&] { bytes_of(std::string("\xff")); }), "not UTF-8"));
  EXPECT_TRUE(contains(error_of([&] { bytes_of(std::string("\xc0\xaf")); }), "not UTF-8"));
  EXPECT_TRUE(contains(error_of([&] { bytes_of(std::string("\xe2\x82")); }), "not UTF-8"));
  auto dict = empty_dict();
  dict.insert(at::zeros({1}), 1);
  EXPECT_TRUE(contains(error_of([&] { bytes_of(dict); }), "a tensor as a dict's key"));
}

TEST(PtFile, IsNotWrittenWhereItWouldNotBeRead) {
  auto nested = empty_list();
  int deepest = 0;
  for (; error_of([&] { bytes_of(nested); }) == "no error"; ++deepest) {
    EXPECT_EQ(error_of([&] { there_and_back(nested); }), "no error") << deepest;
    auto outer = empty_list();
    outer.push_back(nested);
    nested = outer;
  }
  EXPECT_GT(deepest, 50);
  auto many = empty_list();
  for (int i = 0; i < (1 << 20) - 1; ++i) many.push_back(empty_list());
  EXPECT_EQ(error_of([&] { there_and_back(many); }), "no error");
  many.push_back(empty_list());
  EXPECT_TRUE(contains(error_of([&] { bytes_of(many); }), "more than a million lists, dicts and tensors"));
}

ModuleTree layers(int count) {
  ModuleTree root;
  for (int i = 0; i < count; ++i) {
    ModuleTree layer;
    layer.tensors = {{"weight", at::full({1}, i)}, {"bias", at::zeros({1})}};
    root.children.emplace_back("layer" + std::to_string(i), layer);
  }
  return root;
}

TEST(PtFile, GrowsWithTheModulesAsTheirNumber) {
  const auto some = layers(100), more = layers(1000);
  EXPECT_LT(bytes_of(empty_dict(), &more)->size(), 11 * bytes_of(empty_dict(), &some)->size());
}

TEST(PtFile, IsReadableForLibTorchWhereModulesAreOfManyKinds) {
  ModuleTree tree;
  struct Node : torch::nn::Module {};
  const auto net = std::make_shared<Node>();
  for (int i = 0; i < 20; ++i) {
    const auto name = "t" + std::to_string(i);
    const auto child = net->register_module("m" + std::to_string(i), std::make_shared<Node>());
    child->register_parameter(name, torch::zeros({2}));
    tree.children.push_back(
        {"m" + std::to_string(i), {.tensors = {{name, torch::full({2}, static_cast<double>(i))}}, .children = {}}});
  }
  const auto bytes = bytes_of(empty_dict(), &tree);
  torch::serialize::InputArchive archive;
  archive.load_from(bytes->data(), bytes->size());
  net->load(archive);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(net->parameters()[static_cast<std::size_t>(i)][0].item<int>(), i);
}

struct OddlyNamedImpl : torch::nn::Module {
  explicit OddlyNamedImpl(const std::string& name) { register_parameter(name, torch::ones({2})); }
};

TEST(PtFile, IsReadableForLibTorchWhateverTheModulesNamesAreOfPlainCharacters) {
  for (const std::string name : {"weight", "0", "class", "a-b", "def", "None", "__x__", "'", "#", "training"}) {
    OddlyNamedImpl saved(name), loaded(name);
    ModuleTree tree{.tensors = {{name, torch::full({2}, 5.0)}}, .children = {}};
    const auto bytes = bytes_of(empty_dict(), &tree);
    torch::serialize::InputArchive archive;
    archive.load_from(bytes->data(), bytes->size());
    loaded.load(archive);
    EXPECT_EQ(loaded.parameters()[0].sum().item<double>(), 10) << name;
    EXPECT_TRUE(read_pt(bytes).isGenericDict());
  }
}

TEST(PtFile, ReadsWhatPythonWritesForSomeValues) {
  const auto value_of = [](const std::string& body) { return read_pt(file_of(body, std::string(16, '\0'))); };
  EXPECT_EQ(value_of(global_op("torch", "float32")).toStringRef(), "torch.float32");
  EXPECT_EQ(value_of(global_op("torch", "device") + "(" + text_op("cuda") + "tR").toStringRef(), "cuda");
  EXPECT_EQ(value_of(global_op("torch", "Size") + "(" + ints_op({2, 3}) + "tR").toTupleRef().elements()[1].toInt(), 3);
  EXPECT_EQ(
      value_of(global_op("_codecs", "encode") + "(" + text_op("\xc3\xbf\x01") + text_op("latin1") + "tR").toStringRef(),
      "\xff\x01");
  EXPECT_EQ(value_of(int_op(-5)).toInt(), -5);
  EXPECT_EQ(value_of(std::string("\x8a\x01\xfb", 3)).toInt(), -5);
  EXPECT_EQ(value_of(std::string("\x8a\x00", 2)).toInt(), 0);
  EXPECT_EQ(value_of(TensorOp().body()).toTensor().numel(), 4);
  EXPECT_EQ(value_of(global_op("collections", "OrderedDict") + ")R(" + text_op("a") + "K\x01u}" + text_op("_metadata") +
                     "}sb")
                .toGenericDict()
                .size(),
            1U);
}

}  // namespace
}  // namespace ddp::checkpoint
