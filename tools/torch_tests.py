"""Runs one of PyTorch's own test files twice, as it is and with torch's reductions on ours, and lists what differs.

    python tools/torch_tests.py pytorch/test/test_reductions.py --device cuda -n 8

The file is that of the release of torch that is installed: torch's wheels hold no tests, its sources do. It needs
pytest and expecttest, and runs more of its tests with scipy. What follows the known arguments is pytest's. The exit
status is 1 if a test's outcome differs, and 2 if nothing ran.
"""

import argparse
import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FUNCTIONS = ["sum", "mean", "nansum", "prod", "amax", "amin", "any", "all", "count_nonzero", "vector_norm"]
FUNCTIONS += ["logsumexp", "var", "std", "var_mean", "std_mean", "dot"]
FUNCTIONS += ["index_add", "scatter_add", "index_reduce", "scatter_reduce", "index_put", "embedding", "bincount"]
FUNCTIONS += ["embedding_bag"]


# --- in the processes that run the tests, of which this file is a plugin ----------------------------------------------


def pytest_configure(config):
    if functions := os.environ.get("TORCH_TESTS_FUNCTIONS"):
        import torch_reduce

        torch_reduce.replace(functions.split(), os.environ["TORCH_TESTS_DEVICE"]).on()


outcomes = {}


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        lines = [line for line in report.longreprtext.splitlines() if line.strip()]
        errors = [line[1:].strip() for line in lines if line.startswith("E ")]
        added = ("+ ", "Use -v", "assert ", "To execute this", "python test", "This message can")  # by pytest and torch
        errors = [line for line in errors if line and not line.startswith(added)] or errors
        reason = (errors or lines or [""])[-1][:300]
        outcomes[report.nodeid.partition("::")[2]] = report.outcome, "" if report.outcome == "passed" else reason


def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput"):
        pathlib.Path(os.environ["TORCH_TESTS_OUTCOMES"]).write_text(json.dumps(outcomes))


# --- the command ------------------------------------------------------------------------------------------------------


def run(file, device, functions, others):
    """The outcome of each test, with its last error line, where these functions are replaced."""
    with tempfile.TemporaryDirectory() as folder:
        found = pathlib.Path(folder, "outcomes.json")
        path = [ROOT / "tools", ROOT, file.parent, os.environ.get("PYTHONPATH")]
        environment = {
            "PYTHONPATH": os.pathsep.join(map(str, filter(None, path))),
            "PYTORCH_TESTING_DEVICE_ONLY_FOR": device,
            "TORCH_TESTS_FUNCTIONS": " ".join(functions),
            "TORCH_TESTS_DEVICE": device,
            "TORCH_TESTS_OUTCOMES": str(found),
        }
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "torch_tests", "-p", "no:cacheprovider"]
        command += ["-c", os.devnull, "--rootdir", file.parent, file, *others]
        result = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, cwd=file.parent)
        if not found.exists():
            sys.exit(f"torch_tests: pytest did not run:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
        return {name: tuple(outcome) for name, outcome in json.loads(found.read_text()).items()}


def main():
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form, allow_abbrev=False)
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--functions", nargs="+", choices=FUNCTIONS, default=FUNCTIONS, metavar="NAME")
    arguments, others = parser.parse_known_args()
    file = arguments.file.resolve()
    before = run(file, arguments.device, [], others)
    after = run(file, arguments.device, arguments.functions, others)
    for title, outcomes in (("torch alone", before), ("with ours", after)):
        counts = collections.Counter(outcome for outcome, _ in outcomes.values())
        print(
            f"{title}: {', '.join(f'{count} {outcome}' for outcome, count in sorted(counts.items())) or 'nothing ran'}"
        )
    none = ("did not run", "")
    differ = [name for name in sorted(before | after) if before.get(name, none)[0] != after.get(name, none)[0]]
    for name in differ:
        for title, outcome in (("torch alone", before.get(name, none)), ("with ours", after.get(name, none))):
            print(f"{name}, {title}: {': '.join(filter(None, outcome))}")
    print(f"{len(differ)} differ")
    sys.exit(2 if not before else bool(differ))


if __name__ == "__main__":
    main()
