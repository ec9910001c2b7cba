"""What the heads of the files in csrc/ladder/ say, as data: a rung is described in one place, where its kernel is.

A head is the comment that a file begins with: a line "Rung 3, interleaved. Chapter 1: in place, in global memory.",
then a paragraph for each of FIELDS, which begins with that word. `moves` names the counter that the idea is meant to
move, and where to; `faster` begins with "than NAME" or "no"; these two are not for every rung.
"""

import json
import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent.parent / "csrc" / "ladder"
FIELDS = ("threads", "idea", "removes", "wrong", "requires", "source", "moves", "faster", "command")
OPTIONAL = ("moves", "faster")


def files(folder=FOLDER):
    """The rungs' files, in their order."""
    return sorted(p for p in Path(folder).iterdir() if re.fullmatch(r"\d\d_\w+\.(cu|cpp)", p.name))


def head(path, kind, fields):
    """The head of one file: (number, name, chapter, title of the chapter), and [(field, paragraph)] in its order.

    Args:
        path: a file NN_NAME whose first line is "// KIND NUMBER, NAME. Chapter NUMBER: TITLE."; else ValueError.
        kind: the first word, such as "Rung".
        fields: the words that a paragraph may begin with.
    """
    comment = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("//"):
            break
        comment.append(line[2:])
    title = re.fullmatch(rf" {kind} (\d+), (\w+)\. Chapter (\d+): (.+)\.", comment[0] if comment else "")
    if not title or f"{int(title[1]):02d}_{title[2]}" != path.stem:
        form = f"// {kind} NUMBER, NAME. Chapter NUMBER: TITLE."
        raise ValueError(f"{path.name} must begin with '{form}', as it is named")
    found = []
    for line in comment[1:]:
        start = re.fullmatch(r" (\w+) +(.+)", line)
        if start and start[1] in fields and not line.startswith("  "):
            found.append((start[1], start[2]))
        elif found and line.strip():
            found[-1] = (found[-1][0], found[-1][1] + " " + line.strip())
    return (int(title[1]), title[2], int(title[3]), title[4]), found


def lesson(path):
    """The head of one file: number, name, chapter, title (the chapter's) and FIELDS. ValueError if one is missing."""
    (number, name, chapter, title), paragraphs = head(path, "Rung", FIELDS)
    found = {"number": number, "name": name, "chapter": chapter, "title": title, "file": path.name, **dict(paragraphs)}
    missing = [name for name in FIELDS if name not in found and name not in OPTIONAL]
    if missing:
        raise ValueError(f"{path.name}: its head lacks {', '.join(missing)}")
    return found


def lessons(folder=FOLDER):
    """The heads of all rungs, by number."""
    return [lesson(path) for path in files(folder)]


def source(folder=FOLDER):
    """C++ that puts them into the library."""
    text = json.dumps(lessons(folder), indent=1, ensure_ascii=False)
    literal = f'R"json({text})json"'
    exported = '__attribute__((visibility("default")))'  # of the core: see csrc/core/api.h
    text = f"namespace gpureduce::ladder {{\n{exported} extern const char* const kLessons = {literal};\n}}\n"
    return f"// made by setup.py\n{text}"
