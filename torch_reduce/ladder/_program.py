"""The program: ``python -m torch_reduce.ladder``, with its actions and options."""

import argparse
import contextlib
import os
import sys
import textwrap
from pathlib import Path

from torch_reduce.ladder import _emulate, _exercise, _figures, _order, _step, _try, _whole, rungs, source

DTYPES = ["float32", "float64", "int32", "int64"]
EXAMPLES = {
    "list": "list smem,warp_shuffle",
    "run": "run --rungs smem,smem_unroll4 --size 2^26 --profile\n  {} run --emulate",
    "show": "show neighbored",
    "step": "step neighbored --block 8\n  {} step interleaved --block 8 --svg interleaved.svg",
    "try": "try mine.cu",
    "program": "program torch_reduce/ladder/programs/sum.cu",
    "exercise": "exercise 3\n  {} exercise 3 mended.cu",
}
CALLED = _emulate.COMMAND


def _number(text: str) -> int:
    """16777216, 2^24 or 2**24."""
    base, _, exponent = text.replace("**", "^").partition("^")
    if (number := int(base) ** int(exponent or 1)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


def _shape(text: str) -> tuple[int, int]:
    """256 threads in a row of one dimension, or 32x8: 8 rows of 32. The threads, and how many are in a row, or 0."""
    numbers = [_number(each) for each in text.lower().split("x")]
    if len(numbers) > 2:
        raise argparse.ArgumentTypeError(f"{text}: a block has one dimension or two here, such as 32x8")
    return (numbers[0], 0) if len(numbers) == 1 else (numbers[0] * numbers[1], numbers[0])


_number.__name__ = _shape.__name__ = "number"  # what argparse calls them


def _name(text: str) -> str:
    """A rung's name, also of its number; other text is as it is."""
    return next((rung.name for rung in rungs() if text == str(rung.number)), text)


def _names(text: str) -> list[str]:
    known = [rung.name for rung in rungs()]
    names = known if text == "all" else [_name(each) for each in text.split(",")]
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"no rung {', '.join(unknown)}: {CALLED} lists them")
    return names


def _judge(options: argparse.Namespace) -> int:
    """``try FILE``."""
    kernel = _try.Kernel.of(options.file, options.kernel, options.dtype, options.op)
    blocks = _order.BLOCKS if options.order else _try.BLOCKS
    if options.order and (kernel.op != "sum" or kernel.dtype not in ("float32", "float64")):
        raise ValueError("--order: it compares sums of floats; the others have the same bits in every order")
    if options.block:
        threads, kernel.width = options.block
        blocks = (threads,)
    program = kernel.build()
    verdict = _try.judge(kernel, program, options.elements, blocks)
    print("\n".join(_try.report(verdict)), flush=True)
    right = verdict.right
    if options.order and right:
        partials = verdict.how != "one"
        order = _order.compare(kernel, program, verdict.elements, partials, blocks[0])
        print("\n".join(_order.report(order, partials)), flush=True)
        right = order.right
    elif options.order:
        print("order: the sums have to be right first")
    sample = verdict.sample
    if sample and not sample.fault:
        print(f"\nrequests of warps, line by line ({sample.size:,} elements, blocks of {sample.block}):")
        print("\n".join(_try.line_table(verdict)))
        found = _try.nearest(sample, _emulate.Progress())
        (_, name, other), (_, second, another) = found[:2]
        print(f"\nnearest rung: {name}; then {second}")
        columns = list(_figures.COLUMNS) + ["loads", "shared loads", "shuffles", "atomics"]
        for counter in columns:
            values = [_figures.cell(counter, each.counters) for each in (sample, other, another)]
            print(f"  {counter:<24}" + "".join(f"{value:>22}" for value in values))
        print(_try.time_on_gpu(kernel, verdict.elements, "multi_element" if options.order else None))
    print("right" if right else "not right yet", file=sys.stdout)
    return 0 if right else 1


def _list(names: list[str]) -> int:
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
            missing = "" if rung.built or _emulate.ALONE else "  (not built: it needs CUDA)"
            print(f"{rung.number:4} {rung.name}{missing}")
            for text in (rung.idea, rung.source):
                print(textwrap.fill(text, 100, initial_indent=" " * 9, subsequent_indent=" " * 9))
    return 0


def _gpu() -> bool:
    torch = sys.modules.get("torch")
    return bool(torch and torch.cuda.is_available())


def _run(options: argparse.Namespace) -> int:
    if not options.emulate and not _gpu() and options.action == "run":
        wanted = options.rungs or list(_emulate.rung_files())
        if any(name in _emulate.rung_files() for name in wanted):
            print(
                "There is no NVIDIA GPU here, so the rungs are emulated on the CPU: counters, but no times.", flush=True
            )
            options.emulate = True
    if options.emulate or _emulate.ALONE:
        return _emulate_rungs(options)
    from torch_reduce.ladder import _climb

    return _climb.main(options)


# --- emulated rungs ---------------------------------------------------------------------------------------------------


def _emulate_rungs(options: argparse.Namespace) -> int:
    known = {rung.name: rung for rung in rungs()}
    wanted = options.rungs or list(_emulate.rung_files())
    names = [name for name in wanted if name in _emulate.rung_files()]
    if left := [name for name in wanted if name not in names]:
        print(f"not emulated: {', '.join(left)} (no kernel of the ladder's own)", file=sys.stderr)
        if not names:
            return 1
    for option, given in (("--profile", options.profile), ("--save", options.save)):
        if given:
            print(f"{option} is for a GPU: what is emulated has its counters always", file=sys.stderr)
    if (options.size or 0) > _emulate.MOST:
        raise ValueError(f"--size: emulated are at most {_emulate.MOST:,} elements; every block does the same")
    size, dtype = options.size or _emulate.SIZE, options.dtype or "float32"
    program = _emulate.build_rungs(names, _emulate.Progress())
    print(f"emulated: {size:,} elements of {dtype}; counters of the first launch")
    for line in (0, 1):
        head = f"{'rung':<26} {'block':>5}  {'result':<6}" if line else f"{'':<26} {'':>5}  {'':<6}"
        print(head + "".join(f"{texts[line]:>15}" for texts in _figures.COLUMNS.values()))
    wrong, chapter = 0, None
    for name in names:
        rung = known[name]
        if rung.chapter != chapter:
            chapter = rung.chapter
            print(f"Chapter {chapter}: {rung.title}")
        found = _emulate.emulate(
            name, program, size=size, block=options.block, elements=options.elements, dtype=options.dtype
        )
        result = "right" if found.right else "WRONG"
        if not found.right and options.block and options.block not in found.blocks:
            print(f"{name:<26} {options.block:>5}  it takes blocks of {', '.join(map(str, found.blocks))}")
            wrong += 1
            continue
        cells = "".join(f"{_figures.cell(counter, found.counters):>15}" for counter in _figures.COLUMNS)
        print(f"{name:<26} {found.block:>5}  {result:<6}{cells}", flush=True)
        for finding in found.findings:
            print(f"    {finding}")
        wrong += not found.right
    if options.against_lesson:
        _print_figures(names, program, size, options)
    return 1 if wrong else 0


def _print_figures(names: list[str], program: Path, size: int, options: argparse.Namespace) -> None:
    steps = []
    for name in names:
        found = _emulate.emulate(name, program, size=size, block=options.block, dtype="int32")
        steps.append({"name": name, "counters": found.counters})
    print("\nWhat nvprof said in the book's chapter 3, and the emulator here, on int32:")
    rows = [row for row in _figures.profiled_then(steps) if row[3] != "–"]
    print("\n".join(_figures.profiled_table(rows)))


# --- the options ------------------------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """All actions with their options."""
    package = sys.modules["torch_reduce.ladder"]
    shown = dict(formatter_class=argparse.RawDescriptionHelpFormatter)
    about = package.__doc__.replace("python -m torch_reduce.ladder", CALLED)
    whole = argparse.ArgumentParser(prog=CALLED, description=about, **shown)
    actions = whole.add_subparsers(dest="action", metavar="{" + ",".join(EXAMPLES) + "}")

    def action(name, text):
        example = "example:\n  {} ".replace("{}", CALLED) + EXAMPLES[name].replace("{}", CALLED)
        return actions.add_parser(name, help=text, epilog=example, **shown)

    listing = action("list", "list the rungs, or say all about some")
    listing.add_argument("names", nargs="?", type=_names, default=[], help="names or numbers, with commas")

    climbing = action("run", "time the rungs, or emulate them where there is no GPU")
    climbing.add_argument("--emulate", action="store_true", help="on the CPU, with counters; the default without a GPU")
    climbing.add_argument("--profile", action="store_true", help="read the hardware counters too, through ncu")
    climbing.add_argument("--against-lesson", action="store_true", help="beside the printed figures; in int32")
    climbing.add_argument("--save", metavar="FILE", help="write the results to FILE as JSON")
    profiled = actions.add_parser("profiled")  # what --profile starts under ncu
    profiled.set_defaults(emulate=False)
    for each in (climbing, profiled):
        each.add_argument("--size", type=_number, help="elements: 2^24, and 2^25 in chapter 5; emulated 2^16")
        each.add_argument("--dtype", choices=DTYPES, default=None)
        each.add_argument("--rungs", type=_names, default=None, metavar="NAMES", help="with commas; default: all")
        each.add_argument("--block", type=_number, help="threads per block")
        each.add_argument("--elements", type=_number, help="elements per thread, if the rung has a choice")
        each.add_argument("--repeats", type=_number, default=11, help="the median of so many runs counts")

    showing = action("show", "print a rung's source")
    showing.add_argument("name", type=_name, help="a rung, or its number")

    stepping = action("step", "who adds what, step by step, from the kernel's own accesses")
    stepping.add_argument("name", type=_name, help="a rung, its number, or a file with a kernel")
    stepping.add_argument("--block", type=_number, help="threads per block: 8, or the fewest that the rung needs")
    stepping.add_argument("--elements", type=_number, help="elements per thread, if the rung has a choice")
    stepping.add_argument("--svg", metavar="FILE", help="draw it, too")

    trying = action("try", "check a kernel of your own on the CPU")
    trying.add_argument("file", type=Path)
    trying.add_argument("--kernel", help="which one, where the file has several")
    trying.add_argument("--block", type=_shape, help="threads per block, 256 or 32x8: this one alone")
    trying.add_argument("--elements", type=_number, help="elements per thread; found out unless told")
    trying.add_argument("--dtype", choices=DTYPES, help="of a template's elements; float32 unless told")
    trying.add_argument("--op", choices=_try.OPS, default="sum", help="what the kernel finds; count: of what is not 0")

    whole_program = action("program", "compile a whole CUDA program, with its main(), and run it on the CPU")
    whole_program.add_argument("file", type=Path)
    whole_program.add_argument("arguments", nargs="*", help="for the program")
    trying.add_argument("--order", action="store_true", help="compare the bits and the order of additions, too")

    exercising = action("exercise", "list the exercises, show one, or check an answer")
    exercising.add_argument("number", nargs="?", type=int)
    exercising.add_argument("answer", nargs="?", help="a number, a word, lines, or a file, as the exercise asks")
    exercising.add_argument("--answer", "--solution", dest="solution", action="store_true", help="show the answer")
    exercising.add_argument("--mine", action="store_true", help="show which ones you have done")
    return whole


def main(arguments: list[str] | None = None) -> int:
    """``python -m torch_reduce.ladder``; returns the exit status."""
    whole = parser()
    options = whole.parse_args(arguments)
    do = {
        None: lambda: _list([]),
        "list": lambda: _list(options.names),
        "run": lambda: _run(options),
        "profiled": lambda: _run(options),
        "show": lambda: print(source(options.name), end="") or 0,
        "step": lambda: _step.main(options),
        "try": lambda: _judge(options),
        "program": lambda: _whole.main(options),
        "exercise": lambda: _exercise.main(options),
    }
    try:
        return do[options.action]()
    except BrokenPipeError:  # of `... | head`
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:  # said without the list of options, in which the sentence would be lost
        missing = isinstance(error, FileNotFoundError) and error.filename
        said = f"there is no file {error.filename}" if missing else str(error).splitlines()[0]
        whole.exit(2, f"error: {said}\n")
    except _emulate.CannotEmulate as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped" if sys.stderr.isatty() else "stopped", file=sys.stderr)
        return 130
