"""Makes the course's notebooks, docs/ladder/chapterN.ipynb, of all chapters but 1, whose notebook is written by hand.

    python tools/notebooks.py

A notebook is a text below: "%% md NAME" begins a cell of text, "%% NAME" one of code. The first cells, which find the
course and say what the notebook needs, are the same in all of them.
"""

import argparse
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "ladder"

NEEDS = """
This is [chapter {number}](chapter{number}.md) of [the course](../ladder.md), to run and to change. It needs Python 3.10
or newer and g++; no GPU and no torch. Write your predictions into the cells before you run them. Run the cells in their
order. The first one finds the clone of torch_reduce that this notebook is in.
"""

TABLE = '''
def table(counters, *names, **choices):
    """Emulates rungs, prints some of their counters side by side, and returns them."""
    runs = {name: ladder.emulate(name, **choices) for name in names}
    print(f"{'':<24}" + "".join(f"{name:>24}" for name in names))
    for counter in counters:
        print(f"{counter:<24}" + "".join(f"{run.counters.get(counter, 0):24.3f}" for run in runs.values()))
    return {name: run.counters for name, run in runs.items()}


def compare(predicted, counted):
    """Says whether a prediction is what was counted."""
    print(f"you predicted {predicted}, counted was {counted:g}: {'yes' if abs(predicted - counted) < 0.01 else 'no'}")

'''

EXERCISE = """
%% md exercise
## Exercises
Exercises {first} to {last} belong to this chapter. This is the first one. Write your answer into the cell below it.
%% task
print(*_exercise.shown(_exercise.exercise({first})), sep="\\n")
%% check
answer = {wrong!r}  # it is wrong: put yours here. Of a kernel to mend, the path of your file
checked = _exercise.check(_exercise.exercise({first}), answer.format(given=_exercise.exercise({first}).file))
print(*checked.lines, sep="\\n")
"""

CHAPTERS = {
    0: ("before the first kernel", (1, 3, "255"), '''
%% md reduction
## A chain and a tree
A sum of n numbers takes n - 1 additions. These two functions add the same numbers and count their additions and steps.
Predict both for 1000 numbers before you run the cell.
%% tree
predicted_steps = 500  # of the tree, for 1000 numbers


def chain(numbers):
    """(sum, additions, steps) of one addition after the other."""
    total = numbers[0]
    for number in numbers[1:]:
        total += number
    return total, len(numbers) - 1, len(numbers) - 1


def tree(numbers):
    """The same where neighbours are added at the same time; a number that is left over waits for the next step."""
    additions = steps = 0
    while len(numbers) > 1:
        pairs = [sum(numbers[i : i + 2]) for i in range(0, len(numbers), 2)]
        additions, steps, numbers = additions + len(numbers) // 2, steps + 1, pairs
    return numbers[0], additions, steps


by_chain, by_tree = chain(list(range(1000))), tree(list(range(1000)))
print(f"chain {by_chain}, tree {by_tree}; you predicted {predicted_steps} steps")
%% md floats
Both have the same sum, because these are integers. Now floats: the sums of 1 + 1/2 + 1/3 + ... differ in their last
digits, because each addition rounds, and the two functions round other numbers.
%% rounded
fractions = [1 / (i + 1) for i in range(1000)]
print(f"chain {chain(fractions)[0]!r}\\ntree  {tree(fractions)[0]!r}")
%% md index
## Who am I?
Each thread of `kernel<<<blocks, threads>>>` computes its number in the grid. With 10 elements and blocks of 4 threads,
which numbers have nothing to do?
%% threads
elements, threads = 10, 4
blocks = (elements + threads - 1) // threads  # rounded up
for block in range(blocks):
    numbers = [block * threads + thread for thread in range(threads)]
    print(f"block {block}: numbers {numbers}, idle {[i for i in numbers if i >= elements]}")
%% md program
## A whole program
The emulator compiles the program of the chapter and runs its `main()`. Read the source first. What will it print?
%% source
from torch_reduce.ladder import _whole

source = _whole.FIRST.read_text(encoding="utf-8")
print(source[source.index("// Each thread") :])
%% ran
ran = _whole.run(_whole.FIRST)
print(ran.printed, *_whole.report(ran), sep="\\n")
%% md broken
Now leave out the copy of the elements to the GPU. Predict what is said.
%% changed
import tempfile

file = Path(tempfile.mkdtemp()) / "mine.cu"
there = "check(cudaMemcpy(in, numbers.data(), n * sizeof(float), cudaMemcpyHostToDevice));"
file.write_text(source.replace(there, ""), encoding="utf-8")
broken = _whole.run(file)
print(broken.printed, *_whole.report(broken), sep="\\n")
'''),
    2: ("shared memory", (9, 13, "{given}"), '''
%% md source
## What `smem` does
It copies one element per thread to shared memory, and the tree works there. Look for the barrier after the copy.
%% show
source = ladder.source("smem")
print(source[source.index("template") : source.index("// Differs")].rstrip())
%% md predict
## What leaves global memory
`gmem` has the same tree in global memory. A block of 512 threads has 16 warps. `smem` stores one number per block in
global memory: how many stores is that per warp, on average?
%% predicted
predicted_stores = 1
%% md run
A `load` or a `store` is one request of a warp to global memory; `shared loads` go to shared memory.
%% counters
names = ("gmem", "smem", "smem_unroll4")
wanted = ("loads", "stores", "shared loads", "shared stores", "barriers", "shared bytes")
counters = table(wanted, *names)
compare(predicted_stores, counters["smem"]["stores"])
%% md loads
The loads and stores of the tree have moved to shared memory. `smem_unroll4` makes four loads before its tree, so its
tree serves four times as many elements.

## Count the bytes by hand
A block of 512 in `gmem`: the tree down to 64 sums makes 448 additions. Then 32 threads of one warp take six steps. Each
addition reads two elements; each thread of the last warp does it in every step; the sum is read once more at the end.
%% bytes
read = 2 * 448 + 2 * 6 * 32 + 1
written = 448 + 6 * 32 + 1
print(f"{read} elements read, {written} written: {(read + written) / 512:.4f} accesses per element")
%% md size
## The size of the array
`smem` declares an array for a block of 1024 threads. `smem_unroll_dynamic` leaves the size to the launch. Predict its
bytes for a block of 128 threads with ints of 4 bytes.
%% dynamic
predicted_bytes = 4096
sized = table(("shared bytes",), "smem_unroll4", "smem_unroll_dynamic", block=128, dtype="int32")
compare(predicted_bytes, sized["smem_unroll_dynamic"]["shared bytes"])
'''),
    3: ("seven steps in shared memory", (14, 18, "45"), '''
%% md banks
## Banks
Word w of shared memory lies in bank w % 32. A warp's access takes as many turns as there are different words in its
fullest bank. Predict the turns where thread t touches word 8 * t.
%% turns
from collections import Counter

predicted_turns = 1


def turns(words):
    """How many turns a warp's access to these words takes."""
    return max(Counter(word % 32 for word in set(words)).values())


for step in (1, 2, 3, 8, 32):
    print(f"thread t touches word {step} * t: {turns([step * t for t in range(32)])} turns")
compare(predicted_turns, turns([8 * t for t in range(32)]))
%% md odd
Why has 3 no conflict? 3 * t takes each value modulo 32 once, because 3 and 32 have no common divisor.

## The three trees
Predict first: which of the three has bank conflicts, and which has the most barriers?
%% trees
names = ("interleaved_modulo", "interleaved_strided", "sequential_addressing")
counters = table(("bank conflicts", "barriers", "shared loads", "branch efficiency"), *names)
%% md more
All three walk the same nine steps. The strided one touches words far apart, and the last one touches words side by
side.

## How often the tree is walked
A tree of nine steps for a block of 512 serves more elements if each thread adds some before. Predict the steps of all
blocks together for 16,384 elements and 32 elements per thread.
%% walks
predicted_walks = 288


def walks(elements, block, each):
    """Steps of all blocks' trees."""
    return elements // (block * each) * (block.bit_length() - 1)


for each in (1, 2, 32):
    print(f"{each:2} elements per thread: {walks(16384, 512, each)} steps")
compare(predicted_walks, walks(16384, 512, 32))
%% md last
The rungs from `first_add_on_load` to `grid_stride` do that, and take barriers out. Barriers are per warp of a block.
%% rest
names = ("first_add_on_load", "unroll_last_warp", "unroll_template", "grid_stride")
more = table(("barriers", "loads", "shared loads", "bank conflicts"), *names)
'''),
    4: ("the modern steps", (19, 23, "10"), '''
%% md shuffles
## A shuffle
`__shfl_down_sync(mask, value, k)` gives each lane the value of the lane k further on. All 32 lanes run it. Where there
is no such lane, a lane gets its own value back. This is a warp in Python. Predict what lane 0 has at the end.
%% warp
predicted_sum = 31


def shuffle_down(values, k):
    """What each lane of a warp gets."""
    return [values[lane + k] if lane + k < len(values) else values[lane] for lane in range(len(values))]


lanes = list(range(32))
for k in (16, 8, 4, 2, 1):
    lanes = [mine + other for mine, other in zip(lanes, shuffle_down(lanes, k), strict=True)]
    print(f"k = {k:2}: lane 0 has {lanes[0]:3}, lane 31 has {lanes[31]}")
compare(predicted_sum, lanes[0])
%% md useless
Lane 31 has a number that nobody needs. It costs nothing: the warp issues one instruction for all of its lanes.

## Atomics, barriers, shuffles
`atomic` makes one atomic per thread. `shared` and `warp_shuffle` make one per block. Predict the atomics per warp of
`shared`, for a block of 512 threads, which has 16 warps.
%% predicted
predicted_atomics = 1
%% counters
names = ("atomic", "shared", "warp_shuffle", "multi_element", "multi_element_partials")
counters = table(("atomics", "shuffles", "barriers", "shared loads", "loads", "stores"), *names)
compare(predicted_atomics, counters["shared"]["atomics"])
%% md queue
`atomic` also has one atomic request per warp, but its 32 threads queue at one address.
`multi_element_partials` stores its blocks' sums, and needs none.

## Elements per thread
The tree costs the same for each block, whatever the number of elements. Predict the loads that each warp of
`multi_element` makes with 8 elements per thread.
%% elements
predicted_loads = 1
runs = {each: ladder.emulate("multi_element", elements_per_thread=each).counters for each in (1, 2, 8)}
for each, found in runs.items():
    print(f"{each} elements per thread: {found['loads']:g} loads and {found['shuffles']:.4g} shuffles per warp")
compare(predicted_loads, runs[8]["loads"])
'''),
    5: ("divergence itself", (24, 28, "100"), '''
%% md divergence
## Divergence
If threads of a warp need different sides of a branch, the warp walks both. This counts what warps walk through, where
each side has 10 instructions. Predict the number for two warps that alternate by thread.
%% sides
predicted_walked = 20


def walked(condition, warps=2, side=10):
    """Instructions that the warps issue together."""
    sides = [{condition(tid) for tid in range(32 * warp, 32 * warp + 32)} for warp in range(warps)]
    return sum(side * len(needed) for needed in sides)


by_thread, by_warp = walked(lambda tid: tid % 2 == 0), walked(lambda tid: tid // 32 % 2 == 0)
print(f"by thread {by_thread}, by warp {by_warp}")
compare(predicted_walked, by_thread)
%% md long
## Two loops that are too long for a selection
`long_by_thread` and `long_by_warp` have the same two loops. Which has the lower branch efficiency?
%% loops
counters = table(("branch efficiency",), "long_by_thread", "long_by_warp", size=4096)
%% md short
## Short sides
The two sides of `math_kernel1` set a register. The compiler makes a selection of them, so there is no branch, and
nothing to count. Predict whether `branch efficiency` is among the counters.
%% selection
predicted_there = True
there = "branch efficiency" in ladder.emulate("math_kernel1", size=4096).counters
print(f"you predicted {predicted_there}, and it is {there}")
%% md tree
## The trees of chapter 1
`neighbored` diverges in every warp, `neighbored_less` only in the last five steps of the first warp. This counts the
branches of `neighbored_less` by hand: each warp tests its loop and its `if` in each step.
%% branches
BLOCK = 512
branches = divergent = 0
for warp in range(BLOCK // 32):
    branches += 1  # the test that ends the loop
    stride = 1
    while stride < BLOCK:
        branches += 2  # the loop's test, and the `if`
        working = sum(2 * stride * tid < BLOCK for tid in range(32 * warp, 32 * warp + 32))
        divergent += 0 < working < 32
        stride *= 2
by_hand = 100 - 100 * divergent / branches
counted = table(("branch efficiency",), "neighbored", "neighbored_less")
print(f"by hand {by_hand:.4f}")
'''),
    6: ("one order, the same bits everywhere", (29, 31, "1"), '''
%% md rounding
## Floats round
A float32 has 24 binary digits. `f32` rounds a number of Python to one. Predict the two sums.
%% order
import struct


def f32(value):
    """The nearest float32."""
    return struct.unpack("f", struct.pack("f", value))[0]


left, right = f32(f32(1e8 + -1e8) + 1), f32(1e8 + f32(-1e8 + 1))
print(f"(1e8 + -1e8) + 1 = {left}, 1e8 + (-1e8 + 1) = {right}")
%% md arrival
## The order of arrival
Atomics add blocks' sums as blocks arrive. These are 128 partial sums, added in twenty orders of arrival. Predict how
many different results there are.
%% arrivals
import random

partials = [f32(sum(1 / (512 * block + i + 1) for i in range(512))) for block in range(128)]
results = set()
for run in range(20):
    total = 0.0
    for partial in random.Random(run).sample(partials, len(partials)):
        total = f32(total + partial)
    results.add(total)
print(f"{len(results)} different sums: {sorted(results)[:3]} ...")
%% md lanes
## One order
The engine cuts the input into chunks of 4096 elements. Lane l of 512 adds elements l, l + 512, ... of a chunk, then a
tree joins neighbouring lanes, and another one joins chunks. The order depends on n alone. Here is a sum of a few
chunks.
%% contract
def join(sums):
    """Neighbours two by two, until one is left; one without a neighbour goes up as it is."""
    while len(sums) > 1:
        sums = [f32(sums[i] + sums[i + 1]) if i + 1 < len(sums) else sums[i] for i in range(0, len(sums), 2)]
    return sums[0]


def chunk(elements):
    """The lanes of a chunk, then their tree."""
    lanes = elements[:512]
    for i, element in enumerate(elements[512:]):
        lanes[i % 512] = f32(lanes[i % 512] + element)
    return join(lanes)


x = [f32(1 / (i + 1)) for i in range(65536)]
engine = join([chunk(x[i : i + 4096]) for i in range(0, len(x), 4096)])
print(f"{engine.hex()}: the value that stands in chapter 6")
%% md exact
## Exact
Shuffle the elements: the tree rounds other numbers. Integers do not round: a float32 is an integer times 2^-149, and
Python's integers have no end. Predict the two numbers of results.
%% shuffled
def exactly(elements):
    """The sum, rounded once."""
    return f32(sum(int(element * 2.0**100) << 49 for element in elements) / 2**149)


orders = [random.Random(seed).sample(x, len(x)) for seed in range(3)]
rounded = {join([chunk(order[i : i + 4096]) for i in range(0, len(order), 4096)]) for order in orders}
exact = {exactly(order) for order in orders}
print(f"{len(rounded)} results of the tree, {len(exact)} of the exact sum: {exact.pop().hex()}")
%% md emulated
The rung `fixed_point` does it with integers in shared memory. It pays with atomics:
%% counters
counters = table(("atomics", "shuffles", "loads"), "multi_element", "fixed_point", size=8192)
'''),
    7: ("from the course to the engine", None, '''
%% md order
## Which additions, and in which order
`try --order` compares a kernel's bits with the contract's. Then it runs the kernel with numbers that know how they were
made, and names the first addition that came in another order. This cell does the same for the first of the chapter's
four files.
%% compare
from torch_reduce.ladder import _order

FOLDER = Path(_order.__file__).parent / "orders"


def order_of(name):
    """Compares a kernel's order with the contract's, and prints what is found."""
    kernel = _try.Kernel.of(FOLDER / name)
    program = kernel.build()
    partials = False  # it leaves one sum, and not one per block
    found = _order.compare(kernel, program, _try.elements_of(kernel, program, (512,)), partials, sizes=(1, 513, 4097))
    print(*_order.report(found, partials), sep="\\n")
    return found


first = order_of("1_lanes.cu")
%% md steps
Read [step 1 and step 2](chapter7.md#step-1-the-lanes), then look at what the next file changes.
%% second
second = order_of("2_tree.cu")
%% md last
The last file adds in the contract's order. Predict what is said of it.
%% third
last = order_of("4_contract.cu")
%% source
print((FOLDER / "4_contract.cu").read_text(encoding="utf-8"))
'''),
}  # fmt: skip


def cell(kind, name, text):
    """A cell of nbformat 4.5."""
    lines = text.strip("\n").split("\n")
    source = [f"{line}\n" for line in lines[:-1]] + lines[-1:]
    code = {"execution_count": None, "id": name, "metadata": {}, "outputs": [], "source": source}
    return {"cell_type": "code", **code} if kind == "code" else {
        "cell_type": "markdown", "id": name, "metadata": {}, "source": source
    }  # fmt: skip


def cells_of(text):
    """The cells of a text with %% lines."""
    for part in text.strip("\n").split("\n%% ")[0:]:
        head, _, body = part.removeprefix("%% ").partition("\n")
        *markdown, name = head.split()
        yield cell("markdown" if markdown else "code", name, body)


def notebook(number, hand):
    """The text of a chapter's notebook; `hand` is chapter 1's, as a dict."""
    title, exercises, text = CHAPTERS[number]
    setup = "".join(next(cell for cell in hand["cells"] if cell["id"] == "setup")["source"])
    used = [name for name in ("_exercise", "_try") if f"{name}." in text + EXERCISE * bool(exercises)]
    setup = setup.replace("import _emulate, _exercise, _step, _try", f"import {', '.join(['_emulate', *used])}")
    cells = [
        cell("markdown", "title", f"# Chapter {number} as a notebook: {title}\n{NEEDS.strip().format(number=number)}"),
        cell("code", "setup", setup),
        *([] if number in (0, 7) else [cell("code", "functions", TABLE)]),
        *cells_of(text),
    ]
    if exercises:
        first, last, wrong = exercises
        cells += cells_of(EXERCISE.format(first=first, last=last, wrong=wrong))
    return json.dumps({**hand, "cells": cells}, indent=1, ensure_ascii=False) + "\n"


def documents(root=ROOT):
    """{path under root: text} of all that is made."""
    hand = json.loads((root / "docs" / "ladder" / "chapter1.ipynb").read_text(encoding="utf-8"))
    return {f"docs/ladder/chapter{number}.ipynb": notebook(number, hand) for number in CHAPTERS}


if __name__ == "__main__":
    raw = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=raw).parse_args()
    for name, text in documents().items():
        (ROOT / name).write_text(text, encoding="utf-8")
        print(f"written: {name}")
