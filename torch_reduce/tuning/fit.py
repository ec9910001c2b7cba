"""Fits the choice among plans to measured times.

The data are the times of all plans that the kernels proposed for each of some thousand random problems, and what is
known of each plan (csrc/core/plan/choose.cpp). It learns the logarithm of a plan's time over the best plan's time for
its problem, up to CLIP: beyond, it does not matter how bad a plan is. The learner is gradient boosting of
small decision trees, by LightGBM (https://lightgbm.readthedocs.io), with as few trees as come near to what many can
do. The **regret** of a fit is the time of the plan that it takes over the best plan's.
"""

from typing import Any

import numpy as np

CLIP = 0.3
LEAST_US = 0.5  # no sum is faster: something went wrong with such a time
SETTINGS = {
    "objective": "l2",
    "num_leaves": 127,
    "learning_rate": 0.15,
    "min_data_in_leaf": 20,
    "verbose": -1,
    "seed": 1,
    "deterministic": True,
    "force_row_wise": True,
}
TREES = 40
# Of what is added to a known choice: smaller trees, as most is known.
MORE_SETTINGS = SETTINGS | {"num_leaves": 31, "learning_rate": 0.1}
FOLDS = 4
LEAF = 255
FORMAT = "torch_reduce choice 1"  # the first line of a choice; csrc/core/plan/choice.cpp reads it


class Times:
    """Of all plans of all problems: ``known`` (plans x features), ``us``, and ``problem``, the index of theirs.

    Args:
        rows: what tune.measure returns: for each problem the times ("us") and what is known ("features").
        features: how much is known of each plan.

    Raises:
        ValueError, TypeError or KeyError: there is no problem with two plans, or a row is not of this form.
    """

    def __init__(self, rows: list[dict[str, Any]], features: int) -> None:
        known, us, problem = [], [], []
        for row in rows:
            took = np.array([float(row["us"][str(k)]) for k in range(len(row["features"]))])
            rows_known = np.array(row["features"], dtype=np.float32)
            if rows_known.shape != (len(took), features) or not np.isfinite(took).all():
                raise ValueError(f"expected {features} features of each plan and its time, and numbers")
            if len(took) > 1 and took.min() > LEAST_US:
                problem += [len(us)] * len(took)
                known.append(rows_known)
                us.append(took)
        if not us:
            raise ValueError("no problem with two plans was measured")
        self.known, self.us, self.problem = np.concatenate(known), np.concatenate(us), np.array(problem)
        self.count = len(us)
        self.starts = np.flatnonzero(np.diff(self.problem, prepend=-1))
        self.best = np.minimum.reduceat(self.us, self.starts)
        behind = np.log(self.us / self.best[self.problem])
        self.target = np.minimum(behind, CLIP)
        self.weight = 0.1 + np.exp(-4 * behind)  # it matters most to tell plans apart that are nearly the best

    def regrets(self, guess: np.ndarray) -> np.ndarray:
        """Of each problem, if the plan of the least guess is taken."""
        ends = np.append(self.starts[1:], len(self.us))
        taken = [s + np.argmin(guess[s:e]) for s, e in zip(self.starts, ends, strict=True)]
        return self.us[taken] / self.best


def fit(times: Times, rows: Any = slice(None), base: np.ndarray | None = None) -> Any:
    """A LightGBM booster, fitted to these plans; or to what is to be added to the guesses of a known choice, `base`."""
    import lightgbm

    target = times.target if base is None else times.target - base
    data = lightgbm.Dataset(times.known[rows], target[rows], weight=times.weight[rows])
    return lightgbm.train(SETTINGS if base is None else MORE_SETTINGS, data, TREES)


def told(regrets: np.ndarray) -> str:
    """Regrets in words."""
    mean = np.exp(np.log(regrets).mean())
    most, nearly_all = np.quantile(regrets, (0.95, 0.99))
    return f"{mean:.4f}, 95 of 100 below {most:.3f}, 99 below {nearly_all:.3f}, worst {regrets.max():.2f}"


def cross_validated(times: Times, base: np.ndarray | None = None) -> np.ndarray:
    """The regret of each problem, by a fit that has not seen it: a quarter of them is left out at a time."""
    fold = np.random.default_rng(0).permutation(times.count)[times.problem] % FOLDS
    guess = np.zeros(len(times.us)) if base is None else base.copy()
    for k in range(FOLDS):
        guess[fold == k] += fit(times, fold != k, base).predict(times.known[fold == k])
    return times.regrets(guess)


def nodes(tree: dict[str, Any]) -> list[tuple[float, int, int]]:
    """[(value, feature, right), ...] of LightGBM's tree: a node, its left branch; `right` nodes on, its right one."""
    if "leaf_value" in tree:
        return [(tree["leaf_value"], LEAF, 0)]
    left, right = nodes(tree["left_child"]), nodes(tree["right_child"])
    return [(tree["threshold"], tree["split_feature"], 1 + len(left)), *left, *right]


def text_of(model: Any, features: str, gpu: dict[str, Any], about: str, base: str = "") -> str:
    """A choice as text, as csrc/core/plan/choice.cpp reads it.

    Args:
        model: what `fit` returns.
        features: what torch.ops.gpureduce._features returns.
        gpu: what torch.ops.gpureduce._device says of the GPU.
        about: what was measured, in words.
        base: the GPU whose known choice the model adds to, if it does.
    """
    head = [FORMAT, f"gpu {gpu['name']}", f"about {about}", f"features {features}"]
    head += [f"{key} {gpu[key]}" for key in ("multiprocessors", "l2_bytes", "bandwidth")]
    head += [f"on {base}"] if base else []
    trees = [nodes(tree["tree_structure"]) for tree in model.dump_model()["tree_info"]]
    lines = []
    for tree in trees:
        lines.append(f"tree {len(tree)}")
        each = [f"{np.float32(value):.6g} {feature} {right}" for value, feature, right in tree]
        lines += [", ".join(each[i : i + 8]) for i in range(0, len(each), 8)]
    return "\n".join([*head, *lines]) + "\n"
