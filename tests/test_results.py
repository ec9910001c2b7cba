"""Measured results: README says what the results files say, and the files say on which sources they were measured."""

import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = sorted((ROOT / "bench" / "results").glob("*/*.json"))


def bench(*arguments):
    """Runs a script of bench/."""
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120)


def source_hash():
    """SHA-256 over the sorted relative paths and contents of csrc/, each followed by a NUL, without bench/."""
    files = {}
    for folder, _, names in os.walk(ROOT / "csrc"):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                files[os.path.relpath(path, ROOT).replace(os.sep, "/")] = file.read()
    text = b"".join(name.encode() + b"\0" + files[name] + b"\0" for name in sorted(files))
    return hashlib.sha256(text).hexdigest()


def test_readme_is_what_the_results_give():
    """README's tables and the plots are generated from bench/results, and are up to date."""
    result = bench("bench/report.py", "--check")
    assert result.returncode == 0, result.stdout + result.stderr


def test_provenance():
    """bench/provenance.py prints the hash of csrc/."""
    result = bench("bench/provenance.py")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().splitlines()[-1] == source_hash()


def test_provenance_needs_the_standard_library_alone():
    """bench/provenance.py runs where nothing is installed."""
    result = bench("-I", "-S", "bench/provenance.py")
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(not RESULTS, reason="there are no results yet")
@pytest.mark.parametrize("path", RESULTS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_results_say_where_they_come_from(path):
    """Every results file names the sources, the GPU (or CPU), the torch and the day it was measured with."""
    facts = json.loads(path.read_text())
    assert re.fullmatch("[0-9a-f]{64}", facts["csrc"])
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", facts["date"])
    assert facts["torch"] and facts["gpu"] and facts["driver"]
