#!/usr/bin/env bash
# Searches one configuration of a model: check.sh MODEL.pml FOLDER SPIN COMPILER [-DNAME=VALUE...]
# FOLDER is for what is made on the way. Says last "no fault in any order", "a fault was found", or that the search did
# not look at everything, which proves nothing.
set -euo pipefail

model=$(realpath "$1") folder=$2 spin=$3 compiler=$4
shift 4
rm -rf "$folder"
mkdir -p "$folder"
cd "$folder"
"$spin" -a "$@" "$model"
# SAFETY: assertions and deadlocks. COLLAPSE: states are stored whole, not as hashes; MEMLIM: of at most so many MB.
"$compiler" -x c -w -O2 -DSAFETY -DCOLLAPSE -DMEMLIM=3000 -o pan pan.c
./pan -m100000 | tee report
if grep -q 'assertion violated\|invalid end state ' report && grep -q 'errors: 1$' report; then
  echo "a fault was found"
elif grep -q 'errors: 0$' report && ! grep -qi 'search depth too small\|out of memory\|not completed\|aborted' report; then
  echo "no fault in any order"
else
  echo "the search is not complete"
  exit 1
fi
