#!/usr/bin/env python3
"""Compares the workloads of the reference systems, on the original systems and on Sluice, and
prints a table.

    bench/originals.py --python VENV/bin/python        all of them; VENV has torch, torchvision, numpy and ray
    bench/originals.py --only ray-vector mlp           some
    bench/originals.py --rounds 1 --quick              a quick functional check
    bench/originals.py --priority                      both sides at real-time priority (chrt -r 10), undisturbed by other processes

Rounds alternate between theirs and ours, so that a busy machine affects both; the table has
medians, and Sluice's ratio (of rates, or of seconds). The originals' programs are in bench/peers/;
ours are the job files of examples/, run by bazel-bin/cli/sluice. Rates exclude the start
of processes on both sides. A second table splits the workers' time. --programs names a directory of
other programs, such as a sluice-worker with the originals' LibTorch (LIBTORCH=pip,
CONTRIBUTING.md).
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import examples

ROOT = pathlib.Path(__file__).absolute().parent.parent
PEERS = ROOT / "bench" / "peers"
PARTS = ("data", "compute", "push", "wait", "pull")  # of a worker's time


class Case:
    """One workload. `changes`: fields of the job file below spec, by path; `theirs`: a program of bench/peers and its flags."""

    def __init__(self, title, aim, theirs, example, changes, field="gradients_per_second", less=False, quick=None):
        self.title, self.aim, self.theirs, self.example, self.changes = title, aim, theirs, example, changes
        self.field, self.less, self.quick = field, less, quick or {}


def mnist(program, *flags):
    return [program, "--data", "{mnist}", *flags]


NO_EVALUATION = {"data.evaluation": None}
MLP = {"data.synthetic.samples": 6400, "training.steps": 1500}
LSTM = {"data.synthetic.samples": 2000, "data.synthetic.shape": [35], "data.evaluation": None, "training.globalBatchSize": 40, "training.microbatchSize": 20, "training.steps": 20, "training.threads": 1}

CASES = {
    "pool": Case("pool, `convnet`, 4 workers, 20 iterations", 5, mnist("multiprocessing_mnist.py", "--form", "pool"), "pool",
                 {"worker.replicas": 4, "training.steps": 80, "data.evaluation.intervalSteps": 4}, quick={"training.steps": 12}),
    "queues": Case("queues, `convnet`, 4 workers, 20 iterations", 5, mnist("multiprocessing_mnist.py", "--form", "queues"), "queues",
                   {"worker.replicas": 4, "training.steps": 20, "training.globalBatchSize": 512}, quick={"training.steps": 4}),
    "queues-25": Case("queues, `convnet`, 25 workers, 5 iterations", 5, mnist("multiprocessing_mnist.py", "--form", "queues", "--workers", "25", "--rounds", "5"),
                      "queues", {}),
    "ray-vector": Case("100 MB of float64, 2 shards, 4 workers, 5 iterations: seconds", 0.8, ["ray_vector.py"], "additive-sharded", {}, field="seconds", less=True),
    "ray-synchronous": Case("Ray's guide, synchronous, 200 iterations", 5, mnist("ray_mnist.py", "--mode", "synchronous"), "mnist-synchronous", {},
                            quick={"training.steps": 20}),
    "ray-asynchronous": Case("Ray's guide, asynchronous, 400 updates", 5, mnist("ray_mnist.py", "--mode", "asynchronous"), "mnist-asynchronous", {},
                             quick={"training.steps": 40}),
    "server-raw": Case("model on the server, 1 trainer, beside raw compute", 0.85, mnist("rpc_server_model.py", "--trainers", "0"), "server-execution",
                       {"worker.replicas": 1, "training.epochs": None, "training.steps": 60, "training.threads": 1, **NO_EVALUATION}, quick={"training.steps": 10}),
    "server-1": Case("model on the server, 1 trainer", 1, mnist("rpc_server_model.py", "--trainers", "1"), "server-execution",
                     {"worker.replicas": 1, "training.epochs": None, "training.steps": 60, "training.threads": 1, **NO_EVALUATION}, quick={"training.steps": 10}),
    "server-2": Case("model on the server, 2 trainers", 1.6, mnist("rpc_server_model.py", "--trainers", "2"), "server-execution",
                     {"worker.replicas": 2, "training.epochs": None, "training.steps": 120, "training.threads": 1, **NO_EVALUATION}, quick={"training.steps": 20}),
    "mlp": Case("`mlp`, 2 workers, synchronous", 3, ["rpc_training.py", "--model", "mlp", "--transport", "any"], "mlp-random", MLP, quick={"training.steps": 100}),
    "mlp-asynchronous": Case("`mlp`, 2 workers, asynchronous", 3, ["rpc_training.py", "--model", "mlp", "--transport", "any"], "mlp-random",
                             {**MLP, "training.mode": "Asynchronous", "training.globalBatchSize": 32, "training.steps": 3000}, quick={"training.steps": 100}),
    "lstm": Case("`lstm-lm`, 20 × 35 words, 2 workers, synchronous", 1.3, ["rpc_training.py", "--model", "lstm-lm", "--steps", "12", "--warmup", "2", "--transport", "any"],
                 "lstm-random", LSTM, quick={"training.steps": 3}),
    "lstm-asynchronous": Case("`lstm-lm`, 20 × 35 words, 2 workers, asynchronous", 1.3,
                              ["rpc_training.py", "--model", "lstm-lm", "--steps", "12", "--warmup", "2", "--transport", "any"], "lstm-random",
                              {**LSTM, "training.mode": "Asynchronous", "training.globalBatchSize": 20, "training.steps": 40}, quick={"training.steps": 4}),
}


def prefix(options):
    return ["chrt", "-r", "10"] if options.priority else []


def run_theirs(case, options):
    program, *flags = [part.format(mnist=options.data / "mnist") for part in case.theirs]
    command = [*prefix(options), options.python, "-W", "ignore", str(PEERS / program), *flags]
    environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=options.timeout)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return json.loads(lines[-1])[case.field]


def run_ours(case, options):
    """Returns a run's figure and its summary."""
    path = ROOT / "examples" / f"{case.example}.yaml"
    manifest = examples.read(path)
    for field, value in {**case.changes, **(case.quick if options.quick else {})}.items():
        examples.set_field(manifest["spec"], field, value)
    if "{mnist}" in case.theirs:  # the same data as theirs
        examples.set_field(manifest["spec"], "data.source.path", str((options.data / "mnist").absolute()))
        examples.set_field(manifest["spec"], "data.normalize", {"mean": [0.1307], "std": [0.3081]})
    if missing := examples.place_files(manifest["spec"], path, options):
        sys.exit(f"{path.name}: {missing} does not exist")
    with tempfile.TemporaryDirectory() as directory:
        job = pathlib.Path(directory) / "job.yaml"
        job.write_text(json.dumps(manifest))
        command = [*prefix(options), str(options.sluice), "run", str(job), "--output", "json", "--quiet"]
        if options.programs:
            command += ["--bin-dir", str(options.programs)]
        done = subprocess.run(command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=options.timeout)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    summary = next((line for line in lines if line["type"] == "summary"), None)
    if done.returncode != 0 or summary is None:
        sys.exit(f"{path.name} exited with code {done.returncode}: {summary['reason'] if summary else done.stderr}")
    if case.less:
        return summary["trainingSeconds"], summary
    spec = manifest["spec"]
    synchronous = spec["training"].get("mode", "Synchronous") == "Synchronous"
    gradients = summary["step"] * (spec.get("worker", {}).get("replicas", 1) if synchronous else 1)
    return gradients / summary["trainingSeconds"], summary


def shares(summaries):
    """The shares of the workers' time, in percent."""
    total = sum(sum(summary["workerSeconds"].values()) for summary in summaries) or 1
    return [f"{100 * sum(s['workerSeconds'][part] for s in summaries) / total:.0f} %" for part in PARTS]


def table(head, rows):
    print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


def spread(values):
    return f"{statistics.median(values):.3g} ({min(values):.3g}–{max(values):.3g})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch, torchvision, numpy and ray")
    parser.add_argument("--only", nargs="+", choices=list(CASES), help="default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="ours shortened")
    parser.add_argument("--priority", action="store_true", help="run both sides with `chrt -r 10`")
    beside = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path(os.environ.get("SLUICE_DATA", beside)), help="directory with mnist/")
    parser.add_argument("--sluice", type=pathlib.Path, default=ROOT / "bazel-bin" / "cli" / "sluice")
    parser.add_argument("--programs", type=pathlib.Path, help="directory of sluice-coordinator, sluice-ps and sluice-worker")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one run")
    parser.add_argument("--json", type=pathlib.Path, help="also write all values to this file")
    options = parser.parse_args()
    found = {}  # name -> (theirs, ours, summaries)
    for round_ in range(options.rounds):
        for name in options.only or CASES:
            theirs, ours, summaries = found.setdefault(name, ([], [], []))
            load = os.getloadavg()[0]
            theirs.append(run_theirs(CASES[name], options))
            figure, summary = run_ours(CASES[name], options)
            ours.append(figure)
            summaries.append(summary)
            print(f"round {round_ + 1}, load {load:.1f}, {name}: {theirs[-1]:.4g} and {figure:.4g}", file=sys.stderr, flush=True)
    rows = []
    for name, (theirs, ours, _) in found.items():
        case, ratio = CASES[name], statistics.median(ours) / statistics.median(theirs)
        met = ratio <= case.aim if case.less else ratio >= case.aim
        rows.append([case.title, spread(theirs), spread(ours), f"{ratio:.2f}", f"{'≤' if case.less else '≥'} {case.aim}", "met" if met else "missed"])
    print(f"medians (and range) of {options.rounds} alternating rounds, load {os.getloadavg()[0]:.1f} at the end{', real-time priority' if options.priority else ''}")
    table(["workload (gradients/s)", "the original", "Sluice", "ratio", "aim", ""], rows)
    table(["of the workers' time", *PARTS], [[name, *shares(summaries)] for name, (_, _, summaries) in found.items()])
    if options.json:
        options.json.write_text(json.dumps({name: {"theirs": theirs, "ours": ours, "summaries": summaries} for name, (theirs, ours, summaries) in found.items()}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
