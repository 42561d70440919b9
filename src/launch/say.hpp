#pragma once
/// say.hpp: the launcher's own messages.

#include <string_view>

namespace ddp::launch {

/// One line on standard error, in one write so that nothing comes between: "ddprun: text".
void say(std::string_view text);

/// While this lives, lines take the way of the ranks' lines, through `descriptor`, so that neither tears the other. One
/// that finds no room there within its pipe is dropped: nobody has read for 64 KiB.
class SayThrough {
 public:
  explicit SayThrough(int descriptor);
  ~SayThrough();
  SayThrough(const SayThrough&) = delete;

 private:
  int before_;
};

}  // namespace ddp::launch
