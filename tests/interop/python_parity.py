"""Trains one network in Python's DistributedDataParallel and in ddp's on 2 ranks: equal to the bit, step by step.

    python_parity.py PROGRAM        PROGRAM is python_parity.cpp's; compares what both write
    python_parity.py RANK FOLDER    one rank of Python's side

Python's optimizers run with foreach=False, one tensor after the other as LibTorch's in C++. SGD is then the same
arithmetic. AdamW is not, even in one process: Python moves the first moment by lerp_(gradient, 1 - beta1), C++ by
mul_(beta1).add_(gradient, 1 - beta1), which rounds differently. So AdamW is compared from there on: CppAdamW below
is LibTorch's C++ update, written with Python's operators.

One thing is meant to differ. Where a step has several micro-batches, Python copies rank 0's buffers before the first,
which is under no_sync(); ddp, silent there, before the last. So after such a step the running statistics of the other
ranks are not compared; they are equal again after the next.
"""

import array
import contextlib
import ctypes
import os
import subprocess
import sys
import tempfile

RANKS = 2
STEPS = 50
ROWS_OF_A_RANK = 6
# What is trained, in words: the optimizer, then
#   no_sync        every third step has two micro-batches
#   unused         find_unused_parameters, and a layer that one rank, the other or none uses
#   static         static_graph, and a layer that is never used
#   local_buffers  broadcast_buffers off
CASES = (
    "sgd",
    "sgd_no_sync",
    "adamw",
    "adamw_no_sync",
    "sgd_unused",
    "adamw_unused",
    "sgd_unused_no_sync",
    "sgd_static",
    "sgd_local_buffers",
)
TIMEOUT = 50


def accumulates_in(name, step):
    return name.endswith("_no_sync") and step % 3 == 1


def branches(name):
    return "unused" in name or "static" in name


def train_rank(rank, folder):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn import functional

    class Net(nn.Module):
        def __init__(self, branches):
            super().__init__()
            self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
            self.bn1 = nn.BatchNorm2d(8)
            self.conv2 = nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False)
            self.bn2 = nn.BatchNorm2d(16)
            self.fc1 = nn.Linear(256, 32)
            self.bn3 = nn.BatchNorm1d(32)
            self.fc2 = nn.Linear(32, 10)
            if branches:
                self.branch = nn.Linear(32, 10)

        def forward(self, x, uses_branch):
            x = torch.relu(self.bn1(self.conv1(x)))
            x = torch.relu(self.bn2(self.conv2(x)))
            x = torch.relu(self.bn3(self.fc1(x.flatten(1))))
            return self.fc2(x) + self.branch(x) if uses_branch else self.fc2(x)

    class CppAdamW(torch.optim.Optimizer):
        def __init__(self, parameters, lr):
            super().__init__(parameters, {"lr": lr})

        @torch.no_grad()
        def step(self):
            beta1, beta2, eps, weight_decay = 0.9, 0.999, 1e-8, 0.01
            for group in self.param_groups:
                lr = group["lr"]
                for parameter in group["params"]:
                    if parameter.grad is None:
                        continue
                    state = self.state[parameter]
                    if not state:
                        state.update(step=0, mean=torch.zeros_like(parameter), square=torch.zeros_like(parameter))
                    state["step"] += 1
                    gradient, mean, square = parameter.grad, state["mean"], state["square"]
                    parameter.mul_(1 - lr * weight_decay)
                    mean.mul_(beta1).add_(gradient, alpha=1 - beta1)
                    square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
                    correction1 = 1 - beta1 ** state["step"]
                    correction2 = 1 - beta2 ** state["step"]
                    denominator = (square.sqrt() / correction2**0.5).add_(eps)
                    parameter.addcdiv_(mean, denominator, value=-lr / correction1)

    def optimizer_of(name, parameters):
        if name.startswith("sgd"):
            return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-4, foreach=False)
        return CppAdamW(parameters, lr=0.002)

    def loss_of(model, name, micro_batch):
        uses_branch = "unused" in name and (micro_batch + rank) % 3 == 0
        torch.manual_seed(1000 + micro_batch)
        inputs = torch.randn(RANKS * ROWS_OF_A_RANK, 3, 8, 8)
        targets = torch.randint(10, (RANKS * ROWS_OF_A_RANK,))
        return functional.cross_entropy(model(inputs.chunk(RANKS)[rank], uses_branch), targets.chunk(RANKS)[rank])

    def train(name, file):
        def write(tensor):
            dense = tensor.detach().to(torch.float).contiguous()
            file.write(ctypes.string_at(dense.data_ptr(), dense.nbytes))

        torch.manual_seed(7 + rank)
        net = Net(branches(name))
        model = nn.parallel.DistributedDataParallel(
            net,
            bucket_cap_mb=0.01,
            find_unused_parameters="unused" in name,
            static_graph="static" in name,
            **({"broadcast_buffers": False} if "local_buffers" in name else {}),
        )
        optimizer = optimizer_of(name, model.parameters())
        for step in range(STEPS):
            optimizer.zero_grad()
            micro_batches = [STEPS + step, step] if accumulates_in(name, step) else [step]
            for micro_batch in micro_batches:
                with contextlib.nullcontext() if micro_batch == step else model.no_sync():
                    loss = loss_of(model, name, micro_batch)
                    loss.backward()
                write(loss)
            optimizer.step()
            for tensor in [*net.parameters(), *net.buffers()]:
                write(tensor)

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store.python", rank=rank, world_size=RANKS)
    for name in CASES:
        with open(f"{folder}/python.{name}.{rank}", "wb") as file:
            train(name, file)
    for name in CASES if rank == 0 else ():
        net = Net(branches(name))
        with open(f"{folder}/layout.{name}", "w") as file:
            for role, tensors in ("parameter", net.named_parameters()), ("buffer", net.named_buffers()):
                file.writelines(f"{role} {key} {tensor.numel()}\n" for key, tensor in tensors)
    dist.barrier()
    os._exit(0)  # past the interpreter's end, where torch's own threads abort the process now and then


def layout_of(folder, name, rank):
    """Step, name, elements of what is written, in its order, and whether it must be equal."""
    with open(f"{folder}/layout.{name}") as file:
        tensors = [(role, key, int(elements)) for role, key, elements in (line.split() for line in file)]
    for step in range(STEPS):
        two_forwards = accumulates_in(name, step)
        if two_forwards:
            yield step, "loss under no_sync", 1, True
        yield step, "loss", 1, True
        for role, key, elements in tensors:
            yield step, key, elements, role == "parameter" or not two_forwards or rank == 0


def floats(data):
    values = array.array("f")
    values.frombytes(data)
    return values


def difference(folder, name, rank):
    """The first tensor that differs, in words; None if all are equal."""
    written = []
    for side in ("python", "cpp"):
        with open(f"{folder}/{side}.{name}.{rank}", "rb") as file:
            written.append(file.read())
    theirs, ours = written
    offset = 0
    for step, tensor, elements, must_be_equal in layout_of(folder, name, rank):
        end = offset + 4 * elements
        if must_be_equal and theirs[offset:end] != ours[offset:end]:
            pairs = list(zip(floats(theirs[offset:end]), floats(ours[offset:end])))
            i = next(i for i, (their, our) in enumerate(pairs) if their != our)
            return f"{name}, rank {rank}, step {step}: {tensor}[{i}] is {pairs[i][0]} in Python, {pairs[i][1]} in ddp"
        offset = end
    if not offset == len(theirs) == len(ours):
        return f"{name}, rank {rank}: {len(theirs)} and {len(ours)} bytes written, {offset} expected"
    return None


def run_all(commands):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [subprocess.Popen(command, env=environment) for command in commands]
    try:
        codes = [process.wait(TIMEOUT) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if any(codes):
        sys.exit(f"exit codes {codes} of {commands}")


def compare(program):
    with tempfile.TemporaryDirectory() as folder:
        run_all([[program, str(rank), folder] for rank in range(RANKS)])
        run_all([[sys.executable, __file__, str(rank), folder] for rank in range(RANKS)])
        differences = [difference(folder, name, rank) for name in CASES for rank in range(RANKS)]
    differences = [text for text in differences if text is not None]
    print(f"{len(CASES)} trainings of {STEPS} steps on {RANKS} ranks, {len(differences)} differences")
    if differences:
        sys.exit("\n".join(differences))


def main():
    if len(sys.argv) == 2:
        compare(sys.argv[1])
    else:
        train_rank(int(sys.argv[1]), sys.argv[2])


main()
