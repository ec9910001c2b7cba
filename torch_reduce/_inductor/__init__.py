"""Our operators in what Inductor compiles for GPUs: reductions that it fuses with the code around them.

:mod:`._lowerings` says what each operator becomes, and :mod:`._kernels` how a kernel adds in the contract's order. What
is fused rounds as eager code does: Inductor's own switches for that are on while a graph has our operators.
"""

import functools
import hashlib
import pathlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["install", "is_known"]

VERSIONS = ["2.11"]  # of torch, whose Inductor this is written for

_FOLDER = pathlib.Path(__file__).resolve().parent
_SOURCES = [*sorted(_FOLDER.glob("*.py")), *sorted((_FOLDER.parent / "triton").glob("*.py"))]
_HALVES = (torch.float16, torch.bfloat16)

# Of Inductor, for a graph with our operators: it rounds as eager code does, and a kernel reads rows in one way alone.
_SETTINGS = {
    "emulate_precision_casts": True,
    "eager_numerics.division_rounding": True,
    "combo_kernels": False,
    "triton.mix_order_reduction": False,
    "triton.multi_kernel": 0,
    "triton.tile_reductions": False,
}


def is_known() -> bool:
    """True if this torch has the Inductor that the code here is written for."""
    return ".".join(torch.__version__.split(".")[:2]) in VERSIONS


def install() -> None:
    """Teaches Inductor our operators. Called once ``torch._inductor.compile_fx`` is imported."""
    if not is_known():
        known, own = " or ".join(VERSIONS), torch.__version__
        warnings.warn(f"TORCH_REDUCE_FUSE=1 needs torch {known}: {own} calls our operators instead", stacklevel=2)
        return
    from torch._inductor import codecache, compile_fx

    from . import _kernels, _lowerings

    _kernels.install()
    _lowerings.install()

    mark = hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES)).hexdigest()
    given_key, given_compile = codecache.FxGraphHashDetails.__init__, compile_fx._InProcessFxCompile.codegen_and_compile

    @functools.wraps(given_key)
    def key(self: Any, gm: Any, *args: Any, **others: Any) -> None:
        given_key(self, gm, *args, **others)
        self.torch_reduce = [mark, *(_annotated(gm) if _has_ours(gm) else [])]

    @functools.wraps(given_compile)
    def codegen_and_compile(self: Any, gm: Any, *args: Any, **others: Any) -> Any:
        if not _has_ours(gm):
            return given_compile(self, gm, *args, **others)
        _annotated(gm)
        config: Any = torch._inductor.config
        with config.patch(_SETTINGS), _kernels.with_tiles():
            return given_compile(self, gm, *args, **others)

    codecache.FxGraphHashDetails.__init__ = key  # type: ignore[method-assign]
    compile_fx._InProcessFxCompile.codegen_and_compile = codegen_and_compile  # type: ignore[method-assign]


def _has_ours(gm: Any) -> bool:
    from ._lowerings import OPERATORS

    return gm is not None and any(node.target in OPERATORS for node in _nodes(gm))


def _nodes(gm: Any) -> Iterator[Any]:
    """Those of a graph, and of the branches and loops in it."""
    for module in gm.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from module.graph.nodes


def _annotated(gm: Any) -> list[str]:
    """Marks the nodes whose results eager code rounds to a half, so that Inductor rounds them, too; their names.

    torch marks them where it traces with ``emulate_precision_casts``, but none in what it decomposes. Of a decomposed
    function the conversions are marked here, and what leaves it; what lies between eager code keeps in float32.
    """
    marked = []
    for node in _nodes(gm):
        value = node.meta.get("val")
        tensors = [value, *(each.meta.get("val") for each in node.all_input_nodes)]
        if node.op != "call_function" or not any(_is_half(each) for each in tensors):
            continue
        origin = node.meta.get("original_aten")
        whole = origin is None or origin == node.target or node.target == torch.ops.prims.convert_element_type.default
        if whole or any(_call(user) != _call(node) for user in node.users):
            node.meta["low_precision_pointwise_barrier"] = True
            marked.append(node.name)
    return marked


def _call(node: Any) -> tuple[Any, list[str]]:
    """The function that a node is a part of, and the call of it."""
    return node.meta.get("original_aten"), [each.name for each in node.meta.get("from_node", [])]


def _is_half(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in _HALVES
