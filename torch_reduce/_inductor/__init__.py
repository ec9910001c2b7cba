"""Our operators in what Inductor compiles for GPUs: reductions that it fuses with the code around them.

:mod:`._lowerings` says what each operator becomes, and :mod:`._kernels` how a kernel adds in the contract's order. What
is fused rounds as eager code does: Inductor's own switches for that are on while a graph has our operators, and
:mod:`._graphs` marks the graph's roundings and keeps them.
"""

import functools
import hashlib
import os
import pathlib
import warnings
from typing import Any

import torch

__all__ = ["install", "is_known"]

VERSIONS = ["2.11"]  # of torch, whose Inductor this is written for
UNPROVEN = ["2.15"]  # whose kernels have run in Triton's interpreter, and on no GPU yet

_FOLDER = pathlib.Path(__file__).resolve().parent
_SOURCES = [*sorted(_FOLDER.glob("*.py")), *sorted((_FOLDER.parent / "triton").glob("*.py"))]

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
    """True if this torch has an Inductor that the code here is written for. TORCH_REDUCE_FUSE=1 takes unproven ones."""
    known = VERSIONS + (UNPROVEN if os.environ.get("TORCH_REDUCE_FUSE") == "1" else [])
    return ".".join(torch.__version__.split(".")[:2]) in known


def install() -> None:
    """Teaches Inductor our operators. Called once ``torch._inductor.compile_fx`` is imported."""
    if not is_known():
        text = f"under torch {torch.__version__} Inductor calls torch_reduce's operators: it fuses them under torch"
        others = f"with TORCH_REDUCE_FUSE=1 {', '.join(UNPROVEN)}, too; with 0 this warning goes"
        warnings.warn(f"{text} {', '.join(VERSIONS)} ({others})", stacklevel=2)
        return
    from torch._inductor import codecache, compile_fx

    from . import _decompositions, _graphs, _kernels, _lowerings

    _decompositions.install()
    _graphs.install()
    _kernels.install()
    _lowerings.install()

    mark = hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES)).hexdigest()
    given_key, given_compile = codecache.FxGraphHashDetails.__init__, compile_fx._InProcessFxCompile.codegen_and_compile

    @functools.wraps(given_key)
    def key(self: Any, gm: Any, *args: Any, **others: Any) -> None:
        given_key(self, gm, *args, **others)
        self.torch_reduce = [mark, *(_graphs.annotated(gm) if _graphs.has_ours(gm) else [])]

    @functools.wraps(given_compile)
    def codegen_and_compile(self: Any, gm: Any, *args: Any, **others: Any) -> Any:
        if not _graphs.has_ours(gm):
            return given_compile(self, gm, *args, **others)
        _graphs.annotated(gm)
        config: Any = torch._inductor.config
        later = {"eager_numerics.disable_ftz": True} if hasattr(config.eager_numerics, "disable_ftz") else {}
        with config.patch({**_SETTINGS, **later}), _kernels.with_tiles():
            return given_compile(self, gm, *args, **others)

    codecache.FxGraphHashDetails.__init__ = key  # type: ignore[method-assign]
    compile_fx._InProcessFxCompile.codegen_and_compile = codegen_and_compile  # type: ignore[method-assign]
