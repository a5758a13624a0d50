#!/usr/bin/env python3
"""Runs every job file of examples/, shortened, and prints a table: example, gradients/s, metric, seconds.

    bench/examples.py                          all of them
    bench/examples.py --only pool queues       some
    bench/examples.py --long                   as the files say
    bench/examples.py --data /a/folder         with mnist/, adult/ and text/; default: SLUICE_DATA, or ../shared/data beside the repository

Runs bazel-bin/services/cli/sluice, which has to be built. What an example wants and is not there is made where it can be: the two files of
adult-csv of adult/adult.csv.gz, the model of torchscript where Python has torch. Otherwise the example is left out, and said so.
A gradient is one worker's contribution: of a synchronous step as many as there are workers, of an asynchronous update one. Gradients/s are those
of the time in which the job trained, as the coordinator saw it; seconds are from the command's start to its end.
"""
import argparse
import gzip
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import yaml

ROOT = pathlib.Path(__file__).absolute().parent.parent
FASHION_MNIST = "/usr/share/datasets/fashion-mnist"

# What is other than in the file: fields below spec, by path.
SHORT = {
    "additive-live": {"training.steps": 10, "training.stepDelaySeconds": 0.1},
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
    "mnist": {"training.epochs": None, "training.steps": 15},
    "mnist-asynchronous": {"training.steps": 100},
    "mnist-synchronous": {"training.steps": 50},
    "server-execution": {"training.epochs": None, "training.steps": 10},
    "server-stages": {"training.epochs": None, "training.steps": 10},
    "torchscript": {"training.epochs": None, "training.steps": 30},
}
DEFAULT = {"training.steps": 100}
AS_IT_IS = ("additive", "additive-sharded", "additive-sharded-synchronous", "mlp-random", "pool", "queues")


def read(path):
    """A manifest. (1e-3 is a number, which PyYAML does not know.)"""
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


def find(path, example, options):
    """Where a file that an example names lies: beside the example, or in the folder of data."""
    candidates = [example.parent / path]
    if getattr(options, "made", None):
        candidates.append(options.made / path)
    if options.data:
        parts = pathlib.PurePath(path).parts
        candidates += [options.data.joinpath(*parts[i:]) for i in range(len(parts)) if parts[i] != os.sep]
        if path == FASHION_MNIST:
            candidates.append(options.data / "mnist")
    return next((candidate for candidate in candidates if candidate.exists()), None)


def make_adult(made, options):
    """The census data in a file to train on and one to test on: every fifth line."""
    source = options.data / "adult" / "adult.csv.gz" if options.data else None
    if source is None or not source.exists():
        return
    with gzip.open(source, "rt") as file:
        head, *lines = file.readlines()
    for name, chosen in (("train", [l for i, l in enumerate(lines) if i % 5]), ("test", lines[::5])):
        path = made / "data" / "adult" / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt") as file:
            file.writelines([head, *chosen])


def make_net(made):
    """The model that examples/torchscript.yaml describes."""
    program = (
        "import sys, torch\n"
        "net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))\n"
        "torch.jit.script(net).save(sys.argv[1])\n"
    )
    subprocess.run([sys.executable, "-c", program, str(made / "net.pt")], stderr=subprocess.DEVNULL, check=False)


def place_files(spec, example, options):
    """What is missing, or None."""
    data = spec["data"]
    for place in (data.get("source"), data.get("evaluation", {}).get("source"), spec["model"]):
        if not place or "path" not in place:
            continue
        found = find(place["path"], example, options)
        if found is None:
            return place["path"]
        place["path"] = str(found.resolve())
    return None


def run(name, manifest, options):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "job.yaml"
        path.write_text(json.dumps(manifest))
        command = [str(options.sluice), "run", str(path), "--output", "json"]
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=options.timeout)
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
    with tempfile.TemporaryDirectory() as made:
        return run_all(pathlib.Path(made))


def run_all(made):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="names of examples; default: all")
    parser.add_argument("--long", action="store_true", help="do not shorten")
    beside = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path(os.environ.get("SLUICE_DATA", beside)), help="folder with mnist/, adult/ and text/")
    parser.add_argument("--sluice", type=pathlib.Path, default=ROOT / "bazel-bin" / "services" / "cli" / "sluice")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one example")
    options = parser.parse_args()
    # The optimizer of `lion`, as it was built beside the command.
    built = options.sluice.absolute().parents[2] / "examples" / "plugins" / "lion"
    os.environ["SLUICE_PLUGIN_PATH"] = f"{built}:{os.environ.get('SLUICE_PLUGIN_PATH', '')}"
    options.data = options.data if options.data.is_dir() else None
    examples = {path.stem: path for path in sorted((ROOT / "examples").glob("*.yaml"))}
    unknown = set(options.only or []) - set(examples)
    if unknown:
        sys.exit(f"there is no example {', '.join(sorted(unknown))}; there are {', '.join(examples)}")
    rows, failed = [], False
    options.made = made
    if "adult-csv" in (options.only or examples):
        make_adult(made, options)
    if "torchscript" in (options.only or examples):
        make_net(made)
    for name in options.only or examples:
        manifest = read(examples[name])
        if not options.long:
            shorten(name, manifest["spec"])
        missing = place_files(manifest["spec"], examples[name], options)
        if missing:
            rows.append([name, "–", f"left out: {missing} is not there", "–"])
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
