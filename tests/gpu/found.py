"""Finds torch, its Python, the tools and the headers that the build needs. Installs nothing."""

import os
import pathlib
import re
import shutil
import subprocess

OLDEST_CMAKE = (3, 25)
OLDEST_TORCH = (2, 11)


class Missing(Exception):
    """Something is not here; the text says what, and how to bring it."""


def output_of(command, limit=60):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def folder_of_torch(python):
    """That of the torch which this Python would import, without importing it; None if there is none."""
    code = ("import importlib.util as u, os, sys; sys.path[:] = [e for e in sys.path if e]; s = u.find_spec('torch'); "
            "print(os.path.dirname(os.path.realpath(s.origin)) if s and s.origin else '')")
    text = output_of([str(python), "-c", code])
    return pathlib.Path(text) if text else None


class Torch:
    """`root`: the folder with lib and include. `python`: one that imports it, or None."""

    def __init__(self, root, source):
        self.root = root.resolve()
        self.source = source
        self.config = next((self.root / place for place in ("share/cmake/Torch", "lib/cmake/Torch")
                            if (self.root / place / "TorchConfig.cmake").exists()), None)
        self.version = self._version()
        self.python = self._python()

    def _version(self):
        for name, pattern in (("version.py", r"__version__ = '([^']+)'"), ("build-version", r"(\S+)")):
            file = self.root / name
            if file.exists():
                return re.search(pattern, file.read_text()).group(1)
        return "unknown"

    def _python(self):
        candidates = [self.root.parents[3] / "bin" / "python3"] if len(self.root.parents) > 3 else []
        candidates.append(shutil.which("python3"))
        for python in candidates:
            if python and os.access(python, os.X_OK) and folder_of_torch(python) == self.root:
                return str(python)
        return None

    def objection(self):
        if self.config is None:
            return "has no TorchConfig.cmake"
        if not (self.root / "lib/libtorch_cuda.so").exists():
            return "is not a CUDA build"
        numbers = re.match(r"(\d+)\.(\d+)", self.version)
        if numbers and tuple(map(int, numbers.groups())) < OLDEST_TORCH:
            return f"is {self.version}, older than {OLDEST_TORCH[0]}.{OLDEST_TORCH[1]}"
        return None


def torch_candidates(cached):
    """Folders and where they come from. `cached`: Torch_DIR of a build folder that is configured."""
    if cached:
        yield pathlib.Path(cached).parents[2], "the build folder"
        return
    given = os.environ.get("Torch_DIR")
    if given:
        path = pathlib.Path(given)
        yield (path.parents[2] if (path / "TorchConfig.cmake").exists() else path), "Torch_DIR"
    for entry in re.split("[:;]", os.environ.get("CMAKE_PREFIX_PATH", "")):
        if entry:
            path = pathlib.Path(entry)
            yield (path.parent.parent if path.name == "cmake" else path), "CMAKE_PREFIX_PATH"
    folder = folder_of_torch("python3")
    if folder:
        yield folder, "python3"
    home = pathlib.Path(os.environ.get("DDP_CACHE_DIR") or
                        pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "ddp")
    for folder in sorted(home.glob("cuda-torch-*/lib/python3*/site-packages/torch"), reverse=True):
        yield folder, "installed by cmake/bootstrap.sh"


def find_torch(cached=None):
    objections = []
    for root, source in torch_candidates(cached):
        torch = Torch(root, source)
        objection = torch.objection()
        if objection is None:
            return torch
        objections.append(f"that of {source} in {root} {objection}")
        if source == "Torch_DIR":  # what was named is taken, or nothing
            break
    raise Missing("no CUDA build of torch 2.11 or newer: " + ("; ".join(objections) or "none was found")
                  + ". Set Torch_DIR to the folder of its TorchConfig.cmake, or have python3 import it")


def tool(name, torch, deps):
    """A program on the PATH, beside torch's Python, or among what was packed."""
    beside = [str(pathlib.Path(torch.python).parent)] if torch.python else []
    packed = [str(path.parent) for path in deps.glob(f"tools/**/bin/{name}")] if deps else []
    for folder in [None, *beside, *packed]:
        found = shutil.which(name, path=folder)
        if found:
            return found
    return None


def find_cmake(torch, deps):
    cmake = tool("cmake", torch, deps)
    numbers = re.search(r"version (\d+)\.(\d+)", output_of([cmake, "--version"])) if cmake else None
    if not numbers or tuple(map(int, numbers.groups())) < OLDEST_CMAKE:
        there = "only " + numbers.group(0) if numbers else "none"
        raise Missing(f"cmake 3.25 or newer ({there} is on the PATH and beside torch's Python): pip's package cmake "
                      "holds one, which --pack takes along where it is installed beside torch")
    return cmake


# What is wanted, a header of it, Debian's package, the folder in DDP_GPU_DEPS.
HEADERS = (("Gloo", "gloo/config.h", "libgloo-dev", "gloo"), ("spdlog", "spdlog/spdlog.h", "libspdlog-dev", "spdlog"),
           ("fmt", "fmt/core.h", "libfmt-dev", "spdlog"), ("GoogleTest", "gtest/gtest.h", "libgtest-dev", "gtest"))


def include_folders():
    given = os.environ.get("CPATH", "").split(":") + os.environ.get("CPLUS_INCLUDE_PATH", "").split(":")
    return [pathlib.Path(folder) for folder in [*given, "/usr/include", "/usr/local/include"] if folder]


def find_headers(deps):
    """Folder of the includes of each; what was packed goes before the system's."""
    found, missing = {}, []
    for name, header, package, folder in HEADERS:
        packed = [deps / folder / "include"] if deps else []
        place = next((place for place in [*packed, *include_folders()] if (place / header).exists()), None)
        if place is None:
            missing.append(f"{name} (<{header}>, Debian's {package})")
        found[name] = place
    if missing:
        where = f"DDP_GPU_DEPS={deps} lacks them too" if deps else "DDP_GPU_DEPS is not set"
        raise Missing("headers of " + ", ".join(missing) + f" are not here, and {where}. Install the packages, or run "
                      "tests/gpu/check.sh --pack FOLDER where they are, bring FOLDER and set DDP_GPU_DEPS to it")
    return found


def find_deps():
    given = os.environ.get("DDP_GPU_DEPS")
    if not given:
        return None
    if not pathlib.Path(given).is_dir():
        raise Missing(f"DDP_GPU_DEPS={given} is no folder")
    return pathlib.Path(given).resolve()
