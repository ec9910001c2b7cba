"""What is mean's alone: one division in the accumulator, one rounding. The tests of all operations have the rest."""

import pytest
import torch

from support import MEAN, dtype_of

pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values", "ignore:ComplexHalf support")


def test_one_rounding(device):
    """The quotient is rounded once: in bfloat16 the sum of 257 ones would be 256, and so less than one on average."""
    ones = torch.ones(257, dtype=torch.bfloat16, device=device)
    assert float(MEAN(ones)) == 1.0
    thirds = torch.tensor([1.0, 0.0, 0.0], device=device)
    assert float(MEAN(thirds, dtype=torch.float64)) == 1 / 3
    assert float(MEAN(thirds)) == float(torch.tensor(1.0) / 3)
    large = torch.tensor([1 << 24, 1, 1], dtype=torch.int32, device=device)  # whose sum float32 would round
    assert float(MEAN(large, dtype=torch.float64)) == ((1 << 24) + 2) / 3


FORMS = {"torch": torch.mean, "operator": MEAN, "function": MEAN.function, "functional": torch.func.functionalize(MEAN)}


@pytest.mark.parametrize("name", ["int64", "bool", "uint8"])
@pytest.mark.parametrize("form", FORMS)
def test_quotients_are_no_integers(form, name, device):
    """Integers need a dtype= that is none, whatever `out` is: torch.mean's messages, on meta tensors too."""
    mean = FORMS[form]
    for place in (device, "meta"):
        x, out = torch.ones(3, 4, dtype=dtype_of(name), device=place), torch.empty(3, device=place)
        for kwargs in ({}, dict(out=out)):
            with pytest.raises(RuntimeError, match="Input dtype must be either a floating"):
                mean(x, 1, **kwargs)
        for one in (x, x.float()):
            with pytest.raises(RuntimeError, match="Optional dtype must be either a floating"):
                mean(one, 1, dtype=torch.int32)
        if form != "torch":  # which takes such an out on CUDA
            with pytest.raises(RuntimeError, match="Long|Int|int64"):
                mean(x.float(), 1, out=out.long())
        assert mean(x, 1, dtype=torch.float32).dtype == torch.float32
