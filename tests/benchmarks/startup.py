#!/usr/bin/env python3
"""From launch to the end of the first training step: ddprun against torchrun with Python, in turn.

    startup.py BIN [--rounds N] [--ranks N]

BIN holds ddprun and benchmark_startup_step (cmake/bootstrap.sh release ddprun benchmarks: build/release/bin). Run it
with a Python that imports torch. Prints the median of the rounds, wall seconds to the step's end and CPU seconds of all
processes, and the ratios.
"""

import argparse
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time


def measure(command):
    """Wall seconds to the end of the first step, and CPU seconds of everything that was started."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.clock_gettime(time.CLOCK_MONOTONIC)
    result = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = "first step ended at "
    if result.returncode != 0 or words not in result.stdout:
        sys.exit(f"{command} failed:\n{result.stdout}\n{result.stderr}")
    end = float(result.stdout.split(words)[1].split()[0])
    return end - begin, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ranks", default="2")
    arguments = parser.parse_args()
    here = pathlib.Path(__file__).parent
    commands = {
        "ddprun": [arguments.bin / "ddprun", "--nproc-per-node", arguments.ranks, arguments.bin / "benchmark_startup_step"],
        "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", arguments.ranks,
                     here / "startup_step.py"],
    }  # fmt: skip
    taken = {name: [] for name in commands}
    for command in commands.values():
        measure(command)  # fills the page cache
    for _ in range(arguments.rounds):
        for name, command in commands.items():
            taken[name].append(measure(command))
    medians = {name: [statistics.median(column) for column in zip(*rows)] for name, rows in taken.items()}
    for name, (wall, cpu) in medians.items():
        print(f"{name:9} {wall:6.3f} s to the end of the first step, {cpu:6.2f} s of CPU time")
    ratios = [ours / theirs for ours, theirs in zip(medians["ddprun"], medians["torchrun"])]
    print(f"ratio     {ratios[0]:6.3f}, {ratios[1]:6.3f}; median of {arguments.rounds}, {arguments.ranks} ranks")


if __name__ == "__main__":
    main()
