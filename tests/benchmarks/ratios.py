#!/usr/bin/env python3
"""Prints what each peer takes for a network, and as a multiple of what this library takes.

    ratios.py RESULTS.jsonl [--max-noise SHARE] [--share-of PEER ...]

Each line of the file is one run: "job" is ranks/network/peer, "noise" the share of the machine that other processes
used meanwhile. Medians over a job's runs with little noise; where there is none, over its least noisy half, marked *.
--share-of: the other way round; wall and CPU time of each, this library's included, as a share of what PEER takes.
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


def medians(peers, max_noise):
    """For each peer how many runs counted, and the median of each column."""
    rows = {}
    for peer, runs in peers.items():
        runs, count = chosen(runs, max_noise)
        rows[peer] = count, {column: statistics.median(map(value, runs)) for column, value in COLUMNS.items()}
    return rows


def in_order(rows):
    return sorted(rows.items(), key=lambda row: (row[0] != OURS, row[1][1]["CPU ms"]))


def print_table(network, rows):
    header = "".join(f"{column:>18s}" for column in COLUMNS)
    print(f"\n{network:24s}{'runs':>5s}{header}")
    ours = rows[OURS][1] if OURS in rows else None
    for peer, (count, values) in in_order(rows):
        cells = ""
        for column, value in values.items():
            ratio = f"x {value / ours[column]:.2f}" if ours and ours[column] > 0 else ""
            cells += f"{value:10.2f} {ratio:>7s}"
        print(f"  {peer:22s}{count:>5s}{cells}")


def print_shares(network, rows, others):
    times = ("wall ms", "CPU ms")
    header = "".join(f"{column:>10s}" for column in (*times, "MB"))
    header += "".join(f"   of {other:17s}" for other in others)
    print(f"\n{network:24s}{'runs':>5s}{header}")
    for peer, (count, values) in in_order(rows):
        cells = "".join(f"{values[column]:10.2f}" for column in (*times, "MB"))
        for other in others:
            shares = [f"{values[time] / rows[other][1][time]:.2f}" for time in times] if other in rows else ["-", "-"]
            cells += f"   wall {shares[0]:>4s} CPU {shares[1]:>4s}  "
        print(f"  {peer:22s}{count:>5s}{cells}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results")
    parser.add_argument("--max-noise", type=float, default=0.08)
    parser.add_argument("--share-of", metavar="PEER", action="append", default=[])
    arguments = parser.parse_args()
    networks = collections.defaultdict(dict)
    for job, runs in sorted(read(arguments.results).items()):
        network, _, peer = job.rpartition("/")
        networks[network][peer] = runs
    for network, peers in networks.items():
        rows = medians(peers, arguments.max_noise)
        if arguments.share_of:
            print_shares(network, rows, arguments.share_of)
        else:
            print_table(network, rows)


main()
