"""Processes that are the ranks of torch.distributed, for tests: started once, they run one function after the other."""

import datetime
import functools
import multiprocessing
import os
import tempfile
import traceback

TIMEOUT = 60  # seconds that a rank waits for another


class World:
    """Ranks on gloo, each a process of its own. Functions run on some of them, as a group."""

    def __init__(self, size):
        # A server imports torch once and then forks, so that a rank starts in no time.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch.distributed.tensor", "numpy"])
        self._folder = tempfile.TemporaryDirectory()
        self._ends, self._processes, self._groups = [], [], []
        for rank in range(size):
            here, there = context.Pipe()
            arguments = rank, size, there, os.path.join(self._folder.name, "store")
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            there.close()
            self._ends.append(here)
            self._processes.append(process)

    def run(self, ranks, function, *args):
        """What function(group, *args) returns on each of `ranks`, a number or a list; an error of any rank is raised.

        A rank that has ended gives None.
        """
        ranks = list(range(ranks)) if isinstance(ranks, int) else ranks
        for rank, end in enumerate(self._ends):  # all take part in making a group
            if rank in ranks or ranks not in self._groups:
                end.send((function, ranks, args))
        if ranks not in self._groups:
            self._groups.append(ranks)
        answers, errors = [], []
        for rank in ranks:
            try:
                if not self._ends[rank].poll(2 * TIMEOUT):
                    raise TimeoutError(f"rank {rank} of {ranks} does not answer")
                result, error = self._ends[rank].recv()
            except EOFError:
                result = error = None
            answers.append(result)
            errors += [f"rank {rank} of {ranks}: {error}"] if error else []
        if errors:
            raise AssertionError("\n".join(errors[:1] + [error.splitlines()[-1] for error in errors[1:]]))
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


def _serve(rank, size, end, store):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=TIMEOUT)
    dist.distributed_c10d.default_pg_timeout = timeout  # of the groups that a DeviceMesh makes
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timeout)

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
        except BaseException:
            answer = None, traceback.format_exc()
        end.send(answer)
    os._exit(0)  # gloo's threads have no work any more, and what they would wait for is gone


def traffic(group, work, *args):
    """The bytes that this rank sends to other ranks, and how many messages that are, by collective."""
    import torch.distributed as dist

    sent = {"all_to_all": [0, 0], "all_gather": [0, 0]}
    exchange, gather = dist.all_to_all_single, dist.all_gather_into_tensor

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

    dist.all_to_all_single, dist.all_gather_into_tensor = count_exchange, count_gather
    try:
        work(group, *args)
    finally:
        dist.all_to_all_single, dist.all_gather_into_tensor = exchange, gather
    return sent
