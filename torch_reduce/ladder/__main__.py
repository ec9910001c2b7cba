"""``python -m torch_reduce.ladder``; and ``python torch_reduce/ladder`` in a clone, the course without torch.

The second form imports this folder without the package around it, which would load torch and the library: see
_alone.py. So the emulated rungs, the steps, ``try`` and the exercises need nothing but Python and a C++ compiler.
"""

import sys

try:
    if not __package__:
        import _alone  # Python looks in this folder first

        _alone.without_torch()

    from torch_reduce.ladder._program import main
except KeyboardInterrupt:  # Ctrl-C before main() can say so
    print("stopped", file=sys.stderr)
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main())
