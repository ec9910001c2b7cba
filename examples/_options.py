"""What all examples take on the command line."""

import argparse
import sys

import torch

try:
    import torch_reduce  # noqa: F401
except ModuleNotFoundError:
    sys.exit(
        "torch_reduce is not installed for this Python. `make build` installs it for .venv/bin/python;\n"
        "`pip install --no-build-isolation .` in the repository's folder for an environment of your own."
    )


def device(text):
    """The device that `text` names, if it is there."""
    try:
        found = torch.device(text)
    except RuntimeError:
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"it must be cpu, cuda or cuda:N, not {text!r}")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        there = torch.cuda.device_count()
        raise argparse.ArgumentTypeError(
            f"{text!r} is not there: torch sees {there or 'no'} NVIDIA GPU{'s' * (there > 1)}"
        )
    return found


def parser(text):
    """A parser with --device and --small; `text` is the example's docstring."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = "cuda" if torch.cuda.is_available() else "cpu"
    made.add_argument("--device", type=device, default=default, help=f"cpu, cuda or cuda:N (here: {default})")
    made.add_argument("--small", action="store_true", help="a small size: seconds, also on a CPU")
    return made


def name_of(device):
    """What a device is called in a table."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"


def table(header, rows):
    """Prints a Markdown table: the first column to the left, the others to the right."""
    print(f"| {' | '.join(header)} |")
    print("|" + "|".join([" :-- "] + [" --: "] * (len(header) - 1)) + "|")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |", flush=True)
