"""Compares SyncBatchNorm, and a converted BatchNorm2d, on 2 ranks of ddp with Python on the whole batch, in float64.

    sync_batch_norm_parity.py PROGRAM    PROGRAM is sync_batch_norm_run.cpp's

Python's own SyncBatchNorm refuses tensors in memory, so what it is to be equal to stands in for it: Python's
BatchNorm2d on the batches of both ranks together. It reads the states that ddp's norms leave.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

import torch
from torch import nn

ROWS = (2, 5)
STEPS = 4
TOLERANCE = 1e-10
TIMEOUT = 50


def make_norm(kind=nn.BatchNorm2d):
    return kind(3).double()


def given():
    torch.manual_seed(3)
    norm = make_norm()
    nn.init.uniform_(norm.weight, 0.5, 2)
    nn.init.uniform_(norm.bias, -1, 1)
    norm(torch.randn(4, 3, 2, 2, dtype=torch.double))
    sizes = (sum(ROWS), 3, 4, 5)
    steps = [
        (torch.randn(sizes, dtype=torch.double) * 2 + step, torch.randn(sizes, dtype=torch.double))
        for step in range(STEPS)
    ]
    return {"rows": ROWS[0], "state": norm.state_dict(), "steps": steps}


def run_ranks(program, folder):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen([program, str(rank), folder], env=environment) for rank in range(2)]
    try:
        codes = [rank.wait(TIMEOUT) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if codes != [0, 0]:
        sys.exit(f"exit codes {codes}")


def expect_close(found, expected, what):
    if found.shape != expected.shape or found.dtype != expected.dtype or not torch.allclose(
        found, expected, rtol=TOLERANCE, atol=TOLERANCE
    ):
        sys.exit(f"{what} differs: {found} instead of {expected}")


def expect_states(ranks, norm, kind):
    for rank, found in enumerate(ranks):
        make_norm(nn.SyncBatchNorm).load_state_dict(found["state"])  # by the same names, or it throws
        for name, expected in norm.state_dict().items():
            expect_close(found["state"][name], expected, f"{kind}: {name} of rank {rank}")


def compare(kind, folder, data):
    ranks = [torch.load(folder / f"{kind}.{rank}.pt", weights_only=True) for rank in range(2)]
    norm = make_norm()
    norm.load_state_dict(data["state"])
    for step, (inputs, factors) in enumerate(data["steps"]):
        inputs = inputs.clone().requires_grad_()
        norm.zero_grad()
        outputs = norm(inputs)
        (outputs.sin() * factors).sum().backward()
        output, of_input, of_weight, of_bias = (
            [found["results"][4 * step + i] for found in ranks] for i in range(4)
        )
        expect_close(torch.cat(output), outputs.detach(), f"{kind}: output of step {step}")
        expect_close(torch.cat(of_input), inputs.grad, f"{kind}: gradient of the input in step {step}")
        expect_close(sum(of_weight), norm.weight.grad, f"{kind}: gradient of the weight in step {step}")
        expect_close(sum(of_bias), norm.bias.grad, f"{kind}: gradient of the bias in step {step}")
    expect_states(ranks, norm, kind)


def main():
    data = given()
    with tempfile.TemporaryDirectory() as folder:
        torch.save(data, pathlib.Path(folder) / "given.pt")
        run_ranks(sys.argv[1], folder)
        for kind in ("norm", "converted"):
            compare(kind, pathlib.Path(folder), data)
    print(f"{STEPS} steps of both kinds are BatchNorm2d's on the whole batch")


if __name__ == "__main__":
    main()
