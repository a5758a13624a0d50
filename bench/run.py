#!/usr/bin/env python3
"""Runs all benchmarks and their peers and prints the tables that docs/benchmarks.md explains.

    bench/run.py                        everything; about ten minutes on a quiet machine of two cores
    bench/run.py --only push-pull mlp   some of it
    bench/run.py --quick                few rounds and steps, as a functional check
    bench/run.py --save                 keeps the values in bench/results, one file per run
    bench/compare.py OLD NEW            compares two of these files

Rounds alternate between Sluice and its peers; the figures are medians over the rounds. The last
table lists the project's aims and whether this machine reached them; with --check the exit code is
1 if an aim was missed. Peers of PyTorch RPC run if a Python with `torch` and `numpy` is found
(--python names one); otherwise they are left out.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = ROOT / "bench" / "peers"
TARGETS = ["//bench:push_pull", "//bench:transport_benchmark", "//bench:training", "//bench:local_training", "//bench:recovery"]
FASHION_MNIST = "/usr/share/datasets/fashion-mnist"

# Steps of one round; image models need data.
MODELS = {
    "convnet": 500,
    "mnist-net": 60,
    "mlp": 1000,
    "linear": 2000,
    "logistic": 2000,
    "additive": 300,
    "lstm-lm": 40,
}
WITH_DATA = ("convnet", "mnist-net", "mlp")


class Runner:
    """Runs one program after the other, and collects their output."""

    def __init__(self, options):
        self.options = options
        self.results = {}  # (line, column) -> values, one per round

    def records(self, command):
        """Runs a program and returns the JSON objects that it prints, one per line."""
        environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        done = subprocess.run(
            command, cwd=self.options.programs, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode != 0 or not lines:
            sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return [json.loads(line) for line in lines]

    def run(self, command):
        return self.records(command)[-1]

    def program(self, name, *flags):
        return self.run([str(self.options.programs / "bench" / name), *map(str, flags)])

    def peer(self, name, *flags):
        return self.run([self.options.python, "-W", "ignore", str(PEERS / name), *map(str, flags)])

    def note(self, line, column, value):
        self.results.setdefault((line, column), []).append(value)
        print(f"  {line}, {column}: {value:.6g}", file=sys.stderr, flush=True)

    def median(self, line, column):
        values = self.results.get((line, column))
        return statistics.median(values) if values else None


def push_pull(runner, steps_large, steps_small):
    o = runner.options
    for bytes_, optimizer, steps in ((100 << 20, "add", steps_large), (100 << 20, "sgd", steps_large), (64, "add", steps_small)):
        line = f"push + pull, {'100 MiB' if bytes_ > 64 else '64 B'}, {optimizer.capitalize() if optimizer == 'add' else 'SGD'}"
        flags = ("--bytes", bytes_, "--optimizer", optimizer, "--steps", steps)
        sockets = ("--no-shared-memory",)
        for column, more in (("sluice", ()), ("sluice-sockets", sockets), ("sluice-tls", (*sockets, "--tls"))):
            runner.note(line, column, runner.program("push_pull", "--programs", o.programs, *flags, *more)["median_seconds"])
        if not o.python:
            continue
        for transport, column in (("tcp", "rpc-tcp"), ("any", "rpc-any")):
            seconds = runner.peer("rpc_push_pull.py", *flags, "--transport", transport)["median_seconds"]
            runner.note(line, column, seconds)


# A step touches few rows of an embedding table, or all of them.
TABLE_ROWS, ROW_ELEMENTS, TOUCHED_ROWS = 1_000_000, 64, 20_000
ROWS_LINE = f"table of {TABLE_ROWS:,} × {ROW_ELEMENTS}, SGD, {TOUCHED_ROWS:,} rows touched"


def rows(runner, steps):
    flags = ("--programs", runner.options.programs, "--optimizer", "sgd", "--steps", steps)
    table_flags = ("--table-rows", TABLE_ROWS, "--row-elements", ROW_ELEMENTS, "--touched-rows", TOUCHED_ROWS)
    runner.note(ROWS_LINE, "rows", runner.program("push_pull", *flags, *table_flags)["median_seconds"])
    runner.note(ROWS_LINE, "whole", runner.program("push_pull", *flags, "--bytes", 4 * TABLE_ROWS * ROW_ELEMENTS)["median_seconds"])


# The pause that a worker's death causes, and the time until its replacement contributes.
DEATHS = {"reported": "death reported by the parent", "seen by the broken stream": "death seen by the broken stream"}


def recovery(runner, rounds):
    o = runner.options
    for found in runner.records([str(o.programs / "bench" / "recovery"), "--programs", str(o.programs), "--rounds", str(rounds)]):
        line = DEATHS[found["death"]]
        runner.note(line, "pause", found["longest_pause_seconds"])
        runner.note(line, "replacement", found["longest_replacement_seconds"])


def training(runner, model, steps):
    o = runner.options
    flags = ("--model", model, "--steps", steps)
    data = ("--data", o.data) if model in WITH_DATA else ()
    rate = "gradients_per_second"
    for workers in (1, 2):
        sizes = ("--workers", workers, "--shards", workers)
        found = runner.program("training", "--programs", o.programs, *flags, *sizes, *data)
        runner.note(model, f"{workers}x{workers}", found[rate])
    runner.note(model, "local", runner.program("local_training", *flags, *data)[rate])
    if o.python:
        few = ("--model", model, "--steps", max(steps // 4, 20))
        runner.note(model, "rpc-tcp", runner.peer("rpc_training.py", *few, "--workers", 2)[rate])
        runner.note(model, "rpc-fused", runner.peer("rpc_training.py", *few, "--workers", 2, "--fused")[rate])
        if model != "additive":  # it has no loss
            runner.note(model, "ddp", runner.peer("ddp_training.py", *few, "--workers", 2)[rate])


def number(value, scale=1.0):
    return "–" if value is None else f"{value * scale:.4g}"


def ratio(a, b):
    return "–" if not a or not b else f"{a / b:.2f}"


def table(head, rows):
    print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")


def extra_ms(runner, model):
    one, local = runner.median(model, "1x1"), runner.median(model, "local")
    return None if not one or not local else 1e3 / one - 1e3 / local


def extra_percent(runner, model):
    one, local = runner.median(model, "1x1"), runner.median(model, "local")
    return None if not one or not local else 100 * (local / one - 1)


def times_rpc(runner, model):
    two, rpc = runner.median(model, "2x2"), runner.median(model, "rpc-tcp")
    return None if not two or not rpc else two / rpc


def scaled(line, column, scale):
    return lambda runner: None if runner.median(line, column) is None else scale * runner.median(line, column)


# The aims: a line's name, its value, its bound, "at most" or "at least", its unit.
AIMS = [
    ("100 MiB, Add", scaled("push + pull, 100 MiB, Add", "sluice", 1e3), "at most", 60, "ms"),
    ("100 MiB, SGD with undo", scaled("push + pull, 100 MiB, SGD", "sluice", 1e3), "at most", 80, "ms"),
    ("64 bytes", scaled("push + pull, 64 B, Add", "sluice", 1e6), "at most", 90, "µs"),
    ("a step of convnet over no server", lambda r: extra_percent(r, "convnet"), "at most", 10, "% more"),
    ("a step of mnist-net over no server", lambda r: extra_percent(r, "mnist-net"), "at most", 15, "% more"),
    ("a step of mlp over no server", lambda r: extra_ms(r, "mlp"), "at most", 0.7, "ms more"),
    ("mlp, 2 workers, 2 shards, over PyTorch RPC", lambda r: times_rpc(r, "mlp"), "at least", 3, "times"),
    ("others' pause, death reported", scaled(DEATHS["reported"], "pause", 1), "at most", 0.5, "s"),
    ("others' pause, broken stream", scaled(DEATHS["seen by the broken stream"], "pause", 1), "at most", 1.5, "s"),
    ("replacement contributes", scaled(DEATHS["reported"], "replacement", 1), "at most", 5, "s"),
]


def check_aims(runner):
    """Prints the aims; returns how many were missed."""
    missed = 0
    rows = []
    for name, find, bound_kind, bound, unit in AIMS:
        found = find(runner)
        if found is None:
            continue
        met = found <= bound if bound_kind == "at most" else found >= bound
        missed += not met
        rows.append([name, f"{number(found)} {unit}", f"{bound_kind} {bound} {unit}", "met" if met else "missed"])
    if rows:
        table(["aim", "measured", "aimed at", ""], rows)
    return missed


def report(runner):
    by_rows, whole = runner.median(ROWS_LINE, "rows"), runner.median(ROWS_LINE, "whole")
    if by_rows:
        table(["push + close + pull", "by rows (ms)", "rows/s", "the whole table (ms)"],
              [[ROWS_LINE, number(by_rows, 1e3), number(TOUCHED_ROWS / by_rows), number(whole, 1e3)]])
    lines = list(dict.fromkeys(line for line, _ in runner.results if line not in DEATHS.values() and line != ROWS_LINE))
    rows = []
    for line in (line for line in lines if line.startswith("push")):
        unit, scale = ("µs", 1e6) if "64 B" in line else ("ms", 1e3)
        ours, plain, tls, tcp, any_ = (runner.median(line, c) for c in ("sluice", "sluice-sockets", "sluice-tls", "rpc-tcp", "rpc-any"))
        rows.append([f"{line} ({unit})", number(ours, scale), number(plain, scale), number(tls, scale), ratio(tls, plain), number(tcp, scale), ratio(tcp, ours), number(any_, scale), ratio(any_, ours)])
    if rows:
        table(["one worker, one shard", "Sluice", "through sockets", "with TLS", "times as long", "PyTorch RPC, TCP", "times as long", "PyTorch RPC, shared memory", "times as long"], rows)
    rows = []
    for line in (line for line in lines if not line.startswith("push")):
        one, two, local, tcp, fused, ddp = (runner.median(line, c) for c in ("1x1", "2x2", "local", "rpc-tcp", "rpc-fused", "ddp"))
        more = "–" if not one or not local else f"{extra_ms(runner, line):+.2f} ms, {extra_percent(runner, line):+.0f} %"
        rows.append([line, number(local), number(one), more, number(two), number(tcp), ratio(two, tcp), number(fused), ratio(two, fused), number(ddp), ratio(two, ddp)])
    if rows:
        table(
            ["gradients/s", "no server", "Sluice 1 × 1", "a step costs", "Sluice 2 × 2", "PyTorch RPC, 2 workers", "Sluice's multiple", "fused RPC", "Sluice's multiple", "DDP, 2 processes", "Sluice's multiple"],
            rows,
        )


def machine():
    model = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), platform.machine())
    return f"{os.cpu_count()} × {model}, {platform.system()} {platform.release()}"


def commit():
    """The commit that is measured; with "+" if files differ from it."""
    git = ["git", "-C", str(ROOT)]
    name = subprocess.run([*git, "rev-parse", "--short=10", "HEAD"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    changed = subprocess.run([*git, "status", "--porcelain", "--untracked-files=no"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return name + ("+" if changed else "")


def save(runner, loads):
    """Writes all values, with what they depend on, to a file of their own; returns its path."""
    now = datetime.datetime.now(datetime.timezone.utc)
    found = {
        "time": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": commit(),
        "machine": machine(),
        "load": loads,  # before each round, and at the end
        "values": [{"line": line, "column": column, "rounds": values} for (line, column), values in runner.results.items()],
    }
    path = ROOT / "bench" / "results" / f"{now:%Y-%m-%d-%H%M}-{found['commit'].rstrip('+')}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    return path


def find_python(wanted):
    """Returns a Python with PyTorch RPC, or None."""
    for candidate in [wanted] if wanted else ["python3"]:
        path = shutil.which(candidate)
        check = "import numpy, torch.distributed.rpc as r; r.TensorPipeRpcBackendOptions"
        if path and subprocess.run([path, "-W", "ignore", "-c", check], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
            return path
        if wanted:
            sys.exit(f"{wanted} has no torch with torch.distributed.rpc, or no numpy")
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=["push-pull", "rows", "recovery", *MODELS], help="default: all")
    parser.add_argument("--check", action="store_true", help="exit code 1 if an aim was missed")
    parser.add_argument("--python", help="a Python that has torch and numpy, for the peers (default: python3, if it has them)")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--data", default=os.environ.get("FASHION_MNIST", FASHION_MNIST), help="directory with IDX images")
    parser.add_argument("--programs", type=pathlib.Path, help="directory with built programs (default: builds them)")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--save", action="store_true", help="keep all values in bench/results, with machine, commit and load")
    options = parser.parse_args()
    options.python = None if options.no_peers else find_python(options.python)
    if options.python is None:
        print("No Python with torch and numpy: the peers are not measured. --python names one.", file=sys.stderr)
    if options.programs is None:
        subprocess.run(["bazel", "build", *TARGETS], cwd=ROOT, check=True)
        options.programs = ROOT / "bazel-bin"
    options.programs = options.programs.resolve()
    wanted = options.only or ["push-pull", "rows", "recovery", *MODELS]
    if set(wanted) & set(WITH_DATA) and not os.path.isdir(options.data):
        sys.exit(f"no directory {options.data}: install dataset-fashion-mnist, or name one with --data")

    runner = Runner(options)
    divide = 10 if options.quick else 1
    loads = []
    for round_ in range(1 if options.quick else options.rounds):
        loads.append(round(os.getloadavg()[0], 1))
        print(f"round {round_ + 1}, load {loads[-1]}", file=sys.stderr, flush=True)
        if "push-pull" in wanted:
            push_pull(runner, 30 // divide, 5000 // divide)
        if "rows" in wanted:
            rows(runner, 60 // divide)
        if "recovery" in wanted:
            recovery(runner, 1 if options.quick else 3)
        for model, steps in MODELS.items():
            if model in wanted:
                training(runner, model, max(steps // divide, 10))
    print(f"\n{machine()}; load {os.getloadavg()[0]:.1f}; medians of {len(next(iter(runner.results.values())))} rounds")
    report(runner)
    missed = check_aims(runner)
    if options.save:
        print(f"\nsaved in {save(runner, loads + [round(os.getloadavg()[0], 1)]).relative_to(ROOT)}")
    if options.check and missed:
        sys.exit(1)


if __name__ == "__main__":
    main()
