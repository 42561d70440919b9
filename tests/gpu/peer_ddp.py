#!/usr/bin/env python3
"""PyTorch's DistributedDataParallel on the networks of tests/benchmarks, with the same parameters, values and data.

    peer_ddp.py --model mlp|resnet|gpt --rank R --world N --store FILE --backend nccl|gloo --device cuda:0|cpu
                --variants BATCHES:OPTIONS,...  [--steps N] [--warmup N] [--block N]

OPTIONS: views, no-views, static, no-views+static. Rank 0 prints a line of JSON for each variant.
"""

import argparse
import datetime
import json
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(784 if i == 0 else 1024, 10 if i == 4 else 1024) for i in range(5))

    def forward(self, x):
        x = self.layers[0](x)
        for layer in self.layers[1:]:
            x = layer(torch.relu(x))
        return x


def convolution(inputs, outputs, kernel, stride):
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)


class ResidualBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.norm1 = convolution(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = convolution(outputs, outputs, 3, 1), nn.BatchNorm2d(outputs)
        self.shortcut = self.shortcut_norm = None
        if inputs != outputs or stride != 1:
            self.shortcut, self.shortcut_norm = convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)

    def forward(self, x):
        y = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(y + (x if self.shortcut is None else self.shortcut_norm(self.shortcut(x))))


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = convolution(3, 64, 7, 2), nn.BatchNorm2d(64)
        widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
        self.blocks = nn.Sequential(*(ResidualBlock(a, b, 1 if a == b else 2) for a, b in zip(widths, widths[1:])))
        self.head = nn.Linear(512, 10)

    def forward(self, x):
        x = F.max_pool2d(torch.relu(self.norm(self.stem(x))), 3, 2, 1)
        return self.head(F.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1))


WIDTH, HEADS, SEQUENCE, VOCABULARY = 384, 6, 128, 8192


class TransformerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.project, self.mix = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm2, self.widen = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        joined = self.project(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        attended = F.scaled_dot_product_attention(*joined.permute(2, 0, 3, 1, 4).unbind(0), is_causal=True)
        x = x + self.mix(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.narrow(F.gelu(self.widen(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(SEQUENCE, WIDTH)
        self.blocks = nn.Sequential(*(TransformerBlock() for _ in range(6)))
        self.norm = nn.LayerNorm(WIDTH)
        with torch.no_grad():
            self.tokens.weight.normal_(0, 0.02)
            self.positions.weight.normal_(0, 0.02)
        self.places = torch.arange(SEQUENCE, device=device)

    def forward(self, x):
        x = self.blocks(self.tokens(x) + self.positions(self.places))
        return F.linear(self.norm(x), self.tokens.weight)


def make_task(model, rank, batches, device):
    torch.manual_seed(0)
    network = {"mlp": Perceptron, "resnet": ResNet18, "gpt": lambda: Gpt(device)}[model]()
    torch.manual_seed(1000 + rank)
    if model == "gpt":
        data, target = (torch.randint(VOCABULARY, (2 * batches, SEQUENCE)) for _ in range(2))
    else:
        data = torch.randn(32 * batches, 784) if model == "mlp" else torch.randn(16 * batches, 3, 32, 32)
        target = torch.randint(10, (data.size(0),))
    return network.to(device), data.to(device), target.to(device)


def drain(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def quantile(values, share):
    return torch.tensor(values, dtype=torch.double).quantile(share).item()


def measure(arguments, device, batches, options):
    network, data, target = make_task(arguments.model, arguments.rank, batches, device)
    model = nn.parallel.DistributedDataParallel(
        network, device_ids=[device.index] if device.type == "cuda" else None,
        gradient_as_bucket_view="no-views" not in options, static_graph="static" in options)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data).flatten(0, -2), target.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    first = step().item()
    for _ in range(1, arguments.warmup):
        step()
    drain(device)
    dist.barrier()
    step_ms = []
    for _ in range(0, arguments.steps, arguments.block):
        begin = time.perf_counter()
        for _ in range(arguments.block):
            loss = step()
        drain(device)
        step_ms.append((time.perf_counter() - begin) / arguments.block * 1e3)
    return {"ms_median": quantile(step_ms, 0.5), "ms_p10": quantile(step_ms, 0.1), "ms_p90": quantile(step_ms, 0.9),
            "loss_first": first, "loss_last": loss.item(),
            "peak_gpu_mb": torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else None}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "store", "backend", "device", "variants"):
        parser.add_argument("--" + name, required=True)
    for name, default in (("rank", 0), ("world", 1), ("steps", 100), ("warmup", 20), ("block", 10)):
        parser.add_argument("--" + name, type=int, default=default)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(arguments.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(arguments.backend, init_method="file://" + arguments.store, rank=arguments.rank,
                            world_size=arguments.world, timeout=datetime.timedelta(seconds=60))
    for variant in arguments.variants.split(","):
        batches, options = variant.split(":")
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        figures = measure(arguments, device, int(batches), options)
        if arguments.rank == 0:
            print(json.dumps({"peer": "pytorch", "model": arguments.model, "world": arguments.world,
                              "backend": arguments.backend, "batches": int(batches), "options": options, **figures}),
                  flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
