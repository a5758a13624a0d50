"""PyTorch RPC with the model on the server: trainers call forward remotely, within distributed autograd, and a distributed optimizer steps.

Updates bypass autograd's version check: with it, every third step of two trainers fails. --trainers
0: one thread computes alone, on batches made beforehand. Prints one JSON line."""
import argparse
import threading
import time

import mnist
import rpc_job
import rpc_training
import torch
import torch.distributed.autograd as autograd
import torch.distributed.rpc as rpc
from torch.distributed.optim import DistributedOptimizer
from torch.nn import functional

RATE = 0.03


class UncheckedSGD(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data.add_(p.grad, alpha=-group["lr"])


class Server:
    def __init__(self):
        self.model = rpc_training.MnistNet()

    def forward(self, x):
        return self.model(x)

    def parameters(self):
        return [rpc.RRef(p) for p in self.model.parameters()]

    def gradients(self, context):
        return {p: gradient for p, gradient in autograd.get_gradients(context).items()}


server = None
server_lock = threading.Lock()


def shared_server():
    global server
    with server_lock:
        if server is None:
            server = Server()
        return server


def trainer(rank, a, root):
    torch.manual_seed(rank)
    batches = mnist.endless(root, a.batch)
    remote = rpc.remote("ps", shared_server)
    optimizer = DistributedOptimizer(UncheckedSGD, remote.rpc_sync().parameters(), lr=RATE)
    times = []
    for step in range(a.warmup + a.steps):
        times.append(time.time())
        data, target = next(batches)
        with autograd.context() as context:
            loss = functional.nll_loss(remote.rpc_sync().forward(data), target)
            if step % 5 == 0:
                loss.item()
            autograd.backward(context, [loss])
            if not remote.rpc_sync().gradients(context):
                raise ValueError("a step had no gradients")
            optimizer.step(context)
    return times[a.warmup :] + [time.time()]


def alone(a):
    torch.set_num_threads(1)
    model = rpc_training.MnistNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    batches = [(torch.randn(a.batch, 1, 28, 28), torch.randint(0, 10, (a.batch,))) for _ in range(16)]
    times = []
    for step in range(a.warmup + a.steps):
        times.append(time.time())
        optimizer.zero_grad()
        data, target = batches[step % len(batches)]
        functional.nll_loss(model(data), target).backward()
        optimizer.step()
    return [times[a.warmup :] + [time.time()]]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainers", type=int, default=1)
    parser.add_argument("--data", required=True, help="directory with MNIST's IDX files")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--transport", choices=rpc_job.TRANSPORTS, default="any")
    a = parser.parse_args()
    found = rpc_job.run(a.trainers, a.transport, trainer, (a, mnist.unpack(a.data))) if a.trainers else alone(a)
    begin, end = max(t[0] for t in found), min(t[-1] for t in found)
    done = sum(sum(begin < t <= end for t in times) for times in found)
    seconds = [later - earlier for times in found for earlier, later in zip(times, times[1:])]
    rpc_job.report("rpc_server_model", seconds, trainers=a.trainers, transport=a.transport, gradients_per_second=done / (end - begin))


if __name__ == "__main__":
    main()
