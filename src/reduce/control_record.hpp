#pragma once
/// control_record.hpp: the small exact integers that every rank tells every other one in each step.
///
/// One mechanism for all that ranks must agree on in a step. It travels in the last bucket of the step's gradients, so
/// it costs no message of its own: one byte an element, which every floating-point dtype holds exactly, at a place
/// where all other ranks add zero.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ddp {

/// Two kinds of entries: fields, of which each rank has a value of its own that all others read; and flags, which any
/// rank may raise and all see raised.
/// Threads: one at a time.
class ControlRecord {
 public:
  using Field = std::size_t;

  ControlRecord(int rank, int world_size);

  /// Adds an unsigned integer of `bytes` bytes (1 to 8). The same on all ranks, before the record is used.
  /// Errors: std::logic_error if the name is taken.
  Field add(const std::string& name, int bytes);
  /// Adds `count` flags. Once, as add().
  void add_flags(std::size_t count);
  /// The entry of that name. Errors: std::logic_error if there is none.
  Field field(const std::string& name) const;

  /// This rank's value in the steps to come, until it is set again. Errors: std::logic_error if it needs more bytes.
  void set(Field field, std::uint64_t value);
  void raise(std::size_t flag) { flags_[flag] = 1; }
  void lower_flags();

  /// Elements that the record takes in the bucket.
  std::size_t elements() const { return ranks_ * bytes_ + flags_.size(); }
  /// This rank's addend, [elements()].
  void write(float* elements) const;
  /// The sum of all ranks' addends, [elements()].
  void read(const float* elements);

  /// What was read last.
  std::uint64_t value(Field field, int rank) const { return values_[rank * entries_.size() + field]; }
  std::uint64_t sum(Field field) const;
  bool is_same_on_all(Field field) const;
  bool raised(std::size_t flag) const { return raised_[flag]; }

 private:
  struct Entry {
    std::string name;
    int bytes;
    std::size_t offset;
  };

  std::size_t rank_;
  std::size_t ranks_;
  std::size_t bytes_ = 0;  // of one rank's fields
  std::vector<Entry> entries_;
  std::vector<std::uint64_t> own_;     // by entry
  std::vector<std::uint64_t> values_;  // by rank and entry
  std::vector<float> flags_;           // 0 or 1
  std::vector<bool> raised_;
};

}  // namespace ddp
