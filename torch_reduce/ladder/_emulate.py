"""Kernels on the CPU: compiles rungs, or a learner's file, with the emulator, runs them, and reads what they did.

Only Python's own library is used, so that the course needs no torch: see __main__.py. The emulator is in emulator/;
what this makes of a CUDA source is in _translate.py. Objects are kept in a cache by a hash of their sources.
"""

import concurrent.futures
import contextlib
import functools
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from torch_reduce.ladder import _lessons, _translate

EMULATOR = Path(__file__).resolve().parent / "emulator"
# How the course was started, for the commands that it prints: as a module, or as a folder, without torch (__main__.py).
ALONE = getattr(sys.modules["torch_reduce"], "__file__", None) is None
COMMAND = "python3 torch_reduce/ladder" if ALONE else "python -m torch_reduce.ladder"
SIZE = 1 << 16  # elements, unless told: every block of a rung does the same, so that more would show nothing new
MOST = 1 << 24  # elements that are emulated: a minute or so
LOAD, STORE, SHARED_LOAD, SHARED_STORE, ATOMIC, TEST, SHUFFLE = range(7)  # as in emulator.cpp
HEADER = "cuda_runtime.h"
# DWARF 4: addr2line takes some lines of the fifth version that clang writes for another file's.
# Ubuntu's compilers turn on checks of longjmp that take a jump from one fiber's stack to another's for a fault.
# -fwrapv: sums of integers wrap, as they do on a GPU.
# -g1: lines and inlined functions; nobody asks for variables, which take as long to describe.
FLAGS = ["-std=c++17", "-ffp-contract=off", "-fwrapv", "-gdwarf-4", "-g1", "-U_FORTIFY_SOURCE"]
# -O1: what the compiler keeps in registers and what it loads is then what nvcc keeps and loads.
KERNEL_FLAGS = [*FLAGS, "-O1", "-fsanitize=thread", "-w", "-include", HEADER]
PROGRAM_FLAGS = [*FLAGS, "-O2"]
AROUND_FLAGS = [*FLAGS, "-O0"]  # of what runs once: to compile it takes longer than to run it
COMPILE_SECONDS = 300  # a source that takes longer is given up
MOST_SAID = 64 << 20  # bytes that a program may write: every access of a block is less


class CannotEmulate(RuntimeError):
    """There is no compiler, or a source does not compile; the message says which."""


@dataclass
class Finding:
    """A fault of a kernel: a race, an access outside of an array, or what ended the run.

    Attributes:
        text: what is wrong, with the threads and the element.
        file, line: where it is in the source; empty and 0 where that is not known.
        count: how often it happened.
        before: of a race, the line of the access that this one meets.
        within_warp: of a race, whether its threads are of one warp.
        unset: whether a variable is read that has no value: it matters where the result is wrong.
    """

    text: str
    file: str = ""
    line: int = 0
    count: int = 1
    before: int = 0
    within_warp: bool = False
    unset: bool = False

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: " if self.file else f"line {self.line}: " if self.line else ""
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{where}{self.text}{times}"


@dataclass
class Emulated:
    """What a kernel did on an input.

    Attributes:
        name: the rung's, or the learner's kernel's.
        size, block, elements: of the input, threads per block, elements per thread.
        found, wanted: the sum (or product, max, min) that it made, and the right one; of a rung that writes, the sum
            of what it wrote.
        how: "one" sum, one "a block", or "written".
        blocks: the threads per block that a rung takes; others may give wrong sums.
        counters: of the first launch, by the names that `run --profile` uses: global load efficiency, global store
            efficiency and branch efficiency in percent; bank conflicts, barriers, shuffles and atomics per warp; shared
            bytes per block. A counter of something that the kernel does not do is left out, as is branch
            efficiency where a shared array has atomics of 8 bytes.
        races, wrong: accesses that no barrier puts in order; accesses outside of arrays or of what nobody wrote.
        fault: what ended the run early, or None.
        steps: with trace, every access of block 0: (thread, barriers before it, kind, "name[index]", line).
        order: of a kernel whose additions were kept: how many there are ("additions"), how many are not the contract's
            ("others"), the first of these, a Finding or None ("first"), and one of 0.0 ("zeros"): see _order.py.
        lines: {line: what its loads and stores did, in requests, bytes, sectors and bank conflicts}.
    """

    name: str
    size: int = 0
    block: int = 0
    elements: int = 1
    found: float = 0
    wanted: float = 0
    how: str = "one"
    blocks: tuple[int, ...] = ()
    counters: dict[str, float] = field(default_factory=dict)
    races: list[Finding] = field(default_factory=list)
    wrong: list[Finding] = field(default_factory=list)
    fault: Finding | None = None
    steps: list[tuple[int, int, int, str, int]] = field(default_factory=list)
    order: dict = field(default_factory=dict)
    lines: dict[int, dict[str, float]] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        """Whether the result is the right one."""
        return self.fault is None and abs(self.found - self.wanted) <= 1e-6 * abs(self.wanted)

    @property
    def findings(self) -> list[Finding]:
        """All that is wrong with the kernel, but for its sum: what ended the run first."""
        return [*([self.fault] if self.fault else []), *self.races, *self.wrong]


def sources() -> Path:
    """The folder with the rungs' sources: a clone's csrc/ladder, or the copy that an installed package has.

    Beside it lies what they include: core/numeric/, core/order.h.
    """
    here = Path(__file__).resolve().parent
    for folder in (here / "sources" / "ladder", here.parent.parent / "csrc" / "ladder"):
        if (folder / "rung.cuh").exists():
            return folder
    raise CannotEmulate("the rungs' sources are not there: reinstall torch_reduce, or run in a clone of it")


@functools.cache
def rung_files() -> dict[str, Path]:
    """The CUDA rungs that can be emulated, by name, in their order: those that are kernels of the ladder itself."""
    found = {}
    for path in _lessons.files(sources()):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".cu" and "cub/" not in text:
            found[path.stem[3:]] = path
    return found


# --- compiling --------------------------------------------------------------------------------------------------------


@functools.cache
def compiler() -> tuple[list[str], list[str]]:
    """The C++ compiler's command, and the flags that only it needs. CannotEmulate where there is none."""
    wanted = os.environ.get("CXX")
    for command in [shlex.split(wanted)] if wanted else [["g++"], ["clang++"], ["c++"]]:
        if not command or not shutil.which(command[0]):
            continue
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
        if done.returncode:
            continue
        extra = ["-mllvm", "-tsan-instrument-read-before-write=1"] if "clang" in done.stdout else []
        return command, extra
    named = f"CXX={wanted!r} does not run" if wanted else "there is neither g++ nor clang++"
    raise CannotEmulate(
        f"emulation compiles the kernels with a C++ compiler, and {named}: install one (apt install g++)"
    )


@functools.cache
def cache() -> Path:
    """Where objects and programs are kept: a folder of the user's cache that only the user can read and write.

    What lies there is run, so a new folder takes its place if another user owns it or could write there.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        base.mkdir(parents=True, exist_ok=True)
        folders = [base / "torch_reduce", base / "torch_reduce" / "course"]
        for folder in folders:
            folder.mkdir(mode=0o700, exist_ok=True)
        if all(map(_is_ours, folders)):
            folders[-1].chmod(0o700)
            if os.access(folders[-1], os.W_OK):
                return folders[-1]
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="torch_reduce-course-"))


def _is_ours(folder: Path) -> bool:
    """Whether a path is a folder of this user, no link to one, and nobody else may write there."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


@functools.cache
def shared_part() -> _translate.Translation:
    """What the rungs' kernels share, rung.cuh, for the emulator."""
    path = sources() / "rung.cuh"
    return _translate.translate(path.read_text(encoding="utf-8"), str(path), 1)


@functools.cache
def headers() -> Path:
    """A folder with rung.h and the emulator's rung.cuh; its name changes with everything that kernels include."""
    folder = sources()
    rung, cuh = (folder / "rung.h").read_text(encoding="utf-8"), shared_part().text
    core = folder.parent / "core"
    beside = sorted([*EMULATOR.rglob("*.h"), *core.glob("numeric/*.h"), core / "order.h"])
    own = [path.read_text(encoding="utf-8") for path in beside]
    place = cache() / f"include-{digest(rung, cuh, str(folder), *own)}"
    place.mkdir(exist_ok=True)
    for name, text in (("rung.h", rung), ("rung.cuh", cuh)):
        if not (place / name).exists():
            put(place / name, text)
    return place


@functools.cache
def precompiled(*command: str) -> list[str]:
    """The flags that find cuda_runtime.h compiled beforehand, by g++ with the command's flags.

    That saves half of the time of a small kernel. Where g++ cannot use it, it reads the header itself.
    """
    folder = headers() / f"compiled-{digest(*command)}"
    made = folder / f"{HEADER}.gch"
    if not made.exists():
        folder.mkdir(exist_ok=True)
        put(folder / HEADER, f"#include_next <{HEADER}>\n")
        part = folder / f"{os.getpid()}.gch"
        whole = [*command, "-I", str(EMULATOR), "-x", "c++-header", str(EMULATOR / HEADER), "-o", str(part)]
        if execute(whole, COMPILE_SECONDS).failed:  # such as for want of space: the compiler says what is wrong later
            return []
        os.replace(part, made)
    return ["-I", str(folder)]


def command_with(flags: list[str]) -> list[str]:
    """The compiler's command with these flags, and with the folders of headers."""
    command, extra = compiler()
    command = [*command, *flags]
    if HEADER in flags and not extra:  # clang++ would refuse to compile where its own does not fit
        first = flags.index(HEADER)
        defined = [flag for flag in flags[first:] if flag.startswith("-D")]
        command += precompiled(*compiler()[0], *flags[: first - 1], *defined)
    return [*command, "-I", str(EMULATOR), "-I", str(headers()), "-I", str(sources())]


def put(path: Path, text: str) -> None:
    """Writes a file at once, so that another process sees all of it or nothing."""
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def compile_object(text: str, name: str, flags: list[str]) -> Path:
    """The object of a source, from the cache if it is there. CannotEmulate shows the compiler's errors."""
    command = command_with(flags)
    key = digest(text, *command)
    made = cache() / f"{name}-{key}.o"
    if made.exists():
        return made
    source, part = made.with_suffix(".cpp"), made.with_suffix(f".{os.getpid()}.o")
    put(source, text)
    english = {**os.environ, "LC_ALL": "C"}  # _try.py explains the compiler's messages
    command += ["-c", str(source), "-o", str(part)]
    done = execute(command, COMPILE_SECONDS, english)
    if done.failed:
        raise CannotEmulate(f"the compiler does not end: {done.stopped}" if done.stopped else done.errors.strip())
    os.replace(part, made)
    return made


def build(units: list[tuple[str, str]], say=None, include: Path | None = None, parts: tuple[str, ...] = ()) -> Path:
    """The program with the given (name, translated text), compiled side by side; say(done, all) tells how far it is.

    Args:
        units, say: see above.
        include: a folder with headers.
        parts: more files of the emulator.
    """
    folder = sources()
    paths = [EMULATOR / name for name in ("emulator.cpp", "main.cpp", *parts)]
    own = [(path.read_text(encoding="utf-8"), path.stem) for path in paths]
    own.append(((folder / "rung.cpp").read_text(encoding="utf-8"), "rung"))
    jobs = [(text, name, AROUND_FLAGS if name in ("main", "rung") else PROGRAM_FLAGS) for text, name in own]
    beside = ["-I", str(include)] if include else []  # for headers that a learner's file includes
    _, extra = compiler()
    jobs += [(text, name, [*KERNEL_FLAGS, *extra, *beside]) for name, text in units]
    return link(jobs, say)


def link(jobs: list[tuple[str, str, list[str]]], say=None) -> Path:
    """The program of several (text, name, flags); see build()."""
    for _, _, flags in jobs:
        command_with(flags)  # what it makes, and its errors, once, and not from every thread
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        waiting = [pool.submit(compile_object, *job) for job in jobs]
        try:
            for done, _ in enumerate(concurrent.futures.as_completed(waiting), 1):
                if say:
                    say(done, len(jobs))
        except KeyboardInterrupt:
            stop(pool)
            raise
        objects = [job.result() for job in waiting]
    program = cache() / f"program-{digest(*map(str, objects))}"
    if not program.exists():
        part = program.with_suffix(f".{os.getpid()}")
        command = [*compiler()[0], "-no-pie", *map(str, objects), "-o", str(part)]
        done = execute(command, COMPILE_SECONDS)
        if done.failed:
            raise CannotEmulate(f"the linker does not end: {done.stopped}" if done.stopped else done.errors.strip())
        os.replace(part, program)
    return program


@functools.cache
def translated(name: str) -> _translate.Translation:
    """A rung's source for the emulator; the numbers of its tests begin with its own number."""
    path = rung_files()[name]
    return _translate.translate(path.read_text(encoding="utf-8"), str(path), 1000 * (int(path.name[:2]) + 1))


# --- running ----------------------------------------------------------------------------------------------------------


@dataclass
class Executed:
    """What a command did: its exit status, what it wrote, and why it was stopped, if it was."""

    status: int
    output: str
    errors: str
    stopped: str = ""

    @property
    def failed(self) -> bool:
        return bool(self.status or self.stopped)


_running: set[int] = set()  # process groups of commands that have not ended
_stopping = threading.Event()  # a command that starts now ends at once


def stop(pool: concurrent.futures.Executor) -> None:
    """Ends the commands that a pool's threads run, and runs no more of them."""
    _stopping.set()
    for group in list(_running):
        with contextlib.suppress(OSError):  # it has ended in the meantime
            os.killpg(group, signal.SIGKILL)
    pool.shutdown(wait=True, cancel_futures=True)
    _stopping.clear()


def execute(command: list[str | Path], seconds: float, env: dict[str, str] | None = None) -> Executed:
    """Runs a command in a process group of its own, which ends with it, within a time and with a limited output."""
    why: list[str] = []
    kept = [bytearray(), bytearray()]
    started: list[subprocess.Popen] = []
    failed: list[BaseException] = []
    known, ended, left = threading.Event(), threading.Event(), threading.Event()

    def end() -> None:
        for process in started:
            with contextlib.suppress(OSError):  # nothing of the group is left
                os.killpg(process.pid, signal.SIGKILL)

    def take(pipe, into: bytearray) -> None:
        while chunk := pipe.read1(1 << 16):
            into += chunk
            if len(into) > MOST_SAID:
                why.append(f"stopped, as it wrote more than {MOST_SAID >> 20} MiB")
                end()
                break

    def run() -> None:  # in a thread: Ctrl-C comes to the main one, where it may fall between a start and its result
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                start_new_session=True,
            )
        except BaseException as error:
            failed.append(error)
        else:
            started.append(process)
            _running.add(process.pid)
            if _stopping.is_set() or left.is_set():
                end()
        known.set()
        for process in started:  # Popen's own time limit asks again and again
            process.wait()
        ended.set()

    runner = threading.Thread(target=run, daemon=True)
    readers: list[threading.Thread] = []
    try:
        runner.start()
        known.wait()
        if failed:
            raise failed[0]
        (process,) = started
        pipes = (process.stdout, process.stderr)
        readers = [threading.Thread(target=take, args=pair, daemon=True) for pair in zip(pipes, kept, strict=True)]
        for reader in readers:
            reader.start()
        if not ended.wait(seconds):
            why.append(f"stopped after {seconds:.0f} seconds")
    finally:
        left.set()
        end()
        if runner.ident:  # it was started
            runner.join()
        _running.difference_update(process.pid for process in started)
    for reader, pipe in zip(readers, pipes, strict=True):
        reader.join(timeout=5)  # what has left the group may hold its pipes open
        if not reader.is_alive():
            pipe.close()
    output, errors = (bytes(part).decode("utf-8", "replace") for part in kept)
    return Executed(process.returncode, output, errors, why[0] if why else "")


def run_program(program: Path, name: str, arguments: list[str], seconds: float = 120) -> dict:
    """What the program says, a dict; a run that takes too long or says nothing is a fault.

    It says it on its standard output. What a kernel prints goes to the standard error: see emulator.cpp. CannotEmulate
    where this machine gives it too little address space.
    """
    return said_by(execute([program, name, *arguments], seconds))


def said_by(done: Executed) -> dict:
    """The dict that a program wrote; see run_program()."""
    if done.stopped:
        return {"fault": f"it does not end: {done.stopped}"}
    try:
        said = json.loads(done.output)
        if "no address space" in said.get("fault", "") or "no memory for the threads" in said.get("fault", ""):
            raise CannotEmulate("the emulator needs 4 GiB of address space (it uses little of it): see `ulimit -v`")
        return said
    except ValueError:
        return {"fault": f"the program ended with status {done.status} and said nothing: {done.errors[-200:]}"}


def lines_of(program: Path, places: list[int]) -> dict[int, tuple[str, int]]:
    """{place in the code: (file, line)} of the kernel's source; empty without addr2line."""
    return _lines_of(program, tuple(sorted({place for place in places if place})))


@functools.lru_cache(maxsize=64)  # a kernel is tried on many sizes, and is in the same places each time
def _lines_of(program: Path, places: tuple[int, ...]) -> dict[int, tuple[str, int]]:
    if not places or not shutil.which("addr2line"):
        return {}
    text = "\n".join(hex(place - 1) for place in places)
    command = ["addr2line", "-a", "-i", "-e", str(program)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    found, place = {}, 0
    for line in done.stdout.splitlines():
        if line.startswith("0x"):
            place = int(line, 16) + 1
            continue
        where = re.match(r"(.*[^?].*):(\d+)", line)  # ?? where it is not known
        if where and place not in found and str(EMULATOR) not in where[1] and not where[1].startswith("/usr/"):
            found[place] = (where[1], int(where[2]))
    return found


def branch_efficiency(tests: list[dict], last: set[int]) -> float | None:
    """The share of branches at which the threads of a warp go one way, in percent; None where there is no branch.

    A compiler makes no branch of an `if` whose body leaves the kernel, or whose body touches only registers and shared
    memory: its threads then skip instructions without a jump. A loop without a barrier is unrolled, 16 turns a test.
    """
    branches = divergent = 0
    for test in tests:
        if test["loop"]:
            branches += test["warps"] if test["barrier"] else test["thinned"]
        elif test["leaves"] or test["site"] in last or not (test["global"] or test["barrier"] or test["inner"]):
            continue
        else:
            branches += test["warps"]
        divergent += test["divergent"]
    return 100 - 100 * divergent / branches if branches else None


def counters(said: dict, last: set[int]) -> dict[str, float]:
    """{counter: value} of what the program said."""
    found = {}
    for kind, name in ((LOAD, "global load efficiency"), (STORE, "global store efficiency")):
        mine = [request for request in said["requests"] if request["kind"] == kind]
        if sectors := sum(request["sectors"] for request in mine):
            found[name] = 100 * sum(request["bytes"] for request in mine) / (32 * sectors)
    # A GPU has no such atomics of 8 bytes: it tries in a loop, whose branches the source does not show.
    if not said["wide_atomics"] and (branch := branch_efficiency(said["tests"], last)) is not None:
        found["branch efficiency"] = branch
    warps = said["warps"] or 1
    found["bank conflicts"] = sum(request["conflicts"] for request in said["requests"]) / warps
    found["barriers"] = said["barriers"] / warps
    found["warp barriers"] = said["warp_barriers"] / warps
    found["shuffles"] = said["shuffles"] / warps
    found["shared bytes"] = said["shared_bytes"]
    per_kind = {
        LOAD: "loads",
        STORE: "stores",
        SHARED_LOAD: "shared loads",
        SHARED_STORE: "shared stores",
        ATOMIC: "atomics",
    }
    for kind, name in per_kind.items():
        found[name] = sum(request["requests"] for request in said["requests"] if request["kind"] == kind) / warps
    return found


def allow_swaps(said: dict) -> None:
    """Drops the races of plain reads with atomic changes: a compare-and-swap checks the value that was read before."""
    said["races"] = [race for race in said.get("races", []) if not race["atomic"]]


def read(said: dict, name: str, program: Path, tests: list[_translate.Test], source: Path) -> Emulated:
    """What the program said, with lines of the source; a line without a file is of `source`."""
    result = Emulated(name)
    if "requests" not in said:
        result.fault = Finding(said["fault"])
        return result
    places = [entry[key] for entry in said["races"] for key in ("before", "now")]
    places += [entry["place"] for entry in said["wrong"] + said["requests"]] + [step[4] for step in said["steps"]]
    order = said.get("order", {})
    places += [order[key] for key in ("place", "zeros_place") if key in order]
    lines = lines_of(program, [*places, said.get("place", 0)])
    known = {test.number: test for test in tests}

    def finding(text, place, count=1):
        file, line = lines.get(place, ("", 0))
        return Finding(text, Path(file).name, line, count)

    def race(entry):
        # "thread 0 reads x[32], which thread 32 wrote, with no ...": it wrote in line 12
        found = finding(entry["text"], entry["now"], entry["count"])
        found.within_warp = bool(entry["warp"])
        file, found.before = lines.get(entry["before"], ("", 0))
        if found.before and (found.before, Path(file).name) != (found.line, found.file):
            found.text = re.sub(r"( wrote| reads),", rf"\1 in line {found.before},", found.text, count=1)
        return found

    if "fault" in said:
        line = said.get("line", 0)
        test = known.get(-line)
        result.fault = finding(said["fault"], said.get("place", 0))
        if test:
            result.fault = Finding(said["fault"], Path(test.file).name, test.line)
        elif line > 0:
            result.fault.file, result.fault.line = source.name, line
    result.size, result.elements = said.get("size", 0), said.get("elements", 1)
    result.found, result.wanted, result.how = said.get("found", 0), said.get("wanted", 0), said.get("how", "one")
    result.blocks = tuple(said.get("blocks", ()))
    result.block = said["block"]
    result.counters = counters(said, {test.number for test in tests if test.last})
    # Between warps first: where both are, __syncwarp() would not be enough.
    result.races = [race(entry) for entry in sorted(said["races"], key=lambda entry: entry["warp"])]
    for entry in said["wrong"]:
        found = finding(entry["text"], entry["place"], entry["count"])
        if entry["line"]:
            found.file, found.line = source.name, entry["line"]
        found.unset = entry["what"] == "unset"
        result.wrong.append(found)
    if order:
        result.order = {
            "additions": order["additions"],
            "others": order["others"],
            "first": finding(order["text"], order["place"]) if order["text"] else None,
            "zeros": finding(order["zeros"], order["zeros_place"]) if order["zeros"] else None,
        }
    result.steps = [(*step[:4], lines.get(step[4], ("", 0))[1]) for step in said["steps"]]
    for request in said["requests"]:
        line = lines.get(request["place"], ("", 0))[1]
        mine = result.lines.setdefault(line, {"loads": 0, "stores": 0, "bytes": 0, "sectors": 0, "conflicts": 0})
        mine["stores" if request["kind"] in (STORE, SHARED_STORE) else "loads"] += request["requests"]
        for key in ("bytes", "sectors", "conflicts"):
            mine[key] += request[key]
    return result


def options(descending=False, last_block_first=False, in_step=False, trace=False, **values) -> list[str]:
    """The program's arguments: see main.cpp and emulator.h. `values`: size, block, elements, dtype, op, input ..."""
    found = []
    for option, value in values.items():
        found += [f"--{option}", str(value)] if value else []
    found += ["--descending"] * descending + ["--last-block-first"] * last_block_first
    return found + ["--in-step"] * in_step + ["--trace"] * trace


def build_rungs(names: list[str], say=None) -> Path:
    """The program with these rungs."""
    return build([(name, translated(name).text) for name in names], say)


def emulate(name: str, program: Path | None = None, **choices) -> Emulated:
    """Emulates one rung; `choices` are those of :func:`options`. CannotEmulate if it cannot be compiled."""
    program = program or build_rungs([name])
    said = run_program(program, name, options(**choices))
    if "combine_atomically" in translated(name).text:
        allow_swaps(said)
    return read(said, name, program, [*translated(name).tests, *shared_part().tests], rung_files()[name])


class Progress:
    """Called with (done, all): a line on stderr that counts what is compiled and says how long the rest takes about, on
    a terminal; otherwise nothing."""

    def __init__(self) -> None:
        self.begin = time.monotonic()

    def __call__(self, done: int, of: int) -> None:
        if sys.stderr.isatty():
            left = (time.monotonic() - self.begin) * (of - done) / done
            text = f"compiling {done} of {of}" + (f", about {left:.0f} s left" if done < of else "")
            print(f"\r{text:<40}", end="\n" if done == of else "", file=sys.stderr, flush=True)
