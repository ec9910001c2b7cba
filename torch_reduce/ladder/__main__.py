"""``python -m torch_reduce.ladder``; and ``python torch_reduce/ladder`` in a clone, the course without torch.

The second form imports this folder without the package around it, which would load torch and the library. So the
emulated rungs, the steps, ``try`` and the exercises need nothing but Python and a C++ compiler.
"""

import sys

if not __package__:
    import types
    from pathlib import Path

    around = types.ModuleType("torch_reduce")
    around.__path__ = [str(Path(__file__).resolve().parent.parent)]
    sys.modules["torch_reduce"] = around

from torch_reduce.ladder._program import main

if __name__ == "__main__":
    sys.exit(main())
