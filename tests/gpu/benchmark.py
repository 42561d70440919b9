"""The step of the three networks with this library and with PyTorch's DDP, in turn, in the same run."""

import json
import pathlib
import statistics
import tempfile

from running import Running

HERE = pathlib.Path(__file__).resolve().parent
MODELS = ("mlp", "resnet", "gpt")
OPTIONS = {"views": [], "no-views": ["--no-views"], "static": ["--static-graph"],
           "no-views+static": ["--no-views", "--static-graph"]}
LARGE = 16  # times the batch that serves the CPU, which leaves a GPU idle


class Case:
    """A network, how many ranks train it over what, and the variants: batches and options."""

    def __init__(self, model, world, backend, shares_gpu, variants):
        self.model = model
        self.world = world
        self.backend = backend
        self.shares_gpu = shares_gpu
        self.variants = variants
        self.on_cpu = False

    def device(self, rank):
        return "cpu" if self.on_cpu else "cuda:0" if self.shares_gpu else f"cuda:{rank}"

    def key(self, batches, options):
        ranks = "1 rank" if self.world == 1 else f"{self.world} ranks{' on one GPU' if self.shares_gpu else ''}"
        return f"{self.model}, {ranks}, {self.backend}, batch x {batches}, {options}"


def all_cases(gpus):
    """In the order of what they are worth."""
    all_options = [(LARGE, options) for options in OPTIONS] + [(1, "views")]
    cases = []
    if gpus > 1:
        cases += [Case(model, gpus, "nccl", False, all_options) for model in MODELS]
    cases += [Case(model, 1, "nccl", False, all_options) for model in MODELS]
    cases.append(Case("mlp", 2, "gloo", True, [(1, "views"), (1, "no-views"), (1, "static")]))
    return cases


class Bench:
    """`binaries`: of the build. `python`: one that imports torch, or None."""

    def __init__(self, binaries, python, logs, budget):
        self.binaries = binaries
        self.python = python
        self.logs = logs
        self.budget = budget
        self.steps = {"steps": 120, "warmup": 20, "block": 10}
        self.limit = 90
        self.runs = []
        self.failures = []
        self.was_cut = False  # a run had less than `limit` and did not end

    def ours(self, case):
        for batches, options in case.variants:
            arguments = ["--model", case.model, "--backend", case.backend, "--batches", str(batches), *OPTIONS[options]]
            commands = [[self.binaries / "benchmark_train", *arguments, "--device", case.device(rank)]
                        for rank in range(case.world)]
            self._run("ddp", case, commands, [case.key(batches, options)], "--store-file")

    def theirs(self, case):
        if self.python is None:
            return
        variants = ",".join(f"{batches}:{options}" for batches, options in case.variants)
        commands = [[self.python, HERE / "peer_ddp.py", "--model", case.model, "--backend", case.backend,
                     "--variants", variants, "--rank", str(rank), "--world", str(case.world),
                     "--device", case.device(rank)] for rank in range(case.world)]
        self._run("pytorch", case, commands, [case.key(*variant) for variant in case.variants], "--store")

    def data_parallel(self, case):
        for batches in (LARGE, 1):
            command = [self.binaries / "gpu_data_parallel", "--model", case.model, "--batches", str(batches)]
            self._run("data_parallel", case, [command], [case.key(batches, "views")], None)

    def _run(self, peer, case, commands, keys, store_option):
        """Starts a command for each rank; notes the lines of JSON that rank 0 prints, one for each key."""
        limit = self.budget.of(self.limit, 10)
        steps = [text for name, value in self.steps.items() for text in (f"--{name}", str(value))]
        with tempfile.TemporaryDirectory() as folder:
            running = []
            for rank, command in enumerate(commands):
                store = [store_option, f"{folder}/store"] if store_option else []
                environment = {"RANK": str(rank), "WORLD_SIZE": str(len(commands)), "LOCAL_RANK": str(rank),
                               "LOCAL_WORLD_SIZE": str(len(commands)), "OMP_NUM_THREADS": "1", "DDP_LOG_LEVEL": "warn"}
                log = self.logs / f"{peer}_{case.model}_{case.world}_{len(self.runs)}_{rank}.log"
                running.append(Running([*command, *steps, *store], limit, log, environment))
            results = [process.wait() for process in running]
        lines = [json.loads(line) for line in results[0].output.splitlines() if line.startswith('{"peer"')]
        for key, line in zip(keys, lines):
            self.runs.append({"key": key, "peer": peer, **{name: line.get(name) for name in
                              ("ms_median", "ms_p10", "ms_p90", "loss_first", "peak_gpu_mb")}})
        failed = next((result for result in results if not result.ok), None)
        if failed is not None and failed.out_of_time and limit < self.limit:
            self.was_cut = True
            return
        if failed is not None or len(lines) < len(keys):
            self.failures.append({"peer": peer, "what": keys[0],
                                  "why": failed.why() if failed else "it printed too little",
                                  "output": results[0].output[-2000:]})

    def round(self, cases, ours_first):
        """False where there was no time for all of it."""
        for case in cases:
            if self.was_cut or self.budget.left() < 25:
                return False
            turns = [self.ours, self.theirs]
            for turn in turns if ours_first else reversed(turns):
                turn(case)
            if case.world > 1 and not case.shares_gpu:
                self.data_parallel(case)
        return not self.was_cut


def ratios(runs):
    """A row for each key: medians over the rounds, and ours as a multiple of each other's."""
    rows = []
    for key in dict.fromkeys(run["key"] for run in runs):
        medians, losses = {}, {}
        for peer in ("ddp", "pytorch", "data_parallel"):
            mine = [run for run in runs if run["key"] == key and run["peer"] == peer]
            if mine:
                medians[peer] = statistics.median(run["ms_median"] for run in mine)
                losses[peer] = mine[0]["loss_first"]
        row = {"key": key, "rounds": sum(run["key"] == key and run["peer"] == "ddp" for run in runs), "ms": medians}
        for peer in ("pytorch", "data_parallel"):
            if "ddp" in medians and peer in medians:
                row[f"ddp/{peer}"] = round(medians["ddp"] / medians[peer], 3)
        if losses.get("ddp") is not None and losses.get("pytorch") is not None:
            row["same_first_loss"] = abs(losses["ddp"] - losses["pytorch"]) < 2e-3 * abs(losses["pytorch"])
        rows.append(row)
    return rows


def scaling(rows, gpus):
    """Per network and peer: step of one rank / step of all, 1 is perfect."""
    table = []
    of_key = {row["key"]: row["ms"] for row in rows}
    for model in MODELS:
        many = of_key.get(Case(model, gpus, "nccl", False, []).key(LARGE, "views"), {})
        one = of_key.get(Case(model, 1, "nccl", False, []).key(LARGE, "views"), {})
        table += [{"model": model, "peer": peer, "ranks": gpus, "share_of_perfect": round(one[peer] / many[peer], 3)}
                  for peer in one if peer in many]
    return table
