"""Says what is built and what GPUs are there, and whether the pinned bits hold on each device (if not, exit code 1).

python -m torch_reduce
python -m torch_reduce --version
python -m torch_reduce tune        measures this GPU, and chooses plans by that from then on; --help says more
"""

import argparse
import json
import os
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import torch

import torch_reduce
from torch_reduce._library import CORE, GLUE, build_facts, entry, serving


def has_code_for(capability: tuple[int, int], architectures: list[str]) -> bool:
    """Whether code for any of ``architectures`` ("9.0", "9.0+PTX", "10.0a") runs on a GPU of this capability.

    Machine code runs within its major version, from its own minor version on; PTX on everything later too. An "f"
    variant, PTX or not, stays within its major version; an "a" variant runs on that very capability alone.
    """
    for major, minor, suffix, ptx in re.findall(r"(\d+)\.(\d+)([a-z]?)(\+PTX)?", " ".join(architectures)):
        built = (int(major), int(minor))
        anything_later = bool(ptx) and not suffix
        if capability == built:
            return True
        if suffix in ("", "f") and capability > built and (capability[0] == built[0] or anything_later):
            return True
    return False


COMMANDS = """
Next:
  python -m torch_reduce.ladder                  the kernels that lead to this one, and where each comes from
"""
ON_A_GPU = """\
  python -m torch_reduce.ladder run --profile    their times on this GPU, and the counters that explain them
  python -m torch_reduce tune                    the fastest plans for this GPU: five minutes, and the same bits
"""
WITHOUT_A_GPU = """\
  python -m torch_reduce.ladder run --emulate    the same kernels on the CPU, with the counters of an emulated GPU
"""
IN_THE_SOURCE_TREE = """\
  python examples/first_steps.py                 a walk from the first sum to what a call will launch
  python examples/train.py                       a training run whose losses have the same bits twice
  make bench                                     times beside torch's, on the GPU or, without one, on the CPU
"""
NO_MACHINE_CODE = (
    "machine code does not fit this GPU: many functions run slower kernels; build on this machine: make build"
)


def why_no_gpu() -> str:
    """One sentence on why torch sees no GPU, and what to do."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} was built without CUDA: install one that was built with it to use a GPU"
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        hidden = os.environ["CUDA_VISIBLE_DEVICES"]
        return f"CUDA_VISIBLE_DEVICES is {hidden!r} and may hide them: unset it"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:  # torch names the driver's version, and where a newer one is
        return " ".join(str(error).split())
    return "the driver knows of none"


def row(name: str, value: object) -> None:
    print(f"{name:<14} {value}")


def wheel() -> str:
    """The version and the tag of the wheel that this package was installed from."""
    try:
        found = distribution("torch_reduce")
    except PackageNotFoundError:
        return "none"
    here = Path(str(found.locate_file("torch_reduce"))).resolve() == CORE.parent.resolve()
    tag = re.search(r"^Tag: (.+)$", found.read_text("WHEEL") or "", re.MULTILINE)
    return f"{found.version}, {tag[1]}" if here and tag else "none"


def size(library: Path) -> str:
    return f"{library} ({library.stat().st_size / 2**20:.1f} MiB)"


def next_commands(on_a_gpu: bool) -> str:
    """What to try next, of what works here."""
    in_the_source_tree = Path("examples/first_steps.py").exists()
    return COMMANDS + (ON_A_GPU if on_a_gpu else WITHOUT_A_GPU) + IN_THE_SOURCE_TREE * in_the_source_tree


SHOWN = 10  # wrong results


def self_check(name: str, device: torch.device) -> bool:
    try:
        found = torch_reduce.contract(device)
    except RuntimeError as error:
        row("self-check", f"{name}: FAILED")
        row("", str(error))
        return False
    good = found.kept and not found.wrong
    failed = f"FAILED, {len(found.wrong)} of {found.results} pinned results"
    row("self-check", f"{name}: {f'passed, {found.results} pinned results' if good else failed}")
    for line in found.wrong[:SHOWN]:
        row("", line)
    if len(found.wrong) > SHOWN:
        row("", f"and {len(found.wrong) - SHOWN} more")
    row("contract", f"{name}: {found}")
    if not found.kept:
        row("", f"not {found.promised}: {', '.join(found.deviating)}")
    return good


def main(arguments: list[str] | None = None) -> int:
    """``python -m torch_reduce``; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["tune"]:
        from torch_reduce.tuning import tune

        return tune.main(arguments[1:])
    form = argparse.RawDescriptionHelpFormatter
    gpus = torch.cuda.device_count()
    epilog = next_commands(gpus > 0)
    parser = argparse.ArgumentParser(
        prog="python -m torch_reduce", description=__doc__, epilog=epilog, formatter_class=form
    )
    parser.add_argument("--version", action="version", version=f"torch_reduce {torch_reduce.__version__}")
    parser.parse_args(arguments)
    facts = build_facts()
    registered = json.loads(torch.ops.gpureduce._build_info())
    row("torch_reduce", f"{torch_reduce.__version__}, order version {registered['order']}")
    row("torch", f"{torch.__version__}, built for {', '.join(facts['torch'])}")
    row("Python", platform.python_version())
    row("wheel", wheel())
    row("core", size(CORE))
    row("glue", f"{size(GLUE)}, built for torch {serving()}")
    row("entry", "there" if entry() else "none: calls from Python take longer")
    row("compiler", facts["compiler"])
    if registered["cuda"]:
        row("CUDA", f"built for {facts['cuda']} with nvcc {facts['nvcc']}")
        row("architectures", " ".join(facts["architectures"]))
    else:
        row("CUDA", "not built: CPU tensors only")

    good = self_check("cpu", torch.device("cpu"))
    if not gpus:
        row("GPU", f"none found: {why_no_gpu()}")
    for i in range(gpus):
        gpu = torch.cuda.get_device_properties(i)
        capability = (gpu.major, gpu.minor)
        row(f"GPU {i}", f"{gpu.name}, capability {gpu.major}.{gpu.minor}, {gpu.total_memory / 2**30:.0f} GiB")
        if not registered["cuda"]:
            row("self-check", f"cuda:{i}: not run, as CUDA was not built")
        elif not has_code_for(capability, facts["architectures"]):
            row("self-check", f"cuda:{i}: FAILED, the library has no code for this GPU: build it again on this machine")
            good = False
        else:
            good &= self_check(f"cuda:{i}", torch.device("cuda", i))
            device = json.loads(torch.ops.gpureduce._device(i))
            row("plans", f"cuda:{i}: chosen by data of an {device['choice']}")
            if not device["native"]:
                row("machine code", f"cuda:{i}: {NO_MACHINE_CODE}")
    print(epilog, end="")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
