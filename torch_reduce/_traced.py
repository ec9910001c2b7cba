"""The replacement of torch's functions in what torch.compile compiles, where aten's kernels may never be called.

While a replacement is on, Dynamo is given another backend than the one that it was called with. That one tells Inductor
that aten's operators decompose into ours, and then calls the other. As Dynamo keeps what it compiled by its backend, a
model has code of each kind, and none of them is compiled again where a replacement comes back. Nothing of this is seen
by code that is not compiled.
"""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import _imports

__all__ = ["now", "switched"]

now: frozenset[str] = frozenset()  # the functions that are replaced, each with its device: "sum cpu"

# aten's functions whose own kernels call the reductions by the dispatcher. All others (softmax, layer_norm) have sums
# of their own, which no replacement reaches; where they are decomposed, Inductor fuses them.
_CALLERS = {"binary_cross_entropy", "binary_cross_entropy_with_logits", "huber_loss", "mse_loss", "smooth_l1_loss"}
_CALLERS |= {"count_nonzero", "cross_entropy_loss", "dist", "logsumexp", "norm", "renorm", "soft_margin_loss"}

# aten's functions that torch composes of others above autograd, on some devices: there ours lie, too (impl_composed in
# csrc/replace/torch.cpp). Python's dispatcher, by which a compiler traces, remembers which kernel a function had.
_COMPOSED = ["rms_norm"]

_warned: set[tuple[str, str]] = set()
_hooked = False
_running: Any = None  # Dynamo's functions that get and set its callback, once hooked; False where there is no hook


def switched(on: frozenset[str]) -> None:
    """Says what is replaced from now on."""
    global now, _hooked
    now = on
    for name in _COMPOSED:
        getattr(torch.ops.aten, name).default._dispatch_cache.clear()
    if not _hooked:
        _hooked = True
        _imports.when_imported("torch._dynamo.eval_frame", _hook)
        _imports.when_imported("torch._inductor.compile_fx", _hook_packages)
    if _running is False:
        _warn("torch.compile cannot be told in this version of torch: Inductor's code has torch's own bits")
    elif _running:
        get, put = _running
        if callable(running := get()):  # in a compiled call
            put(_around(running.given if isinstance(running, _Callback) else running))


def _hook() -> None:
    """Puts our backend around every other one that Dynamo is called with while something is replaced."""
    global _running
    try:
        from torch._C._dynamo.eval_frame import get_eval_frame_callback, set_eval_frame
        from torch._dynamo import eval_frame

        given = eval_frame._callback_from_stance
        eval_frame.skip_code(switched.__code__)  # which Dynamo would trace in a compiled call
    except (ImportError, AttributeError):
        _running = False
        return switched(now)
    eval_frame._callback_from_stance = lambda callback: _around(given(callback))
    _running = get_eval_frame_callback, set_eval_frame


def _hook_packages() -> None:
    """Says that AOTInductor does not replace: torch 2.11 reads a dtype= of ours there as another one."""
    from torch._inductor import compile_fx

    given = compile_fx.compile_fx_aot

    @functools.wraps(given)
    def compile_fx_aot(*args: Any, **others: Any) -> Any:
        _warn("AOTInductor does not replace what it compiles: its package has torch's own bits")
        return given(*args, **others)

    compile_fx.compile_fx_aot = compile_fx_aot


def _warn(reason: str) -> None:
    """Warns, once in a process for each reason and what is replaced, where anything is."""
    names = ", ".join(sorted({each.split()[0] for each in now}))
    if names and (names, reason) not in _warned:
        _warned.add((names, reason))
        warnings.warn(f"torch_reduce.replace of {names}: {reason}", stacklevel=3)


def _around(callback: Any) -> Any:
    """A callback of Dynamo's for what is replaced now. None and False stand for compiling nothing."""
    return _Callback(callback, now) if now and callable(callback) else callback


class _Backend:
    """What Dynamo compares: the backend that it was called with, and what is replaced."""

    def __init__(self, given: Any, replaced: frozenset[str]):
        self.given, self.replaced = given, replaced

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Backend) and self.replaced == other.replaced and self.given == other.given

    def __hash__(self) -> int:
        return hash(self.replaced)


class _Callback:
    """What Dynamo calls with a frame to compile."""

    def __init__(self, callback: Any, replaced: frozenset[str]):
        self.given, self._replaced = callback, replaced
        while hasattr(callback, "_torchdynamo_orig_backend"):  # Dynamo's name
            callback = callback._torchdynamo_orig_backend
        self._torchdynamo_orig_backend = _Backend(callback, replaced)

    def __call__(self, *frame: Any) -> Any:
        with _replaced_in_inductor(self._replaced):
            return self.given(*frame)


@contextlib.contextmanager
def _replaced_in_inductor(replaced: frozenset[str]) -> Iterator[None]:
    """Ours in Inductor's table of decompositions, and in the keys of its caches."""
    from torch._dynamo.convert_frame import compile_lock
    from torch._inductor import decomposition

    table = decomposition.decompositions
    with compile_lock:
        ours = _decompositions(replaced, table)
        before = {operator: table[operator] for operator in ours if operator in table}
        table.update(ours)
        decomposition.fast_random_decomps.cache_clear()  # it is made of the table
        config: Any = torch.compiler.config
        tag = " ".join([config.cache_key_tag, "torch_reduce.replace", *sorted(replaced)])
        try:
            with config.patch(cache_key_tag=tag):
                yield
        finally:
            for operator in ours:
                table.pop(operator)
            table.update(before)
            decomposition.fast_random_decomps.cache_clear()


def _decompositions(replaced: frozenset[str], table: dict[Any, Callable]) -> dict[Any, Callable]:
    """By aten's operators: for each that is replaced, what calls ours where ours takes the call."""
    aten, found = torch.ops.aten, {}
    names = {each.split()[0] for each in replaced}
    for name in names:
        for each in torch.ops.gpureduce._traced(name):
            packet, _, overload = each.partition(".")
            overload = overload or "default"
            operator = getattr(getattr(aten, packet), overload)
            ours = getattr(getattr(torch.ops.gpureduce, f"_traced_{packet}"), overload)
            found[operator] = _decomposition(name, operator, ours, replaced, table.get(operator))
    for name, operator, call in _OTHERS:
        if name in names:
            found[operator] = _decomposition(name, operator, call, replaced, table.get(operator))
    return found


def _decomposition(
    name: str, operator: Any, ours: Callable, replaced: frozenset[str], before: Callable | None
) -> Callable:
    def decompose(self: torch.Tensor, *args: Any, **others: Any) -> Any:
        outer = torch.fx.traceback.get_current_meta().get("original_aten")
        caller = operator if outer is None else outer
        by = caller.__name__.split(".")[0]
        called = by.removeprefix("_") == operator.__name__.split(".")[0].removeprefix("_") or by in _CALLERS
        if called and f"{name} {self.device.type}" in replaced:
            result = ours(self, *args, **others)
            if (result[0] if isinstance(result, tuple) else result) is not None:
                return result
        return before(self, *args, **others) if before else NotImplemented

    return decompose


def _norm(self: torch.Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return _aten.linalg_vector_norm(self, 2 if p is None else p, dim, keepdim, dtype=dtype)


_aten = torch.ops.aten
# aten's operators that call another one of the function in all cases.
_OTHERS: list[tuple[str, Any, Callable]] = [
    ("sum", _aten.sum.default, lambda self, *, dtype=None: _aten.sum.dim_IntList(self, [], dtype=dtype)),
    ("mean", _aten.mean.default, lambda self, *, dtype=None: _aten.mean.dim(self, [], dtype=dtype)),
    (
        "count_nonzero",
        _aten.count_nonzero.default,
        lambda self, dim=None: _aten.count_nonzero.dim_IntList(self, [] if dim is None else [dim]),
    ),
    *[
        ("vector_norm", getattr(_aten.norm, overload), _norm)
        for overload in ("Scalar", "ScalarOpt_dim", "ScalarOpt_dtype", "ScalarOpt_dim_dtype")
    ],
]
