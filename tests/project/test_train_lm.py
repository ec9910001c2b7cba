"""A language model under replace(): a batch and two halves of it train with the same bits (bench/train_lm.py)."""

import json
import pathlib
import sys

import pytest
import torch

import torch_reduce

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))

import train_lm

SIZES = train_lm.Sizes(sequences=256, length=32, vocabulary=32, width=16, heads=2, layers=1)
PRODUCTS = {"embedding.weight", "head.weight"}  # and the weights of the layers' linear functions
PRODUCTS |= {f"layers.0.{name}.weight" for name in ("qkv", "out", "up", "down")}


@pytest.fixture(autouse=True)
def one_thread(set_threads):
    """Threads that wait for each other at every small operation take far longer where processors are busy."""
    set_threads(1)


def test_halves_have_the_bits_of_the_batch(device):
    """All losses of 20 steps, all gradients and all parameters; matrix products take half a batch at a time."""
    with torch_reduce.replace(devices=device):
        found = train_lm.compared(SIZES, torch.device(device), pieces=True, steps=20)
    assert found["losses"] == 20 and not found["gradients"] and not found["parameters"], found
    first, last = found["loss"]
    assert last < first - 0.1  # it learns


def test_torchs_own_sums_show(device):
    """Without replace() the same training has other bits: in losses, in norms' weights, in biases."""
    found = train_lm.compared(SIZES, torch.device(device), pieces=True, steps=5)
    assert found["losses"] < 5 and found["parameters"], found


def test_only_products_differ(device):
    """With whole products, the gradients that have other bits are those that a matrix product or an embedding adds up.

    This holds where a row of a product does not depend on how many rows there are.
    """
    x, weight = torch.randn(8192, 16, device=device), torch.randn(16, 64, device=device)
    if device != "cpu" or not torch.equal((x @ weight)[:4096], x[:4096] @ weight):
        pytest.skip("torch's matrix products depend on the batch here")
    with torch_reduce.replace(devices=device):
        found = train_lm.compared(SIZES, torch.device(device), pieces=False, steps=1)
    assert found["losses"] == 1 and set(found["gradients"]) <= PRODUCTS, found


def test_report(tmp_path, monkeypatch, capsys):
    """The program prints what agrees and the time of a step, keeps both, and ends with an error if a bit is lost."""
    monkeypatch.setattr(train_lm, "SMALL", SIZES)
    file = tmp_path / "found.json"
    arguments = ["--small", "--steps", "1", "--report", str(file)]
    train_lm.main(arguments)
    text, results = capsys.readouterr().out, json.loads(file.read_text())
    assert "replace(), products by pieces: 1 of 1 losses have the same bits" in text and "ms per step" in text
    assert results["bits"]["replace(), products by pieces"]["gradients"] == [] and set(results["ms"]) == set(
        train_lm.places(torch.device("cpu"))
    )
    monkeypatch.setattr(train_lm, "places", lambda device: {"torch": torch.no_grad(), "replace()": torch.enable_grad()})
    monkeypatch.setattr(train_lm, "compared", lambda *_: results["bits"]["torch, products whole"])
    monkeypatch.setattr(train_lm, "milliseconds", lambda *_, **__: results["ms"])
    with pytest.raises(SystemExit, match="other bits than the batch"):
        train_lm.main(arguments)
