"""Measures torch_reduce's sum against torch.sum, torch.compile, CUB and kernels that only read, cell by cell.

    python bench/grid.py --short              about 45 cells in 3 minutes, or 21 of the CPU where there is no GPU: what
                                              `make bench` runs
    python bench/grid.py --save               the whole grid, into bench/results/<gpu>/grid.json, which report.py reads
    python bench/grid.py --resume             the same, but cells that are there already are kept; `make figures` does
    python bench/grid.py --only "rows.*4096"  cells whose name matches; --cells prints the names
    python bench/grid.py --cpu                the CPU backend alone, as always where there is no GPU
    ncu --profile-from-start off python bench/grid.py --profile "full float32 2^24"

Every cell is first checked: on the GPU, our bits must be the CPU backend's. If not, it is not timed, and the run fails.
The time of a call is taken between kernels that do not start early (timing.py); the same calls back to back are kept
beside it. A file is written after every cell, and belongs to one torch. The GPU's cells belong to one GPU and one state
of its kernels (provenance.py --sums), and the CPU's cells to one of the CPU backend.
"""

import argparse
import functools
import json
import math
import os
import pathlib
import statistics
import sys
import time

import torch

import bars
import cases as grid
import contenders as who
import provenance
import timing
import torch_reduce

STANDARD = pathlib.Path()  # stands for bench/results/<gpu>/grid.json
AGAINST = ("torch", "compile", "cub", "read")
VARIED = ("compile", "read")  # candidates with variants, as "compile PDL" or "read bulk 8 x2": the fastest one counts
ROUNDS, MOST_ROUNDS = 11, 77
BACK_TO_BACK_ROUNDS = 5
CPU_PASSES = 3  # over all cells, so that other work on the machine does not fall on one cell alone
SHORT_CPU_SECONDS = 50.0  # a short run has its third pass only if that ends before
CPU_SECONDS, SHORT_CELL_SECONDS = 4.0, 0.4  # that timing a cell once may take, where rounds can be cut
NEAR = 0.03  # a ratio this near to 1 is measured on until it is settled
AHEAD = 4  # cells a process compiles ahead at a time


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    file = dict(metavar="FILE", type=pathlib.Path, nargs="?", const=STANDARD)
    parser.add_argument("--short", action="store_true", help="representative cells, torch.compile on a few of them")
    parser.add_argument("--only", metavar="REGEX", help="cells whose name is this, or matches it")
    parser.add_argument("--against", metavar="LIST", default=",".join(AGAINST), help="of %(default)s")
    parser.add_argument("--save", **file, help="write results here; default bench/results/<gpu>/grid.json")
    parser.add_argument("--resume", **file, help="continue this file, with --save into another one")
    parser.add_argument("--budget", metavar="SECONDS", type=float, default=math.inf, help="stop before these are spent")
    parser.add_argument("--jobs", type=int, default=min(12, (os.cpu_count() or 1) * 3 // 4), help="compiling processes")
    parser.add_argument("--cpu", action="store_true", help="the CPU backend alone")
    parser.add_argument("--cells", action="store_true", help="print the names of the cells, and end")
    parser.add_argument("--profile", metavar="CELL", help="only call this cell, without a graph, for ncu")
    parser.add_argument("--calls", type=int, default=3, help="calls of --profile")
    options = parser.parse_args(arguments)
    options.against = tuple(options.against.split(","))
    if unknown := set(options.against) - set(AGAINST):
        parser.error(f"--against takes {', '.join(AGAINST)}; not {', '.join(sorted(unknown))}")

    on_gpu = torch.cuda.is_available() and not options.cpu
    gpu_cells, cpu_cells = choose(options, options.cells or on_gpu)
    if options.cells:
        print("\n".join([c.name for c in gpu_cells] + [f"cpu {c.name}" for c in cpu_cells]))
        return
    if options.profile:
        profile(grid.parse(options.profile), options.calls, "cuda" if on_gpu else "cpu", torch_reduce)
        return
    if not gpu_cells and not cpu_cells:
        parser.error("no cell matches; --cells prints their names")

    clock = Clock(options.budget)
    facts = who.environment("grid.json")
    results = Results(facts, options)
    print(", ".join(f"{name} {facts[name]}" for name in ("torch", "python", "cpu_name", "cpu_threads")))
    print(provenance.at(facts["sources"]))
    left = run_gpu(gpu_cells, results, options, clock, torch_reduce) if on_gpu else []
    left += run_cpu(cpu_cells, results, options, clock, on_gpu)
    if not on_gpu and not options.only and clock.enough(5):
        print_small_calls(small_calls(torch_reduce, "cpu"))
    print_small_calls(results.table.get("small_calls"))
    print("\n" + "\n".join(bars.summary_lines(results.table)))
    print(f"\n{clock.elapsed():.0f} s in all" + (f"; written: {results.path}" if results.path else ""))
    print("\n".join(bars.verdicts(results.table)))
    if left:
        print(f"{len(left)} cells are left, from {left[0].name!r} on; the same command with --resume continues")
    if wrong := results.errors():
        sys.exit(f"WRONG OR FAILED, and therefore not timed: {'; '.join(wrong)}")


def choose(options, with_gpu):
    """(cells of the GPU, cells of the CPU) that the options name."""
    gpu_cells = grid.gpu_cases() if with_gpu and not options.cpu else []
    cpu_cells = [] if gpu_cells and options.short else grid.cpu_cases()
    if options.short:
        gpu_cells, _ = grid.short_cases(gpu_cells)
        cpu_cells, _ = grid.short_cases(cpu_cells, grid.SHORT_CPU)
    if options.only:
        gpu_cells = grid.select(gpu_cells, options.only)
        cpu = options.only.removeprefix("cpu ")
        cpu_cells = grid.select(cpu_cells, cpu) if not with_gpu or options.cpu or cpu != options.only else []
    return gpu_cells, cpu_cells


class Clock:
    """The time of a run, and whether its budget allows for more."""

    def __init__(self, budget):
        self.begin, self.budget = time.perf_counter(), budget

    def elapsed(self):
        return time.perf_counter() - self.begin

    def left(self):
        return self.budget - self.elapsed()

    def enough(self, seconds):
        return self.left() > seconds


def minutes(seconds):
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


# --- the file -----------------------------------------------------------------------------------------------


class Results:
    """The results so far, of this run and of the file that it continues; the file is written after every cell."""

    def __init__(self, facts, options):
        cpu = {"csrc": provenance.csrc_hash(part="cpu"), "cases": []}
        self.table = new = facts | {"cells": len(grid.gpu_cases()), "cases": [], "cpu": cpu}
        self.path = self._path(options.save or options.resume)
        source = self._path(options.resume) if options.save else self.path if options.resume else None
        if source and source.exists():
            old = json.loads(source.read_text(encoding="utf-8"))
            self.table = self._continued(old, new, source)

    def _continued(self, old, new, source):
        """The table `old` of the file `source`, without what was measured on something else than `new` says."""
        other = [name for name in ("gpu", "torch") if old.get(name) != new[name]]
        if other:
            print(f"{source} is of another {' and another '.join(other)}: measuring everything anew")
            return new
        kept = old | {name: value for name, value in new.items() if name not in ("cases", "cpu")}
        if provenance.changed(provenance.sources(old)):
            print(f"{source} is of other kernels: measuring the GPU's cells anew")
            kept = new | {"cpu": old["cpu"]}
        if old["cpu"].get("csrc") != new["cpu"]["csrc"]:
            print(f"{source} is of another engine on the CPU: measuring the CPU's cells anew")
            kept["cpu"] = new["cpu"]
        return kept

    def _path(self, path):
        return provenance.chosen_place("grid.json", path, self.table["gpu"])

    def has(self, case, against, cpu=False):
        found = [c for c in self._list(cpu) if c["name"] == case.name and "us" in c]
        return bool(found) and set(against) <= set(found[0]["against"]) and (cpu or bars.between(found[0]))

    def _list(self, cpu):
        return self.table["cpu"]["cases"] if cpu else self.table["cases"]

    def add(self, result, cpu=False):
        cells = self._list(cpu)
        order = {c.name: i for i, c in enumerate(grid.cpu_cases() if cpu else grid.gpu_cases())}
        cells[:] = [c for c in cells if c["name"] in order and c["name"] != result["name"]] + [result]
        cells.sort(key=lambda c: order[c["name"]])
        self.keep()

    def keep(self, **more):
        self.table.update(more)
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial = self.path.with_suffix(".tmp")
            partial.write_text(json.dumps(self.table, indent=1) + "\n", encoding="utf-8")
            partial.replace(self.path)  # in one step, so that a run which is cut off leaves a whole file

    def errors(self):
        return [c["name"] for cpu in (False, True) for c in self._list(cpu) if "error" in c]


def describe(case, against):
    return {
        "name": case.name,
        "family": case.family,
        "label": case.label,
        "dtype": grid.dtype_name(case.dtype),
        "sum_dtype": grid.dtype_name(case.sum_dtype) if case.sum_dtype else None,
        "hot": case.hot,
        "shape": list(case.shape),
        "dim": who.dims(case),
        "bytes": case.bytes(),
        "input_bytes": case.input_bytes(),
        "against": list(against),
    }


def numbers(times):
    return {
        "us": {name: round(t.us, 4) for name, t in times.items()},
        "spread": {name: round(t.spread(), 4) for name, t in times.items()},
        "calls": times["ours"].calls,
        "repeats": times["ours"].repeats,
    }


def numbers_back_to_back(times):
    return {
        "us_back_to_back": {name: round(t.us, 4) for name, t in times.items()},
        "spread_back_to_back": {name: round(t.spread(), 4) for name, t in times.items()},
    }


def fastest(times):
    """{name: Timing} with one for each rival, its fastest, and one for reading: of those that come in several."""
    found = {name: t for name, t in times.items() if name.split()[0] not in VARIED}
    best = ((kind, timing.fastest(times, kind)) for kind in VARIED)
    return found | {kind: entry[1] for kind, entry in best if entry}


def unsettled(times):
    """The rivals that are so near that more rounds are needed to tell who is faster."""
    found = []
    for name in set(times) & set(bars.RIVALS):
        value, noise = times[name].ratio(times["ours"])
        if abs(value - 1) < NEAR and abs(value - 1) <= noise:
            found.append(name)
    return sorted(found)


# --- GPU ----------------------------------------------------------------------------------------------------


def run_gpu(cells, results, options, clock, torch_reduce):
    """Measures what is missing; returns the cells that there was no time for."""
    facts = results.table
    print(f"{facts['gpu']}, driver {facts['driver']}, CUDA {facts['cuda']}")
    _, compiled = grid.short_cases(cells)

    def against(case):
        return [a for a in options.against if a != "compile" or not options.short or case.name in compiled]

    todo = [c for c in cells if not results.has(c, against(c))]
    if len(todo) < len(cells):
        print(f"{len(cells) - len(todo)} of {len(cells)} cells are in the file already")
    needs_library = {"cub", "read"} & set(options.against)
    library = who.load_cub() if needs_library and todo else None
    if library:
        segments = bars.FIXED_SIZE if library.fixed_size else bars.A_BLOCK_EACH
        results.keep(cub=library.version, cub_segments=segments, ceiling=timing.read_ceiling(library, 2**30))
        print(f"CUB {library.version} (segments: {segments}; its workspace is allocated beforehand)")
        print(f"reading 1 GiB: {facts['ceiling']['gbps']:.0f} GB/s ({facts['ceiling']['kernel']})")
    if "small_calls" not in facts and not options.only and clock.enough(15):
        results.keep(small_calls=small_calls(torch_reduce, "cuda"), **host_stages(library))
    print("GPU time between kernels that do not start early: CUDA graphs, medians of interleaved rounds.")
    print(f"Ratios are their time / ours; the last two columns are of calls back to back.\n{HEADER}", flush=True)
    bench = Bench(library, todo)
    ahead = Ahead([c for c in todo if "compile" in against(c)], options.jobs, clock)
    begin, longest = clock.elapsed(), 3.0
    try:
        for i, case in enumerate(todo):
            if not ahead.reach(case) or not clock.enough(1.5 * longest):
                return todo[i:]
            start = clock.elapsed()
            result = guarded(bench.measure, case, against(case))
            longest = max(0.9 * longest, clock.elapsed() - start)
            results.add(result)
            spent = clock.elapsed() - begin
            left = spent / (i + 1) * (len(todo) - i - 1)
            progress = f"[{i + 1}/{len(todo)}  {minutes(clock.elapsed())}, about {minutes(left)} left]"
            print(f"{row_text(result)}   {progress}", flush=True)
            if "error" in result and timing.device_is_lost():
                sys.exit("the GPU is lost: nothing measured after this would be true")
    finally:
        ahead.close()
    return []


class Ahead:
    """Has torch.compile's cells compiled some batches before their turn, while nothing is measured."""

    def __init__(self, cells, jobs, clock):
        self.cells, self.jobs, self.clock, self.seconds = list(cells), jobs, clock, 30.0
        self.ready, self.processes = set(), None

    def reach(self, case):
        """Whether `case` can be measured now: False if the time is up."""
        if self.jobs < 2 or case not in self.cells or case.name in self.ready:
            return True
        at = self.cells.index(case)
        batch = self.cells[at : at + AHEAD * self.jobs]
        if not self.clock.enough(self.seconds):
            return False
        start = self.clock.elapsed()
        self.processes = self.processes or who.CompileAhead(self.jobs)
        torch.cuda.empty_cache()
        done = self.processes.compile([c.name for c in batch], min(300, self.clock.left() - 5))
        self.seconds = self.clock.elapsed() - start
        print(f"    compiled {len(batch)} cells ahead with {self.jobs} processes in {self.seconds:.0f} s", flush=True)
        self.ready |= {c.name for c in batch}
        if not done:
            self.close()
        return done or self.clock.enough(30)

    def close(self):
        if self.processes:
            self.processes.close()
        self.processes = None


class Data:
    """Random elements of a dtype, made once: a cell takes the first ones, on the GPU or the same on the host."""

    def __init__(self, cells, keep=3):
        self.most, self.keep, self.made = {}, keep, {}
        for case in cells:
            self.most[case.dtype] = max(case.elements, self.most.get(case.dtype, 0))

    def of(self, case):
        pair = self.made.pop(case.dtype, None)
        if pair is None:
            flat = grid.random_elements(case.dtype, self.most[case.dtype], "cuda")
            pair = flat, flat.cpu()
        self.made[case.dtype] = pair  # the latest last
        while len(self.made) > self.keep:
            del self.made[next(iter(self.made))]
        return [flat[: case.elements] for flat in pair]


class Bench:
    """Checks and times cells on the GPU."""

    def __init__(self, library, cells):
        self.library, self.data, self.flush, self.reads = library, Data(cells), timing.Flush(), {}

    def measure(self, case, against):
        """The entry of `case` in the results."""
        torch.cuda.empty_cache()
        flat, host = self.data.of(case)
        right = who.our_sum(case, case.view(flat))
        if not who.same_bits(right.cpu(), who.our_sum(case, case.view(host))):
            return describe(case, against) | {"error": "the GPU's bits are not the CPU backend's"}
        buffers = timing.Buffers(flat, case.view, case.hot)
        candidates = [who.ours(case), *self.rivals(case, against, buffers)]
        make_out = functools.partial(case.make_out, "cuda")
        race = timing.Race(candidates, buffers, make_out, flush=self.flush, back_to_back=True)
        beside = race.run_back_to_back(BACK_TO_BACK_ROUNDS).timings_back_to_back()
        failed = race.failed | wrong(case, right, beside)  # now: the other way of timing writes the same outputs

        def rounds():
            return fastest(right_ones(race.run(ROUNDS).timings(), failed))

        if "ours" not in failed:
            times = rounds()
            first = numbers(times)
            while (near := unsettled(times)) and times["ours"].repeats < MOST_ROUNDS:
                times = rounds()
            failed |= wrong(case, right, race.timings())
        if "ours" in failed:
            return describe(case, against) | {"error": failed["ours"]}
        if "cub" in against and case.cub and not self.library:
            failed["cub"] = "bench/cub could not be built"
        ways = [right_ones(found, failed) for found in (race.timings(), beside)]
        times, beside = map(fastest, ways)
        result = describe(case, against) | numbers(times) | numbers_back_to_back(beside)
        varied = [name for name in ways[0] if name.split()[0] in VARIED]
        if varied:  # microseconds of each: between kernels, and back to back
            result["variants"] = {name: [round(found[name].us, 4) for found in ways] for name in varied}
        if times["ours"].repeats > ROUNDS:
            result |= {"first": {"us": first["us"], "repeats": ROUNDS}, "unsettled": [n for n in near if n in times]}
        if failed:
            result["failed"] = failed
        return result

    def rivals(self, case, against, buffers):
        found = []
        if "torch" in against:
            found.append(who.torch_sum(case))
        if "compile" in against:
            found += who.compiled_sums(case, who.starts_early())
        if "cub" in against:
            found.append(who.cub_sum(case, buffers.views[0], self.library))
        if "read" in against and self.library:
            nbytes, key = case.input_bytes(), (case.input_bytes(), case.hot)
            if key not in self.reads:
                self.reads[key] = timing.fastest_reads(self.library, buffers, nbytes, flush=self.flush)
            found += timing.read_candidates(self.library, buffers, nbytes, self.reads[key])
        return [c for c in found if c]


def wrong(case, right, times):
    """{name: what is wrong} for each contender in {name: Timing} whose last results are wrong."""
    found = {}
    for name, t in times.items():
        if name == "ours" and not all(who.same_bits(out, right) for out in t.outputs):
            found[name] = "the bits changed while it was timed"
        elif name.split()[0] in bars.RIVALS and not who.close(t.outputs[-1], right, who.length(case)):
            found[name] = "another result than ours, by more than rounding"
    return found


def right_ones(times, failed):
    return {name: t for name, t in times.items() if name not in failed}


def guarded(measure, case, against):
    """A cell's result, or its description with an `error`; running out of memory is a `skipped`, not an error."""
    try:
        return measure(case, against)
    except torch.OutOfMemoryError:
        return describe(case, against) | {"skipped": "out of memory"}
    except Exception as error:
        return describe(case, against) | {"error": timing.first_line(error)}


# --- CPU ----------------------------------------------------------------------------------------------------


def run_cpu(cells, results, options, clock, beside_gpu):
    """As run_gpu."""
    against = [a for a in options.against if a == "torch"]
    todo = [c for c in cells if not results.has(c, against, cpu=True)]
    if not todo:
        return []
    threads = torch.get_num_threads()
    if not beside_gpu:
        print("\nNO GPU IS USED HERE: this measures the CPU backend against torch.sum on the CPU.")
    print(f"CPU, {threads} threads; one buffer, so small inputs come from the caches.", flush=True)
    measure = functools.partial(measure_cpu, seconds=SHORT_CELL_SECONDS if options.short else CPU_SECONDS)
    begin = said = clock.elapsed()
    most, passes = CPU_PASSES, {case.name: [] for case in todo}
    for number in range(1, CPU_PASSES + 1):
        if options.short and number > 1:  # as many passes as there is time for, two at least
            took = (clock.elapsed() - begin) / (number - 1)
            most = number if clock.elapsed() + 2 * took > SHORT_CPU_SECONDS else most
        if number == most:
            print(CPU_HEADER)
        for i, case in enumerate(todo):
            if not clock.enough(10):
                return todo[i:] if number == most else todo
            result = guarded(functools.partial(measure, passes=passes[case.name], last=number == most), case, against)
            now = clock.elapsed()
            left = (now - begin) * (most * len(todo) / ((number - 1) * len(todo) + i + 1) - 1)
            progress = f"{minutes(now)}, about {minutes(left)} left"
            if number == most:
                results.add(result, cpu=True)
                print(f"{row_text(result, on_cpu=True)}   [{i + 1}/{len(todo)}  {progress}]", flush=True)
            elif now - said > 5 or i + 1 == len(todo) or (number, i) == (1, 0):
                said = now
                print(f"    pass {number} of {most}: {i + 1} of {len(todo)} cells, {progress}", flush=True)
        if number == most:
            break
    return []


def measure_cpu(case, against, passes, last, seconds):
    """The cell's result after one more pass, which may be the last; `passes` are the times of those before, and of this
    one afterwards."""
    view = case.view(case.flat("cpu"))
    result = who.our_sum(case, view)
    wide = view.float() if case.dtype.itemsize == 1 and case.dtype.is_floating_point else view
    if not who.close(result, torch.sum(wide, dim=who.dims(case), dtype=case.sum_dtype), who.length(case)):
        return describe(case, against) | {"error": "the result is not torch.sum's, not even nearly"}
    candidates, failed = [who.ours(case)], {}
    if against:
        rival = who.torch_sum(case)
        try:
            rival.fn(view, case.make_out("cpu"))
            candidates.append(rival)
        except (RuntimeError, NotImplementedError) as error:
            failed["torch"] = timing.first_line(error)

    def measure(repeats):
        out = functools.partial(case.make_out, "cpu")
        passes.append(timing.cpu_times(candidates, view, out, repeats=repeats, budget_s=seconds))
        return timing.merged(passes)

    first = times = measure(ROUNDS)
    near = unsettled(times)
    if near and last:
        times = measure(MOST_ROUNDS)
        near = unsettled(times)
    if not who.same_bits(times["ours"].outputs[0], result):
        return describe(case, against) | {"error": "the bits changed while it was timed"}
    entry = describe(case, against) | numbers(times)
    if times is not first:
        entry |= {"first": {"us": numbers(first)["us"], "repeats": first["ours"].repeats}, "unsettled": near}
    return entry | ({"failed": failed} if failed else {})


# --- small calls: host time and end to end ------------------------------------------------------------------


SMALL = {"1024 elements": ((1024,), None), "rows (64, 128)": ((64, 128), 1)}  # shape, dim; float32


def small_calls(torch_reduce, device):
    """Host microseconds a call, and microseconds until the result is there."""
    table = {}
    for what, (shape, dim) in SMALL.items():
        x = torch.randn(shape, device=device)
        functions = {
            "torch.sum": lambda x=x, dim=dim: torch.sum(x, dim=dim),
            "torch.ops.gpureduce.sum": lambda x=x, dim=dim: torch.ops.gpureduce.sum(x, dim),
            "torch_reduce.sum": lambda x=x, dim=dim: torch_reduce.sum(x, dim),
        }
        host = timing.host_times(functions)
        end = timing.end_to_end_times(functions)
        table[what] = {
            name: {"host_us": round(host[name].us, 3), "end_to_end_us": round(end[name].us, 3)} for name in functions
        }
    return table


def host_stages(library, calls=100):
    """Host microseconds, all measured in turns: of each stage of a sum, {what: {stage: us}}; and of the launches of a
    kernel that does nothing, {how: us}."""

    def of_sum(x, dim):
        return dict(zip(bars.STAGES, torch.ops.gpureduce._stages(x, dim, calls), strict=True))

    def of_launch(early, arguments):
        return library.launch_empty(early, arguments, calls)

    small = {what: (torch.randn(shape, device="cuda"), dim) for what, (shape, dim) in SMALL.items()}
    sums = {what: functools.partial(of_sum, *call) for what, call in small.items()}
    launches = {name: functools.partial(of_launch, *how) for name, how in bars.LAUNCHES.items() if library}
    samples = timing.in_turns({**sums, **launches})

    def median(values):
        return round(statistics.median(values), 3)

    stages = {what: {name: median(s[name] for s in samples[what]) for name in bars.STAGES} for what in sums}
    return dict(stages=stages, empty_launches={name: median(samples[name]) for name in launches})


def print_small_calls(table):
    if table:
        print(f"\n{'small calls, µs':<28}{'host':>10}{'end to end':>14}")
    for what, rows in (table or {}).items():
        print(what)
        for name, cells in rows.items():
            print(f"  {name:<26}{cells['host_us']:>10.2f}{cells['end_to_end_us']:>14.2f}")


# --- the table ----------------------------------------------------------------------------------------------

HEADER = f"{'cell':<62}{'MB':>9}{'ours µs':>11}{'GB/s':>8}{'% read':>8}{'×torch':>9}{'×compile':>10}{'×CUB':>8}"
HEADER += f"{'b2b µs':>10}{'×torch':>8}"
CPU_HEADER = f"{'cell':<44}{'MB':>9}{'ours µs':>11}{'GB/s':>8}{'×torch':>9}"


def _cell(value, pattern, width):
    return ("–" if value is None else pattern.format(value)).rjust(width)


def row_text(case, on_cpu=False):
    """A cell's line; on the CPU it has the columns that there are."""
    width = 44 if on_cpu else 62
    if "us" not in case:
        what = "skipped: " + case["skipped"] if "skipped" in case else "ERROR: " + case["error"]
        return f"{case['name']:<{width}}  {what}"
    cells = [
        _cell(case["bytes"] / 1e6, "{:.3f}" if case["bytes"] < 1e6 else "{:.1f}", 9),
        _cell(case["us"]["ours"], "{:.2f}", 11),
        _cell(bars.gbps(case), "{:.0f}", 8),
        None if on_cpu else _cell(bars.percent(case), "{:.1f}", 8),
        _cell(bars.ratio(case, "torch"), "{:.2f}", 9),
        None if on_cpu else _cell(bars.ratio(case, "compile"), "{:.2f}", 10),
        None if on_cpu else _cell(bars.ratio(case, "cub"), "{:.2f}", 8),
    ]
    if beside := bars.back_to_back(case):
        cells += [_cell(beside["us"]["ours"], "{:.2f}", 10), _cell(bars.ratio(beside, "torch"), "{:.2f}", 8)]
    return f"{case['name']:<{width}}" + "".join(filter(None, cells))


# --- profiling ----------------------------------------------------------------------------------------------


def profile(case, calls, device, torch_reduce):
    """Plain calls of one cell between cudaProfilerStart and cudaProfilerStop."""
    candidate = who.ours(case)
    view, out = case.view(case.flat(device)), case.make_out(device)
    candidate.fn(view, out)
    print(torch_reduce.explain(view, who.dims(case)))
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
    for _ in range(calls):
        candidate.fn(view, out)
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
    print(f"{calls} calls of {case.name}")


if __name__ == "__main__":
    main()
