"""Makes docs/reference.md, a page of all public functions, from their docstrings.

    python tools/reference.py            # writes the page
    python tools/reference.py --check    # fails if it is not what the docstrings say

torch_reduce must be built or installed.
"""

import argparse
import dataclasses
import importlib
import inspect
import itertools
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "bench"))
import report  # noqa: E402

PAGE = ROOT / "docs" / "reference.md"
MODULES = (
    "torch_reduce",
    "torch_reduce.exact",
    "torch_reduce.distributed",
    "torch_reduce.triton",
    "torch_reduce.ladder",
)
WIDTH = 96  # characters of a line of code: what GitHub shows at once
SECTIONS = "Args|Attributes|Returns|Raises|Warns"


def members(module):
    """(name, member) of what a module offers: its functions and classes."""
    module = importlib.import_module(module)
    named = [(name, getattr(module, name)) for name in sorted(module.__all__)]
    named = [(name, getattr(member, "fn", member)) for name, member in named]  # what @triton.jit wraps
    return [(name, member) for name, member in named if inspect.isfunction(member) or inspect.isclass(member)]


def methods(member):
    """(name, method) of a class that are documented, in the order of the source."""
    inner = vars(member).items() if inspect.isclass(member) else ()
    public = ((name, method) for name, method in inner if not name.startswith("_") or name == "__call__")
    return [(name, method) for name, method in public if inspect.isfunction(method) and method.__doc__]


def call(name, function):
    """How it is called, in a block: its arguments with their defaults, without types."""
    if dataclasses.is_dataclass(function):  # which a function returns, and nobody calls
        return []
    if inspect.isclass(function) and issubclass(function, Exception):
        return []
    signature = inspect.signature(function)
    given = [p.replace(annotation=p.empty) for p in signature.parameters.values() if p.name != "self"]
    line = f"{name}{signature.replace(parameters=given, return_annotation=signature.empty)}"
    return ["```", *textwrap.wrap(line, WIDTH, subsequent_indent=" " * (len(name) + 1)), "```"]


def anchor(heading):
    """The name that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def table(lines):
    """A Markdown table of a simple table of reStructuredText, whose columns stand under the signs of equality."""
    cuts = [match.start() for match in re.finditer(r"=+", lines[0])] + [None]
    rows = [[line[a:b].strip() for a, b in itertools.pairwise(cuts)] for line in lines if line[:1] != "="]
    rule = ["| " + " | ".join(":--" for _ in cuts[1:]) + " |"]
    text = ["| " + " | ".join(row) + " |" for row in rows]
    return text[:1] + rule + text[1:]


def section(title, lines):
    """A section of a docstring: a list of its entries, or a paragraph."""
    if title in ("Args", "Attributes", "Raises", "Warns"):
        entries = re.sub(r"^(\S[^:]*): ", r"- `\1`: ", "\n".join(lines), flags=re.MULTILINE)
        return [f"**{title}**", "", *entries.replace("\n    ", "\n  ").split("\n"), ""]
    return [f"**{title}**", "", *lines, ""]


def body(docstring):
    """The Markdown of a docstring."""
    made, lines = [], inspect.cleandoc(docstring).split("\n")
    while lines:
        line = lines.pop(0)
        inside = [line]
        if line.startswith("==="):
            while lines and lines[0]:
                inside.append(lines.pop(0))
            made += table(inside)
        elif line.startswith(">>>"):
            while lines and lines[0]:
                inside.append(lines.pop(0))
            made += ["```pycon", *inside, "```"]
        elif found := re.fullmatch(rf"({SECTIONS}):", line):
            inside = []
            while lines and (not lines[0] or lines[0].startswith("    ")):
                inside.append(lines.pop(0)[4:])
            made += section(found[1], "\n".join(inside).strip("\n").split("\n"))
        else:
            made.append(line)
    return "\n".join(made).strip("\n")


def linked(text, module, known):
    """The same with roles and double backticks as links and code."""

    def link(match):
        name = match[1]
        for full in (f"{module}.{name}", f"torch_reduce.{name}", name):
            if full in known:
                return f"[`{name}`](#{anchor(full)})"
        return f"`{name}`"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r":\w+:`([^`]+)`", link, parts[i])
        parts[i] = re.sub(r"``(.+?)``", r"`\1`", parts[i], flags=re.DOTALL)
        parts[i] = re.sub(r"\bdocs/(\w+\.md)\b", r"[docs/\1](\1)", parts[i])
    return "".join(parts)


def page():
    """The page's text."""
    known = {f"{module}.{name}" for module in MODULES for name, _ in members(module)}
    text = ["# All functions", ""]
    text += ["What each function takes, returns, raises and promises: the docstrings, as `help` shows them.", ""]
    text += ["<!-- reference:functions -->", "<!-- made by tools/reference.py; do not edit -->", ""]
    for module in MODULES:
        text += [f"## {module}", "", linked(body(importlib.import_module(module).__doc__), module, known), ""]
        for name, member in members(module):
            first = linked(inspect.cleandoc(member.__doc__).split("\n")[0], module, known)
            text += report.wrapped(f"- [`{name}`](#{anchor(f'{module}.{name}')}): {first}", "  ")
        for name, member in members(module):
            text += ["", f"### {module}.{name}", "", *call(f"{module}.{name}", member)]
            text += [linked(body(member.__doc__), module, known)]
            for inner, method in methods(member):
                text += ["", *call(f"{name}.{inner}", method), linked(body(method.__doc__), module, known)]
        text.append("")
    return "\n".join([*text, "<!-- /reference:functions -->", ""])


def main():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    check = parser.parse_args().check
    sys.path.insert(0, str(ROOT))
    text = page()
    if not check:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        sys.exit("docs/reference.md is not what the docstrings say: run `python tools/reference.py`.")


if __name__ == "__main__":
    main()
