"""A worker with a small residual network: batch_norm_worker.py MODE DIRECTORY.

MODE: `loss`, the worker runs the model; `loop`, this program does; `branch`, a batch norm that only some samples
reach; `last`, the loss is that of few samples. A file `die-WHERE` in the directory ends the process once, by SIGKILL,
in step 5: `forward` between the exchanges of two batch norms, `backward` likewise. The worker trains once the file
`go` is in the directory.
"""

import os
import pathlib
import signal
import sys
import time

import torch

import sluice

SAMPLES, CLASSES, STEPS, BATCH, MICROBATCH = 108, 4, 14, 20, 2


class Net(torch.nn.Module):

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(2, 6, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(6)
        self.second = torch.nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.other = torch.nn.BatchNorm2d(6, momentum=None)
        self.last = torch.nn.Linear(6, 8)
        self.flat = torch.nn.BatchNorm1d(8)
        self.head = torch.nn.Linear(8, CLASSES)
        self.between = lambda x: x

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        x = self.between(x)
        x = torch.relu(x + self.other(self.second(x)))
        return self.head(torch.relu(self.flat(self.last(x.mean((2, 3))))))


def make():
    torch.manual_seed(7)
    return Net()


def make_data():
    generator = torch.Generator().manual_seed(11)
    target = torch.randint(0, CLASSES, (SAMPLES,), generator=generator)
    x = torch.randn(SAMPLES, 2, 5, 5, generator=generator) * (1 + target[:, None, None, None]) + 0.3
    ignored = target.clone()
    ignored[torch.rand(SAMPLES, generator=generator) < 0.8] = -100
    return x, target, ignored


class Death:
    """Kills this process where a file asks for it."""

    def __init__(self, directory, worker):
        self._directory, self._worker = directory, worker

    def at(self, where):
        path = self._directory / f'die-{where}'
        if self._worker.step_number >= 5 and self._worker._job.index == 1 and path.exists():
            path.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    def between(self, x):
        self.at('forward')
        if x.requires_grad:
            x.register_hook(lambda gradient: self.at('backward'))
        return x


def only_some(module, data):
    """A loss for which a worker that has sample 0 runs one batch norm more."""
    x, target, number = data
    if (number == 0).any():
        module.norm(module.first(x))
    return torch.nn.functional.cross_entropy(module(x), target)


def main():
    mode, directory = sys.argv[1], pathlib.Path(sys.argv[2])
    torch.set_num_threads(1)
    job = sluice.join()
    model = make()
    x, target, ignored = make_data()
    target = ignored if mode == 'last' else target
    data = torch.utils.data.TensorDataset(x, target, torch.arange(SAMPLES))
    loss = torch.nn.CrossEntropyLoss()
    arguments = {'loss': {'objective': lambda module, batch: (loss(module(batch[0]), batch[1]))},
                 'last': {'loss_fn': loss}, 'branch': {'objective': only_some}, 'loop': {}}[mode]
    if mode == 'last':
        data = torch.utils.data.TensorDataset(x, target)
    (directory / f'ready-{job.index}').touch()
    while not (directory / 'go').exists():
        time.sleep(0.01)
    with sluice.Worker(job, model, **arguments) as worker:
        model.between = Death(directory, worker).between
        for batch in worker.batches(data):
            if mode == 'loop':
                worker.step(batch, loss=loss(model(batch.data[0]), batch.data[1]))
            else:
                worker.step(batch)


if __name__ == '__main__':
    main()
