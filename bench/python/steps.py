"""Measures a step in Python, compared with plain PyTorch and, for the data plane alone, with C++.

    bench/python/figures.sh                 all of it; SLUICE_PYTHON names a Python that has torch
    bench/python/figures.sh push-pull       or mlp, large or loading

`push-pull` is bench/push_pull.cc in Python: 100 MiB of gradients that are 1 everywhere. The others
train a model of 0.2 and of 10 million parameters with one worker and one shard, and in plain
PyTorch. Rounds alternate between the two sides, so that a busy machine affects both. Prints medians
over the steps of all rounds, and the Python process's processor time per step, which depends less
on the machine's load. Ratios are of these medians. `loading` trains on samples that take 5 ms each,
with two loader processes and with PyTorch's DataLoader, and prints samples per second.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

import numpy as np

import sluice
from tests.python import job_processes

_WARMUP = 5


class Timer:
    """Wall and processor time of each of consecutive steps after the warm-up."""

    def __init__(self):
        self.wall = []
        self.processor = []

    def steps(self, iterable):
        last = None
        for number, item in enumerate(iterable):
            now = time.perf_counter(), time.process_time()
            if number > _WARMUP:
                self.wall.append(now[0] - last[0])
                self.processor.append(now[1] - last[1])
            last = now
            yield item

    def median(self):
        return statistics.median(self.wall)

    def report(self, name, beside=None):
        """`beside`: the median of the other side."""
        processor = sum(self.processor) / max(1, len(self.processor))
        ratio = f'   {self.median() / beside:5.2f} x' if beside else ''
        print(f'{name:40} median {1e3 * self.median():8.2f} ms   fastest '
              f'{1e3 * min(self.wall):8.2f}   processor {1e3 * processor:8.2f}{ratio}', flush=True)


def train(timer, model, loss_fn, dataset, batch, steps, optimizer, partitions, **loading):
    """A whole job in this process, with one shard."""
    job = job_processes.base_job(
        training={'steps': steps + _WARMUP + 1, 'globalBatchSize': batch, 'microbatchSize': batch},
        optimizer=optimizer, parameterServer={'replicas': 1, 'partitions': partitions})
    with job_processes.JobProcesses(job, tempfile.mkdtemp()) as processes:
        processes.start()
        with sluice.Worker(sluice.join(processes.address), model, loss_fn) as worker:
            for piece in timer.steps(worker.batches(dataset, **loading)):
                worker.step(piece)


def push_pull(steps, rounds):
    ones = {'w': np.ones(25 << 20, np.float32)}
    ones['w'].flags.writeable = False  # like C++, where the gradient's memory is handed over
    python = Timer()
    cpp = []
    programs = pathlib.Path(os.environ.get('SLUICE_PROGRAMS', '.'))
    for _ in range(rounds):
        train(python, {'w': np.zeros(25 << 20, np.float32)}, lambda parameters, data: (0.0, ones),
              sluice.ArrayDataset(np.zeros(1000)), 1, steps, {'name': 'Add'}, 64)
        if (programs / 'bench/push_pull').exists():
            done = subprocess.run(
                [programs / 'bench/push_pull', '--programs', programs, '--bytes', str(100 << 20),
                 '--optimizer', 'add', '--steps', str(steps)], stdout=subprocess.PIPE, check=True)
            cpp.append(json.loads(done.stdout.splitlines()[-1])['median_seconds'])
    if cpp:
        print(f'{"100 MiB push + pull in C++":40} median {1e3 * statistics.median(cpp):8.2f} ms')
    python.report('100 MiB push + pull', statistics.median(cpp) if cpp else None)


def model_steps(name, sizes, batch, steps, rounds):
    import torch
    torch.set_num_threads(1)
    torch.manual_seed(1)
    layers = [module for a, b in zip(sizes, sizes[1:]) for module in
              (torch.nn.Linear(a, b), torch.nn.ReLU())][:-1]
    model = torch.nn.Sequential(*layers)
    dataset = torch.utils.data.TensorDataset(torch.randn(4096, sizes[0]),
                                             torch.randint(0, sizes[-1], (4096,)))
    loss_fn = torch.nn.CrossEntropyLoss()
    plain, jobs = Timer(), {64: Timer(), 4: Timer()}
    for _ in range(rounds):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in plain.steps(range(steps + _WARMUP + 1)):
            rows = torch.randint(0, 4096, (batch,))
            optimizer.zero_grad()
            loss_fn(model(dataset.tensors[0][rows]), dataset.tensors[1][rows]).backward()
            optimizer.step()
        for partitions, timer in jobs.items():
            train(timer, model, loss_fn, dataset, batch, steps,
                  {'name': 'SGD', 'learningRate': 0.01}, partitions)
    plain.report(f'{name}: plain PyTorch')
    for partitions, timer in jobs.items():
        timer.report(f'{name}: Sluice, {partitions} partitions', plain.median())


class Slow:
    """A sample takes 5 ms."""

    def __init__(self, count):
        self._x = np.random.default_rng(1).standard_normal((count, 128), np.float32)

    def __len__(self):
        return len(self._x)

    def __getitem__(self, index):
        time.sleep(0.005)
        return self._x[index], index % 10


def loading(steps, rounds):
    import torch
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    loss_fn = torch.nn.CrossEntropyLoss()
    batch = 32
    dataset = Slow(batch * (steps + _WARMUP + 1))
    timers = {'plain PyTorch, DataLoader(num_workers=2)': Timer(), 'Sluice, num_workers=2': Timer(),
              'Sluice, num_workers=0': Timer()}
    plain, ahead, without = timers.values()
    for _ in range(rounds):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for x, y in plain.steps(torch.utils.data.DataLoader(dataset, batch, shuffle=True, num_workers=2)):
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            optimizer.step()
        for timer, num_workers in ((ahead, 2), (without, 0)):
            train(timer, model, loss_fn, dataset, batch, steps, {'name': 'SGD', 'learningRate': 0.01}, 4,
                  num_workers=num_workers)
    for name, timer in timers.items():
        speed = batch * len(timer.wall) / sum(timer.wall)
        compared = speed * sum(plain.wall) / (batch * len(plain.wall))
        print(f'{name:42} {speed:7.1f} samples/s   {100 * compared:5.1f} %', flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('what', choices=('push-pull', 'mlp', 'large', 'loading', 'all'))
    parser.add_argument('--steps', type=int, help='steps per round')
    parser.add_argument('--rounds', type=int, default=3)
    flags = parser.parse_args()
    print('load of the machine: {:.1f} {:.1f} {:.1f}'.format(*os.getloadavg()))
    if flags.what in ('push-pull', 'all'):
        push_pull(flags.steps or 30, flags.rounds)
    if flags.what in ('mlp', 'all'):
        model_steps('mlp', (784, 256, 10), 32, flags.steps or 500, flags.rounds)
    if flags.what in ('large', 'all'):
        model_steps('10 M parameters', (1024, 2048, 2048, 1792, 10), 64, flags.steps or 30,
                    flags.rounds)
    if flags.what in ('loading', 'all'):
        loading(flags.steps or 60, flags.rounds)


if __name__ == '__main__':
    main()
