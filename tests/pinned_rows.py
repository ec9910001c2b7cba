"""Pinned results of the functions that keep their shape: their inputs, and the digests of tests/data/rows.json.

`python tests/pinned_rows.py` writes the file by the model alone, and prints its SHA-256 for tests/pinned.py.
"""

import hashlib
import itertools
import json
import pathlib

import numpy as np
import torch

import model
from support import canonical, dtype_of, name_of, numpy_of, tensor_of

FILE = pathlib.Path(__file__).parent / "data" / "rows.json"
FLOATS = ["float16", "bfloat16", "float32", "float64"]
FLOAT8 = ["float8_e4m3fn", "float8_e5m2"]
# Rows of a thread, a warp, a chunk and one more, several chunks; and many rows, for the gradients of weights.
SHAPES = [(3, 1), (3, 31), (3, 512), (3, 4097), (3, 10_000), (5000, 7)]
DTYPES = {
    "softmax": FLOATS + FLOAT8 + ["int32", "uint8"],
    "log_softmax": FLOATS + FLOAT8 + ["int32", "uint8"],
    "log_prob": FLOATS + FLOAT8,
    "rms_norm": FLOATS,
    "layer_norm": FLOATS,
}
EPS = 1e-5


def elements(name, shape, first, scale, shift=0.0):
    """Stored elements: those of model.value from `first` on, times `scale`, of dtype `name`."""
    size = shape[0] * shape[1] if len(shape) == 2 else shape[0]
    values = model.decode(model.value(np.arange(first, first + size), "float64"), "float64")
    values = scale * values + shift
    return model.encode(np.trunc(np.abs(values)) if name in model.INTEGER else values, name).reshape(*shape, 1)


def inputs(name, shape):
    """Stored x, gradient, weight and bias; and a target of each row, of which every fifth is to be ignored."""
    length = shape[1:]
    x, grad = elements(name, shape, 0, 64.0), elements("float64", shape, 10**6, 4.0)
    weight, bias = elements("float64", length, 2 * 10**6, 1.0, 1.0), elements("float64", length, 3 * 10**6, 1.0)
    target = np.arange(shape[0]) * 7919 % shape[1]
    target[4::5] = -100
    return x, grad, weight, bias, target


def rounded(values, name):
    """Values -> the stored elements of a dtype."""
    return model.encode(values, name)[..., None]


def digest(stored, name):
    return hashlib.sha256(canonical(stored, name).tobytes()).hexdigest()[:16]


def modelled(function, name, shape):
    """By the model alone: the stored elements of each result of a function and its gradient, with their dtypes."""
    x, grad, weight, bias, target = inputs(name, shape)
    wide = "float64" if name == "float64" else "float32"
    kind = np.dtype(wide).type
    x = model.decode(x[..., 0], name).astype(kind)
    result = name if name in FLOATS else "float32"

    def given(stored, own):
        """An input of dtype `own`, as it is computed with."""
        return model.decode(model.encode(stored[..., 0], own), own).astype(kind)

    if function in ("softmax", "log_softmax"):
        logarithmic = function == "log_softmax"
        y = model.softmaxes(x, logarithmic)
        found = {"y": (rounded(y, result), result)}
        if name not in model.INTEGER:
            short = logarithmic and model.itemsize(result) == 2  # such a logarithm is kept in float32
            kept = y if short else model.decode(model.encode(y, result), result).astype(kind)
            g = given(grad, result)
            found["dx"] = rounded(model.softmaxes_backward(g, kept, logarithmic), name), name
        return found
    if function == "log_prob":
        y, m, log_sum = model.log_probs(x, target)
        dx = model.log_probs_backward(given(grad, wide)[:, 0], x, target, m, log_sum)
        numbers = {"y": y, "m": m, "log_sum": log_sum}
        return {key: (rounded(each, wide), wide) for key, each in numbers.items()} | {"dx": (rounded(dx, name), name)}
    centered = function == "layer_norm"
    g, w, b = (given(each, name) for each in (grad, weight, bias))
    y, mean, r = model.row_norms(x, w, b, EPS, centered)
    dx, dw, db = model.row_norms_backward(g, x, mean, r, w, centered)
    found = {"y": (rounded(y, name), name), "r": (rounded(r, wide), wide)}
    found |= {"dx": (rounded(dx, name), name), "dw": (rounded(dw, name), name)}
    return found | ({"mean": (rounded(mean, wide), wide), "db": (rounded(db, name), name)} if centered else {})


def computed(function, name, shape, device):
    """By the library: the same."""
    ops = torch.ops.gpureduce
    stored = inputs(name, shape)
    x = tensor_of(stored[0], name, device).requires_grad_(name not in model.INTEGER)
    result = name if name in FLOATS else "float32"

    def given(each, own):
        return tensor_of(rounded(each[..., 0], own), own, device)

    if function in ("softmax", "log_softmax"):
        y = getattr(ops, function)(x, 1, dtype=dtype_of(result))
        found = {"y": y}
        if name not in model.INTEGER:
            (found["dx"],) = torch.autograd.grad(y, x, given(stored[1], result))
    elif function == "log_prob":
        y, m, log_sum = ops._log_prob(x, torch.from_numpy(stored[4]).to(device), 1)
        grad = given(stored[1], name_of(y.dtype))[:, 0]
        found = {"y": y, "m": m[:, 0], "log_sum": log_sum[:, 0], "dx": torch.autograd.grad(y, x, grad)[0]}
    else:
        weight, bias = (given(each, name).requires_grad_() for each in stored[2:4])
        grad = given(stored[1], name)
        if function == "rms_norm":
            y, r = ops._rms_norm(x, 1, weight, EPS)
            dx, dw = torch.autograd.grad(y, (x, weight), grad)
            found = {"y": y, "r": r[:, 0], "dx": dx, "dw": dw}
        else:
            y, mean, r = ops._layer_norm(x, 1, weight, bias, EPS)
            dx, dw, db = torch.autograd.grad(y, (x, weight, bias), grad)
            found = {"y": y, "r": r[:, 0], "dx": dx, "dw": dw, "mean": mean[:, 0], "db": db}
    return {key: (numpy_of(each.detach().cpu()), name_of(each.dtype)) for key, each in found.items()}


def cases():
    for function, names in DTYPES.items():
        yield from ((function, name, shape) for name, shape in itertools.product(names, SHAPES))


def key_of(function, name, shape):
    return f"{function} {name} {shape[0]}x{shape[1]}"


def digests(found):
    return {key: f"{name} {digest(stored, name)}" for key, (stored, name) in found.items()}


def read():
    return json.loads(FILE.read_text())


def write():
    lines = [f"{json.dumps(key_of(*case))}: {json.dumps(digests(modelled(*case)))}" for case in cases()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return hashlib.sha256(FILE.read_bytes()).hexdigest()


if __name__ == "__main__":
    print(write())
