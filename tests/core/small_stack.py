"""Sums in a thread with a stack of 64 KiB, and pages below it that nothing may touch: what needs more ends the process.

Run by test_threads.py, for each instruction set of the CPU; "cuda" as an argument does the same with tensors of a GPU,
and "cuda torch" tries whether torch.sum can be called from such a thread there.
The threads that share a sum have such stacks too, if OMP_STACKSIZE says so.
"""

import ctypes
import sys
import warnings

import torch

from outside import VIEWS
from support import DTYPES, EVERY, MEAN, SUM, assert_same_bits, data
from table import rotated
from test_layouts import LAYOUTS

STACK, GUARD = 64 << 10, 4 << 20  # bytes

libc = ctypes.CDLL(None)


def checked(error):
    if error:
        raise OSError(error, "pthread")


def in_small_thread(work):
    """Calls `work` in a thread with such a stack, and raises its error."""
    errors = []

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    def call(_):
        try:
            work()
        except BaseException as error:
            errors.append(error)

    attributes = ctypes.create_string_buffer(256)  # larger than any system's
    thread = ctypes.c_void_p()
    checked(libc.pthread_attr_init(attributes))
    checked(libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(STACK)))
    checked(libc.pthread_attr_setguardsize(attributes, ctypes.c_size_t(GUARD)))
    checked(libc.pthread_create(ctypes.byref(thread), attributes, call, None))
    checked(libc.pthread_join(thread, None))
    if errors:
        raise errors[0]


def views(name, device):
    """(what it is, a view, the dims to reduce) of every kind."""

    def make(*shape):
        return data(shape, name, seed=1, device=device)

    for layout, view in LAYOUTS.items():
        yield layout, *view(make)
    for sizes, dims in VIEWS:
        yield sizes, make(*sizes), dims
    for length, columns in ((9, 65_541), (63, 1500), (130, 1100), (515, 1025), (1537, 300)):
        yield (length, columns), make(length, columns), [0]
    for pieces, length in ((3, 7), (5, 103), (2, 515)):  # of many columns
        yield (pieces, length), make(pieces, length + 1, 1100)[:, :length], [0, 1]
    twos = make(1 << 14).view([2] * 14).permute([7, 2, 11, 5, 0, 13, 9, 3, 12, 6, 1, 10, 4, 8])
    yield "many dims", twos, [0, 2, 4, 6, 8, 10, 12]
    yield "many dims, all", twos, list(range(14))
    if name not in ("bool", "uint16", "uint32", "uint64"):
        yield "negated", torch._neg_view(make(9, 1301)), [1]
    if make(1).is_complex():
        yield "conjugated", make(9, 1301).conj(), [0]


def calls(device):
    """(what it is, a function that sums) for every kind of kernel: operations take turns with views."""
    for name in DTYPES:
        taken = [op for op in EVERY if op.takes(name)]
        targets = (torch.float64, torch.int64, torch.bool, torch.complex64, torch.float16)
        for k, (what, view, dims) in enumerate(views(name, device), DTYPES.index(name)):
            dims = dims or None
            for op in rotated(taken, k):
                yield (op.name, name, what), lambda op=op, x=view, d=dims: op(x, d)
            for target in rotated(targets, k):
                if target is not view.dtype:
                    yield (target, name, what), lambda x=view, d=dims, t=target: SUM(x, d, dtype=t)

    x = data((30, 700, 5), "float32", device=device)

    def out():
        return SUM(x, [1], out=torch.empty(5, 30, device=device).t())

    def backward():
        leaf = x.clone().requires_grad_()
        MEAN(leaf, [0, 2]).square().sum().backward()
        return leaf.grad

    def tangent():
        return torch.func.jvp(lambda y: SUM(y, [1]), (x,), (x,))[1]

    def batched():
        return torch.vmap(lambda y: SUM(y, [0]), in_dims=1)(x)

    yield "out", out
    yield "backward", backward
    yield "tangent", tangent
    yield "batched", batched


def control(device):
    """torch.sum in such a thread: a GPU's driver may need more than that."""
    x = torch.ones(9, 1301, device=device)
    wanted, got = torch.sum(x, 1), []
    in_small_thread(lambda: got.append(torch.sum(x, 1)))
    assert torch.equal(got[0], wanted)


def main(device="cpu", what=""):
    warnings.simplefilter("ignore")
    torch.zeros(1, device=device).requires_grad_().sum().backward()  # torch's own threads begin
    if what == "torch":
        return control(device)
    made = list(calls(device))
    wanted = [call() for _, call in made]

    def compare(threads):
        torch.set_num_threads(threads)
        for (what, call), right in zip(made, wanted, strict=True):
            assert_same_bits(call(), right, (what, threads))

    for threads in (1, 5) if device == "cpu" else (1,):
        in_small_thread(lambda threads=threads: compare(threads))
    print("64 KiB are enough")


if __name__ == "__main__":
    main(*sys.argv[1:])
