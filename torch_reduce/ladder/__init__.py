"""The ladder: every kernel of the classic lessons on GPU reduction, from the naive one on, to run, time and take apart.

    python -m torch_reduce.ladder                                  lists the rungs; with names, says all about them
    python -m torch_reduce.ladder run                              climbs: time, GB/s, speed-up of every rung
    python -m torch_reduce.ladder run --profile                    with the hardware counters that explain each step
    python -m torch_reduce.ladder run --against-lesson             beside the figures that the lessons printed
    python -m torch_reduce.ladder run --emulate                    on the CPU, with counters: no GPU is needed
    python -m torch_reduce.ladder show neighbored                  its source
    python -m torch_reduce.ladder step neighbored --block 8        who adds what, step by step
    python -m torch_reduce.ladder try mine.cu                      your kernel: right or wrong, races, counters
    python -m torch_reduce.ladder program sum.cu                   a whole program with its main(), on the CPU
    python -m torch_reduce.ladder exercise                         the exercises; with a number, one of them

Each rung is one file of ``csrc/ladder/``; its head says what it maps to threads, what is new in it, what that removes,
what is still wrong, and where it comes from. ``docs/ladder.md`` is the course.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from torch_reduce.ladder import _emulate, _lessons
from torch_reduce.ladder._emulate import CannotEmulate, Emulated, Finding

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["CannotEmulate", "Emulated", "Finding", "Rung", "emulate", "run", "rungs", "source"]


@dataclass(frozen=True)
class Rung:
    """A rung: its head, and the variants that can be run.

    Attributes:
        number: its place, from 1 on; 0 is the CPU's.
        name: what :func:`run` calls it.
        chapter, title: which lesson it belongs to.
        file: its source, in ``csrc/ladder/``.
        threads, idea, removes, wrong, requires, source, command: the paragraphs of its head.
        moves: the counter that its idea is meant to move, as "branch efficiency up"; empty for a rung that begins anew.
        faster: what is claimed of its time: "than NAME …" or "no: …"; empty where nothing is.
        built: whether this library has it: without CUDA only the CPU's rung is there.
        device: "cuda" or "cpu".
        blocks: the block sizes that may be chosen, the default first: 64 to 1024, of the templates over the block also
            1 to 32; empty where there is no choice.
        elements_per_thread: the same for elements per thread.
        ops: of "sum", "product", "max", "min", those it knows.
        finish: how the results of the blocks become one: "again", "atomic", "all_atomic", "recursive", "library",
            "exact", or "written" for the rungs that are no reduction.
        in_place: whether it destroys its input, and gets a copy therefore.
    """

    number: int
    name: str
    chapter: int
    title: str
    file: str
    threads: str
    idea: str
    removes: str
    wrong: str
    requires: str
    source: str
    command: str
    moves: str = ""
    faster: str = ""
    built: bool = False
    device: str = "cuda"
    blocks: tuple[int, ...] = ()
    elements_per_thread: tuple[int, ...] = ()
    ops: tuple[str, ...] = ()
    finish: str = ""
    in_place: bool = False

    @property
    def before(self) -> str:
        """The rung it is compared with, as its command says; empty for one that begins anew."""
        names = self.command.split("--rungs ")[1].split()[0].split(",")
        return names[0] if len(names) > 1 else ""


@cache
def _rungs() -> tuple[Rung, ...]:
    torch = sys.modules.get("torch")  # the course alone runs without it: see __main__.py
    built = json.loads(torch.ops.gpureduce._ladder_rungs()) if torch else {}
    found = []
    for lesson in _lessons.lessons(_emulate.sources()):
        facts = built.get(lesson["name"], {})
        facts = {key: tuple(value) if isinstance(value, list) else value for key, value in facts.items()}
        found.append(Rung(**lesson, **facts, built=bool(facts)))
    return tuple(found)


def rungs() -> list[Rung]:
    """All rungs in the order of the lessons. It needs no GPU, and no library with CUDA."""
    return list(_rungs())


def run(
    name: str,
    x: Tensor,
    block: int | None = None,
    elements_per_thread: int | None = None,
    op: str = "sum",
) -> Tensor:
    """Runs one rung on ``x``: the kernel it names, or an error. The same as ``torch.ops.gpureduce.ladder_run``.

    Args:
        name: a name of :func:`rungs`.
        x: a contiguous tensor of float32, float64, int32 or int64, of any shape with n elements; on a GPU, or on the
            CPU for ``host_recursive``. It is not changed: rungs that work in place get a copy.
        block: threads per block, one of the rung's ``blocks``; the rung's default if ``None``.
        elements_per_thread: elements per thread, for ``multi_element``, ``multi_element_partials``, ``grid_stride`` and
            ``fixed_point``.
        op: "sum", or another one that the rung knows.

    Returns:
        A tensor without dimensions, of ``x``'s dtype: integers wrap, and floats are added in their own precision, as in
        the lessons, or exactly by ``fixed_point``. The sum of no elements is 0 and their product 1. The rungs of
        chapter 5 are no reductions: they return the tensor that they write, of ``x``'s shape, and do not read ``x``'s
        values.

    Raises:
        ValueError: no such rung, block, number of elements or op.
        NotImplementedError: another dtype.
        RuntimeError: ``x`` on a device that the rung does not run on, or not contiguous; the max or min of no elements;
            a rung for GPUs where the library was built without CUDA.

    >>> torch_reduce.ladder.run("host_recursive", torch.arange(5))
    tensor(10)
    """
    import torch

    return torch.ops.gpureduce.ladder_run.default(x, name, block=block, elements_per_thread=elements_per_thread, op=op)


def source(name: str) -> str:
    """The source of a rung, as it stands in ``csrc/ladder/``.

    Args:
        name: a name of :func:`rungs`.

    Raises:
        ValueError: no such rung.
    """
    for rung in rungs():
        if rung.name == name:
            return (_emulate.sources() / rung.file).read_text(encoding="utf-8")
    raise ValueError(f"rung: there is no {name!r}; torch_reduce.ladder.rungs() lists them")


def emulate(
    name: str,
    size: int = _emulate.SIZE,
    block: int | None = None,
    elements_per_thread: int | None = None,
    dtype: str = "float32",
) -> Emulated:
    """Runs one rung on the CPU, from the same source, and counts what its warps do. No GPU is needed, and no torch.

    Its threads are fibers that take turns at barriers. A C++ compiler (g++ or clang++) compiles the kernel the first
    time, in about a second; the object is kept in the user's cache.

    Args:
        name: a CUDA rung that is a kernel of its own: not ``engine``, ``cub``, ``torch_sum``.
        size: elements of the input, small integers without a pattern.
        block: threads per block, at most 1024; the rung's default if ``None``.
        elements_per_thread: for ``multi_element``, ``multi_element_partials``, ``grid_stride`` and ``fixed_point``.
        dtype: "float32", "float64", "int32" or "int64".

    Returns:
        An :class:`Emulated`: the sum and the right one, counters of the first launch, races and wrong accesses. The
        counters are those that a GPU's profiler has, and equal to them, as far as they do not depend on time.

    Raises:
        ValueError: no such rung, or one that cannot be emulated; a size or block that is not positive; another dtype.
        CannotEmulate: there is no C++ compiler.

    >>> torch_reduce.ladder.emulate("neighbored").counters["global load efficiency"]  # doctest: +SKIP
    25.02...
    """
    if name not in _emulate.rung_files():
        known = ", ".join(_emulate.rung_files())
        raise ValueError(f"rung: {name!r} cannot be emulated; possible are {known}")
    if size < 1 or not 1 <= (block or 1) <= 1024 or (elements_per_thread or 1) < 1:
        raise ValueError("size, block and elements_per_thread: must be positive, and block at most 1024")
    if dtype not in ("float32", "float64", "int32", "int64"):
        raise ValueError(f"dtype: the ladder's are float32, float64, int32 and int64, not {dtype}")
    return _emulate.emulate(name, size=size, block=block, elements=elements_per_thread, dtype=dtype)
