"""Trains a graph network with a tensor of messages and without one: the same losses and gradients, bit for bit.

    python examples/message_passing.py [--geometric] [--device cuda] [--small]

In each layer every edge sends a row of its source to its target. Compared are

- messages: x[source] is a tensor, and torch_reduce.index_sum and its kin reduce it by target;
- no messages: torch_reduce.gather_sum and its kin read the rows where they lie in x.

Both use plans: the edges are sorted once, for all layers and steps. The layers are as torch_geometric's SAGEConv (a
mean), GATConv (a softmax over the edges of each target, and sums with its shares) and GINConv (a sum). With --geometric
they are torch_geometric's own: an object that stands for `propagate` of each layer does the rest, and no class is
written anew.
"""

import sys
from typing import NamedTuple

import torch
import torch.nn.functional as F
from _options import name_of, parser
from _runs import compare, flat, report
from graph_network import Network, geometric, make_graph
from torch import nn

import torch_reduce


class Edges(NamedTuple):
    """The edges of a graph, sorted by target; each node has one to itself, as GATConv wants it."""

    source: torch.Tensor
    target: torch.Tensor
    plan: torch_reduce.GatherPlan

    @classmethod
    def of(cls, source, target, nodes):
        """Sorts edges, which may come in any order."""
        itself = torch.arange(nodes, device=source.device)
        keep = source != target
        source, target = torch.cat([source[keep], itself]), torch.cat([target[keep], itself])
        order = torch_reduce.index_plan(target, nodes).order
        source, target = source[order], target[order]
        return cls(source, target, torch_reduce.gather_plan(source, target, nodes, nodes))


def gathered(kind, x, edges, weight=None):
    """(nodes, ...) -> the same: what the edges bring to their targets, without messages."""
    more = {} if weight is None else {"weight": weight}
    return getattr(torch_reduce, f"gather_{kind}")(x, edges.plan, **more)


def by_messages(kind, x, edges, weight=None):
    """The same with messages. `embedding` is x[source] with a gradient in a documented order."""
    sent = torch_reduce.embedding(edges.source, x.flatten(1)).view(-1, *x.shape[1:])
    more = {} if weight is None else {"weight": weight}
    return getattr(torch_reduce, f"index_{kind}")(sent, edges.plan.by_target, **more)


class SAGE(nn.Module):
    """What a node has and the mean of what its edges bring, each through a linear layer."""

    def __init__(self, reduce, inputs, outputs):
        super().__init__()
        self.reduce = reduce
        self.own, self.others = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs, bias=False)

    def forward(self, x, edges):
        return self.own(x) + self.others(self.reduce("mean", x, edges))


class GIN(nn.Module):
    """A perceptron of what a node has plus the sum of what its edges bring."""

    def __init__(self, reduce, width):
        super().__init__()
        self.reduce = reduce
        self.network = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x, edges):
        return self.network(x + self.reduce("sum", x, edges))


class GAT(nn.Module):
    """Attention of several heads over a node's edges."""

    def __init__(self, reduce, inputs, outputs, heads):
        super().__init__()
        self.reduce, self.heads = reduce, heads
        self.project = nn.Linear(inputs, outputs, bias=False)
        self.ask, self.answer = (nn.Parameter(torch.randn(heads, outputs // heads) / 4) for _ in range(2))

    def forward(self, x, edges):
        x = self.project(x).view(len(x), self.heads, -1)
        asked, answered = ((x * each).sum(2) for each in (self.ask, self.answer))
        score = torch_reduce.embedding(edges.target, asked) + torch_reduce.embedding(edges.source, answered)
        share = torch_reduce.segment_softmax(F.leaky_relu(score, 0.2), edges.plan.by_target.offsets)
        return self.reduce("sum", x, edges, share[:, :, None]).flatten(1)


def plain_layers(reduce):
    """What makes three layers that reduce by this function."""
    return lambda features, width: [SAGE(reduce, features, width), GAT(reduce, width, width, 4), GIN(reduce, width)]


class Propagate:
    """Stands for `propagate` of a torch_geometric layer: `layer.propagate = Propagate(layer, reduce)` is all.

    The layer is one of LAYERS, whose messages are rows of x, or these times a weight or alpha. What is registered for
    messages (hooks, explainers) is not called.
    """

    LAYERS = ("SAGEConv", "GINConv", "GraphConv", "GCNConv", "GATConv")

    def __init__(self, layer, reduce):
        if type(layer).__name__ not in self.LAYERS:
            raise TypeError(f"Propagate knows the messages of {', '.join(self.LAYERS)}, not of {type(layer).__name__}")
        self.kind = {"sum": "sum", "add": "sum", "mean": "mean", "max": "amax", "min": "amin"}[layer.aggr]
        self.reduce, self.sorted = reduce, {}

    def __call__(self, edge_index, x, size=None, edge_weight=None, alpha=None):
        rows, targets = x if isinstance(x, tuple) else (x, x)
        count = size[1] if size else len(rows if targets is None else targets)
        edges = self.edges(edge_index, count, len(rows))
        weight = edge_weight if alpha is None else alpha[:, :, None]
        found = self.reduce(self.kind, rows, edges, weight)
        empty = edges.plan.by_target.offsets.diff().eq(0).view(-1, *[1] * (found.dim() - 1))
        return found.masked_fill(empty, 0)  # torch_geometric's value of a node without edges

    def edges(self, edge_index, count, rows):
        """The plan of edges that came before is made once. It is kept by the tensor, which must not change."""
        key = (edge_index.data_ptr(), edge_index._version, count, rows)
        if key not in self.sorted:
            plan = torch_reduce.gather_plan(*edge_index, count, rows)
            self.sorted = {key: (Edges(*edge_index, plan), edge_index)}
        return self.sorted[key][0]


def geometric_layers(reduce):
    """What makes three layers of torch_geometric whose `propagate` is ours."""
    make = geometric()

    def layers(features, width):
        found = make(features, width)
        for layer in found:
            layer.propagate = Propagate(layer, reduce)
        return found

    return layers


def train(layers, x, edges, classes, width, steps):
    """All losses and gradients of all steps in one row, from the same start each time."""
    torch.manual_seed(0)
    model = Network(layers(x.shape[1], width), width).to(x.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    kept = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, edges), classes)
        loss.backward()
        optimizer.step()
        kept += [loss.detach()[None], *(parameter.grad for parameter in model.parameters())]
    return flat(kept)


BIG = dict(graph=dict(nodes=50_000, edges=1_000_000, features=32), width=64, steps=5)
SMALL = dict(graph=dict(nodes=200, edges=3000, features=8), width=16, steps=3)


def main():
    made = parser(__doc__)
    made.add_argument("--geometric", action="store_true", help="with layers of torch_geometric")
    options = made.parse_args()
    device, sizes = options.device, SMALL if options.small else BIG
    make = geometric_layers if options.geometric else plain_layers
    layers = {"torch_reduce, messages": make(by_messages), "torch_reduce, no messages": make(gathered)}
    x, ends, classes = make_graph(**sizes["graph"], device=device)
    edges, width, steps = Edges.of(*ends, len(x)), sizes["width"], sizes["steps"]
    given = torch.stack([edges.source, edges.target]) if options.geometric else edges

    def run(name):
        return train(layers[name], x, given, classes, width, steps)

    of = "torch_geometric's layers" if options.geometric else "layers"
    print(f"{of} on {name_of(device)}: {len(x)} nodes, {len(edges.source)} edges, {steps} steps\n", flush=True)
    ways = {name: (lambda: torch_reduce.replace(devices=device.type), lambda name=name: run(name)) for name in layers}
    report(compare(ways, device, steps))
    with torch_reduce.replace(devices=device.type):
        first, second = map(run, layers)
    if not first.equal(second):
        sys.exit("losses or gradients differ without messages: that must not be")
    print("\nWithout messages all losses and gradients have the same bits.")


if __name__ == "__main__":
    main()
