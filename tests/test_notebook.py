"""The course's notebook: valid, short, without outputs; and its cells run in order without torch and IPython."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from test_pages import MEASURED, dead_links, hard_phrases
from torch_reduce.ladder import _emulate, _exercise

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = "docs/ladder/chapter1.ipynb"
NOTEBOOK = json.loads((ROOT / PAGE).read_text(encoding="utf-8"))
CELLS = {cell["id"]: cell for cell in NOTEBOOK["cells"]}
CODE = {name: "".join(cell["source"]) for name, cell in CELLS.items() if cell["cell_type"] == "code"}
TEXT = {name: "".join(cell["source"]) for name, cell in CELLS.items() if cell["cell_type"] == "markdown"}

# What the test looks at after the last cell.
SEEN = """
import json
print(json.dumps({
    "counters": counters, "efficiency": efficiency, "per_warp": per_warp, "counted": counted, "picture": picture,
    "broken": [broken.right, *map(str, broken.findings)], "mended": [mended.right, *map(str, mended.findings)],
    "checked": checked.right, "torch": "torch" in sys.modules, "IPython": "IPython" in sys.modules,
}))
"""


def run(code, folder, **env):
    """Runs code with Python's own library and no other."""
    return subprocess.run(
        [sys.executable, "-S", "-"], input=code, capture_output=True, text=True, cwd=folder, check=False, timeout=120,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **env},
    )  # fmt: skip


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What the cells print, and what SEEN prints after them. Nothing is compiled before, as on a new machine."""
    try:
        _emulate.compiler()
    except _emulate.CannotEmulate as error:
        pytest.skip(str(error))
    code = "\n\n".join([*CODE.values(), SEEN])
    done = run(code, (ROOT / PAGE).parent, XDG_CACHE_HOME=str(tmp_path_factory.mktemp("cache")), PYTHONPATH="")
    assert done.returncode == 0, done.stderr
    *printed, seen = done.stdout.splitlines()
    return "\n".join(printed), json.loads(seen)


def test_it_is_a_notebook():
    """nbformat 4.5: cells with an id of their own, and what each kind of cell must have."""
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    assert set(NOTEBOOK) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert NOTEBOOK["metadata"]["kernelspec"] == {"display_name": "Python 3", "language": "python", "name": "python3"}
    assert len(CELLS) == len(NOTEBOOK["cells"]) == len(CODE) + len(TEXT)
    for name, cell in CELLS.items():
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name)
        own = {"execution_count", "outputs"} if name in CODE else set()
        assert set(cell) == {"cell_type", "id", "metadata", "source"} | own
        assert all(isinstance(line, str) for line in cell["source"])
        assert all(line.endswith("\n") for line in cell["source"][:-1]) and "\n" not in cell["source"][-1]


def test_it_is_stored_without_outputs():
    """So a run changes nothing but the learner's own copy."""
    for name in CODE:
        assert CELLS[name]["outputs"] == [] and CELLS[name]["execution_count"] is None


def test_cells_are_short():
    """At most 25 lines of at most 120 characters; and the file is small."""
    for cell in CELLS.values():
        assert len(cell["source"]) <= 25
        assert max(len(line.rstrip("\n")) for line in cell["source"]) <= 120
    assert (ROOT / PAGE).stat().st_size < 30_000


@pytest.mark.parametrize("name", TEXT)
def test_words(name):
    """Its text is as plain as the pages', its links lead somewhere, and no measured figure stands in it."""
    assert not hard_phrases(TEXT[name])
    assert not dead_links(PAGE, TEXT[name])
    assert not MEASURED.search(TEXT[name])


def test_it_is_linked():
    """From the course's page and from the chapter's."""
    for page in ("docs/ladder.md", "docs/ladder/chapter1.md"):
        assert "chapter1.ipynb)" in (ROOT / page).read_text(encoding="utf-8")


def test_it_needs_no_torch(ran):
    """Nor IPython: where that is missing, the pictures are not shown."""
    _, seen = ran
    assert not seen["torch"] and not seen["IPython"]
    assert seen["picture"].startswith("<svg") and "interleaved: who adds what" in seen["picture"]


def test_what_is_counted_by_hand_is_what_is_counted(ran):
    """The sectors and the banks of the cells, beside the emulator's counters."""
    _, seen = ran
    assert seen["efficiency"] == pytest.approx(seen["counters"]["neighbored"]["global load efficiency"], abs=1e-9)
    assert seen["per_warp"] == seen["counted"] == 225 / 16  # as in chapter 3


def test_the_change_that_it_asks_for(ran):
    """Counted by hand for interleaved, as the text says it, the sectors agree with the table, too."""
    code = CODE["coalescing"].split("efficiency = ")[0]
    for before, after in (
        ("32, 1  #", "32, 256  #"), ("stride < BLOCK", "stride > 0"), ("t % (2 * stride) == 0", "t < stride"),
        ("stride *= 2", "stride //= 2"),
    ):  # fmt: skip
        assert code.count(before) == 1
        code = code.replace(before, after)
    names = {}
    exec(code, names)
    counted = ran[1]["counters"]["interleaved"]["global load efficiency"]
    assert 100 * names["used"] / names["moved"] == pytest.approx(counted, abs=1e-9)


def test_what_the_text_says_of_the_counters(ran):
    """neighbored_less raises branch efficiency and lowers loads per warp; interleaved raises load efficiency."""
    first, less, interleaved = (ran[1]["counters"][name] for name in ("neighbored", "neighbored_less", "interleaved"))
    assert less["branch efficiency"] > first["branch efficiency"] + 20
    assert less["loads"] < first["loads"] / 4
    assert less["global load efficiency"] == first["global load efficiency"]
    assert interleaved["global load efficiency"] > 90 and first["global load efficiency"] < 30


def test_the_kernels_are_judged(ran):
    """The one without a barrier races and is wrong; the other is right."""
    printed, seen = ran
    right, *findings = seen["broken"]
    assert not right and len(findings) == 2 and all(finding.startswith("mine.cu:5: thread ") for finding in findings)
    assert "no __syncthreads()" in findings[0] and "no __syncwarp()" in findings[1]
    assert seen["mended"] == [True]
    assert f"{findings[1]}\nnot right yet\n" in printed and "\nright\n" in printed


def test_the_exercise_is_the_chapters(ran):
    """The answer that stands there is wrong, and the check explains it."""
    printed, seen = ran
    task = _exercise.exercise(4)
    assert task.chapter == 1 and not seen["checked"]
    assert task.task.split(".")[0] in " ".join(printed.split())
    assert task.mistakes["50"][1:] in printed


def test_where_the_course_is_not_there(tmp_path):
    """The first cell says what to do, and stops."""
    done = run(next(iter(CODE.values())), tmp_path)
    assert done.returncode == 1
    assert done.stderr.strip() == "The course is not here: start this notebook inside a clone of torch_reduce."
