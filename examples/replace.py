"""A model that knows nothing of torch_reduce, under torch_reduce.replace_torch_sum(): time, and which gradients differ.

    python examples/replace.py [--device cuda] [--small]

It is a residual network of images in which much is broadcast: images are centred, channels mixed, gated and scaled, so
its forward and backward passes are full of sums. Compared is an image's gradient when it is alone and in a batch.
Convolutions are depthwise and classes have prototypes, so that the sum alone decides: the algorithms of other
convolutions and of matrix products are chosen by the batch as well, and those torch_reduce does not replace.
"""

import contextlib
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from _options import name_of, parser, table
from torch import nn

import torch_reduce


class Block(nn.Module):
    """A depthwise convolution, normalization, and a gate for each channel made from its mean."""

    def __init__(self, width):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1, groups=width), nn.GroupNorm(4, width)
        self.slope, self.bias = nn.Parameter(torch.randn(width)), nn.Parameter(torch.zeros(width))
        self.scale = nn.Parameter(torch.full((width, 1, 1), 0.5))

    def forward(self, x):
        y = F.relu(self.norm(self.conv(x)))
        gate = torch.sigmoid(y.sum((2, 3)) / (y.shape[2] * y.shape[3]) * self.slope + self.bias)
        return x + y * gate[..., None, None] * self.scale


class Network(nn.Module):
    """Images (batch, 3, 4 * height, 4 * width), each centred by its own mean -> logits."""

    def __init__(self, width, blocks):
        super().__init__()
        self.colours = nn.Parameter(torch.randn(width, 3, 1, 1))
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.prototypes = nn.Parameter(torch.randn(10, width))

    def forward(self, images):
        centred = images - images.sum((1, 2, 3), keepdim=True) / images[0].numel()
        x = self.blocks((F.avg_pool2d(centred, 4)[:, None] * self.colours).sum(2))
        features = x.sum((2, 3)) / (x.shape[2] * x.shape[3])
        return (features[:, None] * self.prototypes).sum(-1)


def make(device, small):
    """(model, images, labels)."""
    width, blocks, side, batch = (8, 1, 8, 5) if small else (64, 8, 56, 64)
    torch.manual_seed(0)
    model, images = Network(width, blocks), torch.randn(batch, 3, 4 * side, 4 * side)
    labels = torch.randint(10, (batch,))
    return model.to(device), images.to(device), labels.to(device)


def gradient(model, images, labels):
    """The images' gradients, by way of a loss that adds over the batch."""
    images = images.detach().requires_grad_()
    F.cross_entropy(model(images), labels, reduction="sum").backward()
    return images.grad


def differing(a, b):
    """How many values differ, in any bit."""
    return int((a.view(torch.int32) != b.view(torch.int32)).sum())


def milliseconds(call, device):
    """How long a call takes until its result is there."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    begin = time.perf_counter()
    call()
    wait()
    return (time.perf_counter() - begin) * 1e3


def compare(model, images, labels, rounds):
    """{name: {"batches": {size: n}, "again": n, "ms": ms}}, with torch's sum and with ours.

    n values of the first image's gradient differ from those it has alone, or, again, between two runs of the whole
    batch. ms is the median of the rounds, in which both take turns.
    """
    device = images.device
    places = {
        "torch's sum": contextlib.nullcontext(),
        "replace_torch_sum()": torch_reduce.replace_torch_sum(device.type),
    }
    found, times = {}, {name: [] for name in places}
    for name, place in places.items():
        with place:
            alone = gradient(model, images[:1], labels[:1])[0]
            sizes = sorted({2, len(images) // 2, len(images)})
            grads = {size: gradient(model, images[:size], labels[:size])[0] for size in sizes}
            again = differing(gradient(model, images, labels)[0], grads[len(images)])
        found[name] = {"batches": {size: differing(grad, alone) for size, grad in grads.items()}, "again": again}
    for _ in range(rounds):
        for name, place in places.items():
            with place:
                times[name].append(milliseconds(lambda: gradient(model, images, labels), device))
    return {name: found[name] | {"ms": statistics.median(times[name])} for name in places}


def main():
    options = parser(__doc__).parse_args()
    model, images, labels = make(options.device, options.small)
    found = compare(model, images, labels, rounds=5 if options.small else 21)
    print(f"An image's gradient on {name_of(options.device)}: {images[0].numel()} values\n")
    ours = found["replace_torch_sum()"]
    rows = [
        (f"differ in a batch of {size}", *(column["batches"][size] for column in found.values()))
        for size in ours["batches"]
    ]
    rows.append(("differ in a second run", *(column["again"] for column in found.values())))
    rows.append(("ms, forward and backward", *(f"{column['ms']:.2f}" for column in found.values())))
    table(["", *found], rows)
    if any(ours["batches"].values()):
        sys.exit("under replace_torch_sum() the gradient depends on the batch: that must not be")


if __name__ == "__main__":
    main()
