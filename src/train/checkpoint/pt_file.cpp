/// One file for three readers.
///
/// Python and LibTorch look at the same record, data.pkl, and understand different things: what Python reads as
///
///   Counter(), OrderedDict(root)
///
/// of which the last one counts, is for LibTorch the module and nothing, for the archive brings its own meaning of
/// both names along: a class whose attributes are the module's tensors and submodules (module_classes.hpp), and an
/// enumeration without the value asked for, which leaves nothing behind. Python 2's name of collections, UserDict,
/// keeps OrderedDict apart from the one that LibTorch knows. LibTorch takes an archive for a module's if it has the
/// record constants.pkl, Python refuses it then; but LibTorch does not distinguish upper and lower case there. Both
/// readers, 2.13 and 2.14, are what tests/interop checks this against.
#include "train/checkpoint/pt_file.hpp"

#include <ATen/Functions.h>
#include <caffe2/serialize/inline_container.h>

#include <algorithm>
#include <stdexcept>
#include <unordered_map>

#include "train/checkpoint/file.hpp"
#include "train/checkpoint/module_classes.hpp"
#include "train/checkpoint/pickle_format.hpp"
#include "train/checkpoint/pickle_writer.hpp"
#include "train/checkpoint/unpickler.hpp"
#include "train/checkpoint/zip_directory.hpp"

namespace ddp::checkpoint {
namespace {

constexpr const char* kPickle = "data.pkl";
// A tensor may be referred to under several names, by views, and by what is meant for LibTorch: of each byte of the
// file, by so many tensors on average at most.
constexpr std::size_t kTensorBytes = 256;
constexpr const char* kSealed = "ddp_sealed";

void put_module(PickleWriter& writer, const ModuleClasses& classes, const ModuleTree& tree) {
  const auto& type = classes.of(tree);
  writer.count_container();
  writer.count_container();  // and its attributes
  writer.global(type.module, type.name);
  writer.op(pickle::empty_tuple);
  writer.op(pickle::new_obj);
  writer.op(pickle::empty_dict);
  writer.op(pickle::mark);
  for (const auto& name : type.attributes) {
    const auto named = [&](const auto& entry) { return entry.first == name; };
    const auto tensor = std::find_if(tree.tensors.begin(), tree.tensors.end(), named);
    const auto child = std::find_if(tree.children.begin(), tree.children.end(), named);
    writer.text(name);
    if (tensor != tree.tensors.end())
      writer.value(tensor->second);
    else if (child != tree.children.end())
      put_module(writer, classes, child->second);
    else
      writer.op(pickle::none);
  }
  writer.op(pickle::set_items);
  writer.op(pickle::build);
}

bool are_known_to_libtorch(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& tensor) { return has_storage_class(tensor.scalar_type()); });
}

class Archive {
 public:
  explicit Archive(const Sink& sink)
      : writer_([&sink](const void* bytes, std::size_t size) {
          sink({static_cast<const char*>(bytes), size});
          return size;
        }) {}

  void add(const std::string& name, std::string_view bytes) { writer_.writeRecord(name, bytes.data(), bytes.size()); }
  void add_sources(const ModuleClasses& classes) {
    auto sources = classes.sources();
    sources["UserDict"] += "class OrderedDict(Enum):\n  none = 0\n";
    for (const auto& [module, source] : sources) add("code/" + module + ".py", "op_version_set = 1\n" + source);
    add("CONSTANTS.PKL", "\x80\x02).");
  }
  void end() { writer_.writeEndOfFile(); }

 private:
  caffe2::serialize::PyTorchStreamWriter writer_;
};

// The pickle of `root`, or of both.
PickleWriter pickled(const Value& root, const ModuleTree* module, const ModuleClasses& classes) {
  PickleWriter writer;
  if (!module) {
    writer.value(root);
    return writer;
  }
  put_module(writer, classes, *module);
  writer.global("UserDict", "OrderedDict");
  writer.value(root);
  writer.op(pickle::tuple1);
  writer.op(pickle::reduce);
  return writer;
}

at::DataPtr part_of(const std::shared_ptr<std::string>& bytes, std::string_view part) {
  auto* owner = new std::shared_ptr<std::string>(bytes);
  const auto release = [](void* context) { delete static_cast<std::shared_ptr<std::string>*>(context); };
  return {bytes->data() + (part.data() - bytes->data()), owner, release, at::kCPU};
}

// In the file's own memory, where it is aligned there.
c10::Storage storage_of(const std::shared_ptr<std::string>& bytes, std::string_view part) {
  constexpr std::uintptr_t kAlignment = alignof(std::max_align_t);
  const auto wrap = [](const std::shared_ptr<std::string>& owner, std::string_view content) {
    return c10::Storage(c10::Storage::use_byte_size_t(), content.size(), part_of(owner, content), nullptr, false);
  };
  if (reinterpret_cast<std::uintptr_t>(part.data()) % kAlignment == 0) return wrap(bytes, part);
  const auto copy = std::make_shared<std::string>(part);
  return wrap(copy, *copy);
}

}  // namespace

bool write_pt(const Value& root, const PtOptions& options, const Sink& sink) {
  const ModuleClasses classes(options.module ? *options.module : ModuleTree());
  const auto* module = classes.are_plain() ? options.module : nullptr;
  auto writer = pickled(root, module, classes);
  if (module && !are_known_to_libtorch(writer.tensors())) writer = pickled(root, module = nullptr, classes);
  Archive archive(sink);
  archive.add(kPickle, writer.finish());
  archive.add("byteorder", "little");
  if (options.is_sealed) archive.add(kSealed, "1");
  if (module) archive.add_sources(classes);
  for (std::size_t i = 0; i < writer.tensors().size(); ++i) {
    const auto& tensor = writer.tensors()[i];
    archive.add("data/" + std::to_string(i), {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()});
  }
  archive.end();
  return module != nullptr;
}

Value read_pt(const std::shared_ptr<std::string>& bytes) {
  if (bytes->starts_with("\x80\x02"))
    throw std::runtime_error("it has the format of torch.save() before PyTorch 1.6; save it again with a newer one");
  const bool is_sealed = verify_seal(*bytes);
  const ZipDirectory directory(*bytes, /*verifies=*/!is_sealed);
  if (directory.has(kSealed) && !is_sealed) throw std::runtime_error("it is damaged: its checksum is missing");
  if (directory.has("constants.pkl"))
    throw std::runtime_error("it is no checkpoint, but a module as torch::save() writes it: use torch::load()");
  if (directory.has("byteorder") && directory.record("byteorder") != "little")
    throw std::runtime_error("its numbers are big-endian");
  const auto pickle = directory.record(kPickle);
  if (pickle.size() > pickle::kLongest) throw std::runtime_error("its pickle has more than 256 MiB");
  std::unordered_map<std::string, c10::Storage> storages;
  const auto load_storage = [&](const std::string& key) {
    const auto [found, is_new] = storages.try_emplace(key);
    if (is_new) found->second = storage_of(bytes, directory.record("data/" + key));
    return found->second;
  };
  return Unpickler(pickle, load_storage, kTensorBytes * bytes->size()).run();
}

}  // namespace ddp::checkpoint
