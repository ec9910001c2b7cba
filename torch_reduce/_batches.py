"""Which operation of a model gives a row other bits in another batch."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .tuning.race import same_bits

__all__ = ["BatchInvariance", "check_batch_invariance"]

_SIZES = (1, 2, 17, 256, 1024)


@dataclass(frozen=True)
class BatchInvariance:
    """What :func:`check_batch_invariance` found. It is true if no row's bits depend on the batch.

    Attributes:
        operation: the first operation whose rows differ, by torch's name, such as ``"aten.mm.default"``; or None.
        call: which call it is, counted from 0 over all operations.
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
        return (
            f"not batch-invariant: {self.operation}, call {self.call}, gives other bits in a batch of {self.rows}: "
            f"{part} is not the begin of {whole}"
        )


class _Notes(TorchDispatchMode):
    """Keeps the results of all operations."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, list[Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        kept = [x.detach().clone() for x in tree_leaves(results) if isinstance(x, Tensor)]
        self.calls.append((str(func), kept))
        return results


def _run(function: Callable[..., Any], inputs: Iterable[Any]) -> list[tuple[str, list[Tensor]]]:
    notes = _Notes()
    with notes:
        function(*inputs)
    return notes.calls


def _part_of(whole: Tensor, part: Tensor, batch: int, rows: int) -> Tensor | None:
    """The begin of `whole` that `part` must be; None if no dim of theirs is the batch, or several of them may be."""
    if whole.dim() != part.dim():
        return None
    differ = [d for d in range(whole.dim()) if whole.shape[d] != part.shape[d]]
    if len(differ) != 1 or whole.shape[differ[0]] * rows != part.shape[differ[0]] * batch:
        return None
    return whole.narrow(differ[0], 0, part.shape[differ[0]])


def check_batch_invariance(
    fn: Callable[..., Any], *inputs: Any, dim: int = 0, sizes: Iterable[int] = _SIZES
) -> BatchInvariance:
    """Runs ``fn`` on a batch and on its first rows, and names the first operation whose rows have other bits.

    The results of each operation that torch dispatches are compared, in eager mode, in the order of the calls. So a
    model is told apart by its operations: what comes after the first difference differs for that reason alone. A
    backward pass inside of ``fn`` is compared, too, as far as its results have a batch. All results are kept, so the
    batch should be a small one.

    Args:
        fn: called with the inputs. It must do the same operations in every batch; dropout is off.
        inputs: tensors of one size along ``dim``, the batch. Other values, and tensors of no dims, are passed as they
            are.
        dim: the dimension of the batch.
        sizes: of the parts that are compared with the whole; those below the batch's size are taken.

    Returns:
        A :class:`BatchInvariance`: true if all rows have the same bits; printed, it is a sentence.

    Raises:
        ValueError: there is no tensor, the tensors have different sizes along ``dim``, or no part is smaller.

    >>> x = torch.ones(32, 64)
    >>> print(torch_reduce.check_batch_invariance(lambda x: torch_reduce.softmax(x, 1), x))
    batch-invariant: each row has the same bits in every batch (operations: 1)
    """
    batched = [i for i, x in enumerate(inputs) if isinstance(x, Tensor) and x.dim() > 0]
    found = {inputs[i].shape[dim] for i in batched}
    if len(found) != 1:
        raise ValueError(
            f"check_batch_invariance(): inputs: expected tensors of one size along dim {dim}, but got {sorted(found)}"
        )
    batch = found.pop()
    parts = [rows for rows in sizes if 0 < rows < batch]
    if not parts:
        raise ValueError(f"check_batch_invariance(): sizes: none is below the batch's size, which is {batch}")
    whole, compared = _run(fn, inputs), 0
    for rows in parts:
        given = [x.narrow(dim, 0, rows) if i in batched else x for i, x in enumerate(inputs)]
        part = _run(fn, given)
        for call, ((name, results), (own_name, own)) in enumerate(zip(whole, part, strict=False)):
            if name != own_name:
                return BatchInvariance(f"{name} (in the part: {own_name})", call, ((), ()), rows, compared)
            compared += rows == parts[0]
            for x, y in zip(results, own, strict=False):
                begin = _part_of(x, y, batch, rows)
                if begin is not None and not same_bits(begin, y):
                    return BatchInvariance(name, call, (tuple(x.shape), tuple(y.shape)), rows, compared)
        if len(whole) != len(part):
            name = (whole if len(whole) > len(part) else part)[min(len(whole), len(part))][0]
            return BatchInvariance(name, min(len(whole), len(part)), ((), ()), rows, compared)
    return BatchInvariance(calls=compared)
