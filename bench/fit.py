"""Fits the choice among plans to measured times, and writes it as C++ data.

    python bench/regret.py --kind mixed --count 9999 --seed 100 --save times.json      up to ten minutes of a GPU
    python bench/fit.py times.json                      what a fit is worth, on problems that it has not seen
    python bench/fit.py times.json --write csrc/plan/data/h200.inc

The data are the times of all plans that the kernels proposed for each of some thousand random problems, and what is
known of each plan (csrc/plan/choose.cpp). What is learnt is the logarithm of a plan's time over that of the best plan
of its problem, up to CLIP, beyond which it does not matter how bad a plan is. The learner is gradient boosting of
small decision trees, by LightGBM (https://lightgbm.readthedocs.io), with as few trees as come near to what many can
do. The regret of a fit is the time of the plan that it takes over the best plan's. It is told for problems that were
left out of the fit, a quarter at a time.
"""

import argparse
import json
import pathlib
import sys
import textwrap

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
}
SETTINGS |= {"deterministic": True, "force_row_wise": True}
TREES = 40
FOLDS = 4
LEAF = 255


class Times:
    """Of all candidates of all problems: `known` (candidates x features), `us`, and `problem`, the index of theirs."""

    def __init__(self, files):
        known, us, problem = [], [], []
        for file in files:
            data = json.loads(pathlib.Path(file).read_text(encoding="utf-8"))
            self.names = data["features"]
            for row in data["problems"]:
                took = np.array([row["us"][str(k)] for k in range(len(row["features"]))])
                if len(took) > 1 and took.min() > LEAST_US:
                    problem += [len(us)] * len(took)
                    known.append(np.array(row["features"], dtype=np.float32))
                    us.append(took)
        self.known, self.us, self.problem = np.concatenate(known), np.concatenate(us), np.array(problem)
        self.count = len(us)
        self.starts = np.flatnonzero(np.diff(self.problem, prepend=-1))
        self.best = np.minimum.reduceat(self.us, self.starts)
        behind = np.log(self.us / self.best[self.problem])
        self.target = np.minimum(behind, CLIP)
        self.weight = 0.1 + np.exp(-4 * behind)  # it matters most to tell plans apart that are nearly the best

    def regrets(self, guess):
        """Of each problem, if the plan of the least guess is taken."""
        ends = np.append(self.starts[1:], len(self.us))
        taken = [s + np.argmin(guess[s:e]) for s, e in zip(self.starts, ends, strict=True)]
        return self.us[taken] / self.best


def fit(times, rows, trees=TREES):
    import lightgbm

    data = lightgbm.Dataset(times.known[rows], times.target[rows], weight=times.weight[rows])
    return lightgbm.train(SETTINGS, data, trees)


def told(regrets):
    mean = np.exp(np.log(regrets).mean())
    most, nearly_all = np.quantile(regrets, (0.95, 0.99))
    return f"{mean:.4f}, 95 of 100 below {most:.3f}, 99 {nearly_all:.3f}, worst {regrets.max():.2f}"


def cross_validated(times, trees=TREES):
    fold = np.random.default_rng(0).permutation(times.count)[times.problem] % FOLDS
    guess = np.zeros(len(times.us))
    for k in range(FOLDS):
        guess[fold == k] = fit(times, fold != k, trees).predict(times.known[fold == k])
    return times.regrets(guess)


def nodes(tree):
    """[(value, feature, right), ...] of a tree, in the order of choose.cpp."""
    if "leaf_value" in tree:
        return [(tree["leaf_value"], LEAF, 0)]
    left, right = nodes(tree["left_child"]), nodes(tree["right_child"])
    return [(np.float32(tree["threshold"]), tree["split_feature"], 1 + len(left)), *left, *right]


def number(value):
    """As a float of C++."""
    text = f"{np.float32(value):.6g}"
    return text + ("f" if "." in text or "e" in text else ".f")


def as_cpp(model, names, about):
    trees = [nodes(tree["tree_structure"]) for tree in model.dump_model()["tree_info"]]
    ends = np.cumsum([len(tree) for tree in trees])
    text = [f"// Written by bench/fit.py, from {about}.", f"// Features: {' '.join(names)}."]
    text.append("constexpr Node kNodes[] = {")
    flat = " ".join(f"{{{number(value)}, {feature}, {right}}}," for tree in trees for value, feature, right in tree)
    text += textwrap.wrap(flat.replace(", ", ",~").replace("},~", "}, "), 126)
    text += ["};", "constexpr int kTreeEnds[] = {", *textwrap.wrap(" ".join(f"{end}," for end in ends), 126), "};"]
    return "\n".join(text).replace("~", " ") + "\n"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="what bench/regret.py --save wrote")
    parser.add_argument("--trees", type=int, default=TREES)
    parser.add_argument("--write", metavar="FILE", type=pathlib.Path, help="the C++ data")
    options = parser.parse_args(arguments)
    try:
        import lightgbm  # noqa: F401
    except ImportError:
        sys.exit("bench/fit.py needs LightGBM: python -m pip install lightgbm")
    times = Times(options.files)
    print(f"{times.count} problems, {len(times.us)} plans, {options.trees} trees")
    print(f"regret on problems that were left out: {told(cross_validated(times, options.trees))}")
    model = fit(times, slice(None), options.trees)
    print(f"on those that were not: {told(times.regrets(model.predict(times.known)))}")
    if options.write:
        facts = json.loads(pathlib.Path(options.files[0]).read_text(encoding="utf-8"))
        about = f"{len(times.us)} plans of {times.count} problems on an {facts['gpu']}"
        options.write.write_text(as_cpp(model, times.names, about), encoding="utf-8")
        print(f"written: {options.write}, {options.write.stat().st_size} bytes")


if __name__ == "__main__":
    main()
