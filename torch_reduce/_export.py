"""For exported programs that run where this library is not: :func:`decompositions`."""

from collections.abc import Callable
from typing import Any

__all__ = ["decompositions"]


def decompositions() -> dict[Any, Callable]:
    """Our operators by torch's, for ``torch.export.ExportedProgram.run_decompositions``.

    The program that comes out has the same bits, and runs where ``torch_reduce`` is not installed. It adds by slices
    and elementwise additions of torch's: it reads memory many times over, and is much slower than the operators.

    What it holds: sum, mean, nansum, prod, norms of order 0, 1, 2 and ±infinity, powsum, amax, amin, any, all,
    count_nonzero, var, std, var_mean, weighted_sum, dot, logsumexp, softmax, log_softmax, log_prob, rms_norm and
    layer_norm, of float16 to float64, and of integers where the result is one, too. All other calls stay as they are
    and need this library: other functions and dtypes, and gradients. So does a call whose rows may be empty, or
    whose length is dynamic without an upper bound (``torch.export.Dim(..., max=...)`` has one). With a bound, memory is
    taken for rows of that length.

    Where several dims are reduced, a program keeps the order of the strides that it was exported with; an operator
    asks each input anew. The bits hold where each operation is rounded by itself, as in eager code: a compiler that
    makes one operation of a product and a sum, or multiplies by a reciprocal, changes them.

    Returns:
        A new dict. ``{**torch.export.default_decompositions(), **torch_reduce.decompositions()}`` decomposes torch's
        functions, too.

    >>> class Norm(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch_reduce.rms_norm(x, x.shape[-1:])
    >>> program = torch.export.export(Norm(), (torch.ones(4, 768),))
    >>> "gpureduce" in str(program.run_decompositions(torch_reduce.decompositions()).graph)
    False
    """
    from . import _decomposed

    return _decomposed.table()
