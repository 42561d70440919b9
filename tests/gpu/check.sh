#!/usr/bin/env bash
# Builds against the torch that is here, runs all tests that need a GPU, measures against PyTorch's DDP, and writes what
# it found to one JSON file. Without network, without installing anything, in 8 minutes at most on a machine with a GPU.
#
#   check.sh [--dry] [--build FOLDER] [--out FILE.json] [--budget SECONDS]
#   check.sh --pack FOLDER
#
#   --dry     what can be done without a GPU: finds, configures, builds, lists the tests, trains a few steps on the CPU
#             with the programs that would be compared, and says what it would have run
#   --build   a build folder, taken as it is where it is configured already; build/gpu unless told
#   --out     the JSON file; gpu_check.json in the build folder unless told. Beside it lies gpu_check.logs, all output
#   --budget  for all together; DDP_GPU_BUDGET, or 480; with --dry 3000. Each part has its share of it at most
#   --pack    copies headers that the build needs from Debian's packages into FOLDER, for a machine that lacks them:
#             carry it with the checkout and set DDP_GPU_DEPS=FOLDER there
#
# torch is the one of Torch_DIR, of CMAKE_PREFIX_PATH, of python3, or that which cmake/bootstrap.sh has installed. The last line says what passed, what failed
# and what was not run. Exit code: 0 all was run and passed; 1 something failed; 77 nothing failed, but something was
# not run, as where no GPU is there; --dry: 0 or 1.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,/^set/{/^#/!d;s/^# \?//p}' "$0"
  exit
fi
command -v python3 >/dev/null || {
  echo "gpu check: FAILED: python3 is needed"
  exit 1
}
exec python3 -B "$here/check.py" "$@"
