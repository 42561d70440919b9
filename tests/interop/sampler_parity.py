"""Compares the indices that sampler_indices prints with those of Python's DistributedSampler.

    sampler_parity.py PROGRAM [SEED]    SEED, of the random settings, is printed; with it they come again
"""

import itertools
import random
import subprocess
import sys

from torch.utils.data import DistributedSampler

RANDOM_SETTINGS = 1000
LARGEST_SEED = 2**64 - 1


def corners():
    yield from itertools.product((0, 1, 2, 7, 8, 9, 64), (1, 2, 3, 8), (0, 1), (0, 42), (0, 1), (0, 5))
    # Around the limits of 32 and 64 bits, and where randperm might change its method.
    yield from itertools.product((20, 70_000), (3,), (1,), (2**31, 2**32, 2**32 + 7, 2**63), (0, 1), (0, 3))
    yield from itertools.product((20,), (3,), (1,), (LARGEST_SEED,), (0, 1), (0,))


def random_setting(numbers):
    num_replicas = numbers.choice((numbers.randint(1, 4), numbers.randint(1, 17), numbers.randint(1, 100)))
    size = numbers.choice(
        (
            numbers.randrange(5000),
            numbers.randrange(num_replicas),
            max(0, num_replicas * numbers.randint(1, 40) + numbers.randint(-1, 1)),
        )
    )
    epoch = numbers.choice((0, numbers.randrange(10), numbers.randrange(2**31)))
    seed = numbers.choice((0, numbers.randrange(1000), numbers.randrange(2**40), LARGEST_SEED - numbers.randrange(2**40)))
    return (
        size,
        num_replicas,
        numbers.randint(0, 1),
        min(seed, LARGEST_SEED - epoch),  # Python's generator takes no sum beyond it
        numbers.randint(0, 1),
        epoch,
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
        given = list(sampler)
        yield [len(sampler), *given]


def main():
    chosen = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(10**9)
    print(f"{RANDOM_SETTINGS} random settings of seed {chosen}", flush=True)
    numbers = random.Random(chosen)
    cases = [*corners(), *(random_setting(numbers) for _ in range(RANDOM_SETTINGS))]
    lines = "".join(" ".join(map(str, case)) + "\n" for case in cases)
    program = subprocess.run([sys.argv[1]], input=lines, capture_output=True, text=True, check=True)
    theirs = iter(program.stdout.splitlines())
    differences = 0
    for case in cases:
        for rank, expected in enumerate(indices(*case)):
            got = [int(index) for index in next(theirs, "").split()]
            if got != expected:
                differences += 1
                print(f"size, num_replicas, shuffle, seed, drop_last, epoch = {case}, rank {rank}: length, indices")
                print(f"  Python {expected[:10]} ...\n  ddp    {got[:10]} ...")
    if list(theirs):
        sys.exit("sampler_indices printed more than was asked for")
    print(f"{len(cases)} settings compared, {differences} ranks differ")
    sys.exit(1 if differences else 0)


main()
