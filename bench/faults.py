#!/usr/bin/env python3
"""Measures what each fault costs a running job of this machine.

    bench/faults.py                              every fault, 20 times each, with 512 MiB of parameters
    bench/faults.py --only shard-added --rounds 3 --megabytes 64
    bench/faults.py --only restored              a shard is killed in a job without copies
    bench/faults.py --only price                 steps/s with one and with two copies

Runs bazel-bin/cli/sluice; build //cli:sluice, //services/coordinator:sluice-coordinator,
//services/ps:sluice-ps and //services/worker:sluice-worker first.

The job is a language model with one large embedding table, of which a step uses few rows, so that
steps are short. A step's time is the time between two lines "Step closed" of the shards. The cost
of a fault is the longest step from the fault until the job has recovered, less the median step of
the time before. In "unreported" rounds the process that runs the job is stopped (SIGSTOP), so that
it cannot report the death. Prints one JSON object for each fault, with the load of the machine.
"""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).absolute().parent.parent
SLUICE = pathlib.Path(os.environ.get('SLUICE', ROOT / 'bazel-bin/cli/sluice'))
PATIENCE_S = 180
EMBEDDING = 1024
QUIET_STEPS = 20

TABLE = """apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: faults}
spec:
  model: {name: lstm-lm, dimensions: {embedding: %(embedding)s, hidden: 8}}
  data:
    format: Text
    source: {path: %(text)s}
    text: {vocabularySize: %(words)s, sequenceLength: 4}
  optimizer: {name: SGD, learningRate: 0.1}
  training: {steps: 10000000, globalBatchSize: 4, microbatchSize: 2}
  debug: {stepDelaySeconds: %(delay)s}
  parameterServer: {replicas: %(shards)s, copies: %(copies)s}
  worker: {replicas: 2}
  checkpoint: {intervalSteps: %(interval)s}
  backoffLimit: 1000
"""

# Jobs of `price`, with about the steps of ten seconds.
PRICED = {
    'mlp': ('model: {name: mlp}', 'samples: 4096, shape: [784], classes: 10', 'SGD', 32, 6000),
    'mnist-net': ('model: {name: mnist-net}', 'samples: 4096, shape: [1, 28, 28], classes: 10', 'SGD', 32, 300),
    'mlp 26M': ('model: {name: mlp, dimensions: {hidden: 8192}}', 'samples: 1024, shape: [3072], classes: 10', 'SGD', 16, 60),
}
PRICE = """apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: price}
spec:
  %(model)s
  data: {format: Synthetic, synthetic: {%(data)s}}
  optimizer: {name: %(optimizer)s, learningRate: 0.01}
  training: {steps: %(steps)s, globalBatchSize: %(batch)s}
  parameterServer: {replicas: 2, copies: %(copies)s}
  worker: {replicas: 2}
"""


def load():
    return round(os.getloadavg()[0], 1)


class Job:
    """`sluice run` in a directory of its own, and the times of its steps."""

    def __init__(self, directory, options, copies, shards, interval=10000000):
        self.directory = directory
        self.shards = shards
        self.copies = copies
        words = options.megabytes * 2**20 // (4 * EMBEDDING)
        text = directory / 'text.txt'
        order = list(range(words - 2))
        random.Random(1).shuffle(order)
        text.write_text('\n'.join(' '.join(f'w{word}' for word in order[i:i + 100]) for i in range(0, len(order), 100)) + '\n')
        (directory / 'job.yaml').write_text(TABLE % {
            'embedding': EMBEDDING, 'text': text, 'words': words, 'delay': options.step_delay, 'shards': shards, 'copies': copies,
            'interval': interval})
        self.state = directory / 'state'
        self.output = open(directory / 'run.json', 'w+', encoding='utf-8')
        self.process = subprocess.Popen(
            [SLUICE, 'run', 'job.yaml', '--output', 'json', '--log-level', 'debug', '--state-dir', self.state, '--fresh', '--yes'],
            cwd=directory, stdout=self.output, stderr=subprocess.STDOUT)

    def close(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()  # its processes end with it
        self.process.wait()
        self.output.close()

    def objects(self):
        return [json.loads(line) for line in (self.directory / 'run.json').read_text().splitlines() if line.startswith('{')]

    def pid(self, name):
        return [entry['pid'] for entry in self.objects() if entry['type'] == 'process' and entry['state'] == 'started' and
                entry['name'] == name][-1]

    def steps(self, since=0.0):
        """The times at which steps were closed by the last of the shards, in order."""
        closed = {}
        for log in (self.state / 'faults/logs').glob('ps-*.log'):
            for line in tail(log).splitlines():
                found = re.search(r'^time=(\S+) .*msg="Step closed".* step=(\d+)', line)
                if found:
                    at = datetime.datetime.fromisoformat(found[1].replace('Z', '+00:00')).timestamp()
                    step = int(found[2])
                    closed[step] = max(at, closed.get(step, 0))
        times = sorted(closed.values())
        return [at for at in times if at >= since]

    def status(self):
        shown = subprocess.run([SLUICE, 'status', 'faults', '--state-dir', self.state], capture_output=True, text=True, check=False)
        return shown.stdout

    def is_whole(self):
        """Whether all processes take part, and each partition has its copies."""
        status = self.status()
        serving = re.findall(r'\bps-\d+\b.*\bserving, (\d+) partitions?(?:, (\d+) cop)?', status)
        training = re.findall(r'\bworker-\d+\b.*\btraining', status)
        partitions = sum(int(held) for held, _ in serving)
        copies = sum(int(copies or 0) for _, copies in serving)
        return len(serving) == self.shards and len(training) == 2 and copies == (self.copies - 1) * partitions

    def wait(self, reached, what):
        deadline = time.monotonic() + PATIENCE_S
        while not reached():
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f'faults.py: {what}: not within {PATIENCE_S} s; see {self.directory}\n{self.status()}')
            time.sleep(0.1)

    def settle(self):
        """Waits until the job is whole, and has trained some steps since. Returns when it was whole."""
        self.wait(self.is_whole, 'the job does not become whole')
        whole = time.time()
        self.wait(lambda: len(self.steps(whole)) > QUIET_STEPS, f'not {QUIET_STEPS} steps')
        return whole

    def scale(self, shards):
        self.shards = shards
        subprocess.run([SLUICE, 'scale', 'faults', '--shards', str(shards), '--state-dir', self.state], check=True, capture_output=True)


def tail(path, size=2**20):
    with open(path, 'rb') as file:
        file.seek(max(0, path.stat().st_size - size))
        return file.read().decode(errors='replace')


def lengths(times):
    return [later - earlier for earlier, later in zip(times, times[1:])]


def measure(job, inject, unreported=False):
    """One fault: the cost, the median step before, and the median step until the job was whole."""
    before = statistics.median(lengths(job.steps(job.settle())))
    if unreported:
        job.process.send_signal(signal.SIGSTOP)
    at = time.time()
    inject(job)
    if unreported:
        job.wait(lambda: [step for step in job.steps(at) if step > at + 0.6], 'no step follows')
        job.process.send_signal(signal.SIGCONT)
    time.sleep(0.5)
    end = job.settle()
    known = job.steps()
    times = [max(step for step in known if step < at)] + [step for step in known if at <= step]
    steps = lengths(times)
    return {'cost': max(steps) - before, 'median': before, 'meanwhile': statistics.median(steps), 'seconds': end - at}


def kill(name):
    return lambda job: os.kill(job.pid(name), signal.SIGKILL)


def summary(name, rounds, **more):
    costs = [one['cost'] for one in rounds]
    print(json.dumps({
        'fault': name, 'rounds': len(rounds), 'median_cost_s': round(statistics.median(costs), 3), 'worst_cost_s': round(max(costs), 3),
        'median_step_s': round(statistics.median(one['median'] for one in rounds), 4),
        'median_step_meanwhile_s': round(statistics.median(one['meanwhile'] for one in rounds), 4),
        'whole_after_s': round(statistics.median(one['seconds'] for one in rounds), 1), 'load': load(), **more}), flush=True)


FAULTS = ('worker', 'coordinator', 'shard', 'shard-unreported', 'shard-added', 'shard-removed')


def run_faults(options, wanted):
    with tempfile.TemporaryDirectory(prefix='sluice-faults-') as directory:
        with contextlib.closing(Job(pathlib.Path(directory), options, copies=options.copies, shards=3)) as job:
            results = {name: [] for name in wanted}
            for number in range(options.rounds):
                print(f'round {number + 1} of {options.rounds}', file=sys.stderr, flush=True)
                if 'worker' in wanted:
                    results['worker'].append(measure(job, kill('worker-1')))
                if 'coordinator' in wanted:
                    results['coordinator'].append(measure(job, kill('coordinator')))
                if 'shard' in wanted:
                    results['shard'].append(measure(job, kill('ps-1')))
                if 'shard-unreported' in wanted:
                    results['shard-unreported'].append(measure(job, kill('ps-2'), unreported=True))
                if 'shard-added' in wanted or 'shard-removed' in wanted:
                    added = measure(job, lambda job: job.scale(4))
                    removed = measure(job, lambda job: job.scale(3))
                    results.setdefault('shard-added', []).append(added)
                    results.setdefault('shard-removed', []).append(removed)
            for name, rounds in results.items():
                summary(name, rounds, megabytes=options.megabytes, copies=options.copies)


def run_restored(options):
    """Without copies: a shard is killed, and the newest checkpoint is loaded."""
    rounds = []
    with tempfile.TemporaryDirectory(prefix='sluice-faults-') as directory:
        with contextlib.closing(Job(pathlib.Path(directory), options, copies=1, shards=2, interval=100)) as job:
            checkpoints = job.state / 'faults/checkpoints'
            for _ in range(options.rounds):
                job.settle()
                job.wait(lambda: list(checkpoints.glob('*/manifest.json')), 'there is no checkpoint')
                rounds.append(measure(job, kill('ps-1')))
    summary('restored', rounds, megabytes=options.megabytes, copies=1)


def run_price(options):
    for name, (model, data, optimizer, batch, steps) in PRICED.items():
        speeds = {1: [], 2: []}
        for _ in range(options.price_rounds):
            for copies in (1, 2):
                with tempfile.TemporaryDirectory(prefix='sluice-price-') as directory:
                    manifest = pathlib.Path(directory) / 'job.yaml'
                    manifest.write_text(PRICE % {'model': model, 'data': data, 'optimizer': optimizer, 'steps': steps, 'batch': batch,
                                                 'copies': copies})
                    run = subprocess.run([SLUICE, 'run', manifest, '--output', 'json'], cwd=directory, check=True, capture_output=True,
                                         text=True)
                    last = [json.loads(line) for line in run.stdout.splitlines() if '"summary"' in line][-1]
                    speeds[copies].append(steps / last['trainingSeconds'])
        medians = {copies: statistics.median(values) for copies, values in speeds.items()}
        print(json.dumps({
            'price': name, 'rounds': options.price_rounds, 'steps_per_s': {copies: round(value, 2) for copies, value in medians.items()},
            'all': {copies: [round(value, 2) for value in values] for copies, values in speeds.items()},
            'ratio': round(medians[2] / medians[1], 3), 'load': load()}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--only', nargs='+', choices=FAULTS + ('restored', 'price'))
    parser.add_argument('--rounds', type=int, default=20)
    parser.add_argument('--price-rounds', type=int, default=5)
    parser.add_argument('--megabytes', type=int, default=512)
    parser.add_argument('--copies', type=int, default=2)
    parser.add_argument('--step-delay', type=float, default=0.0)
    options = parser.parse_args()
    wanted = options.only or FAULTS + ('restored', 'price')
    faults = [name for name in FAULTS if name in wanted]
    if faults:
        run_faults(options, faults)
    if 'restored' in wanted:
        run_restored(options)
    if 'price' in wanted:
        run_price(options)


if __name__ == '__main__':
    main()
