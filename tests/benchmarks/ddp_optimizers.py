"""PyTorch's DistributedDataParallel over Gloo with AdamW, on the networks that all libraries train.

    torchrun --nproc-per-node 2 ddp_optimizers.py PEERS_FOLDER fused|foreach|for_loop [OPTION...]

Runs ddp_python.py of PEERS_FOLDER, with the options, as it is but for its optimizer: PyTorch's AdamW, with the rate of
optimizer_kinds.hpp, in the implementation that is named. Its line of JSON says so.
"""

import contextlib
import io
import json
import pathlib
import runpy
import sys

import torch

IMPLEMENTATIONS = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "for_loop": {"fused": False, "foreach": False},
}


def adamw(implementation):
    """A class that is made as ddp_python.py makes its SGD."""

    class AdamW(torch.optim.AdamW):
        def __init__(self, parameters, lr):
            super().__init__(parameters, lr=1e-5, **IMPLEMENTATIONS[implementation])

    return AdamW


def main():
    if len(sys.argv) < 3 or sys.argv[2] not in IMPLEMENTATIONS:
        sys.exit(__doc__)
    peers, implementation, *options = sys.argv[1:]
    torch.optim.SGD = adamw(implementation)
    program = pathlib.Path(peers) / "ddp_python.py"
    sys.argv = [str(program), *options]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(program), run_name="__main__")
    for line in printed.getvalue().splitlines():
        result = json.loads(line)
        print(json.dumps({**result, "optimizer": "adamw", "library": f"torch {implementation}"}), flush=True)


main()
