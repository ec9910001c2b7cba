"""Trains a small model on any number of ranks, and shows the bits of its loss and of its gradient's norm.

    python examples/distributed.py [--device cpu] [--small]                            one rank
    torchrun --nproc-per-node=N examples/distributed.py [--device cpu] [--small]       N ranks

The data are 16 microbatches, of which a rank holds a run. Four trainings differ in who
adds the gradients: DDP as it is; DDP and FSDP2 with what torch_reduce gives them, which have the same bits; and, by
microbatches, torch_reduce alone: its row is the same at any number of ranks.
"""

import os
import sys

import torch
import torch.distributed as dist
from _options import parser, table
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import torch_reduce

MICROBATCHES, FEATURES = 16, 40


def begin(device):
    """Joins the ranks that torchrun has started; returns this one's device."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    if "RANK" not in os.environ:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        return device
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group(backend)
    return device


def my_microbatches(samples, device):
    """This rank's (inputs, targets): a run of microbatches, whose number is a power of two that is enough for all.

    The last ranks may have fewer, or none.
    """
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(MICROBATCHES, samples, FEATURES, generator=generator).to(device)
    run = 1 << (-(-MICROBATCHES // dist.get_world_size()) - 1).bit_length()
    mine = inputs[dist.get_rank() * run : (dist.get_rank() + 1) * run]
    return mine, mine.square().mean(-1, keepdim=True)


def losses(model, inputs, targets):
    """A loss a sample, without a dim of samples in any sum."""
    return (model(inputs) - targets).square().flatten()


def at_once(model, inputs, targets):
    """The backward pass of all samples of the rank; DDP and FSDP divide by the number of ranks. Returns the losses."""
    lost = losses(model, inputs.flatten(0, 1), targets.flatten(0, 1))
    (lost.sum() * dist.get_world_size()).backward()
    return lost.detach()


def by_microbatches(model, inputs, targets):
    """A backward pass a microbatch: their gradients are the leaves of one tree over all ranks. Returns the losses."""
    parameters, lost = list(model.parameters()), []
    gradients = [[] for _ in parameters]
    for batch in zip(inputs, targets, strict=True):
        lost.append(losses(model, *batch))
        for all, one in zip(gradients, torch.autograd.grad(lost[-1].sum(), parameters), strict=True):
            all.append(one)
    for parameter, own in zip(parameters, gradients, strict=True):
        nothing = torch.full_like(parameter, -0.0)  # what changes no bit of a sum
        parameter.grad = torch_reduce.sum(torch.stack(own), 0) if own else nothing
        torch_reduce.distributed.all_reduce(parameter.grad)
    return torch.cat([inputs.new_empty(0), *lost]).detach()


def plain(model):
    return DistributedDataParallel(model)


def hooked(model):
    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(None, torch_reduce.distributed.ddp_hook)
    return wrapped


def sharded(model):
    # A group of its own: FSDP keeps its group until Python ends, and gloo's threads must have no work then.
    mesh = DeviceMesh.from_group(dist.new_group(), next(model.parameters()).device.type)
    fully_shard(model, mesh=mesh).set_custom_reduce_scatter(torch_reduce.distributed.FSDPReduceScatter())
    return model


def torchs_results(lost, model):
    """The sum of the losses and the gradient's norm, as torch adds."""
    loss = lost.sum()
    dist.all_reduce(loss)
    return loss, torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm()


def our_results(lost, model):
    """The same as torch_reduce adds, where a gradient that is cut counts as a whole."""
    gradients = [parameter.grad for parameter in model.parameters()]
    return torch_reduce.sum(torch_reduce.distributed.Shard(lost)), torch_reduce.get_total_norm(gradients)


WAYS = {
    "torch: DDP": (plain, at_once, torchs_results),
    "ours: DDP, ddp_hook": (hooked, at_once, our_results),
    "ours: FSDP2, FSDPReduceScatter": (sharded, at_once, our_results),
    "ours: microbatches, all_reduce": (lambda model: model, by_microbatches, our_results),
}


def train(way, samples, steps, device):
    """The loss of the last step, and its gradient's norm."""
    wrap, backward, results = WAYS[way]
    torch.manual_seed(0)
    model = wrap(nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, 1)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / (MICROBATCHES * samples))
    for _ in range(steps):
        optimizer.zero_grad()
        lost = backward(model, *my_microbatches(samples, device))
        told = results(lost, model)
        optimizer.step()
    return [float(result).hex() for result in told]


def main():
    options = parser(__doc__).parse_args()
    samples, steps = (8, 3) if options.small else (64, 20)
    device = begin(options.device)
    try:
        rows = {way: train(way, samples, steps, device) for way in WAYS}
        if dist.get_rank() == 0:
            world = dist.get_world_size()
            print(f"After {steps} steps on {world} {'ranks' if world > 1 else 'rank'}, {dist.get_backend()}\n")
            table(["", "sum of losses", "norm of the gradient"], [[way, *told] for way, told in rows.items()])
    finally:
        dist.destroy_process_group()
    if rows["ours: DDP, ddp_hook"] != rows["ours: FSDP2, FSDPReduceScatter"]:
        sys.exit("DDP and FSDP2 have other bits, though both add in rank order: that must not be")


if __name__ == "__main__":
    main()
