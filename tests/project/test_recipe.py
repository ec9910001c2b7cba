"""CONTRIBUTING.md's recipe for a new operation, followed word by word: built for the CPU alone, and tested.

The operation is ``fourths``, the sum of fourth powers. The copy of the tree stays in build/recipe, so that a second run
compiles only what has changed.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COPY = ROOT / "build" / "recipe"
TAKEN = ["csrc", "tools", "torch_reduce", "tests", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md"]

MAP = """
template <class T>
GPUREDUCE_HOST_DEVICE T fourth(T x) {
  if constexpr (std::is_integral_v<T>) {
    const uint64_t y = static_cast<uint64_t>(x) * static_cast<uint64_t>(x);
    return static_cast<T>(y * y);
  } else {
    return square(square(x));
  }
}
"""
OF_INTEGERS = """\
  if constexpr (kInteger)
    if (map == Map::fourth && accumulator == Accumulator::i64) return sum_exactly<In, Map::fourth>;
"""
ON_GPUS = """\
    if constexpr (std::is_arithmetic_v<Acc>)
      if (map == Map::fourth) return each<Acc>(numbers, [](Complex<Real> x) { return fourth(x.re); });
"""
GRADIENT = """\
    case Operation::fourths: {
      const at::Tensor by = widened(grad);
      const auto times = [&](const at::Tensor& x) { return apply(Formula::product, self, {x}, by.scalar_type()); };
      return apply(Formula::product, self, {times(times(4 * by))}, dtype);
    }
"""
# The second row has no kernel for integers: its calls must say so.
ROWS = """\
  X(fourths, real, fourth, sum, none, false)                          \\
  X(_unfinished, real, cube, sum, none, false)                        \\
"""
IN_MODEL = """\
    if kind == "fourths":
        (x,) = addends(stored, source, target, negate)
        with np.errstate(over="ignore"):
            return ordered_sum((x * x) * (x * x))
"""
REFERENCE = """\
def fourths(x, dims, keepdim):
    return (x if x.is_floating_point() else x.long()).pow(4).sum(dims, keepdim)


"""

# File, a text that stands in it once, what is put beside it, and on which side.
EDITS = [
    ("csrc/core/numeric/dtypes.h", "X(exponent)", " X(fourth)", "after"),
    ("csrc/core/numeric/map.h", "  return square(magnitude(x)) * magnitude(x);\n}\n", MAP, "after"),
    ("csrc/core/numeric/map.h", "X(magnitude) X(square) X(cube)", " X(fourth)", "after"),
    (
        "csrc/core/numeric/map.h",
        "return {cube(v)};\n",
        "    else if constexpr (map == Map::fourth) return {fourth(v)};\n",
        "after",
    ),
    (
        "csrc/core/numeric/map.h",
        "    case Map::magnitude: return sum || largest;\n",
        "    case Map::fourth: return real && (sum || to == Accumulator::i64);\n",
        "after",
    ),
    ("csrc/core/numeric/map.h", "         map == Map::exponent", " || map == Map::fourth", "after"),
    ("csrc/core/cpu/kernels.inl", "  if (map != Map::value) return nullptr;\n", OF_INTEGERS, "before"),
    (
        "csrc/core/cuda/load/converted.cuh",
        "    return each<Acc>(numbers, [](Complex<Real> x) -> Acc {\n",
        ON_GPUS,
        "before",
    ),
    ("csrc/core/operation.h", "  X(_amax, same,", ROWS, "before"),
    ("csrc/core/torch/autograd.cpp", "    case Operation::nansum: return ", GRADIENT, "before"),
    ("torch_reduce/_family.py", '"any", "count_nonzero", ', '"fourths", ', "after"),
    ("torch_reduce/_family.py", '_WITH_DTYPE = ("nansum", "prod"', ', "fourths"', "after"),
    ("torch_reduce/__init__.py", "import all, amax, amin, any, count_nonzero, ", "fourths, ", "after"),
    ("torch_reduce/__init__.py", "[all, amax, amin, any, count_nonzero, dot, ", "fourths, ", "after"),
    ("torch_reduce/__init__.py", '    "count_nonzero",\n', '    "fourths",\n', "after"),
    ("tests/model.py", '    if kind == "nansum":\n', IN_MODEL, "before"),
    ("tests/support.py", "FAMILY = [\n", REFERENCE, "before"),
    (
        "tests/support.py",
        '    Kin("nansum", ("", "")),\n',
        '    Kin("fourths", ("", ""), reference=fourths),\n',
        "after",
    ),
]
LIKE_NANSUM = ["torch_reduce/_family.py"]  # files with a function for each operation


def follow(tree):
    """Adds the operation to the tree."""
    texts = {file: (tree / file).read_text() for file in dict.fromkeys(file for file, *_ in EDITS)}
    for file, anchor, addition, side in EDITS:
        assert texts[file].count(anchor) == 1, f"{file}: {anchor!r} stands there {texts[file].count(anchor)} times"
        both = (anchor, addition) if side == "after" else (addition, anchor)
        texts[file] = texts[file].replace(anchor, "".join(both))
    for file in LIKE_NANSUM:
        (function,) = re.findall(r"\n\n\n(?:@[^\n]*\n)*def nansum\(.*?(?=\n\n\n|\Z)", texts[file], re.DOTALL)
        texts[file] = texts[file].rstrip() + function.replace("nansum", "fourths").rstrip() + "\n"
    for file, text in texts.items():
        (tree / file).write_text(text)


def refresh(tree):
    """Makes the tree a copy of this one, but for what was built in it; files keep their times."""
    for name in TAKEN:
        source, target = ROOT / name, tree / name
        if source.is_file():
            shutil.copy2(source, target)
            continue
        skipped = shutil.ignore_patterns("__pycache__", "*.so", "_build.json", ".hypothesis")
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=skipped)


def run(*command):
    environment = os.environ | {"GPUREDUCE_CUDA": "0", "PYTHONPATH": f"{COPY}:{COPY / 'tests'}"}
    result = subprocess.run(command, cwd=COPY, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, (result.stdout + result.stderr)[-5000:]
    return result.stdout


@pytest.fixture(scope="module")
def built(request):
    """The tree with the operation, built: once in CI, and elsewhere where it is asked for."""
    if not (request.config.getoption("--recipe") or os.environ.get("CI")):
        pytest.skip("builds the whole library for the CPU, which takes minutes: with --recipe, or in CI")
    COPY.mkdir(parents=True, exist_ok=True)
    before = {file: (COPY / file).read_text() for file, *_ in EDITS if (COPY / file).exists()}
    times = {file: (COPY / file).stat() for file in before}
    refresh(COPY)
    follow(COPY)
    for file, text in before.items():  # the same again is not compiled again
        if (COPY / file).read_text() == text:
            os.utime(COPY / file, ns=(times[file].st_atime_ns, times[file].st_mtime_ns))
    run(sys.executable, "setup.py", "--quiet", "build_ext", "--inplace")
    return COPY


def test_recipe(built):
    """The new row's tests pass: of all operations, of the package, of ranks; its pinned results are the model's."""
    sha = run(sys.executable, "tests/pinned.py").strip()
    pinned = built / "tests" / "pinned.py"
    pinned.write_text(re.sub(r'FAMILY_SHA = "\w+"', f'FAMILY_SHA = "{sha}"', pinned.read_text()))
    tests = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    table = ["bits", "batch_invariance", "layouts", "calls", "autograd", "meta", "vmap", "autocast"]
    others = ["compile/test_compile.py", "project/test_package.py", "ranks/test_distributed.py", "ranks/test_shard.py"]
    chosen = "fourths or pinned_file or every_operation or documented or (distributed and special_numbers)"
    files = [f"tests/{name}" for name in (*(f"core/test_{name}.py" for name in table), *others)]
    assert " passed" in run(*tests, "-k", f"({chosen}) and not cuda", *files)


UNFINISHED = """
import torch, torch_reduce
ops = torch.ops.gpureduce
print(ops._unfinished(torch.tensor([1.0, -2.0])).item())
for dtype in (torch.int32, torch.bool):
    try:
        ops._unfinished(torch.ones(3, dtype=dtype))
    except NotImplementedError as error:
        print(str(error).splitlines()[0])
"""


def test_missing_kernel(built):
    """What no kernel is compiled for is refused: the error names the operation, the map, the dtype, the accumulator."""
    floats, *integers = run(sys.executable, "-c", UNFINISHED).splitlines()
    assert float(floats) == 9.0
    words = "unfinished(): there is no kernel for the map cube of elements of dtype {} and the accumulator int64"
    assert integers == [words.format("Int"), words.format("Bool")]


def test_recipe_is_written_down():
    """CONTRIBUTING.md names every file that the test changes, and no other."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (recipe,) = re.findall(r"### An operation\n(.*?)\n#", text, re.DOTALL)
    named = set(re.findall(r"`((?:csrc|torch_reduce|tests)/[\w/.]+)`", recipe))
    formulas = {
        "csrc/core/numeric/apply.h",
        "csrc/core/torch/applied.cpp",
        "tests/core/test_gradients.py",
    }  # this operation needs no new one
    assert named == {file for file, *_ in EDITS} | {"tests/table.py", "tests/pinned.py"} | formulas
