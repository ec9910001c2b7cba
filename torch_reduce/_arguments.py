"""The forms in which torch's reductions take their arguments, turned into the operators' schema.

Plain calls do not come here. What torch refuses is refused in torch's own words.
"""

import inspect
import re
from collections.abc import Callable, Sequence
from numbers import Integral, Number
from operator import index
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, SupportsIndex, TypeAlias, TypeVar

import torch
from torch import SymBool, SymFloat, SymInt, Tensor

if TYPE_CHECKING:
    from .distributed._shard import Shard

# NumPy's names, as torch takes them.
_NAMES = {"a": "input", "x": "input", "x1": "input", "axis": "dim", "keepdims": "keepdim"}
_DEFAULTS = {"input": None, "ord": 2, "dim": None, "keepdim": False}
_LARGE = 1 << 63
_DTYPES = ((float, torch.float64), (int, torch.int64), (bool, torch.bool), (complex, torch.complex128))

Input: TypeAlias = "Tensor | Shard"
# Integers of NumPy, and integer tensors of one element, are SupportsIndex.
Dims: TypeAlias = SupportsIndex | tuple[SupportsIndex, ...] | list[int] | list[SupportsIndex] | None
Ord: TypeAlias = float | Tensor
Dtype: TypeAlias = torch.dtype | type[bool] | type[int] | type[float] | type[complex] | None

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


# --- signatures -------------------------------------------------------------------------------------------------------
# What people and type checkers are told of functions that take NumPy's names beside torch's. No form is ever called.


def called_as(form: Callable[_Given, _Result]) -> Callable[[Callable[..., Any]], Callable[_Given, _Result]]:
    """Gives a function the signature of ``form``. A call takes no longer by that, and is not held to it."""

    def give(function: Callable[..., Any]) -> Callable[_Given, _Result]:
        function.__signature__ = inspect.signature(form)
        return function

    return give


def reduction(input: Input, dim: Dims = None, keepdim: bool = False, *, out: Tensor | None = None) -> Tensor:
    raise NotImplementedError


def reduction_to(
    input: Input, dim: Dims = None, keepdim: bool = False, *, dtype: Dtype = None, out: Tensor | None = None
) -> Tensor:
    raise NotImplementedError


def extreme(
    input: Input, dim: SupportsIndex, keepdim: bool = False, *, out: tuple[Tensor, Tensor] | None = None
) -> "torch.return_types.max":
    raise NotImplementedError


def smallest_and_largest(
    input: Input,
    *,
    dim: SupportsIndex | None = None,
    keepdim: bool = False,
    out: tuple[Tensor, Tensor] | None = None,
) -> "torch.return_types.aminmax":
    raise NotImplementedError


def summation(
    input: Input,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: Dtype = None,
    out: Tensor | None = None,
    exact: bool = False,
) -> Tensor:
    raise NotImplementedError


def norm(
    input: Input,
    ord: Ord = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: Dtype = None,
    out: Tensor | None = None,
    exact: bool = False,
) -> Tensor:
    raise NotImplementedError


def variance(
    input: Input,
    dim: Dims = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
    out: Tensor | None = None,
) -> Tensor:
    raise NotImplementedError


def variance_and_mean(
    input: Input,
    dim: Dims = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:
    raise NotImplementedError


# --- arguments over ranks ---------------------------------------------------------------------------------------------
# torch_reduce.distributed needs the modules of all functions, so these do not import it. It enters here what it does in
# their place, and is imported as soon as there can be a DTensor or a Shard: see the end of __init__.py.

_OVER_RANKS: dict[str, Callable[..., Any]] = {}


def enter(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Lets :func:`over_ranks` find a function by its name: a decorator."""
    _OVER_RANKS[function.__name__] = function
    return function


def over_ranks(name: str) -> Callable[..., Any]:
    """The function of torch_reduce.distributed that has entered by this name."""
    return _OVER_RANKS[name]


def mesh_of(tensor: Any) -> Any:
    """The mesh of a DTensor; of another tensor None. It is asked without their module, which takes long to import."""
    return getattr(tensor, "device_mesh", None) if isinstance(tensor, Tensor) else None  # torch.fx's have any attribute


def joined(tensor: Any) -> Any:
    """A DTensor whose Partial placements are joined, for functions whose gradients ask which elements are the extreme
    ones; others as they are."""
    if type(tensor) is Tensor or mesh_of(tensor) is None:
        return tensor
    return over_ranks("joined")(tensor)


# --- arguments --------------------------------------------------------------------------------------------------------


def tensors(function: str, **given: Any) -> None:
    """Raises torch's error if an argument that must be a tensor is none: torch.ops has a RuntimeError for that."""
    for argument, value in given.items():
        if not isinstance(value, Tensor) and not stands_for_a_tensor(value):
            kind = type(value).__name__
            hint = ": torch.tensor makes one of it" if isinstance(value, (list, tuple)) else ""
            raise TypeError(f"{function}(): argument '{argument}' must be Tensor, not {kind}{hint}") from None


def plain_tensors(function: str, **given: Any) -> None:
    """The same, but a Shard is refused, too: in most places nothing stands for a tensor."""
    for argument, value in given.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{function}(): argument '{argument}' must be Tensor, not {type(value).__name__}")


def integer(function: str, argument: str, value: Any) -> None:
    """Raises torch's error if an argument that must be an integer is none."""
    if isinstance(value, bool) or (not isinstance(value, (int, SymInt)) and not hasattr(value, "__index__")):
        raise TypeError(f"{function}(): argument '{argument}' must be int, not {type(value).__name__}")


def dtype(function: str, value: Any) -> None:
    """Raises torch's error if dtype= is none: torch.ops takes the number of one, too."""
    if value is not None and not isinstance(value, torch.dtype):
        raise TypeError(f"{function}(): argument 'dtype' must be torch.dtype, not {type(value).__name__}")


def boolean(function: str, argument: str, value: Any) -> None:
    """Raises torch's error if an argument that must be a bool is none."""
    if not isinstance(value, bool):
        raise TypeError(f"{function}(): argument '{argument}' must be bool, not {type(value).__name__}")


def rename(error: Exception, *names: str, to: str) -> None:
    """Lets an error, whose words are another function's, name the function that was called."""
    text = str(error)
    for name in names:
        text = re.sub(rf"(?<![\w.]){re.escape(name)}\b", to, text)
    error.args = (text, *error.args[1:])


_CLASSES = (IndexError, NotImplementedError, RuntimeError, TypeError, ValueError)
_KINDS = {"number": "Number", "List[int]": "tuple of ints", "List[Tensor]": "tuple of Tensors"}
# What torch says in place of a sentence, and of what in it a sentence can be made.
_MISMATCH = re.compile(
    r"\w+::\w+\(\) Expected a value of type '(.+?)' for argument '(\w+)' but instead found type '(.+?)'"
)
_NO_KERNEL = re.compile(r"Could not run '.+?' with arguments from the '(\w+?)(?:CPU|CUDA|Meta)?' backend")
_NO_MEMORY = re.compile(r"CPUAllocator: (?:can't allocate|not enough) memory: you tried to allocate (\d+) bytes")
_PART = re.compile(r"(\w+)(\(\))?: |linalg\.\w+: ")
_NAMED = re.compile(r"(?<=^')\w+(?=')|(?<= give )\w+(?=\.detach)")  # an argument in the words of a Shard's error
_NO_METHOD = re.compile(r"gpureduce\.\w+\.\w+$|Internal error: NestedTensorImpl")


def named(error: Exception, function: str, given: Sequence[Any] = (), **others: str) -> Exception:
    """An error of an operator as one of the function that was called: one line, which begins with the function's name.

    Args:
        error: what the operator raised.
        function: the name of the function.
        given: the arguments, which may be tensors that no function takes.
        others: the names of the function's arguments, by those that the operator has for them.
    """
    if isinstance(error, MemoryError):
        return MemoryError(f"{function}(): there is not enough memory")
    if type(error) not in _CLASSES:
        return error
    text = str(error)
    if found := _MISMATCH.match(text):
        kind, argument, given = found.groups()
        argument = others.get(argument, argument)
        kind = kind.removeprefix("Optional[").removesuffix("]") if kind.startswith("Optional[") else kind
        kind = "torch.dtype" if argument == "dtype" else _KINDS.get(kind, kind)
        if kind == given == "int":
            return ValueError(f"{function}(): argument '{argument}' must be an int of 64 bits")
        hint = ": torch.tensor makes one of it" if kind == "Tensor" and given in ("list", "tuple") else ""
        return TypeError(f"{function}(): argument '{argument}' must be {kind}, not {given}{hint}")
    layout = next(filter(None, map(layout_of, given)), None) or (_NO_METHOD.match(text) and "nested")
    if layout and not re.search(f"{layout} tensor|layout", text):
        return NotImplementedError(f"{function}(): {layout} tensors are not supported")
    if found := _NO_KERNEL.match(text):
        return NotImplementedError(f"{function}(): {found[1]} tensors are not supported")
    if found := _NO_MEMORY.search(text):
        return RuntimeError(f"{function}(): there is not enough memory for {found[1]} bytes more")
    part = _PART.match(text)  # of what the function is made of, or its own name
    if not part and text.startswith(f"{function}("):
        return error
    name = part[0] if part and part[1] == function else f"{function}(): "
    if part and (part[1] is None or part[2] or _is_operator(part[1])):
        text = text[part.end() :]
    argument = text.partition(":")[0]
    if argument in others:
        text = others[argument] + text[len(argument) :]
    text = re.sub(_NAMED, lambda found: others.get(found[0], found[0]), text)
    text = re.sub(r"\b(\w+)(?= is on )", lambda found: others.get(found[1], found[1]), text)
    error.args = (f"{name}{text}", *error.args[1:])
    return error


def layout_of(given: Any) -> str | None:
    """The kind of a tensor that is not strided."""
    if not isinstance(given, Tensor) or (given.layout is torch.strided and not given.is_nested):
        return None
    if given.is_nested:
        return "nested"
    return "sparse" if "sparse" in str(given.layout) else str(given.layout).removeprefix("torch.")


def _is_operator(name: str) -> bool:
    return hasattr(torch.ops.gpureduce, name) or hasattr(torch.ops.gpureduce, f"_{name}")


def read(name: str, given: dict[str, Any], others: dict[str, Any], like: str | None = None) -> dict[str, Any]:
    """Plain forms of what a function of torch_reduce was given: its input, ord if it has one, dim, keepdim, dtype, out.

    Args:
        name: of the function.
        given: all of its arguments by their own names, in the operator's order.
        others: those by any other name.
        like: the function of torch that has the same arguments, if it is not torch.<name>.

    Raises:
        TypeError, and whatever else torch's function raises for these arguments.
    """
    if not others and _is_plain(**given):
        return given
    try:
        return _plain(given, others)
    except (TypeError, OverflowError) as error:
        reason = str(error)
    _refuse(name, given, others, reason, like or name)


def _is_plain(input: Any, dim: Any, keepdim: Any, dtype: Any, out: Any, ord: Any = 2) -> bool:
    """Whether this is a form that most calls have, and the operator too. A compiled call checks all that is read here
    each time, which for the other forms is much more."""
    return (
        isinstance(input, Tensor)
        and (
            dim is None
            or (type(dim) is int and -_LARGE < dim < _LARGE)
            or (type(dim) in (tuple, list) and _are_plain(dim))
        )
        and type(keepdim) is bool
        and (dtype is None or type(dtype) is torch.dtype)
        and out is None
        and (type(ord) is int or type(ord) is float)
    )


def _are_plain(dims: Sequence[Any]) -> bool:
    return all(type(dim) is int and -_LARGE < dim < _LARGE for dim in dims)


def _plain(given: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    plain = dict(given)
    for other, value in others.items():
        argument = _NAMES.get(other)
        if argument is None:
            raise TypeError(f"there is no argument '{other}'")
        if plain[argument] is not _DEFAULTS[argument]:
            raise TypeError(f"'{other}' is another name of '{argument}', which is given too")
        plain[argument] = value
    for python, dtype in _DTYPES:
        if plain["dtype"] is python:
            plain["dtype"] = dtype
    input, out = plain["input"], plain["out"]
    if stands_for_a_tensor(input):
        return plain  # a neighbour may be a stand-in for a dim, as in torch.fx
    _expect("input", input, Tensor)
    _expect("keepdim", plain["keepdim"], bool)
    _expect("dtype", plain["dtype"], torch.dtype, type(None))
    if not stands_for_a_tensor(out):
        _expect("out", out, Tensor, type(None))
    plain["dim"] = dims(plain["dim"])
    if "ord" in plain:
        plain["ord"] = number("ord", plain["ord"])
    return plain


def stands_for_a_tensor(value: Any) -> bool:
    return value is not None and not isinstance(value, Tensor) and hasattr(type(value), "__torch_function__")


def _expect(argument: str, value: Any, *types: type) -> None:
    if not isinstance(value, types):
        raise TypeError(f"'{argument}' must be of {types[0].__name__}, not of {type(value).__name__}")


def number(argument: str, value: Any) -> Any:
    """The number that an argument is: Python's, NumPy's or a tensor's."""
    if isinstance(value, (int, float, complex, SymInt, SymFloat, SymBool)):
        return value
    of_numpy = isinstance(value, Number) or any(base.__module__ == "numpy" for base in type(value).__mro__)
    if isinstance(value, Tensor):
        plain = value.dim() == 0 and not value.requires_grad and not value.is_meta
    else:
        plain = of_numpy and hasattr(value, "item") and getattr(value, "shape", ()) == ()
    if plain:
        return value.item()
    raise TypeError(f"'{argument}' must be a number, not {type(value).__name__}")


def scalar(function: str, argument: str, value: Any) -> Any:
    """The same, with torch's error for what is none."""
    try:
        return number(argument, value)
    except TypeError:
        raise TypeError(f"{function}(): argument '{argument}' must be Number, not {type(value).__name__}") from None


def dims(dim: Any) -> Any:
    """The dims that an argument names: an int, a list of ints, or None."""
    if dim is None:
        return None
    if isinstance(dim, (tuple, list)):
        if dim and isinstance(dim[0], bool):  # torch looks at the first one alone
            raise TypeError("'dim' must be ints, not bool")
        return [_dim(one) for one in dim]
    if isinstance(dim, bool) or not isinstance(dim, (Integral, Tensor, SymInt)):
        raise TypeError(f"'dim' must be an int, or a tuple or list of them, not {type(dim).__name__}")
    return _dim(dim)


def _dim(dim: Any) -> Any:
    if isinstance(dim, SymInt):
        return dim
    try:
        whole = index(dim)
    except TypeError:
        raise TypeError(f"'dim' must be ints, not {type(dim).__name__}") from None
    if not -(1 << 63) <= whole < 1 << 63:
        raise OverflowError(f"'dim' must be of 64 bits, not {whole}")
    return whole


def _refuse(name: str, given: dict[str, Any], others: dict[str, Any], reason: str, like: str) -> NoReturn:
    """Raises what torch's function raises; or a TypeError with `reason`, should another torch take these arguments."""
    named = {argument: value for argument, value in given.items() if value is not _DEFAULTS.get(argument)}
    if isinstance(given["out"], Tensor):
        del named["out"]  # nothing may be written
    input = [named.pop("input")] if "input" in named else []
    if input and isinstance(input[0], Tensor):
        input = [torch.empty([0] * input[0].dim(), device="meta")]  # and nothing computed
    if not hasattr(torch, like) and not hasattr(torch.linalg, like):
        like = "sum"  # torch has no such function
    function = getattr(torch, like, None) or getattr(torch.linalg, like)
    try:
        function(*input, **named, **others)
    except Exception as error:
        rename(error, like, f"linalg_{like}", to=name)
        if "\n" not in str(error) and str(error).startswith(name):
            raise
        kind = type(error)  # its text is a list of signatures, or does not say what is wrong
        raise (kind if kind in _CLASSES else TypeError)(f"{name}(): {reason}") from None
    raise TypeError(f"{name}(): {reason}")
