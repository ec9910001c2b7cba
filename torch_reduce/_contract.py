"""The contract by name: a string that says which bits a device has."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

__all__ = ["Contract", "contract"]


@dataclass(frozen=True)
class Contract:
    """What :func:`contract` found. ``str()`` of it is the string to compare. Two are equal if their strings are.

    Attributes:
        version: of the order of additions.
        functions: for each function the SHA-256 of its results on the device.
        device: that they were computed on.
        promised: the string of this version of the package, which every device has that keeps the contract.
        deviating: the functions whose results are not the promised ones.
        results: how many were computed.
        wrong: the calls whose results are not the promised ones, in words.
    """

    version: int
    functions: Mapping[str, str] = field(hash=False)
    device: str = field(compare=False)
    promised: str = field(compare=False)
    deviating: tuple[str, ...] = field(compare=False)
    results: int = field(compare=False)
    wrong: tuple[str, ...] = field(compare=False)

    def __str__(self) -> str:
        return _string(self.version, self.functions)

    def __repr__(self) -> str:
        found = "kept=True" if self.kept else f"deviating={self.deviating}"
        return f"Contract({str(self)!r}, device={self.device!r}, {found})"

    @property
    def kept(self) -> bool:
        """Whether the string is the promised one."""
        return str(self) == self.promised


def _string(version: int, functions: Mapping[str, str]) -> str:
    """The contract's name: the order's version, and the SHA-256 of the functions and their own."""
    lines = "".join(f"{function} {functions[function]}\n" for function in sorted(functions))
    return f"gpureduce-{version}:{hashlib.sha256(lines.encode()).hexdigest()}"


def contract(device: torch.device | str | int | None = None) -> Contract:
    """A string that says which bits this build has on a device: two engines, as a trainer and a server, compare it.

    It computes the pinned results of the self-check on the device, and hashes their bits. So the string is the same on
    every device that has these bits, whatever the machine, the build and the version of torch. Anything that gives one
    other bit gives another string. docs/order.md says what the results cover, and when a later version of the package
    has another string.

    Args:
        device: a CPU or a CUDA device; by default torch's default device.

    Returns:
        A :class:`Contract`. ``str()`` of it is ``"gpureduce-"``, the version of the order, a colon, and 64 hexadecimal
        digits. ``kept`` says whether it is what this version of the package promises, and ``deviating`` names the
        functions with other bits.

    Raises:
        NotImplementedError: the device is neither a CPU nor a CUDA device, or nothing was built for it.
        RuntimeError: ``device`` names no device.
        TypeError: ``device`` is neither a device nor the name or the number of one.

    >>> found = torch_reduce.contract("cpu")
    >>> found.kept
    True
    >>> found.version, found.deviating
    (1, ())
    """
    from ._selfcheck import check, promised  # here, as few need it

    try:
        device = torch.get_default_device() if device is None else torch.device(device)
    except TypeError:
        kind = type(device).__name__
        raise TypeError(f"contract(): argument 'device' must be torch.device, str or int, not {kind}") from None
    except RuntimeError as error:
        raise RuntimeError(f"contract(): argument 'device': {error}") from None
    if device.type not in ("cpu", "cuda"):
        raise NotImplementedError(f"contract(): argument 'device': {device.type} devices are not supported")
    version = json.loads(torch.ops.gpureduce._build_info())["order"]
    count, wrong, found = check(device)
    wanted = promised()
    deviating = tuple(function for function in wanted if found.get(function) != wanted[function])
    return Contract(version, found, str(device), _string(version, wanted), deviating, count, tuple(wrong))
