"""Reductions of DTensors, with the bits that the global tensor has on one device.

This is what the operators of torch.ops.gpureduce do with a DTensor; importing it tells torch so. It runs below
autograd, whose nodes see the DTensor alone. docs/distributed.md says which placements come out, and what is sent.

Sharding rules of torch's own kind do not serve here: their result would have to be Partial, which holds one number an
output, where the tree of additions needs several.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate
from torch.utils._python_dispatch import _disable_current_modes

from . import distributed

_Cut = tuple[int, int, int]  # the dim that a mesh dim cuts, into how many parts, and into how many runs before
_Runs = tuple[tuple[int, int], ...]  # of indices along a dim, ascending: from the first to before the second
_Held = tuple[_Runs, ...]  # the indices along each dim


def _rule(cls: type, op: Any, types: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> DTensor:
    """What torch.library.register_torch_dispatch takes."""
    return _reduce(op, *args, **(kwargs or {}))


def _reduce(
    op: Any,
    self: Tensor,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> DTensor:
    name = op._schema.name.rpartition(":")[2]
    title = distributed._OPERATIONS[name].title
    if not isinstance(self, DTensor):
        raise TypeError(f"{title}(): 'out' is a DTensor, so 'input' must be one too, not a {type(self).__name__}")
    meta = _result_of(op, self, dim, keepdim, dtype, out)
    reduced = sorted(d % self.dim() for d in dim) if dim and self.dim() else list(range(self.dim()))
    placements = [_after(title, placement, reduced, keepdim) for placement in self.placements]
    for size, placement in zip(self.device_mesh.shape, self.placements, strict=True):
        if size > 1 and _is_shard(placement) and placement.dim in reduced:
            distributed._Call(name, reduced, keepdim, None, meta.dtype, placement.dim).refuse()
    whole = _without_partials(self)
    if self.device_mesh.get_coordinate() is None:
        # from_local makes it empty, as all DTensors are outside of their mesh, but reads the shape of a scalar from it.
        local = torch.empty([0] * min(meta.dim(), 1), dtype=meta.dtype, device=self.device)
    else:
        complex_norm = self.is_complex() and distributed._OPERATIONS[name].is_norm
        given = meta.dtype.to_complex() if complex_norm else meta.dtype
        call = distributed._Call(name, reduced, keepdim, given, meta.dtype, -1)
        local = _local_result(whole, call)
    shape, stride = meta.shape, meta.stride()
    result = DTensor.from_local(local, self.device_mesh, placements, run_check=False, shape=shape, stride=stride)
    return result if out is None else out.copy_(result)


def _result_of(op: Any, self: DTensor, dim: Any, keepdim: bool, dtype: torch.dtype | None, out: Any) -> Tensor:
    """The result's shape and dtype, on the meta device. Every rank refuses bad arguments here, in the op's words."""
    input = torch.empty_strided(self.shape, self.stride(), dtype=self.dtype, device="meta")
    if out is None:
        return op(input, dim, keepdim, dtype=dtype)
    name = distributed._OPERATIONS[op._schema.name.rpartition(":")[2]].title
    if not isinstance(out, DTensor):
        raise TypeError(f"{name}(): 'input' is a DTensor, so 'out' must be one too, not a {type(out).__name__}")
    if out.device_mesh != self.device_mesh:
        raise ValueError(f"{name}(): 'out' is on another mesh than 'input': {out.device_mesh}, {self.device_mesh}")
    if any(placement.is_partial() for placement in out.placements):
        raise ValueError(f"{name}(): 'out' must not be Partial, but its placements are {out.placements}")
    meta = op(input, dim, keepdim, dtype=dtype, out=torch.empty(0, dtype=out.dtype, device="meta"))
    if out.shape != meta.shape:
        shapes = f"{tuple(meta.shape)}, not {tuple(out.shape)}"
        raise ValueError(f"{name}(): 'out' is a DTensor, which cannot be resized, so its shape must be {shapes}")
    return meta


# --- placements ------------------------------------------------------------------------------------------------------


def _is_shard(placement: Placement) -> bool:
    """Whether it is a Shard or a _StridedShard."""
    return hasattr(placement, "dim")


def _after(name: str, placement: Placement, reduced: list[int], keepdim: bool) -> Placement:
    """The placement of the result: kept dims stay cut as they are."""
    if placement.is_replicate() or placement.is_partial():
        return Replicate()
    if not _is_shard(placement):
        raise NotImplementedError(f"{name}(): there is no rule for the placement {placement}: use redistribute() first")
    if placement.dim in reduced:
        return Replicate()
    dim = placement.dim if keepdim else placement.dim - sum(d < placement.dim for d in reduced)
    strided = hasattr(placement, "split_factor")
    return type(placement)(dim, split_factor=placement.split_factor) if strided else type(placement)(dim)


def _without_partials(x: DTensor) -> DTensor:
    """`x` with its Partial placements replicated: sums are joined pairwise in rank order, others as torch does it."""
    mesh, axes = x.device_mesh, [axis for axis, placement in enumerate(x.placements) if placement.is_partial()]
    if not axes:
        return x
    placements = [Replicate() if axis in axes else placement for axis, placement in enumerate(x.placements)]
    if mesh.get_coordinate() is None or any(
        type(x.placements[axis]) is not Partial or x.placements[axis].reduce_op != "sum" for axis in axes
    ):
        return x.redistribute(placements=placements)
    groups = [mesh.get_group(axis) for axis in reversed(axes) if mesh.size(axis) > 1]
    joined = _joined(x._local_tensor, groups)
    return DTensor.from_local(joined, mesh, placements, run_check=False, shape=x.shape, stride=x.stride())


def _joined(local: Tensor, groups: list[Any]) -> Tensor:
    """The sum of the ranks' tensors over each group in turn, rounded once at the end."""
    dtype = local.dtype
    wide = distributed._accumulator(dtype, dtype) if len(groups) > 1 else dtype
    total = local.clone() if wide == dtype else distributed._finish(local, None, wide)
    for group in groups:
        distributed._all_reduce(total, group, False, False)
    return total if wide == dtype else distributed._finish(total, None, dtype)


# --- this rank's part of the result ----------------------------------------------------------------------------------


def _local_result(x: DTensor, call: Any) -> Tensor:
    """What this rank holds of the result; no placement of `x` is Partial."""
    if call.is_free(x.dtype):
        return _free_result(x, call)
    shards = _shards(x, call)
    return shards if isinstance(shards, Tensor) else distributed._join_shards(*shards)


def _begun(x: DTensor, call: Any) -> "tuple[_Found, Tensor, Tensor | None]":
    """Who holds what, this rank's tensor, and its part of the result if nothing is to be exchanged for it."""
    shape, local = tuple(map(int, x.shape)), x._local_tensor
    found = _find(x.device_mesh, x.placements, shape, tuple(map(int, x.stride())), tuple(call.dims))
    _check_local(call.title, x, shape, found.local)
    filled = [shape[d] if d in call.dims else n for d, n in enumerate(local.shape)]
    if found.axes and 0 not in filled:
        return found, local, None
    return found, local, call(_laid_out(local.new_empty(filled) if found.axes else local, call.dims, list(found.order)))


def _free_result(x: DTensor, call: Any) -> Tensor:
    """The result of a call in which no order shows: wherever a rank's elements lie, it reduces them on its own."""
    found, local, alone = _begun(x, call)
    if alone is not None:
        return alone
    mesh, kept = x.device_mesh, [d for d in range(x.dim()) if d not in call.dims]
    held = {rank: all(_length(runs[d]) for d in call.dims) for rank, runs in found.held.items()}
    nodes = distributed._own_nodes(local.resolve_conj().resolve_neg(), call)
    group = _group(mesh, found.axes)
    steps = [(found.axes, group)] if group else [((axis,), mesh.get_group(axis)) for axis in found.axes]
    for axes, group in steps:  # without a group of all, one dim of the mesh after the other
        ranks = _ranks(mesh, axes)
        if any(held[rank] for rank in ranks):
            outputs = distributed._product(found.local[d] for d in kept)
            nodes = distributed._join_freely(nodes, outputs, [held[rank] for rank in ranks], call, group)
        held = _held_along(mesh, axes, held)
    count = distributed._product(int(x.shape[d]) for d in call.dims)
    return call.result(nodes, count, found.local)


def _held_along(mesh: DeviceMesh, axes: tuple[int, ...], held: dict[int, bool]) -> dict[int, bool]:
    """Which ranks hold something once they have what any of those has that differ from them along these dims alone."""
    places, rows = _coordinates(mesh), {}
    others = {rank: tuple(at for axis, at in enumerate(places[rank]) if axis not in axes) for rank in held}
    for rank, has in held.items():
        rows[others[rank]] = has or rows.get(others[rank], False)
    return {rank: rows[others[rank]] for rank in held}


def _shards(x: DTensor, call: Any) -> Any:
    """What distributed._join_shards takes, or the result where nothing is to be exchanged."""
    mesh, reduced, shape = x.device_mesh, call.dims, tuple(map(int, x.shape))
    found, local, alone = _begun(x, call)
    if alone is not None:
        return alone
    axes, held, of_all, dim, sizes = found.axes, found.held, found.of_all, found.dim, found.sizes
    order = list(found.order)
    # Down here torch's own operators are told nothing of lazy conjugation and negation, and not all of them look.
    local = local.resolve_conj().resolve_neg()
    group = _group(mesh, axes)
    if group is None:  # all dims of the mesh but one gather
        keep = max(axes, key=mesh.size)
        for axis in axes:
            if axis != keep:
                local, held = _gathered(local, held, mesh, axis, reduced, order)
        axes, group = (keep,), mesh.get_group(keep)
        of_all = tuple(held[rank] for rank in _ranks(mesh, axes))
        dim, sizes = _slabs(of_all, shape, found.order, tuple(reduced))
    if sizes is None:
        local, sizes = _to_slabs(local, of_all, shape, dim, call, order, group)
    if dim not in order:  # of size 1
        order.insert(0, dim)
    call = distributed._Call(call.name, reduced, call.keepdim, call.given, call.dtype, dim)
    return _laid_out(local, reduced, order), call, tuple(sizes), order, group


def reduce_all(name: str, tensors: Sequence[DTensor], dtypes: Sequence[torch.dtype | None]) -> list[Tensor]:
    """The results of an operator that divides by nothing, over all dims of each tensor, on every rank of its mesh.

    Those that are cut alike, and of one dtype, are joined in two messages together.
    """
    results: list[Any] = [None] * len(tensors)
    alike: dict[Any, list[tuple[int, Any]]] = {}
    for i, (x, dtype) in enumerate(zip(tensors, dtypes, strict=True)):
        result = _dtype_of_result(name, x.dtype, dtype, min(x.numel(), 1))
        call = distributed._Call(name, list(range(x.dim())), False, dtype, result, -1)
        arguments = _shards(_without_partials(x), call)
        if isinstance(arguments, Tensor):
            results[i] = arguments
            continue
        shards = distributed._Shards(*arguments)
        if shards.plan.realigns:
            key = shards.group, x.dtype, shards.accumulator, result, x.device
            alike.setdefault(key, []).append((i, shards))
        else:
            results[i] = distributed._join_shards(*arguments)
    for some in alike.values():
        joined = distributed._join_many([shards for _, shards in some])
        for (i, _), result in zip(some, joined, strict=True):
            results[i] = result
    return results


@lru_cache(maxsize=256)
def _dtype_of_result(name: str, source: torch.dtype, dtype: torch.dtype | None, elements: int) -> torch.dtype:
    """What an operator makes of so many elements; torch's errors."""
    return getattr(torch.ops.gpureduce, name)(torch.empty(elements, dtype=source, device="meta"), dtype=dtype).dtype


def _order(shape: Sequence[int], strides: Sequence[int], dims: Sequence[int]) -> list[int]:
    """The dims in the contract's order, slowest first, without those of size 1."""
    dims = [d for d in dims if shape[d] != 1]
    return sorted(dims, key=lambda d: (strides[d] != 0, -strides[d], d))


def _laid_out(local: Tensor, reduced: list[int], order: list[int]) -> Tensor:
    """`local` with the reduced dims in this order in memory: the global tensor's, which shards need not have."""
    if _order(local.shape, local.stride(), order) == [d for d in order if local.shape[d] != 1]:
        return local
    return _permuted(local.permute(_axes(local, reduced, order)).contiguous(), reduced, order)


def _axes(x: Tensor, reduced: list[int], order: list[int]) -> list[int]:
    """All dims: the kept ones, then the reduced ones in order."""
    return [d for d in range(x.dim()) if d not in reduced] + order + [d for d in reduced if d not in order]


def _permuted(x: Tensor, reduced: list[int], order: list[int]) -> Tensor:
    """A tensor whose dims stand as _axes says, as a view in which they stand as they were."""
    axes = _axes(x, reduced, order)
    return x.permute([axes.index(d) for d in range(x.dim())])


def _check_local(name: str, x: DTensor, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    local = tuple(x._local_tensor.shape)
    if local != wanted:
        raise ValueError(
            f"{name}(): this rank's local tensor has the shape {local}, but by its placements {x.placements} a DTensor "
            f"of the shape {shape} has {wanted} here: DTensor.from_local needs shape= and stride= where shards are "
            "uneven, and shards as torch.chunk makes them"
        )


# --- who holds what --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Found:
    """What the layout of a DTensor says to a rank about a reduction of some of its dims."""

    local: tuple[int, ...]  # the shape of this rank's tensor
    order: tuple[int, ...]  # of the reduced dims
    axes: tuple[int, ...]  # the dims of the mesh that cut reduced dims; the rest is about these, of what is not empty
    held: dict[int, _Held]  # by rank
    of_all: tuple[_Held, ...]  # the same in the order of the ranks
    dim: int
    sizes: list[int] | None


@lru_cache(maxsize=64)
def _find(
    mesh: DeviceMesh,
    placements: tuple[Placement, ...],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    reduced: tuple[int, ...],
) -> _Found:
    """It is kept: a model's tensors have few layouts, and a norm of hundreds of them should not take long."""
    pairs = zip(placements, mesh.shape, strict=True)
    cuts = tuple(_cut(placement, parts) if parts > 1 and _is_shard(placement) else None for placement, parts in pairs)
    order = tuple(_order(shape, strides, reduced))
    local = tuple(map(_length, _held(shape, cuts, tuple(mesh.get_coordinate()))))
    axes = tuple(axis for axis, cut in enumerate(cuts) if cut and cut[0] in reduced)
    if not axes or any(shape[d] == 0 for d in reduced):
        return _Found(local, order, axes, {}, (), -1, None)
    held = {rank: _held(shape, cuts, _coordinates(mesh)[rank]) for rank in _ranks(mesh, axes)}
    of_all = tuple(held.values())
    return _Found(local, order, axes, held, of_all, *_slabs(of_all, shape, order, reduced))


def _cut(placement: Placement, parts: int) -> _Cut:
    return placement.dim, parts, getattr(placement, "split_factor", 1)


@lru_cache(maxsize=4096)
def _held(shape: tuple[int, ...], cuts: tuple[_Cut | None, ...], coordinate: tuple[int, ...]) -> _Held:
    """The indices along each dim that the rank at this coordinate of the mesh holds."""
    held = [((0, size),) for size in shape]
    for cut, at in zip(cuts, coordinate, strict=True):
        if cut:
            dim, parts, factor = cut
            runs = [_chunk(_chunk((0, _length(held[dim])), factor, run), parts, at) for run in range(factor)]
            held[dim] = _united(piece for run in runs for piece in _within(held[dim], run))
    return tuple(held)


def _chunk(run: tuple[int, int], parts: int, index: int) -> tuple[int, int]:
    """A part of a run as torch.chunk makes it."""
    first, last = run
    size = -(-(last - first) // parts)
    return min(first + index * size, last), min(first + (index + 1) * size, last)


def _within(runs: _Runs, of: tuple[int, int]) -> _Runs:
    """The part of runs that lies from one place to another, where places are counted through all of them."""
    found, place = [], 0
    for first, last in runs:
        a, b = max(of[0] - place, 0), min(of[1] - place, last - first)
        if a < b:
            found.append((first + a, first + b))
        place += last - first
    return tuple(found)


def _united(runs: Any) -> _Runs:
    """The runs, with neighbours in one."""
    united: list[tuple[int, int]] = []
    for first, last in runs:
        if united and united[-1][1] == first:
            first = united.pop()[0]
        united.append((first, last))
    return tuple(united)


def _union(several: Sequence[_Runs]) -> _Runs:
    """What some ranks hold together, of whom each two hold the same or nothing in common."""
    return _united(sorted(set().union(*several)))


def _common(runs: _Runs, first: int, last: int) -> _Runs:
    """The runs between two indices."""
    return tuple((max(a, first), min(b, last)) for a, b in runs if max(a, first) < min(b, last))


def _length(runs: _Runs) -> int:
    return sum(last - first for first, last in runs)


@lru_cache(maxsize=256)
def _slabs(
    held: tuple[_Held, ...], shape: tuple[int, ...], order: tuple[int, ...], reduced: tuple[int, ...]
) -> tuple[int, list[int] | None]:
    """The dim to cut into slabs, one a rank; and their sizes, if the ranks hold such slabs, in their order."""
    cut = [d for d in reduced if any(_length(of_rank[d]) != shape[d] for of_rank in held)]
    # The slowest dim that gives each rank something keeps a rank's elements together; otherwise the largest.
    dim = max(cut, key=lambda d: (min(shape[d], len(held)), -order.index(d) if d in order else 1))
    runs = [run for of_rank in held for run in of_rank[dim]]
    straight = all(len(of_rank[dim]) <= 1 for of_rank in held) and all(a[1] == b[0] for a, b in pairwise(runs))
    return dim, [_length(of_rank[dim]) for of_rank in held] if len(cut) == 1 and straight else None


@lru_cache(maxsize=256)
def _coordinates(mesh: DeviceMesh) -> dict[int, tuple[int, ...]]:
    """Where in the mesh each rank is."""
    with _disable_current_modes():  # the mesh is no fake tensor, even where a graph is traced
        ranks = mesh.mesh.flatten().tolist()
    return dict(zip(ranks, product(*map(range, mesh.shape)), strict=True))


def _ranks(mesh: DeviceMesh, axes: tuple[int, ...]) -> tuple[int, ...]:
    """The ranks that differ from this one along these dims of the mesh alone, as groups count them."""
    own, places = mesh.get_coordinate(), _coordinates(mesh)
    others = [axis for axis in range(mesh.ndim) if axis not in axes]
    return tuple(sorted(rank for rank, at in places.items() if all(at[axis] == own[axis] for axis in others)))


def _group(mesh: DeviceMesh, axes: tuple[int, ...]) -> Any:
    """The group of these ranks, or None: to make one, torch needs ranks that are not here, or names that may differ."""
    if len(axes) == 1:
        return mesh.get_group(axes[0])
    ranks = _ranks(mesh, axes)
    if ranks == tuple(range(dist.get_world_size())):
        return dist.group.WORLD
    root = getattr(mesh, "_get_root_mesh", lambda: mesh)()
    flattened = getattr(root, "_flatten_mapping", {}).values()
    return next((flat.get_group() for flat in flattened if tuple(sorted(_coordinates(flat))) == ranks), None)


# --- moving shards ---------------------------------------------------------------------------------------------------


def _gathered(
    local: Tensor, held: dict[int, _Held], mesh: DeviceMesh, axis: int, reduced: list[int], order: list[int]
) -> tuple[Tensor, dict[int, _Held]]:
    """What the ranks along a dim of the mesh hold together; and what every rank then holds."""
    rows: dict[tuple[int, ...], list[_Held]] = {}
    others = {rank: at[:axis] + at[axis + 1 :] for rank, at in _coordinates(mesh).items()}
    for rank, runs in held.items():
        rows.setdefault(others[rank], []).append(runs)
    unions = {at: tuple(map(_union, zip(*row, strict=True))) for at, row in rows.items()}
    after = {rank: unions[others[rank]] for rank in held}

    ranks = _ranks(mesh, (axis,))
    counts = [distributed._product(_shape(held[rank])) for rank in ranks]
    blocks = distributed._gather(local.reshape(-1), counts, mesh.get_group(axis)).split(counts)
    own = after[dist.get_rank()]
    return _assembled(local, own, blocks, [held[rank] for rank in ranks], reduced, order), after


def _to_slabs(
    local: Tensor,
    held: tuple[_Held, ...],
    shape: tuple[int, ...],
    dim: int,
    call: Any,
    order: list[int],
    group: Any,
) -> tuple[Tensor, list[int]]:
    """What this rank holds for its slab: all of the reduced dims but a run of `dim`; and the sizes of all slabs."""
    world, rank = distributed._place(call.title, group)
    slabs = list(pairwise(distributed._even(shape[dim], world)))
    parts = []
    for first, last in slabs:
        before, count = _length(_common(held[rank][dim], 0, first)), _length(_common(held[rank][dim], first, last))
        parts.append(local.narrow(dim, before, count))
    sent = [of_rank[:dim] + (_common(of_rank[dim], *slabs[rank]),) + of_rank[dim + 1 :] for of_rank in held]
    counts = [distributed._product(_shape(runs)) for runs in sent]
    blocks = distributed._exchange_parts(parts, counts, group)
    whole = [((0, shape[d]),) if d in call.dims else runs for d, runs in enumerate(held[rank])]
    whole[dim] = (slabs[rank],)
    return _assembled(local, tuple(whole), blocks, sent, call.dims, order), [last - first for first, last in slabs]


def _shape(held: _Held) -> list[int]:
    return [_length(runs) for runs in held]


def _assembled(
    like: Tensor, whole: _Held, blocks: Sequence[Tensor], held: list[_Held], reduced: list[int], order: list[int]
) -> Tensor:
    """The tensor of the indices in `whole`, of blocks that hold some of them each; with its dims in order in memory."""
    shape = _shape(whole)
    tensor = _permuted(like.new_empty([shape[d] for d in _axes(like, reduced, order)]), reduced, order)
    for block, runs in zip(blocks, held, strict=True):
        places = [_places(of_whole, of_block) for of_whole, of_block in zip(whole, runs, strict=True)]
        _put(tensor, block.view(_shape(runs)), list(enumerate(places)))
    return tensor


def _places(whole: _Runs, runs: _Runs) -> _Runs:
    """Where runs lie among those of which they are a part."""
    begins = [_length(_common(whole, 0, first)) for first, _ in runs]
    return tuple((begin, begin + last - first) for begin, (first, last) in zip(begins, runs, strict=True))


def _put(slab: Tensor, block: Tensor, places: list[tuple[int, _Runs]]) -> None:
    """Writes the elements of a block to their places along each dim."""
    if not places:
        slab.copy_(block)
        return
    (dim, runs), *others = places
    done = 0
    for first, last in runs:
        _put(slab.narrow(dim, first, last - first), block.narrow(dim, done, last - first), others)
        done += last - first


for _name in distributed._OPERATIONS:
    for _overload in (_name, f"{_name}.out"):
        torch.library.register_torch_dispatch(f"gpureduce::{_overload}", DTensor, _rule)
