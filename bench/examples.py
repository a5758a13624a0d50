#!/usr/bin/env python3
"""Runs every job file of examples/, shortened, and prints a table of gradients/s, metric and
seconds.

    bench/examples.py                          all of them
    bench/examples.py --only pool queues       some
    bench/examples.py --long                   without shortening

Runs bazel-bin/cli/sluice; build it, //examples and //examples/plugins/lion:liblion.so
first. A gradient is one worker's contribution: a synchronous step has one per worker, an
asynchronous update has one. Gradients/s are measured over the coordinator's training time; seconds
are from the command's start to its end.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import yaml

ROOT = pathlib.Path(__file__).absolute().parent.parent

# The changes to each file: fields below spec, by path.
SHORT = {
    "additive-live": {"training.steps": 10, "debug.stepDelaySeconds": 0.1},
    "adult-csv": {"training.epochs": None, "training.steps": 100},
    "bit-exact": {"training.epochs": None, "training.steps": 30},
    "compression": {"training.epochs": None, "training.steps": 100},
    "fashion-mnist": {"training.epochs": None, "training.steps": 15},
    "hybrid": {"training.steps": 3},
    "lstm-asynchronous": {"training.steps": 6},
    "lstm-lm": {"training.epochs": None, "training.steps": 3, "data.evaluation.maxSamples": 16},
    "lstm-random": {"training.steps": 3},
    "mlp-asynchronous": {"training.epochs": None, "training.steps": 400},
    "mlp-mnist": {"training.epochs": None, "training.steps": 200},
    "mnist-asynchronous": {"training.steps": 100},
    "mnist-synchronous": {"training.steps": 50},
    "server-execution": {"training.epochs": None, "training.steps": 10},
    "server-stages": {"training.epochs": None, "training.steps": 10},
    "torchscript": {"training.epochs": None, "training.steps": 30},
}
DEFAULT = {"training.steps": 100}
AS_IT_IS = ("additive", "additive-sharded", "additive-sharded-synchronous", "mlp-random", "pool", "queues")


def read(path):
    """Reads a manifest; unlike PyYAML, it reads 1e-3 as a number."""
    loader = type("Loader", (yaml.SafeLoader,), {})
    loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789"))
    return yaml.load(path.read_text(), loader)


def set_field(spec, path, value):
    *parents, name = path.split(".")
    for parent in parents:
        spec = spec.setdefault(parent, {})
    if value is None:
        spec.pop(name, None)
    else:
        spec[name] = value


def shorten(name, spec):
    if name in AS_IT_IS:
        return
    for path, value in SHORT.get(name, DEFAULT).items():
        set_field(spec, path, value)
    if "steps" in spec["training"]:
        spec["training"].pop("epochs", None)
    evaluation = spec["data"].get("evaluation")
    if evaluation is not None and "intervalSteps" in evaluation:
        evaluation["intervalSteps"] = min(evaluation["intervalSteps"], spec["training"]["steps"])


def place_files(spec, example, options):
    """Makes the paths absolute. Returns the first missing file, or None."""
    data = spec["data"]
    for place in (data.get("source"), data.get("evaluation", {}).get("source"), spec["model"]):
        if not place or "path" not in place:
            continue
        built = options.sluice.absolute().parents[1]  # the directory bazel-bin under any name
        path = example.parent / place["path"].replace("../bazel-bin", str(built))
        if not path.exists():
            return place["path"]
        place["path"] = str(path.resolve())
    return None


def run(name, manifest, options):
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "job.yaml"
        path.write_text(json.dumps(manifest))
        command = [str(options.sluice), "run", str(path), "--output", "json"]
        done = subprocess.run(command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=options.timeout)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    summary = next((line for line in lines if line["type"] == "summary"), None)
    if done.returncode != 0 or summary is None:
        reason = summary["reason"] if summary else done.stderr.strip()
        return [name, "–", f"failed: {reason}", "–"], False
    training = manifest["spec"]["training"]
    synchronous = training.get("mode", "Synchronous") == "Synchronous"
    workers = manifest["spec"].get("worker", {}).get("replicas", 1)
    gradients = summary["step"] * (workers if synchronous else 1)
    rate = f"{gradients / summary['trainingSeconds']:.3g}" if summary["trainingSeconds"] > 0 else "–"
    return [name, rate, metric_of(summary), f"{summary['seconds']:.1f}"], True


def metric_of(summary):
    evaluation = summary.get("evaluation", {})
    for key, text in (("accuracy", "accuracy {:.1f} %"), ("perplexity", "perplexity {:.0f}"), ("loss", "loss {:.3g}")):
        if key in evaluation:
            return text.format(evaluation[key])
    return f"loss {summary['loss']:.3g}" if "loss" in summary else "–"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="names of examples; default: all")
    parser.add_argument("--long", action="store_true", help="do not shorten")
    parser.add_argument("--sluice", type=pathlib.Path, default=ROOT / "bazel-bin" / "cli" / "sluice")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one example")
    options = parser.parse_args()
    # The optimizer `lion`, built beside the command.
    built = options.sluice.absolute().parents[1] / "examples" / "plugins" / "lion"
    os.environ["SLUICE_PLUGIN_PATH"] = f"{built}:{os.environ.get('SLUICE_PLUGIN_PATH', '')}"
    examples = {path.stem: path for path in sorted((ROOT / "examples").glob("*.yaml"))}
    unknown = set(options.only or []) - set(examples)
    if unknown:
        sys.exit(f"there is no example {', '.join(sorted(unknown))}; there are {', '.join(examples)}")
    rows, failed = [], False
    for name in options.only or examples:
        manifest = read(examples[name])
        if not options.long:
            shorten(name, manifest["spec"])
        missing = place_files(manifest["spec"], examples[name], options)
        if missing:
            rows.append([name, "–", f"failed: {missing} does not exist", "–"])
            failed = True
            continue
        row, succeeded = run(name, manifest, options)
        rows.append(row)
        failed = failed or not succeeded
        print("  ".join(row), file=sys.stderr, flush=True)
    print("| example | gradients/s | metric | seconds |\n|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
