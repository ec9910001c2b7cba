"""Memory that the GPUs of a host lend each other: sums over ranks and short messages go through it, without NCCL.

Each rank of a group on NCCL lends the others some memory (torch.distributed._symmetric_memory), into which their
kernels write (csrc/ranks/symmetric.cu). It is lent at the group's first sum over ranks, if there are 2 to 8 of them on
one host, each with a GPU of its own, and stays until the group is gone. GPUREDUCE_SYMMETRIC=0 leaves everything to
NCCL. The bits are the same.
"""

import functools
import math
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_ops = torch.ops.gpureduce

MOST_RANKS = 8
MOST_GATHERED = 4096  # bytes of a rank
_ONE_SHOT = 8 << 20  # bytes that all ranks together write to a rank, below which each adds all elements itself
_INTEGERS = {torch.uint32: torch.int32, torch.uint64: torch.int64}  # whose sums have the same bits
_DTYPES = {torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64}


@dataclass
class Memory:
    """What the ranks have lent each other. Calls that use it run one after the other, whatever their streams."""

    parts: list[Tensor]  # of each rank, by the address that this GPU has for it
    rank: int
    blocks: int  # as many run at once on each rank's GPU
    patience: int  # nanoseconds that a rank waits for another
    handle: Any  # which keeps the memory
    last: torch.cuda.Stream | None = None
    captured: torch.cuda.Stream | None = None  # the same of a graph under capture

    def _begin(self) -> None:
        """Puts what follows on the current stream after the calls before: of a graph under capture, after its own."""
        device = self.parts[0].device
        stream, captures = torch.cuda.current_stream(device), _captures(device)
        last = self.captured if captures else self.last
        if last is not None and last != stream and (not captures or _is_in_a_graph(last)):
            stream.wait_stream(last)
        if captures:
            self.captured = stream
        else:
            self.last = stream

    def add(self, given: Tensor, out: Tensor, averages: bool, scatters: bool) -> None:
        """Writes the sum or mean of the ranks' flat tensors to `out`, or this rank's piece of it; see :func:`adds`."""
        given, out = (_parts_of(x) for x in (given, out))
        one_shot = given.nbytes * len(self.parts) <= _ONE_SHOT
        adding = "scattered" if scatters else "all" if one_shot else "shared"
        self._begin()
        _ops._add_ranks(given, out, self.parts, self.rank, adding, averages, self.blocks, self.patience)

    def add_norm(
        self, given: Tensor, residual: Tensor | None, weight: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor]:
        """The rms_norm of the rows of the ranks' sum, and the sum with the residual; see :func:`adds_norms`."""
        self._begin()
        ranks = self.parts, self.rank, self.blocks, self.patience
        return _ops._add_ranks_norm(given, residual, weight, eps, *ranks)

    def gather(self, mine: Tensor) -> Tensor:
        """The bytes of all ranks, one after the other: at most MOST_GATHERED of each."""
        self._begin()
        return _ops._gather_ranks(mine, self.parts, self.rank, self.patience)


def _captures(device: torch.device) -> bool:
    """Whether a graph is captured from the device's current stream."""
    if torch.cuda.current_device() == device.index:
        return torch.cuda.is_current_stream_capturing()
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def _is_in_a_graph(stream: torch.cuda.Stream) -> bool:
    with torch.cuda.stream(stream):
        return torch.cuda.is_current_stream_capturing()


def _parts_of(flat: Tensor) -> Tensor:
    """The same numbers as elements that are added alone, in a dtype that the kernels know."""
    if flat.is_complex():
        flat = torch.view_as_real(flat).view(-1)
    return flat.view(_INTEGERS.get(flat.dtype, flat.dtype))


def adds(dtype: torch.dtype, averages: bool) -> bool:
    """Whether there are kernels for a dtype. Sums of others go through NCCL."""
    if averages:
        return dtype.is_floating_point and dtype in _DTYPES
    return dtype in _DTYPES or dtype in _INTEGERS or dtype.is_complex


def adds_norms(shape: Sequence[int], dtype: torch.dtype, others: Sequence[torch.dtype | None], world: int) -> bool:
    """Whether one kernel takes the norms of a sum over ranks, beside a residual and a weight of these dtypes.

    It is for few rows, which each rank gets whole.
    """
    few = math.prod(shape) * dtype.itemsize * world <= _ONE_SHOT
    fits = few and all(other in (None, dtype, torch.float32) for other in others)
    return fits and bool(shape) and _takes_rows(dtype, shape[-1], world)


@functools.cache
def _takes_rows(dtype: torch.dtype, length: int, world: int) -> bool:
    return _ops._adds_norms(dtype, length, world)


_ByDevice = dict[torch.device, Memory | None]
_memories: "weakref.WeakKeyDictionary[dist.ProcessGroup, _ByDevice]" = weakref.WeakKeyDictionary()


def known(group: Any, device: torch.device) -> Memory | None:
    """The memory that the ranks of a group have lent each other before; None if they have not."""
    found = _memories.get(group or dist.group.WORLD)
    return found.get(device) if found else None


def lent(group: Any, device: torch.device) -> Memory | None:
    """The memory of a group, which all ranks lend now if they have not before; None if they cannot."""
    group = group or dist.group.WORLD
    found = _memories.setdefault(group, {})
    if device not in found:
        if _captures(device):
            return None
        with torch.cuda.device(device):
            found[device] = _lend(group, device)
    return found[device]


def _lend(group: dist.ProcessGroup, device: torch.device) -> Memory | None:
    """All ranks come to the same end, whichever of them cannot."""
    world = group.size()
    if not 2 <= world <= MOST_RANKS or "cuda:nccl" not in dist.get_backend_config(group).split(","):
        return None
    import torch.distributed._symmetric_memory as symmetric

    size, blocks = _ops._symmetric_needs(world)
    if os.environ.get("GPUREDUCE_SYMMETRIC") == "0":
        blocks = 0
    told = _told(group, device, [_number_of(_host()), _number_of(str(_identity(device))), blocks])
    hosts, gpus, most = zip(*told, strict=True)
    if len(set(hosts)) > 1 or len(set(gpus)) < world or not min(most):
        return None
    mine = _tried(lambda: symmetric.empty(size, dtype=torch.uint8, device=device).zero_())
    if not all(right for (right,) in _told(group, device, [mine is not None])):
        return None
    handle = _tried(lambda: symmetric.rendezvous(mine, group.group_name))
    parts = _tried(lambda: [handle.get_buffer(rank, [size], torch.uint8) for rank in range(world)])
    if not all(right for (right,) in _told(group, device, [parts is not None])):
        return None
    patience = min(int(_timeout_of(group, device) * 1e9), 2**62)
    return Memory(parts, group.rank(), min(most), patience, handle)


def _told(group: dist.ProcessGroup, device: torch.device, mine: list[int]) -> list[list[int]]:
    """The numbers of all ranks."""
    flat = torch.tensor(mine, dtype=torch.int64, device=device)
    table = flat.new_empty(group.size() * len(flat))
    dist.all_gather_into_tensor(table, flat, group=group)
    return table.view(-1, len(flat)).tolist()


def _tried(make: Callable[[], Any]) -> Any:
    """What it makes; None if this GPU, its driver or torch cannot."""
    try:
        return make()
    except (RuntimeError, AttributeError, NotImplementedError, ImportError):
        return None


def _number_of(text: str) -> int:
    return int.from_bytes(text.encode()[-64:].rjust(64, b"\0"), "big") % (2**61 - 1)


def _host() -> str:
    """A name for this machine, since it was started: containers on it have the same."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        return os.uname().nodename


def _identity(device: torch.device) -> Any:
    return torch.cuda.get_device_properties(device).uuid


def _timeout_of(group: dist.ProcessGroup, device: torch.device) -> float:
    """The seconds that a group gives its ranks."""
    timeout = group._get_backend(device).options._timeout
    return timeout.total_seconds()
