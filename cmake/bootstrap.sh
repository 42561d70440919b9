#!/usr/bin/env bash
# Provides what the build needs, then configures and builds a preset: cmake/bootstrap.sh PRESET [TARGET...]
#
# Debian packages are installed only where they are missing. LibTorch is, in this order: the one given by Torch_DIR or
# CMAKE_PREFIX_PATH; the one of an importable Python torch; torch from pip in a virtual environment under DDP_CACHE_DIR
# (default ~/.cache/ddp). The preset cuda takes a given one if it is a CUDA build, else has an environment of its own.
# Prints a line a step; stops at the first failure with its reason (exit code 77: no room for the CUDA build). Safe to
# run again.
set -euo pipefail
export LC_ALL=C.UTF-8

readonly torch_oldest=2.11
readonly cuda_room_gb=12  # the environment takes 5.5, what pip downloads 2.5 and may keep again in its cache, the build 1
libraries=(spin libgloo-dev libspdlog-dev libfmt-dev libstb-dev libcli11-dev libgtest-dev dataset-fashion-mnist)

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
home=~
cache=${DDP_CACHE_DIR:-${XDG_CACHE_HOME:-$home/.cache}/ddp}
preset=${1:?usage: cmake/bootstrap.sh PRESET [TARGET...]}
shift
build=$root/build/$preset

torch_version=2.13.0
environment=torch-$torch_version
packages=("torch==$torch_version")
if [[ $preset == cuda ]]; then
  torch_version=2.14.1
  environment=cuda-torch-$torch_version
  # crt and cccl: headers that CUDA's own in the other packages include; nvcc: for kernels; in the version torch asks for.
  packages=("torch==$torch_version" "cuda-toolkit[crt,cccl,nvcc]")
elif [[ $preset == dev ]]; then
  libraries+=(iproute2 openmpi-bin)  # what the tests start
  reader_version=2.21.0  # tensorboard reads the event files of the tests; what else it asks for serves its pages alone
  reader_packages=("tensorboard==$reader_version" absl-py==2.5.1 numpy==2.4.6 protobuf==7.36.2)
elif [[ $preset == arm ]]; then
  libraries+=(googletest g++-aarch64-linux-gnu qemu-user)
fi

say() { printf -- '-- %s\n' "$*"; }
fail() {
  printf 'bootstrap: %s\n' "$*" >&2
  exit 1
}

# quietly WHAT COMMAND...: the command's output goes to a log, whose end is shown if it fails.
quietly() {
  local what=$1
  shift
  say "$what"
  if ! "$@" >"$log" 2>&1 </dev/null; then
    tail -n 40 "$log" >&2
    fail "failed: $what ($*)"
  fi
}

# Prints the folder of TorchConfig.cmake below one entry of a prefix path, if it has one that serves the preset.
torch_config_below() {
  local suffix
  for suffix in "" /share/cmake/Torch /Torch /cmake/Torch /lib/cmake/Torch; do
    if [[ -e $1$suffix/TorchConfig.cmake ]]; then
      [[ $preset != cuda || -e $1$suffix/../../../lib/libtorch_cuda.so ]] || return 0
      printf '%s\n' "$1$suffix"
      return
    fi
  done
}

# Prints the same for the torch that this Python would import, if it is new enough. Does not import it.
torch_config_of_python() {
  "$1" - "$torch_oldest" <<'PYTHON' 2>/dev/null || true
import importlib.util, pathlib, re, sys
sys.path[:] = [entry for entry in sys.path if entry]
spec = importlib.util.find_spec("torch")
if spec and spec.origin:
    folder = pathlib.Path(spec.origin).parent
    version = re.search(r"__version__ = '(\d+)\.(\d+)", (folder / "version.py").read_text())
    oldest = [int(part) for part in sys.argv[1].split(".")]
    config = folder / "share/cmake/Torch"
    if (config / "TorchConfig.cmake").exists() and [int(part) for part in version.groups()] >= oldest:
        print(config)
PYTHON
}

# Sets torch_dir and torch_source from what is there already; leaves torch_dir empty where nothing is.
find_torch() {
  local entry entries
  torch_dir=
  if [[ -n ${Torch_DIR:-} ]]; then
    torch_source="Torch_DIR"
    torch_dir=$(torch_config_below "$Torch_DIR")
    [[ -n $torch_dir || $preset == cuda ]] || fail "Torch_DIR is set, but $Torch_DIR holds no TorchConfig.cmake"
    [[ -z $torch_dir ]] || return 0
  fi
  IFS=':;' read -r -a entries <<<"${CMAKE_PREFIX_PATH:-}"
  for entry in "${entries[@]}"; do
    torch_source="CMAKE_PREFIX_PATH"
    torch_dir=$(torch_config_below "$entry")
    [[ -z $torch_dir ]] || return 0
  done
  if [[ $preset != cuda ]]; then
    torch_source="Python's torch"
    torch_dir=$(torch_config_of_python python3)
    [[ -z $torch_dir ]] || return 0
  fi
  local venv
  venv=$(venv_of python3)
  if is_complete "$venv"; then
    torch_source="installed earlier"
    torch_dir=$(torch_config_of_python "$venv/bin/python")
  fi
}

# The environment's folder carries the versions, so that another Python or torch makes another one.
venv_of() {
  local python_version
  python_version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])') || fail "$1 does not run"
  printf '%s\n' "$cache/$environment-python$python_version"
}

# The stamp of an environment names what is in it. It comes last: an installation that was interrupted is started again.
is_complete() { [[ -e $1/complete && $(<"$1/complete") == "${packages[*]}" ]]; }

missing_packages() {
  local package
  [[ -n ${CXX:-} ]] || command -v c++ >/dev/null || echo g++
  command -v cmake >/dev/null || echo cmake
  command -v ninja >/dev/null || echo ninja-build
  if [[ -z $torch_dir || $preset == dev ]] && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then echo python3-venv; fi
  for package in "${libraries[@]}"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || echo "$package"
  done
}

install_packages() {
  local missing become=()
  mapfile -t missing < <(missing_packages)
  if [[ ${#missing[@]} -eq 0 ]]; then
    say "Debian packages: all there"
    return
  fi
  local command="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
  command -v apt-get >/dev/null ||
    fail "not a Debian system; install what these Debian packages hold, then run this again: ${missing[*]}"
  if [[ $(id -u) -ne 0 ]]; then
    # sudo may ask for a password only where somebody can type it.
    if ! sudo -n true 2>/dev/null && ! { [[ -t 0 ]] && sudo -v; }; then
      fail "Debian packages are missing, and this user may not install them. Run as root, then run this again:
  $command"
    fi
    become=(sudo)
  fi
  # A stale index of another archive is no reason to stop: the installation decides.
  say "Reading Debian's package lists"
  "${become[@]}" apt-get -o DPkg::Lock::Timeout=300 update >"$log" 2>&1 </dev/null || tail -n 5 "$log" >&2
  quietly "Installing Debian packages: ${missing[*]}" "${become[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${missing[@]}"
}

# Says what pip is about to fetch where that is a CUDA build. Fails where pip finds nothing that suits.
announce_download() {
  local packages
  say "Asking pip what torch $torch_version means on this machine"
  "$1" -m pip install --quiet --dry-run --ignore-installed --report "$log.json" "torch==$torch_version" >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    fail "pip finds no torch $torch_version for this Python; give a LibTorch: CMAKE_PREFIX_PATH=... $0"
  }
  packages=$("$1" - "$log.json" <<'PYTHON'
import json, sys
names = [item["metadata"]["name"].lower() for item in json.load(open(sys.argv[1]))["install"]]
print(sum(name.startswith(("nvidia-", "cuda-", "triton")) for name in names))
PYTHON
  )
  if [[ $packages -gt 0 ]]; then
    say "NOTE: this is the CUDA build, with $packages packages of CUDA libraries: pip will fetch several GB." \
      "To use a LibTorch that you have (a CPU build does): stop this and set CMAKE_PREFIX_PATH to its folder"
  fi
}

require_room_for_cuda() {
  local free_kb
  free_kb=$(df --output=avail -k "$cache" | tail -n 1)
  [[ $free_kb -lt $((cuda_room_gb * 1024 * 1024)) ]] || return 0
  printf 'bootstrap: a CUDA build of LibTorch needs %d GB free in %s, which has %d\n' \
    "$cuda_room_gb" "$cache" $((free_kb / 1024 / 1024)) >&2
  exit 77
}

install_torch() {
  local venv
  venv=$(venv_of python3)
  torch_source="installed now"
  mkdir -p "$cache"
  exec 9>"$cache/lock"
  flock -n 9 || say "Waiting for another bootstrap that installs into $cache"
  flock 9
  if ! is_complete "$venv"; then
    if [[ ! -e $venv/complete ]]; then  # else it is whole, of other packages, which pip adds to
      rm -rf "$venv"
      [[ $preset != cuda ]] || require_room_for_cuda
      quietly "Making a virtual environment in $venv" python3 -m venv "$venv"
    fi
    rm -f "$venv/complete"
    # Old pips fetch a whole wheel to learn what it needs. Where there is no newer one, the old one serves.
    "$venv/bin/python" -m pip install --quiet --upgrade pip >"$log" 2>&1 </dev/null || true
    [[ $preset == cuda ]] || announce_download "$venv/bin/python"
    # Downloads lie in the environment's folder meanwhile, whose file system has the room.
    mkdir -p "$venv/tmp"
    quietly "Installing ${packages[*]} with pip" env TMPDIR="$venv/tmp" "$venv/bin/python" -m pip install "${packages[@]}"
    rm -rf "$venv/tmp"
    printf '%s\n' "${packages[*]}" >"$venv/complete"
  fi
  exec 9>&-
  torch_dir=$(torch_config_of_python "$venv/bin/python")
  [[ -n $torch_dir ]] || fail "the torch that pip installed in $venv has no TorchConfig.cmake"
}

# Sets reader to a Python that reads event files, in an environment of its own. Without one a test is not there, which is
# no reason to stop: the packages may be out of reach where LibTorch is not.
install_reader() {
  local venv
  venv=$cache/tensorboard-$reader_version-$(basename "$(venv_of python3)" | sed 's/.*-//')
  mkdir -p "$cache"
  exec 9>"$cache/lock"
  flock 9
  if [[ ! -e $venv/complete || $(<"$venv/complete") != "${reader_packages[*]}" ]]; then
    say "Installing ${reader_packages[*]} with pip"
    rm -rf "$venv"
    if python3 -m venv "$venv" >"$log" 2>&1 &&
      "$venv/bin/python" -m pip install --no-deps "${reader_packages[@]}" >>"$log" 2>&1 </dev/null; then
      printf '%s\n' "${reader_packages[*]}" >"$venv/complete"
    else
      tail -n 5 "$log" >&2
      say "NOTE: the test that reads event files with tensorboard is left out, see above"
    fi
  fi
  exec 9>&-
  [[ ! -e $venv/complete ]] || reader=$venv/bin/python
}

# Configures where that was not done yet, for another LibTorch or reader, or in another folder.
configure() {
  local cached=$build/CMakeCache.txt fresh=()
  if [[ -e $build/build.ninja ]] && grep -qxF "Torch_DIR:PATH=$torch_dir" "$cached" &&
    grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$cached" &&
    { [[ -z $reader ]] || grep -qxF "DDP_TENSORBOARD_PYTHON:FILEPATH=$reader" "$cached"; }; then
    return
  fi
  [[ ! -e $cached ]] || fresh=(--fresh)
  cd "$root"
  quietly "Configuring build/$preset" cmake --preset "$preset" "${fresh[@]}" "-DTorch_DIR:PATH=$torch_dir" \
    ${reader:+"-DDDP_TENSORBOARD_PYTHON:FILEPATH=$reader"}
}

# A compiler that reads torch takes up to 2 GB.
jobs() {
  local cores gigabytes
  cores=$(nproc)
  gigabytes=$(awk '/^MemAvailable:/ { print int($2 / 2097152) }' /proc/meminfo)
  if [[ $gigabytes -lt 1 ]]; then gigabytes=1; fi
  echo $((cores < gigabytes ? cores : gigabytes))
}

command -v python3 >/dev/null || fail "python3 is needed: apt-get install python3"
log=$(mktemp)
trap 'rm -f "$log" "$log.json"' EXIT
find_torch
install_packages
[[ -n $torch_dir ]] || install_torch
reader=
[[ $preset != dev ]] || install_reader
torch_dir=$(cd "$torch_dir" && pwd -P)
say "LibTorch: ${torch_dir%/share/cmake/Torch} ($torch_source)"
configure
targets=()
[[ $# -eq 0 ]] || targets=(--target "$@")
say "Building build/$preset"
NINJA_STATUS='   [%f/%t] ' cmake --build "$build" -j "$(jobs)" "${targets[@]}" || fail "the build failed, see above"
