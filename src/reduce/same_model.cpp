#include "reduce/same_model.hpp"

#include <cstdint>
#include <sstream>
#include <unordered_map>

namespace ddp {
namespace {

// `first_names` collects under which name each tensor stood first.
std::string describe(const ModelTensor& entry, std::unordered_map<const void*, std::string>& first_names) {
  std::ostringstream line;
  line << entry.role << ' ' << entry.name << ' ' << c10::toString(entry.tensor.scalar_type()) << ' '
       << entry.tensor.sizes() << " strides " << entry.tensor.strides();
  if (entry.role == "parameter" && !entry.tensor.requires_grad()) line << " frozen";
  const auto [known, is_new] = first_names.emplace(entry.tensor.unsafeGetTensorImpl(), entry.name);
  if (!is_new) line << " tied to " << known->second;
  return line.str();
}

// FNV-1a, 64 bits: the same on every platform.
std::uint64_t hash(const std::string& text) {
  std::uint64_t value = 14695981039346656037ULL;
  for (const unsigned char byte : text) value = (value ^ byte) * 1099511628211ULL;
  return value;
}

std::string fingerprint(std::size_t count, const std::string& text) {
  const std::uint64_t words[2] = {count, hash(text)};
  return {reinterpret_cast<const char*>(words), sizeof(words)};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The first line in which any rank differs from rank 0.
std::string first_difference(const std::vector<std::string>& texts) {
  const auto reference = lines_of(texts[0]);
  std::size_t where = SIZE_MAX;
  std::string difference;
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    const auto lines = lines_of(texts[rank]);
    const auto line_or_end = [](const auto& list, std::size_t i) {
      return i < list.size() ? list[i] : "no more tensors";
    };
    for (std::size_t i = 0; i < std::max(lines.size(), reference.size()) && i < where; ++i) {
      if (i < lines.size() && i < reference.size() && lines[i] == reference[i]) continue;
      where = i;
      difference = "rank 0 has " + line_or_end(reference, i) + ", rank " + std::to_string(rank) + " has " +
                   line_or_end(lines, i);
    }
  }
  return difference;
}

}  // namespace

void verify_same_model(const std::string& options, const std::vector<ModelTensor>& tensors, ProcessGroup& group) {
  std::unordered_map<const void*, std::string> first_names;
  std::string text = "options " + options + "\n";
  for (const auto& entry : tensors) text.append(describe(entry, first_names)).append("\n");
  const auto mine = fingerprint(tensors.size(), text);
  bool same = true;
  for (const auto& other : group.all_gather_bytes(mine, {.label = "fingerprint of the model"})) same &= other == mine;
  // Every rank sees the same fingerprints; a rank may equal its neighbours and not all the others.
  if (same) return;
  const auto texts = group.all_gather_bytes(text, {.label = "list of the model's tensors"});
  throw ModelMismatchError(group.origin(), "model", "the ranks hold different models: " + first_difference(texts),
                           "build the same module, with the same options, on every rank");
}

}  // namespace ddp
