"""Runs one training program under ddprun, torchrun and a plain shell loop: the weights must be equal to the bit."""

import os
import socket
import subprocess
import sys

TIMEOUT = 50


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(command, **variables):
    return subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )


def shell_loop(program):
    # `wait` gives the exit code of one rank; the ranks' own output tells of the others.
    script = "for r in 0 1; do RANK=$r LOCAL_RANK=$r \"$0\" & pids=\"$pids $!\"; done; for p in $pids; do wait $p || exit 1; done"
    return run(["sh", "-c", script, program], WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))


def main():
    program, ddprun = sys.argv[1:]
    runs = {
        "ddprun": run([ddprun, "--inherit-output", "--nproc-per-node", "2", program]),
        "torchrun": run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node", "2", program]
        ),
        "shell loop": shell_loop(program),
    }
    weights = set()
    for name, result in runs.items():
        lines = result.stdout.splitlines()
        print(name, result.returncode, lines)
        if result.returncode != 0 or lines[:1] != ["world 2 from torchrun"] or len(lines) != 3:
            sys.exit(f"{name} failed:\n{result.stdout}\n{result.stderr}")
        weights.update(lines[1:])
    if len(weights) != 1:
        sys.exit(f"the weights differ: {weights}")


if __name__ == "__main__":
    main()
