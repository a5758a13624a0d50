"""A worker of plain numpy with metrics of its own. It waits in `metrics_worker.hold(...)` as long as the test
wants; arguments: the directory of the test's files, and this worker's number."""

import pathlib
import sys
import time

import numpy as np

import sluice
from tests.python import quadratic_worker

HELD_OUT, FIRST = 300, 200


def make_held_out():
    x, y = quadratic_worker.make_data(1000 + HELD_OUT, 5)
    noise = np.random.default_rng(8).standard_normal(HELD_OUT)
    return x[1000:], y[1000:] + noise


def loss_fn(parameters, data):
    x, y = data
    loss, gradients = quadratic_worker.loss_fn(parameters, data)
    return {'loss': loss, 'gradients': gradients, 'outputs': x @ parameters['w'] + parameters['b'], 'targets': y}


class Largest:
    """The largest error, and the number of samples in which an output was too high."""

    reductions = {'largest': 'max', 'high': 'sum'}

    def __init__(self):
        self.reset()

    def reset(self):
        self.largest, self.high = 0.0, 0

    def update(self, outputs, targets):
        self.largest = max(self.largest, float(abs(outputs - targets).max()))
        self.high += int((outputs > targets).sum())

    def compute(self):
        return self.largest + 1000 * self.high


class RecordedMean(sluice.Mean):
    """Gives each value to a function."""

    def __init__(self, function, record):
        super().__init__(function)
        self._record = record

    def compute(self):
        value = super().compute()
        self._record(value)
        return value


def metrics(on_update, hold, record):
    def squares(outputs, targets):
        on_update()
        return ((outputs - targets)**2).sum(), len(targets)

    def correlation(outputs, targets):
        hold()  # before the first value is recorded
        value = float(np.corrcoef(outputs, targets)[0, 1])
        record(value)
        return value

    return {'mse': RecordedMean(squares, record), 'largest': Largest(), 'correlation': correlation,
            'nothing': lambda outputs, targets: np.nan}


def main():
    files, index = pathlib.Path(sys.argv[1]), sys.argv[2]

    def hold(where):
        """Waits while the test wants that, and tells it."""
        while (files / f'hold-{where}').exists():
            (files / f'{where}-{index}').touch()
            time.sleep(0.01)

    def record(value):
        with open(files / 'values', 'a') as values:
            values.write(value.hex() + '\n')

    model = {'w': np.zeros(5), 'b': np.zeros(1)}
    with sluice.Worker(sluice.join(), model, loss_fn) as worker:
        for batch in worker.batches(sluice.ArrayDataset(*quadratic_worker.make_data(1000, 5)),
                                    evaluation=sluice.ArrayDataset(*make_held_out()),
                                    metrics=metrics(lambda: hold('update'), lambda: hold('compute'), record)):
            hold('train')
            worker.step(batch)


if __name__ == '__main__':
    main()
