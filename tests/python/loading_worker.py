"""A worker whose data set is slow, draws random numbers and records what it reads.

Arguments: the directory of the records, and keyword arguments of Worker.batches as JSON."""

import json
import os
import random
import sys
import time

import numpy as np
import torch

import sluice
from sluice import streams

SAMPLES = 96


class Augmented(torch.utils.data.Dataset):

    def __init__(self, directory, seconds, gate):
        self.directory = directory
        self.seconds = seconds
        self.gate = gate  # a file; no sample is read before it exists
        self.generator = np.random.default_rng(1)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        while self.gate and not os.path.exists(self.gate):
            time.sleep(0.05)
        time.sleep(self.seconds)
        noise = (random.random(), np.random.rand(), float(torch.rand(())), self.generator.random())
        self.record('read', index, noise)
        return torch.tensor(noise) + index / SAMPLES, torch.tensor(index % 3)

    def record(self, what, *values):
        with open(os.path.join(self.directory, f'{what}-{os.getpid()}'), 'a') as file:
            file.write(json.dumps(values) + '\n')


class Stream(torch.utils.data.IterableDataset):
    """The same samples, in order."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        return (self.dataset[index] for index in range(SAMPLES))


class Stateful(Stream):
    """A stream that continues from a state."""

    def __init__(self, dataset):
        super().__init__(dataset)
        self.next = self.first = 0

    def __iter__(self):
        self.next, self.first = self.first, 0
        while self.next < SAMPLES:
            self.next += 1
            yield self.dataset[self.next - 1]

    def state_dict(self):
        return {'next': self.next}

    def load_state_dict(self, state):
        self.first = state['next']


STREAMS = {'plain': Stream, 'stateful': Stateful}


def net():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))


def main():
    directory, arguments = sys.argv[1], json.loads(sys.argv[2])
    stream = arguments.pop('stream', None)
    dataset = Augmented(directory, arguments.pop('seconds', 0.0), arguments.pop('gate', None))
    streams._SECONDS, streams._SHARE = 0.1, 1
    job = sluice.join()
    with sluice.Worker(job, net(), torch.nn.CrossEntropyLoss()) as worker:
        for batch in worker.batches(STREAMS[stream](dataset) if stream else dataset,
                                    evaluation=torch.utils.data.Subset(dataset, range(30)), **arguments):
            dataset.record('trained', batch.step, batch.indices)
            worker.step(batch)


if __name__ == '__main__':
    main()
