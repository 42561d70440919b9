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

# shellcheck source=tests/benchmarks/compare_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/compare_common.sh"
[[ $# -ge 1 ]] || usage "$0"
peers=$(cd "$1" && pwd -P)
shift
build_ours

echo "-- Building the peers in build/peers"
"$peers/build.sh" "$root/build/peers"

extra=()
for model in mlp resnet gpt; do
  ours="$bin/ddprun --inherit-output --nproc-per-node 2 $bin/benchmark_train --model $model"
  extra+=(--extra "train2/$model/ddp=$ours" --extra "train2/$model/ddp_no_views=$ours --no-views")
done
echo "-- Running all in turn"
python3 "$root/build/peers/run_all.py" --select train2 --rounds 5 --out results.jsonl "${extra[@]}" "$@"
python3 "$root/tests/benchmarks/ratios.py" "$root/build/peers/results.jsonl"
