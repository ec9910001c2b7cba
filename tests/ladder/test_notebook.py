"""The course's notebooks: valid, short, without outputs; and their cells run in order without torch and IPython."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from test_pages import MEASURED, dead_links, hard_phrases
from torch_reduce.ladder import _emulate, _exercise

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools"))
import notebooks  # noqa: E402

PAGE = "docs/ladder/chapter1.ipynb"
NOTEBOOKS = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted((ROOT / PAGE).parent.glob("*.ipynb"))
}


def cells(name, kind):
    """{cell: its text} of a notebook's cells of a kind."""
    return {cell["id"]: "".join(cell["source"]) for cell in NOTEBOOKS[name]["cells"] if cell["cell_type"] == kind}


CODE, TEXT = cells("chapter1", "code"), cells("chapter1", "markdown")
each_notebook = pytest.mark.parametrize("name", NOTEBOOKS)

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
def ran():
    """What the cells print, and what SEEN prints after them."""
    try:
        _emulate.compiler()
    except _emulate.CannotEmulate as error:
        pytest.skip(str(error))
    code = "\n\n".join([*CODE.values(), SEEN])
    done = run(code, (ROOT / PAGE).parent, PYTHONPATH="")
    assert done.returncode == 0, done.stderr
    *printed, seen = done.stdout.splitlines()
    return "\n".join(printed), json.loads(seen)


@each_notebook
def test_it_is_a_notebook(name):
    """nbformat 4.5: cells with an id of their own, and what each kind of cell must have."""
    notebook, code = NOTEBOOKS[name], cells(name, "code")
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert set(notebook) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert notebook["metadata"]["kernelspec"] == {"display_name": "Python 3", "language": "python", "name": "python3"}
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", cell["id"])
        own = {"execution_count", "outputs"} if cell["id"] in code else set()
        assert set(cell) == {"cell_type", "id", "metadata", "source"} | own
        assert all(isinstance(line, str) for line in cell["source"])
        assert all(line.endswith("\n") for line in cell["source"][:-1]) and "\n" not in cell["source"][-1]


@each_notebook
def test_it_is_stored_without_outputs(name):
    """So a run changes nothing but the learner's own copy."""
    for cell in NOTEBOOKS[name]["cells"]:
        assert cell["cell_type"] == "markdown" or (cell["outputs"] == [] and cell["execution_count"] is None)


@each_notebook
def test_cells_are_short(name):
    """At most 26 lines of at most 120 characters; and the file is small."""
    for cell in NOTEBOOKS[name]["cells"]:
        assert len(cell["source"]) <= 26
        assert max(len(line.rstrip("\n")) for line in cell["source"]) <= 120
    assert (ROOT / f"docs/ladder/{name}.ipynb").stat().st_size < 30_000


@each_notebook
def test_words(name):
    """Its text is as plain as the pages', its links lead somewhere, and no measured figure stands in it."""
    for text in cells(name, "markdown").values():
        assert not hard_phrases(text)
        assert not dead_links(f"docs/ladder/{name}.ipynb", text)
        assert not MEASURED.search(text)


@each_notebook
def test_it_is_linked(name):
    """From the course's page, from the chapter's, and from those in other languages."""
    for page in ("docs/ladder.md", f"docs/ladder/{name}.md", "docs/ladder/es.md", "docs/ladder/zh.md"):
        assert f"{name}.ipynb)" in (ROOT / page).read_text(encoding="utf-8")


def test_each_chapter_has_one():
    """And all but the first chapter's are what tools/notebooks.py makes."""
    assert set(NOTEBOOKS) == {path.stem for path in (ROOT / "docs/ladder").glob("chapter*.md")}
    for path, text in notebooks.documents().items():
        assert (ROOT / path).read_text(encoding="utf-8") == text, "run `python tools/notebooks.py`"


PRINTS = {  # what the cells print, as they stand: predictions are wrong, and counts by hand agree with the emulator's
    0: ["chain (499500, 999, 999), tree (499500, 999, 10)", "idle [10, 11]", "the sum is 4500000: right",
        "reads in[0], and nothing has been copied", "wrong: you predicted 255."],
    2: ["counted was 0.0625: no", "1281 elements read, 641 written: 3.7539 accesses", "counted was 512: no",
        "wrong: it does not compile."],
    3: ["word 3 * t: 1 turns", "word 8 * t: 8 turns", "counted was 9: no", "wrong: you predicted 45."],
    4: ["counted was 496: no", "counted was 0.0625: no", "counted was 8: no", "wrong: you predicted 10."],
    5: ["by thread 40, by warp 20", "you predicted True, and it is False", "98.355\nby hand 98.3553",
        "wrong: you predicted 100."],
    6: ["= 1.0, 1e8 + (-1e8 + 1) = 0.0", "0x1.755cd00000000p+3: the value", "1 of the exact sum: 0x1.755cce0000000p+3",
        "wrong: you predicted 1."],
    7: ["where the contract adds lane 0 of chunk 0 + x[1]", "each of its 4,096 additions is the contract's"],
}  # fmt: skip


@pytest.mark.parametrize("number", PRINTS)
def test_cells_run(number):
    """In their order, and they print what the text is about."""
    code = "\n\n".join([*cells(f"chapter{number}", "code").values(), 'assert "torch" not in sys.modules'])
    done = run(code, (ROOT / PAGE).parent, PYTHONPATH="")
    assert done.returncode == 0, done.stderr
    for text in PRINTS[number]:
        assert text in done.stdout, text


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
