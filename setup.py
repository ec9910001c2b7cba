"""Builds the libraries in torch_reduce/:

libtorch_reduce_core.so    kernels, plans, the CPU backend and the ladder: no torch and no Python
libtorch_reduce_2_11.so    the glue: the operators, registered with one version of torch, in C++; no Python
_entry_2_11.so             a short way from Python to the operators, which is only there to save time

The glue is built for the torch that is there. GPUREDUCE_TORCHES="2.11.0 2.15.0" names others, whose headers
tools/torches.py has fetched.

Environment: GPUREDUCE_CUDA=0, or torch's USE_CUDA=0, leaves CUDA out (where both are set, the former decides);
TORCH_CUDA_ARCH_LIST ("9.0 10.0+PTX", "Hopper"), CUDA_HOME, CXX, CC and MAX_JOBS are as in torch;
GPUREDUCE_TOOLKIT=pypi is explained in tools/toolkit.py; VERBOSE=1 shows every command, not only one that fails;
GPUREDUCE_SANITIZE="address,undefined" has g++ check the host's code at run time: `make sanitize` builds so.
"""

import fcntl
import hashlib
import json
import logging
import os
import platform
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import time
import types
from glob import glob
from pathlib import Path

import setuptools
from setuptools.command.build import build
from setuptools.command.build_py import build_py
from setuptools.errors import ExecError

RANGE = "2.11 to 2.15"
if int(setuptools.__version__.split(".")[0]) < 77:
    sys.exit(
        f"torch_reduce: building needs setuptools 77 or newer, and this is {setuptools.__version__}: "
        'run `pip install "setuptools>=77"`.'
    )
try:
    import torch
except ModuleNotFoundError:
    sys.exit(
        "torch_reduce: it is built for the torch that is there, and this Python sees none. If there is one, pip hides "
        "it from the build: run `pip install --no-build-isolation .`, with setuptools 77 or newer and ninja installed. "
        f"Otherwise install torch first: {RANGE}."
    )

ROOT = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "torch_reduce" / "ladder")]
import _lessons as lessons  # noqa: E402
import toolkit  # noqa: E402
import torches  # noqa: E402


def plain(folder):
    """`folder`, or a link to it if its path has characters that ninja's files, shells or nvcc's lists take apart.

    The link's place depends on `folder` alone, and it stays: the next build finds the same paths, and so its objects.
    """
    safe = "[A-Za-z0-9_./+-]+"
    if re.fullmatch(safe, str(folder)):
        return str(folder)
    temporary = tempfile.gettempdir()
    links = Path(temporary if re.fullmatch(safe, temporary) else "/tmp", f"torch_reduce-{os.getuid()}")
    links.mkdir(mode=0o700, exist_ok=True)
    if links.is_symlink() or links.stat().st_uid != os.getuid():
        sys.exit(f"torch_reduce: {links} belongs to another user: set TMPDIR to a folder of your own.")
    link = links / hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    if not link.is_symlink() or os.readlink(link) != str(folder):
        new = link.with_suffix(f".{os.getpid()}")
        new.symlink_to(folder)
        new.replace(link)
    return str(link)


CUDA = torch.version.cuda is not None and not toolkit.left_out()
CUDA_HOME = toolkit.find() if CUDA else None
if CUDA_HOME:
    os.environ["CUDA_HOME"] = plain(CUDA_HOME)  # torch.utils.cpp_extension reads it once, at import

from torch.utils import cpp_extension  # noqa: E402

RELEASE = torch.__version__.split("+")[0]
if tuple(map(int, RELEASE.split(".")[:2])) < (2, 11):
    sys.exit(f"torch_reduce: it needs torch {RANGE}, and this is torch {torch.__version__}.")
RELEASES = os.environ.get("GPUREDUCE_TORCHES", "").split() or [RELEASE]
DEVICE = f"cuda-{torch.version.cuda}" if CUDA else "cpu"
BUILD = "build"
LINUX = platform.system() == "Linux"
CORE_TEMP = f"core-{DEVICE}"
SOURCE = plain(ROOT)
# A Python without the GIL has no limited API, and would bring the GIL back for a module that does not say it can do
# without. So it gets no _entry, and a wheel of its own.
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

# The contract fixes bits: no contraction to fused multiply-add, no flushing to zero, no fast math, on either side.
# No path of this machine gets into the library: an error names csrc/core/torch/ops.cpp, and no folder above it.
HOST_FLAGS = ["-ffp-contract=off", "-fvisibility=hidden"]
HOST_FLAGS += [f"-ffile-prefix-map={SOURCE}/="]
# -O2: the CPU's kernels are as fast as with -O3, in two thirds of the code, if GCC vectorizes as it does there (below).
# -fwrapv: sums of integers wrap, as torch's do. Most Pythons bring the flag with theirs, and none has to.
CXX_FLAGS = ["-O2", "-g0", "-Wall", "-fwrapv", "-fvisibility-inlines-hidden", *HOST_FLAGS]
# Host code takes about as long with -Os, and a third less space. What every plain sum runs through keeps -O2.
BUILT_FOR_SPEED = ("core/torch/cuda", "core/torch/ops", "core/torch/results", "core/torch/threads")
# All others are built for size. The files of a line are compiled as one, since torch's headers take most of a file's
# time. So no name may mean two things in them.
TOGETHER = (
    ("core/torch/autograd", "core/torch/gradient", "core/torch/applied"),
    ("rows/torch", "rows/torch_steps", "rows/torch_losses", "rows/torch_quantize"),
    ("segments/torch", "segments/torch_softmax", "foreach/torch"),
    ("indexed/torch", "indexed/torch_index", "indexed/torch_gathered", "segments/torch_numbered"),
    ("exact/torch", "exact/torch_segment", "pairs/torch_exponents"),
    ("pairs/torch_weighted", "pairs/torch_variance", "pairs/torch_indices", "core/torch/norm"),
    ("replace/torch", "replace/torch_indexed", "core/torch/layouts"),
    (
        "core/torch/family",
        "core/torch/table",
        "core/torch/inspect",
        "core/torch/explain",
        "ranks/torch",
        "ranks/torch_nodes",
        "ranks/torch_symmetric",
        "core/torch/errors",
    ),
)
# -Os: the host's code, which runs once a launch, takes as long as with -O2, and is a quarter smaller; device code does
# not differ.
NVCC_FLAGS = ["--fmad=false", "--ftz=false", "-Xfatbin=-compress-all", "-Xcompiler=" + ",".join(["-Os", *HOST_FLAGS])]
# A thread with a stack of 64 KiB must be able to sum, so a larger frame is an error. (Clang only warns of it.)
CXX_FLAGS += ["-Wframe-larger-than=8192", "-Werror=frame-larger-than=8192"]
if CUDA and int(torch.version.cuda.split(".")[0]) >= 13:
    # CUDA 13's own format, packed more tightly, so that a wheel stays small.
    NVCC_FLAGS.append("--compress-mode=size")
# The names of thousands of templates are a seventh of the library, and nobody needs those that it does not export; nor
# code that nothing calls.
LINK_FLAGS = ["-Wl,-s", "-Wl,--gc-sections"]
if SANITIZE := os.environ.get("GPUREDUCE_SANITIZE"):
    # An error ends the process. Frames are larger, and names are kept for the traces. vptr would need torch's type
    # information, which torch hides.
    CHECKS = [f"-fsanitize={SANITIZE}", "-fno-sanitize=vptr", "-fno-sanitize-recover=all"]
    CXX_FLAGS += [*CHECKS, "-O1", "-g1", "-fno-omit-frame-pointer", "-Wno-frame-larger-than"]
    LINK_FLAGS = [*CHECKS, "-Wl,--gc-sections"]


def say(text):
    print(f"torch_reduce: {text}", file=sys.stderr, flush=True)


def without_ptx(text):
    """A build.ninja that compiles the files in csrc's folders named native to machine code alone.

    PTX of all kernels is 40% of the library. It is for GPUs that the machine code does not fit. There, other kernels
    take what these would, with the same results, but slower. Where nvcc is told of no machine code, PTX stays.
    """
    flags = re.search(r"^cuda_post_cflags = (.*)$", text, flags=re.MULTILINE)
    if not flags or "code=sm_" not in flags[1]:
        return text
    native = re.sub(r" -gencode=arch=compute_\w+,code=compute_\w+", "", flags[1])
    text = f"{text[: flags.end()]}\nnative_post_cflags = {native}{text[flags.end() :]}"
    build = rf"^(build .*: cuda_compile {re.escape(SOURCE)}/csrc/(?:\w+/)+native/.*)$"
    return re.sub(build, r"\1\n  cuda_post_cflags = $native_post_cflags", text, flags=re.MULTILINE)


def run_ninja(command, **options):
    """subprocess.run for torch, whose flags are one list for all files: those that no plain call runs through get -Os.

    The kernels in folders named native are compiled without PTX (without_ptx). And ninja prints a file's name where
    torch asks for its command, a kilobyte of flags, and how much time is left. Where a command fails, ninja shows it.
    """
    if command[:2] == ["ninja", "-v"]:
        rules = Path(options["cwd"], "build.ninja")
        glue = rf"csrc/(?!(?:{'|'.join(BUILT_FOR_SPEED)})\.)(?:core/torch/|\w+/torch)\w*"
        files = rf"{glue}|csrc/ladder/ops|{BUILD}/{CORE_TEMP}/glue_\w+"
        small = rf"^(build .*: compile {re.escape(SOURCE)}/(?:{files})\.cpp)$"
        text = re.sub(small, r"\1\n  post_cflags = $post_cflags -Os", rules.read_text(), flags=re.MULTILINE)
        if not os.environ.get("VERBOSE"):
            command = ["ninja", *command[2:]]
            text = re.sub(r"^(rule \w+)$", r"\1\n  description = $file", text, flags=re.MULTILINE)
            name = rf"^(build .*: \w+ (?:{re.escape(SOURCE)}/)?(.*))$"
            text = re.sub(name, r"\1\n  file = \2", text, flags=re.MULTILINE)
        rules.write_text(without_ptx(text))
        if tuple(map(int, output("ninja", "--version").split(".")[:2])) >= (1, 12):  # earlier ones cannot estimate
            given = options.get("env") or os.environ
            options["env"] = {"NINJA_STATUS": "[%f/%t  %w, about %W left] ", **given}
    return subprocess.run(command, **options)


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def compiler():
    """The words of the C++ compiler's command: more than one if it has a launcher (ccache g++) or options."""
    words = shlex.split(cpp_extension.get_cxx_compiler())
    try:
        output(*words, "--version")
    except (IndexError, OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"torch_reduce: CXX={os.environ.get('CXX', 'c++')!r} does not run: {error}. Name a C++ compiler.")
    if len(words) > 1:
        # torch would judge the launcher's name and version; nvcc checks its own host compiler.
        os.environ.setdefault("TORCH_DONT_CHECK_COMPILER_ABI", "1")
    return words


def nvcc_host():
    """Flags that name nvcc's host compiler where CC has several words, which torch would take for one file name.

    A launcher is taken out of CC: torch would pass the compiler after it to every g++, and only C++ is compiled here.
    """
    words = shlex.split(os.environ.get("CC", ""))
    kept = [word for word in words if Path(word).name not in ("ccache", "sccache", "distcc", "icecc")]
    if not kept:
        os.environ.pop("CC", None)
        return []
    os.environ["CC"] = shlex.join(kept)
    return ["-ccbin", kept[0]]


def cudart_link():
    """A folder with a libcudart.so to link, for toolkits from PyPI: they have the library, but not under that name."""
    if glob(f"{CUDA_HOME}/lib*/libcudart.so") or not (named := sorted(glob(f"{CUDA_HOME}/lib/libcudart.so.*"))):
        return []
    link = ROOT / BUILD / CORE_TEMP / "lib" / "libcudart.so"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(named[-1])
    return [str(link.parent)]


def write(file, text):
    """Writes a source, only when it has changed."""
    path = Path(file)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


LADDER_LESSONS = f"{BUILD}/{CORE_TEMP}/ladder_lessons.cpp"


def write_ladder_lessons():
    """A source with what the heads of csrc/ladder's files say."""
    write(LADDER_LESSONS, lessons.source())


PLAN_DATA = f"{BUILD}/{CORE_TEMP}/plan_data.cpp"


def write_plan_data():
    """A source with what was measured on each GPU: the files of csrc/core/plan/data."""
    files = "".join(f'#include "{SOURCE}/{file}"\n    ,\n' for file in sorted(glob("csrc/core/plan/data/*.inc")))
    text = "// made by setup.py\nnamespace gpureduce {\nextern const char* const kKnownChoices[];\n"
    write(PLAN_DATA, text + f"const char* const kKnownChoices[] = {{\n{files}nullptr}};\n}}\n")


CORE = "libtorch_reduce_core"
ENTRY = "csrc/core/torch/python/entry.cpp"  # a library of its own, which knows Python
DEVICES = "csrc/core/torch/cuda.cpp"  # needs the toolkit


def includes_torch(source):
    """Whether a source includes torch's headers, itself or through ours: then it belongs to the glue."""
    waiting, read = [source], set()
    while waiting:
        file = os.path.normpath(waiting.pop())
        if file in read or not os.path.exists(file):
            continue
        read.add(file)
        text = Path(file).read_text(encoding="utf-8")
        if re.search(r'^ *#include ["<](?:ATen|c10|torch)/', text, re.MULTILINE):
            return True
        ours = re.findall(r'^ *#include "(.+)"', text, re.MULTILINE)
        waiting += [os.path.join(os.path.dirname(file), name) for name in ours]
    return False


def sources():
    """The sources of the core and of the glue."""
    every = {*glob("csrc/**/*.cpp", recursive=True)} - {ENTRY}
    glue = {source for source in every if includes_torch(source)}
    core = every - glue | {LADDER_LESSONS, PLAN_DATA}
    if CUDA_HOME:
        core.update(glob("csrc/**/*.cu", recursive=True))
    else:
        glue.discard(DEVICES)
    return core, glue


def glue_units(glue):
    """{a source that setup.py makes: the files that it includes}, for the lines of TOGETHER."""
    made = {}
    for names in TOGETHER:
        files = [f"csrc/{name}.cpp" for name in names if f"csrc/{name}.cpp" in glue]
        if len(files) > 1:
            made[f"{BUILD}/{CORE_TEMP}/glue_{names[0].replace('/', '_')}.cpp"] = files
    return made


def write_glue_units():
    for unit, files in glue_units(sources()[1]).items():
        write(unit, "".join(f'#include "{SOURCE}/{file}"\n' for file in files))


def extension(name, sources, temp, flags, links, headers=(), folders=(), cuda=True):
    """A library; `temp` is a folder for its objects. Each torch has its own, so objects are never mixed."""
    toolkit = ("cuda", False) if cuda and CUDA_HOME else None  # False: without torch's own folders
    made = setuptools.Extension(
        f"torch_reduce.{name}",
        sorted(sources),
        depends=sorted(glob("csrc/**/*.*", recursive=True)),
        include_dirs=[*headers, *(cpp_extension.include_paths(*toolkit) if toolkit else [])],
        library_dirs=[*folders, *(cpp_extension.library_paths(*toolkit) if toolkit else [])],
        libraries=["cudart"] if toolkit else [],
        extra_compile_args={"cxx": [*CXX_FLAGS, *flags], "nvcc": [*NVCC_FLAGS, *nvcc_host(), "-std=c++17"]},
        extra_link_args=[word for word in LINK_FLAGS + links if LINUX or word.startswith("-l")],
        define_macros=[("GPUREDUCE_WITH_CUDA", None)] if toolkit else [],
        language="c++",
        py_limited_api=True,  # no libpython, and Py_LIMITED_API
    )
    made.temp, made.calls_core = temp, False
    return made


def extensions():
    """The core, and for each torch its glue and its entry."""
    core, glue = sources()
    units = glue_units(glue)
    glue = glue.difference(*units.values()).union(units)
    made = [extension(CORE, core, CORE_TEMP, ["-std=c++17"], links=[f"-Wl,-soname,{CORE}.so"])]
    for release in RELEASES:
        ours = release == RELEASE and not torches.CROSS
        folder = Path(torch.__file__).parent if ours else torches.folder(release)
        if not (folder / "include").exists():
            sys.exit(f"torch_reduce: there are no headers of torch {release}: run `python tools/torches.py {release}`.")
        headers = [folder / "include", folder / "include/torch/csrc/api/include"]
        options = dict(temp=f"torch-{release}-{DEVICE}", folders=[plain(folder / "lib")])
        options["headers"] = [f"{SOURCE}/csrc/missing", *map(plain, headers)]  # the first: what torch's wheels lack
        options["flags"] = [torches.standard(folder), f"-ffile-prefix-map={plain(folder)}/=torch/"]
        if LINUX:
            # Or at::parallel_for is a plain loop. Nothing is linked: torch brings its OpenMP, and two would fight.
            options["flags"].append("-fopenmp")
        # --no-as-needed: libraries from tools/torches.py have no symbols. $ORIGIN: the core lies beside the glue.
        links = ["-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN", "-lc10", "-ltorch_cpu"]
        of_cuda = ["-lc10_cuda", "-ltorch_cuda"] if CUDA_HOME else []
        name = "_".join(release.split(".")[:2])
        made.append(extension(f"libtorch_reduce_{name}", glue, links=links + of_cuda, **options))
        made[-1].calls_core = True
        if not FREE_THREADED:
            links = [*links, "-ltorch_python"]
            made.append(extension(f"_entry_{name}", [ENTRY], links=links, cuda=False, **options))
    return made


def requirement():
    """The torch to install beside a wheel: torch keeps its C++ interface within a minor release."""
    minors = sorted(tuple(map(int, release.split(".")[:2])) for release in RELEASES)
    if len(minors) == 1:
        return f"torch=={RELEASES[0]}" if torches.is_early(RELEASES[0]) else "torch=={}.{}.*".format(*minors[0])
    (major, first), (_, last) = minors[0], minors[-1]
    gaps = "".join(f",!={major}.{minor}.*" for minor in range(first, last) if (major, minor) not in minors)
    return f"torch>={major}.{first},<{major}.{last + 1}{gaps}"


LOCK = []


def wait_for_others():
    """Lets one process at a time build in this folder: this one, until it ends."""
    if LOCK:
        return
    Path("build").mkdir(exist_ok=True)
    LOCK.append(open("build/lock", "w"))  # noqa: SIM115 (closing it would unlock it)
    try:
        fcntl.lockf(LOCK[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        say(f"another build in {ROOT} is running: waiting until it is done")
        fcntl.lockf(LOCK[0], fcntl.LOCK_EX)


class Whole(build):
    """What pip and bdist_wheel run: all of it waits for others, as it copies Python's files first."""

    def run(self):
        wait_for_others()
        super().run()


class Python(build_py):
    """Puts the rungs' sources beside Python's files, for `ladder show` and the emulator, and what they include: a clone
    has them in csrc/."""

    def run(self):
        super().run()
        if self.editable_mode:
            return
        csrc, to = ROOT / "csrc", Path(self.build_lib, "torch_reduce", "ladder", "sources")
        for source in sorted([*csrc.glob("ladder/*.*"), *csrc.glob("core/numeric/*.h"), *csrc.glob("core/order.h")]):
            copy = to / source.relative_to(csrc)
            self.mkpath(str(copy.parent))
            self.copy_file(str(source), str(copy))


class Build(cpp_extension.BuildExtension):
    """Compiles with ninja (only what changed), and writes beside the library what it was built for."""

    def finalize_options(self):
        self.no_python_abi_suffix = True  # plain names: nothing in the libraries depends on a Python version
        self.build_temp = self.build_temp or BUILD
        super().finalize_options()

    def run(self):
        if CUDA and not CUDA_HOME:
            sys.exit(
                f"torch_reduce: torch {torch.__version__} has CUDA {torch.version.cuda}, but there is no nvcc of that "
                "major version: run `python tools/toolkit.py` to install one, or set CUDA_HOME, or GPUREDUCE_CUDA=0 to "
                "build for the CPU alone."
            )
        begin = time.time()
        cxx = compiler()
        facts = dict(torch=RELEASES, cuda=None, nvcc=None, architectures=[])
        facts["compiler"] = output(*cxx, "--version").splitlines()[0]
        if CUDA:
            try:
                chosen, why, numbers = toolkit.architectures(CUDA_HOME)
            except ValueError as error:
                sys.exit(f"torch_reduce: {error}")
            os.environ["TORCH_CUDA_ARCH_LIST"] = chosen
            facts.update(cuda=torch.version.cuda, nvcc=toolkit.version(CUDA_HOME), architectures=numbers)
            say(f"building for torch {', '.join(RELEASES)} with nvcc {facts['nvcc']} of {CUDA_HOME}")
            say(f"architectures {' '.join(numbers)} ({why})")
        else:
            why = toolkit.left_out() or f"torch {torch.__version__} has none"
            say("*" * 90)
            say(f"*** A build for the CPU alone, without CUDA ({why}): it will refuse CUDA tensors.")
            say("*" * 90)
        if FREE_THREADED:
            say("this Python has no GIL: built without _entry, so that calls from Python take longer")
        wait_for_others()
        write_ladder_lessons()
        write_plan_data()
        write_glue_units()
        # Clang's `#pragma omp` calls another OpenMP than torch's, so tools/clang has a parallel_for without it.
        clang = "__clang__" in output(*cxx, "-dM", "-E", "-x", "c++", os.devnull)
        if not clang:
            # GCC vectorizes as with -O3, and loops with conditions, too: it may compute what a condition then drops, as
            # nobody asks which operations overflowed. No gaps before jumps' targets: a fortieth of the host's code.
            flags = ["-fvect-cost-model=dynamic", "-fno-trapping-math", "-fno-align-jumps", "-fno-align-labels"]
            for each in self.extensions:
                each.extra_compile_args["cxx"] += flags
        serial = clang and LINUX
        self.build_with_plain_paths([f"{SOURCE}/tools/clang"] if serial else [], cudart_link() if CUDA else [])
        for each in self.extensions:
            library = Path(self.get_ext_fullpath(each.name))
            say(f"built {library} ({library.stat().st_size / 2**20:.1f} MiB)")
        record = library.with_name("_build.json")
        record.write_text(json.dumps(facts, indent=2) + "\n")
        os.utime(record, (begin, begin))  # what is edited during a build is newer, and the next one takes it up

    def build_extension(self, extension):
        cpp_extension.subprocess = types.SimpleNamespace(**{**vars(subprocess), "run": run_ninja})
        if not os.environ.get("VERBOSE"):
            self.compiler.spawn = self.link
        self.build_temp = f"{self.folder}/{extension.temp}"
        Path(self.build_temp).mkdir(exist_ok=True)
        if extension.calls_core:
            extension.extra_objects = [self.get_ext_fullpath(f"torch_reduce.{CORE}")]
        super().build_extension(extension)

    def link(self, command, **options):
        """Runs the linker, and shows its command, which names every object, only if it fails."""
        logging.disable(logging.INFO)
        try:
            type(self.compiler).spawn(self.compiler, command, **options)
        except ExecError as error:
            raise ExecError(f"{error}:\n{shlex.join(command)}") from None
        finally:
            logging.disable(logging.NOTSET)

    def build_with_plain_paths(self, include_dirs, library_dirs):
        """Sources, objects and headers by paths that every tool can read; a source distribution keeps the real ones."""
        Path(self.build_temp).mkdir(parents=True, exist_ok=True)
        self.folder = plain(Path(self.build_temp).absolute())
        self.include_dirs = [plain(folder) for folder in self.include_dirs]
        real = [each.sources for each in self.extensions]
        for each in self.extensions:
            each.include_dirs = include_dirs + [plain(folder) for folder in each.include_dirs]
            each.library_dirs = each.library_dirs + library_dirs
            if str(ROOT) != SOURCE:
                each.sources = [f"{SOURCE}/{source}" for source in each.sources]
        super().run()
        for each, sources in zip(self.extensions, real, strict=True):
            each.sources = sources


def main():
    # So that ninja is found in this Python's environment, even where that is not activated.
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    cxx = os.environ.get("CXX", "").split()
    if cxx[:1] == ["ccache"] and hasattr(cpp_extension, "_wrap_compiler"):  # this torch puts ccache before it by itself
        os.environ["CXX"] = " ".join(cxx[1:])
    wheel = {} if FREE_THREADED else {"py_limited_api": "cp310"}  # one wheel for every Python from 3.10 on
    setuptools.setup(
        ext_modules=extensions(),
        cmdclass={"build": Whole, "build_py": Python, "build_ext": Build},
        options={"bdist_wheel": wheel},
        install_requires=[requirement()],
    )


if __name__ == "__main__":
    main()
