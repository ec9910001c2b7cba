"""Finds and loads the library of operators, once it is known to fit the torch that is there."""

import json
from collections.abc import Callable, Iterable
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

HERE = Path(__file__).parent
LIBRARY = HERE / "libtorch_reduce.so"
FACTS = HERE / "_build.json"


@cache
def build_facts() -> dict[str, Any]:
    """The torch, CUDA, architectures, nvcc and compiler that the library was built with, as setup.py wrote them."""
    return json.loads(FACTS.read_text())


def load() -> None:
    """Registers ``torch.ops.gpureduce``, or raises an ImportError that says what to do.

    A library built for another torch would fail with an undefined symbol, or not at all and then crash.
    """
    if not (LIBRARY.exists() and FACTS.exists()):
        raise ImportError(
            f"torch_reduce has no library in {HERE}: run `make build` in its source tree, or "
            "`pip install --no-build-isolation .` there."
        )
    built = build_facts()
    release = torch.__version__.split("+")[0]
    wrong_cuda = built["cuda"] is not None and _major(built["cuda"]) != _major(torch.version.cuda)
    if release != built["torch"] or wrong_cuda:
        raise ImportError(
            f"torch_reduce was built for torch {built['torch']} ({_cuda(built['cuda'])}), but this is torch {release} "
            f"({_cuda(torch.version.cuda)}): install torch {built['torch']}, or build torch_reduce for this one with "
            "`pip install --no-build-isolation .` in its source tree."
        )
    try:
        torch.ops.load_library(LIBRARY)  # a second time, as in importlib.reload, changes nothing
    except OSError as error:  # it was built on a system with newer libraries, or for another processor
        raise ImportError(
            f"torch_reduce's library cannot be loaded on this system ({error}): build torch_reduce here with "
            "`pip install --no-build-isolation .` in its source tree."
        ) from error


def entry(function: str = "sum") -> Callable[..., Any] | None:
    """A function of csrc/torch/python/entry.cpp, if that was built: the short way from Python to an op.

    It saves time, and takes warnings to Python's filters. Without it they go to stderr, as warnings of torch.ops do.
    """
    try:
        return getattr(import_module("torch_reduce._entry"), function)
    except ImportError:
        return None


def document(functions: Iterable[Callable[..., Any]]) -> None:
    """Gives the operators the docstrings of the functions that call them: `torch.ops.gpureduce.sum.__doc__`."""
    prefixes = {"vector_norm": "linalg_", "powsum": "linalg_"}
    for function in functions:
        name = prefixes.get(function.__name__, "") + function.__name__
        for operator in (name, f"exact_{name}"):  # the latter with exact=True
            if hasattr(torch.ops.gpureduce, operator):
                getattr(torch.ops.gpureduce, operator).__doc__ = function.__doc__


def warning(overload: Callable[..., Any]) -> Callable[..., Any]:
    """What calls an overload so that its warnings reach Python's filters, as those of torch's functions do."""
    if is_dynamo_compiling() or not (call := entry("call")):
        return overload
    return partial(call, overload)


def _major(version: str | None) -> str | None:
    return version and version.split(".")[0]


def _cuda(version: str | None) -> str:
    return f"CUDA {version}" if version else "no CUDA"
