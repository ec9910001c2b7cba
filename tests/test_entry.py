"""torch_reduce._entry, the short way from Python to the op: which calls it takes, and that nobody can tell."""

import gc
import pickle
import re
import shutil
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import torch_reduce
from support import assert_same_bits, data
from test_package import PACKAGE, package_copy, run
from torch_reduce import _library

needs_entry = pytest.mark.skipif(_library.entry("sum") is None, reason="needs torch_reduce._entry, which was not built")


@pytest.fixture
def entry(op):
    """The operation's short way."""
    return _library.entry(op.name)


@pytest.fixture
def hidden(op, monkeypatch):
    """torch_reduce's function without the entry."""

    def reduce(*args, **kwargs):
        with monkeypatch.context() as patch:
            patch.setattr(torch_reduce, f"_direct_{op}", None)
            return op.function(*args, **kwargs)

    return reduce


@pytest.fixture
def taken(entry):
    """Whether the entry takes a call, rather than leave it to torch.ops."""

    def taken(input, dim=None, keepdim=False, dtype=None, out=None):
        return entry(input, dim, keepdim, dtype, out) is not NotImplemented

    return taken


def raised(call, *args, **kwargs):
    """(class, message) of what a call raises."""
    try:
        call(*args, **kwargs)
    except Exception as error:
        return type(error), str(error)
    raise AssertionError("it did not raise")


# --- plain calls ------------------------------------------------------------------------------------------------------

FORMS = {
    "nothing": ((), {}),
    "dim": ((1,), {}),
    "negative dim": ((-1,), {}),
    "dim by name": ((), {"dim": 0}),
    "None": ((None, True), {}),
    "tuple": (((0, -1),), {}),
    "list": (([1],), {"keepdim": True}),
    "empty tuple": (((),), {}),
    "all by name": ((), {"dim": (0, 1), "keepdim": True, "dtype": torch.float64}),
    "dtype": ((1, False), {"dtype": torch.bfloat16}),
    "dtype None": ((0,), {"dtype": None, "out": None}),
}


def test_there(op, entry):
    """The build makes it, for every operation, and torch_reduce takes it."""
    assert entry is not None and (PACKAGE / "_entry.so").exists()
    assert getattr(torch_reduce, f"_direct_{op}") is entry


@needs_entry
@pytest.mark.parametrize("form", FORMS)
def test_forms(form, op, taken, device, hidden):
    """Every form of every argument is taken, and gives what torch.ops gives; with out=, that very tensor."""
    args, kwargs = FORMS[form]
    x = data((7, 300), "float32", device=device)
    wanted = hidden(x, *args, **kwargs)
    ours = op.function(x, *args, **kwargs)
    assert (ours.shape, ours.dtype, ours.stride()) == (wanted.shape, wanted.dtype, wanted.stride())
    assert_same_bits(ours, wanted)
    out = torch.empty_like(wanted)
    assert op.function(x, *args, **{**kwargs, "out": out}) is out
    assert_same_bits(out, wanted)
    plain = dict(zip(("dim", "keepdim"), args, strict=False), **kwargs)
    assert taken(x, **plain) and taken(x, **{**plain, "out": out})


@needs_entry
def test_plain_tensors(op, taken, device):
    """Parameters, views, lazily conjugated views and inference tensors are plain; a parameter's sum is a tensor."""
    x = torch.nn.Parameter(data((3, 4), "float32", device=device))
    assert type(op.function(x)) is torch.Tensor
    z = data((3, 4), "complex64", device=device)
    with torch.no_grad(), torch.autocast(device):
        assert all(taken(y) for y in (x, x.detach().t()[1:], z.conj(), z.conj().imag, z[:0]))
    with torch.inference_mode():
        assert taken(x.detach() + 1) and op.function(x).is_inference()


# --- calls that are left to torch.ops ---------------------------------------------------------------------------------


class Subclass(torch.Tensor):
    """Lists the functions that it sees."""

    seen = ()

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Subclass.seen += (func,)
        return super().__torch_function__(func, types, args, kwargs or {})


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        Subclass.seen += (func,)
        return func(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        Subclass.seen += (func,)
        return func(*args, **(kwargs or {}))


ODD = {
    "an input that is none": lambda x: (3.0,),
    "an input of a subclass": lambda x: (x.as_subclass(Subclass),),
    "dim of bool": lambda x: (x, True),
    "dim of NumPy": lambda x: (x, np.int64(0)),
    "dims of NumPy": lambda x: (x, [np.int64(0)]),
    "dim of float": lambda x: (x, 0.0),
    "dim beyond an int64": lambda x: (x, 1 << 70),
    "dims as a Size": lambda x: (x, torch.Size([0])),
    "dims without number": lambda x: (x.view([1] * 70 + [2, 3]), list(range(70))),
    "dim out of range": lambda x: (x, 2),
    "dims named twice": lambda x: (x, (0, 0)),
    "keepdim of int": lambda x: (x, 0, 1),
    "dtype of Python": lambda x: (x, 0, False, float),
    "a dtype that cannot be": lambda x: (x, 0, False, torch.float8_e5m2fnuz),
    "an out that is none": lambda x: (x, 0, False, None, [1.0]),
    "an out of a subclass": lambda x: (x, 0, False, None, x[0].as_subclass(Subclass)),
    "an out of another dtype": lambda x: (x, 0, False, torch.float64, x[0]),
    "a sparse input": lambda x: (x.to_sparse(),),
}


@needs_entry
@pytest.mark.parametrize("odd", ODD)
def test_odd_calls(odd, op, taken, device, hidden):
    """What is not plain is left to torch.ops: the same result, or the same class and message of an error."""
    call = ODD[odd](torch.ones(2, 3, device=device))
    assert not taken(*call)
    input, dim, keepdim, dtype, out = (*call, *(None, False, None, None)[len(call) - 1 :])
    kwargs = dict(dim=dim, keepdim=keepdim, dtype=dtype, out=out)
    try:
        wanted = hidden(input, **kwargs)
    except Exception as error:
        assert raised(op.function, input, **kwargs) == (type(error), str(error))
    else:
        ours = op.function(input, **kwargs)
        assert type(ours) is type(wanted) and ours.equal(wanted)


@needs_entry
def test_wrong_arguments(op, entry):
    """Missing and unknown arguments are named; the entry itself leaves every wrong number of them."""
    x = torch.ones(3)
    assert raised(op.function)[0] is TypeError and "input" in raised(op.function)[1]
    assert raised(op.function, x, axis=0)[0] is TypeError and "axis" in raised(op.function, x, axis=0)[1]
    assert raised(op.function, [1.0])[0] is TypeError and "input" in raised(op.function, [1.0])[1]
    assert entry() is entry(x) is entry(x, None, False, None, None, None) is NotImplemented


def test_subclasses_and_modes_see_the_call(op, taken, entry):
    """__torch_function__ of the input, of out and of a mode, and __torch_dispatch__ of a mode, see the op once each."""
    x, out = torch.ones(3), torch.empty(())
    default, into = op.operator.default, op.operator.out

    def seen(call):
        Subclass.seen = ()
        call()
        return [func for func in Subclass.seen if func in (default, into)]

    assert seen(lambda: op.function(x.as_subclass(Subclass))) == [default]
    assert seen(lambda: op.function(x, out=out.as_subclass(Subclass))) == [into]
    for mode in (FunctionMode, DispatchMode):
        with mode():
            assert seen(lambda: op.function(x)) == [default]
            assert seen(lambda: op.function(x, out=out)) == [into]
    assert entry is None or taken(x)


def test_modes_that_raise(op):
    """What a mode raises comes out as it is, and the mode is asked once."""

    class Refuses(TorchDispatchMode):
        asked = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Refuses.asked += 1
            raise KeyError("refused")

    x = torch.ones(3)
    with Refuses(), pytest.raises(KeyError, match="refused"):
        op.function(x)
    assert Refuses.asked == 1


def test_tracing(op, hidden):
    """Every tracer records the op, and what it recorded has the same bits."""
    x = data((6, 700), "float32")
    reduce = op.function

    class Module(torch.nn.Module):
        def forward(self, x):
            return reduce(x, 1)

    m = Module()
    traced = {
        "fx": torch.fx.symbolic_trace(m),
        "make_fx": make_fx(m)(x),
        "make_fx, before autograd": make_fx(m, pre_dispatch=True, tracing_mode="symbolic")(x),
        "export": torch.export.export(m, (x,)).module(),
        "strict export": torch.export.export(m, (x,), strict=True).module(),
        "jit": torch.jit.trace(m, x),
    }
    for name, module in traced.items():
        assert f"gpureduce.{op}" in str(module.code), name
        assert_same_bits(module(x), hidden(x, 1))


def test_compile_is_one_graph(op):
    """torch.compile finds nothing to break the graph at, compiles once, and may be given the function itself."""
    x = data((6, 700), "float32")
    reduce, graphs = op.function, []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(lambda x: reduce(x, dim=1, keepdim=True) * 2, fullgraph=True, backend=backend)
    for _ in range(3):
        assert_same_bits(compiled(x), reduce(x, 1, True) * 2)
    assert len(graphs) == 1
    targets = [node.target for node in graphs[0].graph.nodes]
    assert op.operator.default in targets
    assert_same_bits(torch.compile(reduce, fullgraph=True, backend=backend)(x, 0), reduce(x, 0))
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_functorch(op):
    """vmap, and vmap of vmap."""
    x = data((3, 4, 500), "float32")
    assert_same_bits(torch.vmap(lambda row: op.function(row, 1))(x), op.function(x, 2))
    assert_same_bits(torch.vmap(torch.vmap(op.function))(x), op.function(x, 2))


# --- without it -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["missing", "unreadable"])
def test_without_it(how, tmp_path):
    """Everything works without the entry."""
    copy = package_copy(tmp_path)
    (copy / "_entry.so").unlink(missing_ok=True)
    if how == "unreadable":
        (copy / "_entry.so").write_bytes(b"no library")
    code = (
        "import torch, torch_reduce; x = torch.arange(12.0).view(3, 4); out = torch.empty(4)\n"
        "assert torch_reduce._direct_sum is torch_reduce._direct_mean is None\n"
        "assert 'torch_reduce._entry' not in __import__('sys').modules and torch_reduce.mean(x).item() == 5.5\n"
        "assert torch_reduce.sum(x).item() == 66 and torch_reduce.sum(x, 0, out=out) is out\n"
        "print(torch_reduce.sum(x, dim=(1,), keepdim=True, dtype=torch.int64).tolist(), out.tolist())\n"
        "torch_reduce.sum(x, 2)"
    )
    result = run("-c", code, path=tmp_path)
    assert result.stdout.strip() == "[[6], [22], [38]] [12.0, 15.0, 18.0, 21.0]", result.stderr
    assert result.stderr.strip().splitlines()[-1].startswith("IndexError: ")


def test_pickles(op):
    """Each is a function of its module."""
    assert pickle.loads(pickle.dumps(op.function)) is op.function


# --- the module itself ------------------------------------------------------------------------------------------------


@needs_entry
def test_nothing_leaks(op, taken, entry, device):
    """References to arguments, results and constants stay balanced, in calls that are taken, left and refused."""
    x, out, dims = torch.ones(2, 3, device=device), torch.empty(3, device=device), [0, 1]
    held = [x, out, dims, torch.float64, NotImplemented, None, True, False, entry]

    def calls():
        for _ in range(1000):
            entry(x, None, False, None, None)
            entry(x, dims, True, torch.float64, None)
            entry(x, 0, False, None, out)
            entry(x, 9, False, None, out)
            entry(x, "rows", False, None, None)
            entry(x)

    calls()
    before = [sys.getrefcount(one) for one in held]
    calls()
    assert all(abs(sys.getrefcount(one) - count) < 100 for one, count in zip(held, before, strict=True))
    result = op.function(x)
    assert sys.getrefcount(result) == 2
    alive = weakref.ref(result)
    del result
    gc.collect()
    assert alive() is None


@needs_entry
def test_other_threads_run_meanwhile(op, entry):
    """The interpreter is free during a call. Threads change only where they let go, so nothing else can free it."""
    x = torch.ones(1 << 26)
    turns, stop = [], threading.Event()

    def take_turns():
        while not stop.is_set():
            turns.append(None)
            time.sleep(1e-4)

    thread = threading.Thread(target=take_turns)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        thread.start()
        before = len(turns)
        totals = []  # all of them live on: torch lets go of the interpreter where it frees a tensor
        while len(turns) == before and len(totals) < 50:  # busy cores may not wake the thread during one call
            totals.append(entry(x, None, False, None, None))
        during = len(turns) - before
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        thread.join(timeout=60)
    assert {float(total) for total in totals} == {1 if op.divides else 1 << 26}
    assert during > 0 and not thread.is_alive()


@needs_entry
def test_threads_at_once(op, device):
    """Many threads call at once: the same bits, no deadlock."""
    x = data((64, 700), "float32", device=device)
    wanted, wrong = op.function(x, 1), []

    def work():
        for _ in range(300):
            if not op.function(x, 1).equal(wanted):
                wrong.append(None)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads) and not wrong


@needs_entry
@pytest.mark.skipif(shutil.which("readelf") is None, reason="needs readelf")
def test_any_python_can_load_it():
    """Of Python it needs only what is in the stable ABI from 3.10 on."""
    symbols = subprocess.run(
        ["readelf", "--dyn-syms", "--wide", PACKAGE / "_entry.so"], capture_output=True, text=True, check=True
    ).stdout
    stable = """
        _Py_Dealloc _Py_FalseStruct _Py_NoneStruct _Py_NotImplementedStruct _Py_TrueStruct PyErr_Occurred
        PyErr_SetString PyEval_RestoreThread PyEval_SaveThread PyExc_ImportError PyList_GetItem PyList_Size PyList_Type
        PyLong_AsLongLongAndOverflow PyLong_Type PyModule_Create2 PyTuple_GetItem PyTuple_Size PyTuple_Type
    """
    needed = set(re.findall(r"UND +(_?Py\w+)", symbols))
    assert "PyModule_Create2" in needed and needed <= set(stable.split())
