"""Runs of functions whose operations are recorded, and which operations of two runs belong together."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from difflib import SequenceMatcher
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

CHOOSING = tuple(f"torch._inductor.runtime.{name}" for name in ("benchmarking", "triton_heuristics"))
STATISTICS = ("running_mean", "running_var")  # which some operators write without saying so


@dataclass
class Call:
    """An operation that computes: its name, its tensors before the call, and what it had made of them after it."""

    name: str
    given: list[Tensor]
    others: list[Any]  # its arguments that are no tensors
    made: list[Tensor]
    outside: tuple[int | None, ...]  # where the given tensors begin that were there before the run
    sources: list[int | None]  # the storages of what was given
    storages: list[int | None]  # and of what was made


def leaves(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a tree, named by the way to them. Mappings and data classes that torch does not know, as models
    return them, are taken apart, too."""
    if isinstance(tree, Mapping):
        inner = [(f"{name}[{key!r}]", x) for key, x in tree.items()]
    elif is_dataclass(tree) and not isinstance(tree, type):
        inner = [(f"{name}.{field.name}", getattr(tree, field.name)) for field in fields(tree)]
    else:
        parts = tree if isinstance(tree, (list, tuple)) else tree_leaves(tree)
        inner = [(f"{name}[{i}]", x) for i, x in enumerate(parts)]
        if len(inner) == 1 and inner[0][1] is tree:
            yield name, tree
            return
    for way, x in inner:
        yield from leaves(x, way)


def tensors(tree: Any) -> list[Tensor]:
    """The tensors in a tree."""
    return [x for _, x in leaves(tree) if isinstance(x, Tensor)]


def values(tree: Any, name: str) -> dict[str, Tensor]:
    """The tensors in a tree, by their names, and its numbers as tensors."""
    wide = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
    found = {}
    for way, x in leaves(tree, name):
        if isinstance(x, Tensor):
            found[way] = x.detach().clone()
        elif type(x) in wide and (type(x) is not int or -(1 << 63) <= x < 1 << 63):
            found[way] = torch.tensor(x, dtype=wide[type(x)], device="cpu")
    return found


class Run(TorchDispatchMode):
    """Runs a function on copies of its inputs, and keeps what its operations are given and make.

    Views and clones compute nothing. What is allocated without values is filled with zeros, so that two runs read the
    same from it. Results that nobody reads, such as an attention's log-sums outside of training, may have any values.
    Every run begins with the same state of torch's generators and with the same values in the tensors that the function
    has of its own, such as a model's statistics: when it is over, both are what they were before.
    """

    def __init__(self, function: Callable[..., Any], inputs: Iterable[Any]) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.sources: dict[str | None, int | None]  # the storages of its results and inputs, by their names
        self.alive: dict[int, StorageWeakRef] = {}  # of this run: its inputs and what it made. No number comes twice
        self.read: set[int | None] = {None}
        self.clones: dict[int | None, int | None] = {}  # storages, and those that they are clones of
        self.before: dict[int, tuple[UntypedStorage, UntypedStorage]] = {}  # what it writes that was there, and a copy
        copies = tree_map_only(Tensor, lambda x: x.detach().clone().requires_grad_(x.requires_grad), list(inputs))
        for x in tensors(copies):
            self._enter(x)
        gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
        try:
            with torch.random.fork_rng(gpus), self:
                tree = function(*copies)
            self.results, self.inputs = values(tree, "result"), values(copies, "inputs")
            named = [*leaves(tree, "result"), *leaves(copies, "inputs")]
            self.sources = {name: self.storage(x) for name, x in named if isinstance(x, Tensor)}
        finally:
            for storage, copy in self.before.values():
                if storage.nbytes() == copy.nbytes():  # FSDP frees some
                    storage.copy_(copy)
        self.read.update(self.sources.get(name) for name in self.results)
        if not self.ignore_compile_internals():
            self.calls = [call for call in self.calls if not self.read.isdisjoint(call.storages)]

    def storage(self, x: Tensor) -> int | None:
        """A number of its storage; None if it has none of its own."""
        try:
            return StorageWeakRef(x.untyped_storage()).cdata
        except (NotImplementedError, RuntimeError):
            return None

    def value(self, name: str | None) -> Tensor | None:
        """A result, or an input as the function left it, by its name."""
        return self.results.get(name or "", self.inputs.get(name or ""))

    def maker(self, source: int | None, end: int) -> int | None:
        """The last call before ``end`` that made or changed what is in a storage, or what it is a clone of."""
        while source is not None:
            for call in reversed(range(end)):
                if source in self.calls[call].storages:
                    return call
            source = self.clones.get(source)
        return None

    def _enter(self, x: Tensor) -> None:
        number = self.storage(x)
        if number is not None and number not in self.alive:
            self.alive[number] = StorageWeakRef(x.untyped_storage())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _is_choosing_kernels():
            return func(*args, **kwargs)
        arguments = func._schema.arguments
        outs = {argument.name for argument in arguments if argument.is_out}
        named = list(leaves([args, {name: x for name, x in kwargs.items() if name not in outs}]))
        given = [x for _, x in named if isinstance(x, Tensor)]
        sources = [self.storage(x) for x in given]
        self.read.update(sources)
        inside = [number is None or number in self.alive for number in sources]
        kept = [x.detach().clone() if own else x for x, own in zip(given, inside, strict=True)]
        written = tensors(
            [
                kwargs.get(argument.name, args[i] if i < len(args) else None)
                for i, argument in enumerate(arguments)
                if (argument.alias_info is not None and argument.alias_info.is_write) or argument.name in STATISTICS
            ]
        )
        for x in written:
            number = self.storage(x)
            if number is not None and number not in self.alive and number not in self.before:
                self.before[number] = x.untyped_storage(), x.untyped_storage().clone()
        results = func(*args, **kwargs)
        made = tensors(results)
        made += [x for x in written if not any(x is y for y in made)]
        if func.namespace == "aten" and "empty" in func.overloadpacket.__name__:
            for x in made:
                x.zero_()
        numbers = [self.storage(x) for x in made]
        is_view = not written and any(number is not None and number in sources for number in numbers)
        for x in made if not is_view else ():
            self._enter(x)
        if func is torch.ops.aten.clone.default:
            self.clones[numbers[0]] = sources[0]
        elif made and not is_view and func is not torch.ops.aten.resize_.default:  # which computes nothing
            outside = tuple(None if own else x.data_ptr() for x, own in zip(given, inside, strict=True))
            others = [x for _, x in named if not isinstance(x, Tensor)]
            copies = [x.detach().clone() for x in made]
            self.calls.append(Call(str(func), kept, others, copies, outside, sources, numbers))
        return results


def _is_choosing_kernels() -> bool:
    """True while Inductor times kernels: what it calls meanwhile is no operation of the function."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") in CHOOSING:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


class CompiledRun(Run):
    """The same, but code that torch.compile makes runs as it is: of it, only the operations that it calls are seen.

    Its own kernels read what no operation reads, so all calls are kept.
    """

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True


def stretches(first: list[Call], second: list[Call]) -> list[tuple[slice, slice, bool]]:
    """Stretches of the calls of two runs, and whether they are the same operations, on the same weights.

    An operation is the same in place, or with ``out=``.
    """
    common = {at for call in first for at in call.outside} & {at for call in second for at in call.outside}

    def kinds(calls: list[Call]) -> list[Any]:
        return [
            (
                call.name.rpartition(".")[0].rstrip("_"),
                tuple(at if at in common else None for at in call.outside),
                tuple(x.dim() for x in call.given + call.made),
            )
            for call in calls
        ]

    matcher = SequenceMatcher(None, kinds(first), kinds(second), autojunk=False)
    return [(slice(i, j), slice(k, n), tag == "equal") for tag, i, j, k, n in matcher.get_opcodes()]


def told(first: list[Call], second: list[Call], name: str) -> str:
    """The operations that only one of two runs calls, in words. ``name``: of the second."""

    def some(calls: list[Call]) -> str:
        more = f" and {len(calls) - 3} more" if len(calls) > 3 else ""
        return ", ".join(call.name for call in calls[:3]) + more

    return f"{some(first) or 'no operation'} (in {name}: {some(second) or 'none'})"
