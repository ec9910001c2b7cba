"""Measures anew what is older than the sources, and makes README's figures, the pages and the pictures of it.

    python bench/figures.py                 what is old of the GPU that is here, then the pages: `make figures`
    python bench/figures.py --budget 500    begins nothing after so many seconds; the same command goes on from there
    python bench/figures.py --only rows     what stands in rows.json alone
    python bench/figures.py --pages         measures nothing, and needs no GPU: pages and pictures of the results

What a file of bench/results depends on is written in bench/provenance.py, with the script that measures it;
`python bench/provenance.py --old` lists what is old. A run may be cut off at any time: parts that were measured are
kept (bench/parts.py). ranks.json needs two GPUs, and is left out where there is one.
"""

import argparse
import importlib
import json
import math
import os
import subprocess
import sys
import time

import provenance

REPORTS = ("family", "rows", "index", "exact", "ranks", "models", "compiled", "ladder", "times", "report", "peers")


def main(arguments=None):
    files = {file.removesuffix(".json"): file for file in provenance.RESULTS}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", metavar="SECONDS", type=float, default=math.inf, help="begin nothing after these")
    parser.add_argument("--only", choices=list(files), help="measure this file")
    parser.add_argument("--pages", action="store_true", help="measure nothing")
    options = parser.parse_args(arguments)
    gpu, count = (None, 0) if options.pages else visible()
    if not count and not options.pages:
        sys.exit("bench/figures.py needs an NVIDIA GPU; `python bench/provenance.py --old` says what is old")
    begin, failed = time.monotonic(), []
    chosen = [files[options.only]] if options.only else provenance.RESULTS
    for file in () if options.pages else chosen:
        measured = provenance.RESULTS[file]
        if is_of_today(file, gpu):
            print(f"==> {file} is of today's sources")
        elif count < measured.gpus:
            print(f"==> {file} is left out: it needs {measured.gpus} GPUs")
        elif (left := options.budget - (time.monotonic() - begin)) <= 0:
            print(f"==> {file} is left for the next run")
        else:
            print(f"==> {file}", flush=True)
            failed += [file] * (run(*measured.command(left)) != 0)
    failed += [f"bench/{name}.py" for name in pages() if run(f"bench/{name}.py") != 0]
    print("\n".join(provenance.told(provenance.old(provenance.ROOT))) or "all results are of today's sources")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def visible():
    """(the first GPU's name, how many there are)."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return torch.cuda.get_device_name(0) if count else None, count


def is_of_today(file, gpu):
    """Whether everything in a file was measured on this GPU and on today's sources."""
    path = provenance.place(file, gpu)
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return False
    hashes = provenance.hashes_of(file, root=provenance.ROOT)
    return results["gpu"] == gpu and results.get("sources") == hashes and not lacks(file, results)


def lacks(file, results):
    """Whether something is missing or has failed: a cell of the grid, or a part."""
    if file == "grid.json":
        import cases

        cells, cpu = results["cases"] + results["cpu"]["cases"], provenance.csrc_hash(provenance.ROOT, "cpu")
        few = len(cells) < results["cells"] + len(cases.cpu_cases()) or results["cpu"].get("csrc") != cpu
        return few or any("error" in cell for cell in cells)
    if "--budget" not in provenance.RESULTS[file].options:
        return False
    script = importlib.import_module(provenance.RESULTS[file].script.removeprefix("bench/").removesuffix(".py"))
    return not set(script.PARTS) <= results.keys()


def run(script, *arguments):
    """The exit status of a script of this repository."""
    own = (str(provenance.ROOT), str(provenance.ROOT / "bench"), os.environ.get("PYTHONPATH"))
    path = os.pathsep.join(filter(None, own))
    command = [sys.executable, str(provenance.ROOT / script), *arguments]
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, check=False).returncode


def pages():
    return [name if name == "report" else f"{name}_report" for name in REPORTS]


if __name__ == "__main__":
    main()
