"""Threads of the caller's: which of them may sum."""

import pathlib
import sys

import pytest

from support import INSTRUCTIONS, instruction_sets, python

HERE = pathlib.Path(__file__).parent
linux = pytest.mark.skipif(sys.platform != "linux", reason="makes threads as Linux does")


@linux
@instruction_sets(*INSTRUCTIONS)
def test_small_stacks(instructions):
    """Every kind of kernel in threads with stacks of 64 KiB, where torch.sum works."""
    python(HERE / "small_stack.py", ATEN_CPU_CAPABILITY=instructions, OMP_STACKSIZE="64K")


@linux
def test_small_stacks_that_launch(cuda):
    """The same on a GPU, if its driver can do with so little."""
    try:
        python(HERE / "small_stack.py", cuda, "torch")
    except AssertionError:
        pytest.skip("torch.sum itself needs a larger stack on this GPU")
    python(HERE / "small_stack.py", cuda)
