"""Compares the indices that sampler_indices prints with those of Python's DistributedSampler."""

import itertools
import random
import subprocess
import sys

from torch.utils.data import DistributedSampler


def settings():
    yield from itertools.product(
        (0, 1, 2, 3, 7, 10, 64, 101), (1, 2, 3, 4, 5, 8), (0, 1), (0, 42), (0, 1), (0, 1, 5)
    )
    # Around the limits of 32 and 64 bits, and where randperm might change its method.
    yield from itertools.product((20, 70_000), (3,), (1,), (2**31, 2**32, 2**32 + 7, 2**63), (0, 1), (0, 3))
    numbers = random.Random(1)
    for _ in range(300):
        yield (
            numbers.randrange(5000),
            numbers.randint(1, 17),
            numbers.randint(0, 1),
            numbers.randrange(2**40),
            numbers.randint(0, 1),
            numbers.randrange(1000),
        )


def indices(size, num_replicas, shuffle, seed, drop_last, epoch):
    for rank in range(num_replicas):
        sampler = DistributedSampler(
            range(size),
            num_replicas=num_replicas,
            rank=rank,
            shuffle=bool(shuffle),
            seed=seed,
            drop_last=bool(drop_last),
        )
        sampler.set_epoch(epoch)
        yield list(sampler)


def main():
    cases = list(settings())
    lines = "".join(" ".join(map(str, case)) + "\n" for case in cases)
    program = subprocess.run([sys.argv[1]], input=lines, capture_output=True, text=True, check=True)
    theirs = iter(program.stdout.splitlines())
    differences = 0
    for case in cases:
        for rank, expected in enumerate(indices(*case)):
            got = [int(index) for index in next(theirs).split()]
            if got != expected:
                differences += 1
                print(f"size, num_replicas, shuffle, seed, drop_last, epoch = {case}, rank {rank}:")
                print(f"  Python {expected[:10]} ...\n  ddp    {got[:10]} ...")
    if list(theirs):
        sys.exit("sampler_indices printed more than was asked for")
    print(f"{len(cases)} settings compared, {differences} ranks differ")
    sys.exit(1 if differences else 0)


main()
