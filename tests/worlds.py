"""Processes that are the ranks of torch.distributed, for tests: started once, they run one function after the other."""

import datetime
import functools
import multiprocessing
import os
import sys
import tempfile
import traceback

import pytest
import torch

TIMEOUT = 60  # seconds that a rank waits for another
SIZE = 8
PRELOADED = ["torch", "torch.distributed.tensor", "torch._functorch.aot_autograd", "numpy", "pytest", "table", "worlds"]

# What a world is made of, by kind: its backend, and the device of a rank where there are so many GPUs.
KINDS = {
    "cpu": ("gloo", lambda rank, gpus: "cpu"),
    "gpus": ("gloo", lambda rank, gpus: f"cuda:{rank % gpus}"),
    "mixed": ("gloo", lambda rank, gpus: "cpu" if rank % 2 else f"cuda:{rank // 2 % gpus}"),
    "nccl": ("nccl", lambda rank, gpus: f"cuda:{rank}"),  # which takes a GPU a rank
}

_device = torch.device("cpu")


def here():
    """The device of this rank."""
    return _device


class TooFewRanks(Exception):
    """What a function of ranks raises on all of them, where they are too few for it: then the test is skipped."""


class World:
    """Ranks of a kind, each a process of its own. Functions run on some of them, as a group."""

    def __init__(self, kind="cpu", size=SIZE):
        gpus = torch.cuda.device_count()
        self.whole = True  # every rank answers
        self.kind, self.size = kind, min(size, gpus) if kind == "nccl" else size
        backend, place = KINDS[kind]
        self.devices = [place(rank, gpus) for rank in range(self.size)]
        # A server imports modules once and then forks, so that a rank starts in no time. It finds the tests' modules by
        # this variable: sys.path is not told to it.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        path = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        self._folder = tempfile.TemporaryDirectory()
        self._ends, self._processes, self._groups = [], [], []
        for rank, device in enumerate(self.devices):
            end, other_end = context.Pipe()
            store = os.path.join(self._folder.name, "store")
            arguments = rank, self.size, other_end, store, backend, device
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            other_end.close()
            self._ends.append(end)
            self._processes.append(process)
        if path is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = path

    def run(self, ranks, function, *args, ends=()):
        """What function(group, *args) returns on each of `ranks`, a number or a list; an error of any rank is raised.

        A rank that ends gives None if it is one of `ends`; otherwise that is an error.
        """
        ranks = list(range(ranks)) if isinstance(ranks, int) else ranks
        if max(ranks) >= self.size:
            pytest.skip(f"needs {max(ranks) + 1} ranks, and there are {self.size} on {self.kind}")
        for rank, end in enumerate(self._ends):  # all take part in making a group
            if rank in ranks or ranks not in self._groups:
                end.send((function, ranks, args))
        if ranks not in self._groups:
            self._groups.append(ranks)
        answers, errors, few = [], [], None
        for rank in ranks:
            try:
                if not self._ends[rank].poll(2 * TIMEOUT):
                    raise TimeoutError(f"rank {rank} of {ranks} does not answer")
                result, error = self._ends[rank].recv()
            except EOFError:
                result, error = None, None if rank in ends else "it has ended"
                self.whole = False
            except TimeoutError:
                self.whole = False
                raise
            answers.append(result)
            if isinstance(error, TooFewRanks):
                error, few = None, error
            errors += [f"rank {rank} of {ranks}: {error}"] if error else []
        if errors:
            raise AssertionError("\n".join(errors[:1] + [error.splitlines()[-1] for error in errors[1:]]))
        if few:
            pytest.skip(f"needs more ranks than there are on {self.kind}: {few}")
        return answers

    def close(self):
        """Ends all ranks."""
        for end, process in zip(self._ends, self._processes, strict=True):
            end.close()
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
        self._folder.cleanup()


def _serve(rank, size, end, store, backend, device):
    import torch.distributed as dist

    global _device
    _device = torch.device(device)
    torch.set_num_threads(1)
    if _device.type == "cuda":
        torch.cuda.set_device(_device)
        torch.zeros(1, device=_device)  # otherwise a DeviceMesh sets another device
    timeout = datetime.timedelta(seconds=TIMEOUT)
    for name in ("default_pg_timeout", "default_pg_nccl_timeout"):  # of the groups that a DeviceMesh makes
        setattr(dist.distributed_c10d, name, timeout)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size, timeout=timeout)

    @functools.cache
    def group(ranks):
        return dist.new_group(ranks, timeout=timeout)

    while True:
        try:
            function, ranks, args = end.recv()
        except EOFError:
            break
        try:
            members = group(tuple(ranks))
            if rank not in ranks:
                continue
            answer = function(members, *args), None
        except TooFewRanks as error:
            answer = None, error
        except BaseException:
            answer = None, traceback.format_exc()
        end.send(answer)
    os._exit(0)  # gloo's threads have no work any more, and what they would wait for is gone


def traffic(group, work, *args):
    """The bytes that this rank sends to other ranks, and how many messages that are, by collective."""
    import torch.distributed as dist

    from torch_reduce.distributed._symmetric import Memory

    sent = {"all_to_all": [0, 0], "all_gather": [0, 0]}
    exchange, gather, own = dist.all_to_all_single, dist.all_gather_into_tensor, Memory.gather

    def count_exchange(output, input, received, parts, **kwargs):
        rank = dist.get_rank(kwargs["group"])
        others = [part for to, part in enumerate(parts) if to != rank and part]
        sent["all_to_all"][0] += sum(others) * input.itemsize
        sent["all_to_all"][1] += len(others)
        return exchange(output, input, received, parts, **kwargs)

    def count_gather(output, input, **kwargs):
        sent["all_gather"][0] += input.nbytes * (dist.get_world_size(kwargs["group"]) - 1)
        sent["all_gather"][1] += 1
        return gather(output, input, **kwargs)

    def count_own(memory, mine):
        sent["all_gather"][0] += mine.nbytes * (len(memory.parts) - 1)
        sent["all_gather"][1] += 1
        return own(memory, mine)

    dist.all_to_all_single, dist.all_gather_into_tensor, Memory.gather = count_exchange, count_gather, count_own
    try:
        work(group, *args)
    finally:
        dist.all_to_all_single, dist.all_gather_into_tensor, Memory.gather = exchange, gather, own
    return sent
