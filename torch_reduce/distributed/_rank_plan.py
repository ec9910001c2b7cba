"""Who adds what: which rank sends which elements where, and adds which nodes of the tree."""

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import TypeAlias

import torch

_, _, CHUNK = torch.ops.gpureduce._order()

# Steps of groups. A group is of some neighbours, a power of two, by their rows in a growing table; -1 where there is
# none.
Joins: TypeAlias = list[list[list[int]]]
_NEIGHBOURS = 16  # of a group, if it is small; missing ones take up memory, too
_FEW_OUTPUTS = 4096


@dataclass(frozen=True, eq=False)
class Plan:
    """Who sends and adds what: a pure function of sizes that all ranks know, so all ranks have the same plan.

    An output's elements are counted from 0 in the contract's order. They come in `outer` rows; in each, rank r holds
    the elements from starts[r] to starts[r + 1]: sizes[r] * inner of them.
    """

    sizes: tuple[int, ...]
    outer: int
    inner: int
    outputs: int
    starts: list[int]
    bounds: list[int]  # rank r adds elements bounds[r] to bounds[r + 1], unless the outputs are dealt out
    runs: list[list[tuple[int, int]]]  # of chunks that rank r adds, each without a gap and in one tensor
    nodes: list[list[tuple[int, int]]]  # (level, index) of the sums that rank r computes, in order
    by_outputs: bool  # each rank adds whole outputs
    realigns: bool  # each rank keeps the chunks that begin in it
    joins: Joins

    @property
    def world(self) -> int:
        return len(self.sizes)

    @cached_property
    def row(self) -> int:
        return self.starts[-1]

    @cached_property
    def length(self) -> int:
        return self.outer * self.row

    @cached_property
    def chunks(self) -> int:
        return -(-self.length // CHUNK)

    @cached_property
    def shares(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """The outputs and the elements that each rank adds."""
        if self.by_outputs:
            cuts = even(self.outputs, self.world)
            return [((a, b), (0, self.length)) for a, b in pairwise(cuts)]
        return [((0, self.outputs), (a, b)) for a, b in zip(self.bounds, self.bounds[1:], strict=False)]

    @cached_property
    def counts(self) -> list[int]:
        """How many accumulators each rank gives to the others."""
        return [len(nodes) * (b - a) for nodes, ((a, b), _) in zip(self.nodes, self.shares, strict=True)]

    # Where each rank keeps the chunks that begin in it, only the elements of a chunk that an earlier rank begins are
    # sent: to that rank.

    @property
    def exchanges(self) -> bool:
        return self.starts != self.bounds

    @cached_property
    def heads(self) -> list[tuple[int, int]]:
        """To which rank each rank sends its first elements, and how many."""
        return [
            (bisect_right(self.bounds, start) - 1, min(bound, end) - start)
            for start, end, bound in zip(self.starts, self.starts[1:], self.bounds, strict=False)
        ]

    def spans(self, rank: int) -> list[tuple[int, int]]:
        """For each node of a rank, how many elements it has, and how many of these the rank holds."""
        end, spans = self.starts[rank + 1], []
        for level, index in self.nodes[rank]:
            first = (index << level) * CHUNK
            last = min(first + (CHUNK << level), self.length)
            spans.append((last - first, min(last, end) - first))
        return spans

    def before(self, rank: int, position: int) -> int:
        """How many elements of an output rank `rank` holds that come before `position`."""
        row, place = divmod(position, self.row)
        held = self.starts[rank + 1] - self.starts[rank]
        return row * held + min(max(place - self.starts[rank], 0), held)


@dataclass(frozen=True, eq=False)
class Together:
    """What one rank does for several calls at once, each with a plan that realigns. Lengths are of one output.

    A rank cuts its elements of each call into pieces: what another rank is to get, whole nodes, and the beginning of a
    chunk that goes on in other ranks. The pieces of all calls have one numbering; the
    results that follow from them have one, too.
    """

    cuts: list[list[int]]  # the lengths of the pieces of each call
    exchanges: bool  # whether any rank sends elements
    heads: list[int]  # the pieces that are sent, rank by rank
    sent: list[int]  # how many elements each rank gets
    received: list[int]  # how many each rank sends here
    blocks: list[int]  # the lengths of what is received, rank by rank, and from each rank call by call
    shared: list[int]  # which pieces, and after these which blocks, make up the chunks that go on in other ranks
    chunks: list[int]  # the lengths of these chunks
    nodes: list[int]  # which pieces, and after these which of these chunks, this rank reduces
    counts: list[int]  # how many accumulators each rank gives to the others
    joins: Joins  # of the nodes of all ranks
    last: list[int]  # the row of each call's sum


@lru_cache(maxsize=256)
def together(plans: tuple[Plan, ...], rank: int) -> Together:
    """It is kept, as a model's gradients have the same plans in every step."""
    world, calls = plans[0].world, range(len(plans))
    heads: list[list[int]] = [[] for _ in range(world)]
    sent, received, counts = [0] * world, [0] * world, [0] * world
    blocks, of_call = [], [[] for _ in calls]  # the blocks of each call
    for r in range(world):
        for i in calls:
            to, length = plans[i].heads[r]
            counts[r] += plans[i].counts[r]
            if to == rank and length and r != rank:
                of_call[i].append(len(blocks))
                blocks.append(length)
                received[r] += length

    cuts, tails, chunks, nodes, pieces = [], [], [], [], 0
    for i in calls:
        to, length = plans[i].heads[rank]
        cut = []
        if length:
            heads[to].append(pieces)
            sent[to] += length
            cut.append(length)
        for whole, held in plans[i].spans(rank):
            if held == whole:
                nodes.append(pieces + len(cut))
            else:
                tails.append((pieces + len(cut), of_call[i]))
                nodes.append(-len(chunks) - 1)
                chunks.append(whole)
            cut.append(held)
        cuts.append(cut)
        pieces += len(cut)
    shared = [place for tail, some in tails for place in (tail, *(pieces + block for block in some))]
    nodes = [node if node >= 0 else pieces - node - 1 for node in nodes]
    exchanges = any(plan.exchanges for plan in plans)
    heads_in_order = [piece for of_rank in heads for piece in of_rank]
    joins = _merged(plans)
    return Together(cuts, exchanges, heads_in_order, sent, received, blocks, shared, chunks, nodes, counts, *joins)


def _merged(plans: tuple[Plan, ...]) -> tuple[Joins, list[int]]:
    """The joins of several tables whose nodes stand rank by rank, and in each rank plan by plan; and the last rows."""
    world, rows, count = plans[0].world, [[] for _ in plans], 0
    for r in range(world):
        for plan, own in zip(plans, rows, strict=True):
            own += range(count, count + len(plan.nodes[r]))
            count += len(plan.nodes[r])
    joins: Joins = []
    for step in range(max(len(plan.joins) for plan in plans)):
        joins.append([])
        for plan, own in zip(plans, rows, strict=True):
            groups = plan.joins[step] if step < len(plan.joins) else []
            joins[-1] += [[row if row < 0 else own[row] for row in group] for group in groups]
            own += range(count, count + len(groups))
            count += len(groups)
    return joins, [own[-1] for own in rows]


@lru_cache(maxsize=256)
def plan_of(
    sizes: tuple[int, ...],
    outer: int,
    inner: int,
    outputs: int,
    item: int,
    accumulator: int,
    by_outputs: bool | None = None,
) -> Plan:
    """The plan that sends the fewest bytes; `item` and `accumulator` are bytes of an element and of a node.

    It says itself whether outputs are dealt out, unless `by_outputs` does.
    """
    world = len(sizes)
    starts = list(accumulate((size * inner for size in sizes), initial=0))
    length = outer * starts[-1]
    chunks = -(-length // CHUNK)
    held = [outer * (b - a) for a, b in pairwise(starts)]
    if outer == 1:
        bounds = [min(-(-start // CHUNK) * CHUNK, length) for start in starts]
        kept = [max(0, end - bound) for end, bound in zip(starts[1:], bounds, strict=False)]
    else:
        bounds = [min(cut * CHUNK, length) for cut in even(chunks, world)]
        kept = [0] * world
    added = [b - a for a, b in pairwise(bounds)]
    runs = []
    for rank, (a, b) in enumerate(pairwise(bounds)):
        cuts = [-(-a // CHUNK), -(-b // CHUNK)]
        if outer == 1 and b > max(a, starts[rank + 1]):  # the last chunk ends in another rank, and so in another tensor
            cuts.insert(1, cuts[1] - 1)
        runs.append([(c, d) for c, d in pairwise(cuts) if c < d])
    nodes = [[node for run in of_rank for node in cover(*run, chunks)] for of_rank in runs]

    moved = max(max(h, a) - k for h, a, k in zip(held, added, kept, strict=True))
    here = moved * item + world * max(map(len, nodes)) * accumulator
    there = max(*held, -(-length // world)) * item + accumulator
    if by_outputs is None:
        by_outputs = outputs >= world and there < here
    if by_outputs:
        runs, nodes = [[(0, chunks)]] * world, [cover(0, chunks, chunks)] * world
    neighbours = _NEIGHBOURS if outputs <= _FEW_OUTPUTS else 2
    joins = [] if by_outputs else joins_of([node for of_rank in nodes for node in of_rank], chunks, neighbours)
    realigns = outer == 1 and not by_outputs
    return Plan(sizes, outer, inner, outputs, starts, bounds, runs, nodes, by_outputs, realigns, joins)


def even(count: int, world: int) -> list[int]:
    """Where `count` things are cut so that all ranks have as many, or one less."""
    return [count * rank // world for rank in range(world + 1)]


def cover(first: int, last: int, chunks: int) -> list[tuple[int, int]]:
    """The fewest nodes that make up the chunks from `first` to `last` of `chunks`, from left to right.

    Node (level, index) is the sum of the chunks from index * 2**level on, 2**level of them or as many as there are.
    """
    nodes = []
    while first < last:
        room = last - first
        level = (room - 1).bit_length() if last == chunks else room.bit_length() - 1
        if first:
            level = min(level, (first & -first).bit_length() - 1)
        nodes.append((level, first >> level))
        first += 1 << level
    return nodes


def joins_of(nodes: list[tuple[int, int]], chunks: int, neighbours: int) -> Joins:
    """The joins of all nodes, some levels of the tree at a time, in groups of so many neighbours.

    The nodes are the table's first rows; each group appends one. The last row is then the sum.
    """
    levels, rows, steps = neighbours.bit_length() - 1, len(nodes), []
    count = -(-(chunks - 1).bit_length() // levels)
    # Of each step: rows by their places, counted in nodes of its lowest level.
    here: list[dict[int, int]] = [{} for _ in range(count + 1)]
    for row, (level, index) in enumerate(nodes):
        here[level // levels][index << level % levels] = row
    for i in range(count):
        groups: dict[int, list[int]] = {}
        for place, row in sorted(here[i].items()):
            groups.setdefault(place // neighbours, [-1] * neighbours)[place % neighbours] = row
        step = []
        for place, group in groups.items():
            if sum(row >= 0 for row in group) > 1:
                here[i + 1][place] = rows + len(step)
                step.append(group)
            else:  # it goes up as it is
                here[i + 1][place] = max(group)
        if step:
            steps.append(step)
            rows += len(step)
    return steps


def product(numbers) -> int:
    result = 1
    for number in numbers:
        result *= number
    return result
