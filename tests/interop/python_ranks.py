"""Python ranks under ddprun: they find a store, though nobody of theirs serves it, also in the second attempt."""

import os
import subprocess
import sys

TIMEOUT = 50


def rank():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    total = torch.ones(4) * (dist.get_rank() + 1)
    dist.all_reduce(total)
    print(f"rank {dist.get_rank()} attempt {attempt} sum {total.sum().item()}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(0 if attempt == 1 else 3)


def main():
    ddprun = sys.argv[1]
    command = [ddprun, "--nproc-per-node", "2", "--max-restarts", "1", sys.executable, __file__, "rank"]
    result = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=TIMEOUT
    )
    print(result.stdout, result.stderr)
    for number in range(2):
        for attempt in range(2):
            if f"[rank {number}] rank {number} attempt {attempt} sum 12.0" not in result.stdout.splitlines():
                sys.exit(f"rank {number} did not meet the other in attempt {attempt}")
    if result.returncode != 0:
        sys.exit(f"exit code {result.returncode}")


if __name__ == "__main__":
    rank() if sys.argv[1] == "rank" else main()
