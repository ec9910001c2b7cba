"""`try --order`: which kernels have the contract's bits, and the first addition of another order, in words."""

import array
import pathlib
import re
import shlex

import pytest
import torch

import torch_reduce
from torch_reduce.ladder import _emulate, _figures, _order, _program, _try

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "torch_reduce" / "ladder" / "orders"
PAGE = (ROOT / "docs" / "ladder" / "chapter7.md").read_text(encoding="utf-8")
CONTRACT = (FOLDER / "4_contract.cu").read_text(encoding="utf-8")
FEW = (513, 10_007)

try:
    _emulate.compiler()
except _emulate.CannotEmulate as error:
    pytest.skip(str(error), allow_module_level=True)


def compared(folder, text, elements=16, partials=False, sizes=FEW, **choices):
    """The order of a learner's kernel."""
    path = folder / "mine.cu"
    path.write_text(text, encoding="utf-8")
    kernel = _try.Kernel.of(path, **choices)
    return _order.compare(kernel, kernel.build(), elements, partials, sizes=sizes)


def changed(*pairs):
    """The kernel of step 4 with texts replaced."""
    text = CONTRACT
    for before, after in pairs:
        assert before in text, before
        text = text.replace(before, after)
    return text


def line_of(text, part):
    (found,) = (number for number, line in enumerate(text.splitlines(), 1) if part in line)
    return found


@pytest.mark.parametrize("step", re.findall(r"orders/(\w+)\.cu --order", PAGE))
def test_the_steps_of_the_chapter(step, capsys, monkeypatch):
    """Each command of the page says what the page says; only the last step is right."""
    command = next(line for line in PAGE.splitlines() if f"orders/{step}.cu --order" in line)
    said = PAGE.split(command)[1].split("```")[2].strip("\n").splitlines()
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(_try, "nearest", lambda *_: [(0.0, "shared", verdict_of(step))] * 2)  # all rungs are not needed
    status = _program.main(shlex.split(command)[3:])
    printed = capsys.readouterr().out
    assert status == (step != "4_contract") and printed.endswith("right\n" if not status else "not right yet\n")
    place = printed.find("order of additions, against the contract")
    lines = printed[place:].splitlines()[1 : 1 + len(said)]
    assert [re.sub(r"-?0x1\.\w+p[+-]\d+", "SUM", line) for line in lines] == said


def verdict_of(step):
    return _emulate.Emulated(step)


def test_the_counters_of_the_chapter():
    """The table of the last section."""
    kernel = _try.Kernel.of(FOLDER / "4_contract.cu")
    mine = kernel.run(kernel.build(), size=1 << 15, block=512, elements=16).counters
    other = _emulate.emulate("multi_element", size=1 << 15, block=512, elements=16).counters
    names = {"load efficiency": "global load efficiency"}
    rows = re.findall(r"^([a-z ]+?)  +([\d.]+)%?  +([\d.]+)%?$", PAGE, re.MULTILINE)
    assert len(rows) == 5
    for name, *values in rows:
        for found, value in zip((mine, other), values, strict=True):
            assert _figures.cell(names.get(name, name), found).removesuffix("%") == value, name


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_contract_is_the_librarys(dtype, tmp_path):
    """What `try --order` wants is what torch_reduce.sum makes of the same elements, in every size that it tries."""
    text = "template <class T>\n__global__ void mine(const T* x, T* out, int n) { out[0] = x[0]; }"
    path = tmp_path / "mine.cu"
    path.write_text(text)
    kernel = _try.Kernel.of(path, dtype=dtype)
    program = kernel.build()
    code, large = {"float32": ("f", 2.0**20), "float64": ("d", 2.0**50)}[dtype]

    def uneven(i, n):
        half, mask = n // 122 * 61, (1 << 64) - 1
        huge = i % 61 == 30 and i < 2 * half
        second = huge and i >= half
        bits = ((i - half if second else i) + 1) * 0x9E3779B97F4A7C15 & mask
        bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & mask
        bits ^= bits >> 27
        if huge:
            return large if second == bits % 2 else -large
        return float(bits - (bits >> 63 << 64)) * 2.0 ** (bits % 13 - 6 - 63)

    for size in _order.SIZES:
        wanted = kernel.run(program, size=size, block=512, elements=16, order="1").wanted
        values = array.array(code, [uneven(i, size) for i in range(size)])
        x = torch.tensor(values, dtype=getattr(torch, dtype))
        assert wanted.hex() == torch_reduce.sum(x).item().hex(), size
        zeros = kernel.run(program, size=size, block=512, elements=16, order="zeros").wanted
        assert zeros.hex() == torch_reduce.sum(-torch.zeros(size)).item().hex() == "-0x0.0p+0"


OTHERS = {  # a change of the right kernel, the addition that is told, and its line
    "lanes from right to left": (
        [("float sum = values[chunk][0];", "float sum = values[chunk][7];"),
         ("for (int k = 1; k < kElements; ++k) sum += values[chunk][k];",
          "for (int k = 6; k >= 0; --k) sum += values[chunk][k];")],
        "x[3584] + x[3072], where the contract adds (x[0] + … + x[3072]) + x[3584]", "sum += values[chunk][k]",
    ),
    "neighbours in a lane": (
        [("tile + k * 512 + thread", "tile + k / kElements * 4096 + thread * kElements + k % kElements")],
        "x[0] + x[1], where the contract adds x[0] + x[512]", "sum += values[chunk][k]",
    ),
    "warps in another order": (
        [("add_warp(warps[thread])", "add_warp(warps[(thread + 1) % 32])")],
        "lanes 32 to 63 of chunk 0 + lanes 64 to 95 of chunk 0, where the contract adds lanes 0 to 31 of",
        "+= __shfl_down_sync",
    ),
    "a factor": (
        [("values[chunk][0];", "values[chunk][0] * 1.0f;")],
        "computes x[0] * 1.0, where the contract adds x[0] + x[512]", "* 1.0f",
    ),
    "a wider sum": (
        [("float sum = values[chunk][0];", "double sum = values[chunk][0];")],
        "converts x[0] to double, where the contract stays with float", "double sum",
    ),
}  # fmt: skip


@pytest.mark.parametrize("which", OTHERS)
def test_the_first_addition_of_another_order(which, tmp_path):
    """It is told in words, with the thread and the line, also where the bits are the same by luck."""
    pairs, said, where = OTHERS[which]
    text = changed(*pairs)
    found = compared(tmp_path, text, sizes=(10_007,))
    assert not found.right and said in found.first.text, found
    assert found.first.text.startswith("thread 0 of block 0 ")
    assert (found.first.file, found.first.line) == ("mine.cu", line_of(text, where))
    if which == "a factor":
        assert not found.bits, "it rounds nothing"
    elif "lane" in which:
        assert found.bits and found.bits[10_007][0] != found.bits[10_007][1]
    assert any("in another order" in line for line in _order.report(found, False))


RIGHT = {  # other ways to write the same order
    "operands are exchanged": [("warps[thread])", "warps[thread ^ 1])")],
    "volatile memory": [("__shared__ float warps[32]", "__shared__ volatile float warps[32]"),
                        ("const float* from", "const volatile float* from"), ("float* to", "volatile float* to")],
    "compare-and-swap": [("/ 1024, out);", "/ 1024, row);\n  int *p = (int*)out, old = *p, seen;\n  if (thread == 0)\n"
                          "    do { old = atomicCAS(p, seen = old, __float_as_int(row[0])); } while (seen != old);")],
    "tiles": [("constexpr int kChunks", "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n"
               "constexpr int kChunks"),
              ("sum += __shfl_down_sync(0xffffffff, sum, distance)",
               "sum += cg::tiled_partition<32>(cg::this_thread_block()).shfl_down(sum, distance)")],
}  # fmt: skip


@pytest.mark.parametrize("which", RIGHT)
def test_the_same_order_written_otherwise(which, tmp_path):
    """Every addition is followed: through memory, shuffles, and bits."""
    found = compared(tmp_path, changed(*RIGHT[which]))
    assert found.right and not found.unknown and (found.additions, found.others) == (10_006, 0), found


def test_doubles(tmp_path):
    found = compared(tmp_path, CONTRACT.replace("float", "double"))
    assert found.right and not found.unknown and found.additions == 10_006, found


def test_one_sum_a_block(tmp_path):
    """The blocks' sums are joined as chunks are; who wants them in that order has to leave sub-trees of it."""
    text = changed(("last = atomicAdd(&arrived, 1u) == blocks - 1;", "last = false;\n      out[blockIdx.x] = sum;"))
    found = compared(tmp_path, text, partials=True)
    assert found.right and found.additions == 10_006, found
    assert any("joined by nearest neighbours" in line for line in _order.report(found, True))
    pieces = text.replace("kChunks = 2", "kChunks = 1").replace(
        "warps[thread])", "thread < 16 ? warps[thread] : -0.0f)"
    )
    three = pieces.replace("kElements = 8", "kElements = 9")  # 4608 elements per block: no sub-trees
    assert compared(tmp_path, pieces, elements=8, partials=True).right
    found = compared(tmp_path, three, elements=9, partials=True, sizes=(10_007,))
    assert not found.right and "adds lane 0 of chunk 0 + x[4096], where" in found.first.text, found


def test_vectors(tmp_path):
    """Four numbers at once know their history, too."""
    text = """
        __global__ void mine(const float* x, float* out, int n) {
          if (threadIdx.x) return;
          float4 v = *reinterpret_cast<const float4*>(x);
          v = make_float4(v.x + v.y, 0, v.z + v.w, 0);
          out[0] = v.x + v.z;
        }
    """
    found = compared(tmp_path, text, elements=1, sizes=(4,))
    assert found.right and (found.additions, found.others) == (3, 0), found


def test_what_cannot_be_followed(tmp_path):
    """The bits are still compared, and it is said why the additions are not."""
    text = changed(("  if (!last) return;", "  if (fabsf(warps[0]) < 0 || !last) return;"))
    found = compared(tmp_path, text)
    assert not found.bits and found.unknown.startswith("where numbers know their history, it does not compile: ")
    assert "cannot be followed" in _order.report(found, False)[-1]


@pytest.mark.parametrize("options", [["--op", "max"], ["--dtype", "int32"]], ids=" ".join)
def test_what_has_no_order(options, tmp_path, capsys):
    path = tmp_path / "mine.cu"
    path.write_text("template <class T>\n__global__ void mine(const T* x, T* out, int n) {}")
    with pytest.raises(SystemExit) as end:
        _program.main(["try", str(path), "--order", *options])
    assert end.value.code == 2 and "--order: it compares sums of floats" in capsys.readouterr().err
