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

SAME = ("gpu", "torch", "sources", "device", "seed", "eager")  # what results of one file have in common
STANDARD = pathlib.Path()


def parser(doc, parts, compiles=False):
    """A parser with the options that all of these scripts have; some leave torch.compile out with --eager."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--save", metavar="FILE", type=pathlib.Path, nargs="?", const=STANDARD, help="keep the results")
    made.add_argument("--only", choices=list(parts), help="measure this part")
    made.add_argument("--budget", metavar="SECONDS", type=float, default=math.inf, help="begin no part after these")
    made.add_argument("--anew", action="store_true", help="measure what is kept again")
    if compiles:
        made.add_argument("--eager", action="store_true", help="leave torch.compile out")
    return made


def place(file, path, facts):
    """Where to keep the results; None: nowhere."""
    if facts.get("eager"):
        return provenance.chosen_place(file, path, None, "whole results of a GPU")
    return provenance.chosen_place(file, path, facts["gpu"])


def earlier(path, facts):
    """The parts that were measured before as they would be now, with how long each took."""
    for file in (partial(path), path):
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except ValueError:
            print(f"{file} cannot be read, and is left out of account")
            continue
        if all(found.get(name) == facts.get(name) for name in SAME):
            return found
    return {}


def partial(path):
    """Where results stand until all parts are there."""
    return path.with_name(path.name + ".partial")


def chosen(parts, options):
    return [options.only] if options.only else list(parts)


def kept(path, parts, options, facts):
    """{part: (what it gave, its seconds)} of the parts that need not be measured."""
    found = {} if path is None else earlier(path, facts)
    again = chosen(parts, options) if options.anew else ()
    return {
        name: (found[name], found.get("seconds", {}).get(name, 0.0))
        for name in parts
        if name in found and name not in again
    }


def missing(file, parts, options, facts):
    """The chosen parts that a run would measure."""
    there = kept(place(file, options.save, facts), parts, options, facts)
    return [name for name in chosen(parts, options) if name not in there]


def run(file, parts, options, facts, told=None):
    """Measures {name: function} and gives the results: `facts`, the parts by name, and the seconds of each.

    A function gives None where it lacks what it needs; the part stays open then. `told` makes lines of text of {name:
    what a part gave}.
    """
    if getattr(options, "eager", False):
        facts = facts | {"eager": True}
    path, names = place(file, options.save, facts), chosen(parts, options)
    results = facts | {"seconds": {}}
    for name, (found, seconds) in kept(path, parts, options, facts).items():
        results[name] = found
        results["seconds"][name] = seconds
    begin = time.monotonic()
    for name in names:
        if name in results:
            print(f"{name}: measured before, on the same sources")
            continue
        at = time.monotonic()
        if at - begin > options.budget:
            break
        measured = parts[name]()
        if measured is None:
            continue
        results[name] = measured
        results["seconds"][name] = round(time.monotonic() - at, 1)
        if told is not None:
            print("\n".join(told({name: measured})), flush=True)
        print(f"{name}: {results['seconds'][name]:.0f} s", flush=True)
        if path is not None:
            keep(results, path, whole=set(parts) <= set(results))
    if left := [name for name in names if name not in results]:
        more = f"; the same command{' without --anew' * options.anew} goes on from there" if path is not None else ""
        print(f"left: {', '.join(left)}{more}")
    return results


def keep(results, path, whole):
    """Writes the results; in one step, so that a run which is cut off leaves a whole file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    new.replace(path if whole else partial(path))
    if whole:
        partial(path).unlink(missing_ok=True)
        print(f"written: {path}")
