"""How results lie in memory: under replace() as torch's do, for what comes behind them may be a view.

AOT, torch.export and Inductor choose between views and copies by the strides of aten's meta kernels.
"""

import itertools
import math
import typing

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

import torch_reduce
from support import assert_same_bits
from torch_reduce import _replace, _traced

aten = torch.ops.aten

# --- every function in every layout -----------------------------------------------------------------------------------

LAYOUTS = {
    "contiguous": lambda make, a, b, c, d: make(a, b, c, d),
    "transposed": lambda make, a, b, c, d: make(a, d, c, b).transpose(1, 3),
    "permuted": lambda make, a, b, c, d: make(c, d, a, b).permute(2, 3, 0, 1),
    "channels_last": lambda make, a, b, c, d: make(a, b, c, d).contiguous(memory_format=torch.channels_last),
    "stepped": lambda make, a, b, c, d: make(a, b, 2 * c, 3 * d)[:, :, ::2, 1::3],
    "expanded": lambda make, a, b, c, d: make(a, 1, c, d).expand(a, b, c, d),
    "empty": lambda make, a, b, c, d: make(a, d, 0, b).transpose(1, 3),
}
SIZES = {"small": (4, 6, 5, 8), "large": (8, 16, 24, 40)}  # large calls on a GPU are computed in another way


def tensor(layout, size, device, dtype=torch.float32):
    def make(*shape):
        values = torch.randn(shape, generator=torch.Generator().manual_seed(math.prod(shape)))
        return values.to(device, dtype)

    return LAYOUTS[layout](make, *SIZES[size])


def reduced(function):
    """Calls of a reduction over some dims."""
    return [lambda x, d=d, k=k: function(x, d, keepdim=k) for d in ((1,), (0, 3), (1, 2, 3)) for k in (False, True)]


def one_by_one(function):
    return [lambda x, d=d, k=k: function(x, d, keepdim=k) for d in (0, 1, 3) for k in (False, True)]


def softmaxes(function, backward):
    calls = []
    for d in (0, 1, 3):
        calls.append(lambda x, d=d: function(x, d))
        calls.append(lambda x, d=d: backward(x, x.softmax(d), d, x.dtype))
        calls.append(lambda x, d=d: backward(x.contiguous(), x, d, x.dtype))
    return calls


def weights(x, dims=1):
    return torch.linspace(1, 2, x.shape[-dims:].numel(), device=x.device).view(x.shape[-dims:])


def gradients(function):
    """A function's results and its gradients: of a plain incoming gradient, and of one of the input's layout."""

    def call(x):
        leaf = x.detach().requires_grad_()
        result = function(leaf)
        return [result.detach(), *torch.autograd.grad(result, leaf, torch.empty_like(x).fill_(0.5))]

    return call


def layer_norm_backward(x, dims):
    shape = x.shape[-dims:]
    _, mean, r = aten.native_layer_norm(x, shape, None, None, 1e-5)
    return aten.native_layer_norm_backward(x, x, shape, mean, r, weights(x, dims), weights(x, dims), [True] * 3)


def classes(x):
    shape = x.shape[:1] + x.shape[2:]
    return (torch.arange(shape.numel(), device=x.device) * 7919 % x.shape[1]).view(shape)


def places(x, size):
    """An index for the dim of size `size`, with as many entries."""
    return torch.arange(size, device=x.device) * 3 % 2


def bags(x):
    """Bags of two rows of x[0, 0], and none where it has no rows: there torch's own kernel stops the GPU."""
    return places(x, 6 if x.shape[2] else 0).view(-1, 2)


CALLS = {
    "sum": [lambda x: x.sum(), *reduced(torch.sum)],
    "mean": reduced(torch.mean),
    "nansum": reduced(torch.nansum),
    "prod": one_by_one(torch.prod),
    "amax": reduced(torch.amax),
    "amin": reduced(torch.amin),
    "argmax": [lambda x: x.argmax(), *one_by_one(torch.argmax)],
    "argmin": one_by_one(torch.argmin),
    "max": one_by_one(torch.max),
    "min": one_by_one(torch.min),
    "aminmax": [torch.aminmax, *one_by_one(lambda x, d, keepdim: torch.aminmax(x, dim=d, keepdim=keepdim))],
    "any": reduced(torch.any),
    "all": reduced(torch.all),
    "count_nonzero": [lambda x: torch.count_nonzero(x, 1), lambda x: torch.count_nonzero(x, (0, 3))],
    "vector_norm": reduced(lambda x, d, keepdim: torch.linalg.vector_norm(x, 3, d, keepdim)),
    "logsumexp": reduced(torch.logsumexp),
    "var": reduced(torch.var),
    "std": reduced(torch.std),
    "var_mean": reduced(torch.var_mean),
    "std_mean": reduced(torch.std_mean),
    "dot": [lambda x: x[0, 0, :, 0].dot(x[0, 1, :, 0])],
    "softmax": [
        *softmaxes(torch.softmax, aten._softmax_backward_data),
        lambda x: aten._safe_softmax(x, 3),
        lambda x: F.softmax(x.half(), 1, dtype=torch.float32),
        gradients(lambda x: x.softmax(1)),
    ],
    "log_softmax": [
        *softmaxes(torch.log_softmax, aten._log_softmax_backward_data),
        gradients(lambda x: x.log_softmax(3)),
    ],
    "layer_norm": [
        lambda x: aten.native_layer_norm(x, x.shape[3:], None, None, 1e-5),
        lambda x: F.layer_norm(x, x.shape[2:], weights(x, 2), weights(x, 2)),
        lambda x: F.layer_norm(x.half(), x.shape[3:], weights(x).half()),
        *[lambda x, n=n: layer_norm_backward(x, n) for n in (1, 2)],
        gradients(lambda x: F.layer_norm(x, x.shape[3:], weights(x))),
    ],
    "rms_norm": [
        lambda x: F.rms_norm(x, x.shape[3:]),
        lambda x: F.rms_norm(x, x.shape[2:], weights(x, 2), 1e-5),
        lambda x: F.rms_norm(x.bfloat16(), x.shape[3:], weights(x).bfloat16(), 1e-5),
    ],
    "nll_loss": [
        lambda x: F.nll_loss(x, classes(x)),
        lambda x: F.nll_loss(x, classes(x), reduction="none"),
        lambda x: F.nll_loss(x[..., 0], classes(x[..., 0]), reduction="none"),
        lambda x: F.cross_entropy(x[..., 0, 0], classes(x[..., 0, 0]), reduction="none"),
        gradients(lambda x: F.cross_entropy(x, classes(x), reduction="none")),
        gradients(lambda x: F.nll_loss(x[:, :, 0, 0], classes(x[:, :, 0, 0]), reduction="none")),
    ],
    "index_add": [
        lambda x: x.index_add(1, places(x, x.shape[1]), x),
        lambda x: x.index_add(3, places(x, x.shape[3]), x.contiguous(), alpha=2),
        lambda x: x.long().index_add(0, places(x, x.shape[0]), x.long(), alpha=-3),
        lambda x: torch.complex(x, x).index_add(0, places(x, x.shape[0]), torch.complex(x, x)),
        lambda x: x.index_add(3, places(x, 1), x[..., :1]),  # few entries
    ],
    "scatter_add": [
        lambda x: x.scatter_add(1, places(x, x.numel()).view(x.shape), x),
        lambda x: x.scatter_add(1, places(x, x.shape[1])[:, None, None].expand(x.shape), x.contiguous()),
        lambda x: x.scatter_add(1, places(x, x.shape[1])[:, None, None].expand(x.shape)[..., 1:], x),
        lambda x: x.scatter_add(3, places(x, x[..., :1].numel()).view(x[..., :1].shape), x[..., :1]),
    ],
    "index_reduce": [
        lambda x: x.index_reduce(1, places(x, x.shape[1]), x, "amax"),
        lambda x: x.index_reduce(3, places(x, x.shape[3]), x.contiguous(), "mean", include_self=False),
        lambda x: x.index_reduce(3, places(x, 1), x[..., :1], "prod"),  # few entries
    ],
    "scatter_reduce": [
        lambda x: x.scatter_reduce(1, places(x, x.numel()).view(x.shape), x, "sum"),
        lambda x: x.scatter_reduce(1, places(x, x.shape[1])[:, None, None].expand(x.shape), x.contiguous(), "amin"),
        lambda x: x.scatter_reduce(1, places(x, x.shape[1])[:, None, None].expand(x.shape)[..., 1:], x, "mean"),
        lambda x: x.scatter_reduce(3, places(x, x[..., :1].numel()).view(x[..., :1].shape), x[..., :1], "amax"),
    ],
    "index_put": [
        lambda x: x.index_put((places(x, x.shape[0]),), x, accumulate=True),
        lambda x: x.index_put((None, places(x, x.shape[1])), x.contiguous(), accumulate=True),
        lambda x: aten.index_put(x, [places(x, x.shape[0]), None, None, places(x, x.shape[0])], x[..., 0], True),
        lambda x: aten.index_put(x, [None, None, None, places(x, 1)], x[..., :1], True),
    ],
    "embedding": [
        lambda x: aten.embedding_dense_backward(x, places(x, x[..., 0].numel()).view(x.shape[:-1]), 7, -1, False),
    ],
    "embedding_bag": [
        lambda x: F.embedding_bag(bags(x), x[0, 0], mode="mean"),
        lambda x: torch.autograd.grad(
            F.embedding_bag(bags(x), (t := x[0, 0].detach().requires_grad_()), mode="sum").sum(), t
        )[0],
    ],
    "bincount": [lambda x: torch.bincount(places(x, x.shape[3]), x[0, 0, :, :].reshape(-1)[: x.shape[3]])],
}


KEEP_THEIR_SHAPE = ["softmax", "log_softmax", "layer_norm", "rms_norm", "nll_loss", "index_add", "scatter_add"]


def outcome(call, x):
    """The results, or the class of the error."""
    try:
        found = call(x)
    except Exception as error:
        return type(error)
    return list(found) if isinstance(found, (tuple, list)) else [found]


def alone(call):
    return lambda x: call(x)  # tracing asks for all that a lambda's defaults hold


def lie(results):
    if isinstance(results, type):
        return results
    return [(r.dtype, tuple(r.shape), r.stride()) for r in results if r is not None]


def test_all_functions_are_here():
    assert set(CALLS) == set(typing.get_args(_replace._Name))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "size"), [*[(name, "small") for name in CALLS], *[(name, "large") for name in KEEP_THEIR_SHAPE]]
)
def test_layouts(name, size, device):
    """dtype, shape and strides are torch's, whatever the input's strides; so is the class of an error."""
    for layout, (i, call) in itertools.product(LAYOUTS, enumerate(CALLS[name])):
        x = tensor(layout, size, device)
        before = outcome(call, x)
        with torch_reduce.replace(devices=device):
            inside = outcome(call, x)
        assert lie(inside) == lie(before), f"call {i}, {layout}"
        if isinstance(inside, type):
            continue
        for ours, torchs in zip(inside, before, strict=True):
            tolerance = 2e-2 if torchs is not None and torchs.dtype.itemsize == 2 else 1e-3
            torch.testing.assert_close(ours, torchs, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in CALLS if name != "bincount"])
def test_traced_layouts(name, device):
    """What a compiler is told, by our operators with aten's schemas and their meta kernels: the same."""
    for layout in LAYOUTS:
        x = tensor(layout, "small", device)
        taken = 0
        for i, call in enumerate(CALLS[name]):
            before = outcome(call, x)
            if isinstance(before, type):
                continue
            with torch_reduce.replace(name, device):
                table = _traced._decompositions(_traced.now, {})
                graph = make_fx(alone(call), decomposition_table=table, tracing_mode="fake")(x).graph
            if not any(str(node.target).startswith("gpureduce.") for node in graph.nodes):
                continue  # what is left to torch has the strides of torch's own meta kernels
            taken += 1
            found = [node.meta["val"] for node in tree_leaves(graph.output_node().args)]
            assert lie(found) == lie(before), f"call {i}, {layout}"
        # On a GPU torch composes rms_norm of channels_last images of other functions.
        left = (name, layout, device) == ("rms_norm", "channels_last", "cuda")
        assert taken > 0 or layout == "empty" or left, layout


OURS = {
    "softmax": (lambda x: torch_reduce.softmax(x, 1), lambda x: x.softmax(1)),
    "softmax of rows": (lambda x: torch_reduce.softmax(x, 3), lambda x: x.softmax(3)),
    "log_softmax": (lambda x: torch_reduce.log_softmax(x, 3), lambda x: x.log_softmax(3)),
    "layer_norm": (
        lambda x: torch_reduce.layer_norm(x, x.shape[3:], weights(x), weights(x)),
        lambda x: F.layer_norm(x, x.shape[3:], weights(x), weights(x)),
    ),
    "rms_norm": (
        lambda x: torch_reduce.rms_norm(x, x.shape[3:], weights(x)),
        lambda x: F.rms_norm(x.contiguous(), x.shape[3:], weights(x)),
    ),
    "cross_entropy": (
        lambda x: torch_reduce.cross_entropy(x, classes(x), reduction="none"),
        lambda x: F.cross_entropy(x, classes(x), reduction="none"),
    ),
    "index_add": tuple(
        lambda x, f=f: f(x, 1, places(x, x.shape[1]), x) for f in (torch_reduce.index_add, torch.index_add)
    ),
    "scatter_add": tuple(
        lambda x, f=f: f(x, 1, places(x, x.numel()).view(x.shape), x)
        for f in (torch_reduce.scatter_add, torch.scatter_add)
    ),
    **{
        f"index_reduce, {kind}": tuple(
            lambda x, f=f, k=kind: f(x, 1, places(x, x.shape[1]), x, k)
            for f in (torch_reduce.index_reduce, torch.index_reduce)
        )
        for kind in ("mean", "amax")
    },
    "scatter_reduce": tuple(
        lambda x, f=f: f(x, 1, places(x, x.numel()).view(x.shape), x, "mean", include_self=False)
        for f in (torch_reduce.scatter_reduce, torch.scatter_reduce)
    ),
    "scatter_add of nothing": tuple(
        lambda x, f=f: f(x, 1, places(x, 0).view(0, 0, 0, 0), x) for f in (torch_reduce.scatter_add, torch.scatter_add)
    ),
}


@pytest.mark.parametrize("name", OURS)
def test_own_functions(name, device):
    """So do our own functions of torch's names; their gradients are contiguous, also those that can be derived again.

    The bits, and those of the gradients, are what a contiguous input has.
    """
    ours, theirs = OURS[name]
    for layout, size in itertools.product(LAYOUTS, SIZES):
        x = tensor(layout, size, device)
        grad = torch.randn_like(ours(x))

        def run(x, grad=grad, **options):
            leaf = x.detach().requires_grad_()
            result = ours(leaf)
            return result, *torch.autograd.grad(result, leaf, grad, **options)

        (result, gradient), (_, again), wanted = run(x), run(x, create_graph=True), run(x.contiguous())
        if (name, layout) != ("rms_norm", "empty"):  # torch's is no plain one there
            assert lie([result]) == lie([theirs(x)]), layout
        if not name.startswith(("index", "scatter")):  # there it is the sum of two that autograd adds
            assert gradient.is_contiguous() and again.is_contiguous(), layout
        for found, plain in zip((result, gradient), wanted, strict=True):
            assert_same_bits(found.detach().contiguous(), plain.detach().contiguous(), layout)


# --- models that take views of results --------------------------------------------------------------------------------


class Patches(nn.Module):
    """A ViT's: the norm's input is transposed, and the next layer views its result."""

    def __init__(self):
        super().__init__()
        self.patch, self.norm, self.head = nn.Conv2d(3, 8, 4, 4), nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.norm(self.patch(x).flatten(2).transpose(1, 2)))


class ConvNext(nn.Module):
    """Norms over channels, by permuting."""

    def __init__(self):
        super().__init__()
        self.stem, self.depth = nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.first, self.norm, self.last = nn.LayerNorm(8), nn.LayerNorm(8), nn.LayerNorm(8)
        self.wide, self.narrow = nn.Linear(8, 16), nn.Linear(16, 8)
        self.scale = nn.Parameter(torch.full((8, 1, 1), 0.5))

    def forward(self, x):
        x = self.first(self.stem(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        x = x + self.scale * self.narrow(F.gelu(self.wide(y))).permute(0, 3, 1, 2)
        return self.last(x.mean((-2, -1), keepdim=True).permute(0, 2, 3, 1)).flatten(1)


def attention(q, k, v):
    return (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1) @ v


class Swin(nn.Module):
    """Attention in shifted windows, which are views."""

    def __init__(self):
        super().__init__()
        self.patch, self.norm, self.after = nn.Conv2d(3, 8, 4, 4), nn.LayerNorm(8), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.merge = nn.Linear(16, 4)

    def forward(self, x):
        x = self.patch(x).permute(0, 2, 3, 1)
        b, h, w, c = x.shape
        y = torch.roll(self.norm(x), (-1, -1), (1, 2))
        y = y.view(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
        q, k, v = self.qkv(y).view(-1, 4, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        y = self.out(attention(q, k, v).transpose(1, 2).reshape(-1, 4, c))
        y = y.view(b, h // 2, w // 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        x = x + torch.roll(y, (1, 1), (1, 2))
        x = torch.cat([x[:, 0::2, :], x[:, 1::2, :]], -1)
        return self.merge(self.after(x).view(b, -1, 2 * c))


class SegFormer(nn.Module):
    """Attention over an image that a strided convolution makes smaller."""

    def __init__(self):
        super().__init__()
        self.patch, self.norm = nn.Conv2d(3, 8, 4, 4), nn.LayerNorm(8)
        self.q, self.kv = nn.Linear(8, 8), nn.Linear(8, 16)
        self.smaller, self.small_norm = nn.Conv2d(8, 8, 2, 2), nn.LayerNorm(8)
        self.mix = nn.Conv2d(8, 4, 1)

    def forward(self, x):
        x = self.patch(x)
        b, c, h, w = x.shape
        tokens = self.norm(x.flatten(2).transpose(1, 2))
        image = self.smaller(tokens.permute(0, 2, 1).reshape(b, c, h, w))
        small = self.small_norm(image.reshape(b, c, -1).permute(0, 2, 1))
        q = self.q(tokens).view(b, -1, 2, c // 2).transpose(1, 2)
        k, v = self.kv(small).view(b, -1, 2, 2, c // 2).permute(2, 0, 3, 1, 4)
        found = attention(q, k, v).transpose(1, 2).contiguous().view(b, -1, c)
        return self.mix(found.transpose(1, 2).view(b, c, h, w)).log_softmax(1).flatten(2)


class Rearranged(nn.Module):
    """An attention as einops writes it: scores of keys by queries, whose softmax is rearranged."""

    def __init__(self):
        super().__init__()
        self.qkv, self.norm = nn.Conv2d(3, 24, 2, 2), nn.RMSNorm(8)

    def forward(self, x):
        b, _, h, w = x.shape
        q, k, v = self.qkv(x).reshape(b, 3, 2, 4, h * w // 4).unbind(1)  # b heads dims places
        scores = torch.einsum("bhdi,bhdj->bhji", q, k).transpose(-2, -1).softmax(-1)
        kept = scores.flatten(1, 2)
        found = torch.einsum(
            "bij,bjd->bid", kept.unflatten(1, (2, -1)).flatten(0, 1), v.transpose(-2, -1).flatten(0, 1)
        )
        found = found.reshape(b, 2, h // 2, w // 2, 4).permute(0, 2, 3, 1, 4)
        return self.norm(found.flatten(-2)).view(b, -1)


class Graph(nn.Module):
    """Messages that are added at their nodes, into columns."""

    def __init__(self):
        super().__init__()
        self.message = nn.Linear(48, 8)

    def forward(self, x):
        nodes = self.message(x.flatten(0, 2)).relu().t()
        edges = torch.arange(nodes.shape[1], device=x.device) * 7 % 5
        columns = x.new_zeros(8, 5)
        added = x.new_zeros(5, 8).t().index_add(1, edges, nodes)
        return columns.t().scatter_add(0, edges[:, None].expand(-1, 8), nodes.t()).view(-1) + added.view(-1)


MODELS = {model.__name__: model for model in (Patches, ConvNext, Swin, SegFormer, Rearranged, Graph)}


def prepared(name, device):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = MODELS[name]().to(device)
    return model, torch.randn(2, 3, 16, 48, device=device)


def trained(model, function, x):
    """The result, and the gradients of the input and of all parameters."""
    x = x.detach().requires_grad_()
    result = function(x)
    weight = torch.linspace(-1, 1, result.numel(), device=x.device).view(result.shape)
    return [result.detach(), *torch.autograd.grad(result, [x, *model.parameters()], weight)]


@pytest.mark.parametrize(
    ("name", "backend"),
    [*[(name, "aot_eager") for name in MODELS], ("Patches", "inductor"), ("Rearranged", "inductor")],
)
def test_compiled_models(name, backend, device):
    """Models of the vision families compile, forward and backward, and are near what they are without it."""
    model, x = prepared(name, device)
    wanted = trained(model, model, x)
    with torch_reduce.replace(devices=device):
        eager = trained(model, model, x)
        compiled = trained(model, torch.compile(model, backend=backend, fullgraph=True), x)
    for found, plain, torchs in zip(compiled, eager, wanted, strict=True):
        torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(plain, torchs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("inside", [False, True], ids=["exported before", "exported inside"])
@pytest.mark.parametrize("name", MODELS)
def test_exported_models(name, inside, device):
    """So do exported programs, whose aten operators run under replace(), also once they are decomposed."""
    model, x = prepared(name, device)
    model.eval()

    def programs():
        program = torch.export.export(model, (x,))
        return [program.module(), program.run_decompositions().module()]

    wanted = model(x)
    made = [] if inside else programs()
    with torch_reduce.replace(devices=device):
        for program in made or programs():
            torch.testing.assert_close(program(x), wanted, rtol=1e-3, atol=1e-4)


def test_the_smallest_model(device):
    """A norm of transposed patches, in front of a linear layer."""
    torch._dynamo.reset()
    patch, norm, head = (each.to(device) for each in (nn.Conv2d(3, 8, 4, 4), nn.LayerNorm(8), nn.Linear(8, 5)))
    x = torch.randn(2, 3, 16, 16, device=device)

    def model(x):
        return head(norm(patch(x).flatten(2).transpose(1, 2))).sum()

    with torch_reduce.replace(devices=device):
        torch.testing.assert_close(torch.compile(model, backend="aot_eager")(x), model(x))
