"""What the numbers of a results file say: ratios, losses, means, and which bars are met. Standard library only."""

import dataclasses
import statistics

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


def means(cases):
    """{rival: (cases, geometric mean, worst)} of the ratios."""
    result = {}
    for rival in RIVALS:
        values = [value for _, _, value in ratios(cases, (rival,))]
        if values:
            result[rival] = (len(values), statistics.geometric_mean(values), values[0])
    return result


# --- bars ---------------------------------------------------------------------------------------------------


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


def contiguous(case):
    """Full sums, rows of 32 elements and more, columns; cold."""
    wide = case["family"] in ("full", "columns") or (case["family"] == "rows" and case["shape"][1] >= 32)
    return wide and not case["hot"]


def bars(results):
    """Every bar of the issue that set them, on one results file."""
    cases, cpu = results["cases"], results.get("cpu", {}).get("cases", [])
    plain = [c for c in cases if contiguous(c)]
    small = [c for c in cases if c["family"] == "full" and 2**10 <= c["shape"][0] <= 2**20]
    found = [_against("no cell slower than torch.sum, torch.compile or CUB", cases, RIVALS)]
    mean = means(cases).get("torch")
    what = "geometric mean of 2.5× over torch.sum"
    if mean:
        found.append(Bar(what, mean[1] >= 2.5, f"{mean[1]:.2f}× of {mean[0]} cells", []))
    else:
        found.append(Bar(what, None, "not measured", []))
    big = [c for c in plain if c["input_bytes"] >= 256 * MIB]
    found.append(_of_read("97% of read (float8: 95%) for contiguous inputs of 256 MiB and more", big, 97, 95))
    middle = [c for c in plain if 16 * MIB <= c["input_bytes"] <= 64 * MIB]
    found.append(_of_read("90% of read for contiguous inputs of 16 to 64 MiB", middle, 90))
    strange = [c for c in cases if c["family"] == "awkward"]
    found.append(_of_read("85% of read for awkward layouts, counted in sectors", strange, 85))
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
    found.append(_against("CPU: no cell slower than torch.sum", cpu, ("torch",)))
    return found


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
        for rival, (count, mean, worst) in means(some).items():
            lines.append(f"against {RIVALS[rival]:<14}{count:4} cells, geometric mean {mean:.2f}×, worst {worst:.2f}×")
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
