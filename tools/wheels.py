"""Builds one wheel for several releases of torch, tries it beside each of them, and says what is in it.

    python tools/wheels.py build 2.11.0 2.15.0             with CUDA, for TORCH_CUDA_ARCH_LIST or the usual GPUs
    python tools/wheels.py build --cpu 2.11.0 2.15.0       for the CPU alone
    python tools/wheels.py try dist/*.whl 2.11.0 2.15.0    in new environments, without a compiler
    python tools/wheels.py sizes dist/*.whl                bytes of each library, and of each GPU architecture in it

`make wheels` and `make test-wheels` call it. Building needs auditwheel and patchelf.
"""

import argparse
import collections
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

import torches

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
MOST = {"cpu": 6 * 2**20, "cuda": 60 * 2**20}  # bytes of a wheel
ARCHITECTURES = "8.0 9.0 10.0 12.0+PTX"
# auditwheel leaves these out of the wheel: torch has loaded them before ours. The CUDA runtime comes with torch.
FROM_TORCH = [f"lib{name}.so" for name in torches.LIBRARIES] + ["libcudart.so.12", "libcudart.so.13"]
TESTS = [f"core/test_{name}.py" for name in ("bits", "selfcheck", "entry", "autograd")]


def build(releases, cpu):
    """Builds a wheel into dist/."""
    import torch

    there = torch.__version__.split("+")[0]
    for release in releases:
        if release != there or torches.CROSS:
            torches.fetch(release)
    env = dict(os.environ, GPUREDUCE_TORCHES=" ".join(releases), GPUREDUCE_CUDA="0" if cpu else "1")
    env.setdefault("TORCH_CUDA_ARCH_LIST", ARCHITECTURES)
    for stale in [*ROOT.glob("build/lib.*"), *ROOT.glob("build/bdist.*")]:
        shutil.rmtree(stale)
    with tempfile.TemporaryDirectory() as new:
        label = ["egg_info", "--tag-build=+cpu"] if cpu else []  # as torch names its own wheels
        setup = [sys.executable, "setup.py", "--quiet", *label, "bdist_wheel", "--dist-dir", new]
        subprocess.run(setup, cwd=ROOT, env=env, check=True)
        (wheel,) = Path(new).glob("*.whl")
        excluded = [word for name in FROM_TORCH for word in ("--exclude", name)]
        env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])  # patchelf
        repair = [sys.executable, "-m", "auditwheel", "repair", "--zip-compression-level", "9", *excluded]
        subprocess.run([*repair, "--wheel-dir", DIST, wheel], env=env, check=True)
    wheel = max(DIST.glob("*.whl"), key=lambda path: path.stat().st_mtime)
    size, most = wheel.stat().st_size, MOST["cpu" if cpu else "cuda"]
    print(f"{wheel}: {size / 2**20:.1f} MiB")
    if size > most:
        sys.exit(f"That is more than {most / 2**20:.0f} MiB: `python tools/wheels.py sizes {wheel}` lists the parts.")


def attempt(wheel, release, tests):
    """Installs a wheel beside a torch, and runs the self-check and tests where there is no compiler."""
    with tempfile.TemporaryDirectory() as new:
        venv.create(new, with_pip=True)
        python = Path(new, "bin", "python")
        packages = [f"torch=={release}", "numpy", "pytest", "hypothesis", "expecttest", wheel]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        unwanted = ("PYTHONPATH", "CXX", "CC", "CUDA_HOME")
        env = {name: value for name, value in os.environ.items() if name not in unwanted} | {"PATH": f"{new}/bin"}

        def run(*command):
            subprocess.run([python, *command], cwd=new, env=env, check=True)

        print(f"==> {Path(wheel).name} beside torch {release}", flush=True)
        begin = time.monotonic()
        run("-c", "import torch, torch_reduce as r; print(r.__file__, r.sum(torch.ones(7, 5), 1).tolist())")
        print(f"first result after {time.monotonic() - begin:.1f} s", flush=True)
        run("-m", "torch_reduce")
        chosen = [f"{ROOT}/tests/{name}" for name in tests]
        run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not docs", "-k", "cpu", *chosen)


def fatbins(data):
    """The parts of a library's device code: the target ("sm_90", "PTX 90"), and the bytes in the file."""
    magic = bytes.fromhex("50ed55ba0100")
    at = data.find(magic)
    while at >= 0:
        (header,) = struct.unpack_from("<H", data, at + 6)
        (size,) = struct.unpack_from("<Q", data, at + 8)
        part, end = at + header, at + header + size
        while part + 32 <= end <= len(data):
            kind, _, head, body = struct.unpack_from("<HHIQ", data, part)
            if kind not in (1, 2) or head < 32:
                break
            (architecture,) = struct.unpack_from("<I", data, part + 28)
            yield ("PTX {}" if kind == 1 else "sm_{}").format(architecture), head + body
            part += head + body
        at = data.find(magic, max(end, at + 1) if end <= len(data) else at + 1)


def sizes(wheel):
    """Prints the libraries of a wheel, and each architecture's part of them, as compressed by nvcc."""
    with zipfile.ZipFile(wheel) as archive:
        print(f"{Path(wheel).name}: {Path(wheel).stat().st_size / 2**20:.2f} MiB")
        for each in sorted(archive.infolist(), key=lambda each: -each.compress_size):
            if not each.filename.endswith(".so"):
                continue
            print(f"{each.compress_size / 2**20:8.2f} MiB of {each.file_size / 2**20:7.2f}   {each.filename}")
            parts = collections.Counter()
            for name, size in fatbins(archive.read(each)):
                parts[name] += size
            for name, size in sorted(parts.items()):
                print(f"{'':12}{size / 2**20:8.2f} MiB   {name}")


def main():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    actions = parser.add_subparsers(dest="action", required=True)
    building = actions.add_parser("build")
    building.add_argument("--cpu", action="store_true", help="without CUDA")
    trying = actions.add_parser("try")
    trying.add_argument("--tests", nargs="+", default=TESTS, help="files of tests/")
    for each in (trying, actions.add_parser("sizes")):
        each.add_argument("wheels", nargs="+", help="one or more, and for `try` the releases of torch")
    building.add_argument("releases", nargs="+", help="of torch")
    arguments = parser.parse_args()
    if arguments.action == "build":
        build(arguments.releases, arguments.cpu)
    elif arguments.action == "sizes":
        for wheel in arguments.wheels:
            sizes(wheel)
    else:
        wheels = [word for word in arguments.wheels if word.endswith(".whl")]
        for release in [word for word in arguments.wheels if not word.endswith(".whl")]:
            for wheel in wheels:
                attempt(wheel, release, arguments.tests)


if __name__ == "__main__":
    main()
