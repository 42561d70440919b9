#!/usr/bin/env python3
"""Prints what each peer takes for a network, and as a multiple of what this library takes.

    ratios.py RESULTS.jsonl [--max-noise SHARE]

Each line of the file is one run: "job" is ranks/network/peer, "noise" the share of the machine that other processes
used meanwhile. Medians over a job's runs with little noise; where there is none, over its least noisy half, marked *.
"""

import argparse
import collections
import json
import statistics

OURS = "ddp"


def mean(values):
    return sum(values) / len(values)


COLUMNS = {
    "wall ms": lambda run: run["ms_median"],
    "CPU ms": lambda run: mean(run["user_ms_step_ranks"]) + mean(run["sys_ms_step_ranks"]),
    "start s": lambda run: run["startup_launch_s"],
    "MB": lambda run: max(run["rss_mb_ranks"]),
}


def read(path):
    jobs = collections.defaultdict(list)
    with open(path) as file:
        for line in file:
            run = json.loads(line)
            if run["rc"] == 0 and run["job"].count("/") == 2 and "ms_median" in run:
                jobs[run["job"]].append(run)
    return jobs


def chosen(runs, max_noise):
    quiet = [run for run in runs if run["noise"] <= max_noise]
    if quiet:
        return quiet, str(len(quiet))
    half = sorted(runs, key=lambda run: run["noise"])[: (len(runs) + 1) // 2]
    return half, f"{len(half)}*"


def print_table(network, peers, max_noise):
    header = "".join(f"{column:>18s}" for column in COLUMNS)
    print(f"\n{network:24s}{'runs':>5s}{header}")
    rows = {}
    for peer, runs in peers.items():
        runs, count = chosen(runs, max_noise)
        rows[peer] = count, {column: statistics.median(map(value, runs)) for column, value in COLUMNS.items()}
    ours = rows[OURS][1] if OURS in rows else None
    for peer, (count, values) in sorted(rows.items(), key=lambda row: (row[0] != OURS, row[1][1]["CPU ms"])):
        cells = ""
        for column, value in values.items():
            ratio = f"x {value / ours[column]:.2f}" if ours and ours[column] > 0 else ""
            cells += f"{value:10.2f} {ratio:>7s}"
        print(f"  {peer:22s}{count:>5s}{cells}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results")
    parser.add_argument("--max-noise", type=float, default=0.08)
    arguments = parser.parse_args()
    networks = collections.defaultdict(dict)
    for job, runs in sorted(read(arguments.results).items()):
        network, _, peer = job.rpartition("/")
        networks[network][peer] = runs
    for network, peers in networks.items():
        print_table(network, peers, arguments.max_noise)


main()
