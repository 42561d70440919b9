#include "reduce/side_by_side.hpp"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <utility>

#include "reduce/dense_strides.hpp"

namespace ddp {
namespace {

// Of a large page on x86-64, and of most on ARM.
constexpr std::size_t kLargePage = std::size_t{2} << 20;

std::byte* rounded_up(std::byte* address, std::size_t unit) {
  return address + (unit - reinterpret_cast<std::uintptr_t>(address) % unit) % unit;
}

// Zeroed memory that begins where a large page may begin.
class Pages {
 public:
  explicit Pages(std::size_t bytes) : mapped_bytes_((bytes / kLargePage + 2) * kLargePage) {
    mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped_ == MAP_FAILED) throw std::bad_alloc();
    start_ = rounded_up(static_cast<std::byte*>(mapped_), kLargePage);
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

// A tensor's part of them. The pages that no other tensor has a part in go with it, so that tensors that move from
// one such memory into another are there twice one at a time.
class Part {
 public:
  Part(std::shared_ptr<Pages> pages, std::byte* start, std::size_t bytes)
      : pages_(std::move(pages)), start_(start), bytes_(bytes) {}
  ~Part() {
    static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    auto* const first = rounded_up(start_, page);
    const auto before = static_cast<std::size_t>(first - start_);
    if (const auto whole = bytes_ > before ? (bytes_ - before) / page : 0; whole > 0)
      madvise(first, whole * page, MADV_DONTNEED);
  }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

 private:
  std::shared_ptr<Pages> pages_;
  std::byte* start_;
  std::size_t bytes_;
};

// Of a tensor's storage; by it is_from_side_by_side() knows them.
void let_go(void* part) { delete static_cast<Part*>(part); }

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
    const auto strides = dense_strides(tensor);
    tensors.push_back(at::for_blob(memory.next, tensor.sizes())
                          .strides(strides)
                          .context(new Part(memory.pages, memory.next, tensor.nbytes()), let_go)
                          .options(options)
                          .make_tensor());
    memory.next += tensor.nbytes();
  }
  return tensors;
}

bool is_from_side_by_side(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.storage().data_ptr().get_deleter() == let_go;
}

}  // namespace ddp
