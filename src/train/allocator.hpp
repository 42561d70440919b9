#pragma once
/// allocator.hpp: how the C library's allocator treats memory that a training step gives back.

namespace ddp {

/// Has glibc keep freed memory for the next step, in this process, from now on. Its default returns what each step
/// frees to the system and faults it in again, page by page, which took a third of the CPU time of a ResNet-18's step.
/// Does nothing where the user has set an allocation variable of glibc's, where the C library is another one, and the
/// second time.
void keep_freed_memory();

}  // namespace ddp
