"""Climbing the ladder: times, the live table, the counters, and what they say. For ladder.py and bench/ladder.py."""

import csv
import datetime
import itertools
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import torch

from torch_reduce import ladder
from torch_reduce.ladder._figures import COUNTERS, cell_text, profiled_table, profiled_then, value_text

SIZE, SIZE_WRITTEN = 1 << 24, 1 << 25  # elements, as in the lessons; the second one for the rungs that only write
HOST_REPEATS = 3

# The times that the lessons printed, in seconds; the book's are of one kernel, without what adds the blocks' sums.
BOOK = {
    "neighbored": 0.011722,
    "neighbored_less": 0.009321,
    "interleaved": 0.006967,
    "unrolling2": 0.003430,
    "unrolling4": 0.001829,
    "unrolling8": 0.001422,
    "unroll_warps8": 0.001355,
    "complete_unroll_warps8": 0.001280,
    "complete_unroll_template": 0.001253,
}
# What the same output prints before them: (seconds, the rung to hold it against, what that rung is to it).
BOOK_BEFORE = {
    "cpu reduce": (0.029138, "host_recursive", "the same recursion on the CPU"),
    "warm-up": (0.011745, "neighbored", "no warm-up is timed by itself"),
}
BOOK_SHARED = {"gmem": 0.0021206, "smem": 0.0011536}
SLIDES = {
    "interleaved_modulo": 0.008054,
    "interleaved_strided": 0.003456,
    "sequential_addressing": 0.001722,
    "first_add_on_load": 0.000965,
    "unroll_last_warp": 0.000536,
    "unroll_template": 0.000381,
    "grid_stride": 0.000268,
}
LESSONS = {  # what they were measured on
    "Chapter 1: the book's Tesla M2070 (Fermi, 2011), 16M ints": BOOK,
    "Chapter 2: the book's Tesla K40c (Kepler, 2013), 16M ints, blocks of 128": BOOK_SHARED,
    "Chapter 3: the slides' G80 (2006), 4M ints": SLIDES,
}
DURATION, WARPS = "gpu__time_duration.sum", "smsp__warps_launched.sum"
MARKER = "spin_kernel"  # what stands before each run in ncu's list: see csrc/ladder/ops.cpp

NO_NCU = (
    "ncu was not found, so there are no counters. It is Nsight Compute, and comes with the CUDA toolkit (its package "
    "is cuda-nsight-compute-<version>), or alone from https://developer.nvidia.com/nsight-compute; put it on the PATH."
)


# --- times ------------------------------------------------------------------------------------------------------------


def make_input(rung, device, size=None, dtype=torch.float32):
    """The input that a rung is timed on, (elements,): small integers in random order, so that no sum overflows much."""
    n = size or (SIZE_WRITTEN if rung.finish == "written" else SIZE)
    generator = torch.Generator(device).manual_seed(0)
    return torch.randint(0, 256, (n,), device=device, generator=generator, dtype=torch.int32).to(dtype)


def measure(name, x, repeats, block=None, elements_per_thread=None, first_pass=False):
    """Median and quartiles, in microseconds, of a rung on x; with `first_pass`, of the lesson's kernel alone."""
    times = torch.ops.gpureduce._ladder_time(
        x, name, repeats, block=block, elements_per_thread=elements_per_thread, first_pass=first_pass
    ).tolist()
    low, high = min(times), max(times)
    if len(times) >= 4:
        low, _, high = statistics.quantiles(times, n=4)
    return {"us": statistics.median(times), "low": low, "high": high, "repeats": len(times)}


def ceiling(x, repeats):
    """The rate at which a kernel that computes nothing reads x: the best of several."""
    nbytes = x.numel() * x.element_size()
    built = json.loads(torch.ops.gpureduce._ladder_rungs())
    found = [
        measure(name, x, repeats, block, loads) | {"kernel": f"{name}, {loads} loads, blocks of {block}"}
        for name in sorted(built)
        if name.startswith("ceiling")
        for block in built[name]["blocks"]
        for loads in built[name]["elements_per_thread"]
    ]
    best = min(found, key=lambda f: f["us"])
    return best | {"bytes": nbytes, "gbps": nbytes / best["us"] / 1e3}


def roundings(rung, n, block=None, elements_per_thread=None):
    """How often an element's value can be rounded on its way into the sum of n > 0 elements: the rung's order."""
    if rung.finish == "recursive":
        return math.ceil(math.log2(n))
    if rung.finish == "library":
        return min(n, 1024)  # a generous bound: not every library documents its own
    if rung.finish == "all_atomic":
        return n
    if rung.finish == "exact":
        return 1
    block, elements = block or rung.blocks[0], elements_per_thread or rung.elements_per_thread[0]
    in_block = elements - 1 + round(math.log2(block))
    blocks = math.ceil(n / (block * elements))
    if rung.finish == "atomic":
        return in_block + blocks
    return in_block + (roundings(rung, blocks, block, elements) if blocks > 1 else 0)


def error_bound(count, dtype):
    """The relative error of a sum of positive numbers that are rounded `count` times; infinite if nothing is known."""
    u = torch.finfo(dtype).eps / 2
    return count * u / (1 - count * u) if count * u < 1 else math.inf


class RungError(RuntimeError):
    """A rung whose result is wrong is not timed."""


def check(rung, x, block=None, elements_per_thread=None):
    """Compares the rung's result with torch's, before it is timed. The elements of x are not negative."""
    got = ladder.run(rung.name, x, block, elements_per_thread)
    if rung.finish == "written":
        right = bool(((got == 100) | (got == 200)).all())
    elif x.is_floating_point():
        exact = float(x.sum(dtype=torch.float64))
        bound = error_bound(roundings(rung, x.numel(), block, elements_per_thread), x.dtype)
        right = abs(float(got) - exact) <= bound * exact
    else:
        right = bool(got == x.sum(dtype=torch.int64).to(x.dtype))
    if not right:
        raise RungError(f"{rung.name}: the result {got} is wrong")


def climb(rungs, size, dtype, repeats, block=None, elements=None, on_step=lambda step: None):
    """Times the rungs one after the other; returns their steps. `on_step` gets each as soon as it is there."""
    steps, inputs = [], {}
    for rung in rungs:
        key = (rung.device, rung.finish == "written")
        if key not in inputs:
            inputs[key] = make_input(rung, rung.device, size, dtype)
        x = inputs[key]
        chosen_block = block if rung.blocks else None
        chosen_elements = elements if len(rung.elements_per_thread) > 1 else None
        check(rung, x, chosen_block, chosen_elements)
        count = repeats if rung.device == "cuda" else min(repeats, HOST_REPEATS)
        times = measure(rung.name, x, count, chosen_block, chosen_elements)
        kernel = times
        if rung.finish == "again":
            kernel = measure(rung.name, x, count, chosen_block, chosen_elements, first_pass=True)
        nbytes = x.numel() * x.element_size()
        step = {
            "name": rung.name,
            **times,
            **({} if rung.finish == "library" else {"kernel": kernel}),
            "elements": x.numel(),
            "bytes": nbytes,
            "gbps": nbytes / kernel["us"] / 1e3,
            "reads": rung.device == "cuda" and rung.finish != "written",
            "block": chosen_block or (rung.blocks[0] if rung.blocks else None),
            "elements_per_thread": chosen_elements or (rung.elements_per_thread or [None])[0],
        }
        steps.append(step)
        on_step(step)
    return steps


def kernel_us(step):
    """Microseconds of the lesson's kernel, by which rungs are compared: the first pass, without those that join the
    blocks' results; the whole where that is one kernel, a library's, or was not timed in parts."""
    return step.get("kernel", step)["us"]


def compared(step, steps):
    """The step that this one is compared with, or None."""
    before = {rung.name: rung.before for rung in ladder.rungs()}[step["name"]]
    return next((other for other in steps if other["name"] == before), None)


def base(step, steps):
    """The step that cumulative speed-ups count from: neighbored. Chapter 5 sums nothing: there it is the first of those
    that are compared with each other, one after the other."""
    if {rung.name: rung.chapter for rung in ladder.rungs()}[step["name"]] == 5:
        before = compared(step, steps)
        return base(before, steps) if before else step
    return next((other for other in steps if other["name"] == "neighbored"), None)


# --- the table --------------------------------------------------------------------------------------------------------

BAR = 24


class Table:
    """Printed row by row, while the rungs run."""

    def __init__(self, rungs, ceiling_gbps, stream=None):
        self.rungs = {rung.name: rung for rung in rungs}
        self.ceiling, self.stream, self.steps = ceiling_gbps, stream or sys.stdout, []
        self.chapter, self.begin = None, time.monotonic()
        head = f"{'rung':<29} {'kernel µs':>10} {'sum µs':>10} {'GB/s':>8} {'ceiling':>8} {'step':>7} {'total':>8}"
        print(head, file=self.stream)
        self._progress()

    def _progress(self):
        """What runs now, and how long the rest takes about, on a terminal alone."""
        todo = [name for name in self.rungs if name not in {step["name"] for step in self.steps}]
        if self.stream.isatty():
            text = f"{len(self.steps)}/{len(self.rungs)} {todo[0]} …" if todo else ""
            if todo and self.steps:
                left = (time.monotonic() - self.begin) * len(todo) / len(self.steps)
                text += f" about {left:.0f} s left"
            print(f"\r{text:<60}\r", end="", file=self.stream, flush=True)

    def add(self, step):
        self.steps.append(step)
        rung = self.rungs[step["name"]]
        if rung.chapter != self.chapter:
            self.chapter = rung.chapter
            print(f"{'':<60}\r" * self.stream.isatty() + f"Chapter {rung.chapter}: {rung.title}", file=self.stream)
        print(row_text(rung, step, self.steps, self.ceiling), file=self.stream, flush=True)
        self._progress()


def share(step, ceiling_gbps):
    """Of the read ceiling; None for what does not read on the GPU."""
    return step["gbps"] / ceiling_gbps if step["reads"] and ceiling_gbps else None


def row_text(rung, step, steps, ceiling_gbps):
    before, first, part = compared(step, steps), base(step, steps), share(step, ceiling_gbps)
    percent = "–" if part is None else f"{part:.1%}"
    kernel = f"{step['kernel']['us']:,.2f}" if "kernel" in step else "–"
    faster = f"{kernel_us(before) / kernel_us(step):.2f}×" if before else "–"
    total = f"{first['us'] / step['us']:.2f}×" if first else "–"
    bar = "█" * round(BAR * min(1, part)) if part else ""
    return (
        f"{rung.number:>3} {rung.name:<25} {kernel:>10} {step['us']:>10,.2f} {step['gbps']:>8,.1f} {percent:>8} "
        f"{faster:>7} {total:>8}  {bar}"
    ).rstrip()


# --- counters ---------------------------------------------------------------------------------------------------------


class NoCounters(RuntimeError):
    """Why there are none."""


def find_ncu():
    """ncu's path, or None."""
    folders = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")] + ["/usr/local/cuda"]
    places = [shutil.which("ncu")] + [shutil.which("ncu", path=f"{folder}/bin") for folder in folders if folder]
    return next((place for place in places if place), None)


def profile(names, size=None, dtype="float32", block=None, elements=None):
    """{rung: {counter: value}} through ncu: of each rung's longest kernel, cache cold. NoCounters says why not."""
    ncu = find_ncu()
    if ncu is None:
        raise NoCounters(NO_NCU)
    metrics = [metric for wanted, *_ in COUNTERS.values() for metric in wanted]
    child = ["-m", "torch_reduce.ladder", "profiled", "--rungs", ",".join(names), "--dtype", dtype]
    for option, value in (("--size", size), ("--block", block), ("--elements", elements)):
        child += [option, str(value)] if value else []
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder, "ncu.csv")
        command = [ncu, "--profile-from-start", "off", "--clock-control", "none", "--csv", "--page", "raw"]
        command += ["--print-units", "base", "--metrics", ",".join([DURATION, WARPS, *metrics]), "--log-file", str(log)]
        done = subprocess.run([*command, sys.executable, *child], capture_output=True, text=True, check=False)
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    runs = parse(text)
    if done.returncode or len(runs) != len(names):
        lines = (text + done.stdout + done.stderr).splitlines()
        lines = [line for line in lines if "==ERROR==" in line or "Error" in line]
        raise NoCounters("ncu gave no counters: " + (" ".join(lines[:3]) or f"exit status {done.returncode}"))
    return dict(zip(names, runs, strict=True))


def parse(text):
    """ncu's raw page as CSV: the counters of each run's longest kernel. A run begins with a marker."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    runs = []
    for line in csv.DictReader(lines):
        if MARKER in line["Kernel Name"]:
            runs.append([])
        elif line["Kernel Name"] and runs:  # the second row holds units
            runs[-1].append({name: number(value) for name, value in line.items() if "__" in name})
    if not all(runs):
        return []
    return [counters(max(kernels, key=lambda kernel: kernel.get(DURATION, 0))) for kernels in runs]


def number(text):
    """ncu's numbers have thousands separators; what it cannot measure is "n/a"."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return math.nan


def counters(kernel):
    """{counter: value} from ncu's metrics of a kernel; rates in GB/s, conflicts a warp.

    Left out is what ncu does not give, and the efficiency of something that does not occur, for which it gives 0.
    """
    units = {"GB/s": 1e9, "a warp": kernel.get(WARPS, math.nan)}
    found = {}
    for name, (metrics, unit, *_) in COUNTERS.items():
        value = sum(kernel.get(metric, math.nan) for metric in metrics) / units.get(unit, 1)
        if not math.isnan(value) and (value or not name.endswith("efficiency")):
            found[name] = value
    return found


def profiled(options):
    """The program that ncu watches: each rung once, between cudaProfilerStart and Stop."""
    dtype, rungs = getattr(torch, options.dtype or "float32"), {rung.name: rung for rung in ladder.rungs()}
    for name in options.rungs:
        rung = rungs[name]
        torch.ops.gpureduce._ladder_time(
            make_input(rung, "cuda", options.size, dtype),
            name,
            1,
            block=options.block if rung.blocks else None,
            elements_per_thread=options.elements if len(rung.elements_per_thread) > 1 else None,
            profile=True,
        )
    return 0


# --- what the counters say --------------------------------------------------------------------------------------------


def change_text(name, before, now):
    return f"{name} {value_text(name, before)} → {value_text(name, now)}"


def moved(before, now):
    """By how much a counter moved: the logarithm of the ratio, where numbers below 1 count as 1."""
    return math.log(max(now, 1) / max(before, 1))


def changes(before, now, without=()):
    """Counters that moved, the furthest first. Throughputs are not among them: they follow the time."""
    names = [name for name in now if name in before and name not in without and "throughput" not in name]
    distance = {name: abs(moved(before[name], now[name])) for name in names}
    return sorted((name for name in names if distance[name] > NOTICED), key=lambda name: -distance[name])


NOTICED = 0.02  # a smaller change, of a counter or a time, is called none


def sentence(rung, step, before):
    """How the counter that the rung is about changed, and which other one changed most, from the numbers alone."""
    mine, theirs = step.get("counters"), (before or {}).get("counters")
    if not mine:
        return ""
    if not theirs:
        shown = [f"{name} {value_text(name, mine[name])}" for name in KEY if name in mine]
        return "Where it begins: " + ", ".join(shown) + "."
    parts = []
    counter, _, way = rung.moves.rpartition(" ")
    if counter in mine and counter in theirs:
        change = moved(theirs[counter], mine[counter])
        did = change > NOTICED if way == "up" else change < -NOTICED
        verb = "raise" if way == "up" else "lower"
        numbers = change_text(counter, theirs[counter], mine[counter]).removeprefix(counter + " ")
        parts.append(f"Meant to {verb} {counter}, and {'does' if did else 'does not'}: {numbers}")
    if others := changes(theirs, mine, (counter,)):
        most = change_text(others[0], theirs[others[0]], mine[others[0]])
        parts.append(f"besides, {most}" if parts else f"What moved most: {most}")
    elif not parts:
        parts.append("No counter moved")
    ratio = kernel_us(before) / kernel_us(step)
    speed = f"{ratio:.2f}× as fast" if abs(ratio - 1) > NOTICED else "as fast"
    return "; ".join(parts) + f"; {speed} as {before['name']}."


KEY = ("instructions per warp", "global load efficiency", "barrier stalls", "branch efficiency", "bank conflicts")


DISAGREE = 1.15  # the book's step and ours are said to disagree where one is this many times the other


COUNTED = (  # what "DRAM reads at 102% of the ceiling" counts
    "DRAM reads: the bytes that the memory handed over in a second while the kernel ran, as ncu counts them, over the "
    "rate of the kernel that only reads. That one is timed between two events, with the start and the end of its "
    "launch, and ncu leaves these out: so a kernel can come to a little more than 100%."
)


def bound(step, ceiling_gbps):
    """What holds a kernel back, as far as its counters tell."""
    mine = step["counters"]
    rate = mine.get("DRAM read throughput", 0) / ceiling_gbps
    reasons = [f"DRAM reads at {rate:.0%} of the ceiling"]
    if mine.get("barrier stalls", 0) > 20:
        reasons.append(f"warps at barriers {mine['barrier stalls']:.0f}% of the time")
    if mine.get("branch efficiency", 100) < 90:
        reasons.append(f"only {mine['branch efficiency']:.0f}% of the branches uniform")
    if mine.get("global load efficiency", 100) < 70:
        reasons.append(f"only {mine['global load efficiency']:.0f}% of the loaded bytes used")
    return ", ".join(reasons)


def why(step, before, ceiling_gbps):
    """How the counters of two rungs differ, and what limits the second one."""
    mine, theirs = step.get("counters"), before.get("counters")
    if not mine or not theirs:
        return "Why, --profile would tell."
    shown = [change_text(name, theirs[name], mine[name]) for name in changes(theirs, mine)[:3]]
    moved_text = ", ".join(shown) if shown else "no counter"
    return f"What moved: {moved_text}. Before: {bound(before, ceiling_gbps)}. Now: {bound(step, ceiling_gbps)}."


def against_lesson(steps, ceiling_gbps):
    """Lines: the lessons' figures and ours, where the two disagree, and what a profiler said then and says now."""
    lines = []
    for title, printed in LESSONS.items():
        known = [step for step in steps if step["name"] in printed]
        if len(known) > 1:
            lines += ["", title, *lesson_table(known, printed)]
            lines += before_lines(steps) if printed is BOOK else []
            lines += ["", "Where they disagree:"]
            found = disagreements(known, printed, ceiling_gbps)
            lines += [*found, COUNTED] if found else [f"- in no step by a factor of {DISAGREE}"]
    lines = lines or ["The lessons' times are of chapters 1 to 3: at least two rungs of a chapter are needed."]
    if rows := profiled_then(steps):
        lines += ["", "What nvprof said in the book's chapter 3, and ncu here:", *profiled_table(rows)]
        if not any("counters" in step for step in steps):
            lines.append("What it is here, --profile would tell.")
    return lines


def before_rows(steps):
    """Rows: what the book's output prints before its kernels, its milliseconds, our rung, our milliseconds or a dash,
    and what the rung is to it."""
    here = {step["name"]: f"{kernel_us(step) / 1e3:.4f}" for step in steps}
    printed = BOOK_BEFORE.items()
    return [(name, f"{then * 1e3:.3f}", rung, here.get(rung, "–"), note) for name, (then, rung, note) in printed]


def before_lines(steps):
    lines = ["", "Printed before them, in ms:"]
    for name, then, rung, here, note in before_rows(steps):
        lines.append(f"{name:<25} {then:>9}   {here:>9} here, {rung}: {note}")
    return lines


def lesson_table(known, printed):
    """The lesson's milliseconds and ours, both of its kernel; the last column is our whole sum."""
    head = f"{'rung':<25} {'then ms':>9} {'step':>7} {'total':>7}   {'here ms':>9} {'step':>7} {'total':>7}"
    lines = [f"{head}   {'sum ms':>9}"]
    for i, step in enumerate(known):
        then, here = f"{printed[step['name']] * 1e3:>9.3f}", f"{kernel_us(step) / 1e3:>9.4f}"
        for other, width in ((known[i - 1] if i else None, 6), (known[0], 6)):
            theirs = printed[other["name"]] / printed[step["name"]] if other else None
            then += f" {theirs:>{width}.2f}×" if theirs else f" {'–':>7}"
            here += f" {kernel_us(other) / kernel_us(step):>{width}.2f}×" if other else f" {'–':>7}"
        lines.append(f"{step['name']:<25} {then}   {here}   {step['us'] / 1e3:>9.4f}")
    return lines


def disagreements(known, printed, ceiling_gbps):
    lines = []
    for before, step in itertools.pairwise(known):
        theirs, ours = printed[before["name"]] / printed[step["name"]], kernel_us(before) / kernel_us(step)
        if not 1 / DISAGREE < ours / theirs < DISAGREE:
            much = "less" if ours < theirs else "more"
            reason = why(step, before, ceiling_gbps)
            lines.append(f"- {step['name']} gains {much}: {theirs:.2f}× then, {ours:.2f}× here. {reason}")
    return lines


# --- the program ------------------------------------------------------------------------------------------------------


def driver():
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def facts():
    """What results were measured on."""
    gpu = torch.cuda.is_available()
    return {
        "gpu": torch.cuda.get_device_name(0) if gpu else None,
        "driver": driver() if gpu else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "date": datetime.date.today().isoformat(),
    }


def add_counters(steps, size, dtype, block=None, elements=None):
    """Puts counters into the GPU's steps; says why where there are none, and leaves it at that."""
    on_gpu = {rung.name for rung in ladder.rungs() if rung.device == "cuda"}
    names = [step["name"] for step in steps if step["name"] in on_gpu]
    try:
        found = profile(names, size, dtype, block, elements)
    except NoCounters as error:
        print(error, file=sys.stderr)
        return
    for step in steps:
        if step["name"] in found:
            step["counters"] = found[step["name"]]


def print_counters(rungs, steps):
    """A table, and a sentence a rung; nothing where there are none."""
    if not any("counters" in step for step in steps):
        return
    known = {rung.name: rung for rung in rungs}
    print()
    for part in (0, 2):  # the last word of a name below the others
        print(" " * 26 + "".join(f"{name.rpartition(' ')[part]:>17}" for name in COUNTERS))
    for step in steps:
        if mine := step.get("counters"):
            print(f"{step['name']:<26}" + "".join(f"{cell_text(name, mine):>17}" for name in COUNTERS))
    print()
    for step in steps:
        if text := sentence(known[step["name"]], step, compared(step, steps)):
            print(f"{step['name']}: {text}")


def main(options):
    """`run` and `profiled` of ladder.py."""
    if options.action == "profiled":
        return profiled(options)
    wanted = [rung for rung in ladder.rungs() if options.rungs is None or rung.name in options.rungs]
    gpu = torch.cuda.is_available()
    possible = [rung for rung in wanted if rung.built and (gpu or rung.device == "cpu")]
    if len(possible) < len(wanted):
        why = "there is no NVIDIA GPU here" if all(rung.built for rung in wanted) else "this library has no CUDA"
        print(f"{len(wanted) - len(possible)} of {len(wanted)} rungs cannot run: {why}.", file=sys.stderr)
        if not possible or options.rungs:
            return 1
    name = options.dtype or ("int32" if options.against_lesson else "float32")
    dtype = getattr(torch, name)
    results = facts() | {"dtype": name}
    print(f"{results['gpu'] or 'CPU'}, torch {results['torch']}, {name}, cold caches, median of {options.repeats}")
    if gpu:
        reader = next((rung for rung in possible if rung.finish != "written"), possible[0])
        results["ceiling"] = ceiling(make_input(reader, "cuda", options.size, dtype), options.repeats)
        print(f"only reading: {results['ceiling']['gbps']:,.0f} GB/s, the ceiling")
    rate = results.get("ceiling", {}).get("gbps")
    table = Table(possible, rate)
    steps = climb(possible, options.size, dtype, options.repeats, options.block, options.elements, table.add)
    if options.profile and gpu:
        print("\ncounters, through ncu …", flush=True)
        add_counters(steps, options.size, name, options.block, options.elements)
        print_counters(possible, steps)
    if options.against_lesson:
        print("\n".join(against_lesson(steps, rate)))
    if options.save:
        results["rungs"] = steps
        pathlib.Path(options.save).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0
