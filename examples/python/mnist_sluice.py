"""A multilayer perceptron on synthetic images, with Sluice: `sluice run mnist.yaml`. Optimizer,
batch size and epochs are in mnist.yaml; mnist_plain.py is the same in plain PyTorch."""

import sluice
import torch
from torch import nn
from torch.utils.data import TensorDataset


def make_data(samples, seed):
    generator = torch.Generator().manual_seed(seed)
    templates = torch.rand(10, 784, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(10, (samples,), generator=generator)
    noise = torch.rand(samples, 784, generator=generator)
    return TensorDataset(0.15 * templates[labels] + 0.85 * noise, labels)


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


def main():
    model = make_model()
    loss_fn = nn.CrossEntropyLoss()
    with sluice.Worker(sluice.join(), model, loss_fn) as worker:
        for batch in worker.batches(make_data(6000, 1), evaluation=make_data(1000, 2)):
            loss = worker.step(batch)
            if batch.step % 100 == 0:
                print(f'step {batch.step}: loss {loss:.3f}')


if __name__ == '__main__':
    main()
