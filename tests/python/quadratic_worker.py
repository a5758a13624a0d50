"""A worker of plain numpy: linear regression, in which every sample is identified by its input."""

import pathlib
import sys
import time

import numpy as np

import sluice


def make_data(samples, width):
    generator = np.random.default_rng(7)
    x = generator.standard_normal((samples, width))
    w = np.arange(1, width + 1, dtype=np.float64)
    return x, x @ w + 0.5


def loss_fn(parameters, data):
    x, y = data
    error = x @ parameters['w'] + parameters['b'] - y
    n = len(y)
    return float(error @ error) / n, {'w': 2 * (x.T @ error) / n, 'b': 2 * error.sum(keepdims=True) / n}


def main():
    # Delays each batch by that many seconds; with a file, as long as the file exists.
    delay = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
    slow = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
    x, y = make_data(1000, 5)
    job = sluice.join()
    model = {'w': np.zeros(5), 'b': np.zeros(1)}
    with sluice.Worker(job, model, loss_fn) as worker:
        for batch in worker.batches(sluice.ArrayDataset(x, y), evaluation=sluice.ArrayDataset(x, y)):
            if slow is None or slow.exists():
                time.sleep(delay)
            worker.step(batch)
    print('done at', worker.step_number)


if __name__ == '__main__':
    main()
