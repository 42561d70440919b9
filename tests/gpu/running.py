"""Commands with a time limit each, and a budget for all."""

import os
import pathlib
import signal
import subprocess
import time


class Budget:
    """What is left of the time for everything."""

    USUAL = 480  # for which the limits of the parts are written

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds
        self.share = max(1.0, seconds / self.USUAL)

    def left(self):
        return max(0.0, self.end - time.monotonic())

    def of(self, limit, reserve=5):
        """At most `limit`, more in a larger budget; so much less that `reserve` seconds are left; at least a second."""
        return max(1.0, min(limit * self.share, self.left() - reserve))


class Result:
    """How a command ended, and what it wrote to both streams."""

    def __init__(self, code, output, seconds, limit):
        self.code = code
        self.output = output
        self.seconds = seconds
        self.out_of_time = code in (124, 137) and seconds >= limit - 1
        self.limit = limit

    @property
    def ok(self):
        return self.code == 0

    def why(self):
        """One line for a result that is not ok."""
        if self.out_of_time:
            return f"did not end within {self.limit:.0f} s"
        lines = [line.strip() for line in self.output.splitlines() if line.strip()] or ["no output"]
        telling = [i for i, line in enumerate(lines) if "error:" in line.lower()]
        of_cmake = [i + 1 for i, line in enumerate(lines[:-1]) if line.startswith("CMake Error")]
        begin = (telling + of_cmake + [len(lines) - 1])[0]
        return f"exit code {self.code}: {' '.join(lines[begin:begin + 1 if telling else begin + 5])[:500]}"


class Running:
    """A command under timeout(1), which ends it and what it started even where this process has gone."""

    def __init__(self, command, limit, log, environment=None, folder=None):
        self.limit = limit
        self.log = pathlib.Path(log)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.begin = time.monotonic()
        with open(self.log, "wb") as output:
            self.process = subprocess.Popen(
                ["timeout", "--kill-after=5", f"{limit:.0f}", *map(str, command)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=folder,
                env={**os.environ, **(environment or {})})

    def wait(self):
        try:
            code = self.process.wait(self.limit + 10)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGTERM)
            code = 124
        output = self.log.read_text(errors="replace")
        return Result(code, output, time.monotonic() - self.begin, self.limit)


def run(command, limit, log, environment=None, folder=None):
    try:
        return Running(command, limit, log, environment, folder).wait()
    except OSError as error:
        return Result(127, str(error), 0, limit)
