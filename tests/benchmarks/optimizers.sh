#!/usr/bin/env bash
# Trains networks with AdamW by this library, by LibTorch without any communication and by PyTorch, in turn, two ranks
# of one thread each, and prints what each takes and which share that is of what the others take.
#
#   optimizers.sh PEERS_FOLDER [OPTION...]
#
# PEERS_FOLDER holds run_all.py and ddp_python.py, and is only read. The options go to run_all.py, for example
# --rounds 3 --until 1800, or --fresh --max-noise 1 on a machine that is never quiet. A run counts where other processes
# used little of the machine meanwhile; results are kept in build/optimizers-*.jsonl and count the next time too, so remove
# it after a change. NETWORKS names some of "mlp gpt resnet". PEERS_PYTHON names a Python that imports torch; otherwise
# the one beside the LibTorch in use serves.
#
# All have the same setting of the allocator: that of keep_freed_memory, or, with ALLOCATOR=glibc, glibc's own. Of this
# library, ddp:
#   torch_adamw        torch::optim::AdamW
#   ddp                ddp::optim::AdamW
#   in_backward        and step_in_backward()
#   flat               and flatten_parameters
#   flat_in_backward   and both
# alone_*: two processes that do not communicate. pytorch_*: PyTorch's DistributedDataParallel over Gloo, with
# gradient_as_bucket_view and static_graph, and AdamW(fused=True) or (foreach=True).
set -euo pipefail

# shellcheck source=tests/benchmarks/compare_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/compare_common.sh"
[[ $# -ge 1 ]] || usage "$0"
peers=$(cd "$1" && pwd -P)
shift
build_ours

export OMP_NUM_THREADS=1
keep=1
if [[ ${ALLOCATOR:-keeps} == glibc ]]; then
  keep=0
else
  export MALLOC_TRIM_THRESHOLD_=1073741824 MALLOC_MMAP_THRESHOLD_=33554432
fi

extra=()
add() { extra+=(--extra "adamw2/$model/$1=$2"); }
for model in ${NETWORKS:-mlp gpt resnet}; do
  train="$bin/ddprun --inherit-output --nproc-per-node 2 $bin/benchmark_train --model $model --optimizer adamw --keep-memory $keep"
  add ddp "$train --library ddp"
  add in_backward "$train --library ddp --step-in-backward"
  add flat "$train --library ddp --flatten"
  add flat_in_backward "$train --library ddp --flatten --step-in-backward"
  add torch_adamw "$train --library torch"
  add alone_torch_adamw "$train --library torch --alone"
  add alone_ddp_adamw "$train --library ddp --alone"
  for implementation in fused foreach; do
    add pytorch_$implementation "$PEERS_PYTHON -m torch.distributed.run --nproc-per-node=2 --master-port=@PORT@ \
      $root/tests/benchmarks/ddp_optimizers.py $peers $implementation \
      --model $model --gradient-as-bucket-view --static-graph"
  done
done
results=$root/build/optimizers-${ALLOCATOR:-keeps}.jsonl
echo "-- Running all in turn"
python3 "$peers/run_all.py" --select none --rounds 5 --out "$results" "${extra[@]}" "$@"
python3 "$root/tests/benchmarks/ratios.py" "$results" \
  --share-of alone_torch_adamw --share-of pytorch_fused --share-of pytorch_foreach
