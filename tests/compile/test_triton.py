"""torch_reduce.triton: kernels have the library's bits, compiled on a GPU, and without one in Triton's interpreter."""

import collections
import importlib
import inspect
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
import torch

import torch_reduce

triton = pytest.importorskip("triton", reason="needs Triton")
if os.environ.get("TRITON_INTERPRET"):
    pytest.skip("the interpreter has a process of its own", allow_module_level=True)

import triton.language as tl  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

import torch_reduce.triton as ordered  # noqa: E402
import triton_cases as cases  # noqa: E402

TESTS = pathlib.Path(__file__).resolve().parent
ROOT = TESTS.parents[1]


@pytest.fixture(scope="module")
def interpreted():
    """{case: its error} of the cases that failed in the interpreter, which has a process of its own."""
    env = dict(
        os.environ, TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="", PYTHONPATH=os.pathsep.join(filter(None, sys.path))
    )
    command = [sys.executable, "-W", "ignore", str(TESTS / "triton_cases.py")]
    result = subprocess.run(command, capture_output=True, text=True, env=env, timeout=600)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("case", cases.CASES)
def test_bits(case, device, request):
    """Each case of tests/compile/triton_cases.py, which says what it compares."""
    if device == "cuda":
        cases.CASES[case](device)
    else:
        errors = request.getfixturevalue("interpreted")
        assert case not in errors, errors[case]


# --- what is compiled for GPUs ----------------------------------------------------------------------------------------


def compiled(kernel, types, capability=90, options=None, **constants):
    """The PTX of a kernel whose first arguments have these types; no GPU is needed."""
    names = kernel.arg_names
    signature = dict(zip(names, [*types, *["constexpr"] * (len(names) - len(types))], strict=True))
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()}, {})
    options = cases.EXACT if options is None else options
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options).asm["ptx"]


def arithmetic(ptx):
    """How often each instruction on floats occurs."""
    return collections.Counter(re.findall(r"^\s+(?:@\S+ )?((?:\w+\.)+f(?:32|64)\b)", ptx, re.MULTILINE))


FLOATS = {
    "sum": (cases.block_rows, ["*bf16", "*fp32", "i32"], dict(OF=ordered.sum, ROWS=1, BLOCK=4096)),
    "short sum": (cases.block_rows, ["*fp16", "*fp32", "i32"], dict(OF=ordered.sum, ROWS=8, BLOCK=128)),
    "double sum": (cases.block_row, ["*fp64", "*fp64", "i32"], dict(OF=ordered.sum, BLOCK=1024)),
    "tiled product": (
        cases.tiled_rows,
        ["*fp32", "*fp32", "i32"],
        dict(OF=ordered.multiply, ROWS=1, BLOCK=8192, DTYPE=tl.float32),
    ),
    "squares": (cases.squares, ["*fp32", "*fp32", "i32"], dict(ROWS=2, BLOCK=4096)),
    "softmax": (cases.softmaxes, ["*bf16"] * 4 + ["i32"], dict(BLOCK=1024)),
    "double softmax": (cases.softmaxes, ["*fp64"] * 4 + ["i32"], dict(BLOCK=256)),
    "layer_norm": (cases.layer_norm, ["*fp32"] * 4 + ["i32"], dict(EPS=1e-5, BLOCK=512)),
    "numbers": (cases.numbers, ["*fp32"] * 5 + ["*fp64", "i32"], dict(BLOCK=128)),
}


@pytest.mark.parametrize("name", FLOATS)
def test_instructions(name):
    """Compiled for a GPU, every operation is rounded once: no contraction, approximation or flushed subnormals."""
    kernel, types, constants = FLOATS[name]
    for capability in (80, 90) if name in ("sum", "softmax") else (90,):
        found = arithmetic(compiled(kernel, types, capability, **constants))
        rounding = {op for op in found if re.match(r"(add|sub|mul|fma|div|sqrt|rcp|ex2|lg2|rsqrt|tanh)\.", op)}
        assert rounding and all(re.fullmatch(r"(add|sub|mul|fma|div|sqrt)\.rn\.f(32|64)", op) for op in rounding), found
        fused = {op for op in rounding if op.startswith("fma")}
        assert fused == ({"fma.rn.f32"} if name in ("softmax", "numbers") else set())  # the exponential's own
        assert not [op for op in found if "ftz" in op or "approx" in op or "full" in op]


def test_option_forbids_fusion(monkeypatch):
    """With enable_fp_fusion products and sums may become one instruction; the variable is the default of the option."""
    kernel, types, constants = FLOATS["squares"]

    def may_fuse(options):
        return {"mul.f32", "add.f32"} <= set(arithmetic(compiled(kernel, types, options=options, **constants)))

    assert may_fuse({"enable_fp_fusion": True}) and not may_fuse({"enable_fp_fusion": False})
    for value in "10":
        monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", value)
        assert may_fuse({}) == (value == "1")


def test_work_is_spread():
    """Of the additions of a row each of 128 threads does its share, and not all of them."""
    ptx = compiled(cases.block_rows, ["*fp32", "*fp32", "i32"], OF=ordered.sum, ROWS=1, BLOCK=4096)
    assert arithmetic(ptx)["add.rn.f32"] <= 2 * 4096 // 128


@pytest.mark.parametrize("kernel", ["block_sum", "tiled_sum", "rms_norm"])
def test_benchmark(kernel, monkeypatch):
    """The kernels of bench/triton_order.py are compiled, and launches fit the registers."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    bench = importlib.import_module("triton_order")
    types = ["*bf16"] * 5 + ["i32", "fp32"] if kernel == "rms_norm" else ["*bf16", "*fp32", "i32", "fp32"]
    found = arithmetic(compiled(getattr(bench, kernel), types, ORDERED=True, ROWS=2, BLOCK=1024))
    assert {op for op in found if op.startswith(("add", "mul"))} == {"add.rn.f32", "mul.rn.f32"}
    for rows, n in bench.SHAPES:
        for width in {triton.next_power_of_2(n), 512} if n <= 8192 else {512}:
            launches = list(bench.launches(rows, width))
            assert launches and all(8 <= many * width // (32 * warps) <= 64 for many, warps in launches)


def test_identities():
    """What stands for a missing element of a sum is -0.0, where Triton would write 0.0."""
    ptx = compiled(cases.block_row, ["*fp32", "*fp32", "i32"], OF=ordered.sum, BLOCK=512)
    assert re.search(r"0x80000000|0f80000000|-2147483648", ptx)
    with pytest.raises(triton.CompilationError) as caught:
        constants = dict(OF=cases.grown, ROWS=1, BLOCK=512, DTYPE=tl.float32)
        compiled(cases.tiled_rows, ["*fp32", "*fp32", "i32"], **constants)
    errors = [caught.value]
    while errors[-1].__cause__:
        errors.append(errors[-1].__cause__)
    assert "identity() knows add, multiply, larger and smaller" in str(errors[-1])


def test_launches_change_no_bit(cuda):
    """Warps, rows in a program, the block's size: all the same bits."""
    x = torch.randn(64, 3000, device=cuda).bfloat16()
    right = torch_reduce.sum(x, 1, dtype=torch.float32)
    for warps, rows, block in ((1, 1, 4096), (2, 1, 4096), (4, 1, 4096), (4, 1, 8192), (8, 4, 4096), (16, 2, 8192)):
        y = torch.empty(64, device=cuda)
        of = dict(ROWS=rows, BLOCK=block, num_warps=warps)
        cases.block_rows[(64 // rows,)](x, y, 3000, OF=ordered.sum, **of, **cases.EXACT)
        assert y.equal(right)
        of |= dict(OF=ordered.add, DTYPE=tl.float32)
        cases.tiled_rows[(64 // rows,)](x, y.zero_(), 3000, **of, **cases.EXACT)
        assert y.equal(right)


# --- the module -------------------------------------------------------------------------------------------------------


def test_documented_and_typed():
    """Every public function has a docstring and type hints, and its arguments are in it."""
    for name in ordered.__all__:
        function = getattr(ordered, name).fn
        signature = inspect.signature(function)
        assert inspect.getdoc(function), name
        hints = [parameter.annotation for parameter in signature.parameters.values()]
        assert inspect.Parameter.empty not in (*hints, signature.return_annotation), name
        assert all(f"{argument}: " in function.__doc__ for argument in signature.parameters), name


def test_import():
    """torch_reduce does not import Triton; without Triton its module says in one sentence what is missing."""
    code = (
        "import sys, torch; before = 'triton' in sys.modules\n"
        "import torch_reduce; assert ('triton' in sys.modules) == before\n"
        "for name in [name for name in sys.modules if name.partition('.')[0] == 'triton']: del sys.modules[name]\n"
        "sys.modules['triton'] = None\n"
        "try: import torch_reduce.triton\n"
        "except ImportError as error: print(error)\n"
    )
    env = dict(os.environ, PYTHONPATH=str(ROOT))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=300)
    assert result.stdout == "torch_reduce.triton needs Triton, and there is none here: `pip install triton`\n", result
