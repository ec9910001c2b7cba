"""A model that knows nothing of torch_reduce, under torch_reduce.replace_torch_sum(): time, and which gradients differ.

    python examples/replace.py [--device cuda] [--small]

It is a residual network of images in which much is broadcast: channels are mixed, gated and scaled, so its forward and
backward passes are full of sums. Compared is an image's gradient when it is alone and when it is in a batch. Convolutions
are depthwise and classes have prototypes, so that the sum alone decides: the algorithms of other convolutions and of
matrix products are chosen by the batch as well, and those torch_reduce does not replace.
"""

import contextlib
import time

import torch
import torch.nn.functional as F
from _options import name_of, parser
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
    """Images (batch, 3, height, width) -> logits."""

    def __init__(self, width, blocks):
        super().__init__()
        self.colours = nn.Parameter(torch.randn(width, 3, 1, 1))
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.prototypes = nn.Parameter(torch.randn(10, width))

    def forward(self, images):
        x = self.blocks((images[:, None] * self.colours).sum(2))
        features = x.sum((2, 3)) / (x.shape[2] * x.shape[3])
        return (features[:, None] * self.prototypes).sum(-1)


def gradient(model, images, labels):
    """The images' gradients, by way of a loss that adds over the batch."""
    images = images.detach().requires_grad_()
    F.cross_entropy(model(images), labels, reduction="sum").backward()
    return images.grad


def wait(device):
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def milliseconds(call, device, rounds):
    """The median of a few rounds."""
    call()
    times = []
    for _ in range(rounds):
        wait(device)
        begin = time.perf_counter()
        call()
        wait(device)
        times.append((time.perf_counter() - begin) * 1e3)
    return sorted(times)[len(times) // 2]


def main():
    options = parser(__doc__).parse_args()
    device = options.device
    width, blocks, side, batch, rounds = (8, 1, 8, 5, 2) if options.small else (64, 8, 56, 64, 11)
    torch.manual_seed(0)
    model = Network(width, blocks).to(device)
    images, labels = torch.randn(batch, 3, side, side).to(device), torch.randint(10, (batch,)).to(device)
    sizes = sorted({1, 2, max(2, batch // 8), batch // 2, batch})

    places = {
        "torch's sum": contextlib.nullcontext(),
        "replace_torch_sum()": torch_reduce.replace_torch_sum(torch.device(device).type),
    }
    results = {}
    for name, place in places.items():
        with place:
            grads = {size: gradient(model, images[:size], labels[:size])[0] for size in sizes}
            again = gradient(model, images, labels)[0]
            ms = milliseconds(lambda: gradient(model, images, labels), device, rounds)
        results[name] = [
            *(f"{int((grads[size] != grads[1]).sum())}" for size in sizes[1:]),
            f"{int((again != grads[batch]).sum())}",
            f"{ms:.2f}",
        ]

    print(f"An image's gradient on {name_of(device)}: {images[0].numel()} values\n")
    print(f"| | {' | '.join(results)} |")
    print("|" + " :-- |" + " --: |" * len(results))
    lines = [
        *(f"differ in a batch of {size}" for size in sizes[1:]),
        "differ in a second run",
        "ms, forward and backward",
    ]
    for i, line in enumerate(lines):
        print(f"| {line} | {' | '.join(cells[i] for cells in results.values())} |")


if __name__ == "__main__":
    main()
