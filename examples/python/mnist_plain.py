"""A multilayer perceptron on synthetic images, in plain PyTorch. mnist_sluice.py is the same with
Sluice; `diff` shows what changes."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


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
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(3):
        for images, labels in DataLoader(make_data(6000, 1), batch_size=64, shuffle=True):
            optimizer.zero_grad()
            loss = loss_fn(model(images), labels)
            loss.backward()
            optimizer.step()
        print(f'epoch {epoch}: loss {loss.item():.3f}')


if __name__ == '__main__':
    main()
