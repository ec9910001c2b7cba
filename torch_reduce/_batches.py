"""Which operation of a model gives a row other bits in another batch."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ._runs import Run, stretches, told
from .tuning.race import same_bits

__all__ = ["BatchInvariance", "check_batch_invariance"]

_SIZES = (1, 2, 17, 256, 1024)
_SAME, _AMONG, _OTHER, _UNKNOWN = range(4)  # how a part's rows stand to the whole's


@dataclass(frozen=True)
class BatchInvariance:
    """What :func:`check_batch_invariance` found. It is true if no row's bits depend on the batch.

    Attributes:
        operation: the first operation whose rows differ, by torch's name, such as ``"aten.mm.default"``; if the
            function's results differ and no operation of both runs accounts for it, those that only one run calls, such
            as ``"aten.sin.default (in the part: aten.cos.default)"``, or ``"the result"``; or None.
        call: which call it is, counted from 0 over the operations of the whole batch that compute; or None.
        shapes: of its results, in the whole batch and in the part.
        rows: of the part.
        calls: operations that were compared.
    """

    operation: str | None = None
    call: int | None = None
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    rows: int | None = None
    calls: int = 0

    def __bool__(self) -> bool:
        return self.operation is None

    def __str__(self) -> str:
        if self.operation is None:
            return f"batch-invariant: each row has the same bits in every batch (operations: {self.calls})"
        whole, part = self.shapes or ((), ())
        where = "" if self.call is None else f", call {self.call},"
        return (
            f"not batch-invariant: {self.operation}{where} gives other bits in a batch of {self.rows}: "
            f"the rows of {part} are not those of {whole}"
        )


def _has_batch(whole: Tensor, part: Tensor, batch: int, rows: int) -> bool:
    """Whether one dim of theirs is the batch, alone or merged with others."""
    if whole.dim() != part.dim():
        return False
    differ = [(n, m) for n, m in zip(whole.shape, part.shape, strict=True) if n != m]
    return len(differ) == 1 and differ[0][0] * rows == differ[0][1] * batch


def _differing(whole: Tensor, part: Tensor) -> list[int]:
    """The dims whose sizes differ."""
    return [d for d in range(whole.dim()) if whole.shape[d] != part.shape[d]]


def _relation(whole: Tensor, part: Tensor, batch: int, rows: int) -> int:
    """Whether `part` is the begin of `whole`, or has its rows in another order, or other rows.

    That is not known if no dim of theirs is the batch, or several of them may be.
    """
    if whole.dtype != part.dtype or whole.dim() != part.dim() or not whole.layout == part.layout == torch.strided:
        return _UNKNOWN
    differ = _differing(whole, part)
    if not differ:
        return _SAME if same_bits(whole, part) else _UNKNOWN
    if len(differ) > 1 or whole.shape[differ[0]] < part.shape[differ[0]]:
        return _UNKNOWN
    if same_bits(whole.narrow(differ[0], 0, part.shape[differ[0]]), part):
        return _SAME
    return _AMONG if _are_among([(whole, part)]) else _OTHER


def _are_among(pairs: list[tuple[Tensor, Tensor]]) -> bool:
    """Whether each row of the parts is one of the wholes, by its bits: the row of the same index, or another one."""
    kinds = []
    for whole, part in pairs:
        dim = _differing(whole, part)[0]
        rows = torch.cat([whole, part], dim).movedim(dim, 0)
        rows = torch.view_as_real(rows.resolve_conj()) if rows.is_complex() else rows
        rows = rows.reshape(len(rows), -1)
        bits = rows.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[rows.dtype.itemsize])
        if rows.is_floating_point():
            bits = bits.masked_fill(rows.isnan(), torch.iinfo(bits.dtype).max)
        kinds.append(torch.unique(bits, dim=0, return_inverse=True)[1])
    kind = torch.unique(torch.stack(kinds, 1), dim=0, return_inverse=True)[1]
    size = pairs[0][0].shape[_differing(*pairs[0])[0]]
    return bool(torch.isin(kind[size:], kind[:size]).all())


def _are_given_together(whole: list[Tensor], part: list[Tensor]) -> bool:
    """Whether rows that an operation is given together are given together in the whole batch, too."""
    groups: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
    for x, y in zip(whole, part, strict=True):
        for d in _differing(x, y) if _is_number(x) and y.numel() else ():
            groups.setdefault((x.shape[d], y.shape[d]), []).append((x, y))
    return all(map(_are_among, groups.values()))


def _is_number(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def _blame(whole: Run, part: Run, batch: int, rows: int) -> tuple[BatchInvariance | None, int]:
    """What is to blame if the part has other rows than the whole; and how many calls were compared.

    An operation is to blame if it is given the same rows in both runs, and makes others of them. That is certain of
    numbers whose rows come in order. Where they come in another one, as tokens do that are sorted by expert, or where
    integers say which rows are meant, the function's results decide.
    """

    def relation(x: Tensor, y: Tensor, is_given: bool = False) -> int:
        found = _relation(x, y, batch, rows)
        is_index = not _is_number(y) and y.dtype is not torch.bool
        return _AMONG if is_given and is_index and found != _SAME else found

    differing = next(
        (
            (tuple(x.shape), tuple(y.shape))
            for x, y in zip(*(run.results.values() for run in (whole, part)), strict=False)
            if _has_batch(x, y, batch, rows) and relation(x, y) != _SAME
        ),
        None,
    )
    compared = 0
    suspects: dict[Any, BatchInvariance] = {}
    for of_whole, of_part, is_equal in stretches(whole.calls, part.calls):
        theirs, own = whole.calls[of_whole], part.calls[of_part]
        if not is_equal:
            others = BatchInvariance(told(theirs, own, "the part"), of_whole.start, differing, rows)
            suspects.setdefault("others", others)
            continue
        compared += len(own)
        for call, (a, b) in enumerate(zip(theirs, own, strict=True), of_whole.start):
            for x, y, storage in zip(a.made, b.made, a.storages, strict=False):
                made = relation(x, y) if storage in whole.read else _SAME
                if made == _SAME:
                    continue
                given = {relation(*each, is_given=True) for each in zip(a.given, b.given, strict=False)}
                if len(a.given) != len(b.given) or not given <= {_SAME, _AMONG}:
                    continue  # it follows from what came before
                blamed = BatchInvariance(a.name, call, (tuple(x.shape), tuple(y.shape)), rows)
                if made == _OTHER and _is_number(y):
                    if _AMONG not in given or (differing and _are_given_together(a.given, b.given)):
                        return blamed, compared
                    continue
                suspects.setdefault(made, blamed)
    if not differing:
        return None, compared
    for kind in (_OTHER, "others", _UNKNOWN, _AMONG):
        if kind in suspects:
            return suspects[kind], compared
    return BatchInvariance("the result", None, differing, rows), compared


def check_batch_invariance(
    fn: Callable[..., Any], *inputs: Any, dim: int = 0, sizes: Iterable[int] = _SIZES
) -> BatchInvariance:
    """Runs ``fn`` on a batch and on its first rows, and names the first operation whose rows have other bits.

    Both runs are in eager mode. Each operation that torch dispatches in both of them is compared: its inputs and its
    results, as they are when it is called. It is named if it gets the same rows in both runs and makes different rows
    of them. Later operations, which get those rows, are not blamed. Not compared are views, clones, and results that
    nobody reads. Memory that is allocated without values is filled with zeros. A backward pass inside ``fn`` is
    compared too, as far as its results have a batch. The results of ``fn`` are compared last. They decide where the
    rows inside come in another order, such as tokens that are sorted by expert, and where the two runs call different
    operations. ``fn`` gets copies of the inputs. The inputs and results of all operations are kept, without the
    weights, so the batch should be small.

    Args:
        fn: called with the inputs. It must do the same each time; dropout is off.
        inputs: tensors of one size along ``dim``, the batch. Other values, and tensors of no dims, are passed as they
            are.
        dim: the dimension of the batch.
        sizes: of the parts that are compared with the whole; those below the batch's size are taken.

    Returns:
        A :class:`BatchInvariance`: true if all rows have the same bits; printed, it is a sentence.

    Raises:
        IndexError: a tensor has no dimension ``dim``.
        TypeError: ``fn`` cannot be called, ``dim`` is no int, or ``sizes`` are no ints.
        ValueError: there is no tensor, the tensors have different sizes along ``dim``, or no part is smaller.

    >>> x = torch.ones(32, 64)
    >>> print(torch_reduce.check_batch_invariance(lambda x: torch_reduce.softmax(x, 1), x))
    batch-invariant: each row has the same bits in every batch (operations: 1)
    """
    name = "check_batch_invariance()"
    if not callable(fn):
        raise TypeError(f"{name}: fn: expected a function, but got {type(fn).__name__}")
    if not isinstance(dim, int):
        raise TypeError(f"{name}: dim: expected an int, but got {type(dim).__name__}")
    sizes = tuple(sizes) if isinstance(sizes, Iterable) else sizes
    if not isinstance(sizes, tuple) or not all(isinstance(rows, int) for rows in sizes):
        raise TypeError(f"{name}: sizes: expected ints in a list or tuple, such as [1, 17], but got {sizes!r}")
    batched = [i for i, x in enumerate(inputs) if isinstance(x, Tensor) and x.dim() > 0]
    for i in batched:
        dims = inputs[i].dim()
        if not -dims <= dim < dims:
            raise IndexError(f"{name}: dim: expected {-dims} to {dims - 1} for a tensor of {dims} dims, but got {dim}")
    found = {inputs[i].shape[dim] for i in batched}
    if len(found) != 1:
        raise ValueError(f"{name}: inputs: expected tensors of one size along dim {dim}, but got {sorted(found)}")
    batch = found.pop()
    parts = [rows for rows in sizes if 0 < rows < batch]
    if not parts:
        raise ValueError(f"{name}: sizes: none is below the batch's size, which is {batch}")
    whole, calls = Run(fn, inputs), 0
    for rows in parts:
        part = Run(fn, [x.narrow(dim, 0, rows) if i in batched else x for i, x in enumerate(inputs)])
        blamed, compared = _blame(whole, part, batch, rows)
        calls = max(calls, compared)
        if blamed is not None:
            return replace(blamed, calls=calls)
    return BatchInvariance(calls=calls)
