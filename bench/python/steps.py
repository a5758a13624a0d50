"""What a step costs in Python: beside plain PyTorch, and beside C++ for the data plane alone.

    PYTHONPATH=python:. SLUICE_PROGRAMS=bazel-bin python3 bench/python/steps.py push-pull
    PYTHONPATH=python:. SLUICE_PROGRAMS=bazel-bin python3 bench/python/steps.py mlp     (with torch)
    PYTHONPATH=python:. SLUICE_PROGRAMS=bazel-bin python3 bench/python/steps.py large

`push-pull` is bench/push_pull.cc in Python: 100 MiB of gradients that are 1 everywhere. The others
train a model of 0.2 and of 10 million parameters with one worker and one shard, and in plain PyTorch.
Prints medians in milliseconds.
"""

import argparse
import statistics
import tempfile
import time

import numpy as np

import sluice
from tests.python import job_processes


def train(model, loss_fn, dataset, batch, steps, warmup, optimizer, **options):
    """Seconds of each step behind the warm-up, of a whole job in this process."""
    job = job_processes.base_job(
        training={'steps': steps + warmup, 'globalBatchSize': batch, 'microbatchSize': batch},
        optimizer=optimizer, parameterServer={'replicas': 1, **options})
    times = []
    with job_processes.JobProcesses(job, tempfile.mkdtemp()) as processes:
        processes.start()
        with sluice.Worker(sluice.join(processes.address), model, loss_fn) as worker:
            last = None
            for piece in worker.batches(dataset):
                now = time.perf_counter()
                if last is not None:
                    times.append(now - last)
                last = now
                worker.step(piece)
    return times[warmup:]


def report(name, times):
    print(f'{name:40} median {1e3 * statistics.median(times):8.2f} ms   fastest '
          f'{1e3 * min(times):8.2f}   slowest {1e3 * max(times):8.2f}')


def push_pull(steps):
    ones = {'w': np.ones(25 << 20, np.float32)}
    report('100 MiB push + pull', train(
        {'w': np.zeros(25 << 20, np.float32)}, lambda parameters, data: (0.0, ones),
        sluice.ArrayDataset(np.zeros(1000)), 1, steps, 3, {'name': 'ADD'}, partitions=64))


def model_steps(name, sizes, batch, steps):
    import torch
    torch.set_num_threads(1)
    torch.manual_seed(1)
    layers = [module for a, b in zip(sizes, sizes[1:]) for module in
              (torch.nn.Linear(a, b), torch.nn.ReLU())][:-1]
    model = torch.nn.Sequential(*layers)
    dataset = torch.utils.data.TensorDataset(torch.randn(4096, sizes[0]),
                                             torch.randint(0, sizes[-1], (4096,)))
    loss_fn = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    times = []
    for step in range(steps + 5):
        began = time.perf_counter()
        rows = torch.randint(0, 4096, (batch,))
        optimizer.zero_grad()
        loss_fn(model(dataset.tensors[0][rows]), dataset.tensors[1][rows]).backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
    report(f'{name}: plain PyTorch', times[5:])
    for partitions in (64, 4):
        report(f'{name}: Sluice, {partitions} partitions', train(
            model, loss_fn, dataset, batch, steps, 5, {'name': 'SGD', 'learningRate': 0.01},
            partitions=partitions))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('what', choices=('push-pull', 'mlp', 'large'))
    parser.add_argument('--steps', type=int, default=30)
    flags = parser.parse_args()
    if flags.what == 'push-pull':
        push_pull(flags.steps)
    elif flags.what == 'mlp':
        model_steps('mlp', (784, 256, 10), 32, flags.steps)
    else:
        model_steps('10 M parameters', (1024, 2048, 2048, 1792, 10), 64, flags.steps)


if __name__ == '__main__':
    main()
