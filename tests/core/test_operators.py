"""Every operator of the library, private or not, with arguments of the right types that do not fit: other sizes,
dtypes, devices, strides and layouts, no elements, wild numbers. Each call raises an error or gives a result that is
defined: it does not end the process, and gives the same bits whatever was in the memory that it gets.

As a program: calls a part of the operators, and prints what each call gave."""

import ctypes
import functools
import hashlib
import json
import os
import random
import re
import sys
import warnings

import pytest
import torch

import torch_reduce
from support import python

PAIRS = 20  # of arguments that do not fit, for each operator: most of them are two different arguments
OPS = torch.ops.gpureduce


def all_operators():
    names = sorted(n for n in torch._C._dispatch_get_all_op_names() if n.startswith("gpureduce::"))
    return [name.removeprefix("gpureduce::") for name in names if not name.startswith("gpureduce::_replace")]


def operator_of(name):
    packet, _, overload = name.partition(".")
    return getattr(getattr(OPS, packet), overload or "default")


# --- arguments that fit -----------------------------------------------------------------------------------------------


def floats(*shape, dtype=torch.float32):
    return lambda: (torch.arange(1.0, 1 + torch.Size(shape).numel()) / 8).to(dtype).reshape(shape)


def integers(*values, dtype=torch.int64):
    return lambda: torch.tensor(values, dtype=dtype)


def bytes_of(count):
    return lambda: torch.zeros(count, dtype=torch.uint8)


def state():
    return OPS._exact_partial(floats(3, 2)(), [1])


# By name of the argument: 4 rows of 5, whose rows are indexed or in segments.
FITTING = {
    **dict.fromkeys(
        ["self", "x", "input", "data", "source", "src", "logits", "result", "table", "values"], floats(4, 5)
    ),
    **dict.fromkeys(["grad", "grad_output", "grad_out", "output", "more", "out", "a", "b"], floats(4, 5)),
    **dict.fromkeys(
        ["index", "order", "rows", "edges", "target", "back_rows", "back_edges", "indices"], integers(0, 2, 1, 0)
    ),
    **dict.fromkeys(["offsets", "back_offsets"], integers(0, 1, 4)),
    **dict.fromkeys(["weight", "bias"], floats(5)),
    **dict.fromkeys(["mean", "r", "m", "log_sum", "rstd"], floats(4, 1)),
    **dict.fromkeys(["first_share", "share", "sum", "weights", "per_sample_weights", "nodes", "x1"], floats(4)),
    **dict.fromkeys(["largest"], floats(4, 1)),
    **dict.fromkeys(["size", "num_weights"], lambda: 3),
    **dict.fromkeys(["dim", "dims", "axis"], lambda: 1),
    **dict.fromkeys(["normalized_shape"], lambda: [5]),
    **dict.fromkeys(["padding", "padding_idx", "minlength", "divisor", "repeats", "calls", "count"], lambda: 1),
    **dict.fromkeys(["ignore_index"], lambda: -100),
    **dict.fromkeys(["reduction", "length"], lambda: 2),
    **dict.fromkeys(["eps", "temperature", "z_loss"], lambda: 0.5),
    **dict.fromkeys(["correction", "label_smoothing"], lambda: 0.0),
    **dict.fromkeys(["dtype", "computed", "input_dtype"], lambda: torch.float32),
    "total_weight": floats(),
    "like": floats(2),
    "values_of": lambda: [1, 2],
    "factor": floats(),
    "ord": lambda: 2,
    "alpha": lambda: 1,
    "mask": lambda: [True, True],
    "output_mask": lambda: [True, True, True],
    "step": lambda: "applied",
    "function": lambda: "softmax",
    "operation": lambda: "mean",
    "formula": lambda: "product",
    "rung": lambda: "host_recursive",
    "op": lambda: "sum",
    "mode": lambda: "sum",
    "what": lambda: "kept",
    "gpu": lambda: "NVIDIA H200",
    "sizes": lambda: [4, 5],
    "strides": lambda: [5, 1],
    "state": state,
    "moments": floats(4, 2, dtype=torch.float64),
    "first": floats(4, dtype=torch.float64),
    "notices": bytes_of(512),
    "mine": bytes_of(256),
    "report": lambda: torch.zeros(65, dtype=torch.int64),
    "features": lambda: torch.zeros(2, len(json.loads(OPS._features())) if OPS._features().startswith("[") else 30),
}
# Where an operator needs something else.
OF_OPERATOR = {
    "_exponent_sum": {"dim": lambda: [1]},
    "_finish_logsumexp": {"largest": floats(4)},
    "_finish_rows": {"other": floats(4)},
    "_index_sort_values": {"values": floats(4), "weight": floats(4)},
    "_index_sum_values": {"source": floats(4), "weight": floats(4)},
    "_gather_values": {"values": floats(4), "weight": floats(4)},
    "_layer_norm_backward": {"mask": lambda: [True, True, True]},
    "_log_prob_backward": {"grad": floats(4), "shift": floats(4), "divisor": floats()},
    **{key: {"divisor": lambda: None} for key in ["_cross_entropy", "cross_entropy"]},
    "_nll_loss_backward": {"grad_output": floats()},
    "_numbers": {"values": lambda: [1, 2]},
    "_places": {"indices": lambda: [0, 1], "input": lambda: torch.float32, "result": lambda: torch.float32},
    "_segment_spread": {"input": floats(2, 5), "size": lambda: 4, "dim": lambda: 0},
    "_segment_prod_backward": {"grad": floats(2, 5), "dim": lambda: 0},
    "_segment_softmax_backward": {"dim": lambda: 0},
    "_scale_": {"self": lambda: [floats(4, 5)(), floats(3)()]},
    "_embedding": {"rows": integers(0, 2, 1, 0), "dim": lambda: 0},
    "bincount": {"input": integers(0, 2, 1, 0)},
    "embedding": {"input": integers(0, 2, 1, 0), "weight": floats(4, 5)},
    "embedding_bag": {"input": integers(0, 2, 1, 0), "weight": floats(4, 5)},
    "scatter_add": {"index": lambda: torch.zeros(4, 5, dtype=torch.int64), "dim": lambda: 0},
    "index_reduce": {"dim": lambda: 0},
    "index_reduce_": {"dim": lambda: 0},
    "scatter_reduce": {"index": lambda: torch.zeros(4, 5, dtype=torch.int64), "dim": lambda: 0},
    "index_add": {"dim": lambda: 0},
    "index_add_": {"dim": lambda: 0},
    "_log_prob": {"dim": lambda: 1},
    "_row_step": {"dims": lambda: [1], "mean": floats(4), "r": floats(4)},
}
OF_FAMILY = {  # by how names begin: the first one counts
    **{key: {"dim": lambda: 0, "weight": lambda: None} for key in ["_gather_amax", "_gather_amin", "_gather_mean"]},
    **{key: {"out": lambda: torch.empty(0, dtype=torch.bool)} for key in ["any", "all", "_any", "_all"]},
    **{key: {"out": lambda: torch.empty(0, dtype=torch.int64)} for key in ["count_nonzero", "_count_nonzero"]},
    **{
        key: {"dtype": lambda: torch.float64, "out": floats(4, dtype=torch.float64)}
        for key in ["_nonzero_prod", "__nonzero_prod"]
    },
    **dict.fromkeys(["dot", "exact_dot"], dict.fromkeys(["self", "input", "other", "tensor"], floats(4))),
    "index_": {"dim": lambda: 0, "weight": floats(4)},
    "gather_": {
        "dim": lambda: 0,
        "source": integers(0, 2, 1, 0),
        "target": integers(0, 2, 1, 0),
        "weight": floats(4),
    },
    "segment_": {"dim": lambda: 0},
    "_segment_": {"dim": lambda: 0},
    "exact_segment_": {"dim": lambda: 0},
    "_gather_": {"dim": lambda: 0, "weight": floats(4)},
    "weighted_sum": {"weight": floats(4, 5)},
    "exact_weighted_sum": {"weight": floats(4, 5)},
    "_foreach": {"self": lambda: [floats(4, 5)(), floats(3)()]},
    "_powsums": {"self": lambda: [floats(4, 5)(), floats(3)()]},
    "_traced_index_put": {
        "indices": lambda: [integers(0, 2, 1, 0)()],
        "values": floats(4, 5),
        "accumulate": lambda: True,
    },
    "_traced_index_add": {"dim": lambda: 0},
    "_traced__embedding_bag": {"indices": integers(0, 2, 1, 0), "weight": floats(4, 5), "offsets": integers(0, 2)},
    "_traced_index_reduce": {"dim": lambda: 0},
    "_traced_scatter_reduce": {"index": lambda: torch.zeros(4, 5, dtype=torch.int64), "dim": lambda: 0},
    "_traced_scatter_add": {"index": lambda: torch.zeros(4, 5, dtype=torch.int64), "dim": lambda: 0},
    "_traced_nll_loss_backward": {"grad_output": floats()},
}
PLANS = ("_plan", "_candidates", "_walk", "_variants", "_places", "_node_dtype", "_product_dtype")

TEXTS = {
    "step": ["addends", "second_addends", "weight_addends", "applied"],
    "function": ["softmax", "log_softmax", "rms_norm", "layer_norm", "log_sum", "rms_norm_backward", "softmax_backward"]
    + ["layer_norm_backward", "log_softmax_backward", "log_prob_backward"],
    "operation": sorted(row["name"] for row in json.loads(OPS._operations())["operations"])
    if '"operations"' in OPS._operations()
    else ["sum", "mean", "_norm_2", "_norm_3", "all", "any", "_root_3", "_root_2", "_amax"],
    "formula": [
        "product",
        "quotient",
        "softmax",
        "exponent",
        "added",
        "others",
        "equal",
        "deviation",
        "ratio",
        "share",
    ],
    "mode": ["mean", "max"],
    "op": ["product", "max", "min"],
    "what": ["joined", "reduced"],
    "tuning": ["grid=0", "candidate=99", "multiprocessors=0", "cluster=-1", "kernel=dense", "grid=-5"],
    "device": ["multiprocessors=0", "l2_bytes=-1", "bandwidth=0", "shared_bytes=0", "multiprocessors=-3"],
}


def fitting(name, argument):
    """An argument of a call that an operator takes, or that one like it takes."""
    return maker(name, argument.name, str(argument.type), argument.has_default_value(), argument.default_value)()


def maker(name, argument, kind, has_default, default):
    """What makes it."""
    key = name, argument
    if key not in MAKERS:
        MAKERS[key] = _maker(name.partition(".")[0], argument, kind, has_default, default)
    return MAKERS[key]


MAKERS = {}


def _maker(plain, argument, kind, has_default, default):
    for known in (OF_OPERATOR.get(plain, {}), *(row for begin, row in OF_FAMILY.items() if plain.startswith(begin))):
        if argument in known:
            return known[argument]
    if plain.startswith(PLANS) and kind == "int" and argument in ("input", "result", "weight"):
        return lambda: torch.float32
    if argument in FITTING:
        make = FITTING[argument]
        value, is_list = make(), "List[" in kind
        if isinstance(value, torch.Tensor) == ("Tensor" in kind) and not (is_list and isinstance(value, torch.Tensor)):
            return (lambda: [make()]) if is_list and not isinstance(value, list) else make
    if has_default:
        return lambda: default
    if kind.startswith("Optional"):
        return lambda: None
    makers = {"Tensor": floats(4, 5), "int": lambda: 1, "bool": lambda: False, "float": lambda: 0.5, "str": str}
    makers |= {"List[int]": lambda: [1], "List[Tensor]": lambda: [floats(4, 5)()], "number": lambda: 2}
    makers |= {"List[str]": lambda: ["sum"], "List[bool]": lambda: [True, True]}
    return makers[kind]


# --- arguments that do not --------------------------------------------------------------------------------------------


DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.int8,
]
DTYPES += [torch.bool, torch.complex64, torch.uint16, torch.float8_e5m2]


def other_tensors(x, on_gpu):
    """What to make of a tensor, by a name."""
    shapes = {
        "empty": lambda: x.reshape(-1)[:0],
        "empty rows": lambda: x[:0] if x.dim() else x.new_empty(0, 3),
        "empty columns": lambda: x[..., :0] if x.dim() else x.new_empty(3, 0),
        "fewer": lambda: x[:-1] if x.dim() else x,
        "more": lambda: torch.cat([x, x]) if x.dim() else x.expand(3),
        "many": lambda: torch.cat([x] * 50) if x.dim() else x.expand(300),
        "wider": lambda: torch.cat([x, x], -1) if x.dim() else x.expand(2, 2),
        "flat": lambda: x.reshape(-1),
        "one": lambda: x.reshape(-1)[:1],
        "scalar": lambda: x.reshape(-1)[0],
        "dim before": lambda: x[None],
        "dim behind": lambda: x[..., None],
        "more dims": lambda: x[None, None, :, None],
    }
    layouts = {
        "transposed": lambda: x.mT.contiguous().mT if x.dim() > 1 else x.flip(0),
        "expanded": lambda: x.reshape(-1)[:1].expand(x.shape) if x.dim() else x,
        "stepped": lambda: torch.stack([x, x], -1)[..., 0],
        "shifted": lambda: torch.cat([x.reshape(-1)[:1], x.reshape(-1)])[1:].view(x.shape),
        "negated": lambda: torch.complex(x, x).conj().imag if x.dtype == torch.float32 else x,
        "tracked": lambda: x.clone().requires_grad_(),
        "zero": lambda: torch._efficientzerotensor(x.shape, dtype=x.dtype, device=x.device),
        "empty zero": lambda: torch._efficientzerotensor((0,), dtype=x.dtype, device=x.device),
        "sparse": lambda: x.to_sparse(),
        "CSR": lambda: x.to_sparse_csr(),
        "MKLDNN": lambda: x.to_mkldnn(),
        "nested": lambda: torch.nested.nested_tensor([x, x[:1]]),
        "jagged": lambda: torch.nested.nested_tensor([x, x[:1]], layout=torch.jagged),
        "quantized": lambda: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8),
        "functional": lambda: torch._to_functional_tensor(x),
        "meta": lambda: x.to("meta"),
    }
    if on_gpu:
        layouts |= {"CPU": lambda: x.cpu()}
        for kind in ("MKLDNN", "quantized"):
            del layouts[kind]
    dtypes = {str(dtype): lambda dtype=dtype: x.to(dtype) for dtype in DTYPES if dtype != x.dtype}
    numbers = {"negative": lambda: -x.abs() - 1, "large": lambda: x * 1000 + 77}
    if x.is_floating_point():
        numbers |= {"nan": lambda: x * torch.nan, "infinite": lambda: x * torch.inf}
    elif x.dtype == torch.int64:
        numbers |= {"far": lambda: x + 2**40, "farther": lambda: x - 2**62, "falling": lambda: x.flip(0) * 3}
    return shapes | layouts | dtypes | numbers


def others(argument, value, on_gpu):
    """Makers of arguments in place of one, by a name."""
    kind = str(argument.type)
    found = {"None": lambda: None} if kind.startswith("Optional") else {}
    if isinstance(value, torch.Tensor):
        return found | other_tensors(value, on_gpu)
    if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
        lists = {"none": list, "twice": lambda: [*value, *value]}
        return found | lists | {n: lambda m=m: [m(), *value[1:]] for n, m in other_tensors(value[0], on_gpu).items()}
    if isinstance(value, torch.dtype):
        return found | {
            str(dtype): lambda dtype=dtype: dtype for dtype in [*DTYPES, torch.complex128, torch.float8_e4m3fn]
        }
    if isinstance(value, bool):
        return found | {"not": lambda: not value}
    if isinstance(value, str) or "str" in kind:
        return found | {
            repr(text): lambda text=text: text for text in ["", "nonsense", "=,=", *TEXTS.get(argument.name, [])]
        }
    if isinstance(value, int) and "number" not in kind:
        numbers = [-1, 0, 1, 2, 3, 5, 7, -2, -3, 2**62, -(2**62)]
        return found | {str(n): lambda n=n: [n] if "List" in kind else n for n in numbers}
    if isinstance(value, list) and (not value or isinstance(value[0], bool)):
        return found | {"all false": lambda: [False] * len(value)}
    if isinstance(value, list):
        lists = ([], [0], [1], [-1], [0, 1], [0, 0], [2], [5], [-9], [2**62], [-1, 5], [0, 5], [5, 0], [1, 2, 3, 4, 5])
        return found | {str(numbers): lambda numbers=numbers: list(numbers) for numbers in lists}
    if isinstance(value, int | float):
        return found | {str(n): lambda n=n: n for n in [0.0, -1.0, 1e300, float("nan"), float("inf"), 3.5]}
    if value is None and "Tensor" in kind:
        return other_tensors(floats(4)(), on_gpu)
    return found


# --- calls ------------------------------------------------------------------------------------------------------------


def digest(value):
    """Bits of a result that is an ordinary tensor, and what it is."""
    if isinstance(value, list | tuple):
        return [digest(one) for one in value]
    if not isinstance(value, torch.Tensor):
        return str(value)
    facts = f"{value.dtype} {value.layout} {value.device.type}"
    if (
        value.device.type == "meta"
        or value.layout != torch.strided
        or torch._is_functional_tensor(value)
        or value.is_nested
    ):
        return facts
    flat = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    data = flat.view(torch.uint8) if flat.dim() and flat.numel() else flat.reshape(-1).view(torch.uint8)
    if value.dtype.is_floating_point or value.dtype.is_complex:  # NaN of any sign and payload
        wide = flat.to(torch.complex128 if value.dtype.is_complex else torch.float64)
        data = torch.view_as_real(wide) if wide.is_complex() else wide
        data = torch.where(data.isnan(), torch.nan, data)
    return f"{facts} {tuple(value.shape)} {hashlib.sha256(data.numpy().tobytes()).hexdigest()[:12]}"


@functools.cache
def arguments_of(name):
    """The operator's arguments; of a schema they are made anew each time."""
    return operator_of(name)._schema.arguments


def to_device(value, device):
    if isinstance(value, torch.Tensor):
        return value.to(device)
    return [to_device(one, device) for one in value] if isinstance(value, list) else value


def call(name, changed, device):
    operator = operator_of(name)
    arguments = arguments_of(name)
    try:
        values = {
            a.name: changed[a.name]() if a.name in changed else to_device(fitting(name, a), device) for a in arguments
        }
    except (RuntimeError, TypeError, NotImplementedError, IndexError, ValueError):
        return "there is no such argument"
    positional = [values.pop(a.name) for a in arguments if not a.kwarg_only]
    try:
        return digest(operator(*positional, **values))
    except Exception as error:  # any error is an answer, of whatever class
        return type(error).__name__


def has_indices(name):
    return any(
        isinstance(v, torch.Tensor) and v.dtype == torch.int64
        for a in arguments_of(name)
        for v in torch.utils._pytree.tree_leaves(fitting(name, a))
    )


M_PERTURB, FILLS = -6, (85, 178)  # glibc's name for what fills memory; bytes that it is filled with
TIMED = ("_ladder_time", "_stages")


def main(device, *fills):
    """Calls all operators, for each of these bytes in new memory: of one on a GPU, whose driver cannot be forked."""
    import torch._dynamo  # by nested tensors: once for all processes

    warnings.simplefilter("ignore")
    for fill in map(int, fills):
        if len(fills) == 1 or os.fork() == 0:
            ctypes.CDLL(None).mallopt(M_PERTURB, fill)
            torch.set_num_threads(2)
            call_all(device)
            os._exit(0)
        assert os.wait()[1] == 0


def call_all(device):
    for name in all_operators():
        # A wild index on a GPU is an assertion, which ends the use of the GPU.
        if device == "cuda" and (has_indices(name) or name.startswith("_expect_agreement")):
            continue
        if name.startswith(TIMED) or name.partition(".")[0] in ("_remember", "_set_gathered_bytes"):
            continue
        changes = []
        for argument in arguments_of(name):
            value = to_device(fitting(name, argument), device)
            changes += [(argument.name, n, make) for n, make in others(argument, value, device == "cuda").items()]
        choose = random.Random(name)
        pairs = [choose.sample(changes, 2) for _ in range(PAIRS)] if len(changes) > 1 else []
        pairs = [pair for pair in pairs if pair[0][0] != pair[1][0]]
        for calls in [(), *((c,) for c in changes), *pairs]:
            title = f"{name} " + ", ".join(f"{argument}={what}" for argument, what, _ in calls)
            print(title, end=": ", flush=True)
            print(call(name, {argument: make for argument, _, make in calls}, device), flush=True)
    if device == "cuda":
        torch.cuda.synchronize()


def test_arguments_that_do_not_fit(device):
    """What a call gives is the same with other bytes in new memory."""
    processes = [FILLS] if device == "cpu" else [[fill] for fill in FILLS]
    lines = [line for fills in processes for line in python(__file__, device, *fills).splitlines()]
    half = len(lines) // 2
    assert half > 1000
    for one, two in zip(lines[:half], lines[half:], strict=True):
        assert one == two


# --- what they say ----------------------------------------------------------------------------------------------------


def test_private_operators_check_what_they_read(device):
    """Sizes and dtypes that do not fit are errors, which name the operator and what it wants."""
    x, ones = torch.ones(4, 5, device=device), torch.ones(4, device=device)
    few, wide = ones[:2], torch.ones(4, 4, device=device)
    step = {"computed": torch.float32, "dtype": torch.float32}
    rows = ["addends", "softmax", [1]]
    for words, work in (
        ("Dimension out of range", lambda: OPS._row_step(x, "addends", "softmax", [7], **step)),
        ("grad: expected the size", lambda: OPS._row_step(x, *rows, wide, **step)),
        ("weights: expected the last sizes", lambda: OPS._row_step(x, *rows, None, few, **step)),
        ("expected 4 numbers of rows", lambda: OPS._row_step(x, *rows, target=few.long(), **step)),
        ("expected 4 numbers of rows", lambda: OPS._row_step(x, *rows, mean=few, **step)),
        ("float32 or float64", lambda: OPS._row_step(x, *rows, **step | {"computed": torch.float16})),
        ("dtype: expected a floating one", lambda: OPS._row_step(x, *rows, **step | {"dtype": torch.int64})),
        ("float32 or float64", lambda: OPS._finish_rows(ones, ones, "softmax", 5, 0.0, torch.float16)),
        ("float32 or float64", lambda: OPS._finish_rows(ones, ones, "softmax", 5, 0.0, torch.bool)),
        ("expected 4 numbers", lambda: OPS._finish_rows(ones, few, "softmax", 5, 0.0, torch.float32)),
        ("has two sums", lambda: OPS._finish_rows(ones, None, "layer_norm", 5, 0.0, torch.float32)),
        ("r: expected a number", lambda: OPS._rms_norm_backward(x, x, 1, few, None, 0.0, [True, True])),
        ("mean: expected a number", lambda: OPS._layer_norm_backward(x, x, 1, few, ones, None, None, 0.0, [True] * 3)),
        ("m: expected a number", lambda: OPS._log_prob_backward(ones, x, ones.long(), 1, -100, few, ones)),
        ("log_sum: expected a number", lambda: OPS._log_prob_backward(ones, x, ones.long(), 1, -100, ones, few)),
        ("grad: expected the size", lambda: OPS._log_prob_backward(few, x, ones.long(), 1, -100, ones, ones)),
        ("bool or uint8", lambda: OPS._finish(ones, "_all", 5, torch.float32)),
    ):
        with pytest.raises((RuntimeError, IndexError), match=words):
            work()
    far = torch.tensor([2**40, -(2**40), 5, 4], device=device)  # of targets only 4 is in the row
    found = OPS._row_step(x, "applied", "log_prob_backward", [1], target=far, share=ones, **step)
    assert found[:3].eq(found[0, 0]).all() and not found[3, 4].eq(found[3, 0])


def called(name, device, **changed):
    """The result of an operator for arguments that fit, but for some, or the error."""
    operator, arguments = operator_of(name), arguments_of(name)
    values = {a.name: to_device(fitting(name, a), device) for a in arguments if a.name not in changed} | changed
    positional = [values.pop(a.name) for a in arguments if not a.kwarg_only]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return operator(*positional, **values)
    except Exception as error:  # of whatever class
        return error


def test_meta_tensors_beside_others(device):
    """No operator takes one tensor with data and one without: it would give a result that nobody has written."""
    for name in all_operators():
        values = {a.name: fitting(name, a) for a in arguments_of(name)}
        tensors = [argument for argument, value in values.items() if isinstance(value, torch.Tensor)]
        for argument in tensors if len(tensors) > 1 and not name.startswith(TIMED) else []:
            found = called(name, device, **{argument: values[argument].to("meta")})
            if name.startswith("_traced_") and not isinstance(found, Exception):  # left to torch's own
                assert found is None or all(one is None for one in found), (name, argument, found)
            else:
                assert isinstance(found, RuntimeError), (name, argument, found)
    meta, x = torch.empty(4, device="meta"), torch.ones(4, device=device)
    for name, argument, words, changed in (
        ("_finish_rows", "other", f"sum is on {x.device} and other is on meta", {"other": meta}),
        ("_finish_rows", "other", f"sum is on meta and other is on {x.device}", {"sum": meta, "other": x}),
        ("_scale_", "factor", f"self is on meta and factor is on {x.device}", {"self": [meta, meta]}),
        ("_scale_", "self", f"self is on meta and self is on {x.device}", {"self": [meta, x], "factor": meta[0]}),
    ):
        found = called(name, device, **changed)
        words = f"{name[1:]}(): {argument}: Expected all tensors to be on the same device, but {words}"
        assert type(found) is RuntimeError and str(found).splitlines()[0] == words
    assert called("_scale_", device, self=[meta, meta], factor=meta[0]) is None


def test_errors_name_what_was_called(device):
    """What a public operator raises begins with no other operator's name, of those that it calls."""
    names = {name.partition(".")[0] for name in all_operators()}
    names |= {name.lstrip("_") for name in names}
    for name in all_operators():
        plain = name.partition(".")[0]
        if plain.startswith("_") or (device == "cuda" and has_indices(name)):
            continue
        strange = names - {plain, plain.removeprefix("exact_")}
        for argument in arguments_of(name):
            value = to_device(fitting(name, argument), device)
            for what, make in others(argument, value, device == "cuda").items():
                try:
                    changed = {argument.name: make()}
                except (RuntimeError, TypeError, NotImplementedError, IndexError, ValueError):
                    continue
                found = called(name, device, **changed)
                if isinstance(found, Exception) and (lead := re.match(r"(\w+)(\(\))?: ", str(found))):
                    assert lead[1] not in strange, (name, argument.name, what, found)
    x = torch.ones(4, device=device)
    for name, words, changed in (
        ("dot", r"Expected all .*, but self is on \w+(:0)? and other is on meta", {"other": x.to("meta")}),
        ("dot", "sparse tensors are not supported", {"self": x.to_sparse()}),
        ("segment_mean", "could not infer output dtype", {"dtype": torch.int64}),
        ("cross_entropy", "target: expected the size", {"target": torch.zeros(3, dtype=torch.int64, device=device)}),
    ):
        found = str(called(name, device, **changed))
        assert re.match(rf"{name}\(\): {words}", found), found


def test_notices_lie_side_by_side():
    """The words of notices are read where they are."""
    notices, report = torch.zeros(512, dtype=torch.uint8), torch.zeros(65, dtype=torch.int64)
    OPS._expect_agreement(notices, notices[:256], report)
    for wrong in (
        (torch.zeros(512, 2, dtype=torch.uint8)[:, 0], notices[:256], report),
        (notices, torch.zeros(1, dtype=torch.uint8).expand(256), report),
        (notices, torch.zeros(257, dtype=torch.uint8)[1:], report),
        (torch.zeros(513, dtype=torch.uint8), notices[:256], report),
        (notices, notices[:256], torch.zeros(1, dtype=torch.int64).expand(65)),
    ):
        with pytest.raises(RuntimeError, match="no notices"):
            OPS._expect_agreement(*wrong)


def test_rows_of_nothing(device):
    """What a norm keeps of rows of no elements, as torch's."""
    x = torch.ones(3, 0, device=device)
    _, mean, r = OPS._layer_norm(x, 1, None, None, 1e-5)
    assert mean.eq(0).all() and r.isnan().all() and mean.shape == r.shape == (3, 1)
    assert OPS._rms_norm(x, 1, None, 1e-5)[1].isnan().all()


def test_cube_roots_of_negative_numbers(device):
    """They are NaN in every dtype."""
    for dtype in (torch.float32, torch.float64):
        x = torch.tensor([-8.0, 8.0, -0.0], dtype=dtype, device=device)
        found = OPS._finish(x, "_norm_3", 1, dtype)
        assert found[0].isnan() and found[1] == 2 and found[2] == 0


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "sum", "amax", "var", "std", "logsumexp"])
def test_results_into_zero_tensors(device, name):
    """What nobody may write is refused, as torch's functions do, and so is what has another layout."""
    x = torch.ones(2, 3, device=device)
    for out in (torch._efficientzerotensor((0,), device=device), torch._efficientzerotensor((2, 3), device=device)):
        with pytest.raises(RuntimeError, match="ZeroTensors are immutable"):
            getattr(torch_reduce, name)(x, 1, out=out)
    for out in (x.to_sparse(), torch.empty(0, device="meta"), torch.nested.nested_tensor([x[0], x[0, :1]])):
        with pytest.raises((RuntimeError, NotImplementedError)):
            getattr(torch_reduce, name)(x, 1, out=out)
    zeros = torch._efficientzerotensor((2, 3), device=device)
    assert getattr(torch_reduce, name)(zeros, 1).equal(getattr(torch_reduce, name)(torch.zeros_like(x), 1))


# --- the program ------------------------------------------------------------------------------------------------------


if __name__ == "__main__":
    main(*sys.argv[1:])
