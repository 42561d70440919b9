// Files that somebody has damaged, or made on purpose: an error, never a crash and never much memory.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <algorithm>
#include <random>
#include <string>

#include "pickle_source.hpp"
#include "support/text.hpp"
#include "support/thrown.hpp"
#include "train/checkpoint/pt_file.hpp"

namespace ddp::checkpoint {
namespace {

using namespace ddp::testing;

std::string error_in(const std::string& body, const std::string& storage = std::string(16, '\0')) {
  return error_of([&] { read_pt(file_of(body, storage)); });
}

std::string times(const std::string& body, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += body;
  return all;
}

// A file of some hundred bytes or a megabyte takes no more. AddressSanitizer keeps up to 256 MiB of what is freed.
#ifdef __SANITIZE_ADDRESS__
constexpr long kMostMemoryKib = (256 + 256) * 1024;
#else
constexpr long kMostMemoryKib = 256 * 1024;
#endif

long peak_memory_kib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

TEST(HostileFile, RunsNothing) {
  const auto call = "(" + text_op("echo") + "tR";
  EXPECT_TRUE(contains(error_in(global_op("os", "system") + call), "it uses os.system, which is neither"));
  EXPECT_TRUE(contains(error_in(global_op("builtins", "eval") + call), "builtins.eval"));
  EXPECT_TRUE(contains(error_in(global_op("__torch__", "Net") + ")\x81"), "__torch__.Net"));
  EXPECT_TRUE(contains(error_in(text_op("f") + call), "calls what is no class or function"));
}

TEST(HostileFile, HasOnlyOpcodesOfTorchSave) {
  for (const int op : std::initializer_list<int>{'I', 'L', 'S', 'V', 'F', 'i', 'o', 'P', 'p', 'g', '2', '0', '1', 'l',
                                                 'd', 0x82, 0x8b, 0x93, 0x95})
    EXPECT_TRUE(contains(error_in(std::string(1, static_cast<char>(op))), "opcode " + std::to_string(op))) << op;
}

TEST(HostileFile, TakesNothingFromAnEmptyStack) {
  for (const auto* body : {"",  "R",  "b",  "s",     "u",     "a",        "e",  "t",    "\x85", "\x86", "\x87",
                           "Q", "(u", "(e", "q\x01", "h\x01", "}(K\x01u", "](", "\x81", "((((", ")R",   "K\x01K\x02s"})
    EXPECT_NE(error_in(body), "no error") << body;
}

TEST(HostileFile, EndsInTheMiddleOfAValue) {
  const auto whole = "}(" + text_op("t") + TensorOp().body() + text_op("n") + int_op(5) + "u";
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const auto file =
        archive_of({{"data.pkl", "\x80\x02" + whole.substr(0, length)}, {"data/0", std::string(16, 'x')}});
    EXPECT_TRUE(contains(error_of([&] { read_pt(file); }), "it")) << length;
  }
}

TEST(HostileFile, HasATensorThatDoesNotLieInItsStorage) {
  const auto error = [](const TensorOp& tensor) { return error_in(tensor.body()); };
  constexpr std::int64_t kHuge = INT64_MAX;
  const std::string larger = "a tensor of it is larger than its storage", other = "with other arguments";
  EXPECT_EQ(error({}), "no error");
  EXPECT_TRUE(contains(error({.offset = 1}), larger));
  EXPECT_TRUE(contains(error({.offset = -1}), other));
  EXPECT_TRUE(contains(error({.offset = kHuge}), larger));
  EXPECT_TRUE(contains(error({.sizes = {5}}), larger));
  EXPECT_EQ(error({.sizes = {kHuge}, .strides = {0}}), "no error");  // as expand() makes them; a view takes no memory
  EXPECT_TRUE(contains(error({.sizes = {kHuge, kHuge, 4}, .strides = {0, 0, 0}}), larger));
  EXPECT_TRUE(contains(error({.sizes = {2}, .strides = {kHuge}}), larger));
  EXPECT_TRUE(contains(error({.sizes = {0, kHuge, kHuge}, .strides = {0, 0, 0}}), larger));
  EXPECT_TRUE(contains(error({.sizes = {-1}}), other));
  EXPECT_TRUE(contains(error({.strides = {-1}}), other));
  EXPECT_TRUE(contains(error({.sizes = {4}, .strides = {}}), other));
  EXPECT_TRUE(contains(error({.type = "DoubleStorage"}), larger));
  EXPECT_TRUE(contains(error({.type = "float32"}), "for a class of storages"));
  EXPECT_TRUE(contains(error({.key = "1"}), "no record \"data/1\""));
  EXPECT_TRUE(contains(error({.key = "../data.pkl"}), "no record"));
}

TEST(HostileFile, HasValuesThatLieTooDeepOrInThemselves) {
  EXPECT_TRUE(contains(error_in(times("]", 500) + times("a", 499)), "too deep"));
  EXPECT_TRUE(contains(error_in("N" + times("\x85", 1000000)), "too deep"));
  EXPECT_TRUE(contains(error_in("]q\x01h\x01" + std::string("a")), "puts a list into itself"));
  EXPECT_TRUE(contains(error_in("}q\x01" + text_op("a") + "h\x01s"), "puts a dict into itself"));
  EXPECT_TRUE(contains(error_in("]q\x01]q\x02h\x01" + std::string("ah\x01h\x02") + "a"), "stands in another one"));
  EXPECT_TRUE(contains(error_in("]q\x01h\x01\x85" + std::string("q\x02h\x01h\x02") + "a"), "stands in another one"));
}

TEST(HostileFile, HasValuesThatContainEachOtherTooOften) {
  std::string lists = "](NNNNNNNNNNe", tuples = "(NNNNNNNNNNt";
  for (int i = 1; i < 40; ++i) {
    const auto again = times("h" + raw(static_cast<std::uint64_t>(i), 1), 10);
    lists += "q" + raw(static_cast<std::uint64_t>(i), 1) + "](" + again + "e";
    tuples += "q" + raw(static_cast<std::uint64_t>(i), 1) + "(" + again + "t";
  }
  EXPECT_TRUE(contains(error_in(lists), "too often"));
  EXPECT_TRUE(contains(error_in(tuples + "]" + "N"), "too often"));
}

TEST(HostileFile, HasTooManyValuesAtOnce) {
  EXPECT_TRUE(contains(error_in(times("N", 2000000)), "too many values at once"));
  EXPECT_TRUE(contains(error_in("](" + times("}]a", 1)), "no list"));
  std::string body = "]";
  body += times("]a", 1100000);
  EXPECT_TRUE(contains(error_in(body), "too many lists and dicts"));
}

TEST(HostileFile, HoldsOneTensorOrTupleAsOftenAsItLikes) {
  const auto before = peak_memory_kib();
  const std::string memory(1 << 20, 'x');
  auto tensors = TensorOp{.type = "ByteStorage", .elements = 1 << 20, .sizes = {1 << 20}}.body() + "q\x01]";
  for (int i = 0; i < 300; ++i) tensors += "h\x01" + std::string("a");
  EXPECT_TRUE(contains(error_in(tensors, memory), "hold the same tensors too often"));
  auto tuples = "(" + times("N", 1000) + "tq\x01]";
  for (int i = 0; i < 100000; ++i) tuples += "h\x01" + std::string("a");
  EXPECT_TRUE(contains(error_in(tuples), "contain each other too often"));
  EXPECT_LT(peak_memory_kib() - before, kMostMemoryKib);
}

TEST(HostileFile, HasRecordsThatLieOverEachOther) {
  auto bytes = *archive_of({{"data.pkl", "\x80\x02N."}, {"data/0", std::string(100000, 'x')}, {"data/1", "y"}});
  // The table of contents names one record for the other.
  const auto entry = bytes.rfind("archive/data/0") - 46, other = bytes.rfind("archive/data/1") - 46;
  bytes.replace(other + 10, 36, bytes.substr(entry + 10, 36));
  EXPECT_TRUE(contains(error_of([&] { read_pt(std::make_shared<std::string>(bytes)); }), "lie over each other"));
}

TEST(HostileFile, HasAKeyThatNoDictOfStatesHas) {
  EXPECT_TRUE(contains(error_in("}NNs"), "has None as a key"));
  EXPECT_TRUE(contains(error_in("}]Ns"), "has a list as a key"));
  EXPECT_TRUE(contains(error_in("})Ns"), "has a tuple as a key"));
}

TEST(HostileFile, IsNoArchiveOrAnotherOne) {
  const auto error = [](const std::string& bytes) {
    return error_of([&] { read_pt(std::make_shared<std::string>(bytes)); });
  };
  EXPECT_TRUE(contains(error(""), "it is no zip archive, or its end is missing"));
  EXPECT_TRUE(contains(error(std::string(100000, 'x')), "it is no zip archive"));
  EXPECT_TRUE(contains(error("\x80\x02}q\x01."), "before PyTorch 1.6"));
  const auto big = archive_of({{"data.pkl", "\x80\x02N."}, {"byteorder", "big"}});
  EXPECT_TRUE(contains(error(*big), "big-endian"));
  EXPECT_TRUE(contains(error(*archive_of({{"other", "x"}})), "no record \"data.pkl\""));
}

TEST(HostileFile, SaysInItsTableOfContentsMoreThanThereIs) {
  const auto whole = *file_of(TensorOp().body(), std::string(16, '\0'));
  const auto end = whole.size() - 22;
  std::uint32_t entries = 0;
  std::memcpy(&entries, whole.data() + end + 16, sizeof entries);
  // Every field of the first entries, set to the largest value.
  for (std::size_t at = entries; at < std::min<std::size_t>(end, entries + 300); ++at) {
    auto bytes = std::make_shared<std::string>(whole);
    for (std::size_t i = 0; i < 4 && at + i < end; ++i) (*bytes)[at + i] = '\xff';
    error_of([&] { read_pt(bytes); });
  }
  for (std::size_t at = end; at < whole.size(); ++at) {
    auto bytes = std::make_shared<std::string>(whole);
    (*bytes)[at] = '\xff';
    EXPECT_NE(error_of([&] { read_pt(bytes); }), "") << at;
  }
}

// A file with what checkpoints are made of.
std::string sample_pickle() {
  return "\x80\x02}(" + text_op("model") + global_op("collections", "OrderedDict") + ")R(" + text_op("w") +
         TensorOp().body() + text_op("b") + TensorOp{.elements = 2, .offset = 2, .sizes = {2}}.body() + "u}" +
         text_op("_metadata") + "}sb" + text_op("groups") + "](}(" + text_op("lr") + "G" + std::string(8, '\x3f') +
         text_op("betas") + "G" + std::string(8, '\x3f') + "G" + std::string(8, '\x3f') + "\x86" + text_op("params") +
         "](K\x01M\x01\x01J\x01\x01\x01\x01" + int_op(7) + "eueq\x05" + text_op("none") + "N" + text_op("again") +
         "h\x05u.";
}

std::string mutated(std::string bytes, std::mt19937& random) {
  const auto below = [&](std::size_t limit) {
    return static_cast<std::size_t>(random()) % std::max<std::size_t>(limit, 1);
  };
  for (auto changes = 1 + below(4); changes > 0 && !bytes.empty(); --changes) {
    const auto at = below(bytes.size());
    switch (below(5)) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes[at] = "\x80(.NKMJG]})}tuseaRbQqhcX\x85\x86\x87\x88\x89\x8a\x8f"[below(30)];
        break;
      case 2:
        bytes.erase(at, 1 + below(8));
        break;
      case 3:
        bytes.insert(at, bytes.substr(below(bytes.size()), 1 + below(40)));
        break;
      default:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
    }
  }
  return bytes;
}

TEST(HostileFile, NeitherCrashesNorTakesMemoryWhereAPickleIsDamagedAtRandom) {
  std::mt19937 random(20261130);
  const auto pickle = sample_pickle();
  ASSERT_EQ(error_of([&] { read_pt(archive_of({{"data.pkl", pickle}, {"data/0", std::string(16, 'x')}})); }),
            "no error");
  const auto before = peak_memory_kib();
  int loaded = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto file = archive_of({{"data.pkl", mutated(pickle, random)}, {"data/0", std::string(16, 'x')}});
    if (error_of([&] { hash_of(read_pt(file)); }) == "no error") ++loaded;
  }
  EXPECT_GT(loaded, 0);
  EXPECT_LT(loaded, 20000);
  EXPECT_LT(peak_memory_kib() - before, kMostMemoryKib);
}

TEST(HostileFile, NeitherCrashesNorTakesMemoryWhereAnArchiveIsDamagedAtRandom) {
  std::mt19937 random(4);
  const auto whole = *archive_of({{"data.pkl", sample_pickle()}, {"data/0", std::string(16, 'x')}});
  const auto before = peak_memory_kib();
  int failed = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto file = std::make_shared<std::string>(mutated(whole, random));
    if (error_of([&] { hash_of(read_pt(file)); }) != "no error") ++failed;
  }
  EXPECT_GT(failed, 5000);
  EXPECT_LT(peak_memory_kib() - before, kMostMemoryKib);
}

}  // namespace
}  // namespace ddp::checkpoint
