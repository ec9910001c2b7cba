"""A small language model, trained by whole batches and by halves of them, with torch's reductions and with replace().

    python bench/train_lm.py                   prints which bits agree, and the time of a step
    python bench/train_lm.py --report FILE     and keeps both as JSON
    python bench/train_lm.py --small           a model for a laptop; this is what the CPU takes

The model knows nothing of torch_reduce: an embedding, RMSNorm and LayerNorm, causal attention by softmax, an MLP with
biases, and cross_entropy over all tokens. It is trained for 20 steps twice, from the same weights on the same tokens: a
batch per step, and two halves of each batch whose gradients are added up (microbatches).

Three kinds of sums go over the batch. (1) The mean of the losses, the gradients of norms' weights, of biases, and of
the positions, which are broadcast: replace() adds them in the contract's order, where a half of 4096 * 2^k tokens is a
sub-tree of its own. So halves have the bits of the whole. (2) The gradient of a linear layer's weight: that is inside a
matrix product, which is torch's. (3) The gradient of the embedding's rows, which is torch's as well. So the model can
also take products and embeddings by pieces (`pieces`): half a batch at a time, however large the batch is. Then torch
gets the same calls in both trainings, and everything has to agree.
"""

import argparse
import contextlib
import dataclasses
import json
import pathlib
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

import torch_reduce


@dataclasses.dataclass(frozen=True)
class Sizes:
    sequences: int = 128  # of a batch; half of them have 4096 tokens, or 8192, 16384, ...
    length: int = 64
    vocabulary: int = 256
    width: int = 64
    heads: int = 4
    layers: int = 2


SMALL, LARGE = Sizes(), Sizes(32, 512, 32_768, 512, 8, 8)


def by_pieces(function, size, *batches):
    """function(*batches), or the same of `size` sequences at a time, one after the other."""
    if size is None:
        return function(*batches)
    return torch.cat([function(*parts) for parts in zip(*(batch.split(size) for batch in batches), strict=True)])


class Linear(nn.Module):
    """x @ weight + bias."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(inputs, outputs) / inputs**0.5),
            nn.Parameter(torch.zeros(outputs)),
        )

    def forward(self, x, pieces):
        return by_pieces(lambda part: part @ self.weight, pieces, x) + self.bias


class Layer(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.heads, width = sizes.heads, sizes.width
        self.before, self.between = nn.RMSNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = Linear(width, 3 * width), Linear(width, width)
        self.up, self.down = Linear(width, 4 * width), Linear(4 * width, width)

    def forward(self, x, pieces):
        split = self.qkv(self.before(x), pieces).unflatten(-1, (3, self.heads, -1))
        q, k, v = split.permute(2, 0, 3, 1, 4)  # each (sequences, heads, length, width of a head)
        scores = by_pieces(torch.matmul, pieces, q, k.transpose(-1, -2)) / q.shape[-1] ** 0.5
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        mixed = by_pieces(torch.matmul, pieces, scores.masked_fill(later, -float("inf")).softmax(-1), v)
        x = x + self.out(mixed.transpose(1, 2).flatten(2), pieces)
        return x + self.down(F.gelu(self.up(self.between(x), pieces)), pieces)


class Model(nn.Module):
    """Tokens (sequences, length) -> logits of the next ones."""

    def __init__(self, sizes):
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.positions = nn.Parameter(torch.randn(sizes.length, sizes.width) / 8)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm, self.head = nn.RMSNorm(sizes.width), Linear(sizes.width, sizes.vocabulary)

    def forward(self, tokens, pieces=None):
        embedding = self.embedding
        if pieces and tokens.is_cuda:  # on a GPU torch adds up the gradient of an embedding in no fixed order

            def embedding(part):
                return F.one_hot(part, len(self.embedding.weight)).to(self.embedding.weight) @ self.embedding.weight

        x = by_pieces(embedding, pieces, tokens) + self.positions
        for layer in self.layers:
            x = layer(x, pieces)
        return self.head(self.norm(x), pieces)


class Training:
    """A model with an optimizer, always from the same start. A step takes a batch by `parts`."""

    def __init__(self, sizes, device, pieces):
        torch.manual_seed(0)
        self.sizes, self.device, self.pieces = sizes, device, pieces
        self.model = Model(sizes).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.generator = torch.Generator().manual_seed(1)

    def batch(self):
        """Tokens in which the next one is often the sum of the last two."""
        s = self.sizes
        tokens = torch.randint(s.vocabulary, (s.sequences, s.length + 1), generator=self.generator)
        for i in range(2, s.length + 1, 3):
            tokens[:, i] = (tokens[:, i - 1] + tokens[:, i - 2]) % s.vocabulary
        tokens = tokens.to(self.device)
        return tokens[:, :-1], tokens[:, 1:]

    def step(self, batch, parts):
        """The loss of a batch."""
        self.optimizer.zero_grad()
        total = torch.zeros((), device=self.device)
        for tokens, targets in zip(*(each.chunk(parts) for each in batch), strict=True):
            loss = F.cross_entropy(self.model(tokens, self.pieces).flatten(0, 1), targets.flatten()) / parts
            loss.backward()
            total += loss.detach()
        self.optimizer.step()
        return total

    def gradients(self):
        return {name: p.grad.clone() for name, p in self.model.named_parameters()}


def bits(tensor):
    return tensor.detach().view(torch.int32)


def compared(sizes, device, pieces, steps):
    """What agrees, bit for bit, between a training by whole batches and one by halves.

    {"losses": of how many steps, "steps", "gradients": names whose gradients of the first step differ, "parameters":
    names of those that differ in the end, "of": how many parameters there are, "loss": [the first one, the last one]}
    """
    runs = [Training(sizes, device, sizes.sequences // 2 if pieces else None) for _ in range(2)]
    losses, first, values = 0, [], []
    for step in range(steps):
        batches = [run.batch() for run in runs]
        whole, halves = (run.step(batch, parts) for run, batch, parts in zip(runs, batches, (1, 2), strict=True))
        losses += torch.equal(bits(whole), bits(halves))
        values.append(float(whole))
        if step == 0:
            one, other = (run.gradients() for run in runs)
            first = [name for name in one if not torch.equal(bits(one[name]), bits(other[name]))]
    one, other = (dict(run.model.named_parameters()) for run in runs)
    last = [name for name in one if not torch.equal(bits(one[name]), bits(other[name]))]
    return {
        "losses": losses,
        "steps": steps,
        "gradients": first,
        "parameters": last,
        "of": len(one),
        "loss": [values[0], values[-1]],
    }


def places(device):
    return {"torch": contextlib.nullcontext(), "replace()": torch_reduce.replace(devices=device.type)}


def milliseconds(sizes, device, rounds):
    """{place: median ms of a step}, with whole batches and products; the places take turns."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    training, times = Training(sizes, device, None), {}
    batch = training.batch()
    for turn in range(rounds + 2):
        for name, place in places(device).items():
            with place:
                wait()
                begin = time.perf_counter()
                training.step(batch, 1)
                wait()
            if turn >= 2:
                times.setdefault(name, []).append(1e3 * (time.perf_counter() - begin))
    return {name: statistics.median(each) for name, each in times.items()}


def kinds(names):
    """Names without the layers' numbers, each with how many there are."""
    short = [".".join(part for part in name.split(".") if not part.isdigit()) for name in names]
    return ", ".join(f"{name} ({short.count(name)})" for name in dict.fromkeys(short)) or "none"


def measure(sizes, device, steps, rounds):
    found = {}
    for pieces in (True, False):
        for name, place in places(device).items():
            with place:
                found[f"{name}, products {'by pieces' if pieces else 'whole'}"] = compared(sizes, device, pieces, steps)
    return {"bits": found, "ms": milliseconds(sizes, device, rounds)}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", metavar="FILE", type=pathlib.Path, help="keep the results as JSON")
    parser.add_argument("--small", action="store_true", help="a small model; without a GPU it is always this")
    parser.add_argument("--steps", type=int, default=20, help="of each training (default: %(default)s)")
    options = parser.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sizes = LARGE if device.type == "cuda" and not options.small else SMALL
    found = measure(sizes, device, options.steps, rounds=9)
    where = "an NVIDIA GPU" if device.type == "cuda" else "the CPU"
    print(f"Whole batches against halves of them, {options.steps} steps on {where}; torch {torch.__version__}\n")
    for name, each in found["bits"].items():
        print(f"{name}: {each['losses']} of {each['steps']} losses have the same bits")
        for what in ("gradients", "parameters"):
            when = "of the first step" if what == "gradients" else "at the end"
            print(f"    {what} {when}: {each['of'] - len(each[what])} of {each['of']}; others: {kinds(each[what])}")
    ours, torchs = found["ms"]["replace()"], found["ms"]["torch"]
    print(
        f"\nms per step: {ours:.2f} with replace(), {torchs:.2f} with torch's, which is {torchs / ours:.2f} times ours"
    )
    if options.report:
        results = {"device": where, "torch": torch.__version__, "sizes": dataclasses.asdict(sizes)} | found
        options.report.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    ours = found["bits"]["replace(), products by pieces"]
    if ours["losses"] < ours["steps"] or ours["gradients"] or ours["parameters"]:
        sys.exit("under replace() halves of a batch have other bits than the batch: that must not be")


if __name__ == "__main__":
    main()
