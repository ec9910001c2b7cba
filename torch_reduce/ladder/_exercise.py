"""The exercises: predict a counter, mend or write a kernel or a program, find a line; each checked by emulation.

An exercise is a file of exercises/, and its solution the file of the same name in exercises/solutions/. What is said of
an exercise stands in the comments at their heads; answers are not stored, but computed when one is checked. A head
begins as a rung's does, and `asks` says what is checked:

    kind predict    asks    global load efficiency of neighbored, blocks of 64, float64
    kind mend       asks    right sums; bank conflicts at most 0; barriers at most 10
    kind find       asks    races, 4096 elements, blocks of 256
                    or      wrong accesses, 1000 elements, blocks of 128, 2 elements per thread

The demands of `mend` and `write` behind "right sums" are counters of blocks of 512, or "elements per thread", "results"
(1, or one per block), or "orders of blocks": how many different results of floats two orders give. A solution's head
has a `why` and may have some `mistake`: a wrong answer, or the `code` of a wrong line, a colon, and why it is wrong.
"""

import argparse
import array
import contextlib
import functools
import json
import os
import re
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

from torch_reduce.ladder import _emulate, _figures, _lessons, _translate, _try, _whole
from torch_reduce.ladder._figures import number_text

FOLDER = Path(__file__).resolve().parent / "exercises"
FIELDS = ("kind", "asks", "task", "hint")
ANSWERS = {"predict": "ANSWER", "mend": "mine.cu", "write": "mine.cu", "program": "mine.cu", "find": "LINES"}
DONE = {"mend": "Mend a copy", "write": "Write on in a copy", "program": "Mend a copy"}  # of the file that is given
TOLERANCE = 0.5  # of a prediction: percentage points, or events per warp; of small numbers, a tenth


@dataclass(frozen=True)
class Exercise:
    """An exercise: its head.

    Attributes:
        number, name: its place in the list, from 1 on, and what its file is called.
        chapter, title: which chapter it belongs to, as rungs do.
        kind: one of ANSWERS.
        asks: what is checked; see above.
        task, hint: paragraphs.
        file: its file; from there the learner copies the kernel to mend.
    """

    number: int
    name: str
    chapter: int
    title: str
    kind: str
    asks: str
    task: str
    hint: str
    file: Path

    @property
    def solution(self) -> Path:
        """The solution's file: its head, and for mend and find the mended kernel."""
        return self.file.parent / "solutions" / self.file.name

    @property
    def why(self) -> str:
        """The explanation of the solution."""
        return dict(_lessons.head(self.solution, "Solution", ("why", "mistake"))[1])["why"]

    @property
    def mistakes(self) -> dict[str, str]:
        """{wrong answer: why it is wrong}; the number of a line for `code`."""
        found = {}
        lines = self.file.read_text(encoding="utf-8").splitlines()
        for field, text in _lessons.head(self.solution, "Solution", ("why", "mistake"))[1]:
            if field == "mistake":
                answer, _, reason = text.partition(": ")
                code = answer.strip("`")
                if code != answer:
                    answer = str(next(number for number, line in enumerate(lines, 1) if code in line))
                found[answer] = reason
        return found


@dataclass
class Checked:
    """What a check found: whether the answer is right, and the lines to print."""

    right: bool
    lines: list[str]


@functools.cache
def exercises() -> dict[int, Exercise]:
    """All exercises by number, in order. ValueError says which head is not as it should be."""
    found = {}
    for file in sorted(FOLDER.glob("*.cu")):
        (number, name, chapter, title), paragraphs = _lessons.head(file, "Exercise", FIELDS)
        fields = dict(paragraphs)
        if missing := [field for field in FIELDS if field not in fields]:
            raise ValueError(f"{file.name}: its head lacks {', '.join(missing)}")
        if fields["kind"] not in ANSWERS:
            raise ValueError(f"{file.name}: kind {fields['kind']}: possible are {', '.join(ANSWERS)}")
        found[number] = Exercise(number, name, chapter, title, **fields, file=file)
    return found


def exercise(number: int) -> Exercise:
    """One of them; ValueError if there is none of this number."""
    known = exercises()
    if number not in known:
        raise ValueError(f"exercise {number}: there is none; there are {min(known)} to {max(known)}")
    return known[number]


def code_of(file: Path) -> list[tuple[int, str]]:
    """The lines below a file's head, with their numbers."""
    numbered = list(enumerate(file.read_text(encoding="utf-8").rstrip().splitlines(), 1))
    while numbered and (numbered[0][1].startswith("//") or not numbered[0][1].strip()):
        numbered.pop(0)
    return numbered


# --- checking ---------------------------------------------------------------------------------------------------------


def predicted(task: Exercise) -> tuple[str, _emulate.Emulated]:
    """The counter that `predict` asks for, and what the emulator counted: its counters lack it if there is nothing."""
    asked = re.fullmatch(r"(.+) of (\w+), blocks of (\d+), (\w+)", task.asks)
    if not asked:
        raise ValueError(f"{task.file.name}: asks {task.asks!r}: see _exercise.py for its form")
    counter, rung, block, dtype = asked.groups()
    return counter, _emulate.emulate(rung, block=int(block), dtype=dtype)


def found_lines(task: Exercise) -> tuple[set[int], _emulate.Emulated]:
    """The lines that `find` asks for, of threads in both orders, and one of the two runs."""
    asked = re.fullmatch(
        r"(races|wrong accesses), (\d+) elements, blocks of (\d+)(?:, (\d+) elements per thread)?", task.asks
    )
    if not asked:
        raise ValueError(f"{task.file.name}: asks {task.asks!r}: see _exercise.py for its form")
    kernel = _try.Kernel.of(task.file)
    program = kernel.build()
    choices = {"size": int(asked[2]), "block": int(asked[3]), "elements": int(asked[4] or 1)}
    runs = [kernel.run(program, descending=order, **choices) for order in (True, False)]
    lines = set()
    for run in runs:
        for finding in run.races if asked[1] == "races" else run.wrong:
            lines |= {finding.line, finding.before} - {0}
    return lines, runs[1] if runs[1].races or runs[1].wrong else runs[0]


def check_prediction(task: Exercise, answer: str) -> Checked:
    """Compares a number, with or without %, or the word none."""
    given = answer.strip().removesuffix("%").strip().lower()
    if given != "none":
        try:
            value = float(given)
        except ValueError:
            raise ValueError(f"answer: {answer!r} is neither a number nor the word none") from None
    counter, found = predicted(task)
    counted = found.counters.get(counter)
    if given == "none" or counted is None:
        right = given == "none" and counted is None
    else:
        right = abs(value - counted) <= min(TOLERANCE, counted / 10)
    if right:
        lines = [f"right: you predicted {answer}. {task.asks}: {number_text(counter, counted)}."]
        return Checked(True, [*lines, f"emulated: {_figures.line(found.counters)}"])
    lines = [f"wrong: you predicted {answer}."]  # and not what is counted: the learner may try once more
    for mistake, reason in task.mistakes.items():
        same = given == mistake if "none" in (given, mistake) else abs(value - float(mistake)) <= 0.1
        lines += [reason[0].upper() + reason[1:]] * same
    return Checked(False, lines)


def check_lines(task: Exercise, answer: str) -> Checked:
    """Compares the numbers of lines, such as 12,15."""
    if not re.fullmatch(r"\s*\d+([\s,;]+\d+)*\s*", answer):
        raise ValueError(f"answer: {answer!r} is no list of line numbers, such as 12,15")
    given = {int(number) for number in re.findall(r"\d+", answer)}
    wanted, found = found_lines(task)
    if given == wanted:
        findings = map(str, [*found.races, *found.wrong])
        lines = [f"right: {', '.join(map(str, sorted(wanted)))}.", *findings]
        return Checked(True, [*lines, f"emulated: {_figures.line(found.counters)}"])
    known = len(given & wanted)
    parts = [f"{known} of the {len(wanted)} lines are right"] if len(wanted) > 1 else []
    if extra := sorted(given - wanted):
        parts.append(f"{', '.join(map(str, extra))} {'is' if len(extra) == 1 else 'are'} not among the lines to find")
    lines = [f"wrong: {'; '.join(parts)}."]
    lines += [f"line {line}: {reason}" for line, reason in task.mistakes.items() if int(line) in given]
    return Checked(False, lines)


def missed(task: Exercise, counters: dict[str, float]) -> list[str]:
    """What a kernel that adds right still lacks, by the demands behind "right sums"."""
    lines = []
    for demand in task.asks.split("; ")[1:]:
        asked = re.fullmatch(r"(.+) at (most|least) ([\d.]+)", demand)
        if not asked:
            raise ValueError(f"{task.file.name}: asks {demand!r}: see _exercise.py for its form")
        counter, least, bound = asked[1], asked[2] == "least", float(asked[3])
        # A kernel without a branch, or without a load, wastes none.
        value = counters.get(counter, 100.0 if counter.endswith("efficiency") else 0.0)
        if value < bound if least else value > bound:
            text = number_text(counter, value)
            if float(text.removesuffix("%")) == bound:  # it is rounded to what is asked
                text = f"{value:.10g}" + "%" * text.endswith("%")
            lines.append(f"{counter} {text}; asked is {demand.removeprefix(counter).strip()}")
    return lines


def check_kernel(task: Exercise, file: Path, blocks=_try.BLOCKS, odd=_try.ODD) -> Checked:
    """Judges the learner's kernel: right sums without races or wrong accesses, then the demands; see `_try.judge`."""
    _emulate.compiler()  # that there is none is no fault of the kernel
    names = _translate.translate(file.read_text(encoding="utf-8"), str(file)).kernels
    kernel = _try.Kernel.of(file, task.name if task.name in names else None)
    try:
        program = kernel.build()
    except _emulate.CannotEmulate as error:
        return Checked(False, ["wrong: it does not compile.", str(error)])
    verdict = _try.judge(kernel, program, blocks=blocks, odd=odd)
    counters = dict(verdict.sample.counters) if verdict.sample else {}
    counters |= {"elements per thread": verdict.elements, "results": 1 if verdict.how == "one" else len(blocks)}
    if verdict.right and "orders of blocks" in task.asks:
        counters["orders of blocks"] = len(results_of_orders(kernel, program, verdict.elements))
    lacks = missed(task, counters) if verdict.right else []
    if not verdict.right:
        said = "wrong: not every sum is right." if verdict.wrong else "wrong: the sums are right here, but it is luck."
    elif lacks:
        said = "wrong: every sum is right, but more is asked of blocks of 512:"
    else:
        said = "right: every sum, without a race or a wrong access."
    lines = [said, *lacks, *_try.report(verdict)]
    if verdict.sample and not verdict.sample.fault:
        lines.append(f"emulated, blocks of {verdict.sample.block}: {_figures.line(verdict.sample.counters)}")
    return Checked(verdict.right and not lacks, lines)


def results_of_orders(kernel: _try.Kernel, program: Path, elements: int) -> set[float]:
    """The results of floats whose sum depends on its order, with the first block first and with the last one first."""
    block = 128
    size = block * elements * 16
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(array.array("f", [1 / (i + 1) for i in range(size)]).tobytes())
        file.flush()
        choices = {"size": size, "block": block, "elements": elements, "input": file.name}
        return {kernel.run(program, last_block_first=last, **choices).found for last in (False, True)}


def check_program(task: Exercise, file: Path) -> Checked:
    """Judges a whole program: nothing is wrong with it, and the last that it prints ends with "right"."""
    _emulate.compiler()
    try:
        ran = _whole.run(file)
    except _emulate.CannotEmulate as error:
        return Checked(False, ["wrong: it does not compile.", str(error)])
    right = ran.right and ran.printed.rstrip().endswith(": right")
    said = "right: the program's sum, and nothing is wrong with it." if right else "wrong: something is wrong with it."
    return Checked(right, [said, *ran.printed.splitlines(), *_whole.report(ran)])


def check(task: Exercise, answer: str) -> Checked:
    """Checks an answer: a number or none, lines, or the path of a file, as the kind asks. ValueError for other text."""
    if task.kind == "predict":
        return check_prediction(task, answer)
    if task.kind == "find":
        return check_lines(task, answer)
    if task.kind == "program":
        return check_program(task, Path(answer))
    return check_kernel(task, Path(answer))


# --- progress ---------------------------------------------------------------------------------------------------------


def progress_file() -> Path:
    """Where it is kept which exercises were tried: in the user's data, beside no clone."""
    base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return base / "torch_reduce" / "exercises.json"


def progress() -> dict[str, dict]:
    """{name: {"tries": wrong ones before the first right one, "right": bool, "told": whether the answer was shown}}."""
    try:
        found = json.loads(progress_file().read_text(encoding="utf-8"))
        return {name: {"tries": 0, "right": False, "told": False, **mine} for name, mine in found.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def note(task: Exercise, right: bool | None = None) -> int:
    """Keeps an answer, or with None that the solution was shown; returns how many wrong answers there were."""
    found = progress()
    mine = found.setdefault(task.name, {"tries": 0, "right": False, "told": False})
    if right is None:
        mine["told"] = mine["told"] or not mine["right"]
    elif not mine["right"]:
        mine["right"], mine["tries"] = right, mine["tries"] + (not right)
    with contextlib.suppress(OSError):  # the folder cannot be written: nothing is kept
        progress_file().parent.mkdir(parents=True, exist_ok=True)
        _emulate.put(progress_file(), json.dumps(found, indent=1) + "\n")
    return mine["tries"]


def mine() -> list[str]:
    """The exercises by chapter, with what was done."""
    lines, chapter, found = [], None, progress()
    for task in exercises().values():
        if task.chapter != chapter:
            chapter = task.chapter
            lines.append(f"\nChapter {chapter}: {task.title}")
        did = found.get(task.name, {})
        tries = did.get("tries", 0)
        wrong = f" after {tries} wrong answer{'s' * (tries > 1)}" if tries else ""
        told = ", with the answer shown" if did.get("told") else ""
        state = f"right{wrong}{told}" if did.get("right") else f"not yet{wrong}{told}" if wrong or told else "–"
        lines.append(f"{task.number:4} {task.name:<22} {state}")
    done = sum(did["right"] for name, did in found.items() if name in {task.name for task in exercises().values()})
    return [*lines, f"\n{done} of {len(exercises())} are right. It is kept in {progress_file()}"]


# --- what is printed --------------------------------------------------------------------------------------------------


def wrapped(text: str) -> str:
    """A paragraph in lines of at most 120 characters; other text, with lines of its own, as it is."""
    if "\n" in text or text.startswith(" "):
        return text
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def listing() -> list[str]:
    """The exercises by chapter."""
    lines, chapter = [], None
    for task in exercises().values():
        if task.chapter != chapter:
            chapter = task.chapter
            lines.append(f"\nChapter {chapter}: {task.title}")
        lines.append(f"{task.number:4} {task.name:<22} {task.kind:<8} {task.asks}")
    lines += [f"\nOne of them: {_emulate.COMMAND} exercise {next(iter(exercises()))}"]
    return [*lines, f"What you have done: {_emulate.COMMAND} exercise --mine"]


def shown(task: Exercise) -> list[str]:
    """The task; of mend and find the kernel, too, with the numbers of its lines."""
    lines = [f"Exercise {task.number}, {task.name}: {task.kind}. Chapter {task.chapter}: {task.title}.", ""]
    lines += [wrapped(task.task), "", f"Checked: {task.asks}", wrapped(f"Hint: {task.hint}"), ""]
    if task.kind != "predict":
        lines += [f"{number:4}  {text}".rstrip() for number, text in code_of(task.file)]
        lines.append("")
    if task.kind in DONE:
        lines.append(f"{DONE[task.kind]}: cp {task.file} mine.cu")
    lines.append(f"Check your answer: {_emulate.COMMAND} exercise {task.number} {ANSWERS[task.kind]}")
    return lines


def solved(task: Exercise) -> list[str]:
    """The solution, with what the emulator says."""
    lines = [f"Solution of exercise {task.number}, {task.name}", "", wrapped(task.why), ""]
    if task.kind != "predict":
        lines += [text for _, text in code_of(task.solution)]
        lines += ["", f"It is {task.solution}"]
    if task.kind == "predict":
        counter, found = predicted(task)
        lines.append(f"{task.asks}: {number_text(counter, found.counters.get(counter))}")
    elif task.kind == "find":
        wanted, found = found_lines(task)
        lines.append(f"Lines to be found: {', '.join(map(str, sorted(wanted)))}.")
        lines += map(str, [*found.races, *found.wrong])
    return lines


def main(options: argparse.Namespace) -> int:
    """``exercise [NUMBER [ANSWER]] [--answer | --mine]``; 0 if there is no answer or a right one, 1 for a wrong one."""
    if options.mine:
        print("\n".join(mine()).lstrip("\n"))
        return 0
    if options.number is None:
        if options.solution:
            raise ValueError("--answer: of which exercise? Give its number")
        print("\n".join(listing()).lstrip("\n"))
        return 0
    task, status = exercise(options.number), 0
    if options.answer is not None:
        checked = check(task, options.answer)
        status = 0 if checked.right else 1
        tries = note(task, checked.right)  # before it is printed: in `... | head` a print may be the last that is done
        print("\n".join(map(wrapped, checked.lines)))
        if not checked.right and not options.solution:
            print(wrapped(f"Hint: {task.hint}"))
            tell = f"{_emulate.COMMAND} exercise {task.number} --answer"
            print("Try once more." if tries < 2 else f"Try once more, or let it be told: {tell}")
    elif not options.solution:
        print("\n".join(shown(task)))
    if options.solution:
        note(task)
        print("\n".join(solved(task)))
    return status
