"""Which operation of two functions first gives other bits: of two engines, or of compiled and eager code."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import prod
from typing import Any

import torch
from torch import Tensor

from . import _arguments
from ._runs import Call, CompiledRun, leaves, stretches, told, values
from .tuning.race import other_bits, same_bits

__all__ = ["Drift", "drift"]


@dataclass(frozen=True)
class Drift:
    """What :func:`drift` found. It is true if the results of both functions have the same bits.

    Attributes:
        operation: the first operation whose results differ, by torch's name, such as ``"aten.addmm.default"``; if it is
            called by one function alone, the operations around it that the other does not call, such as
            ``"aten.sin.default (in fn_b: aten.cos.default)"``, or ``"the result"``; or None.
        call: which call it is, counted from 0 over the operations of ``fn_a`` that compute; or None.
        of: what is measured: ``"its results"`` or, if one function alone calls it, what ``result`` names; or None.
        shapes: its shape in ``fn_a`` and in ``fn_b``; or None.
        dtypes: its dtypes; or None.
        elements: how many of its elements have other bits; None if the dtypes or the shapes differ.
        difference: the largest absolute difference of these elements. It is 0.0 if they differ by the sign of 0.0, and
            NaN if one is NaN and the other is not. None if the dtypes or the shapes differ.
        reason: arguments of the operation that explain it, in words; or None.
        agreed: the last operation before it, of both functions, and its call: its results have the same bits; or None.
        result: which of the functions' results differs, such as ``"result['logits']"``, or an input that the functions
            leave with other bits, such as ``"inputs[0]"``; or None.
        calls: operations that were compared.
    """

    operation: str | None = None
    call: int | None = None
    of: str | None = None
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    dtypes: tuple[torch.dtype, torch.dtype] | None = None
    elements: int | None = None
    difference: float | None = None
    reason: str | None = None
    agreed: tuple[str, int] | None = None
    result: str | None = None
    calls: int = 0

    def __bool__(self) -> bool:
        return self.operation is None

    def __str__(self) -> str:
        if self.operation is None:
            return f"no drift: the results have the same bits (operations: {self.calls})"
        where = "" if self.call is None else f", call {self.call},"
        reason = f" ({self.reason})" if self.reason else ""
        agreed = f"; {self.agreed[0]}, call {self.agreed[1]}, before it agrees" if self.agreed else ""
        return f"drift: {self.operation}{where} gives other bits{reason}: {self._difference()}{agreed}"

    def _difference(self) -> str:
        if self.shapes is None or self.dtypes is None:
            return f"{self.result} is not in both"
        if self.elements is None or self.difference is None:
            kinds = [
                f"{str(dtype).removeprefix('torch.')} of {shape}"
                for dtype, shape in zip(self.dtypes, self.shapes, strict=True)
            ]
            return f"of {self.of} {kinds[0]} is not {kinds[1]}"
        by = f"by up to {self.difference:.3g}"
        by = "by the sign of 0.0 alone" if self.difference == 0 else by
        by = "some by NaN in one function alone" if self.difference != self.difference else by
        return f"{self.elements} of {prod(self.shapes[0])} elements of {self.of} differ, {by}"


def _not_compared(x: Any) -> str | None:
    """Why the bits of a tensor, or of what stands for one, are not compared."""
    if _arguments.mesh_of(x) is not None or _arguments.stands_for_a_tensor(x):
        return f"a {type(x).__name__} is not supported: return the tensor that this rank has"
    if not isinstance(x, Tensor):
        return None
    if kind := _arguments.layout_of(x) or ("quantized" if x.is_quantized else None):
        return f"{kind} tensors are not supported"
    from torch._subclasses.fake_tensor import FakeTensor  # here, as it takes long to import

    return "it has no values" if x.is_meta or isinstance(x, FakeTensor) else None


def _compared(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function; it raises an error if what it returns cannot be compared."""

    def run(*inputs: Any) -> Any:
        tree = fn(*inputs)
        for name, x in leaves(tree, "result"):
            if reason := _not_compared(x):
                raise NotImplementedError(f"drift(): {name}: {reason}")
        return tree

    return run


def _agree(first: Tensor, second: Tensor) -> bool:
    """Whether they have the same bits; and of what is not compared, which may be none of a function's results."""
    return bool(_not_compared(first) or _not_compared(second)) or same_bits(first, second)


def _largest_difference(first: Tensor, second: Tensor) -> float:
    if first.is_floating_point() or first.is_complex():
        wide = torch.complex128 if first.is_complex() else torch.float64
        return float((first.to(wide) - second.to(wide)).abs().max())
    first, second = first.long(), second.long()
    apart = torch.where(first > second, first - second, second - first)  # modulo 2^64
    return float((apart.double() + 2.0**64 * (apart < 0)).max())


def _measured(found: Drift, of: str, first: Tensor, second: Tensor) -> Drift:
    """The same, with what is known of two tensors that differ."""
    shapes, dtypes = (tuple(first.shape), tuple(second.shape)), (first.dtype, second.dtype)
    found = replace(found, of=of, shapes=shapes, dtypes=dtypes)
    if first.dtype != second.dtype or first.shape != second.shape:
        return found
    other, second = other_bits(first, second), second.to(first.device)
    return replace(found, elements=int(other.sum()), difference=_largest_difference(first[other], second[other]))


def _pairs(first: CompiledRun, second: CompiledRun) -> Iterator[tuple[str | None, str | None]]:
    """The names of the results of two runs that belong together, and of what they made of the inputs.

    They are the same, or stand at the same place, as where one function returns a tuple and the other a dict.
    """
    if first.results.keys() == second.results.keys():
        yield from zip(first.results, first.results, strict=True)
    else:
        yield from zip_longest(first.results, second.results)
    yield from zip(first.inputs, first.inputs, strict=True)


class _Blame:
    """The first operation of two runs that gives other bits, where one of the functions' results differs."""

    def __init__(self, first: CompiledRun, second: CompiledRun) -> None:
        self.runs = first, second
        self.common: list[tuple[int, int]] = []  # calls of both runs that belong together
        self.apart: list[tuple[slice, slice]] = []  # stretches of calls of one run alone
        for here, there, is_equal in stretches(first.calls, second.calls):
            if is_equal:
                self.common += zip(range(here.start, here.stop), range(there.start, there.stop), strict=True)
            else:
                self.apart.append((here, there))

    def of(self, name: str | None, other: str | None) -> Drift:
        """The report, of a result that differs, by its names in both runs."""
        first, second = self.runs
        found = self._in_common()
        if found is None:
            sources = [first.sources.get(name), second.sources.get(other)]
            found = self._apart(sources, (len(first.calls), len(second.calls)))
        found = Drift("the result") if found is None else found
        x, y, result = first.value(name), second.value(other), name or other or ""
        if found.dtypes is None and x is not None and y is not None:
            found = _measured(found, result, x, y)
        end = len(first.calls) if found.call is None else found.call
        agreed = [(first.calls[call].name, call) for call, _ in self.common if call < end]
        return replace(found, result=result, calls=len(self.common), agreed=agreed[-1] if agreed else None)

    def _in_common(self) -> Drift | None:
        """What is to blame if an operation of both runs gives other bits; None if none does."""
        first, second = self.runs
        for here, there in self.common:
            a, b = first.calls[here], second.calls[there]
            unlike = self._unlike(a, b)
            if unlike is None:
                continue
            itself = Drift(a.name if a.name == b.name else f"{a.name} (in fn_b: {b.name})", here)
            itself = _measured(itself, "its results", *unlike)
            given = [i for i, (x, y) in enumerate(zip(a.given, b.given, strict=False)) if not _agree(x, y)]
            if not given:
                return replace(itself, reason=_other_arguments(a, b))
            for i in given:  # it follows from what one run alone did,
                found = self._apart([a.sources[i], b.sources[i]], (here, there), is_sure=True)
                if found is not None:
                    return found
            for i in given:  # or from what was there before, or what torch does not see,
                if a.outside[i] is not None or b.outside[i] is not None:
                    return replace(itself, reason=f"no operation made its input {i}, which differs")
            found = self._apart([None, None], (here, there))  # or from what no operation shows
            return replace(itself, reason="its inputs differ") if found is None else found
        return None

    def _unlike(self, a: Call, b: Call) -> tuple[Tensor, Tensor] | None:
        """The first results of a call in both runs that differ, of those that anybody reads."""
        read = [run.read for run in self.runs]
        for x, y, *numbers in zip(a.made, b.made, a.storages, b.storages, strict=False):
            if any(number in of for number, of in zip(numbers, read, strict=True)) and not _agree(x, y):
                return x, y
        return None

    def _apart(self, sources: list[int | None], ends: tuple[int, int], is_sure: bool = False) -> Drift | None:
        """To blame are operations of one run alone, before these ends: they made what is in one of these storages.

        If that is not known, and need not be sure, they are the last ones.
        """
        first, second = self.runs
        before = [sides for sides in self.apart if sides[0].start <= ends[0] and sides[1].start <= ends[1]]
        makers = [run.maker(source, end) for run, source, end in zip(self.runs, sources, ends, strict=True)]
        made = [sides for sides in before if any(map(_is_in, makers, sides))]
        for here, there in made[:1] or ([] if is_sure else before[-1:]):
            return Drift(told(first.calls[here], second.calls[there], "fn_b"), here.start)
        return None


def _is_in(call: int | None, side: slice) -> bool:
    return call is not None and side.start <= call < side.stop


def _other_arguments(a: Call, b: Call) -> str | None:
    """The first arguments that differ and are no tensors."""
    pairs = [(repr(x), repr(y)) for x, y in zip(a.others, b.others, strict=False)]
    return next((f"it is given {x}, in fn_b {y}" for x, y in pairs if x != y), None)


def drift(fn_a: Callable[..., Any], fn_b: Callable[..., Any], *inputs: Any) -> Drift:
    """Runs two functions on the same inputs, and names the first operation whose results differ in bits.

    The functions may be two engines, a model with and without :class:`replace`, or a model and what ``torch.compile``
    makes of it. Their results decide: if all of them have the same bits, there is no drift, whatever was called.
    Otherwise the operations that torch dispatches in both functions are compared in order, as
    :func:`check_batch_invariance` does it, and the first one with other bits is named. An operation in place, or with
    ``out=``, is the same operation. If only one function calls the first one, the report names what each of them calls
    at that place. Compiled code runs compiled. It shows the operations that it calls, and not what Inductor fused into
    kernels of its own. So the report also names the last operation that agrees.

    All NaNs count as equal; 0.0 and -0.0 differ. Numbers that the functions return are compared too, and the inputs as
    the functions leave them. Both functions get copies of the inputs, and the same state of torch's generators. They
    begin with the same values in tensors of their own, such as a model's statistics or an attention's cache: what an
    operation writes there is undone after the run. ``.grad`` and other attributes of Python stay changed, and so does
    what Inductor's own kernels write. A backward pass inside the functions is compared too. The inputs and results of
    all operations are kept, without the weights, so the inputs should be small.

    Args:
        fn_a: called with the inputs. It returns tensors or numbers, or lists, tuples, mappings or data classes of them.
        fn_b: the same. What has the same name in both results is compared or, if the names differ, what has the same
            place.
        inputs: tensors, or lists, tuples and dicts of them. Other values are passed as they are.

    Returns:
        A :class:`Drift`: true if all results have the same bits; printed, it is a sentence. ``operation``, ``call``,
        ``elements``, ``difference``, ``agreed`` and ``result`` are its parts.

    Raises:
        NotImplementedError: a result is a DTensor, a Shard, sparse, nested or quantized, or has no values.
        TypeError: ``fn_a`` or ``fn_b`` cannot be called.
        ValueError: the functions return no tensor and no number, and change no input.

        An error of ``fn_a`` or ``fn_b`` is not caught.

    >>> x = torch.arange(12.0)
    >>> print(torch_reduce.drift(lambda x: x.mul(0.5).neg(), lambda x: x.div(2).neg(), x))
    no drift: the results have the same bits (operations: 1)
    >>> found = torch_reduce.drift(lambda x: x.neg().mul(2), lambda x: x.neg().mul(3), x)
    >>> found.operation, found.call, found.elements, found.difference, found.agreed
    ('aten.mul.Tensor', 1, 11, 11.0, ('aten.neg.default', 0))
    """
    for name, fn in (("fn_a", fn_a), ("fn_b", fn_b)):
        if not callable(fn):
            raise TypeError(f"drift(): {name}: expected a function, but got {type(fn).__name__}")
    first, second = (CompiledRun(_compared(fn), inputs) for fn in (fn_a, fn_b))
    if not first.results and not second.results:
        given = values(list(inputs), "inputs")
        if all(_agree(x, run.inputs[name]) for name, x in given.items() for run in (first, second)):
            raise ValueError("drift(): fn_a and fn_b return no tensor and no number, and change no input")
    blame = _Blame(first, second)
    for one, other in _pairs(first, second):
        x, y = first.value(one), second.value(other)
        if x is None or y is None or not _agree(x, y):
            return blame.of(one, other)
    return Drift(calls=len(blame.common))
