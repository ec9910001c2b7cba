"""Finds and loads the libraries: the core, and the glue that fits the torch that is there."""

import json
import re
import sys
from collections.abc import Callable, Iterable
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

try:
    import torch
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    said = "torch_reduce needs torch. The course needs none: in a clone, write `python3 torch_reduce/ladder`."
    raise ModuleNotFoundError(said, name="torch") from None
from torch.compiler import is_dynamo_compiling

from . import _arguments

HERE = Path(__file__).parent
CORE = HERE / "libtorch_reduce_core.so"
FACTS = HERE / "_build.json"
RELEASE = torch.__version__.split("+")[0]
MINOR = "_".join(RELEASE.split(".")[:2])
GLUE = HERE / f"libtorch_reduce_{MINOR}.so"


@cache
def build_facts() -> dict[str, Any]:
    """The torches, CUDA, architectures, nvcc and compiler that this was built with, as setup.py wrote them.

    Raises:
        ImportError: the file is not what setup.py writes.
    """
    try:
        facts = json.loads(FACTS.read_text(encoding="utf-8"))
        texts = [facts["compiler"], *facts["torch"], *facts["architectures"]]
        texts += [facts[name] for name in ("cuda", "nvcc") if facts[name] is not None]
        if not facts["torch"] or not all(isinstance(text, str) for text in texts):
            raise ValueError("a fact is no text")
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise ImportError(
            f"torch_reduce: {FACTS}, which says what was built, cannot be read ({reason}): build again by "
            "`make clean build`, or install torch_reduce again."
        ) from None
    return facts


def fits(built: str, release: str) -> bool:
    """Whether a glue that was built for one release of torch serves another one.

    torch keeps its C++ interface from a minor version's first final release on.
    """
    minors = [re.match(r"(\d+\.\d+)[.0-9]*$", version) for version in (built, release)]
    return built == release or bool(minors[0] and minors[1] and minors[0][1] == minors[1][1])


def serving() -> str | None:
    """The release that the glue for this torch was built for. None: no glue serves it."""
    return next((built for built in build_facts()["torch"] if fits(built, RELEASE)), None)


def load() -> None:
    """Registers ``torch.ops.gpureduce``, or raises an ImportError that says what to do.

    A library built for another torch would fail with an undefined symbol, or not at all and then crash.
    """
    if not (CORE.exists() and FACTS.exists()):
        raise ImportError(
            f"torch_reduce has no library in {HERE}: run `make build` in its source tree, or "
            "`pip install --no-build-isolation .` there."
        )
    built = build_facts()
    wrong_cuda = built["cuda"] is not None and _major(built["cuda"]) != _major(torch.version.cuda)
    if serving() is None or wrong_cuda:
        *others, last = built["torch"]
        releases = f"{', '.join(others)} or {last}" if others else last
        raise ImportError(
            f"torch_reduce was built for torch {releases} ({_cuda(built['cuda'])}), but this is torch {RELEASE} "
            f"({_cuda(torch.version.cuda)}): install torch {releases}, or build torch_reduce for this one with "
            "`pip install --no-build-isolation .` in its source tree."
        )
    try:
        torch.ops.load_library(GLUE)  # a second time, as in importlib.reload, changes nothing
    except OSError as error:  # it was built on a system with newer libraries, or for another processor
        raise ImportError(
            f"torch_reduce's libraries cannot be loaded on this system ({error}): build torch_reduce here with "
            "`pip install --no-build-isolation .` in its source tree."
        ) from error


@cache
def _entry() -> ModuleType | None:
    spec = spec_from_file_location("torch_reduce._entry", HERE / f"_entry_{MINOR}.so")
    try:
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError:
        return None
    return sys.modules.setdefault(spec.name, module)


def entry(function: str = "sum") -> Callable[..., Any] | None:
    """A function of csrc/core/torch/python/entry.cpp, if that was built: the short way from Python to an op.

    It saves time, and takes warnings to Python's filters. Without it they go to stderr, as warnings of torch.ops do.
    """
    return getattr(_entry(), function, None)


def document(functions: Iterable[Callable[..., Any]]) -> None:
    """Gives the operators the docstrings of the functions that call them: `torch.ops.gpureduce.sum.__doc__`."""
    prefixes = {"vector_norm": "linalg_", "powsum": "linalg_"}
    for function in functions:
        name = prefixes.get(function.__name__, "") + function.__name__
        for operator in (name, f"exact_{name}"):  # the latter with exact=True
            if hasattr(torch.ops.gpureduce, operator):
                getattr(torch.ops.gpureduce, operator).__doc__ = function.__doc__


def call(
    function: str, overload: Callable[..., Any], *args: Any, others: dict[str, str] | None = None, **named: Any
) -> Any:
    """Calls an overload for a function: its warnings reach Python's filters, and its errors have the function's name.

    ``others``: the function's arguments by the names that the operator has for them.
    """
    try:
        if is_dynamo_compiling() or not (caller := entry("call")):
            return overload(*args, **named)
        return caller(overload, *args, **named)
    except Exception as error:
        raise _arguments.named(error, function, (*args, *named.values()), **(others or _INPUT)) from None


_INPUT = {"self": "input"}


def _major(version: str | None) -> str | None:
    return version and version.split(".")[0]


def _cuda(version: str | None) -> str:
    return f"CUDA {version}" if version else "no CUDA"
