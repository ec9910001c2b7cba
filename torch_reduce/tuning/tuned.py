"""What torch_reduce.tune returns."""

from typing import NamedTuple


class Tuned(NamedTuple):
    """What :func:`torch_reduce.tune` found: microseconds of GPU time between kernels, with a cold cache."""

    before_us: float  # by the plan that was taken before
    us: float  # by the plan that is taken now
    plan: str  # which it is, as `torch_reduce.explain` prints it
    plans: int  # how many were timed
