#pragma once
/// line_splitter.hpp: bytes as they come from a rank, cut into lines.

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace ddp::launch {

/// Gives whole lines without their end. Where updates are wanted, a text that ends in a carriage return alone is given
/// too, as one that the next text replaces: what a progress bar writes to a terminal.
class LineSplitter {
 public:
  /// Longer lines are given in pieces of this many bytes.
  static constexpr std::size_t kLongest = 1 << 20;
  using OnLine = std::function<void(std::string_view text, bool is_update)>;

  LineSplitter(bool wants_updates, OnLine on_line) : wants_updates_(wants_updates), on_line_(std::move(on_line)) {}

  void take(std::string_view bytes);
  /// Gives what is left of a line that nobody has ended.
  void finish();

 private:
  void put(bool is_update);

  bool wants_updates_;
  OnLine on_line_;
  std::string line_;
  bool returned_ = false;  // the line ended in a carriage return; what follows decides what that was
};

}  // namespace ddp::launch
