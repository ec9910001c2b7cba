"""The forms of arguments: torch_reduce.sum and mean take what torch's take, and refuse what they refuse."""

import collections
import contextlib
import decimal  # noqa: F401 (named in calls)
import enum
import fractions  # noqa: F401
import re
import warnings

import numpy as np
import pytest
import torch
from torch.overrides import BaseTorchFunctionMode

import torch_reduce
from support import assert_same_bits, class_of_ours, data


class Index:
    """No int, but with __index__."""

    def __index__(self):
        return 1


class Int(int):
    pass


class List(list):
    pass


Point = collections.namedtuple("Point", "a b")
Axis = enum.IntEnum("Axis", {"COLUMN": 1})


def words(text):
    return text.split()


# Calls of f on x, (2, 3, 4) of float32; y is (3, 4).
DIMS = words("""
    0 -1 3 -4 None () [] (0,) [1] (0,1) [0,2] (0,0) (1,-2) (0,3) torch.Size([0,1]) Point(0,1) List([0]) Int(1) (Int(1),)
    Axis.COLUMN [Axis.COLUMN] np.int64(1) np.int32(-1) np.uint8(1) np.int64(5) [np.int64(0)] [np.int64(0),1]
    (0,np.int64(1)) np.bool_(True) (np.bool_(True),) (0,np.bool_(True)) np.float64(1) [np.float64(0)] (0,np.float64(1))
    np.array(0) np.array(1.0) np.array([0]) np.array([0,1]) np.array([[0]]) np.zeros(0,dtype=int)
    torch.tensor(1) torch.tensor(-1) torch.tensor(7) torch.tensor(1,dtype=torch.uint8) torch.tensor(True)
    torch.tensor(1.0) torch.tensor([1]) torch.tensor([[1]]) torch.tensor([0,1]) torch.empty(0,dtype=int)
    torch.tensor(0,device='meta') torch.tensor(1.0,requires_grad=True) [torch.tensor(1)] [0,torch.tensor(1)]
    (torch.tensor(0),torch.tensor(1)) [torch.tensor(True)] [0,torch.tensor(True)] [torch.tensor(1.0)]
    [0,torch.tensor(1.0)] [torch.tensor([1])] torch.nn.Parameter(torch.tensor(1),requires_grad=False)
    True False [True] (False,) (0,True) (True,0) range(2) range(0) {0} {0:1} {0:1}.keys() frozenset([0]) iter([0])
    map(int,[0]) (i*1for(i)in[0]) collections.deque([0]) 0.0 1.5 [0.0] (0,1.0) 1j [[0]] [(0,)] (0,[1]) [None] (None,0)
    [0,None] 'a' ['a'] 'ab' ('a','b') ['a',0] [0,'a'] '' b'a' b'' bytearray(b'') memoryview(b'a') 1<<31 1<<62 1<<63
    1<<70 -(1<<63) -(1<<70) [1<<70] [0,1<<70] float('nan') float('inf') Index() [Index()] (0,Index()) ... slice(0,1)
    object() int torch.int64 [0]*70 fractions.Fraction(1) decimal.Decimal(1) NotImplemented print
""")

FORMS = [
    *(f"f(x, {dim})" for dim in DIMS),
    *(f"f(x, dim={dim}, keepdim=True)" for dim in DIMS),
    *(f"f(x, axis={dim})" for dim in DIMS),
    # keepdim
    *(
        f"f(x, 0, {how}{keep})"
        for keep in words("True False None 1 0 2 1.0 'a' [] x np.bool_(True) np.int64(1) torch.tensor(True) object()")
        for how in ("", "keepdim=", "keepdims=")
    ),
    # dtype
    *(
        f"f(x, 0, dtype={dtype})"
        for dtype in words("""
            float int bool complex None torch.float64 torch.int32 torch.bool torch.complex64 str object 1 'float'
            'float32' [] np.float32 np.dtype('f4') np.dtype('f8') float() type(None) x x.dtype torch.strided Int
        """)
    ),
    "f(x, dtype=float)",
    "f(x, dtype=int)",
    "f(x, None, dtype=float)",
    "f(x.int())",
    "f(x.int(), 0, dtype=float)",
    "f(x.bool(), dtype=complex)",
    "f(x, dim=np.int64(0), keepdim=True, dtype=float)",
    "f(x, axis=torch.tensor(1), keepdims=True, dtype=complex)",
    # out
    *(
        f"f(x, 0, out={out})"
        for out in words("""
            None y (y,) [y] 1.0 'y' np.zeros((3,4),'f4') object() y.double() y.cfloat() y.int() y.bool() y.to('meta')
            y.to_sparse() y[0] y.t()
        """)
    ),
    "f(x, np.int64(0), out=y)",
    "f(x, axis=0, out=y)",
    "f(x, axis=0, keepdims=True, out=y)",
    "f(x, 0, dtype=float, out=y)",
    "f(x, 0, dtype=float, out=y.double())",
    "f(x, 0, dtype=torch.float32, out=y)",
    "f(x, None, out=y)",
    # input
    "f()",
    "f(None)",
    "f(1.0)",
    "f(True)",
    "f('x')",
    "f([1.0])",
    "f([x])",
    "f((x,))",
    "f(np.zeros(3))",
    "f(np.float64(1))",
    "f(x.numpy(), 0)",
    "f(object())",
    "f(torch.nn.Parameter(x))",
    "f(torch.tensor(True))",
    "f(torch.tensor(1.0), 0)",
    "f(torch.tensor(1.0), (0, -1))",
    "f(torch.tensor(1.0), np.int64(-1))",
    "f(torch.tensor(1.0), 1)",
    "f(x.to_sparse(), True)",
    # names
    "f(input=x)",
    "f(input=x, dim=0, keepdim=True, dtype=None, out=None)",
    "f(a=x)",
    "f(x=x)",
    "f(x1=x)",
    "f(x2=x)",
    "f(self=x)",
    "f(a=x, axis=0, keepdims=True)",
    "f(a=x, x=x)",
    "f(a=x, input=x)",
    "f(a=[1.0])",
    "f(a=None)",
    "f(x, input=x)",
    "f(x, a=x)",
    "f(0, input=x)",
    "f(dim=0)",
    "f(axis=0)",
    "f(x, dim=0, axis=0)",
    "f(x, dim=0, axis=None)",
    "f(x, 0, axis=0)",
    "f(x, 0, axis=1)",
    "f(x, 0, True, keepdims=True)",
    "f(x, 0, True, keepdims=False)",
    "f(x, 0, keepdim=True, keepdims=True)",
    "f(x, axis=0, keepdim=True)",
    "f(x, dim=0, keepdims=True)",
    "f(x, axis=None, keepdims=True)",
    "f(x, axes=0)",
    "f(x, 0, foo=1)",
    "f(x, foo=None)",
    "f(x, 0, where=None)",
    "f(x, 0, initial=0)",
    "f(x, 0, layout=None)",
    "f(x, 0, tuning='')",
    "f(x, **{'': 0})",
    "f(x, **{'dim ': 0})",
    # positions
    "f(x, 0, True, None)",
    "f(x, 0, False, torch.float64)",
    "f(x, 0, True, None, None)",
    "f(x, 0, 1, 2)",
    "f(x, 0, 1)",
    "f(x, x)",
    "f(x, 0, y)",
    "f(x, *(0,), **{'keepdim': True})",
]

# Those whose error, though of torch's class, has other words: Python's, or ours about `out`.
OTHER_WORDS = {
    "f(x, input=x)": "multiple values for argument 'input'",
    "f(0, input=x)": "multiple values for argument 'input'",
    "f(x, 0, True, None)": "positional arguments but 4 were given",
    "f(x, 0, False, torch.float64)": "positional arguments but 4 were given",
    "f(x, 0, True, None, None)": "positional arguments but 5 were given",
    "f(x, 0, 1, 2)": "positional arguments but 4 were given",
    "f(None)": "invalid combination of arguments",
    "f(x, 0, dtype=float, out=y)": "Expected out tensor to have dtype Double, but got Float",
    "f(x, 0, out=y.int())": "output dtype.*Got: Int",
    "f(x, 0, out=y.bool())": "output dtype.*Got: Bool",
    "f(x, 0, out=y.to('meta'))": "out: Expected all tensors to be on the same device, but .* and out is on meta",
    "f(x, 0, out=y.to_sparse())": "sparse tensors are not supported",
}

# The only differences: what torch refuses and we take, as documented. A default stands for what was not given.
MORE = [
    "f(x, keepdim=True)",
    "f(x, keepdims=True)",
    "f(x, None, axis=0)",
    "f(x, dim=None, axis=0)",
    "f(x, 0, False, keepdims=True)",
    "f(None, a=x)",
    "f(x.to(torch.float8_e5m2), 0)",
    "f(x, 0, dtype=torch.float8_e5m2)",
    "f(x.new_ones([1] * 65), 64)",
]
MORE_OF_SUM = [
    "f(x, out=x.new_zeros(()))",
    "f(x, 0, dtype=torch.uint16)",
]
# What torch takes, on the CPU, and we refuse: several results in one place.
FEWER = ["f(x, 0, out=y[:1, :1].expand(3, 4))"]
# On CUDA torch.mean does not look at the dtype of `out`, as on the CPU it does: it writes integers, or has no kernel.
MEANS_ON_CUDA = ["f(x, 0, out=y.int())", "f(x, 0, out=y.bool())"]


def told(call, f, device):
    """A call's result with its dtype, shape and strides, or the class and words of its error."""
    x = data((2, 3, 4), "float32", device=device)
    try:
        result = eval(call, globals(), dict(f=f, x=x, y=torch.zeros(3, 4, device=device)))
    except Exception as error:
        return type(error), str(error)
    return (result.dtype, result.shape, result.stride()), result


def difference(call, op, device):
    """How a call of ours differs from one of torch's, or None."""
    (wanted, theirs), (got, ours) = told(call, op.torch, device), told(call, op.function, device)
    if isinstance(wanted, type):
        wanted = class_of_ours(wanted, theirs)
    if got != wanted:
        return f"{call}: {got} {ours}, not {wanted} {theirs}"
    if isinstance(ours, torch.Tensor):
        if ours.device.type != "meta":
            torch.testing.assert_close(ours, theirs)
        return None
    # the first lines alone, and nothing of how the arguments were given
    ours, theirs = (text.split(" - got")[0].split("\n")[0] for text in (ours, theirs))
    ours, theirs = (re.sub(r" \(position \d+\)", "", text) for text in (ours, theirs))  # torch versions differ
    # Ours begin with the function, and where torch's parser refuses, they name the argument.
    if ours.removeprefix(f"{op}(): ") == theirs.removeprefix(f"{op}(): ") or re.match(rf"{op}\(\): .*'\w* ?'", ours):
        return None
    if call in OTHER_WORDS and re.search(OTHER_WORDS[call], ours, re.DOTALL):
        return None
    return f"{call}: {ours}, not {theirs}"


@contextlib.contextmanager
def nothing():
    yield


AROUND = {"alone": nothing, "in a mode": BaseTorchFunctionMode, "without gradients": torch.no_grad}


@pytest.mark.parametrize("around", AROUND)
def test_forms_of_torch(around, op, device):
    """torch_reduce takes what torch takes, and refuses what it refuses, with its class and its words."""
    assert len(FORMS) > 500
    with warnings.catch_warnings(), AROUND[around]():
        warnings.simplefilter("ignore")
        known = MEANS_ON_CUDA if op.divides and device == "cuda" else []
        differences = [one for call in FORMS if call not in known and (one := difference(call, op, device))]
    assert not differences, "\n".join(differences)


def test_forms_beyond_torch(op, device):
    """The only differences are these."""
    for call in MORE if op.divides else MORE + MORE_OF_SUM:
        assert isinstance(told(call, op.torch, device)[0], type), call
        assert isinstance(told(call, op.function, device)[1], torch.Tensor), call
    for call in FEWER + (MEANS_ON_CUDA if op.divides else []):
        assert told(call, op.function, device)[0] is RuntimeError, call


def test_forms_of_a_subclass(op, device):
    """A subclass is called with the names of the operator's schema, whatever names the call used."""
    seen = []

    class Subclass(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            seen.append((func, args[1:], kwargs))
            return super().__torch_function__(func, types, args, kwargs or {})

    x = torch.ones(3, 4, device=device).as_subclass(Subclass)
    ours = op.function(x, axis=np.int64(1), keepdims=True, dtype=float)
    assert type(ours) is Subclass and ours.shape == (3, 1) and ours.dtype == torch.float64
    assert seen[0] == (op.operator.default, (1, True), dict(dtype=torch.float64))


def test_forms_of_explain(device):
    """explain reads its arguments as sum does."""
    x = torch.ones(3, 4, device=device)
    wanted = torch_reduce.explain(x, 1, dtype=torch.float64)
    for dim in (np.int64(1), torch.tensor(1), [np.int64(1)]):
        assert torch_reduce.explain(x, dim, dtype=float) == wanted
    with pytest.raises(TypeError, match=r"^explain\(\)"):
        torch_reduce.explain(x, True)


COMPILED = {
    "axis": lambda f, x: f(x, axis=0),
    "all by NumPy's names": lambda f, x: f(a=x, axis=(0, -1), keepdims=True),
    "dtype": lambda f, x: f(x, [1], dtype=float),
    "dims from shapes": lambda f, x: f(x, x.shape[0] - 1),
    "bool": lambda f, x: f(x, True),
    "range": lambda f, x: f(x, range(2)),
    "keepdim of int": lambda f, x: f(x, 0, 1),
    "no keepdim": lambda f, x: f(x, 0, None),
    "dim twice": lambda f, x: f(x, 0, axis=1),
    "unknown": lambda f, x: f(x, 0, foo=1),
    "text": lambda f, x: f(x, "a"),
}


@pytest.mark.parametrize("call", COMPILED)
def test_forms_compiled(call, op, device):
    """torch.compile takes the same forms, in one graph, and refuses the same."""
    x = data((2, 3, 4), "float32", device=device)
    outcomes = []
    for f in (op.torch, op.function):
        torch._dynamo.reset()
        try:
            result = torch.compile(lambda x, f=f: COMPILED[call](f, x), backend="eager", fullgraph=True)(x)
        except Exception as error:
            outcomes.append(type(error))
        else:
            assert_same_bits(result, COMPILED[call](f, x))
            outcomes.append((result.shape, result.dtype))
    torch._dynamo.reset()
    assert outcomes[0] == outcomes[1]
