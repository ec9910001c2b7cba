"""A mixture of experts by moe_plan, moe_dispatch and moe_combine: the same bits however experts are spread over ranks.

    python examples/experts.py [--device cuda] [--small]

A router picks four experts for each token, and drops what is more than an expert takes. If the experts lie on several
ranks, each rank may add what its own experts made of a token, and an all_reduce adds these sums: then the bits depend
on the number of ranks. Or the ranks give the rows back to where the tokens are, and moe_combine adds them there, in the
order of a token's choices. The gradient of a token is such a sum, too.

The ranks are played by one process here. The table says how many values differ from what one rank makes.
"""

import sys

import torch
import torch.nn.functional as F
from _options import name_of, parser, table

import torch_reduce

EACH = 4  # experts for a token
RANKS = [2, 4, 8]


def route(scores, capacity):
    """(weights, experts): the choices of each token, with -1 in place of an expert that has its rows already."""
    weights, experts = scores.softmax(1).topk(EACH, 1)
    plan = torch_reduce.moe_plan(experts, scores.size(1))
    place = plan.index - plan.offsets[experts]  # of a choice, among its expert's rows
    return weights, experts.masked_fill(place >= capacity, -1)


def outputs(rows, counts, up, down):
    """What each expert makes of its own rows, which lie one expert after the other."""
    parts = rows.split([*counts.tolist(), len(rows) - int(counts.sum())])  # the last are of nobody
    made = [F.gelu(part @ a) @ b for part, a, b in zip(parts, up, down, strict=False)]
    return torch.cat([*made, torch.zeros_like(parts[-1])])


def combined_once(x, weights, experts, up, down, ranks):
    """The rows go to the ranks of their experts and come back, and each token adds its own."""
    size = len(up) // ranks
    plan = torch_reduce.moe_plan(experts, len(up), drops=True)
    rows, counts = torch_reduce.moe_dispatch(x, plan), plan.counts
    sent = rows.split([*counts.view(ranks, size).sum(1).tolist(), len(rows) - int(counts.sum())])
    of_rank = [slice(rank * size, (rank + 1) * size) for rank in range(ranks)]
    back = [outputs(part, counts[own], up[own], down[own]) for part, own in zip(sent, of_rank, strict=False)]
    return torch_reduce.moe_combine(torch.cat([*back, sent[-1]]), plan, weights)


def added_by_ranks(x, weights, experts, up, down, ranks):
    """Each rank adds what its experts made of a token; the ranks' sums are added then."""
    size, total = len(up) // ranks, torch.zeros_like(x)
    for rank in range(ranks):
        own = slice(rank * size, (rank + 1) * size)
        here = torch.where((experts >= own.start) & (experts < own.stop), experts - own.start, -1)
        plan = torch_reduce.moe_plan(here, size, drops=True)
        rows = outputs(torch_reduce.moe_dispatch(x, plan), plan.counts, up[own], down[own])
        total = total + torch_reduce.moe_combine(rows, plan, weights)
    return total


WAYS = {"each rank adds its own": added_by_ranks, "rows combined once": combined_once}


def made_of(way, x, scores, up, down, grad, ranks, capacity):
    """{what: values} of a layer whose experts lie on so many ranks."""
    leaf = x.detach().requires_grad_()
    y = way(leaf, *route(scores, capacity), up, down, ranks)
    return {"results": y.detach(), "gradients of tokens": torch.autograd.grad(y, leaf, grad)[0]}


def make(device, tokens, width, hidden, experts):
    """(tokens, scores, the experts' weights, the result's gradient), the same ones each time."""
    torch.manual_seed(0)
    shapes = [(tokens, width), (tokens, experts), (experts, width, hidden), (experts, hidden, width), (tokens, width)]
    x, scores, up, down, grad = (torch.randn(shape).to(device) for shape in shapes)
    return x, scores, up / width**0.5, down / hidden**0.5, grad


BIG = dict(tokens=16384, width=512, hidden=512, experts=32)
SMALL = dict(tokens=200, width=16, hidden=32, experts=8)


def main():
    options = parser(__doc__).parse_args()
    device, sizes = options.device, SMALL if options.small else BIG
    given, capacity = make(device, **sizes), sizes["tokens"] * EACH // sizes["experts"]
    _, experts = route(given[1], capacity)
    dropped = int((experts < 0).sum())
    print(f"{sizes['experts']} experts on {name_of(device)}, {sizes['tokens']} tokens, {EACH} choices of each")
    print(f"an expert takes {capacity} rows: {dropped} of {experts.numel()} choices are dropped\n", flush=True)

    rows, ours = [], 0
    for name, way in WAYS.items():
        alone = made_of(way, *given, 1, capacity)
        found = {ranks: made_of(way, *given, ranks, capacity) for ranks in RANKS}
        for what, wanted in alone.items():
            counts = [int((found[ranks][what] != wanted).sum()) for ranks in RANKS]
            rows.append((f"{what}, {name}", *(f"{count} of {wanted.numel()}" for count in counts)))
            ours += sum(counts) if way is combined_once else 0
    table(["values that differ from one rank's", *(f"{ranks} ranks" for ranks in RANKS)], rows)
    if ours:
        sys.exit("what moe_combine makes depends on the number of ranks: that must not be")


if __name__ == "__main__":
    main()
