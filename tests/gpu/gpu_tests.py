"""Runs gpu_tests in several processes at once and reads what became of each test."""

import re

from running import Running, run

SHARDS = 4  # on one GPU at a time: each test takes seconds to start CUDA, and little of the device


def listed(binary, log):
    """Names of all tests."""
    result = run([binary, "--gtest_list_tests"], 60, log)
    names, suite = [], ""
    for line in result.output.splitlines():
        if re.match(r"\S+\.(\s|$)", line):
            suite = line.split()[0]
        elif line.startswith("  ") and suite:
            names.append(suite + line.split()[0])
    return names if result.ok else []


def verdicts(output):
    """{test: (verdict, words)} of one process's output."""
    found, current, words = {}, None, []
    for line in output.splitlines():
        begun = re.match(r"\[ RUN +\] (\S+)", line)
        ended = re.match(r"\[ +(OK|FAILED|SKIPPED) +\] (\S+) \((\d+) ms\)", line)
        if begun:
            current, words = begun.group(1), []
        elif ended and ended.group(2) == current:
            verdict = {"OK": "passed", "FAILED": "failed", "SKIPPED": "not run"}[ended.group(1)]
            found[current] = (verdict, "" if verdict == "passed" else "\n".join(words)[:4000])
            current = None
        elif current:
            words.append(line)
    if current:
        found[current] = ("did not end", "\n".join(words)[-4000:])
    return found


def run_all(binary, names, logs, limit):
    """{"passed": [...], "failed": [...], "not run": [...], "did not end": [...], "words": {...}}"""
    running = [Running([binary, "--gtest_color=no"], limit, logs / f"tests{shard}.log",
                       {"GTEST_TOTAL_SHARDS": str(SHARDS), "GTEST_SHARD_INDEX": str(shard), "OMP_NUM_THREADS": "1"})
               for shard in range(SHARDS)]
    found = {}
    for process in running:
        found.update(verdicts(process.wait().output))
    result = {"passed": [], "failed": [], "not run": [], "did not end": [], "not begun": [], "words": {}}
    for name in names:
        verdict, words = found.get(name, ("not begun", ""))
        result[verdict].append(name)
        if words:
            result["words"][name] = words
    return result


def summary(result):
    """(what failed in words, or "", what was not run in words, or "")"""
    failed = result["failed"] + result["did not end"] + result["not begun"]
    reasons = {re.search(r"not run: .*", result["words"].get(name, "not run: it was skipped")).group(0)
               if "not run: " in result["words"].get(name, "") else "skipped" for name in result["not run"]}
    return ", ".join(failed), (f"{len(result['not run'])} tests: " + "; ".join(sorted(reasons)) if reasons else "")
