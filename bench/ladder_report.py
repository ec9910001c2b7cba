"""Makes the measured parts of docs/ladder/*.md and README.md, and the pictures, from bench/results/*/ladder.json.

    python bench/ladder_report.py            writes them
    python bench/ladder_report.py --check    changes nothing; exit status 1 and a diff if the results give others

The pages are written by hand but for what stands between "<!-- ladder:NAME -->" and "<!-- /ladder:NAME -->". A part
may stand on any of them. The steps of a rung ("ladder:steps RUNGS") come from the emulator, which needs a C++ compiler.
"""

import argparse
import hashlib
import math
import pathlib
import re
import sys

import pictures
import provenance
import report
from report import wrapped

ROOT = provenance.ROOT
sys.path.insert(0, str(ROOT))
from torch_reduce import ladder  # noqa: E402
from torch_reduce.ladder import _climb, _step, _whole  # noqa: E402
from torch_reduce.ladder import _lessons as lessons  # noqa: E402

START, FOLDER = "docs/ladder.md", "docs/ladder"
NOTE = "<!-- made by bench/ladder_report.py; do not edit -->"
CONTRACT = ROOT / "torch_reduce" / "ladder" / "orders" / "4_contract.cu"  # what chapter 7 arrives at
BAR = 0.85  # of the ceiling, for multi_element at its best N and 2^28 floats


def best_large(results):
    """(step, share of the ceiling) of multi_element's best N at 2^28 floats."""
    step = min(results["large"]["rungs"], key=lambda step: step["us"])
    return step, step["gbps"] / results["large"]["ceiling"]["gbps"]


def times(before, now):
    return f"{before / now:.2f}×"


def rows(climb, names):
    """(rung, cells) of each of the named rungs; of one that these results do not have, that it was not measured."""
    steps = climb["rungs"]
    found = {step["name"]: step for step in steps}
    for rung in ladder.rungs():
        if rung.name not in names:
            continue
        if rung.name not in found:
            yield rung, ["not measured", *["–"] * (len(HEADER) - 1)]
            continue
        step = found[rung.name]
        share = _climb.share(step, climb["ceiling"]["gbps"])
        before, first = _climb.compared(step, steps), _climb.base(step, steps)
        yield (
            rung,
            [
                report.number(step["kernel"]["us"]) if "kernel" in step else "–",
                report.number(step["us"]),
                f"{step['gbps']:,.0f}" if step["gbps"] >= 10 else f"{step['gbps']:.1f}",
                "–" if share is None else f"{share:.1%}",
                times(_climb.kernel_us(before), _climb.kernel_us(step)) if before else "–",
                times(first["us"], step["us"]) if first else "–",
            ],
        )


HEADER = ["kernel, µs", "sum, µs", "GB/s", "of the ceiling", "step", "total"]


def source_lines(slug, results):
    """What was measured, where and how; the last line is empty."""
    climb = results["climb"]
    if any("kernel" in step for step in climb["rungs"]):
        compared = "GB/s, the share of the ceiling and the step are of the kernel, the total is of the sum."
    else:
        compared = "The kernels were not measured by themselves: every figure is of the sum."
    text = (
        f"{results['gpu']}, {results['date']}: driver {results['driver']}, torch {results['torch']}, "
        f"CUDA {results['cuda']}; {provenance.at(of_the_ladder(results))}{since(measured_on(results))}. "
        f"2^24 float32 (2^25 in chapter 5), blocks of 512 where they can be chosen, cold caches, "
        f"medians of {climb['rungs'][1]['repeats']}. "
        f"The ceiling, a kernel that only reads the 64 MiB: {climb['ceiling']['gbps']:,.0f} GB/s. "
        f"Step: over the rung that the file compares itself with; total: over neighbored. {compared}"
    )
    return [*wrapped(text), ""]


def measured_on(results):
    """{part: hash} of the sources; the rung "engine" runs the engine's."""
    return results["sources"]


def of_the_ladder(results):
    """{part: hash} of the ladder alone, which all rungs but "engine" are of."""
    return {"ladder": results["sources"]["ladder"]}


def since(hashes):
    """What to add to the date: what of csrc/ has changed."""
    return provenance.since(provenance.changed(hashes))


def counter_names():
    lines = []
    for name, (metrics, _, old) in _climb.COUNTERS.items():
        today = " and ".join(f"`{metric}`" for metric in metrics)
        lines += report.wrapped(f"- **{name}**: `{old}` of nvprof, in the lessons; {today} of ncu, today", "  ")
    return [*lines, ""]


def counter_table(climb, names):
    """Nothing where there are no counters."""
    steps = [step for step in climb["rungs"] if step["name"] in names and "counters" in step]
    if not steps:
        return []
    rungs = {rung.name: str(rung.number) for rung in ladder.rungs()}
    lines = []
    for name in _climb.COUNTERS:
        cells = [_climb.cell_text(name, step["counters"]) for step in steps]
        if any(name in step["counters"] for step in steps):
            rate = " GB/s" if any(cell.endswith(" GB/s") for cell in cells) else ""  # stands once, in the row's name
            lines.append([f"{name},{rate}" if rate else name, *(c.removesuffix(" GB/s") for c in cells)])
    return [*report.table(["rung", *(rungs[step["name"]] for step in steps)], lines), ""]


def rung_table(head, rows):
    """A table of (rung, cells). Each rung links to its file; where that makes a row too long, below the table."""
    table, files = [], []
    for rung, cells in rows:
        name, file = f"[{rung.number} {rung.name}]", f"../../csrc/ladder/{rung.file}"
        row = [f"{name}({file})", *cells]
        if len(" | ".join(row)) + len("|  |") > report.WIDTH:
            row[0] = name
            files.append(f"{name}: {file}")
        table.append(row)
    return [*report.table(head, table), "", *files, *[""] * bool(files)]


def chapter(slug, results, number):
    """A chapter's picture, its times, and its counters, folded."""
    rungs = {rung.name: rung for rung in ladder.rungs() if rung.chapter == number}
    climb = results["climb"]
    stale = since(measured_on(results) if number == 6 else of_the_ladder(results))
    text = f"{results['gpu']}, {results['date']}{stale}. [How it is measured](measuring.md)."
    lines = [*chapter_picture(slug, results, number), text, ""]
    lines += rung_table(["rung", *HEADER], rows(climb, rungs))
    counters = counter_table(climb, rungs)
    return lines + (report.folded("The counters, by the number of the rung", counters[:-1]) if counters else [])


def profiled_only(slug, results, number):
    """What the lessons' profiler said of a chapter's rungs whose times they do not print."""
    with_times = {name for printed in _climb.LESSONS.values() for name in printed}
    names = {rung.name for rung in ladder.rungs() if rung.chapter == number} - with_times
    return profiled([step for step in results["climb"]["rungs"] if step["name"] in names])


# --- a picture a chapter ----------------------------------------------------------------------------------------------


def columns(number, steps, ceiling_us):
    """What a chapter's picture shows of these steps."""
    known = {step["name"]: step for step in steps}

    def counter(name):
        values = {rung: step["counters"].get(name) for rung, step in known.items() if "counters" in step}
        return values, lambda value: _climb.value_text(name, value)

    def of_steps(value):
        return {name: value(step) for name, step in known.items()}

    flight = pictures.Column(
        "bytes in flight per thread",
        of_steps(lambda s: s["elements_per_thread"] and s["elements_per_thread"] * s["bytes"] // s["elements"]),
    )
    times = dict(values=of_steps(_climb.kernel_us), text=report.number)
    time = pictures.Column("kernel, µs", line=ceiling_us, **times)
    apart = pictures.Column("kernel, µs (logarithmic)", log=True, line=ceiling_us, **times)
    if number == 1:
        return [pictures.Column("global load efficiency", *counter("global load efficiency")), flight, time]
    if number == 2:
        asked_for = of_steps(lambda s: sum(asked(s)) / s["elements"] * s["bytes"] / s["elements"])
        return [pictures.Column("bytes asked per element", asked_for, "{:.1f}".format), flight, time]
    if number == 3:
        conflicts = pictures.Column("bank conflicts per warp", *counter("bank conflicts"))
        found, _ = counter("instructions per warp")
        values = {name: value and value / known[name]["elements_per_thread"] for name, value in found.items()}
        return [conflicts, pictures.Column("instructions per 32 elements", values, "{:.0f}".format), time]
    if number == 4:
        each = {"Finish::all_atomic": lambda s: s["elements"], "with_atomics": tiles}
        atomics = of_steps(lambda s: each.get(kind(s["name"]), lambda s: None)(s))  # partial sums need none
        return [pictures.Column("atomics (logarithmic)", atomics, "{:,}".format, log=True), flight, apart]
    if number == 5:
        return [pictures.Column("instructions per warp (log.)", *counter("instructions per warp"), log=True), apart]
    order = pictures.Column("the order of additions", ORDERS)
    sums = of_steps(lambda s: s["us"])
    return [order, pictures.Column("sum, µs (logarithmic)", sums, report.number, log=True, line=ceiling_us)]


ORDERS = {  # what it depends on
    "grid_stride": "block, elements per thread and n",
    "multi_element": "when each block arrives: differs from run to run",
    "engine": "n alone, on every device",
    "cub": "not documented",
    "torch_sum": "the shape and the GPU",
    "fixed_point": "nothing: any order has the same bits",
}
SHOWN = {  # of a chapter, what its picture is about
    1: "what each rung loads, and its time",
    2: "shared memory saves bytes, loads in flight save time",
    3: "bank conflicts, instructions and time",
    4: "fewer atomics and more loads",
    5: "instructions of a warp, and time",
    6: "what the order depends on, and the time",
}


def shown_steps(results, number):
    """The steps in a chapter's picture: its own rungs on the GPU, and in chapter 6 those that they follow."""
    own = {rung.name for rung in ladder.rungs() if rung.chapter == number and rung.number > 0}
    names = set(ORDERS) if number == 6 else own
    return [step for step in results["climb"]["rungs"] if step["name"] in names]


def picture_path(slug, number):
    return f"images/ladder-chapter{number}-{slug}.svg"


def chapter_picture(slug, results, number):
    return [f"![Chapter {number} on {results['gpu']}: {SHOWN[number]}](../{picture_path(slug, number)})", ""]


def draw_chapter(results, number):
    steps, ceiling = shown_steps(results, number), results["climb"]["ceiling"]
    reads = number != 5
    title = f"Chapter {number} on {results['gpu']}: {SHOWN[number]}"
    note = f"Dashed: a kernel that only reads, {ceiling['us']:.1f} µs." if reads else ""
    names = [step["name"] for step in steps]
    shown = columns(number, steps, ceiling["us"] if reads else None)
    return pictures.chapter(title, names, shown, pictures.CHAPTERS[number - 1], note)


def profiled(steps):
    """The numbers that the lessons' profiler printed beside ours; nothing for steps without any."""
    rows = _climb.profiled_then(steps)
    head = ["rung", "counter", "then", "here", "printed in the book's chapter 3"]
    return [*report.table(head, rows), ""] if rows else []


def lesson(slug, results, title):
    """A lesson's printed figures beside ours, in int32 as there."""
    climb, printed = results["lesson"], _climb.LESSONS[title]
    steps = [step for step in climb["rungs"] if step["name"] in printed]
    if len(steps) < len(printed):
        return ["not measured yet", ""]
    lines = ["```", title, *_climb.lesson_table(steps, printed), "```", "", "Where they disagree:", ""]
    for item in _climb.disagreements(steps, printed, climb["ceiling"]["gbps"]):
        lines += wrapped(item, "  ")
    lines += ["", *wrapped(_climb.COUNTED), "", *profiled(steps)]
    counters = counter_table(climb, printed)
    return lines + (
        report.folded("The counters here, on ints, by the number of the rung", counters[:-1]) if counters else []
    )


def before(slug, results):
    """What the book's chapter 3 prints before its kernels: the CPU's recursion and the warm-up."""
    ints = {step["name"]: step for step in results["lesson"]["rungs"]}
    here = {step["name"]: step for step in results["climb"]["rungs"]} | ints
    head = ["printed", "then, ms", "here, ms", "rung", "what it is to it"]
    table = [
        [name, then, ms, f"{rung}, {'int32' if rung in ints else 'float32'}", note]
        for name, then, rung, ms, note in _climb.before_rows(list(here.values()))
    ]
    note = f"Then: Tesla M2070. Here: {results['gpu']}, and a CPU that calls itself {results['cpu_name']}."
    return [*report.table(head, table), "", *wrapped(note), ""]


# --- effective bandwidth ----------------------------------------------------------------------------------------------

KINDS = ("in_place", "in_passes", "with_atomics", "writing", "from_library", "on_cpu", "exactly", "Finish::all_atomic")


def source_of(name):
    rung = next(rung for rung in ladder.rungs() if rung.name == name)
    return (lessons.FOLDER / rung.file).read_text(encoding="utf-8")


def kind(name):
    """How a rung is registered: in its file, as a library without CUDA does not know."""
    return next(kind for kind in KINDS if re.search(rf"\b{kind}\b[(}}]", source_of(name)))


def tiles(step):
    """How many blocks the kernel has."""
    return math.ceil(step["elements"] / (step["block"] * step["elements_per_thread"]))


def asked(step):
    """(read, written): elements of global memory that the kernel's own loads and stores ask for, each counted."""
    n, how = step["elements"], kind(step["name"])
    if how == "on_cpu":  # n - 1 additions in place, and the result
        return 2 * (n - 1) + 1, n
    if how == "writing":
        return 0, n
    if how == "from_library":  # the least: how many partial sums a library writes is its own affair
        return n, 1
    if how == "Finish::all_atomic":
        return n, n
    blocks, block, loads = tiles(step), step["block"], step["elements_per_thread"]
    if how == "exactly":  # a block's ten digits, which are as long as two floats, and its marks
        return n, 21 * blocks
    if how != "in_place":
        return n, blocks
    # A tree in global memory: an addition reads two elements and writes one. The last warp takes six steps as a whole.
    additions = block - 64 + 6 * 32 if "add_last_warp" in source_of(step["name"]) else block - 1
    first = block if loads > 1 else 0  # what the threads store before the tree
    return blocks * (first * loads + 2 * additions + 1), blocks * (first + additions + 1)


def effective(slug, results, chapter=None):
    """The effective bandwidth of every rung, or of a chapter's, and what of it the DRAM read."""
    table = []
    wanted = {rung.name for rung in ladder.rungs() if chapter in (None, rung.chapter)}
    for step in (step for step in results["climb"]["rungs"] if step["name"] in wanted):
        item = step["bytes"] / step["elements"]
        read, written = (count * item for count in asked(step))
        us = _climb.kernel_us(step)
        table.append(
            [
                step["name"],
                *(pictures.bytes_text(count) for count in (read, written)),
                report.number(us),
                f"{(read + written) / us / 1e3:,.1f}" if us > 1e4 else f"{(read + written) / us / 1e3:,.0f}",
                _climb.cell_text("DRAM read throughput", step.get("counters", {})),
            ]
        )
    head = ["rung", "read", "written", "kernel, µs", "effective, GB/s", "DRAM read throughput"]
    return [f"{results['gpu']}, {results['date']}:", "", *report.table(head, table), ""]


def blocks(slug, results):
    """µs of each rung's kernel at each block."""
    sizes = list(results["blocks"])
    table = [
        [step["name"], *(report.number(_climb.kernel_us(results["blocks"][size][i])) for size in sizes)]
        for i, step in enumerate(results["blocks"][sizes[0]])
    ]
    return [*report.table(["rung", *(f"block {size}, µs" for size in sizes)], table), ""]


LESSON_BLOCKS = [  # (what a rung's source says, the block of that lesson or None, where it is printed)
    ("simpleDivergence", 64, "the book, simpleDivergence, if no block is given"),
    ("chapter 3, recursive", None, "the CPU has no block"),
    ("2014), chapter 3", 512, "the book, chapter 3"),
    ("2014), chapter 5", 128, "the book, chapter 5"),
    ("Kepler", 512, "Luitjens, first launch"),
    ("Optimizing Parallel Reduction", 128, "Harris, all kernels"),
    ("", None, "not stated"),
]


def lesson_block(rung):
    """(block or None, where it is printed) of the lesson that a rung comes from."""
    if rung.source.startswith("This library") or rung.chapter == 6:
        return None, "no lesson"
    return next((block, where) for words, block, where in LESSON_BLOCKS if words in rung.source)


def lesson_blocks(slug, results):
    """The blocks of the lessons beside ours, and what each rung's kernel takes with both."""
    known = {size: {s["name"]: s for s in steps} for size, steps in results["blocks"].items()}
    table = []
    for rung in ladder.rungs():
        step = next((s for s in results["climb"]["rungs"] if s["name"] == rung.name), {})
        block, where = lesson_block(rung)
        if step.get("block") is None:
            continue
        ours, theirs = (known.get(str(b), {}).get(rung.name) for b in (step["block"], block))
        table.append(
            [rung.name, where, "–" if block is None else str(block), str(step["block"])]
            + [report.number(_climb.kernel_us(s)) if s else "–" for s in (theirs, ours)]
        )
    head = ["rung", "source", "lesson's block", "block here", "lesson's block, µs", "block here, µs"]
    return [f"{results['gpu']}, {results['date']}:", "", *report.table(head, table), ""]


def elements(slug, results):
    """multi_element at 2^28 floats, for each N, and the bar."""
    large = results["large"]
    table = [
        [
            str(step["elements_per_thread"]),
            report.number(step["us"]),
            f"{step['gbps']:,.0f}",
            f"{step['gbps'] / large['ceiling']['gbps']:.1%}",
        ]
        for step in large["rungs"]
    ]
    step, share = best_large(results)
    met = "met" if share >= BAR else "**NOT MET**"
    return [
        *report.table(["N", "µs", "GB/s", "of the ceiling"], table),
        "",
        f"2^28 float32; the ceiling there is {large['ceiling']['gbps']:,.0f} GB/s. "
        f"The bar, {BAR:.0%} of it at the best N: {met}, {share:.1%} with N = {step['elements_per_thread']}.",
        "",
    ]


def contract_hash():
    """What the times of chapter 7's kernel are known by."""
    return hashlib.sha256(CONTRACT.read_bytes()).hexdigest()


def contract(slug, results):
    """The kernel of chapter 7 beside multi_element; nothing where it was not timed."""
    if "contract" not in results:
        return []
    known = results["contract"]
    older = since(of_the_ladder(results))
    if known["file"] != contract_hash():
        older += "; since then the kernel has changed"
    table = [[f"`{step['name']}`", report.number(step["us"]), f"{step['gbps']:,.0f}"] for step in known["rungs"]]
    lines = wrapped(f"{results['gpu']}, {results['date']}{older}: 2^24 float32, 16 elements per thread.")
    return [*lines, "", *report.table(["kernel", "kernel, µs", "GB/s"], table), ""]


def picture(slug, results):
    text = f"Time of each rung on {results['gpu']}, one dot per rung, log scale"
    return [f"![{text}](docs/images/ladder-{slug}.svg)", ""]


# --- does the lesson still hold ---------------------------------------------------------------------------------------

GPUS = {"h100": "NVIDIA H100", "h200": "NVIDIA H200"}  # a column each, measured or not


def verdict(rung, results):
    """Whether the rung's counter moved as the lesson means it to, and whether it is faster than the one before."""
    for climb in (results["lesson"], results["climb"]):  # ints as in the lesson, where there are
        known = {step["name"]: step for step in climb["rungs"]}
        if {rung.name, rung.before} <= set(known):
            break
    else:
        return "not measured"
    step, before = known[rung.name], known[rung.before]
    ratio = _climb.kernel_us(before) / _climb.kernel_us(step)
    faster, speed = ratio > 1 + _climb.NOTICED, times(ratio, 1)
    counter, _, way = rung.moves.rpartition(" ")
    mine, theirs = step.get("counters", {}), before.get("counters", {})
    if counter not in mine or counter not in theirs:
        return f"{'yes' if faster else '**no**'}: {speed}"
    change = _climb.moved(theirs[counter], mine[counter])
    did = (change if way == "up" else -change) > _climb.NOTICED
    word = ("yes" if did else "time alone") if faster else ("**counter alone**" if did else "**no**")
    values = f"{_climb.value_text(counter, theirs[counter])} → {_climb.value_text(counter, mine[counter])}"
    return f"{word}: {values}; {speed}"


def holds(all_results):
    """A row for each rung that claims something of a lesson, a column a GPU; and which results are older than csrc/."""
    measured = dict(all_results)
    names = GPUS | {slug: results["gpu"] for slug, results in all_results}
    printed = {name: seconds for lesson in _climb.LESSONS.values() for name, seconds in lesson.items()}
    table, verdicts = [], []
    for rung in ladder.rungs():
        if not rung.before or rung.chapter == 6:
            continue
        then = printed[rung.before] / printed[rung.name] if {rung.name, rung.before} <= set(printed) else None
        cells = [verdict(rung, measured[slug]) if slug in measured else "not measured" for slug in names]
        table.append((rung, [rung.before, rung.moves or "time alone", times(then, 1) if then else "not printed"]))
        verdicts.append([f"{rung.number} {rung.name}", *cells])
    head = ["rung", "compared with", "meant to move", "then"]
    missing = [name for slug, name in names.items() if slug not in measured]
    note = f"Not measured yet: {', '.join(missing)}. There `python bench/ladder.py --save` fills the column."
    notes = [wrapped(note)] if missing else []
    for _, results in all_results:
        if older := since(of_the_ladder(results)):
            notes.append(wrapped(f"{results['gpu']} was measured on {results['date']}{older}."))
    tables = [*rung_table(head, table), *report.table(["rung", *names.values()], verdicts), ""]
    return [*tables, *(line for lines in notes for line in [*lines, ""])]


# --- what differs from the lessons ------------------------------------------------------------------------------------


def difference(rung):
    """The comment "Differs from the lesson" of a rung's file, on one line."""
    comment = re.search(r"// Differs from the lesson: ((?:.*\n)(?://.*\n)*)", source_of(rung.name))[1]
    text = " ".join(line.removeprefix("//").strip() for line in comment.splitlines())
    parts = text.split("`")  # every second one is code
    parts[::2] = [re.sub(r"\b(?:__|add_last_warp)\w*", r"`\g<0>`", part) for part in parts[::2]]
    return "`".join(parts)


def differences():
    known = (f"- **{rung.number} {rung.name}**: {difference(rung)}" for rung in ladder.rungs() if rung.chapter < 6)
    return report.folded("What each file says about its lesson", [*known])


# --- who adds what ----------------------------------------------------------------------------------------------------


def who_adds_what(marker):
    """Of a marker "steps neighbored,interleaved block 8": each rung's steps, from its emulated accesses."""
    names, block = re.fullmatch(r"steps (\S+?)(?: block (\d+))?", marker).groups()
    lines = ["```"]
    for name in names.split(","):
        found = _step.traced(name, int(block) if block else None)
        lines += [""] * (len(lines) > 1) + [_step.title(found), *_step.listing(found, _step.steps_of(found))]
    return [*lines, "```", ""]


def step_picture(name):
    """The picture of a rung's steps."""
    found = _step.traced(name)
    return _step.svg(found, _step.steps_of(found))


# --- whole programs ---------------------------------------------------------------------------------------------------


def program(marker):
    """Of a marker "program sum": the source of programs/sum.cu; of "ran sum": what it prints, emulated."""
    kind, name = marker.split()
    file = _whole.FIRST.parent / f"{name}.cu"
    if kind == "program":
        return ["```cuda", *file.read_text(encoding="utf-8").rstrip().splitlines(), "```", ""]
    ran = _whole.run(file)
    text = [part for line in [*ran.printed.splitlines(), *_whole.report(ran)] for part in wrapped(line, "    ")]
    return ["```", *text, "```", ""]


def balance(slug, results):
    """How many instructions a thread has time for while one float arrives: of the ceiling, and of a kernel that only
    computes."""
    climb = results["climb"]
    step = next(step for step in climb["rungs"] if step["name"] == "long_by_warp")
    floats = climb["ceiling"]["gbps"] / 4  # in a nanosecond
    instructions = step["elements"] * step["counters"]["instructions per warp"] / _climb.kernel_us(step) / 1e3
    text = (
        f"{results['gpu']}, {results['date']}: a kernel that only reads gets {climb['ceiling']['gbps']:,.0f} GB/s, "
        f"which is {floats:,.0f} floats in a nanosecond. `long_by_warp` of chapter 5, which only computes, does "
        f"{instructions:,.0f} instructions of threads in a nanosecond. So there is time for "
        f"{instructions / floats:.0f} instructions while one float arrives, and the sum needs one of them."
    )
    return [*wrapped(text), ""]


# --- the pages in other languages -------------------------------------------------------------------------------------

FEW = (  # the rungs of their table
    *("neighbored", "interleaved", "unrolling8", "smem", "smem_unroll4", "interleaved_strided"),
    *("sequential_addressing", "grid_stride", "atomic", "warp_shuffle", "multi_element"),
    *("long_by_thread", "long_by_warp", "engine"),
)
LANGUAGES = {  # the table's head, what its figures are, what is said if sources have changed since, and their names
    "zh": (
        ["级", "章", "求和，µs", "GB/s", "加速比"],
        "{gpu}，{date}。µs 和加速比是整个求和的，GB/s 是核函数的（`engine` 是整个求和的）。",
        "测量之后有改动的源码：{}。",
        {"ladder": "阶梯的核函数", "sums": "`engine`"},
    ),
    "es": (
        ["peldaño", "capítulo", "suma, µs", "GB/s", "aceleración"],
        "{gpu}, {date}. Los µs y la aceleración son de la suma entera; los GB/s, del kernel (de `engine`, de la suma).",
        " Lo que ha cambiado desde entonces: {}.",
        {"ladder": "los kernels de la escalera", "sums": "`engine`"},
    ),
}


def few(slug, results, language):
    """A few rungs of each chapter: time, rate, speed-up."""
    head, note, older, names = LANGUAGES[language]
    table = [
        [f"[{rung.number} {rung.name}](../../csrc/ladder/{rung.file})", str(rung.chapter), cells[1], cells[2], cells[5]]
        for rung, cells in rows(results["climb"], FEW)
    ]
    changed = [names[part] for part, known in measured_on(results).items() if provenance.changed({part: known})]
    stale = older.format(", ".join(changed)) if changed else ""
    return [note.format(**results) + stale, "", *report.table(head, table), ""]


# --- the pages --------------------------------------------------------------------------------------------------------

SOURCES = {"counters": counter_names, "differs": differences}  # made without results
PARTS = {  # made of the results that are shown
    "measured": source_lines,
    "effective": effective,
    "effective 2": lambda slug, results: effective(slug, results, 2),
    **{f"chapter {n}": lambda slug, results, n=n: chapter(slug, results, n) for n in range(1, 7)},
    **{f"{t.split(':')[0]} then": lambda slug, results, title=t: lesson(slug, results, title) for t in _climb.LESSONS},
    "Chapter 5 then": lambda slug, results: profiled_only(slug, results, 5),
    "before": before,
    "balance": balance,
    "blocks": blocks,
    "lesson blocks": lesson_blocks,
    "elements": elements,
    "contract": contract,
    **{f"few {name}": lambda slug, results, name=name: few(slug, results, name) for name in LANGUAGES},
}
TOGETHER = {"holds": holds}  # made of all GPUs' results
UNMEASURED = ["not measured yet", ""]


def readme(slug, results):
    _, share = best_large(results)
    text = (
        f"Rung 25, `multi_element`, reads 2^28 floats at {share:.1%} of the rate of the fastest kernel that only "
        f"reads. The picture has the time of each rung for 2^24 floats on {results['gpu']}, measured on "
        f"{results['date']} with torch {results['torch']}{since(measured_on(results))}."
    )
    return [*wrapped(text), "", *picture(slug, results)]


def pages(root):
    """{path under root: text} of the pages with parts."""
    paths = [pathlib.Path(root, START), *sorted(pathlib.Path(root, FOLDER).glob("*.md"))]
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def shown_of(all_results):
    """The results that the chapters show: of one GPU, so that they stay short; the last of GPUS that is measured."""
    order = list(GPUS)
    return sorted(all_results, key=lambda pair: order.index(pair[0]) if pair[0] in order else -1)[-1:]


def documents(root, all_results):
    """{path under root: text} of all that is made."""
    made = pages(root)
    shown = shown_of(all_results)
    parts = {name: make() for name, make in SOURCES.items()}
    for name, make in PARTS.items():
        parts[name] = [line for slug, results in shown for line in make(slug, results)] or UNMEASURED
    for name, make in TOGETHER.items():
        parts[name] = make(all_results) if all_results else UNMEASURED
    for path, text in made.items():
        parts |= {name: who_adds_what(name) for name in re.findall(r"<!-- ladder:(steps [^>]+) -->", text)}
        parts |= {name: program(name) for name in re.findall(r"<!-- ladder:((?:program|ran) \w+) -->", text)}
        names = re.findall(r"<!-- ladder:([^>]+) -->", text)
        if unknown := set(names) - set(parts):
            raise ValueError(f"{path} has markers for {', '.join(unknown)}, which nothing is made for, or another page")
        for name in names:
            made[path] = report.fill(made[path], f"ladder:{name}", parts.pop(name, []), NOTE)
    if parts:
        missing = ", ".join(f"<!-- ladder:{name} -->" for name in parts)
        raise ValueError(f"no page of {FOLDER} has the markers {missing}")
    start = pathlib.Path(root, "README.md").read_text(encoding="utf-8")
    lines = [line for slug, results in shown for line in readme(slug, results)]
    made["README.md"] = report.fill(start, "ladder:summary", lines or UNMEASURED, NOTE)
    drawn = {name for text in made.values() for name in re.findall(r"images/steps-(\w+)\.svg", text)}
    made |= {f"docs/images/steps-{name}.svg": step_picture(name) for name in sorted(drawn)}
    made |= {f"docs/images/idea-{name}.svg": draw() for name, draw in pictures.IDEAS.items()}
    for slug, results in shown:
        made[f"docs/images/ladder-{slug}.svg"] = pictures.ladder(results, ladder.rungs())
        made |= {f"docs/{picture_path(slug, number)}": draw_chapter(results, number) for number in SHOWN}
    return made


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the repository")
    options = parser.parse_args(arguments)
    made = documents(options.root, report.load_results(options.root, "ladder.json"))
    if options.check:
        report.compare(options.root, made, [], "python bench/ladder_report.py")
    else:
        report.write(options.root, made, [])


if __name__ == "__main__":
    main()
