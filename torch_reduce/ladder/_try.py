"""A learner's kernel: is it right, does it race, what do its warps do, which rung is it nearest to, how fast is it?

The kernel is one of these two forms; the file may hold anything else, a main() with cudaMalloc, too, which is not run:

    template <class T>                                        a template, or float, double, int, long long ...
    __global__ void mine(const T* in, T* out, int n)          or without n: then only whole blocks are tried
    __global__ void mine(T* data, T* out)

It leaves one sum in out[0], or one sum a block in out[0], out[1], ...; out holds zeros before. With --op it leaves
products, the largest or the smallest element, or how many elements are not 0, and out holds what changes none: 1, the
least number, the largest, 0. `out` may have another type. How many elements each thread takes is found out: the most
with which the result is right. A kernel that reads threadIdx.y gets blocks with rows of 32 threads.
"""

import argparse
import hashlib
import math
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from torch_reduce.ladder import _emulate, _figures, _translate

BLOCKS = (64, 128, 256, 512, 1024)
ELEMENTS = (1, 2, 4, 8, 16, 32)  # per thread, tried from the most on
ODD = (1, 7, 1000, 10_007, 40_000)  # no powers of two, and no whole blocks
WHOLE = 1 << 15  # of every block and number of elements a multiple
DTYPES = {
    "float": "float32", "double": "float64", "int": "int32", "unsigned": "int32", "unsigned int": "int32",
    "int32_t": "int32", "uint32_t": "int32", "long long": "int64", "unsigned long long": "int64", "int64_t": "int64",
    "uint64_t": "int64", "long": "int64", "size_t": "int64",
}  # fmt: skip
OPS = {"sum": "sum", "prod": "product", "max": "max", "min": "min", "count": "sum"}  # as the emulator has them
C_TYPES = {"float32": "float", "float64": "double", "int32": "int", "int64": "long long"}
FORMS = "a kernel to try is `mine(const T* in, T* out, int n)` or `mine(T* in, T* out)`"


@dataclass
class Kernel:
    """A kernel in a file: how it is launched.

    Attributes:
        file, name: where it stands.
        element: its elements' C++ type; for a template the one that the dtype asks for.
        dtype: that type's name in torch.
        result: the C++ type of its results, and `to` that type's name in torch.
        arrays: what it calls its input and its output.
        counts: whether it takes n.
        width: threads in a row of a block of two dimensions; 0 for blocks of one.
        op: one of OPS.
        template: its template parameters, such as "class T" and "unsigned kBlock".
        text, translation: the file, and what the emulator makes of it.
    """

    file: Path
    name: str
    element: str
    dtype: str
    result: str
    to: str
    arrays: tuple[str, str]
    counts: bool
    template: list[str]
    text: str
    translation: _translate.Translation
    width: int = 0
    op: str = "sum"

    @classmethod
    def of(cls, file: Path, kernel: str | None = None, dtype: str | None = None, op: str = "sum") -> "Kernel":
        """Reads a file. ValueError says what is wrong with it. `dtype` is for a template: float32 if None."""
        try:
            text = file.read_text(encoding="utf-8-sig")  # some editors put a mark before the first character
        except UnicodeDecodeError:
            raise ValueError(f"{file}: it is no text in UTF-8") from None
        translation = _translate.translate(text, str(file), 100_000, watched=True)
        names = translation.kernels
        if not names:
            raise ValueError(f"{file}: there is no __global__ function in it; {FORMS}")
        if kernel is None and len(names) > 1:
            raise ValueError(f"{file}: it has several kernels, {', '.join(names)}: choose one by --kernel")
        name = kernel or names[0]
        if name not in names:
            raise ValueError(f"{file}: there is no kernel {name}; there are {', '.join(names)}")
        code = _translate.blanked(text)
        head = re.search(rf"(?:template\s*<([^{{}};]*?)>\s*)?(?:static\s+)?__global__[^;{{}}]*?\b{name}\s*\(", code)
        parameters = code[head.end() : _translate.closing(code, head.end() - 1)]
        listed = [" ".join(part.split()) for part in _translate.split(parameters)]
        pointers = [part for part in listed if "*" in part]
        counts = [part for part in listed if "*" not in part and part]
        types = [re.sub(r"\b(const|volatile)\b", "", each.split("*")[0]).strip() for each in pointers]
        if len(pointers) != 2 or len(counts) > 1 or listed[:2] != pointers:
            raise ValueError(f"{file}: {name}({', '.join(listed)}): {FORMS}")
        template = [" ".join(part.split()) for part in _translate.split(head[1])] if head[1] else []
        known = []
        for element in types:
            if element in DTYPES:
                known.append((element, DTYPES[element]))
            elif any(re.match(rf"(class|typename) {re.escape(element)}$", part) for part in template):
                known.append((C_TYPES[dtype or "float32"], dtype or "float32"))
            else:
                raise ValueError(
                    f"{file}: elements of type {element}: possible are {', '.join(DTYPES)}, and a template's T"
                )
        if dtype and known[0][1] != dtype:
            raise ValueError(f"{file}: {name} takes {types[0]}, and not {dtype}: --dtype is for a template's T")
        arrays = [re.search(r"(\w+)$", each.split("*")[-1]) for each in pointers]
        called = tuple(found[1] if found else name for found, name in zip(arrays, ("in", "out"), strict=True))
        width = 32 if re.search(r"\bthreadIdx\s*\.\s*y\b", code) else 0
        return cls(file, name, *known[0], *known[1], called, bool(counts), template, text, translation, width, op)

    def called(self) -> str:
        """The kernel with its template arguments; the constant among them, if there is one, is the block's size."""
        constants = [not re.match(r"(class|typename) ", part) for part in self.template]
        if sum(constants) > 1:
            raise ValueError(f"{self.file}: {self.name} has more than one constant as template argument")
        if not any(constants):
            return self.name
        given = ["{block}" if constant else self.element for constant in constants]
        return f"{self.name}<{', '.join(given[: constants.index(True) + 1])}>"

    def launcher(self) -> str:
        """C++ that launches it: a function of (blocks, threads, in, out, n); threads is a dim3."""
        arguments = f"static_cast<{self.element}*>(in), static_cast<{self.result}*>(out)" + ", n" * self.counts
        threads = "(threads.x * threads.y)"
        shared = f"{threads} * sizeof({self.element})" if re.search(r"extern\s+__shared__", self.text) else "0"
        called = self.called()
        if called == self.name:
            return f"{self.name}<<<blocks, threads, {shared}>>>({arguments});"
        cases = "".join(
            f" case {block}: {called.format(block=block)}<<<blocks, threads, {shared}>>>({arguments}); break;"
            for block in (1, 2, 4, 8, 16, 32, *BLOCKS)
        )
        return f"switch {threads} {{{cases} }}"

    def build(self, before: str = "", parts: tuple[str, ...] = ()) -> Path:
        """The program; CannotEmulate shows what the compiler says, with the file's own lines.

        `before` stands before the file, and `parts` are more files of the emulator.
        """
        launch = _translate.translate(self.launcher(), "launch", 200_000).text
        text = "\n".join([
            before,
            '#define main learner_main',
            self.translation.text,
            "#undef main",
            '#include "learner.h"',
            "namespace { const bool made = [] {",
            "  emulate::learner().launch = [](unsigned blocks, dim3 threads, void* in, void* out, long long n) {",
            "    (void)n;",
            launch,
            "  };",
            f'  emulate::learner().in = "{self.arrays[0]}", emulate::learner().out = "{self.arrays[1]}";',
            "  return true;",
            "}(); }",
        ])  # fmt: skip
        try:
            return _emulate.build([(f"learner-{self.name}", text)], None, self.file.resolve().parent, parts)
        except _emulate.CannotEmulate as error:
            raise _emulate.CannotEmulate(explained(str(error), self.file)) from None

    def run(self, program: Path, **choices) -> _emulate.Emulated:
        """Emulates it; `choices` are those of _emulate.options."""
        choices |= {"dtype": self.dtype, "to": self.to, "op": OPS[self.op], "width": self.width}
        choices["count"] = int(self.op == "count")
        said = _emulate.run_program(program, "learner", _emulate.options(**choices), seconds=60)
        if "atomicCAS" in self.text:
            _emulate.allow_swaps(said)
        tests = [*self.translation.tests, *_emulate.shared_part().tests]
        found = _emulate.read(said, self.name, program, tests, self.file)
        found.elements = choices.get("elements") or 1
        if found.right:  # such as of a lane that hands over what no other lane uses
            found.wrong = [finding for finding in found.wrong if not finding.unset]
        names = dict(zip(self.arrays, ("in", "out"), strict=True))  # as `step` calls them, whatever the kernel does
        for i, (thread, syncs, kind, name, line) in enumerate(found.steps):
            if kind in (_emulate.LOAD, _emulate.STORE, _emulate.ATOMIC) and (array := name.split("[")[0]) in names:
                found.steps[i] = (thread, syncs, kind, names[array] + name[len(array) :], line)
        return found


# What compilers say (g++, clang++), and what a learner can do about it.
EXPLAINED = {
    "variably modified|variable.length array|variable-sized|not a constant expression|not usable in a constant": (
        "The compiler must know the size of this array. Give it a number, a constexpr or a constant of the template; "
        "or write `extern __shared__ float name[];`, whose size each launch gives."
    ),
    "for array subscript|subscripted value is not": (
        "What stands before the [ ] is one value and no array: `float name;` holds one float, `float name[1024];` 1024."
    ),
    "not declared|undeclared identifier|unknown type name|does not name a type": (
        "The compiler does not know this name: is it spelt as where it is declared, and declared within these braces?"
    ),
    "read-only|const-qualified": (
        "What is const cannot be written: leave out the const where the kernel works in place."
    ),
    "redeclaration|redefinition|conflicting declaration": "The same name is declared twice.",
    "no matching function for call to .atomic(Max|Min)": (
        "CUDA has atomicMax and atomicMin of integers alone. Join floats by atomicCAS in a loop, or leave one a block."
    ),
    r"call to .launch\(": (
        "A launch says how many blocks there are, and how many threads: `mine<<<blocks, threads>>>(in, out, n);`."
    ),
    "no match for .operator.*dim3": (
        "threadIdx, blockIdx, blockDim and gridDim have three numbers each: the first one is threadIdx.x."
    ),
    "expected|template argument|function-definition is not allowed": (
        "A sign is missing or too many, here or at the end of the line before: a semicolon, a bracket or a brace."
    ),
}


def explained(error: str, file: Path) -> str:
    """What a compiler says of `file`: its first error of each line, the line as it stands there, and a plain sentence.

    Columns and lines with carets are left out: they are the translated source's. Other errors are returned unchanged.
    """
    source = file.read_text(encoding="utf-8-sig").splitlines()
    said: dict[int, str] = {}
    for name, line, text in re.findall(r"^(.+?):(\d+):(?:\d+:)? (?:fatal )?error: +(.+)$", error, re.MULTILINE):
        if name == str(file) and 0 < int(line) <= len(source):
            said.setdefault(int(line), re.sub(r" before .emulate.$", "", text))
    if not said:
        return error
    lines = []
    for line, text in sorted(said.items())[:4]:
        lines += [f"{file}:{line}: {text}", f"    {source[line - 1].strip()}"]
    first = said[min(said)]
    lines += next(([plain] for pattern, plain in EXPLAINED.items() if re.search(pattern, first)), [])
    return "\n".join(lines)


@dataclass
class Verdict:
    """What trying a kernel found.

    Attributes:
        elements: per thread.
        how: "one" sum, or one "a block".
        wrong: of each block, the sizes with a wrong result: {block: [(size, Emulated)]}.
        in_step: the blocks whose wrong sums are right if the threads of a warp run in step, as they did before Volta.
        findings: races, wrong accesses and faults, each once.
        sample: what its warps do, on whole blocks.
    """

    kernel: Kernel
    elements: int
    how: str
    sizes: list[int]
    blocks: tuple[int, ...] = BLOCKS
    wrong: dict[int, list[tuple[int, _emulate.Emulated]]] = field(default_factory=dict)
    in_step: set[int] = field(default_factory=set)
    findings: list[_emulate.Finding] = field(default_factory=list)
    sample: _emulate.Emulated | None = None

    @property
    def right(self) -> bool:
        """Right for every size and block, without a race or a wrong access."""
        return not (self.wrong or self.findings)


def elements_of(kernel: Kernel, program: Path, blocks: tuple[int, ...] = (64, 512)) -> int:
    """How many elements each thread takes: the most with which a sum of whole blocks is right; 1 where none is."""
    for elements in reversed(ELEMENTS):
        faults = 0
        for block in blocks:
            found = kernel.run(program, size=WHOLE, block=block, elements=elements, in_step=True)
            if found.right:
                return elements
            faults += found.fault is not None
        if faults == len(blocks):  # such as a loop that never ends: other numbers would say the same
            break
    return 1


def judge(
    kernel: Kernel,
    program: Path | None = None,
    elements: int | None = None,
    blocks: tuple[int, ...] = BLOCKS,
    odd: tuple[int, ...] = ODD,
) -> Verdict:
    """Runs a kernel on many sizes and blocks, its threads in two orders, up to the first fault.

    Args:
        kernel, program: the kernel, and its program if it is built already.
        elements: per thread; found out if None.
        blocks: threads per block to try.
        odd: the sizes to try beside whole blocks, of a kernel that takes n.
    """
    program = program or kernel.build()
    known = elements or elements_of(kernel, program, (64, 512) if len(blocks) > 1 else blocks)
    sizes = [WHOLE, *(odd if kernel.counts else ())]
    verdict = Verdict(kernel, known, "one", sizes, blocks)
    merged: dict[tuple[str, int, str, bool], _emulate.Finding] = {}
    for block in blocks:
        for size in sizes:
            runs = []
            for order in (False, True):
                runs.append(kernel.run(program, size=size, block=block, elements=known, descending=order))
                if runs[-1].fault:
                    break
            if bad := [run for run in runs if not run.right]:
                verdict.wrong.setdefault(block, []).append((size, bad[0]))
            for run in runs:
                faults = [run.fault] if run.fault else []
                for kind, findings in (("fault", faults), ("race", run.races), ("wrong", run.wrong)):
                    for finding in findings:
                        # A line may race within a warp and between warps: both are said, the latter first.
                        merged.setdefault((finding.file, finding.line, kind, finding.within_warp), finding)
            if size == WHOLE and (verdict.sample is None or block == 512):
                verdict.sample, verdict.how = runs[0], runs[0].how
            if any(run.fault for run in runs):
                break
        if any(run.fault for _, run in verdict.wrong.get(block, [])):
            break  # it crashes or never ends: other blocks would say the same
    verdict.findings = [merged[key] for key in sorted(merged)]
    for block, runs in verdict.wrong.items():
        again = (kernel.run(program, size=size, block=block, elements=known, in_step=True) for size, _ in runs)
        only_warps = all(race.within_warp for _, run in runs for race in run.races)
        if only_warps and not any(run.fault for _, run in runs) and all(run.right for run in again):
            verdict.in_step.add(block)
    return verdict


# --- the nearest rung -------------------------------------------------------------------------------------------------

# What a kernel does per warp, by which kernels are compared; numbers by the logarithm of their ratio.
NUMBERS = (
    "loads",
    "stores",
    "shared loads",
    "shared stores",
    "atomics",
    "shuffles",
    "barriers",
    "warp barriers",
    "bank conflicts",
)
SHARES = ("global load efficiency", "global store efficiency", "branch efficiency")


def distance(mine: dict[str, float], other: dict[str, float]) -> float:
    """How far two kernels' counters are apart: 1 for a factor of two, or 25 percentage points, of one counter."""
    total = 0.0
    for name in NUMBERS:
        total += abs(math.log2((mine.get(name, 0) + 0.25) / (other.get(name, 0) + 0.25)))
    for name in SHARES:
        total += abs(mine.get(name, 100) - other.get(name, 100)) / 25
    return total


def nearest(sample: _emulate.Emulated, say=None) -> list[tuple[float, str, _emulate.Emulated]]:
    """The rungs by their distance, the nearest first, with the same block."""
    names = [name for name in _emulate.rung_files() if not name.startswith(("math", "warming", "long"))]
    program = _emulate.build_rungs(names, say)
    found = []
    for name in names:
        other = _emulate.emulate(name, program, size=sample.size, block=sample.block)
        found.append((distance(sample.counters, other.counters), name, other))
    return sorted(found, key=lambda item: item[0])


# --- its time on a GPU ------------------------------------------------------------------------------------------------

TIMING = r"""
#include <cstdio>
#include <vector>
#include <algorithm>
#define main learner_main
#include "{file}"
#undef main
static void launch(unsigned blocks, dim3 threads, void* in, void* out, long long n) {{ (void)n; {launch} }}
int main() {{
  const long long n = 1 << 24;
  void *in, *out, *flush;
  const size_t bytes = n * sizeof({element}), room = size_t{{256}} << 20;
  if (cudaMalloc(&in, bytes) || cudaMalloc(&out, bytes) || cudaMalloc(&flush, room)) return 1;
  cudaMemset(in, 0, bytes);
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<float> times;
  for (int i = 0; i < 22; ++i) {{
    cudaMemset(out, 0, bytes);
    cudaMemset(flush, i, room);
    cudaEventRecord(begin);
    launch((n + 512ll * {elements} - 1) / (512ll * {elements}), {threads}, in, out, n);
    cudaEventRecord(end);
    cudaEventSynchronize(end);
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    if (i) times.push_back(ms);
  }}
  if (const cudaError_t error = cudaGetLastError()) return std::printf("%s\n", cudaGetErrorString(error)), 1;
  std::sort(times.begin(), times.end());
  std::printf("%.2f %.1f\n", times[times.size() / 2] * 1e3, bytes / (times[times.size() / 2] * 1e6));
}}
"""


def timing_source(kernel: Kernel, elements: int) -> str:
    """A CUDA program that times the kernel: 2^24 elements, blocks of 512, cold caches, the median of 21."""
    threads = f"dim3({kernel.width}, {512 // kernel.width})" if kernel.width else "dim3(512)"
    return TIMING.format(
        file=kernel.file.resolve(),
        launch=kernel.launcher(),
        element=kernel.element,
        elements=elements,
        threads=threads,
    )


def timing_source_of(rung: str, elements: int) -> str:
    """The same of a rung that takes floats and joins its blocks by atomics, such as multi_element."""
    folder = _emulate.sources()
    launch = (
        f'static const auto rung = gpureduce::ladder::registry().at("{rung}"); gpureduce::ladder::Call call{{}}; '
        f"call.block = 512; call.elements = {elements}; call.input = in; call.n = n; call.output = out; "
        "rung.run(call); (void)blocks; (void)threads;"
    )
    text = TIMING.format(
        file=_emulate.rung_files()[rung], launch=launch, element="float", elements=elements, threads="dim3(512)"
    )
    return f'#include "{folder / "rung.cpp"}"\n' + text


def time_on_gpu(kernel: Kernel, elements: int, beside: str | None = None) -> str:
    """A sentence: the kernel's time on the GPU, or why there is none; with the time of the rung `beside`, if given."""
    found = times(kernel, elements)
    if isinstance(found, str):
        return f"time: {found}"
    text = f"time: {found[0]} µs for 2^24 elements, {found[1]} GB/s (blocks of 512, cold caches, median of 21)."
    if not beside:
        return text
    other = times_of(beside, 16)
    return f"{text}\n{beside}: " + (other if isinstance(other, str) else f"{other[0]} µs, {other[1]} GB/s.")


def times(kernel: Kernel, elements: int) -> tuple[str, str] | str:
    """µs and GB/s of a kernel on the GPU with 2^24 elements, or why they are not known."""
    return _time(timing_source(kernel, elements), kernel.text)


def times_of(rung: str, elements: int) -> tuple[str, str] | str:
    """The same of a rung as in :func:`timing_source_of`."""
    return _time(timing_source_of(rung, elements), "")


def _time(text: str, version: str) -> tuple[str, str] | str:
    """µs and GB/s that a program printed, or why it did not. `version`: what it includes, if that may change."""
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    listed = shutil.which("nvidia-smi") and subprocess.run(
        ["nvidia-smi", "-L"], capture_output=True, text=True, check=False
    )
    if not listed or "GPU 0" not in listed.stdout:
        return "there is no NVIDIA GPU here."
    if not nvcc:
        return "there is no nvcc here to compile for the GPU."
    source = _emulate.cache() / f"time-{hashlib.sha256((text + version).encode()).hexdigest()[:24]}.cu"
    _emulate.put(source, text)
    command = [nvcc, "-O3", "-std=c++17", "-arch=native", "-o", source.with_suffix(""), source]
    done = _emulate.execute(command, _emulate.COMPILE_SECONDS)
    if not done.failed:
        done = _emulate.execute([source.with_suffix("")], seconds=60)
    said = (done.output + done.errors).strip().splitlines() or ["the program ended without a word"]
    if done.failed:
        return done.stopped or said[0]
    found = re.search(r"^([\d.]+) ([\d.]+)\n\Z", done.output, re.MULTILINE)  # the last line: a kernel may print, too
    if not found:
        return said[-1]
    return found[1], found[2]


# --- what is printed --------------------------------------------------------------------------------------------------


NAMES = {"sum": "sum", "prod": "product", "max": "maximum", "min": "minimum", "count": "count"}


def listed(sizes: list[int]) -> str:
    """32,768 or 1,000 elements"""
    texts = [f"{size:,}" for size in sizes]
    return f"{', '.join(texts[:-1])} and {texts[-1]}" if len(texts) > 1 else texts[0]


def hint(run: _emulate.Emulated, halves: bool) -> str:
    """What a wrong result looks like; `halves` says whether a half of it may be half of the elements."""
    if run.fault:
        return "it stops"
    if run.wanted and abs(run.found / run.wanted - 0.5) < 0.02 and halves:
        return f"{run.found:,.9g}, about half of {run.wanted:,.9g}"
    return f"{run.found:,.9g}, and right is {run.wanted:,.9g}"


def report(verdict: Verdict) -> list[str]:
    """The lines about right and wrong."""
    kernel = verdict.kernel
    each = "one element" if verdict.elements == 1 else f"{verdict.elements} elements"
    how = f"one {NAMES[kernel.op]}" + " a block" * (verdict.how != "one")
    to = f" to {kernel.to}" if kernel.to != kernel.dtype else ""
    lines = [f"{kernel.file}: {kernel.name}, {kernel.dtype}{to}, {each} per thread, {how}"]

    def shape(block):
        return f"blocks of {kernel.width} x {block // kernel.width:<2}" if kernel.width else f"blocks of {block:>4}"

    if not kernel.counts:
        lines.append("it takes no n, so it can only be right for whole blocks, and only these are tried")
    for block in verdict.blocks:
        wrong = verdict.wrong.get(block, [])
        if not wrong:
            ran = verdict.sizes if not any(run.fault for runs in verdict.wrong.values() for _, run in runs) else []
            if ran:
                lines.append(f"  {shape(block)}: right for {listed(ran)} elements")
            continue
        size, run = wrong[0]
        step = "; right if warps run in step" if block in verdict.in_step else ""
        seen = hint(run, kernel.op in ("sum", "count"))
        if len(wrong) > 1:
            seen = f"for {size:,}: {seen}"
        every = 1 < len(wrong) == len(verdict.sizes)
        sizes = "all sizes" if every else f"{listed([size for size, _ in wrong])} elements"
        lines.append(f"  {shape(block)}: WRONG for {sizes}; {seen}{step}")
    if verdict.in_step:
        lines.append("Before Volta the threads of a warp ran in step, and these were right. Now they need not.")
    lines += [str(finding) for finding in verdict.findings[:12]]
    if len(verdict.findings) > 12:
        lines.append(f"… and {len(verdict.findings) - 12} more")
    return lines


def line_table(verdict: Verdict) -> list[str]:
    """What each line of the source does, where it touches memory."""
    rows, text = [], verdict.kernel.text.splitlines()
    for line, did in sorted(verdict.sample.lines.items()):
        if not 0 < line <= len(text):
            continue
        share = f"{100 * did['bytes'] / (32 * did['sectors']):.1f}%" if did["sectors"] else "–"
        rows.append(
            f"  {line:>4}  {did['loads']:>7} {did['stores']:>7} {share:>7} {did['conflicts']:>9}  "
            f"{text[line - 1].strip()[:60]}"
        )
    return [f"  {'line':>4}  {'loads':>7} {'stores':>7} {'used':>7} {'conflicts':>9}", *rows] if rows else []


def main(options: argparse.Namespace) -> int:
    """``try FILE``."""
    from torch_reduce.ladder import _order  # which needs this module

    kernel = Kernel.of(options.file, options.kernel, options.dtype, options.op)
    blocks = _order.BLOCKS if options.order else BLOCKS
    if options.order and (kernel.op != "sum" or kernel.dtype not in ("float32", "float64")):
        raise ValueError("--order: it compares sums of floats; the others have the same bits in every order")
    if options.block:
        threads, kernel.width = options.block
        blocks = (threads,)
    program = kernel.build()
    verdict = judge(kernel, program, options.elements, blocks)
    print("\n".join(report(verdict)), flush=True)
    right = verdict.right
    if options.order and right:
        partials = verdict.how != "one"
        order = _order.compare(kernel, program, verdict.elements, partials, blocks[0])
        print("\n".join(_order.report(order, partials)), flush=True)
        right = order.right
    elif options.order:
        print("order: the sums have to be right first")
    sample = verdict.sample
    if sample and not sample.fault:
        print(f"\nrequests of warps, line by line ({sample.size:,} elements, blocks of {sample.block}):")
        print("\n".join(line_table(verdict)))
        found = nearest(sample, _emulate.Progress())
        (_, name, other), (_, second, another) = found[:2]
        print(f"\nnearest rung: {name}; then {second}")
        columns = list(_figures.COLUMNS) + ["loads", "shared loads", "shuffles", "atomics"]
        for counter in columns:
            values = [_figures.cell(counter, each.counters) for each in (sample, other, another)]
            print(f"  {counter:<24}" + "".join(f"{value:>22}" for value in values))
        print(time_on_gpu(kernel, verdict.elements, "multi_element" if options.order else None))
    print("right" if right else "not right yet", file=sys.stdout)
    return 0 if right else 1
