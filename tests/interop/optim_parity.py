"""ddp::optim's optimizers and torch.optim's over the same gradients, also where a run changes the language on the way.

    optim_parity.py PROGRAM      PROGRAM is optim_run.cpp's

In float64 both end within 1e-12 of each other. In float32 each rounds in its own order, so that neither is the other's
measure: ours may be as far from the steps in float64, in the root mean square over a parameter group, as Python's own
float32 is, and a third more: Python's kernels fuse products with sums where the processor can, and ours round both, for
the sake of the same bits on every processor. That comes to up to a fifth here.
"""

import itertools
import pathlib
import subprocess
import sys
import tempfile

import torch

STEPS = 100
TOLERANCE = 1e-12
ROUNDING = 4 / 3
IN_FIRST_GROUP = 2
SIZES = [(70, 33), (5,), (2, 3, 4), (3000,)]
# Kind, options, and those of the second group.
CASES = [
    ("SGD", {"lr": 0.1}, {"lr": 0.02, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.05, "momentum": 0.9}, {"lr": 0.01, "momentum": 0.5, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}, {"lr": 0.02}),
    ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}, {"lr": 0.02, "momentum": 0.8}),
    ("Adam", {"lr": 0.01}, {"weight_decay": 0.1, "betas": (0.8, 0.99)}),
    ("Adam", {"lr": 0.01, "amsgrad": True}, {"lr": 0.002, "weight_decay": 0.1, "eps": 1e-3}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.3}, {"lr": 0.002, "weight_decay": 0.0}),
    ("AdamW", {"lr": 0.01, "amsgrad": True, "betas": (0.8, 0.9)}, {"amsgrad": False, "weight_decay": 0.2}),
]
# Who steps up to which step.
STRAIGHT = [("Python", STEPS)]
RUNS = [
    [("C++", STEPS)],
    [("C++", 40), ("Python", STEPS)],
    [("Python", 30), ("C++", 70), ("Python", STEPS)],
]


def start():
    torch.manual_seed(1)
    return [torch.randn(size, dtype=torch.float32) for size in SIZES]


def gradients(first, last):
    """Values of float32, so that runs of both dtypes have the same."""
    for step in range(first, last):
        torch.manual_seed(100 + step)
        yield [3 * torch.randn(size, dtype=torch.float32) for size in SIZES]


def make_optimizer(kind, options, of_second, parameters, how):
    groups = [{"params": parameters[:IN_FIRST_GROUP]}, {"params": parameters[IN_FIRST_GROUP:], **of_second}]
    return getattr(torch.optim, kind)(groups, **options, **how)


def steps_of_python(case, state, dtype, run, how):
    parameters = state["parameters"]
    optimizer = make_optimizer(*case, parameters, how)
    optimizer.load_state_dict(state["optimizer"])
    for step in gradients(*run):
        for parameter, gradient in zip(parameters, step):
            parameter.grad = gradient.to(dtype)
        optimizer.step()
    return {"parameters": parameters, "optimizer": optimizer.state_dict()}


def steps_of_cpp(program, folder, states, dtype, run):
    """Of all cases, in one process."""
    steps = [[gradient.to(dtype) for gradient in step] for step in gradients(*run)]
    paths = [folder / f"{i}.pt" for i in range(len(states))]
    for (kind, *_), state, path in zip(CASES, states, paths):
        torch.save({**state, "kind": kind, "gradients": steps, "in_first_group": IN_FIRST_GROUP}, path)
    subprocess.run([program, *paths], check=True, timeout=50)
    saved = [torch.load(path, weights_only=True) for path in paths]
    return [{"parameters": file["parameters"], "optimizer": file["optimizer"]} for file in saved]


def begin(case, dtype, how):
    parameters = [tensor.to(dtype) for tensor in start()]
    return {"parameters": parameters, "optimizer": make_optimizer(*case, parameters, how).state_dict()}


class Trainer:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder

    def train(self, dtype, turns, **how):
        """What each case ends with. `how` Python's own optimizers step."""
        how = how or {"foreach": False}
        states = [begin(case, dtype, how) for case in CASES]
        for (_, first), (who, last) in itertools.pairwise([("", 0), *turns]):
            if who == "C++":
                states = steps_of_cpp(self.program, self.folder, states, dtype, (first, last))
            else:
                states = [steps_of_python(*of_case, dtype, (first, last), how) for of_case in zip(CASES, states)]
        return states


def tensors_of(state):
    """Of each parameter group the parameters, and what the optimizer keeps for them, by name."""
    tensors = {}
    for i, parameter in enumerate(state["parameters"]):
        group = i // IN_FIRST_GROUP
        kept = {"parameter": parameter.detach(), **state["optimizer"]["state"].get(i, {})}
        for name, value in kept.items():
            if value is not None:
                tensors.setdefault(f"{name} of group {group}", []).append(torch.as_tensor(value).double().flatten())
    return {name: torch.cat(parts) for name, parts in tensors.items()}


def distances(state, exact):
    """From the steps in float64, by name: the largest, and the root mean square."""
    ours, theirs = tensors_of(state), tensors_of(exact)
    if ours.keys() != theirs.keys():
        sys.exit(f"one has {sorted(ours)} and the other {sorted(theirs)}")
    for name in ours:
        difference = ours[name] - theirs[name]
        yield name, difference.abs().max().item(), difference.pow(2).mean().sqrt().item()


def compare(case, exact, rounded, ours, ours_rounded):
    bounds = {name: ROUNDING * rms for name, _, rms in distances(rounded, exact)}
    of_double, of_float = list(distances(ours, exact)), list(distances(ours_rounded, exact))
    share = max(ROUNDING * rms / bounds[name] for name, _, rms in of_float if bounds[name] > 0)
    print(f"{case}: float64 {max(far for _, far, _ in of_double):.1e}, float32 {share:.2f} times Python's rounding")
    for name, far, _ in of_double:
        if not far <= TOLERANCE:
            sys.exit(f"{case}: {name} is {far} from Python's")
    for name, _, rms in of_float:
        if not rms <= bounds[name]:
            sys.exit(f"{case}: {name} in float32 is {rms} from float64's, where {bounds[name]} would do")


def main():
    (program,) = sys.argv[1:]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        trainer = Trainer(program, pathlib.Path(name))
        exact, rounded = (trainer.train(dtype, STRAIGHT) for dtype in (torch.float64, torch.float32))
        for case, *states in zip(CASES, exact, trainer.train(torch.float64, STRAIGHT, fused=True)):
            if any(far > TOLERANCE for _, far, _ in distances(*states)):
                sys.exit(f"{case}: Python's fused steps are others than its own plain ones")
        for turns in RUNS:
            print(turns)
            ours, ours_rounded = (trainer.train(dtype, turns) for dtype in (torch.float64, torch.float32))
            for of_case in zip(CASES, exact, rounded, ours, ours_rounded):
                compare(*of_case)


if __name__ == "__main__":
    main()
