"""A mixture of experts, forward and backward: which gradients agree in five runs, and which bits in halves of a batch.

    python examples/mixture_of_experts.py [--device cuda] [--small]

A router picks two experts for each token. Tokens are gathered expert by expert, and the experts' outputs are added back
to their tokens, with the router's weights. Compared are

- torch's index_select and index_add as they are, on a GPU with atomics;
- the same under torch.use_deterministic_algorithms(True);
- the same under torch_reduce.replace();
- torch_reduce.embedding and torch_reduce.index_sum, called by name. The weights are multiplied in the pass that adds.

Two numbers have one sum in either order, and three have not. So the order of a token's two outputs shows only if they
are added to something. Here that is the token: torch's `x.index_add(0, token, outputs)` adds them to it one by one.
Ours adds the two, and then their sum to the token.

In a batch and in its halves a token has the same sum, if the outputs of its experts are the same: it adds nothing but
its own two outputs, in the order of the experts. The gradient of gathering is such a sum, too. But outputs come from
torch's matrix products, and these may change when an expert gets other tokens beside this one. And the gradient of an
expert's weights adds over its tokens inside of a product. The second table shows what differs.
"""

import contextlib
import sys
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from _options import name_of, parser, table
from _runs import compare, flat, order_of, places, report
from torch import nn

import torch_reduce

EACH = 2  # experts for a token


class Sums(NamedTuple):
    """How rows go to experts, and back."""

    gather: Callable  # (x, token) -> x[token]
    combine: Callable  # (x, outputs, weight, token) -> x, plus each output times its weight at its token


def add_by_torch(x, outputs, weight, token):
    return x.index_add(0, token, outputs * weight[:, None])


def add_by_ours(x, outputs, weight, token):
    return x + torch_reduce.index_sum(outputs, token, len(x), weight=weight)


TORCH = Sums(lambda x, token: x.index_select(0, token), add_by_torch)
OURS = Sums(lambda x, token: torch_reduce.embedding(token, x), add_by_ours)


class Routes(NamedTuple):
    """The entries of a batch, expert by expert: EACH for a token."""

    token: torch.Tensor
    weight: torch.Tensor
    counts: list  # how many each expert has


class Layer(nn.Module):
    """(tokens, width) -> the same, with what each token's experts make of it added."""

    def __init__(self, width, hidden, experts):
        super().__init__()
        self.norm, self.router = nn.LayerNorm(width), nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, hidden) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) / hidden**0.5)

    def route(self, x):
        """The Routes of normalized tokens."""
        scores, expert = self.router(x).topk(EACH, 1)
        order = expert.flatten().argsort(stable=True)
        counts = torch.bincount(expert.flatten(), minlength=len(self.up)).tolist()
        return Routes(order // EACH, scores.softmax(1).flatten().index_select(0, order), counts)

    def experts(self, rows, counts):
        """What the experts make of their rows."""
        parts = zip(rows.split(counts), self.up, self.down, strict=True)
        return torch.cat([F.gelu(part @ up) @ down for part, up, down in parts])

    def forward(self, x, sums):
        normalized = self.norm(x)
        token, weight, counts = self.route(normalized)
        return sums.combine(x, self.experts(sums.gather(normalized, token), counts), weight, token)


class Model(nn.Module):
    """Some layers."""

    def __init__(self, layers, **sizes):
        super().__init__()
        self.layers = nn.ModuleList(Layer(**sizes) for _ in range(layers))

    def forward(self, x, sums):
        for layer in self.layers:
            x = layer(x, sums)
        return x


def make(device, tokens, **sizes):
    """(model, tokens, what they shall become), the same ones each time."""
    torch.manual_seed(0)
    model, x, target = Model(**sizes), torch.randn(tokens, sizes["width"]), torch.randn(tokens, sizes["width"])
    return model.to(device), x.to(device), target.to(device)


def gradients(model, x, target, sums):
    """{name: gradient} of the tokens ("tokens") and of all parameters, of a loss that adds over the batch."""
    x = x.detach().requires_grad_()
    model.zero_grad()
    (model(x, sums) - target).square().sum().backward()
    return {"tokens": x.grad} | {name: parameter.grad for name, parameter in model.named_parameters()}


def differing(a, b):
    """How many values differ, in any bit."""
    return int((a.contiguous().view(torch.int32) != b.contiguous().view(torch.int32)).sum())


def halves(model, x, target, sums):
    """{what: (values that differ between a batch and its halves, values)}; the sums of sums.* alone come first."""
    layer, tokens = model.layers[0], len(x)
    with torch.no_grad():
        normalized = layer.norm(x)
        token, weight, counts = layer.route(normalized)
        outputs = layer.experts(sums.gather(normalized, token), counts)

    def part(begin, end):
        """(what some of the tokens have, the gradients of the experts' weights by them)."""
        own, mine = x[begin:end], (token >= begin) & (token < end)
        leaf, its = own.detach().requires_grad_(), token[mine] - begin
        with torch.no_grad():
            combined, result = sums.combine(own, outputs[mine], weight[mine], its), model(own, sums)
        (back,) = torch.autograd.grad(sums.gather(leaf, its), leaf, outputs[mine])
        found = gradients(model, own, target[begin:end], sums)
        return {
            COMBINED: combined,
            GATHERED: back,
            "what the model makes of the tokens": result,
            "the gradient of the tokens": found["tokens"],
        }, flat(gradient for name, gradient in found.items() if name.endswith((".up", ".down")))

    (whole, weights), *both = part(0, tokens), part(0, tokens // 2), part(tokens // 2, tokens)
    pairs = {name: (value, torch.cat([each[name] for each, _ in both])) for name, value in whole.items()}
    pairs["the gradient of the experts' weights"] = weights, both[0][1] + both[1][1]
    return {name: (differing(*pair), pair[0].numel()) for name, pair in pairs.items()}


COMBINED, GATHERED = "tokens plus given outputs", "the gradient of gathering, of given gradients"
BIG = dict(tokens=16384, width=512, hidden=512, experts=32, layers=2)
SMALL = dict(tokens=96, width=16, hidden=32, experts=4, layers=2)


def main():
    options = parser(__doc__).parse_args()
    device, sizes = options.device, SMALL if options.small else BIG
    model, x, target = make(device, **sizes)
    ways = {name: (place, TORCH) for name, place in places(device).items()}
    ways["torch_reduce.index_sum"] = contextlib.nullcontext, OURS

    print(f"{sizes['experts']} experts in each of {sizes['layers']} layers on {name_of(device)}, {len(x)} tokens")
    print(f"{order_of(device)}\n", flush=True)
    runs = {
        name: (place, lambda sums=sums: flat(gradients(model, x, target, sums).values()))
        for name, (place, sums) in ways.items()
    }
    report(compare(runs, device))

    found = {}
    for name, (place, sums) in ways.items():
        with place():
            found[name] = halves(model, x, target, sums)
    print()
    rows = {what: [column[what] for column in found.values()] for what in next(iter(found.values()))}
    table(
        ["values that differ between a batch and its halves", *found],
        [(what, *(f"{count} of {of}" for count, of in row)) for what, row in rows.items()],
    )
    if any(found[name][what][0] for name in found if name.startswith("torch_reduce") for what in (COMBINED, GATHERED)):
        sys.exit("a token's sum by torch_reduce depends on the batch: that must not be")


if __name__ == "__main__":
    main()
