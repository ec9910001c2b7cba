"""Which sources a result was measured on. Standard library only.

    python bench/provenance.py            prints the hash of the engine's sources; the last line of stdout is it alone
    python bench/provenance.py --cuda     of what the engine is made of on a GPU
    python bench/provenance.py --cpu      of what it is made of on the CPU
    python bench/provenance.py --ladder   of the ladder's

The engine is csrc/ without csrc/ladder/, and the ladder is csrc/ladder/ and the arithmetic of exact sums, which a rung
includes. They have no more in common, so results of one stay true when the rest of the other changes. The ladder's rung
"engine" runs the engine on a GPU. Results of a GPU stay true where only the CPU backend changes: csrc/core/cpu/, and
the files of other folders whose names begin with cpu. Results of the CPU stay true where only CUDA's sources do:
csrc/core/cuda/, the .cu and .cuh files of other folders, and the planner (csrc/core/plan/), which plans nothing else.

The hash is SHA-256 over the files, sorted by their POSIX path relative to the repository root. Each file contributes:
its path as UTF-8 bytes, one NUL byte, its content, one NUL byte. Nothing is skipped but editor backups (names that end
in ~ .swp .swo .orig .rej .bak, or look like .#x or #x#) and anything in a __pycache__ folder.
"""

import argparse
import hashlib
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BACKUP = re.compile(r".*(~|\.swp|\.swo|\.orig|\.rej|\.bak)|\.#.*|#.*#")
VENDOR_WORDS = {"nvidia", "geforce", "tesla", "quadro", "graphics", "device", "gpu"}
VARIANT_WORD = re.compile(r"sxm\d*|pcie|nvl\d*|hbm\w*|\d+gb")


LADDER = ("ladder/", "core/numeric/exact.h", "core/numeric/dtypes.h", "core/order.h")  # what its files include, too
OF_CPU = re.compile(r"core/cpu/.*|\w+/cpu\w*\.\w+")
OF_CUDA = re.compile(r"core/(cuda|plan)/.*|.*\.cuh?")
PARTS = {  # of csrc/, by the paths in it
    "engine": lambda path: not path.startswith("ladder/"),
    "ladder": lambda path: path.startswith(LADDER),
    "cuda": lambda path: not (path.startswith("ladder/") or OF_CPU.fullmatch(path)),
    "cpu": lambda path: not (path.startswith("ladder/") or OF_CUDA.fullmatch(path)),
}
NAMES = {"engine": "engine", "ladder": "ladder", "cuda": "engine on CUDA", "cpu": "engine on the CPU"}


def csrc_files(root=ROOT, part="engine"):
    """The files that the hash of a part covers, sorted by their POSIX path relative to `root`."""
    csrc = pathlib.Path(root) / "csrc"
    files = (p for p in csrc.rglob("*") if p.is_file() and PARTS[part](p.relative_to(csrc).as_posix()))
    kept = (p for p in files if "__pycache__" not in p.parts and not BACKUP.fullmatch(p.name))
    return sorted(kept, key=lambda p: p.relative_to(csrc).as_posix())


def csrc_hash(root=ROOT, part="engine"):
    """SHA-256 of a part's sources under `root`, in hexadecimal: see the module's docstring."""
    digest = hashlib.sha256()
    for path in csrc_files(root, part):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def sources(results, *parts):
    """{part: hash} of what `results` were measured on, for `changed`; older files know the whole engine's alone."""
    known = results.get("sources", {})
    return {part: known[part] for part in parts} if set(parts) <= set(known) else {"engine": results["csrc"]}


def changed(hashes, root=ROOT):
    """The names of the parts of csrc/ that are others today than {part: hash or None} says."""
    return [NAMES[part] for part, known in hashes.items() if known != csrc_hash(root, part)]


def since(parts):
    """What to add to a date of measurement, before the full stop: which parts of csrc/ (`changed`) have changed since.

    It names no hash of today: a page that has it stays as it is until it is measured anew.
    """
    if not parts:
        return ""
    return f"; since then the {' and the '.join(parts)} {'has' if len(parts) == 1 else 'have'} changed"


def at(hashes):
    """Words that say which sources a result was measured on, from {part: hash}."""
    return ", ".join(f"{NAMES[part]} at `{known[:12]}`" for part, known in hashes.items())


def gpu_slug(name):
    """A folder name for a GPU: "NVIDIA H200" -> "h200", "NVIDIA A100-SXM4-80GB" -> "a100"."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    kept = [w for w in words if w not in VENDOR_WORDS and not VARIANT_WORD.fullmatch(w)]
    return "-".join(kept or words or ["unknown"])


def save(results, name, path):
    """Writes `results` as JSON to `path`, or, if that is Path(), to bench/results/<gpu>/`name`."""
    if path == pathlib.Path():
        if results["gpu"] is None:
            print("nothing is saved: only results of a GPU have a place of their own; name a file to keep these")
            return
        path = ROOT / "bench" / "results" / gpu_slug(results["gpu"]) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"written: {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for part in PARTS:
        parser.add_argument(f"--{part}", dest="part", action="store_const", const=part, default="engine")
    options = parser.parse_args()
    if not (ROOT / "csrc").is_dir():
        sys.exit(f"no folder csrc/ under {ROOT}")
    print(csrc_hash(ROOT, options.part))


if __name__ == "__main__":
    main()
