"""ddp's GradScaler and Python's, step by step over the same gradients: the same decisions, scales and weights, to the bit.

    grad_scaler_parity.py PROGRAM      PROGRAM is grad_scaler_run.cpp's
"""

import random
import subprocess
import sys

import torch


def gradients():
    """Mostly small ones, now and then one that overflows float32 once it is scaled, an infinity or NaN."""
    chance = random.Random(5)
    kinds = [lambda: chance.uniform(-1, 1)] * 12 + [lambda: 3e38, lambda: float("inf"), lambda: float("nan")]
    return [chance.choice(kinds)() for _ in range(200)] + [0.5] * 40


def run_of_python(values):
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1, foreach=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=1000, growth_factor=3, backoff_factor=0.3, growth_interval=4)
    steps = []
    optimizer.register_step_post_hook(lambda *_: steps.append(True))
    lines = []
    for value in values:
        optimizer.zero_grad()
        before = len(steps)
        scaler.scale((weight * value).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        lines.append((len(steps) - before, scaler.get_scale(), weight.item()))
    return lines


def main():
    values = gradients()
    output = subprocess.run([sys.argv[1], *map(repr, values)], check=True, capture_output=True, text=True).stdout
    ours = []
    for line in output.splitlines():
        stepped, scale, weight = line.split()
        ours.append((int(stepped), float.fromhex(scale), float.fromhex(weight)))
    expected = run_of_python(values)
    assert len(ours) == len(expected), (len(ours), len(expected))
    for step, (mine, python) in enumerate(zip(ours, expected)):
        assert mine == python, f"step {step}, gradient {values[step]}: {mine}, Python {python}"
    decisions = [stepped for stepped, _, _ in expected]
    assert 20 < decisions.count(0) < 100, "the gradients show nothing"
    print(f"{len(ours)} steps alike, {decisions.count(0)} of them skipped")


if __name__ == "__main__":
    main()
