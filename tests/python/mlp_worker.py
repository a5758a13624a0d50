"""A worker of PyTorch for a job with the built-in model `mlp` and synthetic data, beside C++ ones.

Model, initial values and samples are those of C++ (services/worker/models/mlp.cc, initial_values.h,
services/worker/data/synthetic_dataset.cc).
"""

import math

import numpy as np
import torch

import sluice
from tests.python import sequence


class Mlp(torch.nn.Module):

    def __init__(self, inputs, hidden, outputs, seed):
        super().__init__()
        self.fc1 = torch.nn.Linear(inputs, hidden)
        self.fc2 = torch.nn.Linear(hidden, outputs)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                bound = 1 / math.sqrt(inputs if name.startswith('fc1') else hidden)
                values = sequence.uniform(seed, name, bound, parameter.numel())
                parameter.copy_(torch.from_numpy(values.astype(np.float32)).view_as(parameter))

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


def normal(random):
    total = sum((random >> shift) & 0xFFFF for shift in (0, 16, 32, 48))
    return (total - 2.0 * 65535) * (1.7320508075688772 / 65536)


def make_data(samples, elements, classes, seed):
    at = sequence.splitmix64_at
    label_seed, centre_seed, noise_seed = (at(seed, n) for n in range(3))
    x = np.empty((samples, elements), np.float32)
    y = np.empty(samples, np.int64)
    for sample in range(samples):
        label = at(label_seed, sample) % classes
        centre, noise = at(centre_seed, label), at(noise_seed, sample)
        y[sample] = label
        for i in range(elements):
            x[sample, i] = 0.9 * normal(at(centre, i)) + 0.3 * normal(at(noise, i))
    return torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))


def main():
    job = sluice.join()
    spec = job.spec
    synthetic = spec.data.synthetic
    model = Mlp(synthetic.shape[0], spec.model.dimensions['hidden'], synthetic.classes, job.seed)
    data = make_data(synthetic.samples, synthetic.shape[0], synthetic.classes, synthetic.seed)
    with sluice.Worker(job, model, torch.nn.CrossEntropyLoss()) as worker:
        for batch in worker.batches(data):
            worker.step(batch)


if __name__ == '__main__':
    main()
