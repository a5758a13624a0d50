"""Training with a parameter server by PyTorch RPC, like PyTorch's tutorial on it: each worker pulls
the parameters, computes a gradient and pushes it; the server applies it immediately.

The peer of bench/training.cc. --fused makes push and pull one call, unlike the tutorial. --workers
0 trains in one process, without a server. Batches are made beforehand, so loading costs nothing."""
import argparse
import threading
import time

import rpc_job
import torch
import torch.distributed.rpc as rpc
from torch import nn


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.fc = nn.Linear(192, 10)

    def forward(self, x):
        x = torch.relu(torch.max_pool2d(self.conv(x), 3))
        return torch.log_softmax(self.fc(x.flatten(1)), 1)


class MnistNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.drop1 = nn.Dropout2d(0.25)
        self.drop2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = torch.max_pool2d(self.conv2(torch.relu(self.conv1(x))), 2)
        x = self.drop1(x).flatten(1)
        return torch.log_softmax(self.fc2(self.drop2(torch.relu(self.fc1(x)))), 1)


class Additive(nn.Module):
    """No learning: the gradient is 1e-3 w + 1."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1_000_000))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10_000, 256)
        self.lstm = nn.LSTM(256, 512, batch_first=True)
        self.fc = nn.Linear(512, 10_000)

    def forward(self, words):
        return self.fc(self.lstm(self.embedding(words))[0]).transpose(1, 2)


def words():
    return torch.randint(0, 10_000, (20, 35)), torch.randint(0, 10_000, (20, 35))


def images(batch, flat=False):
    return torch.randn(batch, 784) if flat else torch.randn(batch, 1, 28, 28), torch.randint(0, 10, (batch,))


def table(classes):
    return torch.randn(32, 14), torch.randint(0, 2, (32, 1)).float() if classes else torch.randn(32, 1)


# model, loss, batch
MODELS = {
    "convnet": (ConvNet, nn.functional.nll_loss, lambda: images(128)),
    "mnist-net": (MnistNet, nn.functional.nll_loss, lambda: images(32)),
    "mlp": (
        lambda: nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)),
        nn.functional.cross_entropy,
        lambda: images(32, flat=True),
    ),
    "linear": (lambda: nn.Linear(14, 1), nn.functional.mse_loss, lambda: table(False)),
    "logistic": (
        lambda: nn.Linear(14, 1),
        nn.functional.binary_cross_entropy_with_logits,
        lambda: table(True),
    ),
    "additive": (Additive, None, lambda: None),
    "lstm-lm": (LanguageModel, nn.functional.cross_entropy, words),
}


def optimizer_of(name, model):
    if name == "lstm-lm":
        return torch.optim.Adam(model.parameters(), lr=1e-3)
    return torch.optim.SGD(model.parameters(), lr=0.01)


class Server:
    def __init__(self, name):
        self.model = MODELS[name][0]()
        self.optimizer = optimizer_of(name, self.model)
        self.lock = threading.Lock()

    def pull(self):
        with self.lock:
            return [p.detach().clone() for p in self.model.parameters()]

    def push(self, gradients):
        with self.lock:
            for p, gradient in zip(self.model.parameters(), gradients):
                p.grad = gradient
            self.optimizer.step()

    def push_and_pull(self, gradients):
        self.push(gradients)
        return self.pull()


server = None
server_lock = threading.Lock()


def shared_server(name):
    global server
    with server_lock:
        if server is None:
            server = Server(name)
        return server


def gradients_of(model, loss, batch):
    if loss is None:
        return [p.detach() * 1e-3 + 1 for p in model.parameters()]
    model.zero_grad()
    value = loss(model(batch[0]), batch[1])
    value.backward()
    value.item()
    return [p.grad for p in model.parameters()]


def worker(rank, a):
    torch.manual_seed(rank)
    make, loss, batch_of = MODELS[a.model]
    model = make()
    batches = [batch_of() for _ in range(16)]
    remote = rpc.remote("ps", shared_server, args=(a.model,))
    pulled = remote.rpc_sync().pull()
    times = []
    for step in range(a.warmup + a.steps):
        times.append(time.time())
        if step > 0 and not a.fused:
            pulled = remote.rpc_sync().pull()
        with torch.no_grad():
            for p, value in zip(model.parameters(), pulled):
                p.copy_(value)
        gradients = gradients_of(model, loss, batches[step % len(batches)])
        if a.fused:
            pulled = remote.rpc_sync().push_and_pull(gradients)
        else:
            remote.rpc_sync().push(gradients)
    return times[a.warmup :] + [time.time()]


def local(a):
    torch.set_num_threads(1)
    make, loss, batch_of = MODELS[a.model]
    model = make()
    optimizer = optimizer_of(a.model, model)
    batches = [batch_of() for _ in range(16)]
    times = []
    for step in range(a.warmup + a.steps):
        times.append(time.time())
        gradients = gradients_of(model, loss, batches[step % len(batches)])
        if loss is None:
            for p, gradient in zip(model.parameters(), gradients):
                p.grad = gradient
        optimizer.step()
    return [times[a.warmup :] + [time.time()]]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--warmup", type=int, default=30)
    parser.add_argument("--transport", choices=rpc_job.TRANSPORTS, default="tcp")
    parser.add_argument("--fused", action="store_true")
    a = parser.parse_args()
    found = rpc_job.run(a.workers, a.transport, worker, (a,)) if a.workers else local(a)
    # Only the time in which all workers were training.
    begin, end = max(t[0] for t in found), min(t[-1] for t in found)
    done = sum(sum(begin < t <= end for t in times) for times in found)
    seconds = [b - a for times in found for a, b in zip(times, times[1:])]
    rpc_job.report(
        "rpc_training",
        seconds,
        model=a.model,
        workers=a.workers,
        transport=a.transport,
        fused=a.fused,
        gradients_per_second=done / (end - begin),
    )


if __name__ == "__main__":
    main()
