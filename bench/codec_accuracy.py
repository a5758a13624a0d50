#!/usr/bin/env python3
"""Trains one model with each codec and prints accuracy and bytes.

    bench/codec_accuracy.py --data ../shared/data/mnist
    bench/codec_accuracy.py --data data/mnist --only None TopK --steps 200

`convnet` on MNIST, 2 workers, 2 shards, the same seed for all, so each step has the same samples.
Runs bazel-bin/cli/sluice, which must be built first.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

CODECS = {
    "None": {},
    "Float16": {"push": "Float16"},
    "BFloat16": {"push": "BFloat16"},
    "Int8": {"push": "Int8"},
    "OneBit": {"push": "OneBit"},
    "TopK 0.01": {"push": "TopK", "fraction": 0.01},
    "TopK 0.01, no feedback": {"push": "TopK", "fraction": 0.01, "errorFeedback": False},
    "SignThreshold": {"push": "SignThreshold", "threshold": 1},
    "SignThreshold, feedback": {"push": "SignThreshold", "threshold": 1, "errorFeedback": True},
}


def manifest(options, compression):
    return {
        "apiVersion": "sluice.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "codec-accuracy"},
        "spec": {
            "model": {"name": options.model},
            "data": {
                "format": "IDX",
                "source": {"path": str(options.data)},
                "normalize": {"mean": [0.1307], "std": [0.3081]},
                "evaluation": {"intervalSteps": options.steps},
            },
            "optimizer": {"name": "SGD", "learningRate": options.learning_rate, "momentum": options.momentum},
            "training": {
                "globalBatchSize": 64,
                "steps": options.steps,
                "seed": options.seed,
                "threads": 1,
                "compression": compression,
            },
            "parameterServer": {"replicas": 2},
            "worker": {"replicas": 2},
        },
    }


def train(options, compression):
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "job.yaml"
        path.write_text(json.dumps(manifest(options, compression)))  # JSON is YAML
        done = subprocess.run(
            [str(options.sluice), "run", str(path), "--output", "json"],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode != 0 or not lines or lines[-1].get("type") != "summary":
            sys.exit(f"sluice run ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr}")
        return lines[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=lambda text: pathlib.Path(text).resolve(), required=True, help="the four IDX files")
    parser.add_argument("--sluice", type=lambda text: pathlib.Path(text).resolve(), default=ROOT / "bazel-bin/cli/sluice")
    parser.add_argument("--model", default="convnet")
    parser.add_argument("--steps", type=int, default=1876)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0, help="of SGD; note that momentum amplifies what a codec leaves out and sends late in one piece")
    parser.add_argument("--only", nargs="+", metavar="CODEC", help=f"of: {'; '.join(CODECS)}")
    options = parser.parse_args()
    print("| push | accuracy | bytes a step | of raw | seconds |\n|---|---|---|---|---|", flush=True)
    for name, compression in CODECS.items():
        if options.only and name not in options.only:
            continue
        found = train(options, compression)
        print(
            f"| {name} | {found['evaluation']['accuracy']:.2f} % | {found['pushedBytes'] / options.steps:,.0f} "
            f"| {100 * found['pushedBytes'] / found['gradientBytes']:.2f} % | {found['seconds']:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
