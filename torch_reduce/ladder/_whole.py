"""Whole CUDA programs on the CPU: their own main() runs, with cudaMalloc, cudaMemcpy, launches and cudaFree.

    nvcc -o sum sum.cu && ./sum                   on a GPU
    python -m torch_reduce.ladder program sum.cu  here: what the program prints, then what its first launch did

Beside what is found in a kernel, faults of the host's side are found: see emulator/host.cpp.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

from torch_reduce.ladder import _emulate, _figures, _translate, _try

FIRST = Path(__file__).resolve().parent / "programs" / "sum.cu"
SECONDS = 60


@dataclass
class Ran:
    """What a program did.

    Attributes:
        status: what main() returned; 3 where a fault ended it.
        printed: what it printed.
        emulated: what its kernels did, with counters of the first launch.
    """

    status: int
    printed: str
    emulated: _emulate.Emulated

    @property
    def right(self) -> bool:
        """It ended with status 0, and nothing is wrong with it."""
        return not (self.status or self.emulated.findings)


def build(file: Path) -> tuple[Path, _translate.Translation]:
    """Compiles a file for the emulator. ValueError if it has no main(); CannotEmulate shows the compiler's errors."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{file}: it is no text in UTF-8") from None
    translation = _translate.translate(text, str(file), 100_000, watched=True)
    if "main(" not in _translate.blanked(text).replace(" ", ""):
        raise ValueError(f"{file}: it has no main(), so it is no whole program; a kernel alone is for `try`")
    _, extra = _emulate.compiler()
    flags = [*_emulate.KERNEL_FLAGS, *extra, "-DEMULATE_WHOLE", "-I", str(file.resolve().parent)]
    own = [_emulate.EMULATOR / name for name in ("emulator.cpp", "host.cpp")]
    whole = [*_emulate.PROGRAM_FLAGS, "-DEMULATE_WHOLE"]
    parts = [
        (own[0].read_text(encoding="utf-8"), "emulator", _emulate.PROGRAM_FLAGS),
        (own[1].read_text(encoding="utf-8"), "host", whole),
        (translation.text, file.stem, flags),
    ]
    try:
        return _emulate.link(parts), translation
    except _emulate.CannotEmulate as error:
        raise _emulate.CannotEmulate(_try.explained(str(error), file)) from None


def run(file: Path, arguments: list[str] | None = None) -> Ran:
    """Compiles a program and runs it; errors as :func:`build` has them."""
    program, translation = build(file)
    done = _emulate.execute([program, *(arguments or [])], SECONDS)
    said = _emulate.said_by(done)
    found = _emulate.read(said, file.stem, program, translation.tests, file)
    if not done.status:  # the program is content with its result
        found.wrong = [finding for finding in found.wrong if not finding.unset]
    return Ran(done.status, done.errors, found)


def main(options: argparse.Namespace) -> int:
    """``program FILE [ARGUMENTS]``: 0 if the program returned 0 and nothing was found."""
    ran = run(options.file, options.arguments)
    print(ran.printed, end="" if ran.printed.endswith("\n") or not ran.printed else "\n")
    print("\n".join(report(ran)))
    return 0 if ran.right else 1


def report(ran: Ran) -> list[str]:
    """What is said below the program's own output."""
    found = ran.emulated
    lines = []
    if found.block:
        lines.append(f"emulated, its first launch, in blocks of {found.block}: {_figures.line(found.counters)}")
    lines += map(str, found.findings)
    if ran.status and not found.fault:
        lines.append(f"the program ended with status {ran.status}")
    return lines or ["the program launched no kernel"]
