"""Functions that torch.compile is to run between its graphs, and not in them."""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

_REASON = "ranks exchange messages between compiled graphs, not in them"


def between_graphs(function: Callable[..., Any]) -> Callable[..., Any]:
    """As torch.compiler.disable, but without importing the compiler, which takes long, before it is in use."""

    @functools.cache
    def disabled() -> Callable[..., Any]:
        return torch.compiler.disable(function, reason=_REASON)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        return (disabled() if "torch._dynamo" in sys.modules else function)(*args, **kwargs)

    called._torchdynamo_disable, called._torchdynamo_disable_msg = True, _REASON  # as torch marks its own
    return called
