"""Trains a graph network five times from the same start: which gradients agree bit for bit, and the time of a step.

    python examples/graph_network.py [--geometric] [--device cuda] [--small]

Every node adds up what its neighbours send, and in the backward pass what it gets back from them. torch does both by
index: with atomics on a GPU, in whatever order the threads arrive. Compared are torch as it is, torch under
use_deterministic_algorithms(True), and the same layers under torch_reduce.replace().

The layers take means over neighbours, by index_add. With --geometric they are torch_geometric's SAGEConv, GATConv and
GINConv, as they are, on edges in a plain tensor. These call, as torch_geometric 2.8 has it (utils/_scatter.py,
utils/_softmax.py, nn/conv/message_passing.py):

- index_select, to send; its gradient is an index_add. Taken.
- scatter_add_, for sums, means and their counts, and for the sum in GATConv's softmax; its gradient is a gather, which
  adds nothing. Taken.
- scatter_reduce_ with "amax", for the maximum in GATConv's softmax. Taken. No gradient flows through it.

What torch_geometric gives to pyg_lib, torch_scatter, torch_sparse or sparse matrix products stays theirs. Edges in a
SparseTensor or a sorted EdgeIndex get there, and maxima with gradients where torch_scatter is installed. Matrix
products stay torch's, too; they have one order for one shape.
"""

import sys

import torch
import torch.nn.functional as F
from _options import name_of, parser
from _runs import compare, flat, order_of, places, report
from torch import nn

CLASSES = 4


def mean_of_neighbours(x, edges):
    """(nodes, width) -> the same: the mean over the edges that end at each node; 0 where none does."""
    source, node = edges
    sums = torch.zeros_like(x).index_add(0, node, x.index_select(0, source))
    counts = x.new_zeros(len(x)).index_add(0, node, x.new_ones(len(node)))
    return sums / counts.clamp(min=1)[:, None]


class MeanLayer(nn.Module):
    """What a node has and the mean of its neighbours, each through a linear layer, as in SAGEConv."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.own, self.others = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs, bias=False)

    def forward(self, x, edges):
        return self.own(x) + self.others(mean_of_neighbours(x, edges))


def plain_layers(features, width):
    """Three layers that need torch alone."""
    return [MeanLayer(features, width), MeanLayer(width, width), MeanLayer(width, width)]


def geometric():
    """What makes three layers of torch_geometric, as plain_layers does."""
    try:
        from torch_geometric.nn import GATConv, GINConv, SAGEConv
    except ModuleNotFoundError as error:
        sys.exit(f"--geometric needs torch_geometric (`pip install torch_geometric`), but: {error}")

    def layers(features, width):
        perceptron = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        return [SAGEConv(features, width), GATConv(width, width // 4, heads=4), GINConv(perceptron)]

    return layers


class Network(nn.Module):
    """(nodes, features) -> (nodes, CLASSES)."""

    def __init__(self, layers, width):
        super().__init__()
        self.layers, self.head = nn.ModuleList(layers), nn.Linear(width, CLASSES)

    def forward(self, x, edges):
        for layer in self.layers:
            x = F.relu(layer(x, edges))
        return self.head(x)


def make_graph(nodes, edges, features, device):
    """(what the nodes have, (2, edges) from where to where, classes), the same ones each time.

    A few nodes have thousands of neighbours, as in most graphs of the world. The class of a node is the largest of the
    first four means over its neighbours.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(nodes, features, generator=generator)
    ends = (torch.rand(2, edges, generator=generator, dtype=torch.float64).square() * nodes).long()
    classes = mean_of_neighbours(x, ends)[:, :CLASSES].argmax(1)
    return x.to(device), ends.to(device), classes.to(device)


def train(layers, graph, width, steps):
    """(the losses, all gradients of all steps in one row), from the same start each time."""
    x, edges, classes = graph
    torch.manual_seed(0)
    model = Network(layers(x.shape[1], width), width).to(x.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, gradients = [], []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, edges), classes)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        gradients += [parameter.grad for parameter in model.parameters()]
    return torch.stack(losses), flat(gradients)


BIG = dict(graph=dict(nodes=50_000, edges=1_000_000, features=32), width=64, steps=5)
SMALL = dict(graph=dict(nodes=200, edges=3000, features=8), width=16, steps=3)


def main():
    made = parser(__doc__)
    made.add_argument("--geometric", action="store_true", help="with layers of torch_geometric")
    options = made.parse_args()
    device, sizes = options.device, SMALL if options.small else BIG
    layers = geometric() if options.geometric else plain_layers
    graph, width, steps = make_graph(**sizes["graph"], device=device), sizes["width"], sizes["steps"]

    def run():
        return train(layers, graph, width, steps)[1]

    of = "torch_geometric's layers" if options.geometric else "means over neighbours"
    print(f"A network of {of} on {name_of(device)}: {len(graph[0])} nodes, {graph[1].shape[1]} edges, {steps} steps")
    print(f"{order_of(device)}\n", flush=True)
    report(compare({name: (place, run) for name, place in places(device).items()}, device, steps))


if __name__ == "__main__":
    main()
