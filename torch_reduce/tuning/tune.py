"""Measures which plans are the fastest on a GPU: of one call (tune), or of random problems, for all calls.

python -m torch_reduce tune                      five minutes: measures this GPU, and keeps the choice for this user
python -m torch_reduce tune --seconds 60         less sure
python -m torch_reduce tune --times FILE         keeps the times too, and fits to the times in FILE if it exists

A plan says how a sum is cut among blocks. It decides speed, and never a bit. torch_reduce chooses plans by data that
were measured on a GPU: this user's own, or those that come with the library for this GPU, or for the most similar one.
"""

import argparse
import dataclasses
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .problems import Problem, random_problem
from .race import MOST_CALLS, Race
from .tuned import Tuned

SLAB_BYTES = 1 << 30
ALIGNMENT = 512
FINITE = -0x40404041  # a mask of bits: what is left is a finite number in every dtype

_ops = torch.ops.gpureduce


def _copies(x: Tensor) -> list[Tensor]:
    """`x` and copies of it: one per call of a graph, or as many as half the free memory holds."""
    span = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    pitch = -(-span * x.element_size() // ALIGNMENT) * ALIGNMENT + ALIGNMENT
    free = torch.cuda.mem_get_info(x.device)[0] // 2
    count = min(MOST_CALLS, SLAB_BYTES // pitch, free // pitch)
    if count < 1 or x.is_conj() or x.is_neg():  # a copy would not be lazy
        return [x]
    memory = x.as_strided((span,), (1,))
    beyond = x.data_ptr() % ALIGNMENT // x.element_size()  # so that all begin as far beyond an aligned address
    copies = []
    for _ in range(count):
        flat = torch.empty(span + beyond, dtype=x.dtype, device=x.device)
        flat[beyond:].copy_(memory)
        copies.append(flat.as_strided(x.shape, x.stride(), beyond))
    return [x, *copies]


def tune_call(
    begin: str, inputs: tuple[Tensor, ...], dim: Any, keepdim: bool, dtype: torch.dtype | None, repeats: int = 5
) -> Tuned:
    """torch_reduce.tune, of plain arguments. `begin`: of the names of the function's operators."""
    arguments = (dim, keepdim)
    forced = getattr(_ops, f"{begin or '_sum'}_tuned")
    plans, remember, explain = (getattr(_ops, f"{begin}_{name}") for name in ("plans", "remember", "explain"))

    def run(views: tuple[Tensor, ...], tuning: str) -> Tensor:
        if begin == "_var_mean":
            return forced(*views, dim, 1, False, keepdim, dtype=dtype, tuning=tuning)[0]
        return forced(*views, *arguments, dtype=dtype, tuning=tuning)

    with torch.cuda.device(inputs[0].device), torch.no_grad():
        inputs = tuple(x.detach() for x in inputs)
        functions: dict[str, Callable[[tuple[Tensor, ...]], Tensor]] = {"now": lambda views: run(views, "")}
        for k in range(plans(*inputs, *arguments, dtype=dtype)):
            functions[str(k)] = lambda views, tuning=f"candidate={k}": run(views, tuning)
        copies = list(zip(*map(_copies, inputs), strict=False))  # as many as there are of each
        torch.cuda.current_stream().synchronize()
        us, wrong = Race(repeats).times(copies, functions)
        if wrong:
            raise RuntimeError(f"plans {', '.join(wrong)} have other bits: please report this, and what explain prints")
        best = min((name for name in us if name != "now"), key=us.get)
        remember(*inputs, *arguments, dtype=dtype, candidate=int(best))
        plan = explain(*inputs, *arguments, dtype=dtype)
    return Tuned(us["now"], us[best], plan, len(us) - 1)


# --- the choice for all calls -----------------------------------------------------------------------------------------


def device_facts() -> dict[str, Any]:
    """What the driver says of the current GPU, and by whose data it chooses plans."""
    return json.loads(_ops._device(torch.cuda.current_device()))


def device_text(facts: dict[str, Any]) -> str:
    """Facts as the private ops take them."""
    return ",".join(f"{name}={int(value)}" for name, value in facts.items() if not isinstance(value, str))


def candidates(problem: Problem, facts: dict[str, Any]) -> list[list[float]]:
    """What is known of each plan that is proposed for a problem on such a GPU."""
    x = problem.of(torch.empty(problem.elements(), dtype=getattr(torch, problem.dtype), device="meta"))
    result = _ops.sum(x, problem.dims).dtype
    address = problem.offset * x.element_size()
    known = _ops._candidates(x.shape, x.stride(), problem.dims, x.dtype, result, "", device_text(facts), address)
    return [[float(f"{v:.6g}") for v in row] for row in known.tolist()]


class Bench:
    """Times the plans of one problem after the other, in one slab of memory on the current GPU.

    Args:
        repeats: the rounds; the median of their times counts.
        multiprocessors: what plans are made for, where the current context has a part of the GPU; 0: all of it.
    """

    def __init__(self, repeats: int = 3, multiprocessors: int = 0) -> None:
        self.race = Race(repeats)
        self.facts = device_facts()
        self.tuning = f"multiprocessors={multiprocessors}" if multiprocessors else ""
        if multiprocessors:
            self.facts["multiprocessors"] = multiprocessors
        generator = torch.Generator(device="cuda").manual_seed(1)
        how = {"dtype": torch.int32, "device": "cuda", "generator": generator}
        bits = torch.randint(-(2**31), 2**31 - 1, (SLAB_BYTES // 4,), **how)
        self.slab = bits.bitwise_and_(FINITE).view(torch.uint8)

    def inputs(self, problem: Problem) -> list[Tensor]:
        """Copies of the problem's input: one per call of a graph, and one more, if the slab has so many."""
        pitch = -(-problem.bytes() // ALIGNMENT) * ALIGNMENT
        count = max(1, min(MOST_CALLS + 1, SLAB_BYTES // pitch))
        dtype = getattr(torch, problem.dtype)
        return [problem.of(self.slab[i * pitch : i * pitch + problem.bytes()].view(dtype)) for i in range(count)]

    def row(self, problem: Problem, forced: bool = True, torchs: bool = False) -> dict[str, Any]:
        """{"problem", "us" of ours, of torch's if wanted, and if `forced` of each plan, with their "features"}"""
        functions = {"ours": lambda x: _ops._sum_tuned(x, problem.dims, tuning=self.tuning)}
        if torchs and not problem.dtype.startswith("float8"):
            functions["torch"] = lambda x: torch.sum(x, problem.dims)
        row: dict[str, Any] = {"problem": dataclasses.asdict(problem)}
        if forced:
            row["features"] = candidates(problem, self.facts)
            for k in range(len(row["features"])):
                tuning = f"{self.tuning},candidate={k}".strip(",")
                functions[str(k)] = lambda x, t=tuning: _ops._sum_tuned(x, problem.dims, tuning=t)
        row["us"], wrong = self.race.times(self.inputs(problem), functions, unlike=("torch",))
        if wrong:
            row["wrong"] = wrong
            print(f"\nWRONG BITS: {problem}: {wrong}", file=sys.stderr)
        return row


def measure(problems: list[Problem], seconds: float, bench: Bench, **how: bool) -> list[dict[str, Any]]:
    """A row of `Bench.row` for each problem, or as many as there is time for; says on stderr how far it is."""
    rows, begin = [], time.monotonic()
    for i, problem in enumerate(problems):
        passed = time.monotonic() - begin
        if passed > seconds:
            break
        if i % 50 == 0:
            torch.cuda.empty_cache()
            print(f"\r{i} problems, {passed:.0f} of at most {seconds:.0f} s", end="", file=sys.stderr, flush=True)
        rows.append(bench.row(problem, **how))
    print(file=sys.stderr)
    return rows


def read_times(path: Path) -> dict[str, Any]:
    """What --times kept. ValueError says that a file holds something else."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        gpu, rows = kept["gpu"], kept["problems"]
        whole = isinstance(gpu["name"], str) and all(isinstance(value, (str, int)) for value in gpu.values())
        whole = whole and all(isinstance(gpu[name], int) for name in ("multiprocessors", "l2_bytes", "bandwidth"))
        if not (whole and isinstance(kept["features"], str) and all("features" in row and "us" in row for row in rows)):
            raise ValueError("a part of it is of another type")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path}: these are no times that tune kept ({reason}): measure again") from None
    return kept


def main(arguments: list[str] | None = None) -> int:
    """``python -m torch_reduce tune``; returns the exit status."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m torch_reduce tune", description=__doc__, formatter_class=form)
    parser.add_argument("--seconds", type=float, default=300, help="of measuring; the fit takes half a minute more")
    parser.add_argument("--seed", type=int, default=100, help="of the random problems")
    parser.add_argument("--times", type=Path, metavar="FILE", help="keep the times as JSON; or fit to those in it")
    parser.add_argument("--write", type=Path, metavar="FILE", help="where to write the choice, instead of keeping it")
    parser.add_argument("--alone", action="store_true", help="fit to these times alone: data to come with it")
    options = parser.parse_args(arguments)
    try:
        import lightgbm  # noqa: F401

        from . import fit
    except ImportError as error:
        print(f"tune needs NumPy and LightGBM ({error}): run `python -m pip install lightgbm`", file=sys.stderr)
        return 1
    if options.times and options.times.exists():
        try:
            kept = read_times(options.times)
        except (OSError, ValueError) as error:
            print(error, file=sys.stderr)
            return 1
    elif torch.cuda.is_available():
        rng = random.Random(options.seed)
        problems = [random_problem(rng, "mixed") for _ in range(int(options.seconds * 60) + 1)]
        rows = measure(problems, options.seconds, Bench())
        kept = {"gpu": device_facts(), "features": _ops._features(), "problems": rows}
        if options.times:
            options.times.write_text(json.dumps(kept), encoding="utf-8")
    else:
        print("tune needs an NVIDIA GPU, or the --times of one", file=sys.stderr)
        return 1
    if kept["features"] != _ops._features():
        print(f"{options.times} was measured by another version of torch_reduce: measure again", file=sys.stderr)
        return 1
    if not options.write and (not torch.cuda.is_available() or kept["gpu"]["name"] != device_facts()["name"]):
        print(f"{options.times}: of an {kept['gpu']['name']}, not of this GPU: it needs --write", file=sys.stderr)
        return 1
    if any("wrong" in row for row in kept["problems"]):
        print("plans have other bits: nothing is kept; please report this", file=sys.stderr)
        return 1
    try:
        times = fit.Times(kept["problems"], len(kept["features"].split()))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"there is no {error}" if isinstance(error, KeyError) else error
        print(f"{options.times or 'tune'}: its problems cannot be used ({reason}): measure again", file=sys.stderr)
        return 1
    print(f"{times.count} problems, {len(times.us)} plans on an {kept['gpu']['name']}")
    base, known = "", None
    print("time over the best plan's time")
    if not options.alone:
        base = _ops._known_choice(kept["gpu"]["name"], device_text(kept["gpu"]))
        known = _ops._guesses(torch.from_numpy(times.known), base).numpy()
        print(f"  by the data of an {base}: {fit.told(times.regrets(known))}")
    print(f"  by the new data, on problems left out of the fit: {fit.told(fit.cross_validated(times, known))}")
    about = f"{len(times.us)} plans of {times.count} problems"
    text = fit.text_of(fit.fit(times, base=known), kept["features"], kept["gpu"], about, base)
    if options.write:
        path = options.write
        literal = path.suffix == ".inc"  # a string for C++
        path.write_text(f'R"choice({text})choice"\n' if literal else text, encoding="utf-8")
    else:
        path = Path(_ops._choice_path(torch.cuda.current_device()))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    print(f"written: {path}, {path.stat().st_size} bytes")
    return 0
