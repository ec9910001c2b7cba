"""Builds torch_reduce/libtorch_reduce.so: the operators, registered with torch in C++, and no Python. And
torch_reduce/_entry.so, a short way from Python to them, which is only there to save time.

Environment: GPUREDUCE_CUDA=0 leaves CUDA out; TORCH_CUDA_ARCH_LIST ("9.0 10.0+PTX"), CUDA_HOME and MAX_JOBS are as in
torch; GPUREDUCE_TOOLKIT=pypi is explained in tools/toolkit.py.
"""

import json
import os
import platform
import re
import subprocess
import sys
from glob import glob
from pathlib import Path

import torch
from setuptools import setup

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))
import lessons  # noqa: E402
import toolkit  # noqa: E402

CUDA = torch.version.cuda is not None and os.environ.get("GPUREDUCE_CUDA", "1") != "0"
CUDA_HOME = toolkit.find() if CUDA else None
if CUDA_HOME:
    os.environ["CUDA_HOME"] = CUDA_HOME  # torch.utils.cpp_extension reads it once, at import

from torch.utils import cpp_extension  # noqa: E402

RELEASE = torch.__version__.split("+")[0]
# Objects of one torch never meet those of another, and switching back finds them again.
BUILD_TEMP = f"build/torch-{RELEASE}-" + (f"cuda-{torch.version.cuda}" if CUDA else "cpu")

# The contract fixes bits: no contraction to fused multiply-add, no flushing to zero, no fast math, on either side.
# No path of this machine gets into the library: an error of csrc/ops.cpp says just that.
HOST_FLAGS = ["-ffp-contract=off", "-fvisibility=hidden"]
HOST_FLAGS += [f"-ffile-prefix-map={ROOT}/=", f"-ffile-prefix-map={Path(torch.__file__).parent}/=torch/"]
CXX_FLAGS = ["-O3", "-g0", "-Wall", "-fvisibility-inlines-hidden", *HOST_FLAGS]
NVCC_FLAGS = ["-O3", "--fmad=false", "--ftz=false", "-Xfatbin=-compress-all", "-Xcompiler=" + ",".join(HOST_FLAGS)]
# Threads with stacks of 64 KiB sum too: what is larger than this belongs on the heap. (Clang takes it for a warning.)
CXX_FLAGS += ["-Wframe-larger-than=8192", "-Werror=frame-larger-than=8192"]
if CUDA and int(torch.version.cuda.split(".")[0]) >= 13:
    # The format of CUDA 13's own choice, packed more tightly: for 9.0 with PTX 18.9 MB, and 28.5.
    NVCC_FLAGS.append("--compress-mode=size")
if platform.system() == "Linux":
    # Without it at::parallel_for is a plain loop. Nothing is linked: torch brings its OpenMP, and two would fight.
    CXX_FLAGS.append("-fopenmp")


def say(text):
    print(f"torch_reduce: {text}", file=sys.stderr, flush=True)


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def architectures():
    """What nvcc compiles for, and why. (torch raises an IndexError when it is not told and no GPU is visible.)"""
    chosen = os.environ.get("TORCH_CUDA_ARCH_LIST", "native")
    if chosen not in ("", "native"):
        return chosen, "TORCH_CUDA_ARCH_LIST"
    known = output(f"{CUDA_HOME}/bin/nvcc", "--list-gpu-code").split()
    visible = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    visible = sorted(c for c in visible if "sm_{}{}".format(*c) in known)
    if visible:
        return " ".join("{}.{}".format(*c) for c in visible) + "+PTX", "the visible GPUs"
    return "9.0+PTX", "the default, as no GPU that this nvcc knows is visible; set TORCH_CUDA_ARCH_LIST for others"


def cudart_link():
    """A folder with a libcudart.so to link, for toolkits from PyPI: they have the library, but not under that name."""
    if glob(f"{CUDA_HOME}/lib*/libcudart.so") or not (named := sorted(glob(f"{CUDA_HOME}/lib/libcudart.so.*"))):
        return []
    link = ROOT / BUILD_TEMP / "lib" / "libcudart.so"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(named[-1])
    return [str(link.parent)]


def ladder_lessons():
    """A source with what the heads of csrc/ladder's files say; written only when that has changed."""
    path, text = Path(BUILD_TEMP, "ladder_lessons.cpp"), lessons.source()
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return str(path)


def extension():
    sources = glob("csrc/*.cpp") + glob("csrc/cpu/*.cpp") + glob("csrc/ladder/*.cpp") + [ladder_lessons()]
    options = dict(
        depends=sorted(glob("csrc/**/*.*", recursive=True)),
        include_dirs=[str(ROOT / "csrc" / "missing")],  # what torch's headers need and its wheels lack
        py_limited_api=True,  # for torch: do not link torch_python
        extra_compile_args={"cxx": CXX_FLAGS, "nvcc": NVCC_FLAGS},
    )
    if not CUDA_HOME:
        return cpp_extension.CppExtension("torch_reduce.libtorch_reduce", sorted(sources), **options)
    sources += glob("csrc/cuda/*.cpp") + glob("csrc/cuda/*.cu") + glob("csrc/ladder/*.cu")
    options.update(define_macros=[("GPUREDUCE_WITH_CUDA", None)], library_dirs=cudart_link())
    return cpp_extension.CUDAExtension("torch_reduce.libtorch_reduce", sorted(sources), **options)


def entry():
    options = dict(py_limited_api=True, extra_compile_args={"cxx": CXX_FLAGS})  # the former sets Py_LIMITED_API
    return cpp_extension.CppExtension(
        "torch_reduce._entry", ["csrc/python/entry.cpp"], libraries=["torch_python"], **options
    )


class Build(cpp_extension.BuildExtension):
    """Compiles with ninja (only what changed), and writes beside the library what it was built for."""

    def finalize_options(self):
        self.no_python_abi_suffix = True  # libtorch_reduce.so: nothing in it depends on a Python version
        self.build_temp = self.build_temp or BUILD_TEMP
        super().finalize_options()

    def run(self):
        if CUDA and not CUDA_HOME:
            sys.exit(
                f"torch_reduce: torch {torch.__version__} has CUDA {torch.version.cuda}, but there is no nvcc of that "
                "major version: run `python tools/toolkit.py` to install one, or set CUDA_HOME, or GPUREDUCE_CUDA=0 to "
                "build for the CPU alone."
            )
        facts = dict(torch=RELEASE, cuda=None, nvcc=None, architectures=[])
        facts["compiler"] = output(cpp_extension.get_cxx_compiler(), "--version").splitlines()[0]
        if CUDA:
            chosen, why = architectures()
            os.environ["TORCH_CUDA_ARCH_LIST"] = chosen
            facts.update(cuda=torch.version.cuda, nvcc=toolkit.version(CUDA_HOME))
            facts["architectures"] = re.split("[ ;]+", chosen.strip(" ;"))
            say(f"building for torch {torch.__version__} with nvcc {facts['nvcc']} of {CUDA_HOME}")
            say(f"architectures {chosen} ({why})")
        else:
            why = "GPUREDUCE_CUDA=0" if torch.version.cuda else f"torch {torch.__version__} has none"
            say("*" * 90)
            say(f"*** A build for the CPU alone, without CUDA ({why}): it will refuse CUDA tensors.")
            say("*" * 90)
        super().run()
        library = Path(self.get_ext_fullpath("torch_reduce.libtorch_reduce"))
        library.with_name("_build.json").write_text(json.dumps(facts, indent=2) + "\n")
        say(f"built {library} ({library.stat().st_size / 2**20:.1f} MiB)")


setup(
    ext_modules=[extension(), entry()],
    cmdclass={"build_ext": Build},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},  # one wheel for every Python from 3.10 on
    install_requires=[f"torch=={RELEASE}"],  # torch's C++ interface changes with every release
)
