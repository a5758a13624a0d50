"""A worker whose loss is a mean over weights, of which many are zero: `numpy` or `torch`."""

import sys

import numpy as np

import sluice

SAMPLES, WIDTH, CLASSES, POSITIONS = 96, 4, 3, 2


def make_data():
    """Inputs, targets, and a weight for each sample: whole microbatches weigh nothing, and large targets little."""
    generator = np.random.default_rng(3)
    x = generator.standard_normal((SAMPLES, WIDTH))
    y = x @ np.arange(1.0, WIDTH + 1)
    weight = generator.uniform(0.1, 5, SAMPLES) * (generator.uniform(size=SAMPLES) < 0.4)
    return x, y, weight / (0.5 + y**2)


def loss_fn(parameters, data):
    x, y, weight = data
    total = weight.sum()
    error = x @ parameters['w'] - y
    with np.errstate(invalid='ignore'):  # 0 / 0 where nothing counts
        return float(weight @ error**2 / total), {'w': 2 * (x.T @ (weight * error)) / total}, total


def make_torch():
    """(module, loss, input, target): a cross entropy with class weights and ignored targets."""
    import torch
    torch.manual_seed(5)
    module = torch.nn.Sequential(torch.nn.Linear(WIDTH, CLASSES * POSITIONS),
                                 torch.nn.Unflatten(1, (CLASSES, POSITIONS)))
    target = torch.randint(0, CLASSES, (SAMPLES, POSITIONS))
    target[torch.rand(SAMPLES) < 0.6] = 1  # which is ignored
    loss = torch.nn.CrossEntropyLoss(torch.tensor([0.25, 1.0, 4.0]), ignore_index=1)
    return module, loss, torch.randn(SAMPLES, WIDTH), target


def main():
    if sys.argv[1] == 'torch':
        model, loss, *data = make_torch()
    else:
        model, loss, data = {'w': np.zeros(WIDTH)}, loss_fn, make_data()
    with sluice.Worker(sluice.join(), model, loss) as worker:
        data = sluice.ArrayDataset(*data)
        for batch in worker.batches(data, evaluation=data):
            worker.step(batch)


if __name__ == '__main__':
    main()
