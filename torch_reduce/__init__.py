"""Reductions for PyTorch in one documented order of additions, so that a result has the same bits on every device.

``torch_reduce.sum`` calls the operator ``torch.ops.gpureduce.sum``, and takes arguments in all the ways that
``torch.sum`` takes them; either may be used anywhere. The order is a contract (docs/order.md) and never changes: a
row's sum has the same bits alone and in any batch, contiguous or strided, on any GPU and on the CPU. Several dimensions
are added in the order of memory: ``.contiguous()`` gives one order, and with ``exact=True`` any order gives the same
bits. All other functions follow the same order.

The functions also take DTensors, and a ``torch_reduce.distributed.Shard``, one rank's part of a tensor that is cut over
the ranks of torch.distributed: the bits are the same on any number of ranks.

``python -m torch_reduce`` shows what was built and which devices are there, and checks pinned bits on each.
``torch_reduce.ladder`` has the kernels of the classic lessons on reduction, to run and to time.
"""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING

__all__ = [
    "Fp8",
    "GatherPlan",
    "IndexPlan",
    "MoePlan",
    "__version__",
    "all",
    "amax",
    "amin",
    "aminmax",
    "any",
    "argmax",
    "argmin",
    "bincount",
    "check_batch_invariance",
    "clip_grad_norm_",
    "contract",
    "count_nonzero",
    "cross_entropy",
    "decompositions",
    "distributed",
    "dot",
    "drift",
    "embedding",
    "embedding_bag",
    "exact",
    "explain",
    "gather_amax",
    "gather_amin",
    "gather_mean",
    "gather_plan",
    "gather_sum",
    "get_total_norm",
    "index_add",
    "index_add_",
    "index_amax",
    "index_amin",
    "index_mean",
    "index_plan",
    "index_reduce",
    "index_reduce_",
    "index_sum",
    "ladder",
    "layer_norm",
    "log_prob",
    "log_prob_of",
    "log_softmax",
    "logsumexp",
    "max",
    "mean",
    "min",
    "moe_combine",
    "moe_dispatch",
    "moe_plan",
    "nansum",
    "powsum",
    "prod",
    "quantize",
    "replace",
    "replace_torch_sum",
    "rms_norm",
    "scatter_add",
    "scatter_reduce",
    "segment_amax",
    "segment_amin",
    "segment_logsumexp",
    "segment_mean",
    "segment_prod",
    "segment_softmax",
    "segment_sum",
    "silu_mul",
    "softmax",
    "std",
    "sum",
    "tune",
    "var",
    "var_mean",
    "vector_norm",
    "weighted_sum",
]

__version__ = "0.1.0"


def _installed() -> ModuleSpec | None:
    """Where another torch_reduce is that has a library, if this one is a source tree that was not built in place."""

    def built(init: str) -> bool:
        return Path(init).with_name("libtorch_reduce_core.so").exists() and Path(init).with_name("_build.json").exists()

    if built(__file__):
        return None
    found = (PathFinder.find_spec(__name__, [folder]) for folder in sys.path)
    return next((spec for spec in found if spec and spec.origin and built(spec.origin)), None)


if _spec := _installed():
    # It takes this one's place, all of it: Python of one version never meets a library of another.
    __spec__, __file__, __path__ = _spec, _spec.origin, _spec.submodule_search_locations
    _spec.loader.exec_module(sys.modules[__name__])
else:
    from . import _imports, _library

    _library.load()
    from . import exact
    from ._batches import check_batch_invariance
    from ._clip import clip_grad_norm_, get_total_norm
    from ._contract import contract
    from ._drift import drift
    from ._explain import explain
    from ._export import decompositions
    from ._extrema import aminmax, argmax, argmin, max, min
    from ._family import all, amax, amin, any, count_nonzero, logsumexp, nansum, prod
    from ._gather import GatherPlan, gather_amax, gather_amin, gather_mean, gather_plan, gather_sum
    from ._index import IndexPlan, index_plan
    from ._indexed import (
        bincount,
        embedding,
        embedding_bag,
        index_add,
        index_add_,
        index_amax,
        index_amin,
        index_mean,
        index_reduce,
        index_reduce_,
        index_sum,
        scatter_add,
        scatter_reduce,
    )
    from ._log_prob_of import log_prob_of
    from ._moe import MoePlan, moe_combine, moe_dispatch, moe_plan
    from ._quantize import Fp8, quantize, silu_mul
    from ._replace import replace, replace_torch_sum
    from ._rows import cross_entropy, layer_norm, log_prob, log_softmax, rms_norm, softmax
    from ._segment import (
        segment_amax,
        segment_amin,
        segment_logsumexp,
        segment_mean,
        segment_prod,
        segment_softmax,
        segment_sum,
    )
    from ._sum import mean, powsum, sum, tune, vector_norm
    from ._variance import std, var, var_mean
    from ._weighted import dot, weighted_sum

    _library.document(
        [aminmax, argmax, argmin, max, min]
        + [all, amax, amin, any, count_nonzero, dot, logsumexp, mean, nansum, powsum, prod]
        + [segment_amax, segment_amin, segment_logsumexp, segment_mean, segment_prod, segment_softmax, segment_sum]
        + [std, sum, var, var_mean, vector_norm, weighted_sum]
        + [cross_entropy, layer_norm, log_prob, log_softmax, quantize, rms_norm, silu_mul, softmax]
        + [bincount, embedding, embedding_bag, index_add, index_add_, index_amax, index_amin, index_mean, index_sum]
        + [index_reduce, index_reduce_, scatter_add, scatter_reduce, gather_amax, gather_amin, gather_mean, gather_sum]
    )
    # What the operators do with a DTensor. It comes last, as it uses all of the above.
    _imports.when_imported("torch.distributed.tensor", lambda: import_module(".distributed._dtensor", __name__))

    if environ.get("TORCH_REDUCE_FUSE") != "0":
        _imports.when_imported("torch._inductor.compile_fx", lambda: import_module("._inductor", __name__).install())

    if TYPE_CHECKING:
        from . import distributed, ladder
    else:

        def __getattr__(name):
            """Imports a module when it is first used: `python -m torch_reduce.ladder` must not find it imported."""
            if name in ("distributed", "ladder"):
                return import_module(f".{name}", __name__)
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
