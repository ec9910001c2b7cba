"""Pinned results of every operation but the sum: what makes the inputs of tests/data/*.json, and the bits they have.

`python tests/pinned.py` pins the family's results by the model alone, and prints the new SHA of that file.
"""

import hashlib
import itertools
import json
import math
import pathlib

import numpy as np
import torch

import model
from support import FAMILY, INTEGER, canonical, dtype_of, tensor_of, with_nans
from table import CASES, WEIGHTED

DATA = pathlib.Path(__file__).parent / "data"
FAMILY_SHA = "02ff3ce6fabbf96b8dce77d3f4e4d25dcdd4828a60a1fb04baa1422ae5ebdf72"
SHA = {
    "golden.json": "433b40a0ed41b47f6c2120e122163f7aa22df8b5d03b5c51e0623933e02af1fc",
    "norms.json": "f96b6b10038328331ea7a0181f6a87ddad68c423dc59f8bb42aa6e8b67210ecc",
    "family.json": FAMILY_SHA,
    "variance.json": "4ccef7492a02bf16b7de42e2a14375632d919e9718ef3042d5df86b8d76a85ab",
    "weighted.json": "fbdbf07ef912f91a24bbb5484a680a4a5d0f416a32c600d22e19887fa770611b",
    "segments.json": "67a01ff7acacdbd683a0bf400bb798aa4016564a2472d60807e61da384221ca7",
    "rows.json": "932a8b27dce91fbfe146687bbf739a50b94bee5db5c2587f4b6b0bfc76fcc5ad",
}
BY_NAME = {str(op): op for op in CASES}


def read(name):
    return json.loads((DATA / name).read_text())


def hashed(name):
    """The file's SHA-256."""
    return hashlib.sha256((DATA / name).read_bytes()).hexdigest()


def bits(stored, name):
    """Stored elements, of which all NaN have the same bits, in hexadecimal digits."""
    return [format(int(v), "x") for v in canonical(stored, name).reshape(-1)]


def elements(name, size, op=None):
    """Stored elements (size, parts); a complex one has two neighbours of the real ones. Factors are near 1."""
    parts = model.STORAGE[name][1]
    x = model.value(np.arange(size * parts), model.PART.get(name, name))
    if str(op) == "prod" and name not in INTEGER:
        x = model.encode((1 + model.decode(x, name).astype(np.float64) / 64).astype(np.float32), name)
    x = x.reshape(size, parts)
    return with_nans(x, name, np.arange(size) % 7 == 3) if str(op) == "nansum" else x


def factor(first, count, name):
    """Stored elements of a factor: integers up to 2000, any or none of them true."""
    x = model.decode(model.value(np.arange(first, first + count), "float64"), "float64")
    return model.encode(x > 0 if name == "bool" else np.trunc(4000 * x) if name in INTEGER else x, name)[:, None]


def view(make, shape, strides, name):
    """Stored elements of the places that a view has."""
    size = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    return tensor_of(make(size), name).as_strided(shape, strides)


def family_cases():
    for op, name in itertools.product(FAMILY, model.DTYPES):
        if op.takes(name):
            yield from ((op, name, shape, dim) for shape, dim in (((3, 1300), 1), ((700, 3), 0), ((4999,), 0)))


def cases():
    """(operation, inputs on the CPU, the rest of the call, the bits of the result or of each)."""
    for c in read("norms.json"):
        op, name = BY_NAME[c["op"]], c["dtype"]
        x = view(lambda size, name=name: elements(name, size), c["shape"], c["strides"], name)
        yield op, x, dict(dim=c["dims"], dtype=op.wide(name)), [c["bits"]]
    for c in read("family.json"):
        op, name = BY_NAME[c["op"]], c["dtype"]
        x = tensor_of(elements(name, math.prod(c["shape"]), op).reshape(*c["shape"], -1), name)
        yield op, x, dict(dim=c["dim"]), [c["bits"]]
    for c in read("variance.json"):
        x = tensor_of(elements(c["dtype"], math.prod(c["shape"])).reshape(*c["shape"], 1), c["dtype"])
        for name in ("var", "std", "var_mean"):
            yield BY_NAME[name], x, dict(dim=[c["dim"]], correction=1), [c[what] for what in name.split("_")]
    for c in read("weighted.json"):
        pair = tuple(
            view(lambda size, of=of, at=at: factor(at, size, of["dtype"]), of["shape"], of["strides"], of["dtype"])
            for of, at in ((c["self"], 0), (c["weight"], 7777))
        )
        yield WEIGHTED, pair, dict(dim=c["dims"], dtype=c["dtype"] and dtype_of(c["dtype"])), [c["bits"]]
    for c in read("segments.json"):
        x = tensor_of(elements(c["dtype"], math.prod(c["shape"])).reshape(*c["shape"], -1), c["dtype"])
        yield BY_NAME[c["op"]], (x, torch.tensor(c["offsets"])), dict(dim=c["dim"]), [c["bits"]]


def write_family():
    """Writes the family's file, by the model alone; returns its SHA-256."""
    written = []
    for op, name, shape, dim in family_cases():
        x = tensor_of(elements(name, math.prod(shape), op).reshape(*shape, -1), name)
        case = {
            "op": str(op),
            "dtype": name,
            "shape": shape,
            "dim": dim,
            "bits": bits(op.expected(x, dim), op.result(name)),
        }
        written.append(json.dumps(case))
    (DATA / "family.json").write_text("[\n" + ",\n".join(written) + "\n]\n")
    return hashed("family.json")


if __name__ == "__main__":
    print(write_family())
