#!/usr/bin/env bash
# Trains three networks with this library and with what a user would pick instead, in turn, and prints the ratios.
#
#   compare.sh PEERS_FOLDER [OPTION...]
#
# PEERS_FOLDER holds build.sh and run_all.py. The options go to run_all.py, for example --rounds 3 --until 1800, or
# --only '/(cpp_reducer|py_ddp)$' for some of the peers. A run counts where other processes used little of the
# machine meanwhile; results are kept in build/peers/results.jsonl and count the next time too.
# PEERS_PYTHON names a Python that imports torch; otherwise the one beside the LibTorch in use serves.
set -euo pipefail

[[ $# -ge 1 ]] || {
  sed -n '2,/^set/{/^#/!d;s/^# \?//p}' "$0" >&2
  exit 2
}
peers=$(cd "$1" && pwd -P)
shift
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
"$root/cmake/bootstrap.sh" release benchmarks ddprun
bin=$root/build/release/bin

python_of_libtorch() {
  local torch
  torch=$(sed -n 's|^Torch_DIR:PATH=\(.*\)/share/cmake/Torch$|\1|p' "$root/build/release/CMakeCache.txt")
  printf '%s\n' "${torch%/lib/python*}/bin/python"
}
export PEERS_PYTHON=${PEERS_PYTHON:-$(python_of_libtorch)}
"$PEERS_PYTHON" -c "import torch" || {
  echo "compare.sh: $PEERS_PYTHON does not import torch; set PEERS_PYTHON" >&2
  exit 1
}

echo "-- Building the peers in build/peers"
"$peers/build.sh" "$root/build/peers"

extra=()
for model in mlp resnet gpt; do
  ours="$bin/ddprun --inherit-output --nproc-per-node 2 $bin/benchmark_train --model $model"
  extra+=(--extra "train2/$model/ddp=$ours" --extra "train2/$model/ddp_no_views=$ours --no-views")
done
echo "-- Running all in turn"
DDP_LOG_LEVEL=${DDP_LOG_LEVEL:-warn} python3 "$root/build/peers/run_all.py" --select train2 --rounds 5 \
  --out results.jsonl "${extra[@]}" "$@"
python3 "$root/tests/benchmarks/ratios.py" "$root/build/peers/results.jsonl"
