#include "ddp/state_dict.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <torch/torch.h>

#include <string>

#include "ddp/error.hpp"
#include "support/temp_folder.hpp"
#include "support/text.hpp"
#include "support/thrown.hpp"

namespace ddp {
namespace {

using testing::contains;
using testing::error_of;
using testing::TempFolder;

torch::nn::Sequential net_of(std::uint64_t seed) {
  torch::manual_seed(seed);
  torch::nn::Sequential net;
  net->push_back(torch::nn::Linear(4, 3));
  net->push_back(torch::nn::BatchNorm1d(3));
  return net;
}

void expect_same(const torch::nn::Module& a, const torch::nn::Module& b) {
  for (const auto& entry : a.named_parameters())
    EXPECT_TRUE(torch::equal(entry.value(), b.named_parameters()[entry.key()]));
  for (const auto& entry : a.named_buffers()) EXPECT_TRUE(torch::equal(entry.value(), b.named_buffers()[entry.key()]));
}

TEST(StateDict, GoesThroughAFileIntoAnotherModule) {
  const TempFolder folder;
  auto saved = net_of(1), loaded = net_of(2);
  saved->forward(torch::randn({5, 4}));
  save_pt(folder / "net.pt", state_dict(*saved));
  load_state_dict(*loaded, load_pt(folder / "net.pt"));
  expect_same(*loaded, *saved);
  EXPECT_EQ(folder.files(), std::vector<std::string>{"net.pt"});
}

TEST(StateDict, MayHaveThePrefixOfPythonsWrapper) {
  auto saved = net_of(1), loaded = net_of(2);
  c10::impl::GenericDict wrapped(c10::AnyType::get(), c10::AnyType::get());
  for (const auto& entry : state_dict(*saved).toGenericDict())
    wrapped.insert("module." + entry.key().toStringRef(), entry.value());
  load_state_dict(*loaded, wrapped);
  expect_same(*loaded, *saved);
}

TEST(StateDict, KeepsThePrefixThatTheModuleHasItself) {
  struct Holder : torch::nn::Module {
    explicit Holder(std::uint64_t seed) { register_module("module", net_of(seed).ptr()); }
  };
  Holder saved(1), loaded(2);
  load_state_dict(loaded, state_dict(saved));
  expect_same(loaded, saved);
}

TEST(StateDict, OfAnotherModuleChangesNothing) {
  auto net = net_of(1);
  const auto before = net_of(1);
  auto state = state_dict(*net_of(2)).toGenericDict();
  state.insert_or_assign("0.bias", torch::zeros({4}));
  const auto text = error_of<CheckpointError>([&] { load_state_dict(*net, state); });
  EXPECT_TRUE(contains(text, "0.bias is Float [4] in the file and Float [3] here"));
  expect_same(*net, *before);
  EXPECT_TRUE(contains(error_of<CheckpointError>([&] { load_state_dict(*net, c10::IValue(5)); }),
                       "it is an int, where a dict"));
}

TEST(StateDict, OfAnOptimizerFitsOneWithAsManyParameters) {
  auto net = net_of(1);
  torch::optim::Adam saved(net->parameters(), 0.25), loaded(net->parameters(), 0.5);
  net->forward(torch::randn({5, 4})).sum().backward();
  saved.step();
  load_state_dict(loaded, state_dict(saved));
  EXPECT_EQ(loaded.param_groups()[0].options().get_lr(), 0.25);
  EXPECT_EQ(loaded.state().size(), 4U);
  torch::optim::Adam one({net->parameters()[0]});
  EXPECT_TRUE(
      contains(error_of<CheckpointError>([&] { load_state_dict(one, state_dict(saved)); }), "parameter 1 of group 0"));
  torch::optim::SGD other(net->parameters(), 0.1);
  EXPECT_TRUE(contains(error_of<CheckpointError>([&] { load_state_dict(other, state_dict(saved)); }),
                       "torch::optim::Adam where the run here has torch::optim::SGD"));
}

TEST(StateDict, NamesTheFileThatIsNotThereOrNone) {
  const TempFolder folder;
  EXPECT_TRUE(contains(error_of<CheckpointError>([&] { load_pt(folder / "gone.pt"); }), "gone.pt does not exist"));
  EXPECT_TRUE(contains(error_of<CheckpointError>([&] { load_pt(folder / "gone/run.pt"); }), "No such file"));
  testing::overwrite(folder / "text.pt", "some text");
  EXPECT_TRUE(
      contains(error_of<CheckpointError>([&] { load_pt(folder / "text.pt"); }), "text.pt: it is no zip archive"));
  EXPECT_TRUE(contains(error_of<CheckpointError>([&] { save_pt(folder / "gone/run.pt", 5); }), "No such file"));
}

TEST(StateDict, IsNotReadFromAPipeNorWrittenFromAListInItself) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe.pt").c_str(), 0600), 0);
  EXPECT_TRUE(contains(error_of<CheckpointError>([&] { load_pt(folder / "pipe.pt"); }), "is not a file"));
  EXPECT_TRUE(contains(error_of<CheckpointError>([&] { save_pt(folder / "pipe.pt", 5); }), "is not a file"));
  c10::impl::GenericList list(c10::AnyType::get());
  list.push_back(list);
  EXPECT_TRUE(contains(error_of<CheckpointError>([&] { save_pt(folder / "list.pt", list); }), "so deep"));
  list.clear();
}

TEST(StateDict, LetsAViewGoWithoutTheRestOfItsStorage) {
  const TempFolder folder;
  save_pt(folder / "view.pt", torch::arange(1 << 20).slice(0, 5, 8));
  EXPECT_LT(std::filesystem::file_size(folder / "view.pt"), 1U << 13);
  EXPECT_EQ(load_pt(folder / "view.pt").toTensor()[2].item<std::int64_t>(), 7);
}

}  // namespace
}  // namespace ddp
