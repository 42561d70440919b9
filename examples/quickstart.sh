#!/usr/bin/env bash
# Installs what is missing, builds, and trains a small network on Fashion-MNIST on 2 ranks.
# Arguments go to the program: ./examples/quickstart.sh --resume
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
"$root/cmake/bootstrap.sh" release fashion_mnist ddprun

build=$root/build/release
data=$build/fashion-mnist
echo "-- Unpacking the images to build/release/fashion-mnist where they are not yet"
mkdir -p "$data"
for packed in /usr/share/datasets/fashion-mnist/*.gz; do
  file=$data/$(basename "$packed" .gz)
  if [[ ! -e $file ]]; then
    gunzip -c "$packed" >"$file.part"
    mv "$file.part" "$file"
  fi
done

echo "-- Training on 2 ranks"
exec "$build/bin/ddprun" --nproc-per-node 2 "$build/bin/fashion_mnist" --data "$data" "$@"
