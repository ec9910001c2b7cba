"""torch_reduce._entry, the short way from Python to the op: which calls it takes, and that nobody can tell."""

import gc
import pickle
import re
import shutil
import subprocess
import sys
import threading
import time
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from support import assert_same_bits, data, every_operation, operators_warn_in_python
from test_package import PACKAGE, package_copy, run
from torch_reduce import _library, _sum

ENTRY = f"_entry_{_library.MINOR}.so"
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
            patch.setattr(_sum, f"_direct_{op}", None)
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
    assert entry is not None and (PACKAGE / ENTRY).exists()
    assert getattr(_sum, f"_direct_{op}") is entry


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
    "keepdim of int": lambda x: (x, 0, 1),
    "dtype of Python": lambda x: (x, 0, False, float),
    "an out that is none": lambda x: (x, 0, False, None, [1.0]),
    "an out of a subclass": lambda x: (x, 0, False, None, x[0].as_subclass(Subclass)),
}

# What the op refuses.
WRONG = {
    "dim out of range": lambda x: (x, 2),
    "dims named twice": lambda x: (x, (0, 0)),
    "a dtype that cannot be": lambda x: (x, 0, False, torch.float8_e5m2fnuz),
    "an out of another dtype": lambda x: (x, 0, False, torch.float64, x[0]),
    "an out that overlaps": lambda x: (x, 0, False, None, x[0, :1].expand(3)),
    "an out that requires gradients": lambda x: (x, 0, False, None, torch.zeros(3, requires_grad=True)),
    "a sparse input": lambda x: (x.to_sparse(),),
}


def by_name(input, dim=None, keepdim=False, dtype=None, out=None):
    """A call of the entry as one of torch_reduce's functions."""
    return (input,), dict(dim=dim, keepdim=keepdim, dtype=dtype, out=out)


@needs_entry
@pytest.mark.parametrize("odd", ODD)
def test_odd_calls(odd, op, taken, device, hidden):
    """Unusual calls go to torch.ops: they have the same result, or the same class and message of an error."""
    call = ODD[odd](torch.ones(2, 3, device=device))
    assert not taken(*call)
    args, kwargs = by_name(*call)
    try:
        wanted = hidden(*args, **kwargs)
    except Exception as error:
        assert raised(op.function, *args, **kwargs) == (type(error), str(error))
    else:
        ours = op.function(*args, **kwargs)
        assert type(ours) is type(wanted) and ours.equal(wanted)


@needs_entry
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_calls(wrong, op, entry, device, hidden):
    """The entry raises the op's error itself, so that the op runs only once; the function puts its name in front."""
    call = WRONG[wrong](torch.ones(2, 3, device=device))
    args, kwargs = by_name(*call)
    wanted = raised(hidden, *args, **kwargs)
    assert raised(op.function, *args, **kwargs) == wanted
    kind, text = raised(entry, *by_name(*call)[0], *kwargs.values())
    assert (kind, f"{op.name}(): {text.removeprefix(f'{op.name}(): ')}") == wanted


@needs_entry
def test_wrong_arguments(op, entry):
    """Missing and unknown arguments are named; the entry itself leaves every wrong number of them."""
    x = torch.ones(3)
    assert raised(op.function)[0] is TypeError and "input" in raised(op.function)[1]
    assert raised(op.function, x, axes=0)[0] is TypeError and "axes" in raised(op.function, x, axes=0)[1]
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
    """An error that a dispatch mode raises comes out unchanged, and the mode is asked once."""

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
@every_operation
def test_functorch(op):
    """vmap, and vmap of vmap."""
    x = data((3, 4, 500), "float32")
    assert_same_bits(torch.vmap(lambda row: op.function(row, 1))(x), op.function(x, 2))
    assert_same_bits(torch.vmap(torch.vmap(op.function))(x), op.function(x, 2))


# --- warnings ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def always():
    """torch repeats what it otherwise warns of once."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


def under(mode, function, *args, **kwargs):
    with mode:
        return function(*args, **kwargs)


# Ways to call f(x, 1, ...): the entry's, and those that it leaves.
WAYS = {
    "plain": lambda f, x, **kwargs: f(x, 1, **kwargs),
    "NumPy's name": lambda f, x, **kwargs: f(x, axis=1, **kwargs),
    "NumPy's int": lambda f, x, **kwargs: f(x, np.int64(1), **kwargs),
    "a subclass": lambda f, x, **kwargs: f(x.as_subclass(Subclass), 1, **kwargs),
    "a mode": lambda f, x, **kwargs: under(FunctionMode(), f, x, 1, **kwargs),
    "a dispatch mode": lambda f, x, **kwargs: under(DispatchMode(), f, x, 1, **kwargs),
}
WARNING = {
    "a resized out": ("was resized", lambda x: (x, dict(out=x.new_zeros(7)))),
    "a lost imaginary part": ("discards the imaginary part", lambda x: (x.to(torch.complex64), dict(dtype=x.dtype))),
}


def warned(function, *args, **kwargs):
    """The warnings that Python's filters see during a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*args, **kwargs)
    return caught


@needs_entry
@pytest.mark.parametrize("warning", WARNING)
@pytest.mark.parametrize("way", WAYS)
def test_warnings(way, warning, op, device, always, capfd):
    """A warning reaches Python's filters once, with torch's class, at the caller's line, and not stderr."""
    text, make = WARNING[warning]
    x, kwargs = make(torch.ones(3, 4, device=device))
    theirs = warned(WAYS[way], op.torch, x, **kwargs)
    x, kwargs = make(torch.ones(3, 4, device=device))
    (ours,) = warned(WAYS[way], op.function, x, **kwargs)
    assert [(w.category, text in str(w.message)) for w in (*theirs, ours)] == [(UserWarning, True)] * 2
    caller = under if way.endswith("mode") else WAYS[way]
    if not (ours.filename == torch._ops.__file__ and operators_warn_in_python()):  # the operator's own line
        assert ours.filename == __file__ and ours.lineno in {line for *_, line in caller.__code__.co_lines()}
    assert "Warning" not in capfd.readouterr().err
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match=text):
            WAYS[way](op.function, x, **kwargs | make(torch.ones(3, 4, device=device))[1])


@needs_entry
def test_warning_of_a_call_that_raises(capfd):
    """A call that warns and raises gives both. If the warning is an error as well, it is printed, as torch does."""
    if operators_warn_in_python():
        pytest.skip("this torch's operators raise the error that a warning is, before the call can raise its own")
    capfd.readouterr()  # what the probe has printed

    def warns():
        torch.ops.aten.sum.IntList_out(torch.ones(3, 4), [1], out=torch.zeros(7))
        raise KeyError("mine")

    def call():
        with pytest.raises(KeyError, match="mine"):
            _library.entry("call")(warns)

    assert ["was resized" in str(w.message) for w in warned(call)] == [True]
    assert capfd.readouterr().err == ""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call()
    assert "UserWarning: An output" in capfd.readouterr().err


@needs_entry
def test_refused_calls_do_not_warn(op, device, always):
    """A refused call does not resize its out, and does not warn that it does."""
    x, out = torch.ones(3, 4, dtype=torch.complex64, device=device), torch.zeros(7, device=device)

    def call():
        for args, kwargs in (((x, 2), {}), ((x, (0, 0)), {}), ((x, 0), dict(dtype=torch.float64)), ((x, True), {})):
            with pytest.raises((IndexError, RuntimeError, TypeError)):
                op.function(*args, **kwargs, out=out)

    assert not warned(call) and out.shape == (7,)


def test_operators_warn_in_cpp(op, device, capfd):
    """torch.ops has no way to Python's filters: its warnings go to stderr, for our operators and for aten's."""
    if operators_warn_in_python():
        pytest.skip("this torch's operators warn in Python")
    capfd.readouterr()  # what the probe has printed
    x = torch.ones(3, 4, device=device)
    for operator in (op.operator, op.aten):
        assert not warned(operator, x, [1], out=torch.zeros(7, device=device))
        assert "was resized" in capfd.readouterr().err


def test_warns_once():
    """Of imaginary parts torch warns once in a process, and so do we."""
    code = (
        "import torch, torch_reduce, warnings; warnings.simplefilter('always')\n"
        "x = torch.ones(3, dtype=torch.complex64)\n"
        "for f in (torch_reduce.sum, torch_reduce.mean, torch.sum):\n"
        "    with warnings.catch_warnings(record=True) as caught:\n"
        "        f(x, dtype=torch.float32), f(x, dtype=torch.float32)\n"
        "    print(len(caught), end=' ')"
    )
    result = run("-c", code, path=PACKAGE.parent)
    assert result.stdout.split() == ["1", "0", "1"] and "Casting" not in result.stderr, result.stderr


# --- without it -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["missing", "unreadable"])
def test_without_it(how, tmp_path):
    """Everything works without the entry."""
    copy = package_copy(tmp_path)
    (copy / ENTRY).unlink(missing_ok=True)
    if how == "unreadable":
        (copy / ENTRY).write_bytes(b"no library")
    code = (
        "import torch, torch_reduce; x = torch.arange(12.0).view(3, 4); out = torch.empty(4)\n"
        "assert torch_reduce._sum._direct_sum is torch_reduce._sum._direct_mean is None\n"
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
            raised(entry, x, 9, False, None, out)
            raised(entry, x, 9, False, None, None)
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
def test_tensors_swapped_meanwhile(op, taken, device):
    """Another thread may swap what a tensor object holds, during a call: that goes on with what it was given."""

    def swap(self, dim=None, keepdim=False, dtype=None):
        torch._C._swap_tensor_impl(x, other)  # what torch.utils.swap_tensors comes to
        return torch.ones(2, device=device)

    x = torch.ones(2, 3, device=device, requires_grad=True)
    other = torch.ones(5, 7, device=device, requires_grad=True)
    given = torch.autograd.graph.get_gradient_edge(x).node
    with torch.library._scoped_library("gpureduce", "IMPL") as library:
        library.impl(op.name, swap, "ADInplaceOrView")  # below autograd, which then looks at the input again
        y = op.function(x, 1)
    assert x.shape == (5, 7) and taken(x)
    assert y.grad_fn.next_functions[0][0] is given
    assert torch.autograd.grad(y.sum(), other)[0].shape == (2, 3)


@needs_entry
def test_tensors_swapped_by_a_thread(op, device):
    """torch.utils.swap_tensors while another thread sums: it swaps between calls, or says that a tensor is in use."""
    x, other = (torch.full((size,), 2.0, device=device) for size in (1 << 14, 1 << 15))
    swaps, stop = [], threading.Event()

    def swap():
        while not stop.is_set():
            try:
                torch.utils.swap_tensors(x, other)
                swaps.append(None)
            except RuntimeError:
                pass
            time.sleep(0)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        seen, calls = set(), 0
        while calls < 3000 or (not swaps and calls < 1_000_000):  # a busy machine may let the thread wait for long
            seen.add(float(op.function(x)))
            calls += 1
    finally:
        stop.set()
        thread.join(timeout=60)
    assert seen <= ({2.0} if op.divides else {2.0 * x.numel(), 2.0 * other.numel()})
    assert swaps and not thread.is_alive()


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
        while len(turns) == before and len(totals) < 5000:  # busy cores may not wake the thread during one call
            totals.append(entry(x, None, False, None, None))
        during = len(turns) - before
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        thread.join(timeout=60)
    assert {float(total) for total in totals} == {1 if op.divides else 1 << 26}
    assert during > 0 and not thread.is_alive()


@needs_entry
@every_operation
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
        ["readelf", "--dyn-syms", "--wide", PACKAGE / ENTRY], capture_output=True, text=True, check=True
    ).stdout
    stable = """
        _Py_Dealloc _Py_FalseStruct _Py_NoneStruct _Py_NotImplementedStruct _Py_TrueStruct PyBytes_AsString
        PyDict_GetItemString PyErr_Clear PyErr_Fetch PyErr_Print PyErr_Restore PyErr_SetString PyErr_WarnEx
        PyEval_RestoreThread PyEval_SaveThread PyExc_DeprecationWarning PyExc_ImportError PyExc_UserWarning
        PyFloat_AsDouble PyFloat_Type PyList_GetItem PyList_Size PyList_Type PyLong_AsLongLongAndOverflow
        PyLong_Type PyModule_Create2 PyObject_Call PyObject_CallNoArgs PyObject_GetAttrString PySys_GetObject
        PyTuple_GetItem PyTuple_GetSlice PyTuple_Size PyTuple_Type PyUnicode_AsUTF8String
    """
    needed = set(re.findall(r"UND +(_?Py\w+)", symbols))
    assert "PyModule_Create2" in needed and needed <= set(stable.split())
