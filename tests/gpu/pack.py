"""Fills a folder with what the build needs beside torch and a compiler, from Debian's packages.

    FOLDER/gloo/include/gloo          libgloo-dev
    FOLDER/spdlog/include/{spdlog,fmt} libspdlog-dev, libfmt-dev; apart from the others, for torch has an fmt of its own
    FOLDER/gtest/{include/gtest,src}  libgtest-dev, googletest: its sources, compiled where they are used
    FOLDER/cuda/include/{crt,nv}      pip's nvidia-cuda-crt and nvidia-cuda-cccl beside torch, where they are
    FOLDER/tools/...                  pip's packages cmake and ninja, where they are
"""

import pathlib
import shutil

import found

DEBIAN = (("/usr/include/gloo", "gloo/include/gloo", "libgloo-dev"),
          ("/usr/include/spdlog", "spdlog/include/spdlog", "libspdlog-dev"),
          ("/usr/include/fmt", "spdlog/include/fmt", "libfmt-dev"),
          ("/usr/include/gtest", "gtest/include/gtest", "libgtest-dev"),
          ("/usr/src/googletest/googletest/src", "gtest/src", "googletest"))


def beside_torch():
    """Folders of pip's packages, and where they go."""
    try:
        packages = found.find_torch().root.parent
    except found.Missing:
        return []
    headers = [(path, f"cuda/include/{path.name}") for name in ("crt", "nv")
               for path in sorted(packages.glob(f"nvidia/*/include/**/{name}"))[:1]]
    tools = [(packages / name / "data", f"tools/{name}") for name in ("cmake", "ninja")]
    return headers + [pair for pair in tools if pair[0].is_dir()]


def pack(folder):
    """Returns the exit code."""
    missing = [package for source, _, package in DEBIAN if not pathlib.Path(source).is_dir()]
    if missing:
        print("gpu check: FAILED: to be packed there is no " + ", ".join(missing) + "; apt-get install them")
        return 1
    folder = pathlib.Path(folder)
    for source, target in [(source, target) for source, target, _ in DEBIAN] + beside_torch():
        shutil.copytree(source, folder / target, dirs_exist_ok=True)
        print(f"-- {folder / target}")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"gpu check: packed {size / 1e6:.0f} MB; where it is used, set DDP_GPU_DEPS to this folder")
    return 0
