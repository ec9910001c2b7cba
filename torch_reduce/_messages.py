"""What the ranks of a group send each other, and how they agree on what they are about to do."""

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_ops = torch.ops.gpureduce
_functional = torch.ops._c10d_functional


def numbers(values: Sequence[int], like: Tensor) -> Tensor:
    """Integers on the device of a tensor. The host waits for nothing."""
    return torch.tensor(values, device=like.device) if traced(like) else _ops._numbers(values, like)


def place(name: str, group: Any) -> tuple[int, int]:
    """The number of ranks of a group, and this one's number in it."""
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    if rank < 0:
        raise ValueError(f"{name}(): this process is not in the group")
    return world, rank


def backends_of(group: Any) -> dict[str, str]:
    """The backend of each type of device."""
    return dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))


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
    """The work of a functional collective: the graph itself says what waits for it."""

    def wait(self) -> bool:
        return True


def exchange(flat: Tensor, sent: list[int], counts: list[int], group: Any) -> "tuple[dist.Work | Done, Tensor]":
    """Begins to send the elements of `flat`, sent[r] of them to rank r, and to receive counts[r] from rank r."""
    item = flat.itemsize
    sizes = [count * item for count in counts], [count * item for count in sent]
    if traced(flat):
        received = _functional.all_to_all_single(bytes_of(flat), *sizes, group.group_name)
        return Done(), _functional.wait_tensor(received).view(flat.dtype)
    received = flat.new_empty(sum(counts))
    return dist.all_to_all_single(bytes_of(received), bytes_of(flat), *sizes, group=group, async_op=True), received


def exchange_parts(parts: list[Tensor], counts: list[int], group: Any) -> tuple[Tensor, ...]:
    """Sends parts[r], of any shape, to rank r; returns what each rank has sent here, counts[r] elements from rank r."""
    flat = torch.cat([part.reshape(-1) for part in parts])
    work, received = exchange(flat, [int(part.numel()) for part in parts], counts, group)
    work.wait()
    return received.split(counts)


def gather(mine: Tensor, counts: list[int], group: Any, into: Tensor | None = None) -> Tensor:
    """The ranks' elements one after the other, counts[r] from rank r; on the way all are as long as the longest.

    They are written `into` a tensor, if there is one: then all counts are the same.
    """
    longest = max(counts)
    padded = torch.cat([mine, mine.new_empty(longest - len(mine))]) if len(mine) < longest else mine.contiguous()
    if traced(mine):
        rows = _functional.all_gather_into_tensor(bytes_of(padded), len(counts), group.group_name)
        rows = _functional.wait_tensor(rows).view(mine.dtype).view(len(counts), longest)
    else:
        rows = mine.new_empty(len(counts), longest) if into is None else into.view(len(counts), longest)
        dist.all_gather_into_tensor(bytes_of(rows.view(-1)), bytes_of(padded), group=group)
    if min(counts) == longest:
        return rows.view(-1)
    return torch.cat([row[:count] for row, count in zip(rows, counts, strict=True)])


def agree(
    name: str, facts: dict[str, Any] | None, error: Exception | None, size: int, group: Any, device: torch.device
) -> tuple[list[int], list[int] | None]:
    """The sizes of all ranks, and the order of the reduced dims, once all ranks are known to have the same `facts`.

    One all_gather of a size and a digest says whether all is well. Only where it is not, a second one shows the facts,
    or what a rank has raised: all ranks see the same, so that all raise.
    """
    world, _ = place(name, group)
    text = json.dumps({"error": f"{type(error).__name__}: {error}"} if error else facts).encode()
    device = carrier(device, group)
    digest = struct.unpack("<4q", hashlib.sha256(text).digest())
    mine = torch.tensor([size, len(text), *digest], dtype=torch.int64, device=device)
    table = gather(mine, [len(mine)] * world, group).view(world, -1).tolist()
    sizes = [row[0] for row in table]
    if error is None and all(row[2:] == table[0][2:] for row in table):
        return sizes, facts.get("order")
    counts = [row[1] for row in table]
    texts = gather(torch.tensor(list(text), dtype=torch.uint8, device=device), counts, group).cpu().split(counts)
    told = [json.loads(bytes(text.tolist())) for text in texts]
    if error is not None:
        raise error
    if failed := [rank for rank, facts in enumerate(told) if "error" in facts]:
        raise RuntimeError(f"{name}(): {named_ranks(failed)} failed: {told[failed[0]]['error']}")
    for what in facts:
        if what != "order":
            compare(name, what, {rank: facts.get(what) for rank, facts in enumerate(told)})
    orders = {rank: facts["order"] for rank, facts in enumerate(told) if sizes[rank] >= min(2, max(sizes))}
    compare(name, "order of the reduced dims in memory", orders)
    return sizes, next(iter(orders.values()))


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


def named_ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f", and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank{'s' * (len(ranks) > 1)} {shown}"


def shown(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {tensor.dtype}"
