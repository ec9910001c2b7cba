"""Installs a torch beside this Python; Makefile's `make test` calls it for .venv.

    python tools/install_torch.py 2.11.0 --group build --group test
    python tools/install_torch.py 2.11.0 --cpu --index https://download.pytorch.org/whl/cpu

With --cpu it takes torch's wheel without CUDA, a fraction of the size, where an index has one, and else the usual one.
Without --index it also looks in PyTorch's own index then, if that answers. What it does not know, such as --group, goes
to `pip install`.
"""

import argparse
import importlib.metadata
import subprocess
import sys
import urllib.request

PYTORCH = "https://download.pytorch.org/whl/cpu"


def answers(index):
    """Whether an index is there: pip would try a missing one again and again, for minutes."""
    try:
        urllib.request.urlopen(f"{index}/torch/", timeout=5).close()
    except OSError:
        return False
    return True


def install(version, cpu, index, more):
    """Runs pip until it has installed a torch that serves."""
    pip = [sys.executable, "-m", "pip"]
    try:
        there = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        there = ""
    if cpu and not index and there.partition("+")[0] != version and answers(PYTORCH):
        index = PYTORCH
    get = [*pip, "install", *(["--extra-index-url", index] if index else []), *more]
    if there.endswith("+cpu") and not cpu:  # which pip would take for the one with CUDA
        subprocess.run([*pip, "uninstall", "--yes", "torch"], check=True)
    if cpu and there.partition("+")[0] != version:
        if subprocess.run([*get, f"torch=={version}+cpu"], stderr=subprocess.DEVNULL).returncode == 0:
            return
        print(
            f"No index of pip has torch {version}+cpu: taking the usual wheel, which may bring CUDA, of 5 GB. "
            "`make test TORCH_INDEX=URL` names an index that has one.",
            flush=True,
        )
    subprocess.run([*get, f"torch=={version}"], check=True)


def main():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("version", help="such as 2.11.0")
    parser.add_argument("--cpu", action="store_true", help="without CUDA, where an index has such a wheel")
    parser.add_argument("--index", metavar="URL", help="an index beside those that pip is configured for")
    arguments, more = parser.parse_known_args()
    try:
        install(arguments.version, arguments.cpu, arguments.index, more)
    except subprocess.CalledProcessError as error:  # pip has said why
        sys.exit(error.returncode)


if __name__ == "__main__":
    main()
