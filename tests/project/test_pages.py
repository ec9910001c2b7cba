"""The pages that people read: their code runs, links lead somewhere, lines are short, words are plain, figures made."""

import ast
import html
import importlib
import itertools
import pathlib
import re
import shlex
import sys

import pytest
import torch

import torch_reduce

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools"))
import reference  # noqa: E402

DOCS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
PAGES = ["README.md", "CONTRIBUTING.md", *DOCS]
MEASURED = re.compile(r"\d[\d,.]* ?(?:µs|ms\b|GB/s|TB/s)|\d[\d,.]*%(?! \d)|\d\.\d+ ?×")
LONGEST = {"by hand": 120, "made": 200}
FIRST = "README.md"  # which is read in a window of GitHub, or of an editor beside others
WIDEST = {"row": 120, "code": 96}
HARD = {  # what makes a sentence hard to read, and an example
    r"(?:that|those) of\b": "the order is that of sums",
    r"of (?:which|whose)\b": "rows, of which two are empty",
    r"all else\b": "all else is converted",
    r"becomes? of\b": "what becomes of an element",
    r"so (?:is|are|do|does|did)\b": "products are rounded, and so are sums",
    r"(?:elements?|floats?|loads?|atomics?|Ki?B|threads?|warps?|tiles?|bytes) an? "
    r"(?:thread|warp|block|multiprocessor|row|rank|output)\b": "eight loads a thread",
}


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(text, language):
    """The code blocks of a language ("" for those that name none)."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [code for name, code in found if name == language]


def definitions(page):
    """The functions that a page's Python defines, by name."""
    names = {"torch": torch, "torch_reduce": torch_reduce, "dist": torch.distributed}
    for code in blocks(text_of(page), "python"):
        found = [node for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)]
        exec(compile(ast.Module(found, []), page, "exec"), names)
    return names


def not_made(text):
    """The text that people wrote: without what a script put between its markers."""
    if "<!-- made by bench/report.py from bench/results/; do not edit -->" in text.splitlines()[:1]:
        return ""
    text = re.sub(
        r"<!-- (\w+:\w+)([\w ,]*)(?::begin)? -->.*?<!-- (?:/\1(?:\2)?|\w+:end) -->", "", text, flags=re.DOTALL
    )
    return re.sub(r"<!-- bench:begin -->.*?<!-- bench:end -->", "", text, flags=re.DOTALL)


def by_hand(text):
    """The prose that people wrote: without code, too."""
    return re.sub(r"^```.*?^```", "", not_made(text), flags=re.DOTALL | re.MULTILINE)


def long_lines(text, longest):
    """Lines that are longer: a picture stays on one line, whatever it takes, and `bad_rows` looks at tables."""
    return [line for line in text.splitlines() if len(line) > longest and not line.startswith(("|", "!["))]


def bad_rows(text):
    """Rows of tables that a window is too narrow for, or that have an empty cell."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [line for line in rows if len(line) > WIDEST["row"] or re.search(r"(?<!\\)\| *\|", line)]


def wide_code(text):
    """Lines of code that a window is too narrow for."""
    code = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    return [line for line in code.splitlines() if len(line) > WIDEST["code"]]


def undefined(text):
    """References of the form [`name`] or [name] of a table that no line defines."""
    defined = set(re.findall(r"^\[([^\]]+)\]: ", text, re.MULTILINE))
    named = set(re.findall(r"\[(`\w+`)\](?![(\[:])", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)))
    cells = [line for line in text.splitlines() if line.startswith("| [")]
    return (named | set(re.findall(r"\[(\w+)\](?![(\[:])", "\n".join(cells)))) - defined


def hard_phrases(text):
    """The phrases of HARD in a text, with a few words around each."""
    words = " ".join(re.sub(r"`[^`]*`", "code", text).split())
    found = (match for hard in HARD for match in re.finditer(rf"(?i)\b(?:{hard})", words))
    return [words[max(0, match.start() - 30) : match.end() + 20] for match in found]


def dead_links(page, text):
    """Links to files of the project that are not there, and to headings of a page that it does not have."""
    dead = []
    links = re.findall(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)$", text, re.MULTILINE)
    for link in map("".join, links):
        if ":" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target.read_text())):
            dead.append(link)
    return dead


def anchors(text):
    """The names that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ +(.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def collisions(svg):
    """Pairs of texts of a picture that stand on one line, and are less than a third of a character's height apart."""
    lines = {}
    monospaced = "monospace" in svg
    for x, y, style, text in re.findall(r'<text x="([\d.-]+)" y="([\d.-]+)"([^>]*)>([^<]*)</text>', svg):
        size = float((re.search(r'font-size="([\d.]+)"', style) or ["", "11"])[1])
        size = 8 if 'class="bank"' in style else size
        each = 0.6 if monospaced else 0.56 if re.fullmatch(r"[\d,.]+", text) else 0.5
        width = len(html.unescape(text)) * size * each
        anchor = (re.search(r'text-anchor="(\w+)"', style) or ["", "start"])[1]
        begin = float(x) - {"start": 0, "middle": width / 2, "end": width}[anchor]
        lines.setdefault(float(y), []).append((begin, begin + width + size / 3, text))
    pairs = (pair for texts in lines.values() for pair in itertools.pairwise(sorted(texts)))
    return [(before[2], after[2]) for before, after in pairs if before[1] > after[0]]


def unknown_commands(code):
    """The commands of a block that name a script, a module or a make target that does not exist."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    unknown = []
    for line in code.splitlines():
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # a drawing, or prose
            continue
        for word, after in zip(words, [*words[1:], ""], strict=False):
            module = word == "-m" and after.startswith("torch_reduce") and after.replace(".", "/")
            missing = module and not any((ROOT / end).exists() for end in (f"{module}.py", f"{module}/__main__.py"))
            script = word.endswith(".py") and "/" in word and not (ROOT / word).exists()
            target = word == "make" and re.fullmatch(r"[a-z]+", after) and after not in targets
            if missing or script or target:
                unknown.append(line)
    return unknown


@pytest.mark.parametrize("page", PAGES)
def test_links(page):
    """Every link to a file of the project, or to a heading, leads somewhere."""
    assert not dead_links(page, text_of(page))


@pytest.mark.parametrize("page", PAGES)
def test_lines(page):
    """No line is longer than a screen is wide. No row of a table, and no line by hand, has more than 120 characters."""
    assert not long_lines(text_of(page), LONGEST["made"]) and not bad_rows(text_of(page))
    assert not long_lines(not_made(text_of(page)), LONGEST["by hand"])


def test_first_page():
    """README fits a window, and links each public function that it does not describe itself to its section."""
    text = text_of(FIRST)
    assert not wide_code(text) and not undefined(text)
    functions = {name for name in torch_reduce.__all__ if callable(getattr(torch_reduce, name)) and name.islower()}
    linked = set(re.findall(r"^\[`(\w+)`\]: docs/reference.md#torch_reduce\1$", text, re.MULTILINE))
    in_place = {"index_add_", "index_reduce_"}
    assert functions - linked == in_place and linked <= functions


def test_index_of_pages():
    """docs/README.md has a line for each page."""
    listed = re.findall(r"^\d+\. \[[^]]*\]\(([^)#]+)", text_of("docs/README.md"), re.MULTILINE)
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md", "reference.md"}
    assert pages <= set(listed)


@pytest.mark.parametrize("page", PAGES)
def test_words(page):
    """Sentences have a subject and a verb, and name what they mean."""
    assert not hard_phrases(by_hand(text_of(page)))


@pytest.mark.parametrize("page", PAGES)
def test_figures_are_made(page):
    """A measured figure stands where a script puts it: one by hand would be wrong after the next measurement."""
    assert not [line for line in by_hand(text_of(page)).splitlines() if MEASURED.search(line)]


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist(page):
    """The commands of a page name scripts, modules and make targets that exist."""
    assert not [line for code in blocks(text_of(page), "") for line in unknown_commands(code)]


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "images").glob("*.svg")), ids=lambda path: path.stem)
def test_pictures(path):
    """No text of a picture runs into its neighbour; it is named for those who do not see it, and a page shows it."""
    text = path.read_text(encoding="utf-8")
    assert not collisions(text)
    assert re.search(r"<title>.{20,}</title>|aria-label=\".{20,}\"", text)
    shown = [alt for page in PAGES for alt in re.findall(rf"!\[([^]]*)\]\([^)]*{path.name}\)", text_of(page))]
    assert shown and min(map(len, shown)) >= (10 if path.stem.startswith("ladder-chapter") else 20)


def test_reference():
    """docs/reference.md is what the docstrings say, of every function and class that is public, and of its methods."""
    assert reference.page() == text_of("docs/reference.md"), "run `python tools/reference.py`"
    for module in reference.MODULES:
        names = set(importlib.import_module(module).__all__) - {"__version__", "distributed", "exact", "ladder"}
        assert all(f"\n### {module}.{name}\n" in reference.page() for name in names)
    made = """
        What ``f`` does, see :func:`sum` and docs/order.md.

        =====  ====
        a      b
        =====  ====
        ``1``  two
        =====  ====

        Args:
            x: of two
                lines.

        >>> f(1)
        2
    """
    assert reference.linked(reference.body(made), "torch_reduce", {"torch_reduce.sum"}).split("\n") == [
        "What `f` does, see [`sum`](#torch_reducesum) and [docs/order.md](order.md).",
        "",
        *("| a | b |", "| :-- | :-- |", "| `1` | two |"),
        "",
        *("**Args**", "", "- `x`: of two", "  lines.", ""),
        *("```pycon", ">>> f(1)", "2", "```"),
    ]


WITH_CODE = [page for page in PAGES if blocks(text_of(page), "python")]


@pytest.mark.parametrize(
    "page", [page for page in WITH_CODE if page != "docs/triton.md"]
)  # tests/compile/test_triton.py
def test_code(page, device, monkeypatch):
    """The Python of a page runs as printed, one block after the other, with and without a GPU."""
    if device == "cpu":
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    names = {"__name__": "__main__"}
    for number, code in enumerate(blocks(text_of(page), "python"), 1):
        exec(compile(code, f"block {number} of {page}", "exec"), names)


def test_first_screen(capsys):
    """README's first code prints what it says: torch.sum has two results for one column, and torch_reduce.sum one."""
    code, says = (blocks(text_of(FIRST), language)[0] for language in ("python", "text"))
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert len(set(printed[1].split())) == 1 and len(says.split()) == 4 and len(set(says.splitlines()[0].split())) == 2
    if torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        assert printed[1] == says.splitlines()[1]
        if torch.__version__.startswith("2.11."):
            assert printed[0] == says.splitlines()[0]


def test_checks_see_faults():
    """Each of the checks above finds what it is for."""
    assert by_hand("a\n<!-- models:x -->\n3 µs\n<!-- /models:x -->\nb").split() == ["a", "b"]
    assert by_hand("a\n<!-- bench:begin -->\n3 µs\n<!-- bench:end -->\nb").split() == ["a", "b"]
    assert by_hand("<!-- ladder:chapter 1 -->\n3 µs\n<!-- /ladder:chapter 1 -->\nb").split() == ["b"]
    assert MEASURED.search("it takes 33.5 µs") and MEASURED.search("1.23× as fast") and not MEASURED.search("above 1×")
    assert long_lines("x" * 201, 200) and not long_lines("|" + "x" * 300, 200) and not long_lines("x" * 200, 200)
    assert bad_rows("|" + "x" * 120) and not bad_rows("x" * 200 + "\n|" + "x" * 119)
    assert bad_rows("| a | | b |") and bad_rows("|| a |") and not bad_rows(r"| `a \|\| b` | c |")
    assert wide_code("```\n" + "x" * 97 + "\n```\n") and not wide_code("x" * 97)
    assert undefined("[`f`] [`g`](h.md)\n| [page] | [`k`] |\n[`k`]: a.md") == {"`f`", "page"}
    assert dead_links("README.md", "[`f`]: docs/none.md") == ["docs/none.md"]
    assert not_made("```\nlong\n```\n") and not by_hand("```\nlong\n```\n").strip()
    assert all(hard_phrases(example) for example in HARD.values()) and hard_phrases("the order is that\nof sums")
    assert not hard_phrases("It is so short that it fits, so it is rounded. `that of`")
    assert dead_links("README.md", "[a](docs/none.md) [b](docs/order.md#none)") == [
        "docs/none.md",
        "docs/order.md#none",
    ]
    assert not dead_links("docs/order.md", "[a](../README.md#install) [b](https://example.com/x)")
    label = '<text x="{}" y="9" text-anchor="middle" font-size="9">{}</text>'
    assert collisions("".join(label.format(23 * i, n) for i, n in enumerate((1024, 1536, 2048)))) == [
        ("1024", "1536"),
        ("1536", "2048"),
    ]
    assert not collisions("".join(label.format(46 * i, n) for i, n in enumerate((1024, 1536, 2048))))
    wrong = "python bench/none.py\nmake nothing\npython -m torch_reduce.none"
    assert unknown_commands(wrong) == wrong.splitlines()
    assert not unknown_commands("make test ARGS='-k x'  # tests\npython -m torch_reduce\npython bench/grid.py --only x")
