"""See check.sh."""

import argparse
import json
import os
import pathlib
import re
import sys
import time

import benchmark
import build
import found
import gpu_tests
import pack
from report import FAILED, NOT_RUN, OK, Report
from running import Budget, run

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NOTE_ON_ONE = ("In a world of one this library's wrapper has no reducer and makes no communicator, while PyTorch's DDP "
               "fills buckets and calls NCCL: the ratio says what a step costs a user, not how good the reduction is. "
               "Two ranks on one GPU talk over Gloo, through the host's memory, in both.")
ASK_TORCH = """
import json, torch
print(json.dumps([{"name": p.name, "memory_gb": round(p.total_memory / 2**30, 1), "capability": f"{p.major}.{p.minor}",
                   "cuda": torch.version.cuda, "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
                  for p in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))]))
"""


def gpus_here(python, logs):
    """A list with one entry for each GPU that this process may use. torch is asked first, then the driver's program."""
    if python:
        result = run([python, "-c", ASK_TORCH], 90, logs / "gpus.log")
        lines = [line for line in result.output.splitlines() if line.startswith("[")]
        if result.ok and lines:
            return json.loads(lines[-1])
    return of_driver()


def of_driver():
    fields = found.output_of(["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"])
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return []
    return [{"name": line.split(",")[0], "capability": line.split(",")[-1].strip()} for line in fields.splitlines()]


class Check:
    """The parts, each of which returns its verdict and words about it."""

    def __init__(self, arguments):
        self.dry = arguments.dry
        self.budget = Budget(arguments.budget)
        self.folder = pathlib.Path(arguments.build).resolve()
        self.report = Report(pathlib.Path(arguments.out or self.folder / "gpu_check.json").resolve(), arguments.dry)
        self.logs = self.report.path.with_suffix(".logs")
        self.build = None
        self.gpus = []
        self.names = []

    def find_torch(self):
        self.build = build.Build(ROOT, self.folder, self.logs)
        self.report.data["torch"] = self.build.describe()
        return OK, f"{self.build.torch.version}, {self.build.torch.source}"

    def find_gpus(self):
        self.gpus = gpus_here(self.build.torch.python if self.build else None, self.logs)
        self.report.data["gpu"] = self.gpus or None
        self.report.has_no_gpu = not self.gpus
        if not self.gpus and (shown := of_driver()):
            return FAILED, f"nvidia-smi shows {shown[0]['name']}, but torch sees no GPU: a driver too old for it? See gpus.log"
        if not self.gpus:
            return NOT_RUN, "no GPU is there: torch and the driver show none"
        return OK, ", ".join(gpu["name"] for gpu in self.gpus)

    def check_peer(self):
        compile((HERE / "peer_ddp.py").read_text(), "peer_ddp.py", "exec")
        return OK, ""

    def configure(self):
        if self.build.is_configured:
            return OK, f"{self.folder} is configured"
        capability = self.gpus[0]["capability"] if self.gpus else None
        result = self.build.configure(capability, self.budget.of(600 if self.dry else 90))
        if not result.ok:
            (self.folder / "CMakeCache.txt").unlink(missing_ok=True)  # the next run begins anew
            return FAILED, result.why()
        self.build.is_configured = True
        self.report.data["torch"] = self.build.describe()
        kernels = re.search(r"CUDA kernels: .*", result.output)
        return OK, kernels.group(0)[:200] if kernels else ""

    def build_programs(self):
        result = self.build.build(build.jobs(), self.budget.of(2400 if self.dry else 330, 60))
        return (OK, "") if result.ok else (FAILED, result.why())

    def list_tests(self):
        self.names = gpu_tests.listed(self.build.bin / "gpu_tests", self.logs / "list.log")
        return (OK, f"{len(self.names)} tests") if self.names else (FAILED, "gpu_tests lists none")

    def fail_without_gpu(self):
        """The tests must not pass where they test nothing."""
        result = run([self.build.bin / "gpu_tests"], 60, self.logs / "no_gpu.log", {"CUDA_VISIBLE_DEVICES": ""})
        ok = result.code == 77 and "no GPU is there" in result.output
        return (OK, "") if ok else (FAILED, result.why())

    def train_on_cpu(self):
        """A few steps: both programs run, and train the same."""
        bench = benchmark.Bench(self.build.bin, self.build.torch.python, self.logs, self.budget)
        bench.steps = {"steps": 2, "warmup": 1, "block": 1}
        bench.limit = 240
        for model in benchmark.MODELS:
            case = benchmark.Case(model, 2, "gloo", True, [(1, "views"), (1, "no-views+static")])
            case.on_cpu = True
            bench.ours(case)
            bench.theirs(case)
        rows = benchmark.ratios(bench.runs)
        losses = [{"key": row["key"], "same_first_loss": row.get("same_first_loss")} for row in rows]
        self.report.data["on_cpu"] = {"cases": losses, "failures": bench.failures}
        if bench.failures or bench.was_cut:
            return FAILED, bench.failures[0]["why"] if bench.failures else "there was no time for it"
        if self.build.torch.python is None:
            return OK, "this library alone, for no Python imports this torch"
        alike = sum(row.get("same_first_loss", False) for row in rows)
        words = f"the first loss agrees in {alike} of {len(rows)} cases"
        return OK if alike == 2 * len(benchmark.MODELS) else FAILED, words

    def tell(self):
        cases = [case.key(*variant) for case in benchmark.all_cases(1) for variant in case.variants]
        self.report.data["would_run"] = {"tests": self.names, "benchmarks": cases}
        return OK, f"with a GPU {len(self.names)} tests and {len(cases)} training steps beside PyTorch's would be run"

    def tests(self):
        result = gpu_tests.run_all(self.build.bin / "gpu_tests", self.names, self.logs, self.budget.of(150, 30))
        self.report.data["tests"] = result
        failed, not_run = gpu_tests.summary(result)
        if not_run:
            self.report.part("some tests", NOT_RUN, not_run)
        words = f"{len(result['passed'])} of {len(self.names)} passed"
        return (FAILED, f"{words}; failed: {failed}") if failed else (OK, words)

    def benchmarks(self):
        python = self.build.torch.python
        bench = benchmark.Bench(self.build.bin, python, self.logs, self.budget)
        cases = benchmark.all_cases(len(self.gpus))
        rounds = 0
        while rounds < 5 and bench.round(cases, ours_first=rounds % 2 == 0):
            rounds += 1
            self.note_benchmarks(bench, rounds)
        self.note_benchmarks(bench, rounds)
        if python is None:
            self.report.part("comparison with PyTorch", NOT_RUN, "no Python imports this torch")
        if len(self.gpus) < 2:
            self.report.part("data_parallel and scaling", NOT_RUN, "they want 2 GPUs")
        if bench.failures:
            return FAILED, f"{bench.failures[0]['what']}: {bench.failures[0]['peer']}: {bench.failures[0]['why']}"
        return OK if rounds else NOT_RUN, f"{rounds} whole rounds within the time"

    def note_benchmarks(self, bench, rounds):
        rows = benchmark.ratios(bench.runs)
        self.report.data["benchmarks"] = {
            "notes": [NOTE_ON_ONE], "rounds": rounds, "rows": rows, "runs": bench.runs, "failures": bench.failures,
            "scaling": benchmark.scaling(rows, len(self.gpus)) if len(self.gpus) > 1 else None}
        self.report.write()

    def attempt(self, name, part):
        """True where the part is ok. One that breaks has failed, and ends no other one."""
        begin = time.monotonic()
        try:
            verdict, words = part()
        except found.Missing as missing:
            verdict, words = FAILED, str(missing)
        except Exception as error:  # whatever it is has to end up in the report
            verdict, words = FAILED, f"{type(error).__name__}: {error}"
        self.report.part(name, verdict, words, time.monotonic() - begin)
        return verdict == OK

    def run(self):
        """Returns the exit code."""
        has_torch = self.attempt("find torch", self.find_torch)
        if not self.dry and not self.attempt("find GPUs", self.find_gpus):
            self.report.part("build, tests and benchmarks", NOT_RUN, "--dry does what can be done without a GPU")
            return self.report.finish()
        self.attempt("peer script", self.check_peer)
        if not has_torch or not self.attempt("configure", self.configure):
            return self.report.finish()
        self.attempt("build", self.build_programs)
        self.attempt("list of tests", self.list_tests)
        if self.dry:
            self.attempt("refusal without a GPU", self.fail_without_gpu)
            self.attempt("training on the CPU", self.train_on_cpu)
            self.attempt("what would be run", self.tell)
        else:
            self.attempt("tests", self.tests)
            self.attempt("benchmarks", self.benchmarks)
        return self.report.finish()


def main():
    parser = argparse.ArgumentParser(prog="check.sh", allow_abbrev=False)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--build", default=str(ROOT / "build" / "gpu"))
    parser.add_argument("--out")
    parser.add_argument("--budget", type=float)
    parser.add_argument("--pack")
    arguments = parser.parse_args()
    if arguments.pack:
        return pack.pack(arguments.pack)
    if arguments.budget is None:
        given = os.environ.get("DDP_GPU_BUDGET", str(Budget.USUAL))
        if not re.fullmatch(r"\d+(\.\d+)?", given):
            sys.exit(f"gpu check: FAILED: DDP_GPU_BUDGET={given} is no number of seconds")
        arguments.budget = 3000 if arguments.dry else float(given)
    return Check(arguments).run()


if __name__ == "__main__":
    sys.exit(main())
