"""The commands that the course's pages print run as they stand there, without a GPU and without torch."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from torch_reduce import ladder
from torch_reduce.ladder import _emulate, _exercise, _program, _try, _whole

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ["docs/ladder.md", *sorted(f"docs/ladder/{path.name}" for path in (ROOT / "docs" / "ladder").glob("*.md"))]

try:
    _emulate.compiler()
except _emulate.CannotEmulate as error:
    pytest.skip(str(error), allow_module_level=True)


def commands():
    """The different commands of the pages' blocks and sentences: {words: where one stands}."""
    found = {}
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        lines = re.findall(r"^python(?:3 torch_reduce/ladder| -m torch_reduce\.ladder)\b(.*)$", text, re.MULTILINE)
        inline = re.findall(r"`python -m torch_reduce\.ladder( [^`]*)`", text)
        for line in [*lines, *(" ".join(each.split()) for each in inline)]:
            found.setdefault(tuple(shlex.split(line, comments=True)), page)
    return found


def runs_here(words):
    """Not what times rungs on a GPU; and not what other tests run: `try --order`, and all rungs at once."""
    timed = words[:1] == ("run",) and "--emulate" not in words
    return not timed and "--order" not in words and words != ("run", "--emulate")


COMMANDS = [words for words in commands() if runs_here(words)]


def test_there_are_commands():
    """Of every action."""
    assert {words[0] for words in COMMANDS if words} == set(_program.EXAMPLES)
    assert () in COMMANDS and len(COMMANDS) >= 15


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words) or "nothing")
def test_a_command_runs(words, tmp_path, monkeypatch, capsys):
    """In a folder with a kernel of one's own, mine.cu, and a whole program, whole.cu."""
    mine = _whole.FIRST if words[:1] == ("program",) else _exercise.exercise(12).solution
    for name in ("mine.cu", "mended.cu"):
        shutil.copy(mine, tmp_path / name)
    shutil.copy(_whole.FIRST, tmp_path / "whole.cu")
    (tmp_path / "torch_reduce" / "ladder").mkdir(parents=True)
    shutil.copytree(_whole.FIRST.parent, tmp_path / "torch_reduce" / "ladder" / "programs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_try, "BLOCKS", (512,))  # `try` tries several
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    status = _program.main(list(words))
    said = capsys.readouterr()
    another = words[0:1] == ("try",) and len(words) > 2  # the kernel sums, in blocks of one dimension
    assert status == int(another), said
    assert len(said.out.splitlines()) > 1


def test_short_forms_are_commands():
    """`exercise 1 ANSWER` and `try --order` in a sentence stand for a command that the program takes."""
    found = 0
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for line in re.findall(rf"`((?:{'|'.join(_program.EXAMPLES)}) [^`]*)`", text):
            words = shlex.split(line)
            if words[:2] == ["try", "--order"]:
                words.insert(1, "FILE")
            assert _program.parser().parse_args(words), (page, line)
            found += 1
    assert found >= 5


def test_make_course(tmp_path):
    """As the pages say it, for one rung."""
    command = ["make", "course", f"PYTHON={sys.executable} -S", "ARGS=--rungs neighbored --size 2^12"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0 and re.search(r"^neighbored +512 +right ", done.stdout, re.MULTILINE), done


def test_where_torch_is_missing():
    """Who writes the command for torch without it, as chapter 0 warns of, is told the other one."""
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-S", "-m", "torch_reduce.ladder", "exercise"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 1
    assert done.stderr.rstrip().splitlines()[-1].endswith("in a clone, write `python3 torch_reduce/ladder`.")


def test_names_on_the_pages_are_the_rungs():
    """A name in a command is a rung's."""
    known = {rung.name for rung in ladder.rungs()}
    for words in commands():
        if "--rungs" in words:
            assert set(words[words.index("--rungs") + 1].split(",")) <= known
