"""Which sources a result was measured on, and which results are older than today's. Standard library only.

    python bench/provenance.py            prints the hash of the engine's sources; the last line of stdout is it alone
    python bench/provenance.py --rows     of the kernels of rows, and so on: --help lists the parts
    python bench/provenance.py --old      lists the results that are older than the sources, with the command for each

The engine is csrc/ without csrc/ladder/. Its hash is SHA-256 over the files, sorted by their POSIX path relative to the
repository root. Each file contributes: its path as UTF-8 bytes, one NUL byte, its content, one NUL byte. Nothing is
skipped but editor backups (names that end in ~ .swp .swo .orig .rej .bak, or look like .#x or #x#) and anything in a
__pycache__ folder. It says which sources were tested.

A result names parts of them: what it ran. The kernels of rows, for example, are the files of csrc/core and csrc/rows
that are neither the CPU backend's (csrc/core/cpu/, and files of other folders whose names begin with cpu) nor torch's
operators (csrc/core/torch/, and files whose names begin with torch). The CPU backend is all that is neither CUDA's
(csrc/core/cuda/, .cu and .cuh files) nor the planner's (csrc/core/plan/), which plans for GPUs. A part's content is its
code alone: a comment, or a line that is broken elsewhere, makes no result old. Results of one part stay true when the
rest changes.
"""

import argparse
import functools
import hashlib
import json
import math
import pathlib
import re
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
BACKUP = re.compile(r".*(~|\.swp|\.swo|\.orig|\.rej|\.bak)|\.#.*|#.*#")
VENDOR_WORDS = {"nvidia", "geforce", "tesla", "quadro", "graphics", "device", "gpu"}
VARIANT_WORD = re.compile(r"sxm\d*|pcie|nvl\d*|hbm\w*|\d+gb")


LADDER = ("ladder/", "core/numeric/exact.h", "core/numeric/dtypes.h", "core/order.h")  # what its files include, too
OF_CPU = re.compile(r"core/cpu/.*|\w+/cpu\w*\.\w+")
OF_CUDA = re.compile(r"core/(cuda|plan)/.*|.*\.cuh?")
OF_TORCH = re.compile(r"core/torch/.*|\w+/torch\w*\.\w+")
FOLDERS = {  # of csrc/, whose kernels a call runs
    "sums": ("core", "pairs"),
    "lists": ("core", "foreach"),
    "rows": ("core", "rows"),
    "segments": ("core", "segments"),
    "index": ("core", "segments", "indexed"),
    "exact": ("core", "segments", "exact"),
    "ranks": ("core", "rows", "ranks"),
}


def kernels_in(*folders):
    """Whether a path of csrc/ is of the kernels in these folders."""
    return lambda path: path.split("/")[0] in folders and not (OF_CPU.fullmatch(path) or OF_TORCH.fullmatch(path))


PARTS = {  # of csrc/, by the paths in it
    "engine": lambda path: not path.startswith("ladder/"),
    "ladder": lambda path: path.startswith(LADDER),
    "cpu": lambda path: not (path.startswith("ladder/") or OF_CUDA.fullmatch(path)),
    "calls": OF_TORCH.fullmatch,
    **{name: kernels_in(*folders) for name, folders in FOLDERS.items()},
}
INDUCTOR = "torch_reduce/_inductor"  # a part as well, which is no C++: what Inductor makes of our functions
NAMES = {"engine": "engine", "ladder": "ladder", "cpu": "engine on the CPU", "calls": "operators"}
NAMES |= {"inductor": "lowerings for Inductor"}
KERNELS = dict.fromkeys(FOLDERS) | {"index": "sums by index", "exact": "exact sums"}  # the words for them


class Measured(NamedTuple):
    """What a file of results depends on, the script that measures it, and on how many GPUs."""

    parts: tuple[str, ...]
    script: str
    options: str = "--save --budget"  # what keeps the results; --budget takes seconds, and results go on from there
    gpus: int = 1

    def command(self, seconds=math.inf):
        """The script and its arguments, which may take so many seconds."""
        return [self.script, *self.options.split(), *([f"{seconds:.0f}"] if "--budget" in self.options else [])]


RESULTS = {  # of a GPU, in the order in which bench/figures.py measures them
    "grid.json": Measured(("sums", "calls"), "bench/grid.py", "--resume --budget"),
    "rows.json": Measured(("rows",), "bench/rows.py"),
    "family.json": Measured(("sums", "lists"), "bench/family.py"),
    "index.json": Measured(("index",), "bench/index.py"),
    "segments.json": Measured(("segments",), "bench/segment.py"),
    "exact.json": Measured(("exact",), "bench/exact.py"),
    "weighted.json": Measured(("sums",), "bench/weighted.py"),
    "models.json": Measured(("sums", "calls"), "bench/models.py"),
    "compiled.json": Measured(("rows", "inductor"), "bench/compiled.py"),
    "views.json": Measured(("sums",), "bench/views.py", "--seconds inf --save"),
    "batch_invariance.json": Measured(("sums",), "examples/batch_invariance.py", "--save"),
    "ladder.json": Measured(("ladder", "sums"), "bench/ladder.py", "--save"),
    "ranks.json": Measured(("ranks", "calls"), "bench/ranks.py", "--save", gpus=2),
}
# What a text says beside its code. A string or character comes first, so that one with // in it stays whole.
COMMENT = re.compile(r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|//[^\n]*|/\*.*?\*/""", re.DOTALL)


def csrc_files(root=ROOT, part="engine"):
    """The files that the hash of a part covers, sorted by their POSIX path relative to `root`."""
    if part == "inductor":
        return sorted((pathlib.Path(root) / INDUCTOR).glob("*.py"))
    csrc = pathlib.Path(root) / "csrc"
    files = (p for p in csrc.rglob("*") if p.is_file() and PARTS[part](p.relative_to(csrc).as_posix()))
    kept = (p for p in files if "__pycache__" not in p.parts and not BACKUP.fullmatch(p.name))
    return sorted(kept, key=lambda p: p.relative_to(csrc).as_posix())


def code_of(text):
    """A source without its comments, each space as one blank."""
    return " ".join(COMMENT.sub(lambda found: found[1] or " ", text).split())


@functools.cache
def code_at(path, _written):
    """The code of a file, which is read again once it is written anew."""
    return code_of(path.read_text(encoding="utf-8")).encode()


def csrc_hash(root=ROOT, part="engine"):
    """SHA-256 of a part's sources under `root`, in hexadecimal: see the module's docstring."""
    digest, whole = hashlib.sha256(), part in ("engine", "inductor")
    for path in csrc_files(root, part):
        content = path.read_bytes() if whole else code_at(path, path.stat().st_mtime_ns)
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + content + b"\0")
    return digest.hexdigest()


def hashes_of(file, device="cuda", root=ROOT):
    """{part: hash of today} of what a file's results depend on, on a GPU or on the CPU."""
    parts = RESULTS[file].parts if file in RESULTS else ("sums",)
    if device == "cpu":
        parts = ("cpu", *({"calls"} & {*parts}))
    return {part: csrc_hash(root, part) for part in parts}


def sources(results, on_cpu=False):
    """{part: hash} of what `results` were measured on, for `changed`; also `on_cpu`, of the grid's cells there."""
    known = results.get("sources") or {"engine": results["csrc"]}
    return known | ({"cpu": results["cpu"]["csrc"]} if on_cpu and "csrc" in results.get("cpu", {}) else {})


def changed(hashes, root=ROOT):
    """The parts of csrc/ that are others today than {part: hash or None} says."""
    return [part for part, known in hashes.items() if known != csrc_hash(root, part)]


def named(parts):
    """Parts as text: "the kernels of sums and rows and the ladder"."""
    kernels = [KERNELS[part] or part for part in parts if part in KERNELS]
    names = [f"the kernels of {listed(kernels)}"] * bool(kernels)
    return listed(names + [f"the {NAMES[part]}" for part in parts if part in NAMES])


def listed(words):
    return " and ".join([", ".join(words[:-1])] * (len(words) > 1) + words[-1:])


def since(parts):
    """What to add to a date of measurement, before the full stop: which parts of csrc/ (`changed`) have changed since.

    It names no hash of today: a page that has it stays as it is until it is measured anew.
    """
    if not parts:
        return ""
    if "engine" in parts:  # which is all of csrc/ but the ladder
        parts = [part for part in parts if part in ("engine", "ladder", "inductor")]
    one = len(parts) == 1 and parts[0] in ("engine", "ladder", "cpu")
    return f"; since then {named(parts)} {'has' if one else 'have'} changed"


def at(hashes):
    """Words that say which sources a result was measured on, from {part: hash}."""
    return ", ".join(f"{named([part]).removeprefix('the ')} at `{known[:12]}`" for part, known in hashes.items())


def short(gpu):
    """A GPU's name for a table: "NVIDIA H100 80GB HBM3" -> "H100", "NVIDIA GeForce RTX 4090" -> "RTX 4090"."""
    words = [w for w in gpu.split() if w.lower() not in VENDOR_WORDS and not VARIANT_WORD.fullmatch(w.lower())]
    return " ".join(words) or gpu


def gpu_slug(name):
    """A folder name for a GPU: "NVIDIA H200" -> "h200", "NVIDIA A100-SXM4-80GB" -> "a100"."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    kept = [w for w in words if w not in VENDOR_WORDS and not VARIANT_WORD.fullmatch(w)]
    return "-".join(kept or words or ["unknown"])


def place(file, gpu):
    """Where the results of a GPU stand."""
    return ROOT / "bench" / "results" / gpu_slug(gpu) / file


def chosen_place(file, path, gpu, what="results of a GPU"):
    """Where to keep results: `path`, or for Path() the place of the GPU's `file`; None, and why, if `gpu` is None."""
    if path != pathlib.Path():
        return path
    if gpu is None:
        print(f"nothing is saved: only {what} have a place of their own; name a file to keep these")
        return None
    return place(file, gpu)


def save(results, name, path):
    """Writes `results` as JSON to its chosen place, if there is one."""
    path = chosen_place(name, path, results["gpu"])
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"written: {path}")


def old(root=ROOT):
    """[(path, the parts that have changed since)] of the results of a GPU that are older than the sources."""
    paths = [path for file in RESULTS for path in sorted((root / "bench" / "results").glob(f"*/{file}"))]
    hashes = {path: sources(json.loads(path.read_text(encoding="utf-8")), on_cpu=True) for path in paths}
    return [(path, parts) for path, of_file in hashes.items() if (parts := changed(of_file, root))]


def told(found):
    """A line for each of `old`: what has changed, and the command that measures it anew."""
    lines = []
    for path, parts in found:
        command = f"make figures ARGS='--only {path.stem}'"
        lines.append(f"{path.parent.name}/{path.name}{since(parts)}; {command}")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for part in (*PARTS, "inductor"):
        parser.add_argument(f"--{part}", dest="part", action="store_const", const=part, default="engine")
    parser.add_argument("--old", action="store_true", help="list the results that are older than the sources")
    options = parser.parse_args()
    if not (ROOT / "csrc").is_dir():
        sys.exit(f"no folder csrc/ under {ROOT}")
    if options.old:
        print("\n".join(told(old())) or "all results are of today's sources")
        return
    print(csrc_hash(ROOT, options.part))


if __name__ == "__main__":
    main()
