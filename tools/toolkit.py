"""Where nvcc comes from: setup.py builds with what `find` finds, `python tools/toolkit.py` installs what is missing.

A toolkit serves when its major version is that of the CUDA torch was built with. In this order: $CUDA_HOME, $CUDA_PATH,
the nvcc on PATH, /usr/local/cuda, NVIDIA's packages from PyPI beside torch (GPUREDUCE_TOOLKIT=pypi skips the others).
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import torch


def version(root):
    """The version of the nvcc under `root`, such as "13.0.88"; None if there is none that runs."""
    nvcc = Path(root, "bin", "nvcc")
    try:
        text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    found = re.search(r"V(\d+\.\d+\.\d+)", text)
    return found and found[1]


def from_pypi():
    """Where the packages from PyPI put their toolkit."""
    return Path(torch.__file__).parents[1] / "nvidia" / f"cu{torch.version.cuda.split('.')[0]}"


def find():
    """The root folder of a toolkit for this torch, or None."""
    major = torch.version.cuda.split(".")[0]
    roots = [from_pypi()]
    if os.environ.get("GPUREDUCE_TOOLKIT") != "pypi":
        nvcc = shutil.which("nvcc")
        on_path = nvcc and Path(nvcc).resolve().parents[1]
        roots = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), on_path, "/usr/local/cuda", *roots]
    return next((str(root) for root in roots if root and (version(root) or "").split(".")[0] == major), None)


def requirements():
    """The packages that complete the toolkit torch depends on, from that toolkit's own metadata.

    nvcc takes its two back ends in any version, but newer ones make PTX that its ptxas refuses: they get its version.
    """
    release = importlib.metadata.version("cuda-toolkit")
    pinned = " ".join(importlib.metadata.requires("cuda-toolkit"))
    nvcc = re.search(r"nvidia-cuda-nvcc==(\d+\.\d+\.\d+)", pinned)[1]
    backends = [f"{name}=={nvcc}" for name in ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt")]
    return [f"cuda-toolkit[nvcc,cccl]=={release}", *backends]


def main():
    if torch.version.cuda is None:
        print(f"torch {torch.__version__} has no CUDA: no toolkit is needed.")
        return
    root = find()
    if root in (None, str(from_pypi())):  # the latter may be that of another torch: then pip changes it
        print(f"No nvcc for CUDA {torch.version.cuda} on this system: taking it from PyPI.", flush=True)
        try:
            wanted = requirements()
        except (importlib.metadata.PackageNotFoundError, TypeError):
            sys.exit(f"This torch names no cuda-toolkit package: install CUDA {torch.version.cuda} and set CUDA_HOME.")
        subprocess.run([sys.executable, "-m", "pip", "install", *wanted], check=True)
        root = find() or sys.exit("The toolkit from PyPI has no working nvcc: install another and set CUDA_HOME.")
    print(f"nvcc {version(root)} in {root}")


if __name__ == "__main__":
    main()
