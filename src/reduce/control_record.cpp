#include "reduce/control_record.hpp"

#include <algorithm>
#include <stdexcept>

namespace ddp {

ControlRecord::ControlRecord(int rank, int world_size)
    : rank_(static_cast<std::size_t>(rank)), ranks_(static_cast<std::size_t>(world_size)) {}

ControlRecord::Field ControlRecord::add(const std::string& name, int bytes) {
  if (bytes < 1 || bytes > 8) throw std::logic_error("control record: " + name + " must have 1 to 8 bytes");
  for (const auto& entry : entries_)
    if (entry.name == name) throw std::logic_error("control record: there is a field " + name + " already");
  entries_.push_back({name, bytes, bytes_});
  own_.push_back(0);
  values_.assign(ranks_ * entries_.size(), 0);
  bytes_ += static_cast<std::size_t>(bytes);
  return entries_.size() - 1;
}

void ControlRecord::add_flags(std::size_t count) {
  flags_.assign(count, 0);
  raised_.assign(count, false);
}

ControlRecord::Field ControlRecord::field(const std::string& name) const {
  for (Field i = 0; i < entries_.size(); ++i)
    if (entries_[i].name == name) return i;
  throw std::logic_error("control record: no field " + name);
}

void ControlRecord::set(Field field, std::uint64_t value) {
  const auto& [name, bytes, offset] = entries_[field];
  if (bytes < 8 && value >> (8 * bytes) != 0)
    throw std::logic_error("control record: " + std::to_string(value) + " is too large for the field " + name);
  own_[field] = value;
}

void ControlRecord::lower_flags() { std::fill(flags_.begin(), flags_.end(), 0.0F); }

void ControlRecord::write(float* elements) const {
  std::fill(elements, elements + ranks_ * bytes_, 0.0F);
  float* mine = elements + rank_ * bytes_;
  for (Field i = 0; i < entries_.size(); ++i)
    for (int byte = 0; byte < entries_[i].bytes; ++byte)
      mine[entries_[i].offset + byte] = static_cast<float>(own_[i] >> (8 * byte) & 0xFF);
  std::copy(flags_.begin(), flags_.end(), elements + ranks_ * bytes_);
}

void ControlRecord::read(const float* elements) {
  for (std::size_t rank = 0; rank < ranks_; ++rank)
    for (Field i = 0; i < entries_.size(); ++i) {
      std::uint64_t value = 0;
      for (int byte = 0; byte < entries_[i].bytes; ++byte)
        value |= static_cast<std::uint64_t>(elements[rank * bytes_ + entries_[i].offset + byte]) << (8 * byte);
      values_[rank * entries_.size() + i] = value;
    }
  for (std::size_t flag = 0; flag < flags_.size(); ++flag) raised_[flag] = elements[ranks_ * bytes_ + flag] > 0;
}

std::uint64_t ControlRecord::sum(Field field) const {
  std::uint64_t total = 0;
  for (std::size_t rank = 0; rank < ranks_; ++rank) total += value(field, static_cast<int>(rank));
  return total;
}

bool ControlRecord::is_same_on_all(Field field) const {
  for (std::size_t rank = 1; rank < ranks_; ++rank)
    if (value(field, static_cast<int>(rank)) != value(field, 0)) return false;
  return true;
}

}  // namespace ddp
