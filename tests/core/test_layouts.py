"""Every dtype in every layout, bit for bit: no layout is special, and none is copied into another first."""

import itertools
import pathlib
import sys

import pytest
import torch

import model
import torch_reduce
from support import DTYPES, EVERY, INSTRUCTIONS, assert_same_bits, check, data, instruction_sets, python
from table import CASES, VARIANCES, rotated

pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values", "ignore:ComplexHalf support")

# name -> (a view of fresh data, the dims to reduce)
LAYOUTS = {
    "vector": lambda make: (make(9001), [0]),
    "rows": lambda make: (make(7, 1301), [1]),
    "columns": lambda make: (make(1301, 7), [0]),
    "wide columns": lambda make: (make(40, 515), [0]),
    "inside": lambda make: (make(3, 700, 5), [1]),
    "outside": lambda make: (make(30, 17, 20), [0, 2]),
    "all of three": lambda make: (make(13, 17, 29), [0, 1, 2]),
    "transposed": lambda make: (make(300, 40).t(), [1]),
    "transposed, first dim": lambda make: (make(300, 40).t(), [0]),
    "transposed, both": lambda make: (make(300, 40).t(), [0, 1]),
    "every second": lambda make: (make(9001)[::2], [0]),
    "every second row": lambda make: (make(60, 200)[::2], [1]),
    "every second column": lambda make: (make(60, 200)[:, ::2], [1]),
    "every second column, down": lambda make: (make(60, 200)[:, ::2], [0]),
    "every second, all": lambda make: (make(60, 200)[:, ::2], [0, 1]),
    "offset 1": lambda make: (make(9002)[1:], [0]),
    "rows at offset 1": lambda make: (make(5 * 1024 + 1)[1:].view(5, 1024), [1]),
    "columns at offset 1": lambda make: (make(256 * 64 + 1)[1:].view(256, 64), [0]),
    "rows of a slice": lambda make: (make(9, 1300)[:, 3:1250], [1]),
    "columns of a slice": lambda make: (make(200, 70)[5:, 3:], [0]),
    "expanded rows": lambda make: (make(1, 700).expand(9, 700), [1]),
    "expanded columns": lambda make: (make(1, 70).expand(900, 70), [0]),
    "expanded, all": lambda make: (make(1, 70).expand(90, 70), [0, 1]),
    "expanded element": lambda make: (make(1).expand(5000), [0]),
    "expanded inside": lambda make: (make(3, 1, 50).expand(3, 60, 50), [1, 2]),
    "channels_last": lambda make: (make(2, 5, 11, 13).to(memory_format=torch.channels_last), [0, 2, 3]),
    "channels_last, all": lambda make: (make(2, 5, 11, 13).to(memory_format=torch.channels_last), [0, 1, 2, 3]),
    "channels_last, channels": lambda make: (make(2, 5, 11, 13).to(memory_format=torch.channels_last), [1]),
    "channels_last_3d": lambda make: (make(2, 3, 5, 7, 9).to(memory_format=torch.channels_last_3d), [0, 2, 4]),
    "permuted slice": lambda make: (make(6, 21, 30)[:, 1:].permute(2, 0, 1), [0, 2]),
    "permuted": lambda make: (make(4, 6, 8, 10).permute(2, 0, 3, 1), [1, 2]),
    "permuted, all": lambda make: (make(4, 6, 8, 10).permute(2, 0, 3, 1), [0, 1, 2, 3]),
    "windows": lambda make: (make(1300).unfold(0, 700, 3), [1]),
    "windows, down": lambda make: (make(1300).unfold(0, 700, 3), [0]),
    "windows, all": lambda make: (make(400).unfold(0, 100, 1), [0, 1]),
    "overlapping": lambda make: (make(300).as_strided((50, 40, 3), (2, 3, 1), 5), [0, 2]),
    "equal strides": lambda make: (make(300).as_strided((9, 11, 13), (5, 5, 5), 2), [0, 1, 2]),
    "diagonal": lambda make: (make(80, 80).diagonal(), [0]),
    "zero-size, kept": lambda make: (make(0, 30), [1]),
    "zero-size, reduced": lambda make: (make(30, 0), [1]),
    "zero-size, both": lambda make: (make(0, 3, 0), [0]),
    "0-d": lambda make: (make(), []),
    "size-1 dims": lambda make: (make(1, 900, 1, 3, 1), [0, 1, 4]),
    "only size-1 dims": lambda make: (make(5, 7).view(5, 1, 7), [1]),
    "size-1 dims of odd strides": lambda make: (make(5000).as_strided((1, 30, 1, 40), (3, 40, 999, 1), 1), [0, 1, 2]),
    "nothing merges": lambda make: (make(7, 9, 11, 13)[:, ::2, 1:, ::3], [0, 2]),
    "nothing merges, inside": lambda make: (make(7, 9, 11, 13)[:, ::2, 1:, ::3], [1, 3]),
    "nothing merges, all": lambda make: (make(7, 9, 11, 13)[:, ::2, 1:, ::3], [0, 1, 2, 3]),
    "vector-wide pitch": lambda make: (make(20, 64)[:, :48], [0, 1]),
    "short rows": lambda make: (make(500, 3), [1]),
    "pairs": lambda make: (make(2, 999), [0]),
}


@pytest.mark.parametrize("name", DTYPES)
def test_layout(name, device):
    """The model's bits, with and without keepdim, also where the result is narrower or wider than the input."""
    target = torch.float64 if name in model.INTEGER else torch.float16 if name in model.FLOATING else torch.complex128
    for layout, view in LAYOUTS.items():
        tensor, dims = view(lambda *shape: data(shape, name, seed=1, device=device))
        check(tensor, dims or None, what=layout)
        check(tensor, dims or None, True, target, what=layout)


def test_promise_about_layouts(device):
    """One dim has the same bits in any layout. Several dims are added as they lie in memory: equal tensors may have
    other bits, contiguous() gives one order, and an exact sum has one result."""
    x = torch.randn(300, 5000, generator=torch.Generator().manual_seed(1)).to(device)
    y = x.t().contiguous().t()
    assert x.equal(y) and not x.t().is_contiguous() and y.t().is_contiguous()
    for op in CASES:
        for dim in (0, 1):
            assert_same_bits(*(op(op.around(t, dim), [dim]) for t in (x, y)), f"of {op}")
    for function in (torch_reduce.sum, torch_reduce.mean):
        assert not function(x).equal(function(y))
        assert function(y).equal(function(x.t().contiguous())) and function(y.contiguous()).equal(function(x))
        assert function(x, exact=True).equal(function(y, exact=True))
    z = x[:, :4800].reshape(300, 60, 80)
    turned = z.transpose(1, 2).contiguous().transpose(1, 2)
    assert not torch_reduce.rms_norm(z, (60, 80)).equal(torch_reduce.rms_norm(turned, (60, 80)))
    assert torch_reduce.rms_norm(z, 80).equal(torch_reduce.rms_norm(turned, 80))


# On both sides of a vector's, a block's and a chunk's elements, and some images.
PIECES = {*range(1, 18), 49, 100, 196, 784} | {2**p + d for p in (5, 6, 7, 8, 9, 10, 12) for d in (-1, 0, 1)}


@pytest.mark.parametrize("op", CASES[1:], ids=str)
def test_layout_of_other_operations(op, device):
    """The others share the sum's kernels: each finishes in every layout, of some of the dtypes of every accumulator."""
    names = ["float32", "bfloat16", "complex128", "uint8", "int64"] + ["float64", "float8_e4m3fn"] * (op in VARIANCES)
    calls = [(name, None) for name in names if op.takes(name)]
    calls += [("int32", torch.float32)] * (op.has_dtype and op.takes("int32", torch.float32))
    for k, (name, dtype) in enumerate(calls):
        for layout in rotated(LAYOUTS, CASES.index(op) + k, min(3, len(calls))):
            tensor, dims = LAYOUTS[layout](lambda *shape, name=name: op.elements(shape, name, 1, device))
            op.check_view(tensor, dims or None, dtype=dtype, what=f"of {name}, {layout}")


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float64", "complex64", "int32"])
def test_pieces_of_every_length(name, device):
    """Rows, and sums over several pieces, of lengths around every boundary; what lies between them does not count."""
    for length in sorted(PIECES):
        little_more_than_a_chunk = (1, 4096 // length + 2)
        for shape, dims in (((7, 3), [[2], [0, 2], [0, 1, 2]]), (little_more_than_a_chunk, [[1, 2]])):
            x = data((*shape, length + 3), name, seed=6, device=device)
            if name != "int32":
                x[:, :, 0] = x[:, :, length + 1 :] = float("nan")
            for dim in dims:
                check(x[:, :, 1 : length + 1], dim)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float64", "complex64", "complex128", "int8"])
def test_rows_in_pieces(name, device, set_threads):
    """Rows with their pieces side by side: more than are summed together, several tiles, splits, nested dims; from a
    core's cache, and from memory; on any number of threads."""
    shapes = [
        (23, 19, 196),
        (47, 11, 17),
        (9, 5, 8, 6, 66),
        (700, 3, 49),
        (700, 9, 49),
        (2800, 9, 49),
        (160, 9, 196),
        (700, 9, 196),
        (8000, 9, 17),
        (10, 17, 511),
        (400, 6, 511),
        (9, 37, 600),
        (5, 3, 1023),
    ]
    for k, shape in enumerate(shapes, DTYPES.index(name)):
        dims = list(range(0, len(shape), 2))
        x = data((*shape[:-1], shape[-1] + 3), name, seed=11, device=device)
        if name != "int8":
            x[..., 0] = x[..., shape[-1] + 1 :] = float("nan")
        for view in rotated((x[..., 1 : shape[-1] + 1], data(shape, name, seed=12, device=device)), k, 2):
            set_threads(2)
            wanted = check(view, dims)
            for threads in (1, 5) if device == "cpu" else ():
                set_threads(threads)
                assert_same_bits(torch.ops.gpureduce.sum(view, dims), wanted, f"{shape} with {threads} threads")


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64", "complex64", "float8_e5m2"])
def test_many_columns(name, device, set_threads):
    """So many columns that their leaves fill a tile: lengths around every boundary, in one piece and in several."""
    for length in (3, 4, 5, 8, 9, 63, 130, 511, 512, 513, 1030, 1535, 1536, 1537):
        columns = 4096 // length + 41
        check(data((length, columns), name, seed=7, device=device), 0)
        check(torch.full((length, columns), -0.0, device=device), 0)
        check(data((2, length, columns + 3), name, seed=8, device=device)[:, :, 1 : columns + 1], 1)
    for pieces, length in ((2, 4), (3, 7), (5, 103), (2, 515)):
        check(data((pieces, length + 1, 1100), name, seed=9, device=device)[:, :length], [0, 1])
    check(data((9, 65_541), name, seed=10, device=device), 0)  # tasks of several widths
    for threads in (1, 5):  # strips, the last of less than a vector beyond another; splits
        set_threads(threads)
        for length, columns in ((33, 3 * 819 + 1), (57, 1025), (63, 1500), (64, 4099)):
            check(data((length, columns), name, seed=13, device=device), 0)
            check(data((7, length, 70), name, seed=14, device=device), 1)
    set_threads(2)
    check(data((70, 4097), name, seed=10, device=device), 0)  # as many for each thread


HERE = pathlib.Path(__file__).parent


# What runs with each instruction set: tests of a sum, of the others, and of rows.
OF_INSTRUCTIONS = {
    "core/test_layouts.py": [
        "layout",
        "pieces_of_every_length",
        "rows_in_pieces",
        "many_columns",
        "layout_of_other_operations",
    ],
    "core/test_order.py": ["pinned_results", "every_length_as_rows_and_columns"],
    "core/test_bits.py": ["special_numbers", "pinned_results"],
    "core/test_norms.py": ["largest_keeps_nan"],
    "segments/test_segment.py": ["every_length", "mixed_lengths"],
    "rows/test_rows.py": ["pinned_rows", "layouts", "special_rows"],
    "rows/test_losses.py": ["log_prob"],
}


# Left out there. The tests run these dtypes with the host's own set alone, and all other dtypes with each set.
LIKE_OTHERS = ["uint16", "uint32", "uint64", "complex32"]


@instruction_sets(*INSTRUCTIONS)
def test_every_instruction_set(instructions):
    """The CPU's kernels for each instruction set but the one that these tests run with by themselves."""
    if torch.backends.cpu.get_cpu_capability().lower() == instructions:
        pytest.skip("these tests run with it by themselves")
    tests = [f"{HERE.parent}/{file}::test_{test}" for file, names in OF_INSTRUCTIONS.items() for test in names]
    only = f"cpu and not ({' or '.join(LIKE_OTHERS)})"
    command = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", only, *tests)
    python(*command, ATEN_CPU_CAPABILITY=instructions)


@pytest.mark.skipif(sys.platform != "linux", reason="protects pages as Linux does")
@instruction_sets(*INSTRUCTIONS)
def test_nothing_outside_is_read(instructions):
    """Inputs between two pages that cannot be read."""
    python(HERE / "outside.py", ATEN_CPU_CAPABILITY=instructions)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8", "complex64"])
def test_many_dims(name, device):
    """Twenty dims of size two whose neighbours cannot merge are summed; more dims than that limit raise an error."""
    order = [7, 2, 11, 5, 0, 13, 9, 3, 12, 6, 1, 10, 4, 8, 19, 15, 17, 14, 18, 16]
    x = data((1 << 20,), name, seed=2, device=device).view([2] * 20).permute(order)
    check(x, list(range(0, 20, 2)))
    check(x, list(range(1, 14)))
    check(x[::1, :1], list(range(20)))
    shape = [1, 2] * 10 + [1] * 20
    many = data((1 << 10,), name, seed=3, device=device).view(shape)
    assert many.dim() == 40
    check(many, [1, 3, 7, 15, 19, 30])
    check(many)


@pytest.mark.parametrize("op", EVERY, ids=str)
def test_output_strides_are_contiguous(op, device):
    """Whatever the input's layout, a new result is contiguous, as torch's."""
    for x in (
        data((3, 4, 5, 6), "float32", device=device).permute(2, 0, 3, 1),
        data((3, 4, 5, 6), "bfloat16", device=device).to(memory_format=torch.channels_last),
        data((1, 4, 1, 6), "float32", device=device).expand(3, 4, 5, 6),
    ):
        for dim, keepdim in itertools.product([(0, 2), (1, 3), (2,), (0, 1, 2, 3)], (False, True)):
            assert op.check(x, dim, keepdim).stride() == op.torch(x, dim, keepdim).stride()
