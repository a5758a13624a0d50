#!/usr/bin/env python3
"""Final accuracy on MNIST, by training mode.

    bench/accuracy.py --data DIR [--sluice PATH] [--epochs 5] [--seeds 3]

Trains `mnist-net` synchronously for two epochs, and `convnet` in each mode over several seeds, each
with two shards and two workers, and prints a table: the median final accuracy on the 10,000 test
images, its range, the time of a run, and the aim: 98.5 % for `mnist-net`, and for `convnet` at most
one point between the modes. The exit code is 1 if a run fails or an aim is missed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

MANIFEST = """
apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {{name: {name}}}
spec:
  model: {{name: {model}}}
  data:
    format: IDX
    source: {{path: {data}}}
    normalize: {{mean: [0.1307], std: [0.3081]}}
    evaluation: {{}}
  optimizer: {optimizer}
  training: {{mode: {mode}, globalBatchSize: {batch}, epochs: {epochs}, seed: {seed}{extra}}}
  parameterServer: {{replicas: 2}}
  worker: {{replicas: 2}}
"""


def train(sluice, directory, **values):
    """Runs one job to its end; returns (accuracy in percent, seconds)."""
    path = os.path.join(directory, values["name"] + ".yaml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(MANIFEST.format(**values))
    begin = time.monotonic()
    run = subprocess.run(
        [sluice, "run", path, "--output", "json"],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        check=False,
        text=True,
    )
    seconds = time.monotonic() - begin
    if run.returncode != 0:
        sys.exit(f"{values['name']} failed with code {run.returncode}:\n{run.stdout[-2000:]}{run.stderr}")
    accuracy = None
    for line in run.stdout.splitlines():
        record = json.loads(line)
        evaluation = record.get("evaluation") or record
        accuracy = evaluation.get("accuracy", accuracy)
    if accuracy is None:
        sys.exit(f"{values['name']} was not evaluated:\n{run.stdout[-2000:]}")
    return float(accuracy), seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--data", required=True, help="directory with MNIST's four IDX files")
    parser.add_argument("--sluice", default=os.path.join(here, "../bazel-bin/cli/sluice"))
    parser.add_argument("--epochs", type=int, default=5, help="of convnet")
    parser.add_argument("--seeds", type=int, default=3, help="runs of convnet in each mode")
    parser.add_argument("--skip-mnist-net", action="store_true")
    arguments = parser.parse_args()
    common = {"data": os.path.abspath(arguments.data)}
    adam = "{name: Adam, learningRate: 1e-3}"
    rows = []
    with tempfile.TemporaryDirectory(prefix="sluice-accuracy-") as directory:
        if not arguments.skip_mnist_net:
            accuracy, seconds = train(
                arguments.sluice, directory, name="mnist-net", model="mnist-net", mode="Synchronous", batch=64,
                epochs=2, seed=1, optimizer=adam, extra="", **common)
            rows.append(("mnist-net, 2 epochs", "Synchronous", [accuracy], [seconds]))
            print(rows[-1], flush=True)
        modes = [
            ("Synchronous", 128, ""),
            ("BoundedStaleness", 64, ", boundedStaleness: {maxStaleness: 2}"),
            ("Asynchronous", 64, ""),
        ]
        for mode, batch, extra in modes:
            results = [
                train(arguments.sluice, directory, name=f"convnet-{mode.lower()}-{seed}", model="convnet", mode=mode,
                      batch=batch, epochs=arguments.epochs, seed=seed, optimizer=adam, extra=extra, **common)
                for seed in range(1, arguments.seeds + 1)
            ]
            rows.append((f"convnet, {arguments.epochs} epochs", mode, [r[0] for r in results], [r[1] for r in results]))
            print(rows[-1], flush=True)
    print("| model | mode | median accuracy | range | median seconds | aim | |")
    print("|---|---|---|---|---|---|---|")
    missed = 0
    synchronous = None
    for model, mode, accuracies, seconds in rows:
        median = statistics.median(accuracies)
        if model.startswith("mnist-net"):
            aim = 98.5
        elif mode == "Synchronous":
            aim, synchronous = None, median
        else:
            aim = synchronous - 1
        met = aim is None or median >= aim
        missed += not met
        print(f"| {model} | {mode} | {median:.2f} % | {min(accuracies):.2f}–{max(accuracies):.2f} | {statistics.median(seconds):.0f}"
              f" | {'' if aim is None else f'{aim:.2f} %'} | {'' if aim is None else 'met' if met else 'missed'} |")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
