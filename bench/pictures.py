"""The pictures of the results, written as SVG: the same results give the same bytes. Standard library only."""

import html
import math
from collections.abc import Callable
from dataclasses import dataclass

import bars

WHOLE = ("float32", "bfloat16")  # the dtypes that every layout is measured with; others stand in panels of their own
NAMES = {"ours": "torch_reduce", "read": "only reading"} | bars.RIVALS
COLOURS = {"ours": "#c0392b", "torch": "#2e86c1", "compile": "#8e44ad", "cub": "#27ae60", "read": "#7f8c8d"}
CHARACTER = 6.2  # pixels: what one takes at most, on average, at 11 pixels


def dtype_text(case):
    return case["dtype"] + (f" → {case['sum_dtype']}" if case["sum_dtype"] else "")


def times_text(value):
    """A ratio; below 1 with more digits, so that a loss does not look like 1.00."""
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:.0f}"


def how_timed(results):
    """What the cells' times are of: see bars.py."""
    cells = bars.measured(results["cases"])
    return "between kernels" if cells and all(map(bars.between, cells)) else "back to back"


# --- SVG ----------------------------------------------------------------------------------------------------


def _style(style):
    return "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())


def _text(x, y, text, anchor="start", **style):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{_style(style)}>{html.escape(text)}</text>'


def _rect(x, y, width, height, fill, **style):
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"{_style(style)}/>'


def _line(points, colour, **style):
    where = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{where}" fill="none" stroke="{colour}"{_style(style)}/>'


# Where the reader's screen is dark: the ground, what is written on it, and the lines of grids. Text on a coloured cell
# names its own colour, and stays as it is.
DARK = """<style>@media (prefers-color-scheme: dark) {
svg { fill: #e6edf3 } #ground { fill: #0d1117 }
text[fill="#666666"] { fill: #9198a1 } rect[fill="#f0f0f0"] { fill: #21262d }
[stroke="#dddddd"], [stroke="#eeeeee"] { stroke: #3d444d } [stroke="#222222"] { stroke: #e6edf3 }
}</style>"""


def _document(width, height, title, parts):
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" font-family="Helvetica, Arial, sans-serif" font-size="11" fill="#222222">'
    )
    ground = _rect(0, 0, width, height, "#ffffff", id="ground")
    start = [head, f"<title>{html.escape(title)}</title>", DARK, ground]
    return "\n".join([*start, *parts, "</svg>"]) + "\n"


# --- the heat map -------------------------------------------------------------------------------------------

CELL_W, CELL_H, GAP, HEAD, MARGIN = 38, 17, 8, 50, 14
ABREAST = 6  # rare dtypes in a panel


def panels(cases):
    """[(title, {group: {row: case}})]: a family in WHOLE's dtypes each, then all layouts in the others."""
    whole, rare = {}, {}
    for case in bars.measured(cases):
        dtype = dtype_text(case)
        if dtype in WHOLE:
            whole.setdefault(case["family"], {}).setdefault(dtype, {})[case["label"]] = case
        else:
            rare.setdefault(dtype, {})[f"{case['family']} {case['label']}"] = case
    found, names = list(whole.items()), list(rare)
    for at in range(0, len(names), ABREAST):
        found.append(("other dtypes", {name: rare[name] for name in names[at : at + ABREAST]}))
    return found


def colour(value):
    """(fill, text): white at 1×, red down to 0.8×, blue up to 4×, in steps of the logarithm."""
    full, deep = ((178, 24, 43), 0.8) if value < 1 else ((33, 102, 172), 4)
    t = min(1, math.log(value) / math.log(deep))
    if value < 1:
        t = 0.15 + 0.85 * t  # even a small loss is to be seen
    fill = "".join(f"{round(255 + (c - 255) * t):02x}" for c in full)
    return f"#{fill}", "#ffffff" if t > 0.55 else "#222222"


def _heat_cell(x, y, value, noise):
    fill, ink = colour(value)
    weight = "bold" if value < 1 else "normal"
    text = times_text(value) + "~" * noise
    middle = _text(x + CELL_W / 2, y + 12, text, "middle", font_size=10, font_weight=weight, fill=ink)
    return [_rect(x, y, CELL_W - 1, CELL_H - 1, fill), middle]


class _Panel:
    """A table of ratios: a row a layout, a column a dtype and rival."""

    def __init__(self, title, groups):
        self.title, self.groups = title, groups
        self.rows = list(dict.fromkeys(row for column in groups.values() for row in column))
        self.rivals = {
            dtype: [r for r in bars.RIVALS if any(r in c["us"] for c in column.values())]
            for dtype, column in groups.items()
        }
        self.label_w = CHARACTER * max(map(len, self.rows)) + GAP
        self.width = self.label_w + sum(len(r) * CELL_W + GAP for r in self.rivals.values())
        self.height = HEAD + len(self.rows) * CELL_H + 2 * GAP

    def draw(self, left, top):
        parts = [_text(left, top + 14, self.title, font_size=14, font_weight="bold")]
        for i, row in enumerate(self.rows):
            parts.append(_text(left, top + HEAD + i * CELL_H + 12, row))
        x = left + self.label_w
        for dtype, column in self.groups.items():
            parts.append(_text(x, top + HEAD - 18, dtype))
            for rival in self.rivals[dtype]:
                short = rival if rival != "cub" else "CUB"
                parts.append(_text(x + CELL_W / 2, top + HEAD - 5, short, "middle", font_size=9, fill="#666666"))
                for i, row in enumerate(self.rows):
                    y = top + HEAD + i * CELL_H
                    if row in column and rival in column[row]["us"]:
                        noise = not bars.settled(column[row], rival)
                        parts += _heat_cell(x, y, bars.ratio(column[row], rival), noise)
                    else:
                        parts.append(_rect(x, y, CELL_W - 1, CELL_H - 1, "#f0f0f0"))
                x += CELL_W
            x += GAP
        return parts


def heat_map(results):
    """Every ratio of the GPU's cells: the families in two columns, the rare dtypes below them."""
    made = [_Panel(title, groups) for title, groups in panels(results["cases"])]
    whole = [p for p in made if p.title != "other dtypes"]
    columns, heights = ([], []), [0, 0]
    for panel in whole:
        shorter = heights.index(min(heights))
        columns[shorter].append(panel)
        heights[shorter] += panel.height
    title = f"{results['gpu']}: how many times as fast as another one torch_reduce is, {how_timed(results)}"
    parts = [_text(MARGIN, 28, title, font_size=16, font_weight="bold"), *_scale(MARGIN, 40)]
    left, below, right = MARGIN, 84, MARGIN
    for column in columns:
        y = 84
        for panel in column:
            parts += panel.draw(left, y)
            y += panel.height
        left += max((p.width for p in column), default=0) + 3 * GAP
        below, right = max(below, y), max(right, left)
    for panel in made:
        if panel not in whole:
            parts += panel.draw(MARGIN, below)
            below, right = below + panel.height, max(right, MARGIN + panel.width)
    return _document(max(right + MARGIN, 640), below + MARGIN, title, parts)


def _scale(x, y):
    parts = []
    for value in (0.8, 0.9, 0.95, 1, 1.5, 2, 4):
        parts += _heat_cell(x, y, value, False)
        x += CELL_W
    note = "blue: torch_reduce is faster, 2.00 in half the time;  white: as fast;  red, bold: slower;"
    more = "~ within the noise;  grey: not measured, or the other one cannot"
    return [*parts, _text(x + GAP, y + 8, note), _text(x + GAP, y + 23, more)]


# --- bandwidth ----------------------------------------------------------------------------------------------

PLOT_W, PLOT_H, LEFT, TOP, BELOW = 400, 210, 52, 26, 40


def curves(cases):
    """{(dtype, hot): {name: [(bytes, GB/s)]}} of the full sums."""
    found = {}
    for case in bars.measured(cases):
        if case["family"] == "full" and dtype_text(case) in WHOLE:
            lines = found.setdefault((case["dtype"], case["hot"]), {})
            for name in case["us"]:
                lines.setdefault(name, []).append((case["input_bytes"], bars.gbps(case, name)))
    return {key: {name: sorted(points) for name, points in lines.items()} for key, lines in found.items()}


def bytes_text(nbytes):
    """In the unit in which it is at least 1, without needless digits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            return f"{nbytes:.0f} {unit}" if nbytes >= 10 or nbytes == int(nbytes) else f"{nbytes:.1f} {unit}"
        nbytes /= 1024


def _step(most):
    """1, 2 or 5 times a power of ten, that divides an axis to `most` into four to ten parts."""
    power = 10 ** math.floor(math.log10(most / 4))
    return max(power * k for k in (1, 2, 5) if power * k <= most / 4)


def _plot(left, top, title, lines, most):
    points = [x for line in lines.values() for x, _ in line]
    low, high = math.log2(min(points)), math.log2(max(points))

    def place(x, y):
        share = (math.log2(x) - low) / (high - low) if high > low else 0.5
        return left + LEFT + share * PLOT_W, top + TOP + (1 - y / most) * PLOT_H

    middle, bottom = left + LEFT + PLOT_W / 2, top + TOP + PLOT_H
    parts = [_text(middle, top + 14, title, "middle", font_size=13, font_weight="bold")]
    for i in range(int(most / _step(most)) + 1):
        _, y = place(min(points), i * _step(most))
        parts.append(_line([(left + LEFT, y), (left + LEFT + PLOT_W, y)], "#dddddd"))
        parts.append(_text(left + LEFT - 6, y + 4, f"{i * _step(most):,.10g}", "end"))
    for e in range(math.ceil(low), math.floor(high) + 1):
        if e % 4 == 0:  # the axis is logarithmic
            x, _ = place(2**e, 0)
            parts.append(_line([(x, top + TOP), (x, bottom)], "#eeeeee"))
            parts.append(_text(x, bottom + 15, bytes_text(2**e), "middle"))
    for name in ("read", "torch", "compile", "cub", "ours"):
        where = [place(x, y) for x, y in lines.get(name, ())]
        style = {"stroke_dasharray": "5 4"} if name == "read" else {}
        parts.append(_line(where, COLOURS[name], stroke_width=2.2 if name == "ours" else 1.4, **style))
        if name != "read":
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2" fill="{COLOURS[name]}"/>' for x, y in where]
    return parts


def bandwidth(results):
    """GB/s of full sums against bytes: from memory above from the cache, a dtype a column."""
    found = curves(results["cases"])
    title = f"{results['gpu']}: sum of all elements, GB/s (up) for inputs of so many bytes, {how_timed(results)}"
    parts = [_text(MARGIN, 28, title, font_size=16, font_weight="bold")]
    x = MARGIN
    for name in ("ours", "torch", "compile", "cub", "read"):
        style = {"stroke_dasharray": "5 4"} if name == "read" else {}
        parts.append(_line([(x, 46), (x + 22, 46)], COLOURS[name], stroke_width=2.2, **style))
        parts.append(_text(x + 27, 50, NAMES[name]))
        x += 50 + CHARACTER * len(NAMES[name])
    dtypes = [dtype for dtype in WHOLE if (dtype, False) in found or (dtype, True) in found]
    wide, high = LEFT + PLOT_W + 30, TOP + PLOT_H + BELOW
    for row, hot in enumerate((False, True)):
        shown = [lines for (_, h), lines in found.items() if h == hot]
        most = 1.05 * max((y for lines in shown for line in lines.values() for _, y in line), default=1)
        for column, dtype in enumerate(dtypes):
            if (dtype, hot) in found:
                where = "from the cache: one buffer, again and again" if hot else "from memory"
                parts += _plot(column * wide, 64 + row * high, f"{dtype}, {where}", found[dtype, hot], most)
    return _document(2 * wide, 64 + 2 * high, title, parts)


# --- the ladder ---------------------------------------------------------------------------------------------

CHAPTERS = ("#c0392b", "#d68910", "#2e86c1", "#27ae60", "#7f8c8d", "#8e44ad")
DIVERGENCE = 5  # the chapter whose kernels sum nothing
ROW, NAME_W, DOTS_W = 18, 190, 540


def ladder(results, rungs):
    """A dot a rung, at its time on a logarithmic axis, coloured by chapter; what sums nothing has its own panel."""
    climb = results["climb"]
    known = {rung.name: rung for rung in rungs if rung.device == "cuda"}
    steps = [step for step in climb["rungs"] if step["name"] in known]
    title = f"{results['gpu']}: time of each rung, in µs; further left is faster"
    parts = [_text(MARGIN, 28, title, font_size=16, font_weight="bold")]
    x = MARGIN
    for number in sorted({rung.chapter for rung in known.values()} - {DIVERGENCE}):
        name = f"{number} {next(rung.title for rung in rungs if rung.chapter == number)}"
        parts += [_dot(x + 5, 45, CHAPTERS[number - 1]), _text(x + 14, 49, name, font_size=10)]
        x += 30 + 5.8 * len(name)  # also where the font is a wide one
    sums, others = ([s for s in steps if (known[s["name"]].chapter == DIVERGENCE) == apart] for apart in (False, True))
    drawn, bottom = _dots("the whole sum of 2^24 float32", sums, known, 74, climb["ceiling"]["us"])
    parts += drawn
    if others:
        name = f"chapter {DIVERGENCE}, divergence: these kernels write 2^25 float32, and sum nothing"
        drawn, bottom = _dots(name, others, known, bottom + 2 * GAP)
        parts += drawn
    return _document(max(MARGIN + NAME_W + DOTS_W + 80, x), bottom, title, parts)


def _dot(x, y, colour):
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"/>'


def _dots(name, steps, known, y, ceiling=None):
    """(what is drawn, where it ends): a row a step under a heading, and an axis in whole decades below."""
    times = [step["us"] for step in steps] + ([ceiling] if ceiling else [])
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    left, top = MARGIN + NAME_W, y + 26

    def place(us):
        return left + (math.log10(us) - low) / (high - low) * DOTS_W

    parts, marks, y, chapter = [_text(MARGIN, y + 8, name, font_size=13, font_weight="bold")], [], top, None
    for step in steps:
        rung = known[step["name"]]
        if chapter not in (None, rung.chapter):
            y += GAP
        chapter = rung.chapter
        marks.append(_text(left - 8, y + 12, f"{rung.number} {rung.name}", "end"))
        marks.append(_dot(place(step["us"]), y + 8, CHAPTERS[chapter - 1]))
        marks.append(_text(place(step["us"]) + 9, y + 12, f"{step['us']:,.1f}", font_size=10))
        y += ROW
    for e in range(low, high + 1):
        for k in (1, 2, 5):
            at = place(k * 10**e)
            if at <= left + DOTS_W + 1:
                parts.append(_line([(at, top), (at, y)], "#dddddd"))
                if k == 1 or e < 4:  # longer ones would run into each other
                    parts.append(_text(at, y + 14, f"{k * 10**e:,g}", "middle"))
    if ceiling:
        at = place(ceiling)
        parts.append(_line([(at, top), (at, y)], "#222222", stroke_dasharray="5 4"))
        parts.append(_text(at, top - 6, f"a kernel that only reads: {ceiling:.1f}", "middle", font_size=10))
    note = _text(left + DOTS_W / 2, y + 30, "µs; the axis is logarithmic: each 10 is as far from the last", "middle")
    return [*parts, *marks, note], y + 40


# --- a chapter of the ladder --------------------------------------------------------------------------------

PANEL_W, VALUE_W, WORDS_W = 150, 66, 300


@dataclass(frozen=True)
class Column:
    """What a chapter's picture shows of each rung: numbers as bars, or as dots on a logarithmic axis; or words.

    `line` is a value that is marked across the rows.
    """

    name: str
    values: dict  # {rung: number, words, or None where there is none}
    text: Callable = str
    log: bool = False
    line: float | None = None

    @property
    def words(self):
        return any(isinstance(value, str) for value in self.values.values())

    @property
    def width(self):
        return WORDS_W if self.words else PANEL_W + VALUE_W

    def decades(self):
        """The exponents where a logarithmic axis begins and ends."""
        known = [v for v in [*self.values.values(), self.line] if v]
        low = math.floor(math.log10(min(known)))
        return low, max(low + 1, math.ceil(math.log10(max(known))))

    def place(self, value):
        """Where a number stands between 0 and 1."""
        if not self.log:
            return value / max([v for v in [*self.values.values(), self.line] if v], default=1)
        low, high = self.decades()
        return (math.log10(value) - low) / (high - low)


def chapter(title, names, columns, colour, note=""):
    """A row a rung and a column a quantity; `note` says what a marked line is."""
    parts = [_text(MARGIN, 28, title, font_size=16, font_weight="bold")]
    top, left = 62, MARGIN + NAME_W
    parts += [_text(left - 8, top + i * ROW + 13, name, "end") for i, name in enumerate(names)]
    bottom = top + len(names) * ROW
    for column in columns:
        parts.append(_text(left, top - 8, column.name, font_weight="bold"))
        if column.log:
            low, high = column.decades()
            for e in range(low, high + 1):
                at = left + (e - low) / (high - low) * PANEL_W
                parts.append(_line([(at, top), (at, bottom)], "#dddddd"))
                if high - low < 4 or e % 2 == 0:
                    parts.append(_text(at, bottom + 12, f"{10**e:,}", "middle", font_size=9))
        elif not column.words:
            parts.append(_line([(left, top), (left, bottom)], "#222222"))
        for i, name in enumerate(names):
            parts += _chapter_cell(column, column.values.get(name), left, top + i * ROW, colour)
        if column.line:
            at = left + column.place(column.line) * PANEL_W
            parts.append(_line([(at, top), (at, bottom)], "#222222", stroke_dasharray="5 4"))
        left += column.width + GAP
    bottom += 14 * any(column.log for column in columns)
    if note:
        parts.append(_text(MARGIN, bottom + 20, note, font_size=10))
    width = max(left, MARGIN + 9 * len(title), MARGIN + 5.6 * len(note)) + MARGIN
    return _document(width, bottom + (34 if note else 14), title, parts)


def _chapter_cell(column, value, x, y, colour):
    if value is None:
        return [_text(x + 5, y + 13, "–")]
    if isinstance(value, str):
        return [_text(x, y + 13, value)]
    end = x + (column.place(value) * PANEL_W if value else 0)
    mark = _dot(end, y + 9, colour) if column.log else _rect(x, y + 3, max(1, end - x), ROW - 6, colour)
    return [mark, _text(end + (9 if column.log else 5), y + 13, column.text(value), font_size=10)]


# --- an idea of the course ----------------------------------------------------------------------------------

BOX_W, BOX_H, RISE = 40, 20, 44
IDEA = ("#d6e6f2", "#f6dfc4", "#d5ecd9", "#ecd9ec")  # the ground of boxes


def _box(x, y, text, fill=IDEA[0], width=BOX_W):
    """A box whose middle is x, with its text."""
    ground = _rect(x - width / 2, y, width, BOX_H, fill, stroke="#8c959f", rx=3)
    return [ground, _text(x, y + 14, text, "middle", fill="#222222")]


def _joins(nodes, y, names, colour=None):
    """A level of a tree: nodes (x, y, label) two by two become one below, at y; (what is drawn, the new nodes)."""
    parts, found = [], []
    for (left, right), name in zip(zip(nodes[::2], nodes[1::2], strict=True), names, strict=True):
        x = (left[0] + right[0]) / 2
        for node in (left, right):
            parts.append(_line([(node[0], node[1] + BOX_H), (x, y)], "#8c959f", stroke_width=1.4))
        found.append((x, y))
        parts += _box(x, y, name, colour or IDEA[1])
    return parts, found


def _tree(nodes, names, step="step {}", left=None):
    """All levels of a tree over nodes; `names` of each node's elements, which an inner node joins."""
    parts, level = [], 1
    while len(nodes) > 1:
        y = nodes[0][1] + RISE
        names = [f"{a.split('–')[0]}–{b.split('–')[-1]}" for a, b in zip(names[::2], names[1::2], strict=True)]
        drawn, nodes = _joins(nodes, y, names)
        parts += drawn
        if left is not None:
            parts.append(_text(left, y + 14, step.format(level)))
        level += 1
    return parts, nodes


def idea_tree():
    """A chain and a tree over eight numbers."""
    title = "Seven additions: a chain of seven steps, or a tree of three"
    parts, left, pitch = [_text(MARGIN, 28, title, font_size=14, font_weight="bold")], 100, 52
    names = "abcdefgh"
    top = 52
    parts += [_text(MARGIN, top + 14, "chain"), _text(MARGIN, top + 30, "7 steps", fill="#666666")]
    for i, name in enumerate(names):
        parts += _box(left + i * pitch, top, name)
    at = (left, top)
    for i in range(1, len(names)):
        x, y = left + i * pitch, top + 14 + 26 * i
        parts.append(_line([(at[0], at[1] + BOX_H), (x, y)], "#8c959f", stroke_width=1.4))
        parts.append(_line([(x, top + BOX_H), (x, y)], "#8c959f", stroke_width=1.4))
        parts += _box(x, y, f"+{i}", IDEA[1])
        at = (x, y)
    top = at[1] + 56
    parts += [_text(MARGIN, top + 14, "tree"), _text(MARGIN, top + 30, "3 steps", fill="#666666")]
    nodes = [(left + i * pitch, top) for i in range(len(names))]
    for (x, y), name in zip(nodes, names, strict=True):
        parts += _box(x, y, name)
    drawn, last = _tree(nodes, list(names), left=left + len(names) * pitch)
    return _document(left + len(names) * pitch + 70, last[0][1] + BOX_H + MARGIN, title, [*parts, *drawn])


def idea_lanes():
    """The engine's order, small: 8 lanes instead of 512, 16 elements a chunk instead of 4096, two chunks."""
    title = "The engine's order with 8 lanes and chunks of 16 (it has 512 lanes and chunks of 4096): 32 elements"
    parts, left, pitch, chunk = [_text(MARGIN, 28, title, font_size=14, font_weight="bold")], 110, 48, 8 * 48 + 40
    sums, top = [], 60
    for number in range(2):
        first = left + number * chunk
        parts.append(_text(first - BOX_W / 2, top - 8, f"chunk {number}", font_weight="bold"))
        nodes = []
        for lane in range(8):
            x = first + lane * pitch
            for row in range(2):
                parts += _box(x, top + row * 24, f"x{16 * number + 8 * row + lane}")
            parts.append(_line([(x, top + 44), (x, top + 64)], "#8c959f", stroke_width=1.4))
            parts += _box(x, top + 64, f"lane {lane}", IDEA[2])
            nodes.append((x, top + 64))
        drawn, last = _tree(nodes, [str(lane) for lane in range(8)])
        parts += drawn
        sums += last
    bottom = sums[0][1] + RISE
    drawn, last = _joins(sums, bottom, ["sum"], IDEA[3])
    parts += drawn
    for y, text in ((top + 28, "elements"), (top + 78, "lanes: one"), (top + 92, "by one"),
                    (top + 64 + RISE + 14, "tree: lanes"), (bottom + 14, "tree: chunks")):  # fmt: skip
        parts.append(_text(MARGIN, y, text, fill="#666666"))
    return _document(left + 2 * chunk, bottom + BOX_H + MARGIN, title, parts)


IDEAS = {"tree": idea_tree, "lanes": idea_lanes}

# --- one row's sum in growing batches -----------------------------------------------------------------------

PATTERN_W, PATTERN_H = 23, 22
PATTERNS = ("#2e86c1", "#e67e22", "#27ae60", "#8e44ad", "#c0392b", "#16a085", "#7f8c8d", "#d35400", "#2c3e50")
WHY = (
    "torch.sum shares out a row's elements by how many rows there are, so the batch changes the order of additions.",
    "torch_reduce's order depends on the number of elements alone. Equal numbers and colours are equal bits.",
)


def batch_invariance(results):
    """A line a sum, a cell a batch size, for what differs anywhere: equal bits have equal numbers and colours."""
    sizes = results["sizes"]
    differing = [case for case in results["cases"] if any(max(numbers) for numbers in case["patterns"].values())]
    cases = differing or results["cases"]
    names = [f"{name}: 00 results" for case in cases for name in case["patterns"]]
    left = MARGIN + 12 + CHARACTER * max(map(len, names))
    title = f"{results['gpu']}, torch {results['torch']}: a row of {results['n']:,} elements in growing batches"
    parts, y = [_text(MARGIN, 28, title, font_size=16, font_weight="bold")], 30
    left_out = [f"{case['layout'].split(':')[0]}, {case['dtype']}" for case in results["cases"] if case not in cases]
    note = [f"Not shown, as no result differs there: {'; '.join(left_out)}."] if left_out else []
    for line in [*WHY, *note]:
        y += 17
        parts.append(_text(MARGIN, y, line))
    y += 26
    for i, n in enumerate(sizes):  # numbers as wide as a cell would run into each other: every second one stands higher
        above = 10 * (i % 2) if len(str(max(sizes))) > 3 else 0
        parts.append(_text(left + (i + 0.5) * PATTERN_W, y - above, str(n), "middle", font_size=9))
    parts.append(_text(left - GAP, y, "rows in the batch", "end", font_size=9))
    for case in cases:
        y += PATTERN_H
        parts.append(_text(MARGIN, y, f"{case['layout']}, {case['dtype']}", font_weight="bold"))
        y += GAP
        for name, numbers in case["patterns"].items():
            count = len(set(numbers))
            parts.append(_text(MARGIN + 12, y + 15, f"{name}: {count} result{'s' * (count > 1)}"))
            for i, number in enumerate(numbers):
                x = left + i * PATTERN_W
                parts.append(_rect(x, y, PATTERN_W - 1, PATTERN_H - 2, PATTERNS[number % len(PATTERNS)]))
                middle = x + (PATTERN_W - 1) / 2
                parts.append(_text(middle, y + 14, str(number + 1), "middle", font_size=10, fill="#ffffff"))
            y += PATTERN_H
    text = CHARACTER * max(1.5 * len(title), *map(len, [*WHY, *note]))
    width = max(left + len(sizes) * PATTERN_W, MARGIN + text) + MARGIN
    return _document(width, y + GAP, title, parts)
