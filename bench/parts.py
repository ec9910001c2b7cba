"""How scripts of this folder measure in parts, and keep what they have measured.

    python bench/rows.py                     measures every part, and prints
    python bench/rows.py --save              and keeps it in bench/results/<gpu>/rows.json; --save FILE in FILE
    python bench/rows.py --save --budget 500 begins no part after so many seconds; the same command goes on from there
    python bench/rows.py --only softmax      measures this part alone

A file is of one GPU, torch and state of the sources (provenance.py). Until it has all parts, they stand beside it in
one whose name ends in .partial, so that pages are made of whole results. Parts that are of today are not measured
again, unless --anew asks for it.
"""

import argparse
import json
import math
import pathlib
import time

import provenance

SAME = ("gpu", "torch", "sources")  # as well as what the script itself adds, such as a seed
STANDARD = pathlib.Path()


def parser(doc, parts):
    """A parser with the options that all of these scripts have."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--save", metavar="FILE", type=pathlib.Path, nargs="?", const=STANDARD, help="keep the results")
    made.add_argument("--only", choices=list(parts), help="measure this part")
    made.add_argument("--budget", metavar="SECONDS", type=float, default=math.inf, help="begin no part after these")
    made.add_argument("--anew", action="store_true", help="measure what is kept again")
    return made


def place(file, path, facts):
    """Where to keep the results: `path`, or for STANDARD the file of this GPU; None: nowhere."""
    if path != STANDARD:
        return path
    if facts["gpu"] is None:
        print("nothing is saved: only results of a GPU have a place of their own; name a file to keep these")
        return None
    return provenance.place(file, facts["gpu"])


def earlier(path, facts):
    """The parts that were measured before as they would be now, with how long each took."""
    for kept in (path.with_suffix(".partial"), path):
        if kept.exists():
            found = json.loads(kept.read_text(encoding="utf-8"))
            if all(found.get(name) == value for name, value in facts.items() if name in SAME or name == "seed"):
                return found
    return {}


def run(file, parts, options, facts, told=None):
    """Measures {name: function} and gives the results: `facts`, the parts by name, and the seconds of each.

    `told` makes lines of text of {name: what a part gave}.
    """
    path = place(file, options.save, facts)
    chosen = [options.only] if options.only else list(parts)
    kept = {} if path is None else earlier(path, facts)
    results = facts | {"seconds": {}}
    for name in parts:
        if name in kept and not (options.anew and name in chosen):
            results[name] = kept[name]
            results["seconds"][name] = kept.get("seconds", {}).get(name, 0.0)
    begin = time.monotonic()
    for name in chosen:
        if name in results:
            print(f"{name}: measured before, on the same sources")
            continue
        at = time.monotonic()
        if at - begin > options.budget:
            break
        results[name] = parts[name]()
        results["seconds"][name] = round(time.monotonic() - at, 1)
        if told is not None:
            print("\n".join(told({name: results[name]})), flush=True)
        print(f"{name}: {results['seconds'][name]:.0f} s", flush=True)
        if path is not None:
            keep(results, path, whole=set(parts) <= set(results))
    if left := [name for name in parts if name not in results]:
        print(f"left: {', '.join(left)}" + ("; the same command goes on from there" if path is not None else ""))
    return results


def keep(results, path, whole):
    """Writes the results; in one step, so that a run which is cut off leaves a whole file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    new = path.with_suffix(".new")
    new.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    new.replace(path if whole else partial)
    if whole:
        partial.unlink(missing_ok=True)
        print(f"written: {path}")
