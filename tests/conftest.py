"""The devices that every test runs on, which tests `make test-docs` runs, and `--report FILE`, which records a run."""

import collections
import datetime
import inspect
import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

import support
from torch_reduce._library import build_facts
from worlds import World

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tools"))
sys.path += map(str, sorted(path for path in (ROOT / "tests").iterdir() if path.is_dir()))  # tests import each other
import toolkit  # noqa: E402

if not torch.cuda.is_available():
    # Compiling processes of Inductor's would take more time to start than they save; so would those in which it tries
    # the CPU's instructions, once for each process that compiles.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

# The tests of documents, packaging, reports and the course, which `make test-docs` runs: whole files, or from one on.
DOCS = {
    "test_results.py": None,
    "test_pages.py": None,
    "test_notebook.py": None,
    "test_types.py": None,
    "test_examples.py": None,
    "test_course.py": None,
    "test_emulate.py": None,
    "test_exercises.py": None,
    "test_try_order.py": None,
    "test_package.py": "test_import_under_the_wrong_torch",
    "test_ladder.py": "test_readme_counts_the_rungs",
    "test_models.py": "test_every_way_is_proven",
    "test_recipe.py": "test_recipe_is_written_down",
}


# Files that take the longest, in this order. Where processes share the tests, these begin first, so that none of them
# is alone at the end.
SLOW = ["inductor", "dtensor", "distributed", "distributed_rows", "distributed_index", "compile", "layouts", "indexed"]
SLOW += ["distributed_family", "distributed_exact", "meta", "operators", "segment", "replace_indexed", "export", "rows"]
SLOW += ["emulate", "package", "examples", "exercises", "results", "notebook", "try_order"]  # of `make test-docs`


# Without a GPU most tests would be skipped, and making them alone would take as long as many a test: they are left out.
GPU = torch.cuda.is_available()
NO_GPU = "needs an NVIDIA GPU"
ON_CPUS = pytest.StashKey()  # the world of CPUs
left_out = 0  # so many of those that were asked for


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config, items):
    """Marks tests of documents, and puts slow files first. Counts what is left out for want of a GPU, of what `-k` and
    `-m` choose."""
    global left_out
    mark_and_sort(items)
    yield
    if GPU:
        return
    kept, seen = [], set()
    for item in items:
        if "cuda" in item.fixturenames and (item.path, item.originalname) in seen:
            left_out += 1  # one of a function is kept, which is skipped
            continue
        if "cuda" in item.fixturenames:
            seen.add((item.path, item.originalname))
        elif "device" in item.fixturenames:
            left_out += 1
        elif "world" in item.fixturenames:
            left_out += len(item.module.WORLDS) - len(worlds_of(item.module))
        kept.append(item)
    items[:] = kept


def pytest_sessionfinish(session):
    """A worker of pytest-xdist tells the process that reports."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = left_out


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Takes a worker's count: each of them has collected all tests."""
    global left_out
    left_out = max(left_out, getattr(node, "workeroutput", {}).get("left_out", 0))


def mark_and_sort(items):
    place = {f"test_{name}.py": k for k, name in enumerate(SLOW)}
    items.sort(key=lambda item: place.get(item.path.name, len(SLOW)))
    for item in items:
        if item.path.name in DOCS:
            first = DOCS[item.path.name]
            begin = inspect.unwrap(getattr(item.module, first)).__code__.co_firstlineno if first else 0
            if inspect.unwrap(item.function).__code__.co_firstlineno >= begin:
                item.add_marker("docs")


def pytest_addoption(parser):
    parser.addoption(
        "--report", metavar="FILE", help="write this run's counts and failures, and what it ran on, to FILE as JSON"
    )
    parser.addoption("--recipe", action="store_true", help="build a new operation by CONTRIBUTING.md's recipe, too")


@pytest.fixture(scope="session", params=["cpu", "cuda"] if GPU else ["cpu"])
def device(request):
    """Every device present."""
    return request.param


@pytest.fixture(scope="session", params=support.OPERATIONS, ids=str)
def op(request):
    """Every operation: what is promised of one is promised of all."""
    return request.param


@pytest.fixture(scope="session")
def cuda():
    """The first GPU."""
    if not GPU:
        pytest.skip(NO_GPU)
    return "cuda"


@pytest.fixture
def nvcc():
    """nvcc of torch's CUDA; no GPU is needed for it."""
    root = toolkit.find() if torch.version.cuda else None
    if root is None:
        pytest.skip("needs nvcc")
    return pathlib.Path(root, "bin", "nvcc")


def pytest_runtest_logfinish():
    """Gives memory back: what the caching allocator keeps after a test is missing in other processes on that GPU."""
    if torch.cuda.is_initialized() and torch.cuda.memory_reserved() > 1 << 30:
        torch.cuda.empty_cache()


def worlds_of(module):
    """The kinds of worlds that a module names, as far as this machine has them; one of them in any case."""
    return module.WORLDS if GPU else [kind for kind in module.WORLDS if kind == "cpu"] or module.WORLDS[:1]


def pytest_generate_tests(metafunc):
    """A test of ranks runs on each kind of world that its module names."""
    if "world" in metafunc.fixturenames:
        metafunc.parametrize("world", worlds_of(metafunc.module), indirect=True, scope="module")


@pytest.fixture(scope="module")
def world(request):
    """Eight ranks, or as many as NCCL can have; tests run on all of them, on the first few, or on any."""
    if request.param != "cpu":
        if not GPU:
            pytest.skip(NO_GPU)
        ranks = World(request.param)
        yield ranks
        ranks.close()
        return
    world = request.config.stash.get(ON_CPUS, None)  # one for all modules: idle ranks take nothing
    if world is None or not world.whole:
        world = request.config.stash[ON_CPUS] = World()
        request.config.add_cleanup(world.close)
    yield world


@pytest.fixture
def set_threads():
    """torch.set_num_threads; afterwards there are as many as before."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def _driver():
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def last_error(report):
    """The last line of a failed test's error, but for what pytest says of its parts, without this machine's paths."""
    lines = [line.strip() for line in report.longreprtext.splitlines() if line.strip()]
    errors = [line[1:].strip() for line in lines if line.startswith("E ")]
    parts = ("+ ", "Use -v", "assert ")  # which pytest adds
    errors = [line for line in errors if not line.startswith(parts)] or errors
    text = (errors or lines or ["no error was recorded"])[-1]
    return text.replace(f"{ROOT}/", "")[:300]


def skip_reason(report):
    """Why a test was skipped."""
    skip = report.longrepr
    return skip[2].removeprefix("Skipped: ") if isinstance(skip, tuple) else str(skip)


def slowest(reports, count=40):
    """The tests that took the longest, their fixtures and all, with their seconds."""
    seconds = collections.Counter()
    for report in reports:
        seconds[report.nodeid] += report.duration
    return {test: round(took, 2) for test, took in seconds.most_common(count)}


def pytest_terminal_summary(terminalreporter, config):
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist only knows its own part
        return
    if left_out:
        terminalreporter.write_line(f"{left_out:,} tests were left out: each {NO_GPU}, and none is here")
    path = config.getoption("--report")
    if not path:
        return

    def reports(*names):
        return [report for name in names for report in terminalreporter.stats.get(name, [])]

    failed, skipped = reports("failed", "error"), reports("skipped")
    skips = collections.Counter(map(skip_reason, skipped))
    if left_out:
        skips[NO_GPU] += left_out
    command = [sys.executable, str(ROOT / "bench" / "provenance.py")]
    provenance = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    report = {
        "csrc": provenance,
        "architectures": build_facts()["architectures"],
        "gpu": torch.cuda.get_device_name(0) if GPU else None,
        "driver": _driver() if GPU else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": sys.version.split()[0],
        "date": datetime.date.today().isoformat(),
        "passed": len(reports("passed")),
        "failed": len(failed),
        "skipped": len(skipped) + left_out,
        "failures": [{"test": report.nodeid, "reason": last_error(report)} for report in failed],
        "skips": dict(skips.most_common()),
        "durations": slowest(reports("passed", "failed", "error", "skipped", "")),  # "": set-ups and tear-downs
    }
    pathlib.Path(path).write_text(json.dumps(report, indent=2) + "\n")
    terminalreporter.write_line(f"wrote {path}")
