"""Gradients of any order, reverse and forward, torch.func, tracing; the backward is a view and saves sizes alone."""

import itertools
import math
import warnings
import weakref

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.utils.checkpoint
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

import model
from support import (
    DTYPES,
    INTEGER,
    OPERATIONS,
    Norm,
    assert_same_bits,
    data,
    dtype_of,
    every_operation,
    name_of,
    numpy_of,
    tensor_of,
    walked,
)
from table import (
    CASES,
    SEGMENTS,
    VARIANCES,
    WEIGHTED,
    every_case,
    floats,
    gradients,
    leaves,
    rotated,
    taken,
    tensors,
    walks,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:Casting complex values",
    "ignore:ComplexHalf support",
    "ignore:There is a performance drop",
    "ignore:.*degrees of freedom",
)

CALLS = [
    dict(dim=None),
    dict(dim=[]),
    dict(dim=[], keepdim=True),
    dict(dim=[0]),
    dict(dim=[-1]),
    dict(dim=[1], keepdim=True),
    dict(dim=[2, 0]),
    dict(dim=[-2, -1], keepdim=True),
    dict(dim=[0, 1, 2]),
]
DIFFERENTIABLE = [name for name in DTYPES if name not in INTEGER]


class Calls(TorchDispatchMode):
    """Records the ops that reach a backend, as names."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.names.append(op.__name__)
        return op(*args, **(kwargs or {}))


def leaf(shape, name="float64", device="cpu", seed=0):
    """A small tensor that requires grad."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, dtype=torch.complex128, generator=generator)
    values = values if dtype_of(name).is_complex else values.real
    return values.to(device, dtype_of(name)).requires_grad_()


# --- derivatives ------------------------------------------------------------------------------------------------------


WITH_GRADIENT = [op for op in CASES if op.has_gradient]
every_differentiable = pytest.mark.parametrize("op", WITH_GRADIENT, ids=str)


def of_leaves(op, x, **call):
    """A call as a function of those inputs that may have a gradient, and these, of which `x` is the first."""
    inputs = (x, leaf(x.shape, name_of(x.dtype), x.device, seed=1)) if op is WEIGHTED else x
    if op in SEGMENTS:  # none of which is empty
        inputs = x, torch.tensor([0, 1, x.shape[call["dim"][0]] // 2, x.shape[call["dim"][0]]], device=x.device)
    rest = [t for t in tensors(inputs) if not t.requires_grad]

    def function(*given, **more):
        return op((*given, *rest) if isinstance(inputs, tuple) else given[0], **call, **more)

    return function, [t for t in tensors(inputs) if t.requires_grad]


def calls_of(op, x):
    """All calls of a sum and a mean; of the others some."""
    for call in CALLS if op in OPERATIONS else (CALLS[0], CALLS[3], CALLS[4], CALLS[5], CALLS[6]):
        if op.has(x, call["dim"], call.get("keepdim", False)):
            yield call


@taken("float64", "complex128", cases=WITH_GRADIENT)
def test_gradcheck(op, name, device):
    """First derivatives by both modes, alone and batched, agree with finite differences, in any layout.

    Calls take turns with layouts and dtypes.
    """
    x = leaf((2, 3, 2) if op not in SEGMENTS else (7, 2, 7), name, device)
    views = (x, x.detach().permute(2, 0, 1)[:, ::2].requires_grad_(), x.detach()[:, :0].requires_grad_())
    for k, view in enumerate(views):
        if op in OPERATIONS or view.numel():
            for call in rotated(calls_of(op, view), k + (name == "float64"), 2):
                function, given = of_leaves(op, view, **call)
                if not all(y.isfinite().all() for y in tensors(function(*given))):
                    continue  # the mean or maximum of nothing: finite differences are NaN
                batched = dict(check_batched_grad=True, check_batched_forward_grad=True)
                assert gradcheck(function, given, check_forward_ad=True, **batched)


@taken("float64", "complex128", cases=WITH_GRADIENT)
def test_gradgradcheck(op, name, device):
    """Second derivatives too: reverse over reverse, forward over reverse, batched."""
    x = leaf((2, 2, 2) if op not in SEGMENTS else (7, 2), name, device)
    for call in CALLS[2:6] if op not in SEGMENTS else [dict(dim=[0])]:
        if call["dim"] == [] and op not in OPERATIONS:
            continue
        function, given = of_leaves(op, x, **call)
        cubes = lambda *given, f=function: tuple(y**3 for y in tensors(f(*given)))  # noqa: E731
        assert gradgradcheck(cubes, given, check_fwd_over_rev=True, check_rev_over_rev=True, check_batched_grad=True)


@walks("float64", "complex128", cases=[op for op in WITH_GRADIENT if op not in SEGMENTS + VARIANCES])
def test_gradcheck_of_a_scalar(op, name, device):
    """0-d tensors; one number has no deviation."""
    for dim in (None, [0], [-1]):
        function, given = of_leaves(op, leaf((), name, device), dim=dim, keepdim=True)
        assert gradcheck(function, given, check_forward_ad=True)


ROWS = [
    [1.0, 2.0, 2.0, -1.0],
    [0.0, 3.0, 4.0, 5.0],
    [0.0, 3.0, 0.0, 5.0],
    [0.0, -0.0, 0.0, 0.0],
    [2.0, 2.0, 2.0, 2.0],
    [1.0, math.nan, 2.0, 3.0],
]


@walks("float32", "bfloat16", "float16", "float64", "complex64", cases=WITH_GRADIENT)
def test_gradients_are_torchs(op, name, device):
    """With ties, zeros and NaN: what torch's function has in float64, rounded; and 0 where a norm is 0."""
    for row in ROWS:
        if isinstance(op, Norm) and (math.isnan(sum(row)) or (not op.rooted and not any(row))):
            continue  # of which torch's, and the formulas that stand for its sums of powers, are NaN
        x = torch.tensor([row, row[::-1]], dtype=torch.float64, device=device)
        x = (torch.complex(x, x.roll(1, 1)) if name == "complex64" else x).to(dtype_of(name))
        wide = torch.complex128 if x.is_complex() else torch.float64
        inputs = op.around(x, 1)
        ours, theirs = leaves(op, inputs), leaves(op, tree_map(lambda t, w=wide: t.to(w) if floats(t) else t, inputs))
        found = []
        for function, given in ((op, ours), (op.function, ours), (op.torch, theirs)):
            results = tensors(function(given, 1))
            seeds = [torch.tensor([2.0, 3.0], device=device).to(y.dtype) for y in results]
            seeds = [torch.ones_like(y) for y in results] if op in SEGMENTS else seeds
            found.append(torch.autograd.grad(results, floats(given), seeds))
        few = {"bfloat16": 2.0**-8, "float16": 2.0**-9, "float64": 2.0**-49}.get(name, 2.0**-21)  # some roundings
        for a, public, b in zip(*found, strict=True):
            assert_same_bits(a, public)
            torch.testing.assert_close(a.to(wide), b, rtol=few, atol=few / 8, equal_nan=True)


@walks("float8_e5m2", "float8_e4m3fn", cases=WITH_GRADIENT)
def test_gradients_of_float8(op, name, device):
    """float8 has a gradient, of its own dtype: that of the same numbers in float32, rounded.

    Later versions of torch make the largest number of what overflows, so the rounding is not torch's.
    """
    small = leaves(op, op.inputs((3, 50), name, 96, device, 1))
    wide = leaves(op, tree_map(lambda t: t.detach().float() if floats(t) else t, small))
    for a, b in zip(*(gradients(op(x, 1), x, 1.0) for x in (small, wide)), strict=True):
        stored = model.encode(numpy_of(b), name_of(a.dtype))
        assert_same_bits(a, tensor_of(stored, name_of(a.dtype), device))


@walks("float32", "complex64", cases=[op for op in WITH_GRADIENT if op.has_dtype])
def test_gradients_of_wide_results(op, name, device):
    """With a wider dtype= the gradient is the wide input's, rounded to the input's dtype."""
    target = {"float32": torch.float64, "complex64": torch.complex128}[name]
    small = leaves(op, op.inputs((3, 50), name, 97, device, 1))
    wide = leaves(op, tree_map(lambda t: t.detach().to(target) if floats(t) else t, small))
    results = op(small, 1, dtype=target), op(wide, 1)
    for a, b in zip(*(gradients(y, x) for y, x in zip(results, (small, wide), strict=True)), strict=True):
        assert a.dtype == dtype_of(name)
        torch.testing.assert_close(a, b.to(a.dtype))


@every_differentiable
def test_tangents(op, device):
    """Forward mode gives what it gives of torch's function, and the result; a wide result has a wide tangent."""
    for dim, keepdim in ((None, False), ([1], False), ([0], True), ([0], False)):
        x, change = (leaf((9, 40), device=device, seed=s).detach() for s in (1, 2))
        if not op.has(x, dim, keepdim):
            continue
        inputs = op.around(x, dim)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, change)
            dual = (dual, *inputs[1:]) if isinstance(inputs, tuple) else dual
            found = [forward_ad.unpack_dual(y) for y in tensors(op(dual, dim, keepdim))]
            wanted = [forward_ad.unpack_dual(y).tangent for y in tensors(op.torch(dual, dim, keepdim))]
        assert_same_bits(tuple(y.primal for y in found), tuple(tensors(op(inputs, dim, keepdim))))
        for (_, tangent), theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(tangent, theirs, equal_nan=True)
        if op.has_dtype:
            with forward_ad.dual_level():
                dual = forward_ad.make_dual(x.float(), change.float())
                dual = (dual, *inputs[1:]) if isinstance(inputs, tuple) else dual
                tangent = forward_ad.unpack_dual(op(dual, dim, keepdim, dtype=torch.float64)).tangent
            assert tangent.dtype == torch.float64


@every_case
def test_a_graph_where_one_is_needed(op, device):
    """A result has a grad_fn where its input requires grad, grad mode is on, and there is a derivative."""
    x = op.inputs((3, 40), "float32", 3, device, 1)
    for form in op.forms:
        asked = leaves(op, x)
        assert not any(y.requires_grad for y in tensors(form(x, 1)))
        assert all(y.requires_grad == op.has_gradient for y in tensors(form(asked, 1)))
        for dtype in op.targets("float32", "int64", "uint8", "bool") if op.has_dtype else []:
            assert not form(asked, 1, dtype=dtype).requires_grad
        with torch.no_grad():
            assert not any(y.requires_grad for y in tensors(form(asked, 1)))
        with torch.inference_mode():
            assert all(y.is_inference() for y in tensors(form(asked, 1)))
    if not op.has_gradient and not isinstance(op, Norm):  # torch's of order 0 has a node, too, and no gradient
        asked = tree_map(lambda t: t.clone().requires_grad_(), op.inputs((3, 40), "float32", 3, device, 1))
        assert not op(asked, 1).requires_grad
    elif op.has_gradient and (op in OPERATIONS or isinstance(op, Norm)):
        assert op(asked, 1).grad_fn.name() == f"gpureduce_{op}_backward"


@every_differentiable
def test_undefined_gradient(op, device):
    """A result whose gradient is undefined gives its input none."""

    class Stop(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return None

    function, given = of_leaves(op, leaf((3, 40), "float32", device), dim=[1])
    result = Stop.apply(tensors(function(*given))[0]).sum()
    assert torch.autograd.grad(result, given, allow_unused=True) == (None,) * len(given)


@every_differentiable
def test_compiled_autograd(op, device):
    """A backward pass through the node may be compiled itself, once for all sizes."""
    from torch._dynamo import compiled_autograd
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    for rows in (3, 5, 9):
        function, given = of_leaves(op, leaf((rows, 4), "float32", device), dim=[-1])
        y = sum((part**2).sum() for part in tensors(function(given[0] * 3, *given[1:])))
        wanted = torch.autograd.grad(y, given, retain_graph=True)
        with compiled_autograd._enable(lambda graph: torch.compile(graph, backend="aot_eager", dynamic=True)):
            y.backward()
        assert_same_bits(tuple(t.grad for t in given), wanted)
    assert counters["compiled_autograd"]["captures"] == 1 or op not in OPERATIONS


def transforms():
    """Every transform of torch.func over f: (3, 4) -> (4,), and vmap of each over 2 inputs."""

    def per_example(transform):
        return lambda f, x: torch.vmap(transform(f))(torch.stack([x, 2 * x]))

    def jvp(f):
        return lambda x: torch.func.jvp(f, (x,), (x.cos(),))

    def vjp(f):
        return lambda x: torch.func.vjp(f, x)[1](f(x))

    func = torch.func
    each = {
        "grad": lambda f: func.grad(lambda x: f(x).abs().square().sum().real),
        "grad of grad": lambda f: func.grad(lambda x: func.grad(lambda x: (f(x) ** 4).sum())(x).square().sum()),
        "jacrev": func.jacrev,
        "jacfwd": func.jacfwd,
        "hessian": lambda f: func.hessian(lambda x: f(x) ** 2),
        "jacrev of jacfwd": lambda f: func.jacrev(func.jacfwd(lambda x: f(x) ** 2)),
        "jvp": jvp,
        "jvp of grad": lambda f: jvp(func.grad(lambda x: (f(x) ** 3).sum())),
        "vjp": vjp,
        "vmap": lambda f: lambda x: torch.vmap(f)(torch.stack([x, -x])),
    }
    for name, transform in each.items():
        yield name, lambda f, x, t=transform: t(f)(x)
        yield f"vmap of {name}", per_example(transform)
    yield "jacrev of vmap", lambda f, x: func.jacrev(torch.vmap(f))(torch.stack([x, -x]))


@every_differentiable
def test_func(op, device):
    """Each transform gives what it gives of torch's own op; calls over other dims take turns."""
    x = torch.arange(1.0, 13.0, dtype=torch.float64, device=device).view(3, 4).sin()
    calls = [(0, False), (-2, True), ((), False), (1, True), (1, False)]
    # with () torch's own derivative of a variance is infinite
    calls = [(None if op in VARIANCES and dim == () else dim, keepdim) for dim, keepdim in calls]
    calls = [call for call in calls if op.has(x, *call) and (call[1] or op not in OPERATIONS)]
    for k, (name, transform) in enumerate(transforms()):
        for dim, keepdim in rotated(calls, k + k // 2, 2):
            rest = [torch.tensor([0, 1, 3], device=device)] if op in SEGMENTS else tensors(op.around(x, dim))[1:]
            ours, theirs = (
                transform(lambda x, f=f, d=dim, k=keepdim, r=rest: tensors(f((x, *r) if r else x, d, k))[0], x)
                for f in (op.function, op.torch)
            )
            torch.testing.assert_close(ours, theirs, msg=lambda said, n=name: f"{n}: {said}")


@pytest.mark.parametrize("source, target", [("float64", "complex128"), ("complex128", "float64")])
def test_gradcheck_between_real_and_complex(source, target, op, device):
    """A real input of a complex result, and the other way round, each have a gradient of their own dtype."""
    x = leaf((2, 3), source, device)
    assert gradcheck(lambda x: op(x, [1], dtype=dtype_of(target)), x, check_forward_ad=True)
    (grad,) = torch.autograd.grad(op(x, [1], dtype=dtype_of(target)).abs().sum(), x)
    assert grad.dtype == x.dtype


@walked("name", DIFFERENTIABLE)
def test_dtypes(name, op, device):
    """The gradient is the result's, in the input's dtype, for every dtype that can have one, float8 too.

    A mean's is divided by the count in float32 or wider, and rounded once.
    """
    for target in (None, "float8_e5m2", "float16", "float64", "complex32", "complex64"):
        x = data((3, 4), name, device=device).requires_grad_()
        y = op(x, [1], dtype=target and dtype_of(target))
        assert y.requires_grad and y.dtype == dtype_of(target or model.natural_result(name))
        given = torch.tensor([1.5, -2.0, 0.25], device=device)
        (grad,) = torch.autograd.grad(y, x, given.to(y.dtype))
        wanted = given.to(y.dtype)
        wanted = wanted.real if wanted.is_complex() and not x.is_complex() else wanted
        if op.divides:
            wanted = wanted.to(torch.complex128 if wanted.is_complex() else torch.float64) / 4
        assert_same_bits(grad, wanted.to(x.dtype).unsqueeze(1).expand(3, 4), f"{target=}")


def assert_same_gradients(op, ours, theirs):
    """Of means nearly: torch multiplies by a reciprocal on GPUs, and divides complex numbers by complex ones."""
    if op.divides and (ours.is_complex() or ours.is_cuda):
        exact = torch.bfloat16 if ours.dtype == torch.bfloat16 else ours.real.dtype
        torch.testing.assert_close(ours, theirs, rtol=4 * torch.finfo(exact).eps, atol=0)
    else:
        assert_same_bits(ours, theirs)


def test_same_as_torch(op, device):
    """Shape and bits of torch's gradients, and the strides of torch.sum's, an expand."""
    for call, name in itertools.product(CALLS, ("float32", "bfloat16", "complex64")):
        x = data((3, 4, 5), name, device=device).permute(1, 2, 0).requires_grad_()
        given = torch.randn_like(op(x, **call))
        ours, theirs, expanded = (
            torch.autograd.grad(reduce(x, **call), x, given)[0] for reduce in (op, op.torch, torch.sum)
        )
        assert ours.shape == theirs.shape and ours.stride() == expanded.stride()
        assert_same_gradients(op, ours, theirs)


# --- what it costs ----------------------------------------------------------------------------------------------------


def test_backward_is_a_view(op, device):
    """The input's gradient is an expand, no copy: of the result's, or of one division of that. The leading dims need
    not even an unsqueeze."""
    for call in CALLS:
        x = leaf((3, 4, 5), "float32", device)
        y = op(x, **call)
        given = torch.ones_like(y)
        with Calls() as calls:
            (grad,) = torch.autograd.grad(y, x, given)
        assert grad.untyped_storage().nbytes() == given.untyped_storage().nbytes(), call
        assert op.divides or grad.untyped_storage().data_ptr() == given.untyped_storage().data_ptr(), call
        assert set(calls.names) <= {"_apply.default", "unsqueeze.default", "expand.default"}, call
        assert calls.names.count("_apply.default") == op.divides, call
        assert calls.names.count("unsqueeze.default") == (1 if call in (CALLS[4], CALLS[6]) else 0), call


def test_dtype_is_cast_before_the_expand(op, device):
    """With a dtype= the small gradient is cast, and not the large one."""
    x = leaf((1000, 50), "bfloat16", device)
    y = op(x, [0], dtype=torch.float32)
    given = torch.ones_like(y)
    with Calls() as calls:
        (grad,) = torch.autograd.grad(y, x, given)
    assert calls.names == ["_apply.default" if op.divides else "_to_copy.default", "expand.default"]
    assert grad.dtype == x.dtype and grad.untyped_storage().nbytes() == 50 * 2


def test_forward_is_one_call(op, device):
    """A call with gradients runs the op once, and nothing else."""
    x = leaf((3, 4), "float32", device)
    with Calls() as calls:
        assert op(x, [1]).requires_grad
    assert calls.names == [f"{op}.default"]


def test_saves_sizes_alone(op, device):
    """The graph keeps no tensor: the input may die or be overwritten before the backward pass."""
    packed = []
    x = leaf((4, 3), "float32", device)
    with torch.autograd.graph.saved_tensors_hooks(packed.append, lambda _: None):
        y = op(x)
    assert not packed and y.grad_fn.name() == f"gpureduce_{op}_backward"
    gradient = 1 / 4 if op.divides else 1.0
    inner = x + 1
    y, dead = op(inner, [0]), weakref.ref(inner)
    del inner
    assert dead() is None
    assert_same_bits(torch.autograd.grad(y.sum(), x)[0], torch.full_like(x, gradient))
    for _ in range(2):  # and as nothing is saved, nothing is freed
        y.backward(torch.ones_like(y))
    assert_same_bits(x.grad, torch.full_like(x, 2 * gradient))
    inner = x + 1
    y = op(inner, [0])
    inner.zero_()
    assert_same_bits(torch.autograd.grad(y.sum(), x)[0], torch.full_like(x, gradient))


# --- the graph --------------------------------------------------------------------------------------------------------


def test_as_part_of_a_graph(op, device):
    """Accumulation, hooks, retained graphs, checkpointing, anomaly mode, views and in-place writes of the result."""
    x = leaf((3, 4), "float64", device)
    seen = []
    with torch.autograd.set_detect_anomaly(True):
        y = op.function(x.t(), 0)
        y.register_hook(seen.append)
        y.mul_(3.0)
        loss = (y[1:] ** 2).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    wanted = torch.zeros_like(x)
    wanted[1:] = (18 / 16 if op.divides else 18) * x.detach().sum(1, keepdim=True)[1:]
    torch.testing.assert_close(x.grad, 2 * wanted)
    assert len(seen) == 2

    y = torch.utils.checkpoint.checkpoint(lambda x: op.function(x * x, 1), x, use_reentrant=False)
    assert_same_bits(torch.autograd.grad(y.sum(), x)[0], x / 2 if op.divides else 2 * x)


def test_forward_mode(op, device):
    """The tangent is the op of the tangents, to the bit, with dtype= too; integers have none."""
    x, tangent = data((3, 4, 700), "float32", 1, device), data((3, 4, 700), "float32", 2, device)
    for call in CALLS:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, tangent)
            for dtype in (None, torch.float64, torch.bfloat16, torch.complex64):
                primal, result = forward_ad.unpack_dual(op(dual, **call, dtype=dtype))
                assert_same_bits(primal, op(x, **call, dtype=dtype), call)
                assert_same_bits(result, op(tangent, **call, dtype=dtype), call)
            for target in op.targets("float32", "int64", "bool"):
                assert forward_ad.unpack_dual(op(dual, **call, dtype=target)).tangent is None, call


# --- torch.func -------------------------------------------------------------------------------------------------------


def test_func_complex(op, device):
    """Complex input: the transforms that torch has for it, and vmap of them."""
    x = leaf((3, 4), "complex128", device).detach()

    def derivatives(reduce):
        def vjp(x):
            return torch.func.vjp(lambda x: reduce(x, 0), x)[1](x[0])

        def jvp(x):
            return torch.func.jvp(lambda x: reduce(x * x, 0), (x,), (x.conj(),))

        def gradient(x):
            return torch.func.grad(lambda x: reduce(x, 0).abs().sum())(x)

        return [t(x) for t in (vjp, jvp, gradient)] + [torch.vmap(t)(torch.stack([x, 2 * x])) for t in (vjp, jvp)]

    torch.testing.assert_close(derivatives(op.function), derivatives(op.torch))


@every_operation
def test_gradients_per_example(op, device):
    """vmap of grad through a linear model, a common use."""
    weight, inputs = leaf((4, 5), device=device).detach(), leaf((7, 5), device=device, seed=1).detach()

    def loss(reduce):
        return lambda weight, x: reduce((weight @ x).tanh() ** 2, None)

    per_example = [torch.func.vmap(torch.func.grad(loss(f)), (None, 0)) for f in (op.function, op.torch)]
    torch.testing.assert_close(*(f(weight, inputs) for f in per_example))


# --- tracing ----------------------------------------------------------------------------------------------------------


def test_compiled_backward_is_a_view(op, device):
    """Under AOTAutograd, too, the gradient is the expanded one that eager gives, and nothing is saved for it."""
    torch._dynamo.reset()
    x = leaf((30, 40), "float32", device)
    reduce = op.function
    y = torch.compile(lambda x: reduce(x, 0), fullgraph=True, backend="aot_eager")(x)
    assert not y.grad_fn.saved_tensors
    (grad,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert grad.stride() == (0, 1)


def test_no_warning(op, device):
    """A backward pass says nothing."""
    x = leaf((3, 4), "float32", device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        op.function(x).backward()
    assert_same_bits(x.grad, torch.ones_like(x) / (math.prod(x.shape) if op.divides else 1))


def test_warnings_of_a_backward_pass(op, device):
    """A warning in a backward pass, on any thread, reaches Python's filters, and may stop the pass."""
    x = leaf((3, 4), device=device)
    kept = torch.ones(3, 4, device=device)

    def hook(grad):
        op.function(kept, 1, out=torch.zeros(7, device=device))

    y = op.function(x, 1).sum()
    x.register_hook(hook)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y.backward(retain_graph=True)
    assert [("was resized" in str(w.message), w.filename) for w in caught] == [(True, __file__)]
    with warnings.catch_warnings(), pytest.raises(UserWarning, match="was resized"):
        warnings.simplefilter("error")
        y.backward()
