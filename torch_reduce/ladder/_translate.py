"""CUDA C++ as the emulator's C++: what a C++ compiler cannot read becomes calls, on the same lines.

Six things change, and nothing else:

    kernel<<<blocks, threads>>>(x, out);    emulate::launch("kernel", {blocks, threads}, [&] { kernel(x, out); });
    __shared__ float values[1024];          auto& values = *static_cast<...*>(::emulate::shared(7, ...));
    __device__ float partial[64];           static auto& partial = *static_cast<...*>(::emulate::device(...));
    if (tid < stride) x[tid] += ...;        if (EMULATE_TEST(8, 0, tid < stride)) { begin(8); x[tid] += ...; end(8); }
    #pragma unroll                          #pragma GCC unroll 64
    float values[8], x;                     float values[8], x; ::emulate::Local ...; of a learner's file alone

The tests of loops below a `#pragma unroll` stay as they are: the compiler removes them, as nvcc does. It works on the
text, not on a syntax tree: a test that a macro makes is not seen, and so not counted.
"""

import re
from dataclasses import dataclass, field

# Comments, strings and characters count as blanks; what stands in their place has the same length and the same lines.
_BLANK = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
_DECLARATION = re.compile(r"^\s*(?:const\s+)?(?:auto|[\w:]+(?:<[^;]*>)?)\s*[*&]*\s+[*&]*\w+\s*=[^=]")


@dataclass
class Test:
    """The test of an `if` or a loop in the source."""

    number: int
    file: str
    line: int
    loop: bool
    last: bool  # an `if` after which the kernel ends: threads that it leaves out exit, and no branch is counted


@dataclass
class Translation:
    """What :func:`translate` made of a source."""

    text: str
    tests: list[Test] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)  # names of its __global__ functions


def blanked(text: str) -> str:
    """`text` with blanks for comments and strings; every character keeps its place."""
    return _BLANK.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def closing(code: str, opening: int) -> int:
    """The index of the bracket that closes the one at `opening`; -1 if none does."""
    pairs = {"(": ")", "[": "]", "{": "}"}
    close, depth = pairs[code[opening]], 0
    for i in range(opening, len(code)):
        depth += (code[i] == code[opening]) - (code[i] == close)
        if depth == 0:
            return i
    return -1


def split(text: str, separator: str = ",") -> list[str]:
    """`text` cut at separators that stand in no bracket; < and > are brackets of types, not between semicolons."""
    parts, depth, begin = [], 0, 0
    opens, closes = ("([{", ")]}") if separator == ";" else ("([{<", ")]}>")
    for i, character in enumerate(text):
        depth += (character in opens) - (character in closes)
        if character == separator and depth <= 0:
            parts.append(text[begin:i])
            begin = i + 1
    return [*parts, text[begin:]]


def _statement_end(code: str, begin: int) -> int:
    """The index behind the statement that begins at or after `begin`; -1 if it has no end."""
    start = re.compile(r"\s*").match(code, begin).end()
    if start >= len(code):
        return -1
    if code[start] == "{":
        end = closing(code, start)
        return end + 1 if end >= 0 else -1
    head = re.compile(r"(if(?:\s+constexpr)?|for|while|else|do)\b\s*").match(code, start)
    if head:
        at = head.end()
        tested = head[1] not in ("else", "do")
        if tested and (at >= len(code) or code[at] != "(" or (at := closing(code, at) + 1) == 0):
            return -1
        end = _statement_end(code, at)
        if end < 0:
            return -1
        if head[1].startswith("if") and (other := re.compile(r"\s*else\b").match(code, end)):
            return _statement_end(code, other.end())
        if head[1] == "do" and (tail := re.compile(r"\s*while\s*\(").match(code, end)):
            return code.find(";", closing(code, tail.end() - 1)) + 1 or -1
        return end
    depth = 0
    for i in range(start, len(code)):
        depth += (code[i] in "([{") - (code[i] in ")]}")
        if depth < 0:
            return -1
        if code[i] == ";" and depth == 0:
            return i + 1
    return -1


def _bodies(code: str) -> list[tuple[int, int, str]]:
    """(begin, end, name) of the bodies of __global__ and __device__ functions; the name is empty for the latter."""
    found = []
    for start in re.finditer(r"__(global|device)__", code):
        declared = re.compile(r"[;{]").search(code, start.end())
        parameters = re.compile(r"(\w+)\s*\(").search(code, start.end())
        while parameters and parameters[1] in ("__launch_bounds__", "__align__", "alignas", "__attribute__"):
            after = closing(code, parameters.end() - 1) + 1
            parameters = re.compile(r"(\w+)\s*\(").search(code, after)
        if not parameters or not declared or parameters.start() > declared.start():
            continue
        after = closing(code, parameters.end() - 1)
        brace = re.compile(r"[;{]").search(code, after)
        if after < 0 or not brace or code[brace.start()] == ";":
            continue
        if (end := closing(code, brace.start())) >= 0:
            found.append((brace.start(), end, parameters[1] if start[1] == "global" else ""))
    return found


def _declared(declaration: str) -> list[tuple[str, str, str]]:
    """(element, name, dims) of each array or variable that `float a[32], b` declares; none where it is no such list."""
    first, *others = split(declaration)
    lead = re.match(r"(.*?)([*&\s])(\w+)\s*((?:\[.*)?)$", first.strip(), re.DOTALL)
    if not lead:
        return []
    items = [re.match(r"\s*(\w+)\s*((?:\[.*)?)$", item, re.DOTALL) for item in [lead[3] + lead[4], *others]]
    return [((lead[1] + lead[2]).strip(), item[1], item[2]) for item in items if item]


# A declaration of local variables without values, such as `unsigned long long a[4], b[kItems], c;`.
_ITEM = r"\w+\s*(?:\[[^;{}=\[\]]*\]\s*)*"
_LOCALS = re.compile(
    r"(?<=[;{}])\s*((?:unsigned\s+|signed\s+|long\s+|short\s+)*[A-Za-z_][\w:]*(?:<[^;{}()<>]*>)?\s+"
    rf"{_ITEM}(?:,\s*{_ITEM})*);"
)
_NO_TYPES = ("return", "delete", "goto", "else", "typedef", "using", "static", "constexpr", "extern", "case")


def translate(text: str, file: str, first: int = 1, watched: bool = False) -> Translation:
    """`text`, a CUDA source, for the emulator; its tests are numbered from `first` on, in steps of one.

    Args:
        text: the source.
        file: the path that a compiler's messages name.
        first: the number of the first test or shared array; use a range of numbers per file.
        watched: whether reads of local variables that nothing has been written to are told.
    """
    code = blanked(text)
    result = Translation("")
    edits: list[tuple[int, int, str]] = []  # (begin, end, replacement), none inside another; insertions where equal
    number = first
    bodies = _bodies(code)
    result.kernels = [name for _, _, name in bodies if name]

    for body, end, name in bodies:
        for start in re.finditer(r"\b(if|for|while)\s*\(", code[body:end]):
            at, keyword = body + start.start(), start[1]
            opening = body + start.end() - 1
            close = closing(code, opening)
            inside = code[opening + 1 : close]
            begin, stop = opening + 1, close
            if keyword == "for":
                parts = split(inside, ";")
                if len(parts) != 3:
                    continue
                begin += len(parts[0]) + 1
                stop = begin + len(parts[1])
            elif ";" in inside or _DECLARATION.match(inside):
                continue
            before = code[:at].rstrip()
            if keyword == "for" and before[before.rfind("\n") + 1 :].strip().startswith("#pragma"):
                continue
            done = re.search(r"\bdo\s*$|\}\s*$", before) if keyword == "while" else None
            tail_of_do = bool(done) and re.compile(r"\s*;").match(code, close + 1) is not None
            # What begins and ends inside of the test: the body that it decides on.
            finish = -1 if tail_of_do else _statement_end(code, close + 1)
            line = text.count("\n", 0, at) + 1
            rest = code[finish:end] if finish >= 0 else "x"
            result.tests.append(
                Test(number, file, line, keyword != "if", keyword == "if" and not rest.strip(" \n\t}") and bool(name))
            )
            if code[begin:stop].strip():
                edits.append((begin, begin, f"EMULATE_TEST({number}, {int(keyword != 'if')}, "))
                edits.append((stop, stop, ")"))
            else:  # for (;;)
                edits.append((begin, stop, f"EMULATE_TEST({number}, 1, true)"))
            if finish >= 0:
                edits.append((close + 1, close + 1, f" {{ ::emulate::begin({number});"))
                edits.append((finish, finish, f" ::emulate::end({number}); }}"))
                other = re.compile(r"\s*else\b").match(code, finish) if keyword == "if" else None
                if other and (behind := _statement_end(code, other.end())) >= 0:
                    edits.append((other.end(), other.end(), f" {{ ::emulate::begin({number});"))
                    edits.append((behind, behind, f" ::emulate::end({number}); }}"))
            number += 1

    for body, end, _ in bodies if watched else ():
        types = [
            (start.end(), closing(code, start.end() - 1))
            for start in re.compile(r"\b(?:struct|union|class)\b[^;{}()]*\{").finditer(code, body, end)
        ]
        for found in _LOCALS.finditer(code, body, end):
            member = any(first <= found.start(1) < last for first, last in types)
            if member or found[1].split()[0] in _NO_TYPES:
                continue
            for _, name, _ in _declared(found[1]):
                edits.append((found.end(), found.end(), f' ::emulate::Local emulate_{number}({name}, "{name}");'))
                number += 1

    for found in re.finditer(r"(extern\s+)?(?:__align__\s*\(\s*\w+\s*\)\s*|volatile\s+)*__shared__\b([^;]*);", code):
        if code[: found.start()].rstrip().endswith("#define"):
            continue
        declared = re.sub(r"__align__\s*\(\s*\w+\s*\)|alignas\s*\(\s*\w+\s*\)", "", found[2]).strip()
        volatile = "volatile " if re.search(r"\bvolatile\b", found[0]) else ""
        declared = re.sub(r"\bvolatile\b", "", declared)
        replaced = ""
        for element, name, dims in _declared(declared):
            element = volatile + element
            if found[1]:
                where = f'::emulate::dynamic_shared(sizeof({element}), "{name}")'
                replaced += f"{element}* {name} = static_cast<{element}*>({where}); "
                continue
            whole = f"::emulate::Same<{element}{dims}>"
            where = f'::emulate::shared({number}, sizeof({whole}), sizeof({element}), "{name}")'
            replaced += f"auto& {name} = *static_cast<{whole}*>({where}); "
            number += 1
        if replaced:
            edits.append((found.start(), found.end(), replaced + "\n" * found[0].count("\n")))

    for found in re.finditer(r"__device__\s+(?:static\s+)?([^;(){}=]*);", code):
        replaced = ""
        for element, name, dims in _declared(found[1]):
            whole = f"::emulate::Same<{element}{dims}>"
            where = f'::emulate::device(sizeof({whole}), sizeof({element}), "{name}")'
            replaced += f"static auto& {name} = *static_cast<{whole}*>({where}); "
        if replaced:
            edits.append((found.start(), found.end(), replaced + "\n" * found[0].count("\n")))

    for found in re.finditer(r"<<<", code):
        end_of_shape = code.find(">>>", found.end())
        opening = re.compile(r"\s*\(").match(code, end_of_shape + 3)
        if end_of_shape < 0 or not opening:
            continue
        close = closing(code, opening.end() - 1)
        begin = found.start()
        if code[:begin].rstrip().endswith(">"):  # template arguments
            depth = 0
            begin = len(code[:begin].rstrip())
            while begin > 0:
                begin -= 1
                depth += (code[begin] == ">") - (code[begin] == "<")
                if depth == 0:
                    break
        begin = re.search(r"[\w:]+\s*$", code[:begin]).start()
        callee = text[begin : found.start()].strip()
        shape, arguments = text[found.end() : end_of_shape], text[opening.end() : close]
        name = re.match(r"[\w:]+", callee)[0].rpartition(":")[2]
        call = f'emulate::launch("{name}", {{{shape}}}, [&] {{ {callee}({arguments}); }})'
        edits.append((begin, close + 1, call))

    for found in re.finditer(r"^[ \t]*#pragma[ \t]+unroll[^\n]*", code, re.MULTILINE):
        edits.append((found.start(), found.end(), "#pragma GCC unroll 64"))

    pieces, at = [], 0
    for _, (begin, end, replacement) in sorted(
        enumerate(edits), key=lambda edit: (edit[1][0], edit[1][1], _rank(edit))
    ):
        pieces += [text[at:begin], replacement]
        at = end
    result.text = f'#line 1 "{file}"\n' + "".join(pieces) + text[at:]
    return result


def _rank(edit: tuple[int, tuple[int, int, str]]) -> tuple[int, int]:
    """Where several texts are put at one place: what ends stands before what begins, inner ends before outer ones."""
    order, (_, _, replacement) = edit
    ends = replacement.startswith((" ::emulate::end", ")"))
    return (0, -order) if ends else (1, order)
