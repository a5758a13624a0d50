#!/usr/bin/env python3
"""Compares two runs that `bench/run.py --save` has kept.

    bench/compare.py bench/results/OLD.json bench/results/NEW.json
    bench/compare.py OLD NEW --check 3       exit code 1 if a value is more than 3 % worse

The figures are medians over the rounds of each run. Runs on different machines, or under different loads, say little:
the heads of both are printed first.
"""
import argparse
import json
import statistics
import sys


def read(path):
    """The file's head, and {(line, column): median}."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        medians = {(v["line"], v["column"]): statistics.median(v["rounds"]) for v in found["values"]}
        return {key: found[key] for key in ("time", "commit", "machine", "load")}, medians
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"{path} is not a file of bench/run.py --save: {error!r}")


def is_rate(line):
    """Whether larger values are better: gradients per second, not seconds."""
    return not line.startswith(("push + pull", "table of", "death "))


def compare(old, new):
    """[(line, column, old, new, change in percent, positive if better)] of the values that both have."""
    rows = []
    for key in old:
        if key in new and old[key] > 0 and new[key] > 0:
            gain = new[key] / old[key] if is_rate(key[0]) else old[key] / new[key]
            rows.append((*key, old[key], new[key], 100 * (gain - 1)))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--check", type=float, metavar="PERCENT", help="exit code 1 if a value is worse by more than this")
    options = parser.parse_args()

    (old_head, old), (new_head, new) = read(options.old), read(options.new)
    for name, head in (("old", old_head), ("new", new_head)):
        print(f"{name}: {head['commit']}, {head['time']}, {head['machine']}, load {' '.join(map(str, head['load']))}")
    rows = compare(old, new)
    if not rows:
        sys.exit("the two runs have no value in common")

    print("\n| | | old | new | better by |\n|---|---|---|---|---|")
    for line, column, a, b, change in rows:
        print(f"| {line} | {column} | {a:.4g} | {b:.4g} | {change:+.1f} % |")
    if options.check is not None and min(row[-1] for row in rows) < -options.check:
        sys.exit(1)


if __name__ == "__main__":
    main()
