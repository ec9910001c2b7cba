"""What the numbers of a results file say: ratios, losses, means, and which bars are met. Standard library only.

`us` of a GPU's cell is the time between kernels that do not start early, and `us_back_to_back` stands beside it. Cells
of older files have no such key: all of their times are back to back, and are called so.
"""

import dataclasses
import statistics
from collections.abc import Callable

RIVALS = {"torch": "torch.sum", "compile": "torch.compile", "cub": "CUB"}
MIB = 2**20

# Where the host time of a sum goes (grid.py), and the ways to launch a kernel that does nothing, as what Library in
# cub/__init__.py is told: whether it may start early, and whether it has arguments.
STAGES = ("checks, the result's memory", "description of the problem", "plan", "launch")
LAUNCHES = {
    "without arguments": (False, False),
    "with 512 bytes of them": (False, True),
    "with 512 bytes of them and early, as a sum may be": (True, True),
}


def measured(cases):
    return [case for case in cases if "us" in case]


def gbps(case, name="ours"):
    """Bytes that must move over the time of `name`; what only reads moves the input's alone."""
    return case["input_bytes" if name == "read" else "bytes"] / case["us"][name] / 1e3


def between(case):
    """Whether the cell's headline was measured between kernels that do not start early."""
    return "us_back_to_back" in case


def back_to_back(case):
    """The cell with its times back to back in place of the headline; None where that is not kept beside it."""
    if not between(case):
        return None
    return {**case, "us": case["us_back_to_back"], "spread": case["spread_back_to_back"], "unsettled": ()}


def all_back_to_back(cases):
    return [beside for case in measured(cases) if (beside := back_to_back(case))]


def percent(case):
    """Our rate over the rate of a kernel that only reads the input; None without one."""
    if "read" not in case["us"]:
        return None
    return 100 * gbps(case) / gbps(case, "read")


def ratio(case, rival):
    """Their time over ours; None where they did not run."""
    return case["us"][rival] / case["us"]["ours"] if rival in case["us"] else None


def ratios(cases, rivals=RIVALS):
    """(case, rival, ratio) of all that ran, worst first."""
    found = [(c, r, ratio(c, r)) for c in measured(cases) for r in rivals if r in c["us"]]
    return sorted(found, key=lambda item: item[2])


def losses(cases, rivals=RIVALS):
    """(case, rival, ratio) of each faster rival, worst first."""
    return [item for item in ratios(cases, rivals) if item[2] < 1]


def settled(case, rival):
    """Whether the measured difference is more than noise."""
    return rival not in case.get("unsettled", ())


def planned_and_launched(stages):
    """Microseconds from a result that has its memory until the launches are queued."""
    return sum(stages[name] for name in STAGES[1:])


def best_rival(case):
    """(rival, ratio) of the fastest one, or None."""
    found = [(rival, ratio(case, rival)) for rival in RIVALS if rival in case["us"]]
    return min(found, key=lambda item: item[1], default=None)


@dataclasses.dataclass
class Means:
    """Of the ratios to one rival: in how many cells, their geometric mean, median, the worst, and where that is."""

    cells: int
    mean: float
    median: float
    slower: int
    worst: float
    where: str


def means(cases, rivals=RIVALS):
    """{rival: Means} of the rivals that ran."""
    result = {}
    for rival in rivals:
        found = ratios(cases, (rival,))
        values = [value for _, _, value in found]
        if values:
            slower = sum(value < 1 for value in values)
            mean, median = statistics.geometric_mean(values), statistics.median(values)
            result[rival] = Means(len(values), mean, median, slower, values[0], found[0][0]["name"])
    return result


# --- classes: one mean over all cells hides what it is made of ----------------------------------------------

A_BLOCK_EACH, FIXED_SIZE = "a block each", "of one fixed size"  # how CUB sums rows: what `cub_segments` says
SHORT_ROW = 512  # elements
FLOATS = ("float32", "bfloat16")
WHOLE_NUMBERS = ("int8", "uint8", "bool", "int32", "int64")


def has_short_rows(case):
    return case["family"] in ("rows", "odd") and case["shape"][-1] < SHORT_ROW


def is_narrow(case):
    """8-bit and integer dtypes, which torch.sum converts one by one."""
    return case["dtype"] in WHOLE_NUMBERS or case["dtype"].startswith("float8")


def is_plain_float(case):
    return case["dtype"] in FLOATS and not case["sum_dtype"]


@dataclasses.dataclass(frozen=True)
class Class:
    """Cells that have something in common, and the rivals that it matters to."""

    name: str
    rivals: tuple
    holds: Callable


_BOTH = ("torch", "compile")
CLASSES = (  # each cell is in one of the classes of a rival: the first that holds
    Class(f"rows of fewer than {SHORT_ROW} elements", _BOTH, has_short_rows),
    Class("8-bit and integer dtypes", _BOTH, is_narrow),
    Class("float32 and bfloat16, 64 MiB and more", _BOTH, lambda c: is_plain_float(c) and c["input_bytes"] >= 64 * MIB),
    Class("float32 and bfloat16, less than 64 MiB", _BOTH, is_plain_float),
    Class("other dtypes, and sums in another one", _BOTH, lambda c: True),
    Class("sums of all elements", ("cub",), lambda c: c["dim"] is None),
    Class("segments: sums of rows", ("cub",), lambda c: True),
)


def class_of(case, rival):
    return next(c for c in CLASSES if rival in c.rivals and c.holds(case))


def means_of_classes(cases):
    """[(rival, class, Means)] of those that have cells, in the order of RIVALS and CLASSES."""
    found = []
    for rival in RIVALS:
        for some in CLASSES:
            own = [c for c in cases if rival in some.rivals and class_of(c, rival) is some]
            found += [(rival, some, mean) for mean in means(own, (rival,)).values()]
    return found


def segments(results):
    """How CUB summed rows; files that do not say are of CUB 3.0, which knows one way."""
    return results.get("cub_segments", A_BLOCK_EACH)


# --- above the read ceiling ---------------------------------------------------------------------------------


def _noise(case):
    """The width of our quartiles and of reading's, as a share."""
    return 2 * (case["spread"]["ours"] + case["spread"]["read"])


def _result_counts(case, results):
    return percent(case) * case["input_bytes"] / case["bytes"] <= 100 * (1 + _noise(case))


def _short(case, results):
    rate = results.get("ceiling", {}).get("gbps")
    return bool(rate) and gbps(case, "read") < rate / 2 and not case["hot"]


REASONS = {  # of a cell above 100% of read: word -> (what it means, whether it holds of (case, results))
    "noise": ("the quartiles of the two times are wider than the difference", lambda c, _: _above(c) <= _noise(c)),
    "result": ("the result's bytes count as moved, and the reading kernel writes none", _result_counts),
    "short": ("the reading kernel comes to less than half of the rate of 1 GiB: it mostly starts and ends", _short),
    "cache": (
        "hot, and smaller than the L2: nothing is read from memory, which the reading kernels are made for",
        lambda c, results: c["hot"] and c["input_bytes"] <= results.get("l2_bytes", 0),
    ),
    "back to back": (
        "an older measurement: our kernel starts while the one before drains, and the reading kernel did not",
        lambda c, _: not between(c),
    ),
}


def _above(case):
    return percent(case) / 100 - 1


def above_read(case, results):
    """The word in REASONS for a cell above 100% of read, "" where none holds, None where it is not above."""
    if "us" not in case or percent(case) is None or _above(case) <= 0:
        return None
    return next((word for word, (_, holds) in REASONS.items() if holds(case, results)), "")


# --- bars ---------------------------------------------------------------------------------------------------


LOST = "no cell slower than torch.sum, torch.compile or CUB"  # the bars whose cells are the list of what is lost
LOST_ON_CPU = "CPU: no cell slower than torch.sum"


@dataclasses.dataclass
class Bar:
    """`met` is None where nothing was measured that could tell; `below` names what is under the bar, worst first."""

    what: str
    met: bool | None
    found: str
    below: list


def _of_all(what, values, least, form):
    """The bar that every one of `values`, as (value, name), is at least `least`, or at least its own third member."""
    values = sorted((value, name, *rest) for value, name, *rest in values)
    if not values:
        return Bar(what, None, "not measured", [])
    below = [f"{name} {form(value)}" for value, name, *rest in values if value < (rest[0] if rest else least)]
    return Bar(what, not below, f"{len(values) - len(below)} of {len(values)} are; worst {form(values[0][0])}", below)


def _at_most(what, values, most, form):
    """The bar that every one of `values`, as (value, name), is at most `most`."""
    return _of_all(what, [(-value, name) for value, name in values], -most, lambda negative: form(-negative))


def _times(value):
    return f"{value:.3f}×"


def _percent(value):
    return f"{value:.1f}%"


def _against(what, cases, rivals):
    named = [(r, f"{case['name']} (of {RIVALS[rival]})") for case, rival, r in ratios(cases, rivals)]
    return _of_all(what, named, 1.0, _times)


def _of_read(what, cases, least, float8=None):
    values = [
        (percent(c), c["name"], float8 if float8 and c["dtype"].startswith("float8") else least)
        for c in measured(cases)
        if "read" in c["us"]
    ]
    return _of_all(what, values, least, _percent)


def _explained(what, cases, results):
    above = [(c, above_read(c, results)) for c in cases]
    above = [(c, word) for c, word in above if word is not None]
    if not any("read" in c["us"] for c in measured(cases)):
        return Bar(what, None, "not measured", [])
    below = sorted(((percent(c), c["name"]) for c, word in above if not word), reverse=True)
    text = f"{len(above) - len(below)} of {len(above)} above it have one"
    return Bar(what, not below, text, [f"{name} {_percent(value)}" for value, name in below])


def contiguous(case):
    """Full sums, rows of 32 elements and more, columns; cold."""
    wide = case["family"] in ("full", "columns") or (case["family"] == "rows" and case["shape"][1] >= 32)
    return wide and not case["hot"]


def bars(results):
    """Every bar of the issue that set them, on one results file."""
    cases, cpu = results["cases"], results.get("cpu", {}).get("cases", [])
    plain = [c for c in cases if contiguous(c)]
    small = [c for c in cases if c["family"] == "full" and 2**10 <= c["shape"][0] <= 2**20]
    found = [_against(LOST, cases, RIVALS)]
    all_of_them = means(cases).get("torch")
    what = "geometric mean of 2.5× over torch.sum"
    if all_of_them:
        text = f"{all_of_them.mean:.2f}× of {all_of_them.cells} cells, median {all_of_them.median:.2f}×"
        found.append(Bar(what, all_of_them.mean >= 2.5, text, []))
    else:
        found.append(Bar(what, None, "not measured", []))
    big = [c for c in plain if c["input_bytes"] >= 256 * MIB]
    found.append(_of_read("97% of read (float8: 95%) for contiguous inputs of 256 MiB and more", big, 97, 95))
    middle = [c for c in plain if 16 * MIB <= c["input_bytes"] <= 64 * MIB]
    found.append(_of_read("90% of read for contiguous inputs of 16 to 64 MiB", middle, 90))
    strange = [c for c in cases if c["family"] == "awkward"]
    found.append(_of_read("85% of read for awkward layouts, counted in sectors", strange, 85))
    found.append(_explained("no cell above 100% of read without a reason", cases, results))
    found.append(_against("2^10 to 2^20 elements in a graph no slower than CUB", small, ("cub",)))
    for name, most in (("torch.ops.gpureduce.sum", 1.3), ("torch_reduce.sum", 1.0)):
        values = [
            (rows[name]["host_us"] / rows["torch.sum"]["host_us"], what)
            for what, rows in results.get("small_calls", {}).items()
        ]
        found.append(
            _at_most(f"host time of {name} at most {most:.1f}× of torch.sum's", values, most, "{:.2f}×".format)
        )
    planned = [(planned_and_launched(rows), what) for what, rows in results.get("stages", {}).items()]
    found.append(_at_most("planning and launching of a sum at most 2 µs", planned, 2, "{:.2f} µs".format))
    found.append(_against(LOST_ON_CPU, cpu, ("torch",)))
    return found


def verdicts(results):
    """A line for each rival, of the GPU or of the CPU: of how many cells we are faster, of how many slower."""
    lines = []
    for where, cases in (("", results["cases"]), (" on the CPU", results.get("cpu", {}).get("cases", []))):
        for rival, m in means(measured(cases)).items():
            pairs = [(case, value) for case, _, value in ratios(measured(cases), (rival,))]
            faster, slower = (sum(settled(c, rival) and sign * (v - 1) > 0 for c, v in pairs) for sign in (1, -1))
            as_fast = f", {m.cells - faster - slower} as fast" if faster + slower < m.cells else ""
            text = f"{m.cells} cells beside {RIVALS[rival]}{where}: {faster} faster, {slower} slower{as_fast}"
            lines.append(f"{text}; geometric mean {m.mean:.2f}×")
    return lines


def summary_lines(results):
    """The end of a run, for people: losses first."""
    cases, cpu = results["cases"], results.get("cpu", {}).get("cases", [])
    lines = []
    for where, some in (("", cases), (" on the CPU", cpu)):
        if not measured(some):
            continue
        lost = losses(some)
        lines.append(f"Where another one is faster{where} ({len(lost)}):" if lost else f"Nobody is faster{where}.")
        for case, rival, r in lost:
            note = "" if settled(case, rival) else "   (within the noise)"
            lines.append(f"  {case['name']:<60} {RIVALS[rival]:<14} {r:.3f}×{note}")
        for rival, m in means(some).items():
            text = f"geometric mean {m.mean:.2f}×, median {m.median:.2f}×, worst {m.worst:.2f}×"
            beside = means(all_back_to_back(some), (rival,)).get(rival)
            more = f"; back to back {beside.mean:.2f}×, {beside.median:.2f}×" if beside else ""
            lines.append(f"against {RIVALS[rival]:<14}{m.cells:4} cells, {text}{more}")
        lines.append("")
    failed = [(c["name"], rival, error) for c in cases + cpu for rival, error in c.get("failed", {}).items()]
    if failed:
        lines.append(f"What another one does not do ({len(failed)}):")
        lines += [f"  {name:<60} {RIVALS.get(rival, rival):<14} {error}" for name, rival, error in failed]
        lines.append("")
    for bar in bars(results):
        if bar.met is not None:
            lines.append(f"{'met    ' if bar.met else 'NOT MET'} {bar.what}: {bar.found}")
    return lines
