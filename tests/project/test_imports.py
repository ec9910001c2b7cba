"""No circle of imports in torch_reduce: a module can be read after those that it imports."""

import ast
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "torch_reduce"


def modules(package):
    """{a module's name: its file} of all modules in a package."""
    names = ((".".join(path.relative_to(package.parent).with_suffix("").parts), path) for path in package.rglob("*.py"))
    return {name.removesuffix(".__init__"): path for name, path in names}


def statements(node):
    """All import statements in a piece of source, those inside functions too, but not those for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            yield from statements(ast.Module(child.orelse, []))
        else:
            yield from statements(child)


def packages(name):
    """The packages that a module is in."""
    parts = name.split(".")
    return {".".join(parts[:count]) for count in range(1, len(parts))}


def imports(name, known):
    """Those of the known modules that a module imports. Python imports the packages that they are in first."""
    path = known[name]
    here = (name if path.stem == "__init__" else name.rpartition(".")[0]).split(".")
    found = set()
    for statement in statements(ast.parse(path.read_text(encoding="utf-8"))):
        names = {each.name for each in statement.names}
        if isinstance(statement, ast.ImportFrom):
            base = here[: len(here) + 1 - statement.level] if statement.level else []
            base = ".".join([*base, *filter(None, [statement.module])])
            names = {f"{base}.{each}" if f"{base}.{each}" in known else base for each in names}
        found |= names
    before = {package for each in found for package in packages(each)} - packages(name) - {name}
    return (found | before) & set(known)


def circle(package):
    """Modules of which each imports the next, and the last is the first; or None."""
    known = modules(package)
    try:
        graphlib.TopologicalSorter({name: imports(name, known) for name in known}).prepare()
    except graphlib.CycleError as error:
        return error.args[1][::-1]
    return None


def test_no_circle():
    """torch_reduce.distributed enters what it does in place of others into _arguments.py, which does not import it."""
    assert len(modules(PACKAGE)) > 50
    assert circle(PACKAGE) is None


def test_what_enters_is_what_is_asked_for():
    """All has entered as soon as there can be a DTensor or a Shard, and nobody asks for anything else."""
    asked = {
        name for path in PACKAGE.rglob("*.py") for name in re.findall(r'\bover_ranks\("(\w+)"\)', path.read_text())
    }
    code = "import torch_reduce, torch.distributed.tensor\n"
    code += "print(*torch_reduce._arguments._OVER_RANKS)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == asked and len(asked) > 10
    code = "import torch_reduce.distributed\nprint(*torch_reduce._arguments._OVER_RANKS)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"call_operator", "keep_shape", "entropies"} <= set(done.stdout.split()) <= asked


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from . import b\n", True),
        ("def f():\n    from .b import g\n    return g\n", True),
        ("import made.inner.c\n", True),
        ("from made import b as other\n", True),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import b\n", False),
        ("import ast\nfrom .inner import d\n", False),
    ],
)
def test_a_circle_is_found(text, found, tmp_path):
    """Also one that goes through a function or a package's __init__.py; what only type checkers read is no import."""
    sources = {
        "__init__": "from . import a, b\n",
        "a": text,
        "b": "from .a import g\n",
        "inner/__init__": "",
        "inner/c": "from .. import a\n",
        "inner/d": "from . import c2\n",
        "inner/c2": "x = 1\n",
    }
    for name, source in sources.items():
        (tmp_path / "made" / f"{name}.py").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "made" / f"{name}.py").write_text(source)
    assert (circle(tmp_path / "made") is not None) == found
