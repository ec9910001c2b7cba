"""Walks from the first sum to `explain`: each step is printed as words, as code, and as what the code says.

    python examples/first_steps.py [--device cuda] [--small]

Read it on the screen or here: a step is a function of a few lines, and what it asserts is a promise of the library.
"""

import inspect
import textwrap

import torch
from _options import name_of, parser

import torch_reduce

STEPS = []


def step(function):
    """Adds a function of (device, n) to the walk; its docstring is what is said before its code."""
    STEPS.append(function)
    return function


@step
def a_sum(device, n):
    """torch_reduce.sum takes what torch.sum takes. torch.ops.gpureduce.sum is the same operator under its own name."""
    x = torch.arange(12, device=device, dtype=torch.float32).view(3, 4)
    print(torch_reduce.sum(x))
    print(torch_reduce.sum(x, dim=1))
    print(torch_reduce.sum(x, 0, keepdim=True))
    print(torch.ops.gpureduce.sum(x, [0, 1]))


@step
def dtypes(device, n):
    """Short floats are added in float32 and rounded once, at the end. Integers are added exactly, in int64."""
    halves = torch.ones(n, device=device, dtype=torch.bfloat16)
    print(torch_reduce.sum(halves), torch_reduce.sum(halves, dtype=torch.float32))
    print(torch_reduce.sum(torch.full((n,), 127, device=device, dtype=torch.int8)))


@step
def the_same_bits(device, n):
    """A row has the same sum alone, in a batch, as a column, and on the CPU: the same bits, not almost."""
    x = torch.randn(64, n, device=device)
    rows = torch_reduce.sum(x, 1)
    assert rows[7].equal(torch_reduce.sum(x[7]))
    assert rows.equal(torch_reduce.sum(x.t().contiguous(), 0))
    assert rows.cpu().equal(torch_reduce.sum(x.cpu(), 1))
    print(f"row 7 is {rows[7].item().hex()} everywhere")


@step
def the_order(device, n):
    """That is so because the order of additions is fixed. docs/order.md has all of it; here it is for 4096 elements."""
    x = torch.randn(4096, device=device)
    lanes = x[:512]
    for i in range(512, 4096, 512):
        lanes = lanes + x[i : i + 512]  # lane l adds elements l, l + 512, l + 1024, ...
    while len(lanes) > 1:
        lanes = lanes[0::2] + lanes[1::2]  # nearest neighbours, until one is left
    assert lanes[0].equal(torch_reduce.sum(x))
    print("by hand:", lanes[0].item().hex(), " torch_reduce:", torch_reduce.sum(x).item().hex())


@step
def gradients(device, n):
    """Gradients flow through it, as through torch.sum; so do torch.func, torch.compile and autocast."""
    x = torch.ones(2, 3, device=device, requires_grad=True)
    torch_reduce.mean((x * x).sum(1)).backward()
    print(x.grad)
    print(torch.vmap(torch_reduce.sum)(torch.ones(4, 5, device=device)))


@step
def replaced(device, n):
    """Code that you do not want to touch runs on our sum inside of this switch, which holds for the whole process."""
    x = torch.randn(64, n, device=device)
    with torch_reduce.replace_torch_sum(device.type):
        rows = x.sum(1)
    assert rows.equal(torch_reduce.sum(x, 1))
    print("x.sum(1) had the bits of torch_reduce.sum(x, 1)")


@step
def errors(device, n):
    """A wrong argument raises what torch.sum raises, and says which argument it was."""
    try:
        torch_reduce.sum(torch.ones(3, 4, device=device), dim=2)
    except IndexError as error:
        print(f"IndexError: {error}")


@step
def explained(device, n):
    """explain says what a call will do, without doing it: which kernel, how it is laid out, what must be moved."""
    x = torch.empty(64, n, device=device)
    print(torch_reduce.explain(x, 0))


def main():
    options = parser(__doc__).parse_args()
    n = 5000 if options.small else 1_000_000
    torch.manual_seed(0)
    print(f"On {name_of(options.device)}; n = {n}, device = {str(options.device)!r}")
    for i, function in enumerate(STEPS, 1):
        code = inspect.getsource(function).split('"""\n', 1)[1]
        print(f"\n{i}. {function.__doc__}\n\n{textwrap.indent(textwrap.dedent(code), '    ')}", flush=True)
        function(options.device, n)
    print("\nNext: examples/train.py trains a model; `python -m torch_reduce.ladder` shows how such a kernel is made.")


if __name__ == "__main__":
    main()
