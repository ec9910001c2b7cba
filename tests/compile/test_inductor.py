"""What Inductor makes of our operators has eager code's bits: on a GPU, and without one in Triton's interpreter."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
import torch

from torch_reduce import _inductor

PROGRAM = pathlib.Path(__file__).resolve().parent / "inductor_cases.py"  # which takes seconds to import
CASES = re.findall(r"^def case_(\w+)\(", PROGRAM.read_text(), re.MULTILINE)

pytest.importorskip("triton", reason="needs Triton")
TORCH = ".".join(torch.__version__.split(".")[:2])
if TORCH not in _inductor.VERSIONS + _inductor.UNPROVEN:
    pytest.skip("needs a torch whose Inductor is known", allow_module_level=True)


@pytest.fixture(scope="module")
def errors(device):
    """{case: its error} of the cases that failed; they have a process of their own."""
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    command = [sys.executable, "-W", "ignore", str(PROGRAM), device]
    result = subprocess.run(command, capture_output=True, text=True, env=env, timeout=1800)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", CASES)
def test_bits(case, errors):
    """Each case of tests/compile/inductor_cases.py, which says what it compares."""
    if TORCH in _inductor.UNPROVEN and case in ("conversions", "packages"):
        pytest.skip("this torch fuses addcmul as on a GPU, and packages no kernels for a CPU")
    assert case not in errors, errors[case]


def test_unknown_version(monkeypatch):
    """Another torch keeps calls of our operators, and a warning says so once."""
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    assert not _inductor.is_known()
    with pytest.warns(UserWarning, match=r"2\.99\.0 Inductor calls .* under torch 2\.11"):
        _inductor.install()


def test_unproven_versions(monkeypatch):
    """Those whose kernels no GPU has run are taken where somebody asks for them."""
    monkeypatch.setattr(torch, "__version__", f"{_inductor.UNPROVEN[0]}.1+cpu")
    for value, known in (None, False), ("0", False), ("1", True):
        if value is None:
            monkeypatch.delenv("TORCH_REDUCE_FUSE", raising=False)
        else:
            monkeypatch.setenv("TORCH_REDUCE_FUSE", value)
        assert _inductor.is_known() is known
