"""Ray's guide to parameter servers: the net on MNIST, a server as an actor, workers with batches of 128; evaluation every 10 updates.

Prints one JSON line; start-up is measured separately."""
import argparse
import json
import os
import pathlib
import time

import mnist
import ray
import torch


@ray.remote
class Server:
    def __init__(self, rate):
        self.model = mnist.ConvNet()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate)

    def push(self, *gradients):
        self.model.apply(gradients, self.optimizer)
        return self.model.weights()

    def pull(self):
        return self.model.weights()


@ray.remote
class Worker:
    def __init__(self, root, batch):
        self.model, self.batches = mnist.ConvNet(), mnist.endless(root, batch)

    def ready(self):
        return torch.get_num_threads()

    def compute(self, weights):
        self.model.load_state_dict(weights)
        return self.model.gradients(*next(self.batches))


def train(a, server, workers, evaluate):
    """Returns the number of gradients that were applied."""
    weights = server.pull.remote()
    if a.mode == "synchronous":
        for i in range(a.iterations):
            weights = server.push.remote(*[worker.compute.remote(weights) for worker in workers])
            evaluate(i, weights)
        ray.get(weights)
        return a.iterations * len(workers)
    pending = {worker.compute.remote(weights): worker for worker in workers}
    for i in range(a.iterations * len(workers)):
        (ready,), _ = ray.wait(list(pending))
        worker = pending.pop(ready)
        weights = server.push.remote(ready)
        pending[worker.compute.remote(weights)] = worker
        evaluate(i, weights)
    ray.get(weights)
    return a.iterations * len(workers)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=("synchronous", "asynchronous"), required=True)
    parser.add_argument("--data", required=True, help="directory with MNIST's IDX files")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--evaluate-every", type=int, default=10, help="0: not")
    parser.add_argument("--batch", type=int, default=128)
    a = parser.parse_args()
    torch.set_num_threads(1)
    root = mnist.unpack(a.data)
    paths = {"PYTHONPATH": str(pathlib.Path(__file__).resolve().parent), "OMP_NUM_THREADS": "1"}
    os.environ.update(paths)
    ray.init(include_dashboard=False, logging_level="ERROR", log_to_driver=False, runtime_env={"env_vars": paths})
    server = Server.remote(1e-2)
    workers = [Worker.remote(str(root), a.batch) for _ in range(a.workers)]
    ray.get([worker.ready.remote() for worker in workers])
    model, test = mnist.ConvNet(), mnist.loader(root, False, a.batch)

    def evaluate(i, weights):
        if a.evaluate_every == 0 or i % a.evaluate_every > 0:
            return
        model.load_state_dict(ray.get(weights))
        model.accuracy(test)

    begin = time.time()
    gradients = train(a, server, workers, evaluate)
    seconds = time.time() - begin
    model.load_state_dict(ray.get(server.pull.remote()))
    print(json.dumps({"benchmark": "ray_mnist", "ray": ray.__version__, "torch": torch.__version__, "mode": a.mode, "seconds": seconds,
                      "gradients_per_second": gradients / seconds, "accuracy": model.accuracy(test)}))
    ray.shutdown()


if __name__ == "__main__":
    main()
