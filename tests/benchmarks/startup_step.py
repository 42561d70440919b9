"""The same step as startup_step.cpp's, by PyTorch's DistributedDataParallel under torchrun."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.ones(16, 64)).mean().backward()
optimizer.step()
if dist.get_rank() == 0:
    print(f"first step ended at {time.clock_gettime(time.CLOCK_MONOTONIC):.6f}", flush=True)
# What follows is not measured: a rank that leaves while the other still works ends with std::terminate() now and then.
del model
dist.barrier()
dist.destroy_process_group()
