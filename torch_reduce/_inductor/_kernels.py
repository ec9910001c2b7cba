"""Reductions in the contract's order in the Triton kernels that Inductor writes.

A reduction of ours is one of Inductor's own (``ir.Reduction``) with a type of its own, so that Inductor fuses it with
what makes its elements and with what takes its results. A kernel that has one holds whole rows in a tile, or reads them
in tiles of 512 or 4096 elements. It calls the device functions of torch_reduce/triton/_tiles.py.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.codegen import common, simd_kernel_features
from torch._inductor.codegen import triton as codegen
from torch._inductor.dtype_propagation import DtypePropagationOpsHandler
from torch._inductor.ops_handler import DefaultHandler
from torch._inductor.shape_propagation import ShapePropagationOpsHandler
from torch._inductor.virtualized import V
from torch.utils._sympy.value_ranges import bound_sympy

__all__ = ["install"]

TYPES = {f"gpureduce_{name}": name for name in ("add", "multiply", "larger", "smaller")}
FUNCTIONS = ("exponential", "logarithm", "square_root", "whole_exponential")

_, TILE, CHUNK = torch.ops.gpureduce._order()
_MODULE = "gpureduce_tiles"  # torch_reduce.triton._tiles, in the kernels
_WHOLE = 16384  # up to so many elements a kernel holds whole rows: then it reads them once
_tiles = False
_LEVELS = 20  # of chunks, where nothing is known about a row's length
# Inductor tunes the blocks of other types further, and starts those of users' kernels through Triton's slower launcher.
_AUTOTUNED = (
    "size_hints=None, configs=[triton_heuristics.config_from_dict(each) for each in {!r}], "
    "heuristic_type=triton_heuristics.HeuristicType.TEMPLATE,"
)


def install() -> None:
    """Teaches Inductor's kernels our reductions and functions."""
    for name in FUNCTIONS:
        _add_function(name)
    _around(codegen.TritonKernel, "reduction", _reduction)
    _around(codegen.TritonKernel, "codegen_kernel", _codegen_kernel)
    _around(codegen.TritonScheduling, "create_kernel_choices", _create_kernel_choices)

    imports = codegen.TritonKernel.gen_common_triton_imports

    def with_ours(_: type) -> str:
        return imports() + (f"import torch_reduce.triton._tiles as {_MODULE}\n" if _tiles else "")

    codegen.TritonKernel.gen_common_triton_imports = classmethod(with_ours)  # type: ignore[assignment, method-assign]


@contextlib.contextmanager
def with_tiles() -> Iterator[None]:
    """Kernels that are written here import our device functions."""
    global _tiles
    before, _tiles = _tiles, True
    try:
        yield
    finally:
        _tiles = before


def _around(owner: type, name: str, ours: Callable) -> None:
    given = getattr(owner, name)

    @functools.wraps(given)
    def method(self: Any, *args: Any, **others: Any) -> Any:
        return ours(functools.partial(given, self), self, *args, **others)

    setattr(owner, name, method)


def _add_function(name: str) -> None:
    """Makes ``ops.gpureduce_<name>(x)`` of a device function of one number."""
    op = f"gpureduce_{name}"
    setattr(DefaultHandler, op, DefaultHandler._call_default(op))
    setattr(codegen.TritonKernelOverrides, op, staticmethod(lambda x: f"{_MODULE}.{name}({x})"))
    kept = torch.float64 if name == "logarithm" else None
    setattr(DtypePropagationOpsHandler, op, staticmethod(lambda x: kept or x.dtype))
    setattr(ShapePropagationOpsHandler, op, staticmethod(lambda x: x.shape))


def _is_ours(node: Any) -> bool:
    data = getattr(node.node, "data", None)
    return isinstance(data, ir.Reduction) and data.reduction_type in TYPES


def _create_kernel_choices(
    given: Callable,
    _: Any,
    features: simd_kernel_features.SIMDKernelFeatures,
    args: list[Any],
    kwargs: dict[str, Any],
) -> list[Any]:
    if any(map(_is_ours, features.scheduler_nodes())):
        n = V.graph.sizevars.simplify(features.reduction_numel)
        whole = isinstance(n, (int, sympy.Integer)) and int(n) <= _WHOLE
        kwargs = {**kwargs, "override_persistent_reduction": whole, "override_cooperative_reduction": False}
    return given(features, args, kwargs)


def _reduction(given: Callable, kernel: Any, dtype: Any, src_dtype: Any, reduction_type: Any, value: Any) -> Any:
    if reduction_type not in TYPES:
        return given(dtype, src_dtype, reduction_type, value)
    if kernel.num_reduction_dims != 1 or kernel.cooperative_reduction:
        raise AssertionError("torch_reduce: a row is cut, and would be added in another order")
    key = src_dtype, reduction_type, value
    if key in kernel.cse.reduction_cache:
        return kernel.cse.reduction_cache[key]

    combine = f"{_MODULE}.{TYPES[reduction_type]}"
    sizes = kernel.dense_size_list()
    generate = functools.partial(kernel.cse.generate, kernel.compute, dtype=value.dtype)
    value = generate(f"tl.broadcast_to({value}, {kernel.dense_size_str()})", shape=tuple(sizes))
    masks = [f"{tree.prefix}mask" for tree in kernel.range_trees]
    masks = common.OrderedSet(masks)
    kernel.filter_masks(masks)
    present = " & ".join([*sorted(masks), *filter(None, [kernel._load_mask])])
    if present:
        missing = f"{_MODULE}.identity({combine}, {value}.dtype)"
        value = generate(f"tl.where({present}, {value}, {missing})", shape=tuple(sizes))

    shape = (*sizes[:-1], "1")
    if kernel.persistent_reduction:
        result = generate(f"{_MODULE}.whole({value}, {combine})", shape=shape)
    else:
        result = kernel.cse.newvar(dtype=value.dtype, shape=shape)
        lanes, chunks = f"_{result}", f"_{result}_chunks"
        step, n = "r0_offset", "r0_numel"
        kernel.body.writeline(f"{lanes} = tl.zeros({kernel.dense_size_str()}, {kernel.dtype_to_str(value.dtype)})")
        kernel.compute.writeline(f"{lanes} = {_MODULE}.lanes_with({lanes}, {value}, {step}, {combine})")
        levels = _levels(kernel.range_trees[-1].numel)
        if levels == 1:
            kernel.post_loop_combine.writeline(f"{result} = {_MODULE}.whole({lanes}, {combine})")
        else:
            kernel.body.writeline(f"{chunks} = {_MODULE}.no_chunks({lanes}, {levels}, {combine})")
            kernel.compute.writeline(f"{chunks} = {_MODULE}.chunks_with({chunks}, {lanes}, {step}, {n}, {combine})")
            kernel.post_loop_combine.writeline(f"{result} = {_MODULE}.joined({chunks}, {lanes}, {n}, {combine})")
    result.mask_vars = common.OrderedSet(mask for mask in masks if not mask.startswith("r"))
    kernel.cse.reduction_cache[key] = result
    kernel.outside_loop_vars.add(result)
    return result


def _levels(n: sympy.Expr) -> int:
    """How many binary digits the number of a row's chunks has at most."""
    most = bound_sympy(n).upper
    return min(_LEVELS, (-(-int(most) // CHUNK)).bit_length()) if most.is_Integer else _LEVELS


def _codegen_kernel(given: Callable, kernel: Any, *args: Any, **others: Any) -> str:
    code = given(*args, **others)
    if f"{_MODULE}." not in code:
        return code
    if f"{_MODULE}.identity(" not in code and f"{_MODULE}.whole(" not in code:
        return code  # no reduction of ours
    tiled = f"{_MODULE}.lanes_with(" in code
    n = kernel.range_trees[-1].numel
    width = _width(n) if tiled else kernel._get_persistent_RBLOCK(n)
    code, found = re.subn(
        r"@triton_heuristics\.(?!cooperative)\w+\(\s*(?:\w+=[^\n]*\n\s*)+?(?=filename=)",
        f"@triton_heuristics.cached_autotune(\n    {_AUTOTUNED.format(_programs(kernel, width, tiled))}\n    ",
        code,
    )
    if found != 1:
        way = code[code.find("@") :][:200]
        raise AssertionError(f"torch_reduce: this version does not know how Inductor writes its kernels: {way}")
    return code


def _width(n: sympy.Expr) -> int:
    """How many elements of rows of n a kernel reads at a time. Either width gives the same bits: n is only a guess."""
    return CHUNK if V.graph.sizevars.optimization_hint(n, fallback=0) > CHUNK else TILE


def _programs(kernel: Any, width: int, tiled: bool) -> list[dict[str, int]]:
    """Rows and warps for a program whose tiles have this width. Inductor takes the fastest ones; no bit depends
    on them. A thread has 8 to 64 elements of a tile, or 4 to 16 where it reads one short tile after the other.

    Of a single row a program has one: Inductor masks no rows there, and others would add to memory once more.
    """
    found = []
    is_one = V.graph.sizevars.statically_known_equals
    one = any(tree.prefix == "x" and is_one(tree.numel, 1) for tree in kernel.range_trees)
    elements = (8, 16, 32, 64) if width > TILE else (4, 8, 16) if tiled else (8, 16, 32)
    for tile in (1024, 2048) if not tiled else (512, 1024, 2048):
        rows = 1 if one else max(1, tile // width)
        for each in elements:
            program = {"XBLOCK": rows, "num_warps": min(16, max(1, rows * width // (32 * each))), "num_stages": 1}
            if program not in found:
                found.append(program)
    others = {f"{tree.prefix.upper()}BLOCK": 1 for tree in kernel.range_trees if tree.prefix in "yz"}
    return [{**program, **others, **({"R0_BLOCK": width} if tiled else {})} for program in found]
