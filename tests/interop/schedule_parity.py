"""Compares the rates that schedule_rates prints, step by step, with those of Python's schedulers.

    schedule_parity.py PROGRAM
"""

import subprocess
import sys

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, MultiStepLR, SequentialLR, StepLR

TOLERANCE = 1e-12


def cosine(optimizer, base, steps, final):
    return CosineAnnealingLR(optimizer, T_max=steps, eta_min=base * final)


def linear(optimizer, base, steps, final):
    return LinearLR(optimizer, start_factor=1.0, end_factor=final, total_iters=steps)


def step(optimizer, base, every, gamma):
    return StepLR(optimizer, every, gamma)


def multi_step(optimizer, base, first, second, third, gamma):
    return MultiStepLR(optimizer, [first, second, third], gamma)


def warmed_up(then):
    def scheduler(optimizer, base, steps, start, *numbers):
        ramp = LinearLR(optimizer, start_factor=start, end_factor=1.0, total_iters=steps)
        return SequentialLR(optimizer, [ramp, then(optimizer, base, *numbers)], milestones=[steps])

    return scheduler


SCHEDULERS = {
    "cosine": cosine,
    "linear": linear,
    "step": step,
    "multi_step": multi_step,
    "warm_up_cosine": warmed_up(cosine),
    "warm_up_step": warmed_up(step),
}
# Name, its numbers, base rate, steps. Python's cosine rises again after its end, where ours stays: its steps end there.
CASES = [
    ("cosine", (300, 0.0), 0.1, 301),
    ("cosine", (300, 0.1), 3.2, 301),
    ("cosine", (1, 0.5), 0.1, 2),
    ("linear", (250, 0.0), 0.1, 400),
    ("linear", (250, 0.3), 0.1, 400),
    ("step", (30, 0.1), 0.1, 400),
    ("step", (1, 0.99), 0.1, 400),
    ("multi_step", (100, 150, 320, 0.2), 0.1, 400),
    ("warm_up_cosine", (50, 0.01, 350, 0.0), 0.1, 401),
    ("warm_up_cosine", (1, 0.5, 350, 0.1), 1e-3, 352),
    ("warm_up_step", (100, 0.25, 90, 0.5), 0.4, 500),
]


def begin(name, numbers, base):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=base)
    return optimizer, SCHEDULERS[name](optimizer, base, *numbers)


def rates(name, numbers, base, steps):
    optimizer, scheduler = begin(name, numbers, base)
    for step in range(steps):
        if step == steps // 3 and "warm_up" not in name:  # as after a checkpoint: with what a RateScheduler keeps in one
            rate = optimizer.param_groups[0]["lr"]
            optimizer, scheduler = begin(name, numbers, base)
            optimizer.param_groups[0]["lr"] = rate
            scheduler.load_state_dict({"last_epoch": step, "_step_count": step + 1})
        yield optimizer.param_groups[0]["lr"]
        optimizer.step()
        scheduler.step()


def main():
    lines = "".join(f"{name} {' '.join(map(repr, numbers))} {base!r} {steps}\n" for name, numbers, base, steps in CASES)
    program = subprocess.run([sys.argv[1]], input=lines, capture_output=True, text=True, check=True)
    theirs = program.stdout.splitlines()
    if len(theirs) != len(CASES):
        sys.exit(f"{len(CASES)} schedules were asked for, and {len(theirs)} came")
    failed = False
    for case, line in zip(CASES, theirs):
        expected = list(rates(*case))
        got = [float.fromhex(word) for word in line.split()]
        if len(got) != len(expected):
            sys.exit(f"{case}: {len(got)} rates for {len(expected)} steps")
        difference = max(abs(a - b) for a, b in zip(expected, got))
        print(f"{case}: largest difference {difference:.1e}")
        failed |= difference > TOLERANCE
        if len(set(got)) < 2:
            sys.exit(f"{case}: the rate never changes")
    sys.exit(1 if failed else 0)


main()
