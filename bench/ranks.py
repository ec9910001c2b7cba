"""Measures torch_reduce.distributed on several GPUs of one host, a rank each, over NCCL, against torch's collectives.

    python bench/ranks.py                 a minute: default calls, all_reduce of many sizes, a sum of 2^28, clipping
    python bench/ranks.py --save          into bench/results/<gpu>/ranks.json
    python bench/ranks.py --save FILE     into FILE
    python bench/ranks.py --only clip     one part: calls, all_reduce, sum or clip

all_reduce and the sum are CUDA graphs of several calls over rotating buffers, so that the host's time does not count;
clipping is called as training calls it, and its times are from the call until the GPU is done. Default calls are timed
in both ways, with and without their check. A time is the slowest rank's, and the median of several rounds, in which the
candidates take turns. Results are first compared: bits with our sum on one GPU, and torch's numbers with ours.
"""

import argparse
import functools
import itertools
import os
import pathlib
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor

import contenders
import family
import provenance
import torch_reduce
import torch_reduce.distributed as ours
from torch_reduce.tuning.race import Flush, same_bits

DTYPES = (torch.float32, torch.bfloat16)
MEBIBYTES = (1, 4, 16, 64, 256, 1024)
ROTATING_BYTES = 2 << 30
ROUNDS = 9
CALLS = 50  # rounds of single calls, whose times differ more
SUMMED = 1 << 28
SMALL = 2.0**-100  # what is added again and again must not overflow


def slowest(us):
    """The largest of all ranks' times."""
    times = torch.tensor([us], dtype=torch.float64, device="cuda")
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return float(times)


def graph_of(call, buffers, calls):
    """A CUDA graph of so many calls, each on another buffer."""
    for buffer in buffers[:2]:
        call(buffer)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for k in range(calls):
            call(buffers[k % len(buffers)])
    return graph


def graph_times(candidates, buffers, calls):
    """{name: microseconds a call} of {name: call(buffer)}."""
    flush = Flush()
    graphs = {name: graph_of(call, buffers, calls) for name, call in candidates.items()}
    samples = {name: [] for name in graphs}
    for round in range(ROUNDS + 1):
        for name, graph in graphs.items():
            flush()
            torch.cuda.synchronize()
            dist.barrier()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            if round:
                samples[name].append(slowest(1e3 * start.elapsed_time(end) / calls))
    return {name: statistics.median(took) for name, took in samples.items()}


def wall_times(candidates, rounds=ROUNDS):
    """{name: microseconds} from a call until the GPU is done, of {name: call()}."""
    samples = {name: [] for name in candidates}
    for round in range(rounds + 3):
        for name, call in candidates.items():
            torch.cuda.synchronize()
            dist.barrier()
            begin = time.perf_counter()
            call()
            torch.cuda.synchronize()
            took = slowest(1e6 * (time.perf_counter() - begin))
            if round >= 3:
                samples[name].append(took)
    return {name: statistics.median(took) for name, took in samples.items()}


def check(right, what):
    """Ends all ranks if something is wrong on one."""
    if slowest(float(not right)):
        sys.exit(f"WRONG: {what}")


def random(count, dtype, seed, scale=1.0):
    """Numbers of this rank, or of all where the seed is the same."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return (torch.randn(count, device="cuda", generator=generator) * scale).to(dtype)


def calls():
    """A row a function and size: microseconds from a call until the GPU is done, and of a call in a CUDA graph.

    "first" is the first call of its kind, for whose check the host waits; "beside gloo" a later one on a group that has
    a backend for the CPU, too.
    """
    world, rank, rows = dist.get_world_size(), dist.get_rank(), []
    both = dist.new_group(backend="cpu:gloo,cuda:nccl")
    fewer = itertools.count(1)  # elements of each piece: nobody has agreed on so many
    for size in (1, 64):
        count = (size << 20) // 4 // world * world
        mine = random(count, torch.float32, rank, SMALL)
        parts = torch.stack([random(count, torch.float32, r, SMALL) for r in range(world)])
        wanted = torch_reduce.sum(parts, 0)
        piece = torch.empty(count // world, device="cuda")
        for _ in range(2):  # new, and agreed on
            ours.all_reduce(got := mine.clone())
            check(same_bits(got, wanted), f"all_reduce of {size} MiB")
            ours.reduce_scatter(piece, mine)
            check(same_bits(piece, wanted.chunk(world)[rank]), f"reduce_scatter of {size} MiB")
        reduces = {
            "checked": lambda x: ours.all_reduce(x),
            "unchecked": lambda x: ours.all_reduce(x, check=False),
            "torch": lambda x: dist.all_reduce(x),
            "first": lambda x: ours.all_reduce(x[: len(x) - world * next(fewer)]),
            "beside gloo": lambda x: ours.all_reduce(x, both),
        }
        scatters = {
            "checked": lambda x, to=piece: ours.reduce_scatter(to, x),
            "unchecked": lambda x, to=piece: ours.reduce_scatter(to, x, check=False),
            "torch": lambda x, to=piece: dist.reduce_scatter_tensor(to, x),
            "first": lambda x, to=piece: ours.reduce_scatter(to[: -(n := next(fewer))], x[: len(x) - world * n]),
            "beside gloo": lambda x, to=piece: ours.reduce_scatter(to, x, both),
        }
        for name, candidates in (("all_reduce", reduces), ("reduce_scatter", scatters)):
            buffers = [mine.clone() for _ in range(max(2, 16 // size))]
            bound = {key: functools.partial(call, buffers[0]) for key, call in candidates.items()}
            row = {"call": name, "bytes": size << 20, "dtype": "float32", "us": wall_times(bound, CALLS)}
            graphs = {key: candidates[key] for key in ("checked", "unchecked", "torch")}
            rows.append(row | {"gpu_us": graph_times(graphs, buffers, 8)})
            del buffers, bound
    return rows


def registered(count, dtype):
    """A tensor that NCCL's symmetric kernels can add, and its pool; None where this torch has none."""
    backend = dist.group.WORLD._get_backend(torch.device("cuda", torch.cuda.current_device()))
    try:
        pool = torch.cuda.MemPool(backend.mem_allocator)
        with torch.cuda.use_mem_pool(pool):
            x = torch.full((count,), SMALL, dtype=dtype, device="cuda")
        backend.register_mem_pool(pool, symm=True)
    except (RuntimeError, TypeError, AttributeError):
        return None
    return x, pool, backend


def all_reduces():
    """A row a size and dtype: microseconds of ours, of NCCL's, and of NCCL's for memory registered as symmetric.

    The last one adds one tensor again and again, which may lie in the cache.
    """
    world, rank, rows = dist.get_world_size(), dist.get_rank(), []
    for dtype in DTYPES:
        for size in MEBIBYTES:
            count = (size << 20) // dtype.itemsize
            mine = random(count, dtype, rank, SMALL)
            if size == min(MEBIBYTES):
                parts, got = torch.stack([random(count, dtype, r, SMALL) for r in range(world)]), mine.clone()
                ours.all_reduce(got)
                check(same_bits(got, torch_reduce.sum(parts, 0)), f"all_reduce of {dtype}")
            buffers = [mine.clone() for _ in range(max(2, min(16, (ROTATING_BYTES >> 20) // size)))]
            candidates = {
                "ours": lambda x: ours.all_reduce(x, check=False),
                "torch": lambda x: dist.all_reduce(x),
            }
            if window := registered(count, dtype):
                candidates["symmetric"] = lambda x, y=window[0]: dist.all_reduce(y)
            us = graph_times(candidates, buffers, max(4, min(16, 256 // size)))
            row = {"bytes": size << 20, "dtype": name_of(dtype), "us": us["ours"], "torch_us": us["torch"]}
            rows.append(row | ({"symmetric_us": us["symmetric"]} if window else {}))
            if window:
                torch.cuda.synchronize()
                window[2].deregister_mem_pool(window[1])
            del buffers, mine, window, candidates
            torch.cuda.empty_cache()
    return rows


def sums():
    """A row a dtype: microseconds of our sum of a sharded tensor, of the shard alone, of torch's sum and all_reduce."""
    world, rank, rows = dist.get_world_size(), dist.get_rank(), []
    for dtype in DTYPES:
        cuts = [SUMMED * r // world + (1001 * r if r < world else 0) for r in range(world + 1)]  # not at chunks
        sizes = [b - a for a, b in itertools.pairwise(cuts)]
        whole = random(SUMMED, dtype, 1)
        mine = whole[cuts[rank] : cuts[rank + 1]].clone()
        got = torch_reduce.sum(ours.Shard(mine, sizes=sizes))
        check(same_bits(got, torch_reduce.sum(whole)), f"sum of {dtype}")
        del whole
        buffers = [mine, *(mine.clone() for _ in range(3))]

        def torchs(x):
            total = x.sum()
            dist.all_reduce(total)
            return total

        candidates = {
            "ours": lambda x, s=sizes: torch_reduce.sum(ours.Shard(x, sizes=s)),
            "torch": torchs,
            "shard": lambda x: torch_reduce.sum(x),
        }
        us = graph_times(candidates, buffers, 8)
        row = {"elements": SUMMED, "dtype": name_of(dtype), "us": us["ours"], "torch_us": us["torch"]}
        rows.append(row | {"shard_us": us["shard"]})
        del buffers, mine
        torch.cuda.empty_cache()
    return rows


def clips():
    """A row a dtype: microseconds of the norm and of clipping of the gradients of an 8B model's layers, by slabs."""
    mesh = dist.init_device_mesh("cuda", (dist.get_world_size(),))
    rows, kind = [], family.LISTS[-1]
    for dtype in DTYPES:
        parameters, plain = [], []
        for k, n in enumerate(family.lengths(kind)):
            whole = random(n, dtype, k)
            if k < 2:
                plain.append(whole.clone())
            parameter = torch.nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None))
            parameter.grad = parameter.detach().clone()
            parameters.append(parameter)
        grads = [p.grad for p in parameters]
        norm, some = torch_reduce.get_total_norm(grads), torch_reduce.get_total_norm(grads[:2])
        check(same_bits(some, torch_reduce.get_total_norm(plain)), f"total norm of {dtype}")
        torchs = torch.nn.utils.get_total_norm(grads).full_tensor()
        check(torch.allclose(norm, torchs.float(), rtol=2e-2), f"total norm of {dtype}, beside torch's")
        candidates = {
            "norm": lambda g=grads: torch_reduce.get_total_norm(g),
            "torch norm": lambda g=grads: torch.nn.utils.get_total_norm(g).full_tensor(),
            "clip": lambda p=parameters: torch_reduce.clip_grad_norm_(p, 1.0),
            "torch clip": lambda p=parameters: torch.nn.utils.clip_grad_norm_(p, 1.0).full_tensor(),
        }
        row = {"list": kind, "dtype": name_of(dtype), "bytes": sum(g.numel() for g in grads) * dtype.itemsize}
        rows.append(row | wall_times(candidates))
        del parameters, grads, plain, candidates
        torch.cuda.empty_cache()
    return rows


PARTS = {"calls": calls, "all_reduce": all_reduces, "sum": sums, "clip": clips}


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def told(results):
    """What was measured, as text."""
    lines = []
    for row in results.get("calls", []):
        us, gpu = (", ".join(f"{key} {took:.1f}" for key, took in row[times].items()) for times in ("us", "gpu_us"))
        lines.append(f"{row['call']:14} {row['bytes'] >> 20:3} MiB, µs end to end: {us}; on the GPU: {gpu}")
    for row in results.get("all_reduce", []):
        rate = row["bytes"] / row["us"] / 1e3
        lines.append(
            f"all_reduce {row['dtype']:9} {row['bytes'] >> 20:5} MiB {row['us']:9.1f} µs ({rate:6.1f} GB/s), "
            f"torch {row['torch_us']:9.1f} ({row['torch_us'] / row['us']:.2f}x)"
            + (f", symmetric {row['symmetric_us']:9.1f}" if "symmetric_us" in row else "")
        )
    for row in results.get("sum", []):
        lines.append(
            f"sum of {row['elements']} {row['dtype']:9} {row['us']:8.1f} µs, shard alone {row['shard_us']:8.1f}, "
            f"torch {row['torch_us']:8.1f} ({row['torch_us'] / row['us']:.2f}x)"
        )
    for row in results.get("clip", []):
        for name in ("norm", "clip"):
            us, torchs = row[name], row[f"torch {name}"]
            what = f"{name} of {row['list']}, {row['dtype']:9}"
            lines.append(f"{what} {us:8.1f} µs, torch {torchs:8.1f} ({torchs / us:.2f}x)")
    return lines


def run(rank, world, folder, options):
    """What a rank does. The first one prints and saves."""
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    results = contenders.environment("ranks.json") | {"gpus": world, "backend": "nccl"}
    for name in [options.only] if options.only else PARTS:
        results[name] = PARTS[name]()
        if rank == 0:
            print("\n".join(told({name: results[name]})), flush=True)
    if options.save is not None and rank == 0:
        provenance.save(results, "ranks.json", options.save)
    dist.barrier()
    torch.cuda.synchronize()
    sys.stdout.flush()
    os._exit(0)  # groups whose graphs are still there do not end well


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", metavar="FILE", type=pathlib.Path, nargs="?", const="", help="keep the results")
    parser.add_argument("--only", choices=list(PARTS), help="measure this part")
    options = parser.parse_args(arguments)
    world = torch.cuda.device_count()
    if world < 2:
        sys.exit("bench/ranks.py needs two NVIDIA GPUs or more")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run, (world, folder, options), world)


if __name__ == "__main__":
    main()
