"""The course without torch: the package torch_reduce as a name alone, around this folder of a clone.

``python torch_reduce/ladder`` and the notebooks import this file by itself, from this folder. Importing torch_reduce
would load torch and the library; the emulated rungs, the steps, ``try`` and the exercises need nothing of them.
"""

import importlib
import sys
import types
from pathlib import Path


def without_torch() -> types.ModuleType:
    """torch_reduce.ladder, imported without the package around it; as it is where torch_reduce is there already."""
    if "torch_reduce" not in sys.modules:
        around = types.ModuleType("torch_reduce")
        around.__path__ = [str(Path(__file__).resolve().parent.parent)]
        sys.modules["torch_reduce"] = around
    return importlib.import_module("torch_reduce.ladder")
