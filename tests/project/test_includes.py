"""Which files of csrc/ include which. A folder is a capability; what it may include of the others is listed here."""

import functools
import os
import re
from pathlib import Path

import pytest

CSRC = (Path(__file__).resolve().parents[2] / "csrc").resolve()
CAPABILITIES = ("pairs", "rows", "segments", "indexed", "exact", "foreach", "ranks", "replace")
FILES = sorted(
    path.relative_to(CSRC).as_posix()
    for path in CSRC.rglob("*")
    if path.suffix in (".h", ".inl", ".cpp", ".cuh", ".cu") and "missing" not in path.parts
)
INCLUDE = re.compile(r'^ *#include "([^"]+)"', re.MULTILINE)
OF_TORCH = re.compile(r'^ *#include ["<](?:ATen|c10|torch|caffe2)/', re.MULTILINE)

# The core includes no capability, but for these files. {file: {capability: why}}
FROM_CORE = {
    "core/torch/ops.cpp": {
        "exact": "exact=True of a row of the table is another operator of it",
        "pairs": "logsumexp is a row of the table, and is computed in two passes",
    },
    "core/torch/inspect.cpp": {
        "exact": "private operators set for tests how exact sums are cut on the CPU",
        "segments": "private operators set for tests how segments are cut on the CPU",
    },
}
# A capability includes the core, and of the others these alone. {capability: {another: why}}
BETWEEN = {
    "pairs": {
        "rows": "logsumexp of rows that registers hold takes the kernel of rows",
        "exact": "weighted_sum and dot with exact=True",
    },
    "rows": {"indexed": "the gradient of a loss's class weights is a sum by index"},
    "segments": {
        "pairs": "segment_logsumexp adds on the CPU as logsumexp does",
        "rows": "the call of segment_softmax is a softmax's",
    },
    "indexed": {"segments": "the entries of an output are a segment once they are sorted"},
    "exact": {
        "pairs": "the inputs of exact products are broadcast and checked as a weighted sum's",
        "segments": "exact sums of segments are cut into the tiles and tasks of segments",
    },
    "ranks": {"rows": "a norm behind a sum over ranks joins its rows as they do"},
    "replace": {
        "rows": "it calls softmaxes and norms",
        "indexed": "it calls sums by index",
    },
}
# A layer is a folder of the core. A capability has three: the files cpu*, the files torch*, and all others, which are
# CUDA's. {layer: the layers that it includes, besides itself}
LAYERS = {
    "": {"numeric"},
    "numeric": {""},
    "problem": {"", "numeric"},
    "plan": {"", "numeric", "problem"},
    "cpu": {"", "numeric", "problem"},
    "cuda": {"", "numeric", "problem", "plan"},
    "torch": {"", "numeric", "problem", "plan", "cpu", "cuda"},
    "ladder": {"numeric"},
}


@functools.cache
def text_of(file):
    return (CSRC / file).read_text(encoding="utf-8")


@functools.cache
def includes(file):
    """Our own files that a file includes, relative to csrc/."""
    return [os.path.normpath(f"{os.path.dirname(file)}/{name}") for name in INCLUDE.findall(text_of(file))]


def reached(file):
    """A file, those that it includes, and those that they include in turn."""
    found, left = set(), [file]
    while left:
        file = left.pop()
        if file not in found:
            found.add(file)
            left += includes(file)
    return found


def folder_of(file):
    return file.split("/", 1)[0]


def layer_of(file):
    folder, *inner, name = file.split("/")
    if folder == "core":
        return inner[0] if inner else ""
    if folder == "ladder":
        return folder
    return next((layer for layer in ("cpu", "torch") if name.startswith(layer)), "cuda")


def test_every_file_has_a_place():
    """Each file is the core's, a capability's or the ladder's, and each capability has files."""
    assert {folder_of(file) for file in FILES} == {"core", "ladder", *CAPABILITIES}


def test_every_include_is_there():
    """What is included in quotation marks is a file of csrc/."""
    assert not [(file, name) for file in FILES for name in includes(file) if name not in FILES]


def test_between_folders():
    """The core and each capability include what the tables allow; what a table allows is needed."""
    allowed = {(who, other) for who, others in (FROM_CORE | BETWEEN).items() for other in others}
    needed, wrong = set(), []
    for file in FILES:
        here = folder_of(file)
        for name in includes(file):
            there = folder_of(name)
            if there != here and there != "core":
                pair = (file if here == "core" else here, there)
                needed.add(pair)
                if pair not in allowed:
                    wrong.append(f"{file} includes {name}")
    assert not wrong
    assert not allowed - needed


@pytest.mark.parametrize("layer", LAYERS)
def test_between_layers(layer):
    """Each layer includes the ones below it alone, also across folders."""
    files = [file for file in FILES if layer_of(file) == layer]
    assert files
    wrong = [(file, name) for file in files for name in includes(file) if layer_of(name) not in LAYERS[layer] | {layer}]
    assert not wrong


def test_names_of_files_that_include_torch():
    """They are named torch*.cpp or torch*.h, or stand in csrc/core/torch or csrc/ladder."""
    files = [file for file in FILES if OF_TORCH.search(text_of(file))]
    assert len(files) > 40
    assert not [file for file in files if not re.match(r"(core/torch|ladder)/|\w+/torch\w*\.(cpp|h)$", file)]


def test_kernels_know_nothing_of_torch():
    """Neither a .cu or .cuh file nor what it includes includes torch."""
    kernels = [file for file in FILES if file.endswith((".cu", ".cuh"))]
    assert len(kernels) > 80
    assert not [(file, name) for file in kernels for name in reached(file) if OF_TORCH.search(text_of(name))]


# Whoever includes these compiles all kernels of the dtypes that it names.
LAUNCHES = {
    "core/cuda/launch.cuh",
    "core/cuda/launch_pairs.cuh",
    "rows/launch.cuh",
    "foreach/many.cuh",
    "segments/typed.cuh",
}


def test_kernels_are_compiled_once():
    """Only files in folders named compiled or native compile kernels of dtypes: the library has none twice."""
    assert set(FILES) >= LAUNCHES
    compiling = [file for file in FILES if file.endswith(".cu") and reached(file) & LAUNCHES]
    assert len(compiling) > 20
    assert not [file for file in compiling if not {"compiled", "native"} & set(file.split("/"))]
