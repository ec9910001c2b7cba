"""What all examples take on the command line."""

import argparse

import torch


def parser(text):
    """A parser with --device and --small; `text` is the example's docstring."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    made.add_argument("--device", default=device, help=f"where it runs (default: {device})")
    made.add_argument("--small", action="store_true", help="in seconds, also on a CPU")
    return made


def name_of(device):
    """What a device is called in a table."""
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else "the CPU"
