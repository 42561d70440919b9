#include "reduce/side_by_side.hpp"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <new>

#include "reduce/dense_strides.hpp"

namespace ddp {
namespace {

// Of a large page on x86-64, and of most on ARM.
constexpr std::size_t kLargePage = std::size_t{2} << 20;

// Zeroed memory that begins where a large page may begin.
class Pages {
 public:
  explicit Pages(std::size_t bytes) : mapped_bytes_((bytes / kLargePage + 2) * kLargePage) {
    mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped_ == MAP_FAILED) throw std::bad_alloc();
    const auto start = reinterpret_cast<std::uintptr_t>(mapped_);
    start_ = static_cast<std::byte*>(mapped_) + (kLargePage - start % kLargePage) % kLargePage;
    // Where the system knows no large pages, small ones do.
    if (bytes >= kLargePage) madvise(start_, bytes, MADV_HUGEPAGE);
  }
  ~Pages() { munmap(mapped_, mapped_bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  std::byte* start() const { return start_; }

 private:
  std::size_t mapped_bytes_;
  void* mapped_;
  std::byte* start_;
};

}  // namespace

std::vector<at::Tensor> side_by_side(const std::vector<at::Tensor>& like) {
  std::map<at::ScalarType, std::size_t> bytes;
  for (const auto& tensor : like)
    if (tensor.is_cpu()) bytes[tensor.scalar_type()] += tensor.nbytes();
  struct Memory {
    std::shared_ptr<Pages> pages;
    std::byte* next;
  };
  std::map<at::ScalarType, Memory> memories;
  for (const auto& [dtype, size] : bytes) {
    auto pages = std::make_shared<Pages>(size);
    memories.emplace(dtype, Memory{pages, pages->start()});
  }
  std::vector<at::Tensor> tensors;
  for (const auto& tensor : like) {
    const auto options = tensor.options().requires_grad(false);
    if (!tensor.is_cpu()) {
      tensors.push_back(at::zeros_like(tensor, options));
      continue;
    }
    auto& memory = memories.at(tensor.scalar_type());
    tensors.push_back(
        at::from_blob(memory.next, tensor.sizes(), dense_strides(tensor), [pages = memory.pages](void*) {}, options));
    memory.next += tensor.nbytes();
  }
  return tensors;
}

}  // namespace ddp
