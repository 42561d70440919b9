"""A run that changes the language: begun in C++ and continued in Python, and the other way round.

    checkpoint_parity.py PROGRAM    PROGRAM is checkpoint_run.cpp's

The losses must be those of a run that stays in one language. With SGD they are equal to the bit; the other optimizers
of C++ and Python order their arithmetic differently, so that straight runs of the two differ in the last digits, too;
"fused" ones are ddp::optim's in C++.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

import torch
from torch import nn

STEPS, CHANGE = 8, 3
TOLERANCE = {"sgd": 0.0, "lbfgs": 1e-4}
OPTIMIZERS = {
    "sgd": lambda groups, _: torch.optim.SGD(
        groups, lr=0.1, momentum=0.9, weight_decay=1e-3, nesterov=True, foreach=False
    ),
    "adam": lambda groups, _: torch.optim.Adam(groups, lr=0.01, amsgrad=True, weight_decay=1e-3),
    "adamw": lambda groups, _: torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.99)),
    "rmsprop": lambda groups, _: torch.optim.RMSprop(groups, lr=0.01, momentum=0.5, centered=True),
    "adagrad": lambda groups, _: torch.optim.Adagrad(groups, lr=0.05, lr_decay=0.01),
    "lbfgs": lambda _, parameters: torch.optim.LBFGS(parameters, lr=0.5, max_iter=4, history_size=3),
}
OPTIMIZERS |= {f"fused_{name}": OPTIMIZERS[name] for name in ("sgd", "adamw")}


def run_cpp(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=50)
    return done.returncode, done.stdout.splitlines(), done.stderr


def train_cpp(program, path, name, steps):
    code, lines, errors = run_cpp(program, "train", path, name, steps)
    if code != 0:
        sys.exit(f"{name} in C++: {lines}\n{errors}")
    return [float.fromhex(line) for line in lines]


def make_net():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def train_python(path, name, steps):
    net = make_net()
    parameters = list(net.parameters())
    optimizer = OPTIMIZERS[name]([{"params": parameters[:2]}, {"params": parameters[2:]}], parameters)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    saved = torch.load(path, weights_only=True)
    net.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["scheduler"])
    losses = []
    for step in range(saved["step"], steps):
        torch.manual_seed(1000 + step)
        inputs, targets = torch.randn(16, 4), torch.randn(16, 3)

        def closure():
            optimizer.zero_grad()
            error = (net(inputs) - targets).pow(2).mean()
            error.backward()
            return error

        losses.append(float(optimizer.step(closure)))
        scheduler.step()
    torch.save(
        {
            "model": net.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "step": steps,
        },
        path,
    )
    return losses


def compare(name, straight, changed):
    print(name, straight, changed)
    tolerance = TOLERANCE.get(name, 1e-5)
    if len(straight) != len(changed) or any(abs(a - b) > tolerance * abs(a) for a, b in zip(straight, changed)):
        sys.exit(f"{name}: the losses differ: {straight} {changed}")


def change_the_language(program, folder):
    for name in OPTIMIZERS:
        straight = train_cpp(program, folder / f"{name}.straight.pt", name, STEPS)
        path = folder / f"{name}.pt"
        losses = train_cpp(program, path, name, CHANGE)
        losses += train_python(path, name, CHANGE + 2)
        losses += train_cpp(program, path, name, STEPS)
        compare(name, straight, losses)
        if len(set(straight)) != STEPS:
            sys.exit(f"{name} does not learn: {straight}")


def outline(value, name=""):
    if isinstance(value, dict):
        yield f"{name} dict {len(value)}"
        for key, child in value.items():
            yield from outline(child, f"{name}/{key}")
    elif isinstance(value, (list, tuple, set)):
        kind = "list" if isinstance(value, (list, set)) else "tuple"
        yield f"{name} {kind} {len(value)}"
        for i, child in enumerate(sorted(value) if isinstance(value, set) else value):
            yield from outline(child, f"{name}/{i}")
    elif isinstance(value, torch.Tensor):
        real = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
        sizes = "".join(f" {size}" for size in value.shape)
        yield f"{name} tensor {NAMES[value.dtype]}{sizes} {float(real.double().sum()).hex()}"
    elif isinstance(value, bool):
        yield f"{name} bool {int(value)}"
    elif isinstance(value, float):
        yield f"{name} float {value.hex()}"
    elif value is None:
        yield f"{name} None"
    else:
        kind = "str" if isinstance(value, (str, torch.dtype, torch.device)) else "int"
        yield f"{name} {kind} {value}"


NAMES = {
    torch.float32: "Float",
    torch.float64: "Double",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.int64: "Long",
    torch.int32: "Int",
    torch.int16: "Short",
    torch.int8: "Char",
    torch.uint8: "Byte",
    torch.bool: "Bool",
    torch.complex64: "ComplexFloat",
    torch.uint16: "UInt16",
    torch.float8_e5m2: "Float8_e5m2",
}


def normal(lines):
    """Hexadecimal digits of floats that Python and C++ shorten differently."""
    for line in lines:
        head, _, last = line.rpartition(" ")
        yield f"{head} {float.fromhex(last)}" if last.lstrip("-").startswith("0x") else line


def files_of_python(program, folder):
    """Whatever weights_only=True loads, of what a training program saves."""
    net = make_net()
    net(torch.randn(5, 4))
    whole = torch.arange(20.0)
    shared = [1, 2]
    files = {
        "a state_dict with its metadata": net.state_dict(),
        "an optimizer's": torch.optim.Adam(net.parameters()).state_dict(),
        "dtypes": {str(t): torch.ones(3).to(t) for t in NAMES},
        "views of one storage": {"a": whole[3:7], "b": whole.view(4, 5).t(), "c": whole},
        "parameters": {"p": nn.Parameter(torch.ones(2)), "q": nn.Parameter(torch.zeros(1), requires_grad=False)},
        "values": {
            "none": None,
            "yes": True,
            "int": -(2**62),
            "small": 300,
            "float": 0.1,
            "text": "häuser\nund",
            "tuple": (1, (2, "x")),
            "size": torch.Size([2, 3]),
            "dtype": torch.float32,
            "device": torch.device("cpu"),
            "set": {3},
            "shared": [shared, shared],
            7: "key",
        },
        "an empty tensor": torch.zeros(0, 3),
        "conjugate and negated views": {"c": torch.tensor([1 + 2j, 3 - 4j]).conj(), "n": torch.tensor([1 + 2j]).conj().imag},
        "an expanded tensor": torch.arange(4.0).expand(3, 4),
        "a list of many": [float(i) for i in range(5000)],
    }
    for title, value in files.items():
        path = folder / "python.pt"
        torch.save(value, path)
        code, lines, errors = run_cpp(program, "outline", path)
        expected = "\n".join(outline(torch.load(path, weights_only=True))).splitlines()
        if code != 0 or list(normal(lines)) != list(normal(expected)):
            sys.exit(f"{title}: {code} {lines}\nexpected {expected}\n{errors}")


def refused(program, path, words):
    code, lines, errors = run_cpp(program, "outline", path)
    if code != 3 or words not in "".join(lines):
        sys.exit(f"not refused as it should be ({words}): {code} {lines} {errors}")


class Callable:
    def __reduce__(self):
        return (os.system, ("true",))


def files_of_wrapped_and_edited_runs(program, folder):
    """Names with the prefix of Python's DistributedDataParallel; keys of the program's own."""
    path = folder / "edited.pt"
    train_cpp(program, path, "sgd", CHANGE)
    saved = torch.load(path, weights_only=True)
    saved["model"] = {f"module.{name}": value for name, value in saved["model"].items()}
    for group in saved["optimizer"]["param_groups"]:
        group["param_names"] = [f"module.{name}" for name in group["param_names"]]
    saved["scheduler_note"] = "of the user"
    torch.save(saved, path)
    compare("sgd", train_cpp(program, folder / "sgd.straight2.pt", "sgd", STEPS)[CHANGE:], train_cpp(program, path, "sgd", STEPS))


def files_that_are_refused(program, folder):
    path = folder / "bad.pt"
    torch.save({"x": Callable()}, path)
    refused(program, path, "system, which is neither a value nor a tensor and is not loaded")
    torch.save({"x": torch.zeros(3).to_sparse()}, path)
    refused(program, path, "_rebuild_sparse_tensor")
    torch.save(make_net(), path)
    refused(program, path, "torch.nn.modules.container.Sequential")
    torch.save({"x": 2**70}, path)
    refused(program, path, "more than 64 bits")
    torch.save({"x": torch.ones(3)}, path, _use_new_zipfile_serialization=False)
    refused(program, path, "before PyTorch 1.6")
    torch.jit.script(make_net()).save(path)
    refused(program, path, "torch::save()")
    torch.save({"x": torch.full((1000,), 1.5)}, path)
    whole = path.read_bytes()
    at = whole.index(b"\x00\x00\xc0\x3f" * 10) + 8
    path.write_bytes(whole[:at] + b"\x01" + whole[at + 1 :])
    refused(program, path, "it is damaged: the checksum of its record")
    path.write_bytes(whole[: len(whole) // 2])
    refused(program, path, "its end is missing")


def file_without_checksums(program, folder):
    path = folder / "no_crc.pt"
    torch.serialization.set_crc32_options(False)
    torch.save({"x": torch.ones(3)}, path)
    torch.serialization.set_crc32_options(True)
    code, lines, errors = run_cpp(program, "outline", path)
    if code != 0:
        sys.exit(f"a file without checksums: {lines} {errors}")


def readers_of_one_file(program, folder):
    """The same file for torch.load with and without weights_only, mmap, and LibTorch's torch::load()."""
    path = folder / "sgd.straight.pt"
    loads = [
        torch.load(path, weights_only=True),
        torch.load(path, weights_only=False),
        torch.load(path, weights_only=True, mmap=True),
    ]
    outlines = {"\n".join(outline(loaded)) for loaded in loads}
    code, lines, errors = run_cpp(program, "outline", path)
    if len(outlines) != 1 or list(normal("\n".join(outlines).splitlines())) != list(normal(lines)):
        sys.exit(f"the readers differ: {outlines}\n{lines}\n{errors}")
    code, lines, errors = run_cpp(program, "module", path)
    if code != 0 or list(normal(lines)) != list(normal(outline(loads[0]["model"]))):
        sys.exit(f"torch::load(): {lines}\n{errors}")
    torch.set_rng_state(loads[0]["ranks"][0]["random"]["cpu"])


def main():
    (program,) = sys.argv[1:]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        change_the_language(program, folder)
        files_of_python(program, folder)
        files_of_wrapped_and_edited_runs(program, folder)
        files_that_are_refused(program, folder)
        file_without_checksums(program, folder)
        readers_of_one_file(program, folder)


if __name__ == "__main__":
    main()
