"""What a call would launch: its backends say it, in the place of running (csrc/core/torch/explain.h)."""

import threading
from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from . import _arguments
from ._sum import explain as explain_call

__all__ = ["explain"]

_ops = torch.ops.gpureduce
# They are computed: how the work behind them is cut depends on what they find.
_COMPUTED = {"_index_plan", "_index_sort_values"}
_here = threading.local()  # whether this thread explains a call


@overload
def explain(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> str: ...
@overload
def explain(
    input: Tensor,
    dim: _arguments.Dims = ...,
    keepdim: bool = ...,
    *,
    dtype: _arguments.Dtype = ...,
    weight: Tensor | None = ...,
    function: str = ...,
) -> str: ...
def explain(function: Any = None, /, *args: Any, **kwargs: Any) -> str:
    """What a call would launch: which kernels, how they cut the work, the bytes that must move.

    ``explain(torch_reduce.rms_norm, x, 4096, w)`` is about that call. Any function of tensors will do, one of your own
    as well. The text names each operator that the function calls, ours and torch's. Ours say their problem and their
    launches: on a CUDA device the kernel, what each thread and block takes, the threads per block and the grid; on the
    CPU how many threads share the work. If an argument requires a gradient, the backward pass follows.

    No result is computed, and nothing is written: neither ``out`` nor the tensors that a function changes in place,
    and an argument's gradient stays. Integers and bools are computed where others depend on them. On the CPU, for
    example, an index is sorted, since the work behind the sort is cut by it. The text is for people: its wording and
    numbers change with the tuning. Gradients are off unless an argument requires one; parameters of a module that the
    function holds are no arguments. Other threads that the function starts are not heard, nor is :func:`replace`:
    torch's operators have their own names.

    ``explain(x, dim)`` is short for a call of :func:`sum`. A weight makes it a call of :func:`weighted_sum`, and
    ``function="var"`` one of :func:`var`; :func:`std` and :func:`var_mean` have the same plans.

    Args:
        function: a function of this package, or another one that calls them. In the short form it is the input: a
            tensor of any shape, on the CPU or a CUDA device.
        args: the function's arguments. In the short form ``dim`` and ``keepdim``, as for :func:`sum`.
        kwargs: the same by name. In the short form also ``input``, and ``dtype`` as for :func:`sum`; ``weight``, as for
            :func:`weighted_sum`; or ``function``: ``"sum"``, ``"mean"``, ``"var"``, ``"std"`` or ``"var_mean"``.

    Returns:
        The text: a line for each operator, and below it what it launches. In the short form only what it launches.

    Raises:
        TypeError: ``function`` is neither a function nor a tensor, as a Shard.
        NotImplementedError: an argument is sparse; or the call sends messages to other ranks.
        RuntimeError: the function calls ``explain``.
        ValueError: the short form's ``function`` is another one.
        Exception: what the function raises for these arguments. In the short form, what :func:`sum` raises.

    >>> print(torch_reduce.explain(torch.ones(3, 4), 1, weight=torch.ones(4)))
    Float * Float -> Float, added in float32
    outputs 3, elements each 4; kept 3 (stride 4); reduced 4 (stride 1)
    chunk by chunk
    >>> print(torch_reduce.explain(torch_reduce.amax, torch.ones(0, 4), 1))
    _amax: nothing to launch
    """
    if function is None and "input" in kwargs:
        return explain_call(**kwargs)
    if isinstance(function, Tensor) or not callable(function):
        return explain_call(function, *args, **kwargs)
    return _explained(function, args, kwargs)


def _tensors(of: Any) -> list[Tensor]:
    return [each for each in tree_flatten(of)[0] if isinstance(each, Tensor)]


def refuse_messages(name: str) -> None:
    """Raises an error if this thread explains a call: what other ranks would answer is not known."""
    if getattr(_here, "explains", False):
        raise NotImplementedError(f"explain(): {name}() sends messages to other ranks: explain the call of one rank")


def _explained(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], gpu: str = "") -> str:
    """The text of a call. ``gpu``: of a GPU that is described by numbers (csrc/core/plan/gpu.h), for tests."""
    given = _tensors((args, kwargs))
    if getattr(_here, "explains", False):
        raise RuntimeError("explain(): the function that is explained calls it")
    if any(x.layout in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc) for x in given):
        raise NotImplementedError("explain(): sparse tensors are not explained")
    # A call in place, or with out=, would change a graph.
    writes = kwargs.get("out") is not None or getattr(function, "__name__", "").endswith("_")
    wanted = [x for x in given if x.requires_grad and not writes and torch.is_grad_enabled()]
    gradients = [(x, x.grad) for x in given if x.is_leaf and x.requires_grad]
    given += [gradient for _, gradient in gradients if gradient is not None]  # whose versions stay, too
    random = torch.random.fork_rng(sorted({x.device.index for x in given if x.is_cuda}))
    listener, counted = _Listener(), [x for x in given if not x.is_inference()]
    versions = torch.autograd._unsafe_preserve_version_counter(tuple(counted))
    _ops._explain_begin(gpu)
    _here.explains = True
    try:
        # Backward passes run in this thread, since another one would not be explained.
        alone, graph = torch.autograd.set_multithreading_enabled(False), torch.set_grad_enabled(bool(wanted))
        with random, alone, graph, versions, listener:
            results = [x for x in _tensors(function(*args, **kwargs)) if x.requires_grad]
            if wanted and results:
                listener.part("backward:")
                torch.autograd.grad(results, wanted, [torch.empty_like(x) for x in results], allow_unused=True)
    finally:
        _here.explains = False
        _ops._explain_end()
        for x, gradient in gradients:
            x.grad = gradient
    return "\n".join(listener.lines)


class _Listener(TorchDispatchMode):
    """Hears each operator of a call.

    Ours go to their backend, which says what it would launch. torch's views and new tensors are made; results of its
    kernels are not computed, unless they are integers or bools of what is known.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._depth = 0
        # By storage: what was made in this call, for nothing may write to the caller's; and what has not been computed.
        # References keep their numbers from being taken by others.
        self._made: dict[int, StorageWeakRef] = {}
        self._unknown: dict[int, StorageWeakRef] = {}

    def part(self, text: str, depth: int = 0) -> None:
        self.lines += ["  " * depth + line for line in text.splitlines()]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(issubclass(t, Tensor) and t not in (Tensor, torch.nn.Parameter) for t in types):
            return NotImplemented  # a DTensor: the operators of its parts come
        told = func.namespace == "gpureduce" and _tensors((args, kwargs))
        result = (self._ours if told else self._others)(func, args, kwargs)
        fresh = "lift" in func._schema.name  # a tensor of numbers, which nobody else has
        return self._make(result, () if fresh else (args, kwargs))

    def _make(self, results: Any, of: Any = ()) -> Any:
        """Keeps what was made in this call: all results but views `of` arguments."""
        held = {_storage(x) for x in _tensors(of)}
        for x in _tensors(results):
            if _storage(x) not in held:
                self._made[_storage(x)] = StorageWeakRef(x.untyped_storage())
        return results

    def _ours(self, func, args, kwargs):
        name = _name(func)
        self.part(_ops._explain_take(), self._depth)  # what the operator that calls this one has said
        place, self._depth = len(self.lines), self._depth + 1
        self.part(name, self._depth - 1)
        written = _written(func, args, kwargs)
        stands_in = {_storage(x): self._make(_like(x)) for x in written}
        for_it = {_storage(stands_in[_storage(x)]): x for x in written}
        key = _key(func, _tensors((args, kwargs))[0])
        args, kwargs = _mapped((args, kwargs), lambda x: stands_in.get(_storage(x), x))
        with self:
            result = func._op_dk(key, *args, **kwargs)
        self.part(_ops._explain_take(), self._depth)
        self._depth -= 1
        if len(self.lines) == place + 1:
            self.lines[place] += ": nothing to launch"
        if name not in _COMPUTED:
            self._forget(self._make(result, (args, kwargs)))
        return _mapped(result, lambda x: for_it.get(_storage(x), x))

    def _others(self, func, args, kwargs):
        name = _name(func)
        if func.is_view or "empty" in name or not (tensors := _tensors((args, kwargs))):
            return func(*args, **kwargs)
        if name == "resize_" and _storage(tensors[0]) in self._made:
            return func(*args, **kwargs)  # of what stands in for out=
        known = not any(_storage(x) in self._unknown for x in tensors)
        if name == "_local_scalar_dense":
            return func(*args, **kwargs) if known else 1.0 if tensors[0].is_floating_point() else 1
        written = _written(func, args, kwargs)
        self.part(_ops._explain_take(), self._depth)
        of = " and ".join(str(tuple(x.shape)) for x in tensors[:2])
        self.part(f"torch.{name} of {of}", self._depth)
        if written:
            if known and not any(_is_number(x) or _storage(x) not in self._made for x in written):
                return func(*args, **kwargs)
            self._forget(written)
            return (None, written[0], tuple(written))[min(len(func._schema.returns), 2)]
        shapes = _on_meta(func, args, kwargs)
        if shapes is None or (known and not any(map(_is_number, _tensors(shapes)))):
            return func(*args, **kwargs)
        made = self._make(_mapped(shapes, lambda x: _like(x, tensors[0].device)))
        self._forget(made)
        return made

    def _forget(self, results: Any) -> None:
        """Results that have not been computed. On the CPU integers are zeros, so that they lead out of no tensor."""
        for x in _tensors(results):
            self._unknown[_storage(x)] = StorageWeakRef(x.untyped_storage())
            if x.is_cpu and not _is_number(x) and _storage(x) in self._made:
                x.zero_()


def _name(func) -> str:
    return func._schema.name.split("::")[1]


def _key(func, x: Tensor) -> Any:
    """Where an operator's kernel for a tensor is registered."""
    keys = torch._C.DispatchKey
    candidates = (keys.CUDA if x.is_cuda else keys.CPU, keys.CompositeExplicitAutograd, keys.CompositeImplicitAutograd)
    return next(key for key in candidates if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key))


def _like(x: Tensor, device: torch.device | None = None) -> Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device or x.device)


def _is_number(x: Tensor) -> bool:
    """It is not computed, unlike integers and bools."""
    return x.is_floating_point() or x.is_complex()


def _storage(x: Tensor) -> int:
    return x.untyped_storage()._cdata


def _mapped(of: Any, f: Callable[[Tensor], Any]) -> Any:
    return torch.utils._pytree.tree_map(lambda x: f(x) if isinstance(x, Tensor) else x, of)


def _written(func, args, kwargs) -> list[Tensor]:
    """The arguments that an operator writes to."""
    given = dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | kwargs
    writes = [each.name for each in func._schema.arguments if each.alias_info is not None and each.alias_info.is_write]
    return _tensors([given.get(name) for name in writes])


def _on_meta(func, args, kwargs) -> Any:
    """The results without data; None if their sizes depend on the data."""
    kwargs = {key: torch.device("meta") if key == "device" else value for key, value in kwargs.items()}
    try:
        given, named = _mapped((args, kwargs), lambda x: _like(x, torch.device("meta")))
        return func(*given, **named)
    except (NotImplementedError, RuntimeError):
        return None
