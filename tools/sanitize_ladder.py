"""Runs every rung of the ladder at a few sizes, for compute-sanitizer to watch:

    compute-sanitizer --tool memcheck python tools/sanitize_ladder.py
    compute-sanitizer --tool racecheck python tools/sanitize_ladder.py
    compute-sanitizer --tool synccheck --num-cuda-barriers 65536 python tools/sanitize_ladder.py

Every input is an allocation of its own, exactly as large as its elements, so that reading one too far is seen. Results
are compared with the CPU's.
"""

import argparse
import os

os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"

import torch

from torch_reduce import ladder


def main():
    raw = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=raw).parse_args()
    runs = 0
    for rung in ladder.rungs():
        if rung.device == "cpu":
            continue
        for dtype in (torch.float32, torch.int64):
            for block in sorted({1, 2, 16, 32, 64, 128, 1024} & set(rung.blocks)) or (None,):
                for elements in {rung.elements_per_thread[0], rung.elements_per_thread[-1]} if rung.blocks else {None}:
                    tile = (block or 512) * (elements or 1)
                    for n in (1, 33, tile + 1, 3 * tile - 5):
                        x = torch.randint(0, 20, (n,)).to(dtype)  # floats add up exactly
                        got = ladder.run(rung.name, x.cuda(), block, elements).cpu()
                        right = ((got == 100) | (got == 200)).all() if rung.finish == "written" else got == x.sum()
                        assert bool(right), (rung.name, dtype, block, elements, n)
                        runs += 1
        for op in rung.ops[1:]:
            x = torch.arange(1, 5003)
            got = ladder.run(rung.name, x.cuda(), op=op).cpu()
            assert got == {"product": torch.prod, "max": torch.max, "min": torch.min}[op](x), (rung.name, op)
            runs += 1
    torch.cuda.synchronize()
    print(f"{runs} runs, all as on the CPU")


if __name__ == "__main__":
    main()
