"""See check.sh."""

import argparse
import json
import os
import pathlib
import py_compile
import re
import sys

import benchmark
import build
import found
import gpu_tests
import pack
from report import FAILED, NOT_RUN, OK, Report
from running import Budget, run

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NOTE_ON_ONE = ("In a world of one this library's wrapper has no reducer and makes no communicator, while PyTorch's DDP fills "
               "buckets and calls NCCL: the ratio says what a step costs a user, not how good the reduction is. Two ranks on "
               "one GPU talk over Gloo, through the host's memory, in both.")
ASK_TORCH = """
import json, torch
print(json.dumps([{"name": p.name, "memory_gb": round(p.total_memory / 2**30, 1), "capability": f"{p.major}.{p.minor}",
                   "cuda": torch.version.cuda, "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
                  for p in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))]))
"""


def gpus_here(python, logs):
    """A list with one entry for each GPU that this process may use. torch is asked first, then the driver's program."""
    if python:
        result = run([python, "-c", ASK_TORCH], 90, logs / "gpus.log", {"PYTHONWARNINGS": "ignore"})
        lines = [line for line in result.output.splitlines() if line.startswith("[")]
        if result.ok and lines:
            return json.loads(lines[-1])
    fields = found.output_of(["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"])
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return []
    return [{"name": line.split(",")[0], "capability": line.split(",")[-1].strip()} for line in fields.splitlines()]


class Check:
    def __init__(self, arguments):
        self.dry = arguments.dry
        self.budget = Budget(arguments.budget)
        self.folder = pathlib.Path(arguments.build).resolve()
        self.report = Report(pathlib.Path(arguments.out or self.folder / "gpu_check.json").resolve(), arguments.dry)
        self.build = None
        self.gpus = []
        self.names = []

    # Each part says for itself how it ended, and returns whether what builds on it can go on.

    def find_torch(self):
        self.build = build.Build(ROOT, self.folder)
        self.report.data["torch"] = self.build.describe()
        self.report.part("find torch", OK, f"{self.build.torch.version}, {self.build.torch.source}")
        return True

    def find_GPUs(self):
        self.gpus = gpus_here(self.build.torch.python if self.build else None, self.folder / "gpu_check")
        self.report.data["gpu"] = self.gpus or None
        self.report.has_no_gpu = not self.gpus
        names = ", ".join(gpu["name"] for gpu in self.gpus)
        self.report.part("find GPUs", OK if self.gpus else NOT_RUN, names or "no GPU is there: torch and the driver show none")
        return bool(self.gpus)

    def configure(self):
        if self.build.is_configured:
            self.report.part("configure", OK, f"{self.folder} is")
            return True
        capability = self.gpus[0]["capability"] if self.gpus else None
        result = self.build.configure(capability, self.budget.of(600 if self.dry else 90))
        self.build.is_configured = result.ok
        kernels = re.search(r"CUDA kernels: (.*)", result.output)
        self.report.data["torch"] = self.build.describe()
        words = (kernels.group(0)[:200] if kernels else "") if result.ok else result.why()
        self.report.part("configure", OK if result.ok else FAILED, words, result.seconds)
        return result.ok

    def build_all(self):
        result = self.build.build(build.jobs(), self.budget.of(2400 if self.dry else 330, 60))
        self.report.part("build all", OK if result.ok else FAILED, "" if result.ok else result.why(), result.seconds)
        return result.ok

    def list_tests(self):
        binary = self.build.bin / "gpu_tests"
        self.names = gpu_tests.listed(binary, self.build.logs / "list.log") if binary.exists() else []
        words = f"{len(self.names)} tests" if self.names else "gpu_tests lists no tests"
        self.report.part("list tests", OK if self.names else FAILED, words)
        return bool(self.names)

    def fail_without_a_GPU(self):
        """The tests must not pass where they test nothing."""
        result = run([self.build.bin / "gpu_tests"], 60, self.build.logs / "no_gpu.log", {"CUDA_VISIBLE_DEVICES": ""})
        ok = result.code == 77 and "no GPU is there" in result.output
        self.report.part("fail without a GPU", OK if ok else FAILED, "" if ok else result.why())

    def check_peer_script(self):
        py_compile.compile(str(HERE / "peer_ddp.py"), cfile=os.devnull, doraise=True)
        self.report.part("check peer script", OK)

    def train_on_the_CPU(self):
        """A few steps on the CPU: that both programs run, and train the same."""
        bench = benchmark.Bench(self.build.bin, self.build.torch.python, self.build.logs, self.budget)
        bench.steps = {"steps": 2, "warmup": 1, "block": 1}
        for model in benchmark.MODELS:
            case = benchmark.Case(model, 2, "gloo", True, [(1, "views"), (1, "no-views+static")])
            case.on_cpu = True
            bench.ours(case)
            bench.theirs(case)
        rows = benchmark.ratios(bench.runs)
        self.report.data["smoke_on_cpu"] = {"runs": bench.runs, "failures": bench.failures}
        alike = [row for row in rows if row.get("same_first_loss")]
        if bench.failures:
            return self.report.part("train on the CPU", FAILED, bench.failures[0]["why"])
        if self.build.torch.python is None:
            return self.report.part("train on the CPU", OK, "this library alone: no Python imports this torch")
        ok = len(alike) == len(rows) == 2 * len(benchmark.MODELS)
        words = f"the first losses agree in {len(alike)} of {len(rows)} cases"
        return self.report.part("train on the CPU", OK if ok else FAILED, words)

    def tests(self):
        result = gpu_tests.run_all(self.build.bin / "gpu_tests", self.names, self.build.logs, self.budget.of(150, 30))
        self.report.data["tests"] = result
        failed, not_run = gpu_tests.summary(result)
        self.report.part("tests", FAILED if failed else OK, f"{len(result['passed'])} of {len(self.names)} passed"
                         + (f"; failed: {failed}" if failed else ""))
        if not_run:
            self.report.part("tests of several GPUs or of kernels", NOT_RUN, not_run)

    def benchmarks(self):
        python = self.build.torch.python
        bench = benchmark.Bench(self.build.bin, python, self.build.logs, self.budget)
        cases = benchmark.all_cases(len(self.gpus))
        rounds = 0
        while rounds < 5 and bench.round(cases, ours_first=rounds % 2 == 0):
            rounds += 1
            self.note_benchmarks(bench, rounds)
        self.note_benchmarks(bench, rounds)
        if bench.failures:
            self.report.part("benchmarks", FAILED, f"{bench.failures[0]['what']}: {bench.failures[0]['why']}")
        else:
            self.report.part("benchmarks", OK if rounds else NOT_RUN, f"{rounds} whole rounds within the time")
        if python is None:
            self.report.part("comparison with PyTorch", NOT_RUN, "no Python imports this torch")
        if len(self.gpus) < 2:
            self.report.part("data_parallel and scaling", NOT_RUN, "one GPU")

    def note_benchmarks(self, bench, rounds):
        rows = benchmark.ratios(bench.runs)
        self.report.data["benchmarks"] = {
            "notes": [NOTE_ON_ONE], "rounds": rounds, "rows": rows, "runs": bench.runs, "failures": bench.failures,
            "scaling": benchmark.scaling(rows, len(self.gpus)) if len(self.gpus) > 1 else None}
        self.report.write()

    def attempt(self, part):
        """A part that breaks is one that failed, and ends no other one."""
        try:
            return part()
        except found.Missing as missing:
            self.report.part(part.__name__.replace("_", " "), FAILED, str(missing))
        except Exception as error:  # noqa: BLE001, whatever it is must end up in the report
            self.report.part(part.__name__.replace("_", " "), FAILED, f"{type(error).__name__}: {error}")
        return False

    def would_run(self):
        cases = [case.key(*variant) for case in benchmark.all_cases(1) for variant in case.variants]
        self.report.data["would_run"] = {"tests": self.names, "benchmarks": cases}
        print(f"-- with a GPU it would run: {len(self.names)} tests, and {len(cases)} training steps beside PyTorch's")
        return True

    def run(self):
        has_torch = self.attempt(self.find_torch)
        if not self.dry and not self.attempt(self.find_GPUs):
            self.report.part("build, tests and benchmarks", NOT_RUN, "--dry does what can be done without a GPU")
            return self.report.finish()
        self.attempt(self.check_peer_script)
        if not has_torch or not self.attempt(self.configure):
            return self.report.finish()
        if not self.attempt(self.build_all) and not any((self.build.bin / name).exists() for name in build.TARGETS):
            return self.report.finish()
        parts = [self.list_tests]
        parts += [self.fail_without_a_GPU, self.train_on_the_CPU, self.would_run] if self.dry else [self.tests, self.benchmarks]
        for part in parts:
            self.attempt(part)
        return self.report.finish()


def main():
    parser = argparse.ArgumentParser(prog="check.sh")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--build", default=str(ROOT / "build" / "gpu"))
    parser.add_argument("--out")
    parser.add_argument("--budget", type=float)
    parser.add_argument("--pack")
    arguments = parser.parse_args()
    if arguments.pack:
        return pack.pack(arguments.pack)
    if arguments.budget is None:
        arguments.budget = 3000 if arguments.dry else float(os.environ.get("DDP_GPU_BUDGET", 480))
    return Check(arguments).run()


sys.exit(main())
