"""The exercises of the course: what is given fails its check, each solution passes, and answers are told apart.

Kernels are judged on fewer sizes and blocks than a learner's are, so that all of it takes half a minute.
"""

import functools
import os
import pathlib
import re
import subprocess
import sys

import pytest

from torch_reduce import ladder
from torch_reduce.ladder import _emulate, _exercise, _program

ROOT = pathlib.Path(__file__).resolve().parents[2]
ALL = _exercise.exercises()
FEWER = {"blocks": (64, 128, 512), "odd": (1, 1000)}

try:
    _emulate.compiler()
except _emulate.CannotEmulate as error:
    pytest.skip(str(error), allow_module_level=True)


def of(*kinds):
    """The exercises of these kinds, as parameters."""
    tasks = [task for task in ALL.values() if task.kind in kinds]
    return pytest.mark.parametrize("task", tasks, ids=lambda task: task.file.stem)


@functools.cache
def counted(task):
    """The counter that a prediction is about, and its value."""
    counter, found = _exercise.predicted(task)
    return counter, found.counters.get(counter)


@functools.cache
def lines(task):
    """The lines to find."""
    return _exercise.found_lines(task)[0]


def text_of(checked):
    return "\n".join(checked.lines)


def line_of(path, part):
    """The number of the only line that holds `part`."""
    (found,) = (number for number, line in enumerate(path.read_text().splitlines(), 1) if part in line)
    return found


def changed(task, folder, *pairs):
    """The solution's kernel with texts replaced, each of them there once, as a learner's file."""
    text = "\n".join(line for _, line in _exercise.code_of(task.solution))
    for before, after in pairs:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    path = folder / "mine.cu"
    path.write_text(text)
    return path


# --- what is written down ---------------------------------------------------------------------------------------------


def test_each_chapter_has_some():
    """Five per chapter, of the first and last three; two or more to write or mend; numbered in the chapters' order,
    which are called as the rungs' are."""
    assert list(ALL) == list(range(1, len(ALL) + 1))
    chapters = [task.chapter for task in ALL.values()]
    assert chapters == sorted(chapters)
    titles = {rung.chapter: rung.title for rung in ladder.rungs()} | {0: "before the first kernel"}
    for chapter in range(7):
        mine = [task for task in ALL.values() if task.chapter == chapter]
        assert len(mine) == (5 if 0 < chapter < 6 else 3)
        assert sum(task.kind in _exercise.DONE for task in mine) >= 2
        assert {task.title for task in mine} == {titles[chapter]}
    assert {task.kind for task in ALL.values()} == set(_exercise.ANSWERS)


def test_each_has_a_solution():
    """A solution of the same name for each exercise, and none without one."""
    files = sorted(path.name for path in _exercise.FOLDER.glob("*.cu"))
    assert [task.file.name for task in ALL.values()] == files
    assert sorted(path.name for path in (_exercise.FOLDER / "solutions").iterdir()) == files
    for task in ALL.values():
        assert re.search(r"\d", task.why), task.name
        assert bool(_exercise.code_of(task.solution)) == bool(_exercise.code_of(task.file)) == (task.kind != "predict")


@of(*_exercise.ANSWERS)
def test_a_task_is_short(task):
    """Three to six sentences, then one hint; lines of at most 120 characters."""
    assert 3 <= len(re.findall(r"[.?:](?= |$)", task.task)) <= 8
    assert len(task.hint) < 250
    for path in (task.file, task.solution):
        assert max(map(len, path.read_text().splitlines())) <= 120


# --- predict ----------------------------------------------------------------------------------------------------------


@of("predict")
def test_the_counter_is_right_and_others_are_wrong(task):
    """What is counted is right, within half a point or a tenth of it. Others are wrong, and the word none."""
    _, value = counted(task)
    if value is None:
        assert _exercise.check(task, "none").right
        assert not _exercise.check(task, "100").right
        return
    near = min(0.5, value / 10)
    for answer in (f"{value}", f" {value:.3f}% ", f"{value + 0.98 * near}", f"{value - 0.98 * near}"):
        assert _exercise.check(task, answer).right, answer
    for answer in (f"{value + 1.02 * near}", f"{value - 1.02 * near}", f"{2 * value}", "-1", "nan", "none"):
        checked = _exercise.check(task, answer)
        assert not checked.right, answer
        assert checked.lines[0] == f"wrong: you predicted {answer}."  # and the answer is not told


@of("predict")
def test_the_solution_says_what_is_counted(task):
    """The number that the explanation arrives at is the one that the emulator counts today."""
    assert f"{_exercise.number_text(*counted(task))}" in re.split(r"[ ,]|\.(?= |$)", task.why)


@of("predict", "find")
def test_mistakes_are_wrong_and_explained(task):
    """The answers that a solution calls a mistake are refused, with its reason."""
    assert task.mistakes
    for mistake, reason in task.mistakes.items():
        checked = _exercise.check(task, mistake)
        assert not checked.right, mistake
        assert reason[1:] in text_of(checked)


# --- find -------------------------------------------------------------------------------------------------------------


@of("find")
def test_the_right_lines_and_no_others(task):
    """In any order, with commas or blanks; one line too many or too few is wrong."""
    wanted = sorted(lines(task))
    for separator in (",", " ", ", "):
        checked = _exercise.check(task, separator.join(map(str, reversed(wanted))))
        assert checked.right
        assert f"{task.file.name}:{wanted[0]}: thread" in text_of(checked)
    first = _exercise.code_of(task.file)[0][0]
    for wrong in ([*wanted, first], wanted[1:], [line + 1 for line in wanted], [first]):
        if wrong:
            assert not _exercise.check(task, ",".join(map(str, wrong))).right, wrong


def test_where_the_faults_are():
    """The lines that the emulator finds are those in which the faults were put."""
    end, rounds = ALL[6], ALL[21]
    assert lines(end) == {line_of(end.file, "in[idx] += in[idx + blockDim.x];")}
    assert lines(rounds) == {line_of(rounds.file, "sums[warp] = value"), line_of(rounds.file, "value = sums[lane]")}
    write, read = sorted(lines(rounds))
    assert f"{rounds.file.name}:{write}: thread 32 writes sums[1], which thread 1 reads in line {read}," in text_of(
        _exercise.check(rounds, f"{write},{read}")
    )
    assert "1 of the 2 lines" in text_of(_exercise.check(rounds, f"{min(lines(rounds))},11"))


# --- mend -------------------------------------------------------------------------------------------------------------

# What the check says of each file as it is given.
GIVEN = {
    "never_ends": "goes round this loop again and again",
    "one_float": "is one value and no array",
    "sum_into_nothing": "where nothing has been written",
    "the_lost_half": "about half of",
    "no_constant": "must know the size of this array",
    "four_turns": "bank conflicts 14.06; asked is at most 0",
    "out_of_step": "with no __syncwarp() between them",
    "neighbours_touch": "global load efficiency 25.0%; asked is at least 90",
    "four_in_flight": "elements per thread 1; asked is at least 4",
    "leave_the_input": "stores 1.312; asked is at most 0.1",
    "as_large_as_needed": "shared bytes 4096; asked is at most 2048",
    "fewer_barriers": "barriers 10; asked is at most 5",
    "many_before_the_tree": "elements per thread 1; asked is at least 8",
    "one_per_block": "atomics 1; asked is at most 0.1",
    "registers_only": "shared loads 2.562; asked is at most 0.1",
    "uneven_work": "branch efficiency 93.9%; asked is at least 99.9",
    "the_last_five_steps": "branch efficiency 98.4%; asked is at least 99.9",
    "who_comes_first": "orders of blocks 2; asked is at most 1",
    "last_one_adds": "for 32,768: 0, and right is",
    "two_memories": "reads the host's memory",
    "who_am_i": "which thread 0 of block 0 wrote, and no order of blocks is known",
    "two_walks": "branch efficiency 94.1%; asked is at least",
}


def judged(task, file):
    """The check of a file, on fewer sizes and blocks."""
    if task.kind == "program":
        return _exercise.check_program(task, file)
    return _exercise.check_kernel(task, file, **FEWER)


@of(*_exercise.DONE)
def test_the_kernel_as_given_fails(task):
    """And the check says why."""
    checked = judged(task, task.file)
    assert not checked.right
    assert checked.lines[0].startswith("wrong: ")
    assert GIVEN[task.name] in text_of(checked)


@of(*_exercise.DONE, "find")
def test_the_solution_passes(task):
    """Each solution passes its check. A mended kernel of a `find` exercise adds right, without a race."""
    asked = task if task.kind != "find" else ALL[5]  # which asks for right sums and nothing more
    checked = judged(asked, task.solution)
    assert checked.right, text_of(checked)
    assert checked.lines[0].startswith("right: ")


def test_nvcc_takes_the_solutions(nvcc, tmp_path):
    """What is mended or written is CUDA: it compiles for a GPU, each solution in a namespace of its own."""
    files = [task.solution for task in ALL.values() if _exercise.code_of(task.solution)]
    texts = [file.read_text() for file in files]
    headers = sorted({line for text in texts for line in text.splitlines() if line.startswith("#include")})
    parts = [f"namespace {file.stem[3:]} {{\n{text}\n}}" for file, text in zip(files, texts, strict=True)]
    (tmp_path / "all.cu").write_text("\n".join([*headers, *parts]))
    subprocess.run([nvcc, "-std=c++17", "-c", "-o", tmp_path / "all.o", tmp_path / "all.cu"], check=True)


@pytest.mark.parametrize("number, pairs, said", [
    (10, [("float sum = 0;", "smem[tid] = 0;"), ("sum += in[i]", "smem[tid] += in[i]"), ("  smem[tid] = sum;\n", "")],
     "shared loads 6.562; asked is at most 3"),
    (15, [("extern __shared__ float sdata[];", "__shared__ float sdata[1024];")],
     "shared bytes 4096; asked is at most 2048"),
    (20, [("s > 32; s /= 2", "s > 0; s /= 2"), ("if (tid < 32) {", "if (false) {")], "barriers 10; asked is at most 4"),
])  # fmt: skip
def test_right_sums_are_not_all(tmp_path, number, pairs, said):
    """A kernel that adds right, but not as it is asked for, is refused with the counter that shows it."""
    checked = _exercise.check_kernel(ALL[number], changed(ALL[number], tmp_path, *pairs), **FEWER)
    assert not checked.right
    assert "every sum is right, but" in checked.lines[0]
    assert said in checked.lines


def demands():
    """Each demand on a counter that some exercise has: the task, the counter, whether it is a least one, the bound."""
    found = []
    for task in ALL.values():
        for demand in task.asks.split("; ")[1:] if task.kind in ("mend", "write") else ():
            counter, least, bound = re.fullmatch(r"(.+) at (most|least) ([\d.]+)", demand).groups()
            found.append((task, counter, least == "least", float(bound)))
    return found


@pytest.mark.parametrize("task, counter, least, bound", demands(), ids=lambda value: str(getattr(value, "name", value)))
def test_demands_near_their_limits(task, counter, least, bound):
    """What is asked for passes, and better; what misses it by a little fails as what misses it by far."""
    met = {one: value for each, one, _, value in demands() if each is task}
    worse = -1 if least else 1
    for value in (bound, bound - worse * 0.01, bound - worse):
        assert _exercise.missed(task, met | {counter: value}) == []
    for value, text in (
        (bound + worse * 1e-6, f"{bound + worse * 1e-6:.10g}"),
        (bound + worse * 0.01, None),
        (bound + worse, None),
    ):
        (said,) = _exercise.missed(task, met | {counter: value})
        asked = f"{bound:g}"
        assert said.startswith(f"{counter} ") and said.endswith(f"; asked is at {'least' if least else 'most'} {asked}")
        shown = said.removeprefix(f"{counter} ").split(";")[0].removesuffix("%")
        assert shown == (text or shown) and float(shown) != bound, said


def test_demands_are_there():
    bounds = {(counter, least, bound) for _, counter, least, bound in demands()}
    assert {("shared loads", False, 3.0), ("branch efficiency", True, 99.9), ("bank conflicts", False, 0.0)} <= bounds


def test_a_kernel_at_its_limit(monkeypatch, tmp_path):
    """The whole check of "shared loads at most 3" of a kernel that adds right: 3 passes, 3.01 and 4 fail."""
    task = ALL[10]
    for loads, right in ((3.0, True), (3.01, False), (4.0, False)):
        real = _exercise._try.judge

        def judge(*args, loads=loads, real=real, **how):
            verdict = real(*args, **how)
            verdict.sample.counters["shared loads"] = loads
            return verdict

        with monkeypatch.context() as patched:
            patched.setattr(_exercise._try, "judge", judge)
            checked = _exercise.check_kernel(task, task.solution, blocks=(512,), odd=(1,))
        assert checked.right == right, loads
        assert (f"shared loads {loads:g}; asked is at most 3" in checked.lines) == (not right)


def test_what_does_not_compile_is_shown_in_the_files_own_lines():
    """The compiler's message with line and text of the learner's file, and nothing of the emulator's."""
    for number, part in ((9, "sdata[tid] = "), (15, "__shared__ float sdata[blockDim.x];")):
        file = ALL[number].file
        text = text_of(_exercise.check_kernel(ALL[number], file))
        line = line_of(file, part)
        assert f"{file}:{line}: " in text
        assert file.read_text().splitlines()[line - 1].strip() in text
        assert "emulate" not in text.replace(str(file.parent), "")


# --- the program ------------------------------------------------------------------------------------------------------


def test_the_list_names_them_all(capsys):
    assert _program.main(["exercise"]) == 0
    said = capsys.readouterr().out
    for task in ALL.values():
        assert re.search(rf"^ +{task.number} {task.name} +{task.kind} ", said, re.MULTILINE)
        assert f"Chapter {task.chapter}: {task.title}\n" in said


@of(*_exercise.ANSWERS)
def test_an_exercise_is_shown(task, capsys):
    """The task and the hint; of mend and find the kernel with its line numbers, and of mend where to copy it from."""
    assert _program.main(["exercise", str(task.number)]) == 0
    said = capsys.readouterr().out
    words = " ".join(said.split())
    assert task.task in words and task.hint in words and task.why not in words
    for number, line in _exercise.code_of(task.file) if task.kind != "predict" else []:
        assert f"{number:4}  {line}".rstrip() in said
    assert (str(task.file) in said) == (task.kind in _exercise.DONE)


@of(*_exercise.ANSWERS)
def test_a_solution_is_shown(task, capsys):
    """The explanation, and the answer as it is computed or the mended kernel."""
    assert _program.main(["exercise", str(task.number), "--solution"]) == 0
    said = capsys.readouterr().out
    assert task.why in " ".join(said.split())
    if task.kind == "predict":
        assert f"{task.asks}: {_exercise.number_text(*counted(task))}" in said
    else:
        assert "\n".join(text for _, text in _exercise.code_of(task.solution)) in said
    if task.kind == "find":
        assert f"Lines to be found: {', '.join(map(str, sorted(lines(task))))}." in said


@pytest.fixture(autouse=True)
def own_progress(monkeypatch, tmp_path):
    """Each test has a learner who has done nothing yet."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def answered(capsys, *arguments):
    """The exit status, and what is printed."""
    status = _program.main(["exercise", *arguments])
    return status, capsys.readouterr().out


def test_a_wrong_prediction_may_be_tried_again(capsys):
    """It gets the hint and not the answer, twice; then the way to the answer is named, and --answer tells it."""
    wanted = _exercise.number_text(*counted(ALL[4]))
    for tries, way in (("1", "Try once more.\n"), ("2", "exercise 4 --answer\n"), ("3", "exercise 4 --answer\n")):
        status, said = answered(capsys, "4", tries)
        assert status == 1 and wanted not in said and "Hint: " in said and said.endswith(way)
    status, said = answered(capsys, "4", wanted)
    assert status == 0 and said.startswith("right: ") and "Hint" not in said
    status, said = answered(capsys, "4", "--answer")
    assert status == 0 and wanted in said


def test_progress_is_kept(capsys):
    """--mine says what is right, after how many wrong answers, and whether the answer was shown before."""
    assert re.search(rf"^ +4 half_a_sector +–$.*^0 of {len(ALL)} are right", answered(capsys, "--mine")[1], re.M | re.S)
    answered(capsys, "25", "50")
    answered(capsys, "25", "none")
    answered(capsys, "25", "50")  # once right, always right
    answered(capsys, "4", "1")
    answered(capsys, "4", "--answer")
    status, said = answered(capsys, "--mine")
    assert status == 0
    assert re.search(r"^ +25 no_branch_at_all +right after 1 wrong answer$", said, re.M)
    assert re.search(r"^ +4 half_a_sector +not yet after 1 wrong answer, with the answer shown$", said, re.M)
    assert f"1 of {len(ALL)} are right. It is kept in {_exercise.progress_file()}" in said


def test_progress_is_kept_where_the_output_is_cut(tmp_path):
    """In `exercise 5 mine.cu | head -1`, too, where what is printed last reaches nobody."""
    command = [sys.executable, "-S", str(ROOT / "torch_reduce" / "ladder"), "exercise"]
    mine = changed(ALL[5], tmp_path)
    env = os.environ | {"XDG_DATA_HOME": str(tmp_path)}
    script = "import os, sys; os.dup2(int(sys.argv[1]), 1); os.execv(sys.argv[2], sys.argv[2:])"
    read, write = os.pipe()
    os.close(read)  # nobody reads
    cut = [sys.executable, "-c", script, str(write), *command, "5", mine]
    subprocess.run(cut, env=env, pass_fds=[write], check=False)
    os.close(write)
    done = subprocess.run([*command, "--mine"], env=env, capture_output=True, text=True, check=True)
    assert re.search(r"never_ends +right$", done.stdout, re.MULTILINE), done.stdout


def test_progress_that_cannot_be_kept(capsys, monkeypatch, tmp_path):
    """A file that is no JSON, or a folder that cannot be made, is nobody's error."""
    _exercise.progress_file().parent.mkdir(parents=True)
    _exercise.progress_file().write_text("{")
    assert answered(capsys, "25", "none")[0] == 0 and answered(capsys, "--mine")[0] == 0
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    assert answered(capsys, "25", "none")[0] == 0 and answered(capsys, "--mine")[0] == 0


def test_the_exit_status(capsys):
    """0 for a right answer, 1 for a wrong one, which gets the hint."""
    assert _program.main(["exercise", "25", "none"]) == 0
    assert "Hint" not in capsys.readouterr().out
    assert _program.main(["exercise", "25", "50"]) == 1
    assert "Hint" in capsys.readouterr().out


@pytest.mark.parametrize("arguments, said", [
    (["0"], "exercise 0: there is none; there are 1 to"),
    ([str(len(ALL) + 1)], f"there are 1 to {len(ALL)}"),
    (["4", "many"], "'many' is neither a number nor the word none"),
    (["6", "here"], "'here' is no list of line numbers"),
    (["5", "there_is_no.cu"], "there_is_no.cu"),
    (["--answer"], "of which exercise"),
])  # fmt: skip
def test_errors(capsys, arguments, said):
    with pytest.raises(SystemExit) as ended:
        _program.main(["exercise", *arguments])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_without_torch():
    """In a clone the exercises need Python's own library only: -S hides all other packages."""
    command = [sys.executable, "-S", str(ROOT / "torch_reduce" / "ladder"), "exercise", "9", str(ALL[9].file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "it does not compile" in done.stdout


# --- the pages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chapter", range(7))
def test_chapters_name_their_exercises(chapter):
    """A chapter's page has one sentence with the numbers of its exercises, and what each asks for, in their order."""
    page = " ".join((ROOT / "docs" / "ladder" / f"chapter{chapter}.md").read_text(encoding="utf-8").split())
    ((first, last, listed),) = re.findall(rf"Exercises (\d+) to (\d+) of `{_program.CALLED} exercise`: (.+?)\. ", page)
    tasks = [task for task in ALL.values() if task.chapter == chapter]
    assert (int(first), int(last)) == (tasks[0].number, tasks[-1].number)
    phrases = re.split(r", (?=(?:predict|mend|write|find) )", listed)
    assert [phrase.split()[0] for phrase in phrases] == [task.kind.replace("program", "mend") for task in tasks]
    for phrase, task in zip(phrases, tasks, strict=True):
        asked = re.match(r"(.+) of (\w+), blocks", task.asks) if task.kind == "predict" else ["", "", task.name]
        assert asked[1] in phrase and f"`{asked[2]}`" in phrase, phrase
