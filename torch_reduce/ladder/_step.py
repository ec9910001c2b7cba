"""Who adds what, step by step: a kernel's own accesses to memory, as text and as a picture.

A kernel runs emulated on one block's elements, and every load, store, shuffle and atomic is kept. What a thread loads
and then stores is one action: t0 loads x[0] and x[1] and stores x[0], so "t0: 0+1". Actions between the same barriers
are one step.
"""

import argparse
import re
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from torch_reduce.ladder import _emulate, _try

WIDTH = 74  # of a step's text: of many threads it names the first ones and the last


@dataclass
class Action:
    """What one thread does: `to` = sum of `operands`; `to` is empty for a register.

    `counts` says whether its result gets into the block's sum: in a warp's last steps more threads add than need to.
    """

    thread: int
    operands: list[str]
    to: str
    counts: bool = True
    constant: bool = False  # it stores a value that it neither loaded nor got

    @property
    def register(self) -> str:
        return f"t{self.thread}"


@dataclass
class Step:
    """What happens between two barriers."""

    actions: list[Action]
    conflicts: int = 1  # most words that a bank has to serve for one request of a warp
    shuffling: set[int] = field(default_factory=set)  # threads that take part in its shuffles, whatever they get

    def note(self, threads: int) -> str:
        """How many of a block's threads run the step, and how many of them do something that is needed."""
        busy = len({action.thread for action in self.actions} | self.shuffling)
        needed = len({action.thread for action in self.actions if action.counts})
        return f"{busy} of {threads} threads" + (f", {needed} of them needed" if needed < busy else "")


def short(name: str) -> str:
    """in[3] is 3, an element of global memory; smem[3] is s3; out[0] is out0; what is outside of all arrays is ?."""
    element = re.fullmatch(r"(\w+)\[(-?\d+)\]", name)
    if not element:
        return "?"
    array, index = element.groups()
    return {"in": index, "out": f"out{index}", "partial": f"out{index}"}.get(array, f"s{index}")


def is_data(name: str) -> bool:
    """Whether it is an element of the block's data, not of the output."""
    return not name.startswith("out")


def steps_of(found: _emulate.Emulated) -> list[Step]:
    """The steps of block 0 from its accesses."""
    pending: dict[int, list[str]] = {}
    first: dict[int, int] = {}
    actions: dict[int, list[Action]] = {}
    shuffling: dict[int, set[int]] = {}
    holds: set[int] = set()  # threads that have a value of the input in a register

    def close(thread, to, sync):
        operands = pending.pop(thread, [])
        if operands or to:
            actions.setdefault(first.pop(thread, sync), []).append(
                Action(thread, operands, to, constant=thread not in holds)
            )

    for thread, sync, kind, name, _ in found.steps:
        if kind == _emulate.SHUFFLE:
            shuffling.setdefault(sync, set()).add(thread)
            if not name:  # it ran the shuffle, and got nothing
                continue
        if kind in (_emulate.SHUFFLE, _emulate.LOAD, _emulate.SHARED_LOAD):
            holds.add(thread)
        if kind == _emulate.SHUFFLE:
            close(thread, "", sync)
            actions.setdefault(sync, []).append(Action(thread, [f"t{thread}", name], f"t{thread}"))
        elif kind in (_emulate.LOAD, _emulate.SHARED_LOAD):
            pending.setdefault(thread, []).append(short(name))
            first.setdefault(thread, sync)
        elif kind == _emulate.ATOMIC:
            held = pending.pop(thread, [])
            actions.setdefault(first.pop(thread, sync), []).append(Action(thread, held, f"{short(name)} +="))
        else:
            close(thread, short(name), sync)
    for thread in list(pending):
        close(thread, "", first[thread])
    ordered = [
        Step(sorted(actions[sync], key=lambda action: action.thread), shuffling=shuffling.get(sync, set()))
        for sync in sorted(actions)
    ]
    for step in ordered:
        step.conflicts = conflicts_of(step)
    mark(ordered)
    return ordered


def mark(steps: list[Step]) -> None:
    """Finds the actions whose results count, from the last step back: what the output is made of."""
    wanted: set[str] = set()
    for step in reversed(steps):
        read: set[str] = set()
        for action in step.actions:
            action.counts = action.to.startswith("out") or (action.to or action.register) in wanted
            if action.counts:
                read |= set(action.operands) | ({action.register} if not action.operands else set())
        wanted = {
            name for name in wanted if not any((each.to or each.register) == name for each in step.actions)
        } | read


def conflicts_of(step: Step) -> int:
    """How many turns the worst request of a warp to shared memory takes: the words of it that share a bank."""
    worst = 1
    longest = max((len(action.operands) for action in step.actions), default=0)
    for warp in {action.thread // 32 for action in step.actions}:
        mine = [action for action in step.actions if action.thread // 32 == warp]
        for place in range(longest):
            banks: dict[int, set[int]] = {}
            for action in mine:
                if place < len(action.operands) and (word := re.fullmatch(r"s(\d+)", action.operands[place])):
                    banks.setdefault(int(word[1]) % 32, set()).add(int(word[1]))
            worst = max([worst, *(len(words) for words in banks.values())])
    return worst


def action_text(action: Action) -> str:
    """t0: 0+1, and where it is put if that is not the first of them."""
    first = [name for name in action.operands if name == action.to][:1]
    rest = [name for name in action.operands if name != action.to]
    held = "a constant" if action.constant else "its sum"
    total = "+".join([*first, *rest])
    if action.to.endswith("+="):
        return f"t{action.thread}: {action.to} {total or held}"
    if not action.to or first:
        return f"t{action.thread}: {total}"
    return f"t{action.thread}: {action.to} = {total or held}"


def step_text(step: Step) -> str:
    """The actions of a step; of many threads the first ones and the last."""
    texts = [action_text(action) for action in step.actions if action.counts]
    for shown in range(len(texts), 1, -1):
        some = texts if shown == len(texts) else [*texts[: shown - 1], "…", texts[-1]]
        if len(line := "   ".join(some)) <= WIDTH or shown == 2:
            return line
    return "   ".join(texts)


def label(step: Step, number: int) -> tuple[str, int]:
    """What a step is called, and the number of the next one."""
    if all(not is_data(action.to) for action in step.actions if action.to) and any(
        action.to for action in step.actions
    ):
        return "write", number
    if all(
        action.operands and not re.match(r"s\d|t\d", action.operands[0]) and action.to.startswith("s")
        for action in step.actions
    ):
        return "load", number
    if all(not action.to for action in step.actions):
        return "load", number
    return f"step {number}", number + 1


def listing(found: _emulate.Emulated, steps: list[Step]) -> list[str]:
    """The lines of the text."""
    lines, number = [], 1
    for step in steps:
        name, number = label(step, number)
        note = step.note(found.block)
        if step.conflicts > 1:
            note += f", {step.conflicts} words in a bank"
        lines.append((f"{name:<8} {step_text(step)}", note))
    width = max(len(text) for text, _ in lines)
    return [f"{text:<{width}}   {note}" for text, note in lines]


def title(found: _emulate.Emulated) -> str:
    """The line above the text."""
    each = f", {found.elements} elements per thread" if found.elements > 1 else ""
    return f"{found.name}, a block of {found.block} threads{each}"


# --- the picture ------------------------------------------------------------------------------------------------------

CELL, ROW, LEFT = 38, 92, 122
BELOW = 38  # where elements of global memory stand below those of shared memory, in steps that have both
COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7b4173"]  # of threads
STYLE = """<style>
svg { color: #1f2328; } #ground { fill: #ffffff; }
text { font: 11px ui-monospace, monospace; fill: currentColor; }
.idle { fill: #d0d7de; } .cell { fill: none; stroke: #8c959f; } .bank { font-size: 8px; fill: #6e7781; }
@media (prefers-color-scheme: dark) {
  svg { color: #e6edf3; } #ground { fill: #0d1117; } .idle { fill: #30363d; }
}
</style>"""


def cells_of(step: Step) -> list[str]:
    return [name for action in step.actions for name in [*action.operands, action.to] if re.fullmatch(r"s?\d+", name)]


def svg(found: _emulate.Emulated, steps: list[Step]) -> str:
    """The steps as a picture: a row of threads over the data that they add, and under shared memory its banks."""
    shown = min(found.block, 64)
    columns = max([shown, *(int(re.sub(r"\D", "", name)) + 1 for step in steps for name in cells_of(step))])
    columns = min(columns, 64)
    below = [BELOW if {name[0] == "s" for name in cells_of(step)} == {True, False} else 0 for step in steps]
    width, height = LEFT + CELL * columns + 20, 44 + ROW * len(steps) + sum(below)
    head = f"{found.name}: who adds what, a block of {found.block} threads"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{escape(head)}">',
        STYLE,
        f'<rect id="ground" width="{width}" height="{height}"/>',
        f'<text x="10" y="20">{escape(head)}</text>',
    ]
    number = 1
    for row, step in enumerate(steps):
        top = 40 + row * ROW + sum(below[:row])
        name, number = label(step, number)
        busy = {action.thread: COLORS[action.thread % len(COLORS)] for action in step.actions if action.counts}
        counted, _, needed = step.note(found.block).partition(",")
        out.append(f'<text x="10" y="{top + 14}">{name}</text>')
        out.append(f'<text x="10" y="{top + 28}" class="bank">{counted}</text>')
        if needed:
            out.append(f'<text x="10" y="{top + 40}" class="bank">{needed.removeprefix(" ")}</text>')
        if step.conflicts > 1:
            out.append(f'<text x="10" y="{top + 52}" class="bank">{step.conflicts} words in a bank</text>')
        for thread in range(shown):
            x = LEFT + thread * CELL
            fill = f'fill="{busy[thread]}"' if thread in busy else 'class="idle"'
            out.append(f'<rect x="{x + 2}" y="{top}" width="{CELL - 4}" height="18" rx="4" {fill}/>')
            color = ' style="fill:#ffffff"' if thread in busy else ""
            out.append(f'<text x="{x + CELL / 2}" y="{top + 13}" text-anchor="middle"{color}>t{thread}</text>')
        for name in sorted(set(cells_of(step)), key=lambda name: (int(re.sub(r"\D", "", name)), name)):
            index = int(re.sub(r"\D", "", name))
            if index >= columns:
                continue
            x, y = LEFT + index * CELL, top + 50 + (0 if name.startswith("s") else below[row])
            out.append(f'<rect x="{x + 3}" y="{y}" width="{CELL - 6}" height="18" class="cell"/>')
            out.append(f'<text x="{x + CELL / 2}" y="{y + 13}" text-anchor="middle">{name}</text>')
            if name.startswith("s"):
                out.append(
                    f'<text x="{x + CELL / 2}" y="{y + 28}" text-anchor="middle" class="bank">bank {index % 32}</text>'
                )
        for action in step.actions:
            if action.thread >= shown or not action.counts:
                continue
            for operand in [*action.operands, *([action.to] if action.to not in action.operands else [])]:
                x1, y1, color = LEFT + action.thread * CELL + CELL / 2, top + 18, busy[action.thread]
                if lane := re.fullmatch(r"t(\d+)", operand):
                    if int(lane[1]) != action.thread and int(lane[1]) < shown:
                        x2 = LEFT + int(lane[1]) * CELL + CELL / 2
                        middle = (x1 + x2) / 2
                        out.append(f'<path d="M{x2} {y1} Q{middle} {y1 + 40} {x1} {y1}" fill="none" stroke="{color}"/>')
                elif re.fullmatch(r"s?\d+", operand) and int(re.sub(r"\D", "", operand)) < columns:
                    x2 = LEFT + int(re.sub(r"\D", "", operand)) * CELL + CELL / 2
                    weight = 2 if operand == action.to else 1
                    if below[row] and not operand.startswith("s"):  # past the shared memory's boxes
                        y2 = top + 50 + below[row] + 9
                        out.append(
                            f'<path d="M{x1} {y1} L{x2 - CELL / 2} {top + 46} V{y2} H{x2 - CELL / 2 + 3}" fill="none" '
                            f'stroke="{color}"/>'
                        )
                        continue
                    out.append(
                        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{top + 50}" stroke="{color}" '
                        f'stroke-width="{weight}"/>'
                    )
    return "\n".join([*out, "</svg>", ""])


# --- the program ------------------------------------------------------------------------------------------------------


def traced(name: str, block: int | None = None, elements: int | None = None) -> _emulate.Emulated:
    """A kernel's accesses on one block's elements, with the fewest threads from 8 on with which its sum is right."""
    kernel = _try.Kernel.of(Path(name)) if name.endswith((".cu", ".cpp", ".cuh")) else None
    if kernel is None and name not in _emulate.rung_files():
        raise ValueError(f"no rung {name} that can be emulated: {_emulate.COMMAND} lists them")
    if kernel is None and block and block & (block - 1):
        raise ValueError(f"--block: {block} is no power of two, and the tree of a rung needs one, such as 8 or 32")
    program = kernel.build() if kernel else _emulate.build_rungs([name])
    if elements is None and name in ("multi_element", "multi_element_partials", "grid_stride"):
        elements = 4  # enough to see, and few enough to read
    found = None
    for threads in [block] if block else [8, 32, 64]:
        probe = _run(kernel, program, name, threads, threads, elements, False)
        size = threads * (elements or probe.elements)
        found = _run(kernel, program, name, size, threads, elements, True)
        if found.right and not found.wrong:
            break
    return found


def _run(kernel, program, name, size, block, elements, trace):
    if kernel:
        return kernel.run(program, size=size, block=block, elements=elements, trace=trace)
    return _emulate.emulate(name, program, size=size, block=block, elements=elements, trace=trace)


def main(options: argparse.Namespace) -> int:
    """``step NAME``."""
    found = traced(options.name, options.block, options.elements)
    if found.fault:
        print(found.fault)
        return 1
    steps = steps_of(found)
    if not steps:
        blocks = ", ".join(map(str, found.blocks))
        print(f"{found.name}: it takes blocks of {blocks}" if blocks else f"{found.name}: it touches no memory")
        return 1
    names = {name for step in steps for action in step.actions for name in [*action.operands, action.to]}
    outside = ", ? outside of its arrays" if "?" in names else ""
    print(f"{title(found)}: 3 is element 3 in global memory, s3 in shared memory{outside}")
    print("\n".join(listing(found, steps)))
    if not found.right:
        print(f"The sum is wrong: {found.found:g}, and right is {found.wanted:g}.")
    for finding in [*found.races, *found.wrong]:
        print(finding)
    if options.svg:
        Path(options.svg).write_text(svg(found, steps), encoding="utf-8")
        print(f"drawn in {options.svg}")
    return 0 if found.right else 1
