"""Every function x every argument x wrong values: an error of one line, which names the function and the argument."""

import inspect
import types
import warnings

import torch

import torch_reduce
from support import walked
from torch_reduce._sum import explain as explain_call


class Anything:
    """A value that no argument takes."""


def of(*shape, dtype=torch.float32):
    return lambda device: torch.ones(shape, dtype=dtype, device=device)


def longs(*values):
    return lambda device: torch.tensor(values, device=device)


def nested(layout):
    def make(device):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout, device=device)

    return make


# What an argument of a kind does not take. Functions make a value for a device.
NO_TENSOR = {"str": "a", "object": Anything(), "float": 1.5, "list": [1.0, 2.0]}
NO_NUMBER = {"str": "a", "object": Anything(), "two": of(2)}
NO_INT = {"str": "a", "object": Anything(), "float": 1.5, "2^64": 1 << 64}
NO_DTYPE = {"str": "a", "object": Anything(), "float": 1.5, "int": 6}
NO_BOOL = {"str": "a", "object": Anything(), "float": 1.5}
NO_LIST = {"str": "a", "object": Anything(), "float": 1.5, "of str": ["a"], "of float": [1.5], "2^64": [1 << 64]}
NONE = {"None": None}
WRONG = {
    "tensor": NO_TENSOR | NONE,
    "tensor?": NO_TENSOR,
    "plan": NO_TENSOR | NONE,
    "MoePlan": NO_TENSOR | NONE,
    "tensors": {"str": "a", "object": Anything(), "float": 1.5, "None": None, "of str": ["a"]},
    "pair?": {"str": "a", "object": Anything(), "float": 1.5, "of str": ["a", "b"]},
    "int": NO_INT | NONE | {"bool": True},
    "int?": NO_INT,
    "dims": NO_LIST,
    "shape": NO_LIST | NONE,
    "bool": NO_BOOL | NONE,
    "bool?": NO_BOOL,
    "float": NO_NUMBER | NONE,
    "float?": NO_NUMBER,
    "number": NO_NUMBER | NONE,
    "number?": NO_NUMBER,
    "dtype": NO_DTYPE,
    "str": {"object": Anything(), "float": 1.5, "None": None, "another": "a"},
    "fp8": {"str": "row", "object": Anything(), "int": 128, "None": None},
    "fp8?": {"str": "row", "object": Anything(), "int": 128},
}
KINDS = {"input": "tensor", "dim": "dims", "keepdim": "bool", "dtype": "dtype", "out": "tensor?", "exact": "bool"}
KINDS |= {"ord": "number", "unbiased": "bool?", "correction": "number?", "weight": "tensor?", "bias": "tensor?"}
KINDS |= {"data": "tensor", "offsets": "tensor", "source": "tensor", "src": "tensor", "index": "tensor", "size": "int"}
KINDS |= {"alpha": "number", "target": "tensor", "logits": "tensor", "ignore_index": "int", "temperature": "float"}
KINDS |= {"return_entropy": "bool", "reduction": "str", "label_smoothing": "float", "normalized_shape": "shape"}
KINDS |= {"residual": "tensor?", "eps": "float", "padding_idx": "int?", "mode": "str", "per_sample_weights": "tensor?"}
KINDS |= {"weights": "tensor?", "minlength": "int", "other": "tensor", "tensors": "tensors", "parameters": "tensors"}
KINDS |= {"norm_type": "float", "max_norm": "float", "function": "str", "nan_is_zero": "bool", "state": "tensor"}
KINDS |= {"reduce": "str", "include_self": "bool", "include_last_offset": "bool"}
KINDS |= {"x": "tensor", "rows": "int?", "divisor": "number?", "z_loss": "float"}
KINDS |= {"count": "int?", "root": "bool", "hidden": "tensor", "chunk": "int"}
KINDS |= {"to": "fp8", "quantize": "fp8?", "weight_offset": "float"}
KINDS |= {"experts": "tensor", "drops": "bool", "plan": "MoePlan"}

MATRIX, VECTOR = of(2, 3), of(2)
OF_DIMS = dict(input=MATRIX, dim=1)
OF_SEGMENTS = dict(data=MATRIX, offsets=longs(0, 1, 2))
OF_INDICES = dict(source=MATRIX, index=longs(0, 1), size=2)
OF_EDGES = dict(x=MATRIX, source=longs(0, 1), target=longs(0, 1), size=2)
ADDED = dict(input=MATRIX, dim=0, index=longs(0, 1), source=MATRIX)
EXPERTS = lambda device: longs(0, 1, 1, 0)(device).view(2, 2)  # noqa: E731
STATE = lambda device: torch_reduce.exact.partial(torch.ones(2, device=device))  # noqa: E731
# A call of each function that raises nothing.
CALLS = dict.fromkeys(["sum", "mean", "nansum", "prod", "amax", "amin", "any", "all", "count_nonzero"], OF_DIMS)
CALLS |= dict.fromkeys(["logsumexp", "var", "std", "var_mean", "vector_norm", "powsum", "explain"], OF_DIMS)
for each in ("sum", "mean", "prod", "amax", "amin", "logsumexp", "softmax"):
    CALLS[f"segment_{each}"] = OF_SEGMENTS
for each in ("sum", "mean", "amax", "amin"):
    CALLS[f"index_{each}"] = OF_INDICES
    CALLS[f"gather_{each}"] = OF_EDGES
CALLS |= dict.fromkeys(["argmax", "argmin", "max", "min", "aminmax"], OF_DIMS)
CALLS |= {
    "weighted_sum": dict(input=MATRIX, weight=MATRIX, dim=1),
    "dot": dict(input=VECTOR, other=VECTOR),
    "index_plan": dict(index=longs(0, 1), size=2),
    "gather_plan": dict(source=longs(0, 1), target=longs(0, 1), size=2),
    "moe_plan": dict(experts=EXPERTS, size=2),
    "moe_dispatch": dict(x=MATRIX, plan=lambda device: torch_reduce.moe_plan(EXPERTS(device), 2)),
    "moe_combine": dict(rows=of(4, 3), index=EXPERTS),
    "index_add": ADDED,
    "index_add_": ADDED,
    "index_reduce": dict(**ADDED, reduce="mean"),
    "index_reduce_": dict(**ADDED, reduce="prod"),
    "scatter_reduce": dict(input=MATRIX, dim=0, index=of(2, 3, dtype=torch.int64), src=MATRIX, reduce="sum"),
    "scatter_add": dict(input=MATRIX, dim=0, index=of(2, 3, dtype=torch.int64), src=MATRIX),
    "embedding": dict(input=longs(0, 1), weight=MATRIX),
    "embedding_bag": dict(input=longs(0, 1), weight=MATRIX, offsets=longs(0, 1, 2)),
    "bincount": dict(input=longs(0, 1)),
    "softmax": OF_DIMS,
    "log_softmax": OF_DIMS,
    "log_prob": dict(logits=MATRIX, target=longs(0, 1)),
    "log_prob_of": dict(hidden=MATRIX, weight=of(3, 3), target=longs(0, 1)),
    "cross_entropy": dict(input=MATRIX, target=longs(0, 1)),
    "rms_norm": dict(input=MATRIX, normalized_shape=3),
    "layer_norm": dict(input=MATRIX, normalized_shape=3),
    "quantize": dict(input=MATRIX, to=torch_reduce.Fp8()),
    "silu_mul": dict(input=MATRIX, other=MATRIX),
    "get_total_norm": dict(tensors=MATRIX),
    "clip_grad_norm_": dict(parameters=MATRIX, max_norm=1.0),
    "exact.partial": dict(input=MATRIX),
    "exact.round": dict(state=STATE),
}
# Kinds that differ from KINDS.
OTHERS = {
    ("weighted_sum", "weight"): "tensor",
    ("log_prob_of", "weight"): "tensor",
    ("embedding", "weight"): "tensor",
    ("embedding_bag", "weight"): "tensor",
    ("embedding_bag", "offsets"): "tensor?",
}
OTHERS |= {(name, "dim"): "int" for name in CALLS if name.startswith(("segment", "index", "scatter", "gather"))}
OTHERS |= {(name, "dim"): "int" for name in ("softmax", "log_softmax", "log_prob")}
OTHERS |= {(f"index_{name}", "index"): "plan" for name in ("sum", "mean", "amax", "amin")}
OTHERS |= {(f"index_{name}", "size"): "int" for name in ("sum", "mean", "amax", "amin")}
OTHERS |= {(f"gather_{name}", "source"): "plan" for name in ("sum", "mean", "amax", "amin")}
OTHERS |= {("rms_norm", "eps"): "float?", ("moe_combine", "rows"): "tensor", ("moe_combine", "index"): "plan"}
OTHERS |= {("silu_mul", "other"): "tensor?"}
OTHERS |= {(name, "out"): "pair?" for name in ("max", "min", "aminmax")}
OTHERS |= {("max", "dim"): "int", ("min", "dim"): "int", ("aminmax", "dim"): "int?"}
# Tensors of arguments that may be left out.
LIKE = {"weight": of(3), "bias": of(3), "weights": VECTOR, "per_sample_weights": VECTOR, "residual": MATRIX}
LIKE_IN = {("index_sum", "weight"): VECTOR, ("gather_sum", "weight"): VECTOR, ("moe_combine", "weights"): of(2, 2)}
# Not arguments of one call: ranks, and what torch's function ignores.
APART = {"group", "places", "foreach", "error_if_nonfinite"}
# tune needs a GPU; the others take functions, names and modules.
NOT_SWEPT = {"tune", "contract", "decompositions", "check_batch_invariance", "drift", "replace", "replace_torch_sum"}
# An argument of these kinds may also be a tensor that cannot be read as it lies.
LAYOUTS = {
    "nested": nested(torch.strided),
    "jagged": nested(torch.jagged),
    "sparse": lambda device: torch.ones(2, 3, device=device).to_sparse(),
    "CSR": lambda device: torch.ones(2, 3, device=device).to_sparse_csr(),
}


def function_of(name):
    found = torch_reduce
    for part in name.split("."):
        found = getattr(found, part)
    return found


def parameters(name):
    function = explain_call if name == "explain" else function_of(name)
    return [each for each in inspect.signature(function).parameters if each not in APART]


def kind_of(name, argument):
    return OTHERS.get((name, argument)) or KINDS[argument]


def made(value, device):
    return value(device) if isinstance(value, types.FunctionType) else value


def call(name, device, **others):
    function_of(name)(**{key: made(value, device) for key, value in {**CALLS[name], **others}.items()})


def sentence(name, device, *words, **wrong):
    """What is wrong with a call's error; None if it is one line that begins with the function and has a word."""
    (argument, value), *_ = wrong.items()
    label = f"{name}({argument}={value!r:.40})"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call(name, device, **wrong)
    except (IndexError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        text = str(error)
        if "\n" in text or len(text) > 300 or "Declaration" in text or "/" in text.replace("int64/int32", ""):
            return f"{label} is no sentence: {text[:300]!r}"
        if not text.startswith((f"{name}(", f"{name}:")):
            return f"{label} does not begin with the function: {text!r}"
        if not any(word in text for word in words):
            return f"{label} does not say {words}: {text!r}"
    except Exception as error:
        return f"{label} raises {type(error)}: {error}"
    else:
        return f"{label} raises nothing"
    return None


@walked("name", CALLS)
def test_wrong_types(name, device):
    """A value of another type: the error names the argument."""
    call(name, device)
    found = [
        sentence(name, device, argument, **{argument: made(value, device)})
        for argument in parameters(name)
        for value in WRONG[kind_of(name, argument)].values()
    ]
    assert not any(found), "\n".join(filter(None, found))


@walked("name", CALLS)
def test_wrong_tensors(name, device):
    """A tensor that is nested or sparse, or on another device than the others."""
    tensors = [argument for argument in parameters(name) if kind_of(name, argument) in ("tensor", "tensor?", "plan")]
    found = []
    for argument in tensors:
        for layout, make in LAYOUTS.items():
            words = ("strided", "nested") if layout in ("nested", "jagged") else ("strided", "sparse")
            found.append(sentence(name, device, *words, **{argument: make}))
        if len(set(tensors) & {*CALLS[name], argument}) > 1 and argument != "out":
            like = CALLS[name].get(argument) or LIKE_IN.get((name, argument)) or LIKE[argument]
            found += [
                sentence(name, device, "device", "to be on", **{argument: like(other)})
                for other in ("meta", "cpu")
                if other != device
            ]
    assert not any(found), "\n".join(filter(None, found))


def test_every_function_is_swept():
    """But for what is no function of tensors; and each argument has a kind."""
    public = {name for name in torch_reduce.__all__ if isinstance(getattr(torch_reduce, name), types.FunctionType)}
    assert public - NOT_SWEPT == {name for name in CALLS if "." not in name}
    assert all(kind_of(name, argument) for name in CALLS for argument in parameters(name))
