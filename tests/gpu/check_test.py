#!/usr/bin/env python3
"""Tests of what check.sh makes of what it finds; without torch and without a build."""

import contextlib
import io
import json
import os
import pathlib
import stat
import tempfile
import time
import unittest
from unittest import mock

import benchmark
import found
import gpu_tests
from report import FAILED, NOT_RUN, OK, Report
from running import Budget, run

OUTPUT = """\
[ RUN      ] Suite.Passes
[       OK ] Suite.Passes (12 ms)
[ RUN      ] Suite.Fails
file.cpp:3: Failure
[  FAILED  ] Suite.Fails (3 ms)
[ RUN      ] Over/Suite.WantsTwo/gloo
file.cpp:9: Skipped
not run: it wants 2 GPUs, and this process sees 1
[  SKIPPED ] Over/Suite.WantsTwo/gloo (0 ms)
[ RUN      ] Suite.Hangs
still here
"""


class InFolder(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)

    def program(self, text):
        path = self.folder / "program"
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path


class Verdicts(InFolder):
    def test_are_read_also_of_a_process_that_was_ended(self):
        found_verdicts = {name: verdict for name, (verdict, _) in gpu_tests.verdicts(OUTPUT).items()}
        self.assertEqual(found_verdicts, {"Suite.Passes": "passed", "Suite.Fails": "failed",
                                          "Over/Suite.WantsTwo/gloo": "not run", "Suite.Hangs": "did not end"})

    def test_of_all_processes_come_together_and_a_test_that_none_began_counts_as_failed(self):
        (self.folder / "output").write_text(OUTPUT)
        binary = self.program(f'[ "$GTEST_SHARD_INDEX" = 1 ] && cat "{self.folder}/output"; exit 1\n')
        names = [*gpu_tests.verdicts(OUTPUT), "Suite.Never"]
        result = gpu_tests.run_all(binary, names, self.folder / "logs", 20)
        failed, not_run = gpu_tests.summary(result)
        self.assertEqual(result["passed"], ["Suite.Passes"])
        self.assertEqual(failed, "Suite.Fails, Suite.Hangs, Suite.Never")
        self.assertEqual(not_run, "1 tests: not run: it wants 2 GPUs, and this process sees 1")

    def test_lists_names_with_parameters(self):
        binary = self.program("printf 'Suite.\\n  Passes\\nOver/Suite.\\n  WantsTwo/gloo  # GetParam() = 0x1\\n'\n")
        self.assertEqual(gpu_tests.listed(binary, self.folder / "log"), ["Suite.Passes", "Over/Suite.WantsTwo/gloo"])


class Verdict(InFolder):
    def code(self, dry, *verdicts):
        report = Report(self.folder / "report.json", dry)
        with contextlib.redirect_stdout(io.StringIO()) as output:
            for number, verdict in enumerate(verdicts):
                report.part(f"part {number}", verdict)
            code = report.finish()
        self.last_line = output.getvalue().splitlines()[-1]
        return code

    def test_is_success_only_where_all_was_run_and_passed(self):
        self.assertEqual(self.code(False, OK, OK), 0)
        self.assertEqual(self.code(False, OK, NOT_RUN), 77)
        self.assertEqual(self.code(False, OK, NOT_RUN, FAILED), 1)
        self.assertEqual(self.last_line, "gpu check: passed: part 0; FAILED: part 2; NOT RUN: part 1")
        self.assertEqual(self.code(True, OK, OK), 0)
        self.assertEqual(self.code(True, OK, FAILED), 1)

    def test_is_on_disk_after_every_part(self):
        report = Report(self.folder / "report.json", False)
        with contextlib.redirect_stdout(io.StringIO()):
            report.part("first", OK)
        data = json.loads((self.folder / "report.json").read_text())
        self.assertEqual((data["parts"]["first"]["verdict"], data["verdict"]), ("ok", "not finished"))


class Commands(InFolder):
    def test_are_ended_with_what_they_started(self):
        pid_file = self.folder / "pid"
        result = run([self.program(f'sleep 50 & echo $! > "{pid_file}"; wait\n')], 1, self.folder / "log")
        self.assertTrue(result.out_of_time)
        self.assertEqual(result.why(), "did not end within 1 s")
        pid = int(pid_file.read_text())
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and self.lives(pid):
            os.sched_yield()
        self.assertFalse(self.lives(pid))

    @staticmethod
    def lives(pid):
        try:
            return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            return False

    def test_that_fail_say_their_first_error(self):
        program = self.program("echo one; echo 'a.cpp:1: error: broken'; echo last; exit 3\n")
        result = run([program], 20, self.folder / "log")
        self.assertEqual(result.why(), "exit code 3: a.cpp:1: error: broken")
        program = self.program("printf 'one\\nCMake Error at x:1 (m):\\n  no NCCL\\n\\n  is here\\n'; exit 1\n")
        result = run([program], 20, self.folder / "log")
        self.assertEqual(result.why(), "exit code 1: no NCCL is here")
        self.assertFalse(run([self.folder / "nothing"], 20, self.folder / "log").ok)

    def test_get_no_more_time_than_is_left(self):
        budget = Budget(50)
        self.assertEqual(budget.of(20), 20)
        self.assertLess(budget.of(90, 10), 41)
        self.assertEqual(Budget(3).of(90, 10), 1)


class Finding(InFolder):
    def test_names_each_header_that_is_missing_and_the_ways_to_bring_it(self):
        (self.folder / "gloo").mkdir()
        (self.folder / "gloo" / "config.h").touch()
        with mock.patch.object(found, "include_folders", lambda: [self.folder]):
            with self.assertRaises(found.Missing) as caught:
                found.find_headers(None)
        for part in ("spdlog/spdlog.h", "libfmt-dev", "libgtest-dev", "--pack FOLDER", "DDP_GPU_DEPS"):
            self.assertIn(part, str(caught.exception))
        self.assertNotIn("libgloo-dev", str(caught.exception))

    def test_takes_what_was_packed_before_the_system(self):
        for _, header, _, place in found.HEADERS:
            path = self.folder / place / "include" / header
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        self.assertEqual(found.find_headers(self.folder)["fmt"], self.folder / "spdlog" / "include")

    def test_says_why_a_torch_does_not_serve(self):
        (self.folder / "share/cmake/Torch").mkdir(parents=True)
        (self.folder / "share/cmake/Torch/TorchConfig.cmake").touch()
        self.assertEqual(found.Torch(self.folder, "a test").objection(), "is not a CUDA build")
        (self.folder / "lib").mkdir()
        (self.folder / "lib/libtorch_cuda.so").touch()
        (self.folder / "version.py").write_text("__version__ = '2.10.1+cu130'\n")
        self.assertEqual(found.Torch(self.folder, "a test").objection(), "is 2.10.1+cu130, older than 2.11")
        (self.folder / "version.py").write_text("__version__ = '2.12.0'\n")
        self.assertIsNone(found.Torch(self.folder, "a test").objection())


class Rounds(InFolder):
    def test_end_without_a_failure_where_the_time_ends(self):
        (self.folder / "benchmark_train").symlink_to(self.program("sleep 50\n"))
        bench = benchmark.Bench(self.folder, None, self.folder / "logs", Budget(27))
        bench.budget.of = lambda limit, reserve: 1.0
        self.assertFalse(bench.round([benchmark.Case("mlp", 1, "nccl", False, [(1, "views")])], ours_first=True))
        self.assertEqual((bench.failures, bench.runs), ([], []))

    def test_note_what_each_rank_0_prints_and_who_failed(self):
        text = """[ $RANK = 0 ] && echo '{"peer": "ddp", "ms_median": 2, "loss_first": 1}'
                  [ $RANK != 1 ] || exit $FAIL\n"""
        (self.folder / "benchmark_train").symlink_to(self.program(text))
        bench = benchmark.Bench(self.folder, None, self.folder / "logs", Budget(100))
        case = benchmark.Case("mlp", 2, "gloo", True, [(1, "views")])
        for code in ("0", "5"):
            with mock.patch.dict(os.environ, {"FAIL": code}):
                bench.ours(case)
        self.assertEqual([run["ms_median"] for run in bench.runs], [2, 2])
        self.assertEqual([failure["why"] for failure in bench.failures], ["exit code 5: no output"])


class Ratios(unittest.TestCase):
    def test_are_of_medians_over_the_rounds(self):
        runs = [{"key": "k", "peer": peer, "ms_median": ms, "loss_first": 2.3}
                for peer, ms in (("ddp", 1), ("pytorch", 4), ("ddp", 3), ("ddp", 2))]
        row, = benchmark.ratios(runs)
        self.assertEqual((row["ddp/pytorch"], row["rounds"], row["same_first_loss"]), (0.5, 3, True))

    def test_of_networks_that_differ_are_marked(self):
        runs = [{"key": "k", "peer": peer, "ms_median": 1, "loss_first": loss}
                for peer, loss in (("ddp", 2), ("pytorch", 3))]
        self.assertFalse(benchmark.ratios(runs)[0]["same_first_loss"])

    def test_scaling_compares_one_rank_with_all(self):
        rows = [{"key": benchmark.Case("mlp", ranks, "nccl", False, []).key(benchmark.LARGE, "views"),
                 "ms": {"ddp": ms}} for ranks, ms in ((1, 8.0), (4, 10.0))]
        self.assertEqual(benchmark.scaling(rows, 4),
                         [{"model": "mlp", "peer": "ddp", "ranks": 4, "share_of_perfect": 0.8}])


unittest.main()
