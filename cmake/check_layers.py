#!/usr/bin/env python3
"""Checks that includes go one way between the layers and that each external mess stays in its one file.

    check_layers.py ROOT        prints a line for each violation; exit code 1 if there is one
    check_layers.py --self-test plants one violation of each rule and expects to find it
"""

import pathlib
import re
import sys
import tempfile

# A layer may include itself and these.
ALLOWED = {
    "base": [],
    "start": ["base"],
    "comm": ["base", "start"],
    "reduce": ["base", "comm"],
    "report": ["base", "comm"],
    "optim": ["base", "comm", "reduce"],
    "train": ["base", "start", "comm", "report", "reduce", "optim"],
    "launch": ["base", "start"],
    "store_server": ["base", "comm"],
}
# Public headers without a source file of the same name; the others belong to the layer of that file.
HEADER_ONLY = {
    "checkpoint_value": "train",
    "ddp": "train",
    "distributed_data_parallel": "train",
    "log_level": "base",
    "mean_taker": "reduce",
    "optim": "optim",
    "moved_argument": "train",
    "reducer_stats": "reduce",
    "tensor_visitor": "train",
}
# What an include or a name gives away -> the only files where it may stand.
CONFINED = [
    ("spdlog", r'#include [<"]spdlog/|\bspdlog::', r"src/base/log\.cpp"),
    ("stb", r'#include [<"]stb/|\bstb_\w+\(', r"src/report/stb\.cpp"),
    ("CLI11", r'#include [<"]CLI/|\bCLI::', r"src/launch/.*"),
    ("c10d's Gloo", r'#include [<"](gloo/|torch/csrc/distributed/c10d/.*Gloo)|\bgloo::|\bProcessGroupGloo\b',
     r"src/comm/backend_gloo\.cpp"),
    ("NCCL", r'#include [<"](nccl|torch/csrc/distributed/c10d/.*NCCL)|\bnccl[A-Z]|\bProcessGroupNCCL\b',
     r"src/comm/backend_nccl\.cpp"),
    ("CUDA", r'#include [<"](c10/cuda|ATen/cuda|torch/csrc/cuda|cuda|cuda_\w+)(/|\.h)|\b(at|c10)::cuda::'
             r'|\bcu(da)?[A-Z]\w+\(',
     r"src/(comm/backend_nccl|reduce/pack_cuda)\.cpp"),
    ("c10d", r'#include [<"]torch/csrc/distributed/|\bc10d::', r"src/comm/.*"),
    ("autograd's internals", r'#include [<"]torch/csrc/autograd/', r"src/reduce/(grad_hooks|graph_search)\.(hpp|cpp)"),
    ("LibTorch", r'#include [<"](torch|ATen|c10)/', r"(src/(comm|report|reduce|optim|train)|include/ddp)/.*"),
]
COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
INCLUDE = re.compile(r'#include [<"](\w+)/(\w+)\.hpp[">]')


def without_comments(text):
    """The text without comments and with as many lines; strings are kept, for includes stand in some."""
    return COMMENT.sub(lambda match: match.group(1) or "\n" * match.group(0).count("\n"), text)


def layer_of_header(root, stem):
    if stem in HEADER_ONLY:
        return HEADER_ONLY[stem]
    homes = [layer for layer in ALLOWED if (root / "src" / layer / f"{stem}.cpp").exists()]
    return homes[0] if len(homes) == 1 else None


def layer_of_file(root, path):
    parts = path.relative_to(root).parts
    return parts[1] if parts[0] == "src" else layer_of_header(root, path.stem)


def violations_of_line(root, name, layer, line):
    for what, pattern, home in CONFINED:
        if re.search(pattern, line) and not re.fullmatch(home, name):
            yield f"{what} may stand only in {home}"
    include = INCLUDE.search(line)
    if not include:
        return
    folder, stem = include.groups()
    target = layer_of_header(root, stem) if folder == "ddp" else folder if folder in ALLOWED else layer
    if target != layer and target not in ALLOWED[layer]:
        yield f"layer {layer} may not include <{folder}/{stem}.hpp> of layer {target}"


def violations(root):
    files = sorted(path for folder in ("include/ddp", "src") for path in (root / folder).rglob("*.[ch]pp"))
    if not files:
        yield f"{root}: no sources found"
    for path in files:
        name = path.relative_to(root).as_posix()
        layer = layer_of_file(root, path)
        if layer not in ALLOWED:
            yield f"{name}: belongs to no layer; a public header without a source of its name goes into HEADER_ONLY"
            continue
        for number, line in enumerate(without_comments(path.read_text()).splitlines(), 1):
            for text in violations_of_line(root, name, layer, line):
                yield f"{name}:{number}: {text}"


PLANTED = [  # file, line, words of the report; None where the line is allowed
    ("src/base/error.cpp", '#include "comm/wire.hpp"', "layer base may not include"),
    ("src/base/error.cpp", "#include <ATen/core/Tensor.h>", "LibTorch"),
    ("src/comm/wire.cpp", '#include "ddp/reducer.hpp"', "layer comm may not include"),
    ("src/comm/wire.cpp", "gloo::Context* context;", "c10d's Gloo"),
    ("src/comm/wire.cpp", "ncclComm_t communicator;", "NCCL"),
    ("src/comm/wire.cpp", "#include <c10/cuda/CUDAStream.h>", "CUDA"),
    ("src/reduce/bucket.cpp", "#include <cuda.h>", "CUDA"),
    ("src/reduce/bucket.cpp", "#include <cuda_runtime_api.h>", "CUDA"),
    ("src/train/seed.cpp", "cudaDeviceSynchronize();", "CUDA"),
    ("src/train/seed.cpp", "auto stream = c10::cuda::getCurrentCUDAStream();", "CUDA"),
    ("src/reduce/reducer.cpp", "c10d::Backend* backend;", "c10d"),
    ("src/reduce/bucket.cpp", "#include <torch/csrc/autograd/engine.h>", "autograd's internals"),
    ("src/report/canvas.cpp", "#include <stb/stb_image_write.h>", "stb"),
    ("src/report/plot.cpp", '#include "ddp/reducer.hpp"', "layer report may not include"),
    ("src/launch/main.cpp", '#include "comm/wire.hpp"', "layer launch may not include"),
    ("src/start/program.cpp", '#include "launch/say.hpp"', "layer start may not include"),
    ("src/store_server/main.cpp", "#include <torch/torch.h>", "LibTorch"),
    ("src/launch/main.cpp", "#include <spdlog/spdlog.h>", "spdlog"),
    ("include/ddp/error.hpp", "#include <CLI/CLI.hpp>", "CLI11"),
    ("include/ddp/stray.hpp", "", "belongs to no layer"),
    ("src/train/seed.cpp", '#include "reduce/bucket.hpp"', None),
    ("src/reduce/bucket.cpp", "// as c10d::Reducer does", None),
    ("src/reduce/bucket.cpp", "cut(); custom(); is_cuda(); cuda_pack(slots);", None),
    ("src/reduce/pack_cuda.cpp", "#include <c10/cuda/CUDAStream.h>", None),
    ("src/launch/main.cpp", "#include <CLI/CLI.hpp>", None),
]


def self_test():
    failures = 0
    for name, line, expected in PLANTED:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for file in ("src/base/error.cpp", "src/reduce/reducer.cpp", "include/ddp/error.hpp", name):
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                (root / file).write_text("\n")
            (root / name).write_text(f"\n{line}\n")
            found = list(violations(root))
        right = not found if expected is None else any(text.startswith(name) and expected in text for text in found)
        failures += not right
        print("ok    " if right else "WRONG ", name, repr(line), found)
    return failures


def main():
    if sys.argv[1:] == ["--self-test"]:
        return min(self_test(), 1)
    found = list(violations(pathlib.Path(sys.argv[1])))
    print("\n".join(found) if found else "layers: in order")
    return min(len(found), 1)


if __name__ == "__main__":
    sys.exit(main())
