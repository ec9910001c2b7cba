"""Fetches the headers of releases of torch from PyPI, so that one wheel can serve them: make wheels.

    python tools/torches.py 2.12.0 2.15.0

pip downloads each release's wheel, hundreds of MB, and 60 MB of it are kept in the user's cache folder, or in the one
that TORCH_REDUCE_CACHE names. The libraries beside the headers are empty: they only tell the linker torch's names.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# linux-aarch64 where this builds for another processor: Python's own name for that, which pip obeys.
CROSS = os.environ.get("_PYTHON_HOST_PLATFORM", "")
LIBRARIES = ("c10", "torch_cpu", "torch_python", "c10_cuda", "torch_cuda")


def folder(release):
    """Where the headers of a release are, or will be."""
    cache = os.environ.get("TORCH_REDUCE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "torch_reduce")
    return Path(cache).expanduser() / "torches" / CROSS / release / "torch"


def standard(torch):
    """The flag for the C++ standard that the torch in a folder is built for."""
    text = (torch / "utils" / "cpp_extension.py").read_text(encoding="utf-8")
    return re.search(r"cuda_cflags = \['(-std=[^']+)'\]", text)[1]


def is_early(release):
    """Whether it is no final release: its C++ interface may differ from the final one's."""
    return not re.fullmatch(r"[0-9.]+", release)


def unpack(wheel, to):
    """Takes the headers from torch's wheel, and makes the libraries."""
    with zipfile.ZipFile(wheel) as archive:
        wanted = re.compile(r"torch/(?:include/|version\.py|utils/cpp_extension\.py)")
        archive.extractall(to, [name for name in archive.namelist() if wanted.match(name)])
    (to / "torch" / "lib").mkdir()
    for name in LIBRARIES:
        path = to / "torch" / "lib" / f"lib{name}.so"
        compiler = os.environ.get("CC") or "cc"
        command = [
            *compiler.split(),
            "-shared",
            "-nostdlib",
            "-x",
            "c",
            os.devnull,
            f"-Wl,-soname,{path.name}",
            "-o",
            path,
        ]
        subprocess.run(command, check=True)


def fetch(release):
    """Fetches a release, unless it is there."""
    there = folder(release).parent
    if there.exists():
        return
    there.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=there.parent) as new:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
        subprocess.run([*pip, "--dest", new, f"torch=={release}"], check=True)
        (wheel,) = Path(new).glob("*.whl")
        unpack(wheel, Path(new, "unpacked"))
        shutil.move(Path(new, "unpacked"), there)
    print(f"torch {release}: {folder(release)}", flush=True)


def main():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("releases", nargs="+", metavar="release", help="such as 2.12.0")
    for release in parser.parse_args().releases:
        fetch(release)


if __name__ == "__main__":
    main()
