"""Shared by the peers that train on MNIST: the originals' way of reading data, their net, and their
accuracy."""
import gzip
import os
import pathlib
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402  (the number of threads is read when it is imported)
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torchvision import datasets, transforms  # noqa: E402

EVALUATED = 1024  # the originals' evaluation stops after this many


def unpack(directory):
    """Makes a directory that torchvision reads, from IDX files (.gz or not)."""
    root = pathlib.Path(tempfile.mkdtemp(prefix="originals-mnist-"))
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for path in pathlib.Path(directory).iterdir():
        if "-ubyte" not in path.name:
            continue
        content = path.read_bytes()
        name = path.name[:-3] if path.suffix == ".gz" else path.name
        (raw / name).write_bytes(gzip.decompress(content) if path.suffix == ".gz" else content)
    return root


def loader(root, train, batch):
    """Like the originals, opens, converts and normalises one image at a time."""
    normalised = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    data = datasets.MNIST(root, train=train, download=False, transform=normalised)
    return torch.utils.data.DataLoader(data, batch_size=batch, shuffle=True)


def endless(root, batch):
    while True:
        yield from loader(root, True, batch)


class ConvNet(nn.Module):
    """The net of the pool and of Ray's guide."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.fc = nn.Linear(192, 10)

    def forward(self, x):
        x = torch.relu(torch.max_pool2d(self.conv(x), 3))
        return functional.log_softmax(self.fc(x.flatten(1)), 1)

    def weights(self):
        return self.state_dict()

    def gradients(self, data, target):
        self.zero_grad()
        functional.nll_loss(self(data), target).backward()
        return [p.grad.numpy() for p in self.parameters()]

    def apply(self, gradients, optimizer):
        """One step with the sum of the workers' gradients."""
        for p, parts in zip(self.parameters(), zip(*gradients)):
            p.grad = torch.from_numpy(np.stack(parts).sum(axis=0))
        optimizer.step()

    def accuracy(self, test_loader):
        correct = total = 0
        with torch.no_grad():
            for data, target in test_loader:
                if total > EVALUATED:
                    break
                correct += (self(data).argmax(1) == target).sum().item()
                total += len(target)
        return 100.0 * correct / total
