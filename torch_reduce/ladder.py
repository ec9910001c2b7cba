"""The ladder: every kernel of the classic lessons on GPU reduction, from the naive one on, to run and to time.

    python -m torch_reduce.ladder                                  lists the rungs; with names, says all about them
    python -m torch_reduce.ladder run                              climbs: time, GB/s, speed-up of every rung
    python -m torch_reduce.ladder run --profile                    with the hardware counters that explain each step
    python -m torch_reduce.ladder run --against-lesson             beside the figures that the lessons printed
    python -m torch_reduce.ladder run --rungs neighbored,interleaved --size 2^26 --dtype int32 --block 128

Each rung is one file of ``csrc/ladder/``; its head says what it maps to threads, what is new in it, what that removes,
what is still wrong, and where it comes from. ``docs/ladder.md`` is the course.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

import torch_reduce  # noqa: F401  (loads the operators)

__all__ = ["Rung", "run", "rungs"]


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
        finish: how the results of the blocks become one: "again", "atomic", "all_atomic", "recursive", "library", or
            "written" for the rungs that are no reduction.
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
    lessons = json.loads(torch.ops.gpureduce._ladder_lessons())
    built = json.loads(torch.ops.gpureduce._ladder_rungs())
    found = []
    for lesson in sorted(lessons, key=lambda lesson: lesson["number"]):
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
        elements_per_thread: elements per thread, for ``multi_element`` and ``grid_stride``.
        op: "sum", or another one that the rung knows.

    Returns:
        A tensor without dimensions, of ``x``'s dtype: integers wrap, and floats are added in their own precision, as in
        the lessons. The sum of no elements is 0 and their product 1. The rungs of chapter 5 are no reductions: they
        return the tensor that they write, of ``x``'s shape, and do not read ``x``'s values.

    Raises:
        ValueError: no such rung, block, number of elements or op.
        NotImplementedError: another dtype.
        RuntimeError: ``x`` on a device that the rung does not run on, or not contiguous; the max or min of no elements;
            a rung for GPUs where the library was built without CUDA.

    >>> torch_reduce.ladder.run("host_recursive", torch.arange(5))
    tensor(10)
    """
    return torch.ops.gpureduce.ladder_run.default(x, name, block=block, elements_per_thread=elements_per_thread, op=op)


# --- the program ------------------------------------------------------------------------------------------------------


def _number(text: str) -> int:
    """16777216, 2^24 or 2**24."""
    base, _, exponent = text.replace("**", "^").partition("^")
    if (number := int(base) ** int(exponent or 1)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


def _names(text: str) -> list[str]:
    known = [rung.name for rung in rungs()]
    names = known if text == "all" else text.split(",")
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"no rung {', '.join(unknown)}: python -m torch_reduce.ladder lists them")
    return names


def _list(names: list[str]) -> None:
    chapter = None
    for rung in rungs():
        if names and rung.name in names:
            print(f"{rung.number} {rung.name}  (csrc/ladder/{rung.file})")
            for field in ("threads", "idea", "removes", "wrong", "requires", "source", "moves", "faster", "command"):
                if text := getattr(rung, field):
                    print(f"  {field:<9} {text}")
        elif not names:
            if rung.chapter != chapter:
                chapter = rung.chapter
                print(f"\nChapter {chapter}: {rung.title}")
            missing = "" if rung.built else "  (not built: it needs CUDA)"
            print(f"{rung.number:4} {rung.name:<26} {rung.idea}{missing}")
            print(f"{'':31} {rung.source}")


def main(arguments: list[str] | None = None) -> int:
    """``python -m torch_reduce.ladder``; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_reduce.ladder", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(dest="action", metavar="{list,run}")
    shown = dict(formatter_class=argparse.RawDescriptionHelpFormatter)
    example = "example:\n  python -m torch_reduce.ladder list smem,warp_shuffle"
    listing = actions.add_parser("list", help="list the rungs, or say all about some", epilog=example, **shown)
    listing.add_argument("names", nargs="?", type=_names, default=[], help="names, with commas")
    example = "example:\n  python -m torch_reduce.ladder run --rungs smem,smem_unroll4 --size 2^26 --profile"
    climbing = actions.add_parser("run", help="time the rungs", epilog=example, **shown)
    climbing.add_argument("--profile", action="store_true", help="read the hardware counters too, through ncu")
    climbing.add_argument("--against-lesson", action="store_true", help="beside the printed figures; in int32")
    climbing.add_argument("--save", metavar="FILE", help="write the results to FILE as JSON")
    profiled = actions.add_parser("profiled")  # what --profile starts under ncu
    for action in (climbing, profiled):
        action.add_argument("--size", type=_number, help="elements: 2^24, and 2^25 in chapter 5, unless told")
        action.add_argument("--dtype", choices=["float32", "float64", "int32", "int64"], default=None)
        action.add_argument("--rungs", type=_names, default=None, metavar="NAMES", help="with commas; default: all")
        action.add_argument("--block", type=int, help="threads per block")
        action.add_argument("--elements", type=int, help="elements per thread, if the rung has a choice")
        action.add_argument("--repeats", type=int, default=11, help="the median of so many runs counts")
    options = parser.parse_args(arguments)
    if options.action in (None, "list"):
        _list(getattr(options, "names", []))
        return 0
    from torch_reduce import _climb

    try:
        return _climb.main(options)
    except ValueError as error:
        parser.error(str(error).splitlines()[0])


if __name__ == "__main__":
    sys.exit(main())
