"""torch's own functions on ours. The kernels, and the count of those who want them, are in csrc/replace/torch.cpp."""

import threading
from collections.abc import Iterable
from contextlib import ContextDecorator
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch.compiler import is_dynamo_compiling

from . import _traced

__all__ = ["replace", "replace_torch_sum"]

_Name: TypeAlias = Literal[
    "sum",
    "mean",
    "nansum",
    "prod",
    "amax",
    "amin",
    "argmax",
    "argmin",
    "max",
    "min",
    "aminmax",
    "any",
    "all",
    "count_nonzero",
    "vector_norm",
    "logsumexp",
    "var",
    "std",
    "var_mean",
    "std_mean",
    "dot",
    "softmax",
    "log_softmax",
    "layer_norm",
    "rms_norm",
    "nll_loss",
    "index_add",
    "scatter_add",
    "index_reduce",
    "scatter_reduce",
    "index_put",
    "embedding",
    "embedding_bag",
    "bincount",
]

_switch = threading.Lock()


class replace(ContextDecorator):
    """Runs torch's own reductions on ours, in code that stays as it is: :class:`replace_torch_sum` for any of them.

    ``replace()`` is for all of them, ``replace("sum")`` for one.

    ====================  ======================================================================
    name                  torch's functions
    ====================  ======================================================================
    ``"sum"``             ``torch.sum``, and what :class:`replace_torch_sum` says
    ``"mean"``            ``torch.mean``, losses with ``reduction="mean"`` that take it
    ``"nansum"``          ``torch.nansum``
    ``"prod"``            ``torch.prod``
    ``"amax"``            ``torch.amax``; and ``"amin"`` likewise
    ``"argmax"``          ``torch.argmax``; and ``"argmin"`` likewise
    ``"max"``             ``torch.max`` with ``dim``; and ``"min"`` likewise
    ``"aminmax"``         ``torch.aminmax``
    ``"any"``             ``torch.any``
    ``"all"``             ``torch.all``, and no other function
    ``"count_nonzero"``   ``torch.count_nonzero``
    ``"vector_norm"``     ``torch.linalg.vector_norm``, ``torch.norm``: the orders of :func:`vector_norm`
    ``"logsumexp"``       ``torch.logsumexp`` of floats, without ``out=``
    ``"var"``, ``"std"``  ``torch.var``, ``torch.std`` of real floats
    ``"var_mean"``        ``torch.var_mean`` of real floats; and ``"std_mean"`` likewise
    ``"dot"``             ``torch.dot`` of real floats, without ``out=``
    ``"softmax"``         ``torch.softmax`` of floats, and its gradient; and ``"log_softmax"`` likewise
    ``"layer_norm"``      ``torch.nn.functional.layer_norm``, and its gradients
    ``"rms_norm"``        ``torch.nn.functional.rms_norm``, and its gradients; not under ``torch.vmap``
    ``"nll_loss"``        ``torch.nn.functional.nll_loss`` and its gradient
    ``"index_add"``       ``torch.index_add``, and the gradient of ``torch.index_select``
    ``"scatter_add"``     ``torch.scatter_add``, and the gradient of ``torch.gather``
    ``"index_reduce"``    ``torch.index_reduce`` of floats
    ``"scatter_reduce"``  ``torch.scatter_reduce`` of floats
    ``"index_put"``       ``torch.index_put`` with ``accumulate=True``, and the gradient of ``x[index]``
    ``"embedding"``       the gradient of ``torch.nn.functional.embedding``, without ``scale_grad_by_freq``
    ``"embedding_bag"``   sums and means of ``torch.nn.functional.embedding_bag``, and all of its gradients
    ``"bincount"``        ``torch.bincount`` with ``weights``
    ====================  ======================================================================

    ``"nll_loss"`` and ``"log_softmax"`` together are all of ``cross_entropy`` with indices of classes.
    ``"embedding_bag"`` leaves calls with ``scale_grad_by_freq`` or ``sparse`` to torch.

    A mean of ``nll_loss`` is one quotient of two sums in the contract's order, as for :func:`cross_entropy`. A
    ``cross_entropy`` of float32 or float64, and its gradient, have the bits of that function; of halves, torch rounds
    the logarithms first. Label smoothing and probabilities as targets take ``"sum"`` and ``"mean"``, too.

    What reduces by index uses no atomics: an output's entries are added in the order in which the index names them, the
    sum is added to what was there, and rounded once. So nothing of it is refused under
    :func:`torch.use_deterministic_algorithms`. The gradients of ``scatter_reduce`` and ``index_reduce`` are torch's own
    formulas, which add by ``"scatter_add"`` and ``"index_add"``. Integers are exact in torch, too, so that these two
    leave them to it. Gradients of ``Tensor.put_`` stay torch's.

    Results have torch's dtypes, shapes and strides, whatever the strides of the input. One dtype differs: on the CPU,
    ``torch.native_layer_norm`` of halves returns its statistics in float32, as on a GPU.

    :class:`replace_torch_sum` says the rest: what is left to the original kernel, what is never reached, what
    ``torch.compile`` makes of it, that it is a switch of the whole process, and how it nests.

    Args:
        names: one of these names, or several. Without it: all of them.
        devices: ``"cuda"`` (the default), ``"cpu"``, or several of them.

    Raises:
        TypeError: a name or a device that is not a string.
        ValueError: another name or device, or one named twice.
        RuntimeError: from :meth:`on`: ``"cuda"`` where the library was built without CUDA. From :meth:`off`: there were
            not as many :meth:`on`.

    Warns:
        UserWarning: something that is compiled cannot have our bits, once for each reason.

    >>> with torch_reduce.replace(["sum", "amax"], devices="cpu"):
    ...     torch.ones(3, 4).amax(1)
    tensor([1., 1., 1.])
    """

    _title = "replace"

    def __init__(self, names: _Name | Iterable[_Name] | None = None, devices: str | Iterable[str] = "cuda") -> None:
        self.names = None if names is None else self._listed("names", names)
        self.devices = self._listed("devices", devices)
        if not is_dynamo_compiling():  # there the switch itself breaks the graph, and checks
            torch.ops.gpureduce._check_replace(self._title, self.names, self.devices)

    def _listed(self, argument: str, given: str | Iterable[str]) -> list[str]:
        listed = [given] if isinstance(given, str) else list(given) if isinstance(given, Iterable) else [given]
        for each in listed:
            if not isinstance(each, str):
                raise TypeError(f"{self._title}: {argument}: expected a string or several, but got {each!r}")
        return listed

    def __repr__(self) -> str:
        names = get_args(_Name) if self.names is None else self.names
        on = [f"{name} {device}" in _traced.now for name in names for device in self.devices]
        state = "on" if all(on) else "on in part" if any(on) else "off"
        what = "everything" if self.names is None else ", ".join(self.names)
        return f"<{self._title}: {what} on {', '.join(self.devices)}, {state}>"

    def on(self) -> "replace":
        """Switches the replacement on; it stays until as many :meth:`off`."""
        self._turn(True)
        return self

    def off(self) -> None:
        """Takes one :meth:`on` back."""
        self._turn(False)

    def _turn(self, on: bool) -> None:
        if is_dynamo_compiling():
            raise RuntimeError(f"{self._title}: no graph can hold the switch; use it outside of what is compiled")
        with _switch:
            _traced.switched(frozenset(torch.ops.gpureduce._replace(self._title, on, self.names, self.devices)))

    __enter__ = on

    def __exit__(self, *exception: Any) -> None:
        self.off()


class replace_torch_sum(replace):
    """Runs torch's own sum on :func:`torch_reduce.sum`'s kernels, in code that stays as it is.

    Inside ``with torch_reduce.replace_torch_sum():`` (or in a function that it decorates, or between :meth:`on` and
    :meth:`off`), all that reaches aten's ``sum.dim_IntList`` and ``sum.IntList_out`` takes our kernel: ``torch.sum``,
    ``Tensor.sum``, losses with ``reduction="sum"``, and the sums that autograd makes for a broadcast, as in the
    gradient of an added bias. Autograd, autocast, vmap and the checks around the kernel are torch's. A call costs no
    Python.

    **Bits differ** from torch's own, which depend on shapes, batch and device; ours do not (docs/order.md). With a
    narrower ``dtype=``, torch rounds every element first and ours rounds once, at the end.

    **Not taken**, and left to the original kernel: dtypes that torch cannot sum, more than 64 dims, named tensors, and
    layouts that are not strided. Never reached: reductions that aten does not make with its sum (``mean`` on CUDA,
    ``cross_entropy``, norms, matrix products, gradients of embeddings, most gradients of convolutions and
    normalizations).

    **torch.compile**: compiled code has our bits too while it is on, forwards and backwards, and torch's own before and
    after. A model is compiled once for each set of replaced functions that it meets. AOTInductor does not replace, and
    warns; nor can a full graph hold the switch itself (docs/models.md).

    **It is a switch of the whole process**: other threads get our kernels too, from the first one's ``on`` to the last
    one's ``off``. It nests, in any order and from any threads, survives exceptions, and at the end the dispatcher's
    table is what it was. A CUDA graph keeps the kernels that it was captured with.

    Args:
        devices: whose sum is replaced: ``"cuda"`` (the default), ``"cpu"``, or several of them.

    Raises:
        TypeError: a device that is not a string.
        ValueError: another device, or one named twice.
        RuntimeError: from :meth:`on`: ``"cuda"`` where the library was built without CUDA. From :meth:`off`: there were
            not as many :meth:`on`.

    >>> with torch_reduce.replace_torch_sum(devices="cpu"):
    ...     torch.ones(3, 4).sum(1)
    tensor([4., 4., 4.])
    """

    _title = "replace_torch_sum"

    def __init__(self, devices: str | Iterable[str] = "cuda") -> None:
        super().__init__("sum", devices)
