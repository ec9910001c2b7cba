"""Graphs that hold our operators: they round where eager code does.

Inductor's pass ``pointless_convert`` makes one conversion of two. If the first one rounds, as from float32 to a half,
the result has other bits than eager code's: between two functions that torch decomposes nothing is rounded to a half.
In our graphs the pass takes only pairs whose first conversion keeps the value. A backward pass is ours if its forward
pass is, as both are one graph at first.

Where torch cuts this graph in two, it keeps what a call reads, and computes again what a fused operator reads, if that
needs less memory. It is told that ours are fused.

There torch also looks for kept tensors that share no memory with a result, and lets the backward pass write over them.
It goes by the graph's fake tensors. A pass that takes away a copy, such as the one in ``torch.stack([y])``, or makes
one of two equal calls, leaves the fake tensors of views as they were: the result seems to lie in the copy, and lies in
y. In our graphs, fake tensors of views are computed again where they do not lie in what they are views of. And
Inductor may compute the parts of a concatenation where they end up, so that kept parts lie in the kept whole, or in a
result: in our graphs no backward pass writes over them.
"""

import contextlib
import dataclasses
import functools
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._functorch import partitioners
from torch._functorch._aot_autograd import graph_compile
from torch._guards import detect_fake_mode
from torch._inductor import compile_fx
from torch._inductor.fx_passes import joint_graph
from torch._inductor.fx_utils import get_fake_args_kwargs, get_storage
from torch._subclasses.fake_tensor import FakeTensor

from . import _lowerings
from ._lowerings import OPERATORS

__all__ = ["annotated", "has_ours", "install"]

_HALVES = (torch.float16, torch.bfloat16)
_CONVERT = torch.ops.prims.convert_element_type.default

_MARK = "torch_reduce"  # of the nodes of a graph of ours, which is cut in two later

_in_ours = False  # the passes work on a graph of ours


def install() -> None:
    """Puts our condition before the pass, and our operators among the fused ones."""
    entries = joint_graph.patterns["call_function", _CONVERT]
    (entry,) = (each for each in entries if getattr(each, "handler", None) is joint_graph.pointless_convert)
    given_check, given_passes = entry.extra_check, compile_fx._recursive_joint_graph_passes

    @functools.wraps(given_passes)
    def passes(gm: Any, *args: Any, **others: Any) -> Any:
        global _in_ours
        before, _in_ours = _in_ours, _in_ours or has_ours(gm)
        try:
            if not _in_ours:
                return given_passes(gm, *args, **others)
            found = given_passes(gm, *args, **others)
            for node in _nodes(found):
                node.meta[_MARK] = True
            _correct_views(found.graph)
        finally:
            _in_ours = before
        return found

    entry.extra_check = lambda match: given_check(match) and not (_in_ours and _rounds(**match.kwargs))
    compile_fx._recursive_joint_graph_passes = passes

    given_merge = partitioners.fx_graph_cse

    @functools.wraps(given_merge)
    def merge(graph: Any) -> Any:
        found = given_merge(graph)
        if _is_marked(found):
            _correct_views(found)
        return found

    partitioners.fx_graph_cse = merge

    given_donated = graph_compile.collect_bw_donated_buffer_idxs

    @functools.wraps(given_donated)
    def donated(forward: Any, backward: Any, facts: Any) -> list[int]:
        found = given_donated(forward, backward, facts)
        joined = _joined(forward.graph)
        if not joined or not _is_marked(forward.graph):
            return found
        kept = forward.graph.output_node().args[0][facts.tensors_saved_for_backwards_slice]
        first = facts.num_symints_saved_for_bw  # they come before what is kept
        return [k for k in found if _memory(kept[k - first].meta.get("val")) not in joined]

    graph_compile.collect_bw_donated_buffer_idxs = donated

    given_list = partitioners.get_default_op_list

    @functools.wraps(given_list)
    def op_list() -> Any:
        found = given_list()
        if not _lowerings.fuses:
            return found
        ours = {operator.overloadpacket for operator in OPERATORS}
        return dataclasses.replace(found, fusible_ops=found.fusible_ops | ours)

    partitioners.get_default_op_list = op_list


def _correct_views(graph: Any) -> None:
    """Computes fake tensors of views again that do not lie in the memory of what they are views of."""
    for node in graph.nodes:
        base = _viewed(node)
        if base is None or (memory := _memory(base.meta.get("val"))) is None:
            continue
        if _memory(node.meta.get("val")) == memory:
            continue
        valid, args, kwargs = get_fake_args_kwargs(node)
        if not valid:
            continue
        mode = detect_fake_mode([base.meta["val"]])
        sizes = mode.shape_env.ignore_fresh_unbacked_symbols() if mode.shape_env else contextlib.nullcontext()
        with mode, enable_python_dispatcher(), sizes:
            node.meta["val"] = node.target(*args, **kwargs)


def _joined(graph: Any) -> set[Any]:
    """The memory of what is concatenated, and of its parts."""
    joins = [node for node in graph.nodes if node.target == torch.ops.aten.cat.default]
    return {_memory(each.meta.get("val")) for node in joins for each in (node, *node.all_input_nodes)}


def _viewed(node: Any) -> Any:
    """The node whose memory the results of another one lie in, or None."""
    if node.op != "call_function":
        return None
    if node.target is operator.getitem:
        return node.args[0] if _viewed(node.args[0]) else None
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target.is_view:
        return None
    return next(iter(node.all_input_nodes), None)


def _memory(value: Any) -> Any:
    """What tells the memory of a fake tensor, or of the first of several, from others; or None."""
    first = value[0] if isinstance(value, (list, tuple)) and value else value
    return get_storage(first) if isinstance(first, FakeTensor) and first.layout == torch.strided else None


def _rounds(arg: Any, dtype1: torch.dtype, dtype2: torch.dtype) -> bool:
    """True if the first of two conversions changes values. The names are the pass's."""
    value = arg.meta.get("val")
    if value is None or not (value.dtype.is_floating_point and dtype1.is_floating_point):
        return True
    given, kept = torch.finfo(value.dtype), torch.finfo(dtype1)
    return given.eps < kept.eps or given.max > kept.max


def has_ours(gm: Any) -> bool:
    """True if Inductor has a form for one of its operators that is ours, or for one in its forward pass."""
    return gm is not None and any(node.target in OPERATORS or _MARK in node.meta for node in _nodes(gm))


def _is_marked(graph: Any) -> bool:
    """True if a graph is ours, or a part of one."""
    return any(_MARK in node.meta for node in graph.nodes)


def _nodes(gm: Any) -> Iterator[Any]:
    """Those of a graph, and of the branches and loops in it."""
    for module in gm.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from module.graph.nodes


def annotated(gm: Any) -> list[str]:
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
        whole = origin is None or origin == node.target or node.target == _CONVERT
        if whole or any(_call(user) != _call(node) for user in node.users):
            node.meta["low_precision_pointwise_barrier"] = True
            marked.append(node.name)
    return marked


def _call(node: Any) -> tuple[Any, list[str]]:
    """The function that a node is a part of, and the call of it."""
    return node.meta.get("original_aten"), [each.name for each in node.meta.get("from_node", [])]


def _is_half(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in _HALVES
