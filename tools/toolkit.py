"""Where nvcc comes from: setup.py builds with what `find` finds; the command installs an nvcc where there is none.

    python tools/toolkit.py

A toolkit serves when its major version is that of the CUDA torch was built with. In this order: $CUDA_HOME, $CUDA_PATH,
the nvcc on PATH, /usr/local/cuda, NVIDIA's packages from PyPI beside torch (GPUREDUCE_TOOLKIT=pypi skips the others).
GPUREDUCE_CUDA=0, or torch's USE_CUDA=0, leaves CUDA out: then none is needed.
"""

import argparse
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import torch


def left_out():
    """The setting that leaves CUDA out, such as "USE_CUDA=0", by the words that torch knows; None if there is none."""
    settings = ((name, os.environ.get(name)) for name in ("GPUREDUCE_CUDA", "USE_CUDA"))
    name, value = next(((name, value) for name, value in settings if value), ("", ""))
    return f"{name}={value}" if value.upper() in ("0", "OFF", "NO", "FALSE", "N") else None


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


def architectures(root):
    """The architectures that the nvcc under `root` compiles for: a list for torch, the reason, and torch's numbers.

    The numbers are such as ["8.0", "9.0+PTX", "10.0a"]. ValueError if torch or nvcc does not know one.
    """
    asked = os.environ.get("TORCH_CUDA_ARCH_LIST", "")
    chosen, why = ";".join(asked.replace(";", " ").split()), "TORCH_CUDA_ARCH_LIST"
    nvcc = Path(root, "bin", "nvcc")
    listed = subprocess.run([nvcc, "--list-gpu-code"], capture_output=True, text=True, check=True).stdout
    known = [f"{code[:-1]}.{code[-1]}" for code in re.findall(r"sm_(\d+)\b", listed)]
    if chosen in ("", "native"):  # torch raises an IndexError when it is told nothing and no GPU is visible
        visible = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
        visible = [number for number in (f"{major}.{minor}" for major, minor in sorted(visible)) if number in known]
        chosen, why = ";".join(visible) + "+PTX", "the visible GPUs"
        if not visible:
            why = "the default, as no GPU that this nvcc knows is visible; set TORCH_CUDA_ARCH_LIST for others"
            chosen = "9.0+PTX"
    try:
        numbers = torch_architectures(chosen)
    except ValueError as error:
        raise ValueError(
            f"TORCH_CUDA_ARCH_LIST={asked!r}: {error}. It takes numbers and names of generations, with spaces or "
            "semicolons between them, such as `8.0 9.0+PTX` or `Hopper`."
        ) from None
    missing = [number for number in numbers if re.match(r"[\d.]+", number)[0] not in known]
    if missing:
        raise ValueError(
            f"TORCH_CUDA_ARCH_LIST={asked!r}: nvcc {version(root)} does not compile for {', '.join(missing)}, but for "
            f"{', '.join(known)}."
        )
    return chosen, why, numbers


def torch_architectures(chosen):
    """The numbers of a list for torch (with semicolons), from the flags that torch would give nvcc."""
    from torch.utils import cpp_extension  # here, as it reads CUDA_HOME at import, and setup.py sets that

    before = os.environ.get("TORCH_CUDA_ARCH_LIST")
    os.environ["TORCH_CUDA_ARCH_LIST"] = chosen
    try:
        flags = " ".join(cpp_extension._get_cuda_arch_flags())
    finally:
        if before is None:
            del os.environ["TORCH_CUDA_ARCH_LIST"]
        else:
            os.environ["TORCH_CUDA_ARCH_LIST"] = before
    ptx = set(re.findall(r"code=compute_(\w+)", flags))
    codes = sorted(set(re.findall(r"arch=compute_((\d+)\w?)", flags)), key=lambda code: (int(code[1]), code[0]))
    return [f"{number[:-1]}.{code[len(number) - 1 :]}" + "+PTX" * (code in ptx) for code, number in codes]


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
    raw = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=raw).parse_args()
    if torch.version.cuda is None or left_out():
        print(f"{left_out() or f'torch {torch.__version__} has no CUDA'}: no toolkit is needed.")
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
