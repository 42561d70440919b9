# What the library needs from outside, each found once.
find_package(Threads REQUIRED)
find_package(Torch REQUIRED)
find_package(spdlog REQUIRED)

# Torch's package sets directory-wide flags of its own; the imported target carries what is needed.
set(DDP_TORCH_TARGET torch)
