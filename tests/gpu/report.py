"""What the check has found so far, on disk after every part."""

import json
import os
import time

OK, FAILED, NOT_RUN = "ok", "failed", "not run"


class Report:
    """`data` becomes the JSON file. A part that is not there has not begun."""

    def __init__(self, path, dry):
        self.path = path
        self.has_no_gpu = False  # known once somebody has looked
        self.data = {"began": time.strftime("%Y-%m-%d %H:%M:%S %z"), "dry": dry, "gpu": None, "torch": None,
                     "parts": {}, "tests": None, "benchmarks": None, "verdict": "not finished"}
        self.write()

    def write(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(self.path.name + ".part")
        beside.write_text(json.dumps(self.data, indent=1) + "\n")
        os.replace(beside, self.path)

    def part(self, name, verdict, words="", seconds=None):
        self.data["parts"][name] = {"verdict": verdict, "words": words}
        if seconds is not None:
            self.data["parts"][name]["seconds"] = round(seconds, 1)
        time_taken = "" if seconds is None else f" ({seconds:.0f} s)"
        print(f"-- {name}: {verdict}{time_taken}{': ' + words if words else ''}", flush=True)
        self.write()

    def names(self, verdict):
        return [name for name, part in self.data["parts"].items() if part["verdict"] == verdict]

    def finish(self):
        """Prints the last line; returns the exit code."""
        texts = []
        for verdict, title in ((OK, "passed"), (FAILED, "FAILED"), (NOT_RUN, "NOT RUN")):
            if self.names(verdict):
                texts.append(f"{title}: {', '.join(self.names(verdict))}")
        self.data["verdict"] = "; ".join(texts)
        self.write()
        no_gpu = "no GPU is there; " if self.has_no_gpu else ""
        dry = "dry run, " if self.data["dry"] else ""
        print(f"-- all of it: {self.path}")
        print(f"gpu check: {dry}{no_gpu}{self.data['verdict']}", flush=True)
        if self.names(FAILED):
            return 1
        return 77 if self.names(NOT_RUN) and not self.data["dry"] else 0
