"""What the ranks of a group send each other, and how they agree on what they are about to do."""

import ctypes
import functools
import hashlib
import json
import os
import struct
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .. import _explain
from . import _symmetric

_ops = torch.ops.gpureduce
_functional = torch.ops._c10d_functional


def numbers(values: Sequence[int], like: Tensor) -> Tensor:
    """Integers on the device of a tensor. The host waits for nothing."""
    return torch.tensor(values, device=like.device) if traced(like) else _ops._numbers(values, like)


def place(name: str, group: Any) -> tuple[int, int]:
    """The number of ranks of a group, and this one's number in it; or the error that a check has found since."""
    one = dist.group.WORLD if group is None else group
    if isinstance(one, dist.ProcessGroup):  # torch's own functions look up more, for each call
        world, rank = one.size(), one.rank()
    elif group is None:  # there is none yet: torch's error
        world, rank = dist.get_world_size(), dist.get_rank()
    elif group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(f"{name}(): this process is not in 'group'")
    else:
        raise TypeError(f"{name}(): 'group' must be a ProcessGroup or None, not {type(group).__name__}")
    if world > 1:
        _explain.refuse_messages(name)
    if agreements := _agreements.get(one):
        agreements.raise_late(rank)
    return world, rank


def backends_of(group: Any) -> dict[str, str]:
    """The backend of each type of device."""
    return _backends_in(dist.get_backend_config(group))


@functools.cache
def _backends_in(config: str) -> dict[str, str]:
    return dict(pair.split(":") for pair in config.split(","))


def check_device(name: str, argument: str, device: torch.device, group: Any) -> None:
    backends = backends_of(group)
    if device.type not in backends:
        known = ", ".join(f"{type}:{backend}" for type, backend in backends.items())
        raise RuntimeError(f"{name}(): '{argument}' is on {device}, for which the group has no backend; it has {known}")


def kind_of(device: torch.device, group: Any) -> str:
    """What ranks must have in common of their devices, so that their messages meet."""
    return "any" if len(set(backends_of(group).values())) == 1 else device.type


def carrier(device: torch.device, group: Any) -> torch.device:
    """Where numbers of the host are sent from: the CPU if it has a backend; it need not be where a rank's data are."""
    backends = backends_of(group)
    if "cpu" in backends:
        return torch.device("cpu")
    return device if device.type in backends else torch.device(next(iter(backends)))


def bytes_of(flat: Tensor) -> Tensor:
    """A contiguous tensor's bytes: backends do not know all dtypes. Of one element, its stride may be anything."""
    return (flat if flat.stride(0) == 1 else flat.as_strided(flat.shape, (1,))).view(torch.uint8)


def traced(tensor: Tensor) -> bool:
    """Whether a graph is being made, in which only functional collectives can stand: of DTensors, by torch.compile."""
    return type(tensor) is not Tensor


class Done:
    """The work of a collective that nobody need wait for: it is in a graph, or the current stream waits for it."""

    def wait(self) -> bool:
        return True


def exchange(
    flat: Tensor, sent: list[int], counts: list[int], group: Any, *, later: bool
) -> "tuple[dist.Work | Done, Tensor]":
    """Sends the elements of `flat`, sent[r] of them to rank r, and receives counts[r] from rank r.

    Where the work is waited for `later`, it goes on beside what the current stream does until then.
    """
    item = flat.itemsize
    sizes = [count * item for count in counts], [count * item for count in sent]
    if traced(flat):
        received = _functional.all_to_all_single(bytes_of(flat), *sizes, group.group_name)
        return Done(), _functional.wait_tensor(received).view(flat.dtype)
    received = flat.new_empty(sum(counts))
    work = dist.all_to_all_single(bytes_of(received), bytes_of(flat), *sizes, group=group, async_op=later)
    return work or Done(), received


def exchange_parts(parts: list[Tensor], counts: list[int], group: Any) -> tuple[Tensor, ...]:
    """Sends parts[r], of any shape, to rank r; returns what each rank has sent here, counts[r] elements from rank r."""
    flat = torch.cat([part.reshape(-1) for part in parts])
    _, received = exchange(flat, [int(part.numel()) for part in parts], counts, group, later=False)
    return received.split(counts)


def gather(mine: Tensor, counts: list[int], group: Any, into: Tensor | None = None) -> Tensor:
    """The ranks' elements one after the other, counts[r] from rank r; on the way all are as long as the longest.

    They are written `into` a tensor, if there is one: then all counts are the same.
    """
    longest = max(counts)
    memory = _symmetric.known(group, mine.device)
    padded = torch.cat([mine, mine.new_empty(longest - len(mine))]) if len(mine) < longest else mine.contiguous()
    if traced(mine):
        rows = _functional.all_gather_into_tensor(bytes_of(padded), len(counts), group.group_name)
        rows = _functional.wait_tensor(rows).view(mine.dtype).view(len(counts), longest)
    elif memory and 0 < padded.nbytes <= _symmetric.MOST_GATHERED:
        rows = memory.gather(bytes_of(padded)).view(mine.dtype).view(len(counts), longest)
        rows = rows if into is None else into.view(len(counts), longest).copy_(rows)
    else:
        rows = mine.new_empty(len(counts), longest) if into is None else into.view(len(counts), longest)
        dist.all_gather_into_tensor(bytes_of(rows.view(-1)), bytes_of(padded), group=group)
    if min(counts) == longest:
        return rows.view(-1)
    return torch.cat([row[:count] for row, count in zip(rows, counts, strict=True)])


# As csrc/ranks/agreement.h has it: a digest, a number, the text's length, and as much of the text as there is room for.
_NOTICE = _ops._notice_bytes()
_HEAD = struct.Struct("<16sqq")
_ROOM = _NOTICE - _HEAD.size
_MOST = 4096  # agreements that are remembered of a group: each is a notice on a GPU
_LAUNCHES_WAIT = os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"  # CUDA, too, reads it once


def notice(text: str, number: int, waits: bool, like: Tensor) -> Tensor:
    """What a rank tells all others before anything else: always as many bytes, whatever they disagree about."""
    told = text.encode()
    head = _HEAD.pack(hashlib.sha256(told).digest()[:16], number, len(told) if waits else -len(told))
    words = struct.unpack(f"<{_NOTICE // 8}q", head + told[:_ROOM].ljust(_ROOM, b"\0"))
    return numbers(words, like).view(torch.uint8)


def text_of(facts: dict[str, Any] | None, error: Exception | None) -> str:
    """ASCII, so that it may be cut anywhere."""
    told = {"error": f"{type(error).__name__}: {error}"} if error else facts
    return json.dumps(told, separators=(",", ":"))


def texts_of(notices: Tensor) -> list[str]:
    """What the ranks have told, cut where there was no room; (ranks, bytes) on the CPU."""
    return [bytes(row[_HEAD.size :].tolist()).rstrip(b"\0").decode() for row in notices]


def agree(
    name: str, facts: dict[str, Any] | None, error: Exception | None, size: int, group: Any, device: torch.device
) -> tuple[list[int], list[int] | None]:
    """The sizes of all ranks, and the order of the reduced dims, once all ranks are known to have the same `facts`.

    One all_gather of notices, for which the host waits, says whether all is well, and otherwise what the ranks have
    told or raised: all see the same, so that all raise. Texts too long for a notice take a second all_gather.
    """
    world, rank = place(name, group)
    text, like = text_of(facts, error), torch.empty(0, device=carrier(device, group))
    notices = gather(notice(text, size, True, like), [_NOTICE] * world, group).cpu().view(world, _NOTICE)
    heads = notices.view(torch.int64)[:, : _HEAD.size // 8].tolist()
    sizes, lengths = ([head[k] for head in heads] for k in (2, 3))
    if error is None and all(head[:2] == heads[0][:2] for head in heads):
        return sizes, facts.get("order")
    texts = texts_of(notices)
    if min(lengths) >= 0 and max(lengths) > _ROOM:  # a rank that does not wait would take no part in it
        mine = torch.tensor(list(text.encode()), dtype=torch.uint8, device=like.device)
        texts = [bytes(one.tolist()).decode() for one in gather(mine, lengths, group).cpu().split(lengths)]
    if error is not None:
        raise error
    told = compare_all(name, texts, rank)
    orders = {rank: facts["order"] for rank, facts in enumerate(told) if sizes[rank] >= min(2, max(sizes))}
    compare(name, "order of the reduced dims in memory", orders)
    return sizes, next(iter(orders.values()))


class EarlierError(RuntimeError):
    """The error of an earlier call. It keeps the name of that call's function, whatever function raises it."""


class Agreements:
    """What the ranks of a group have agreed on. When they do so again, no host waits: the GPU compares their notices.

    It sends the messages of :func:`agree`. So a rank on which it is new, and which waits, meets ranks that do not.
    Where the GPU finds a difference, an assertion fails on it, before a message that would never arrive. Its text is on
    stderr, and the notices are in `report`, for whoever calls next.
    """

    def __init__(self) -> None:
        self._notices: dict[Any, Tensor] = {}
        self._report: Tensor | None = None
        self._found: ctypes.c_int64 | None = None  # the first word of it

    def remember(self, call: Any, facts: dict[str, Any], group: Any, device: torch.device) -> None:
        """That all ranks have just agreed on `facts`, which follow from `call`."""
        device = carrier(device, group)
        if not compares(device) or len(self._notices) == _MOST:
            return
        if self._report is None:
            words = 1 + dist.get_world_size(group) * _NOTICE // 8
            self._report = torch.zeros(words, dtype=torch.int64, pin_memory=device.type == "cuda")
            self._found = ctypes.c_int64.from_address(self._report.data_ptr())
        mine = notice(text_of(facts, None), 0, False, torch.empty(0))
        self._notices[call] = mine.to(device)  # it has arrived then, whatever stream needs it next

    def renew(self, call: Any, group: Any) -> bool:
        """Begins to check that all ranks agree on a call, on the current stream; False if it is a new one."""
        mine = self._notices.get(call)
        if mine is None:
            return False
        _ops._expect_agreement(gather(mine, [_NOTICE] * dist.get_world_size(group), group), mine, self._report)
        return True

    def raise_late(self, rank: int) -> None:
        """Raises the error that a check has found since."""
        if self._found is not None and self._found.value:
            texts = texts_of(self._report[1:].view(torch.uint8).view(-1, _NOTICE))
            try:
                compare_all(texts[rank].split('"')[3], texts, rank)  # the function, also of a text that is cut
            except RuntimeError as error:
                raise EarlierError(*error.args) from None


_agreements: "weakref.WeakKeyDictionary[dist.ProcessGroup, Agreements]" = weakref.WeakKeyDictionary()


def agreements_of(group: Any) -> Agreements:
    group = group or dist.group.WORLD
    return _agreements.get(group) or _agreements.setdefault(group, Agreements())


def compares(device: torch.device) -> bool:
    """Whether notices that are sent from there are compared there, so that no host need wait for them."""
    return device.type == "cuda" and not _LAUNCHES_WAIT


@dataclass(frozen=True)
class Places:
    """Numbers, the same on all ranks of a group, and which of them each rank has."""

    group: Any
    counts: list[int]  # of each rank
    places: list[int]  # rank by rank
    wide: bool  # the numbers are float64, and float32 otherwise

    @classmethod
    def agreed(
        cls, name: str, facts: dict[str, Any], places: list[int], wide: bool, error: Any, group: Any, device: Any
    ) -> "Places":
        """The ranks tell each other, or the error that one of them has."""
        counts, _ = agree(name, facts, error, len(places), group, device)
        mine = [2 * place + wide for place in places]
        told = gather(torch.tensor(mine, dtype=torch.int64, device=carrier(device, group)), counts, group).tolist()
        return cls(group, counts, [one // 2 for one in told], any(one % 2 for one in told))

    def in_order(self, mine: Tensor) -> Tensor:
        """All ranks' numbers in the order of their places, on the device of this rank's; a place counts once."""
        known = mine.device.type in backends_of(self.group)
        carried = mine.to(
            mine.device if known else carrier(mine.device, self.group), torch.float64 if self.wide else torch.float32
        )
        gathered = gather(carried, self.counts, self.group)
        rows: dict[int, int] = {}
        for row, place in enumerate(self.places):
            rows.setdefault(place, row)
        chosen = [row for _, row in sorted(rows.items())]
        return gathered.index_select(0, numbers(chosen, gathered)).to(mine.device)


def compare(name: str, what: str, values: dict[int, Any]) -> None:
    """Raises an error that names the ranks if the values of the ranks are not all the same."""
    ranks: dict[str, list[int]] = {}
    for rank, value in values.items():
        ranks.setdefault(str(value).replace("'", ""), []).append(rank)
    if len(ranks) > 1:
        who = "; ".join(f"{value} on {named_ranks(of)}" for value, of in ranks.items())
        raise RuntimeError(f"{name}(): the ranks disagree about the {what}: {who}")


def compare_all(name: str, texts: list[str], rank: int) -> list[dict[str, Any]]:
    """Raises an error that says what the ranks have told, unless they differ in the order of dims alone."""
    try:
        told = [json.loads(text) for text in texts]
    except ValueError:  # one of them is cut
        compare(name, "call", dict(enumerate(texts)))
        raise RuntimeError(f"{name}(): the ranks disagree about a call that begins with {texts[rank]}") from None
    if failed := [of for of, facts in enumerate(told) if "error" in facts]:
        raise RuntimeError(f"{name}(): {named_ranks(failed)} failed: {told[failed[0]]['error']}")
    for what in {what: None for facts in told for what in facts}:
        if what != "order":
            compare(name, what, {of: facts.get(what) for of, facts in enumerate(told)})
    return told


def named_ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f", and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank{'s' * (len(ranks) > 1)} {shown}"


def shown(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {tensor.dtype}"
