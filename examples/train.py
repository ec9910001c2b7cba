"""Trains a small transformer classifier twice, and compares all losses bit by bit.

    python examples/train.py [--compile] [--device cuda] [--small]
    python examples/train.py --control

The task, on data made here: which of four letters is the most frequent in a text of varying length? Pooling over time,
the loss and the accuracy are sums of torch_reduce; gradients flow through them. All else is told to be deterministic.

Why this matters: if two runs of the same code have the same losses, then a loss that differs comes from a change of the
code or of the data. A failure at step 3,000 can be run into again, and a test can compare losses exactly.

The control pools with torch's index_add_ instead, as models of packed texts do. On a GPU it adds with atomics, in
whatever order the threads arrive: the losses soon differ between the runs, though nothing else has changed.
"""

import os
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch: for deterministic matrix products

import torch
import torch.nn.functional as F
from _options import name_of, parser
from torch import nn

import torch_reduce

CLASSES, LETTERS = 4, 12


class Block(nn.Module):
    """Attention and a perceptron, each normalized before and added."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, mask):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(~mask[:, None, None], -torch.inf)
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norms[1](x))


def pool(x, mask):
    """(batch, length, width) -> (batch, width): the sum over the letters that are there."""
    return torch_reduce.sum(x * mask[..., None], 1)


def pool_by_atomics(x, mask):
    """The same sums by index_add_: on a GPU, many threads add to one element in no fixed order."""
    batch, length, width = x.shape
    text = torch.arange(batch, device=x.device).repeat_interleave(length)
    return x.new_zeros(batch, width).index_add_(0, text, (x * mask[..., None]).flatten(0, 1))


class Classifier(nn.Module):
    """Letters -> logits."""

    def __init__(self, width, heads, layers, length, pool=pool):
        super().__init__()
        self.pool = pool
        self.letters, self.places = nn.Linear(LETTERS, width), nn.Parameter(torch.randn(length, width) / 10)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, text, mask):
        x = self.letters(F.one_hot(text, LETTERS).to(self.places.dtype)) + self.places
        for block in self.blocks:
            x = block(x, mask)
        count = torch_reduce.sum(mask, 1, keepdim=True)
        return self.head(self.pool(x, mask) / count)


def make_batch(generator, batch, length, device):
    """(text, which letters are there, the most frequent of the first four)."""
    text = torch.randint(LETTERS, (batch, length), generator=generator)
    lengths = torch.randint(length // 2, length + 1, (batch, 1), generator=generator)
    mask = torch.arange(length) < lengths
    counts = torch_reduce.sum(F.one_hot(text, LETTERS) * mask[..., None], 1)[:, :CLASSES]
    return text.to(device), mask.to(device), counts.argmax(1).to(device)


def make(device, **sizes):
    """(model, optimizer), the same ones each time."""
    torch.manual_seed(0)
    model = Classifier(**sizes).to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=2e-3)


def predict(model, text, mask, target):
    """The mean loss, and how many were right."""
    logits = model(text, mask)
    losses = F.cross_entropy(logits, target, reduction="none")
    return torch_reduce.sum(losses) / len(target), torch_reduce.sum(logits.argmax(1) == target)


def step(run, model, optimizer, *batch):
    """One step of training; `run` is predict, or compiled from it."""
    optimizer.zero_grad()
    loss, right = run(model, *batch)
    loss.backward()
    optimizer.step()
    return loss.detach(), right


def train(run, device, sizes, batch, steps):
    """All losses."""
    generator = torch.Generator().manual_seed(1)
    model, optimizer = make(device, **sizes)
    losses, right, begin, every = [], 0, time.perf_counter(), max(1, steps // 5)
    for i in range(1, steps + 1):
        loss, hits = step(run, model, optimizer, *make_batch(generator, batch, sizes["length"], device))
        losses.append(loss)
        right += hits
        if i % every == 0:
            share = right.item() / every / batch
            ms = (time.perf_counter() - begin) * 1e3 / every
            print(f"  step {i:4}   loss {loss.item():.4f}   right {share:4.0%}   {ms:.1f} ms a step", flush=True)
            right, begin = 0, time.perf_counter()
    return torch.stack(losses)


BIG = dict(sizes=dict(width=128, heads=4, layers=2, length=64), batch=128)
SMALL = dict(sizes=dict(width=16, heads=2, layers=1, length=12), batch=16)


def main():
    made = parser(__doc__)
    made.add_argument("--compile", action="store_true", help="with torch.compile; the first steps wait for it")
    made.add_argument("--control", action="store_true", help="pool with index_add_: on a GPU, the runs differ")
    options = made.parse_args()
    torch.use_deterministic_algorithms(not options.control)
    run = torch.compile(predict, fullgraph=True) if options.compile else predict
    choice = SMALL | {"steps": 10} if options.small else BIG | {"steps": 400}
    if options.control:
        choice["sizes"] = choice["sizes"] | {"pool": pool_by_atomics}
    runs = []
    for i in (1, 2):
        print(f"run {i} on {name_of(options.device)}{', compiled' if options.compile else ''}", flush=True)
        runs.append(train(run, options.device, **choice))
    different = runs[0].view(torch.int32) != runs[1].view(torch.int32)
    first = f", from step {int(different.int().argmax()) + 1} on" if different.any() else ""
    print(f"{int(different.sum())} of {len(different)} losses differ between the runs, in any bit{first}")
    if different.any() and not options.control:
        sys.exit("the second run is another one: that must not be")


if __name__ == "__main__":
    main()
