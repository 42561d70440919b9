# Sourced by compare.sh and optimizers.sh; both run run_all.py of a folder of peers.

# usage SCRIPT: its head comment.
usage() {
  sed -n '2,/^set/{/^#/!d;s/^# \?//p}' "$1" >&2
  exit 2
}

python_of_libtorch() {
  local torch
  torch=$(sed -n 's|^Torch_DIR:PATH=\(.*\)/share/cmake/Torch$|\1|p' "$root/build/release/CMakeCache.txt")
  printf '%s\n' "${torch%/lib/python*}/bin/python"
}

# Builds this library's programs. Sets root, bin and PEERS_PYTHON.
build_ours() {
  root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
  "$root/cmake/bootstrap.sh" release benchmarks ddprun
  bin=$root/build/release/bin
  export PEERS_PYTHON=${PEERS_PYTHON:-$(python_of_libtorch)}
  "$PEERS_PYTHON" -c "import torch" || {
    echo "${0##*/}: $PEERS_PYTHON does not import torch; set PEERS_PYTHON" >&2
    exit 1
  }
  export DDP_LOG_LEVEL=${DDP_LOG_LEVEL:-warn}
}
