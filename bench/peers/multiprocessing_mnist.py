"""A parameter server of Python's multiprocessing, in the forms of the originals.

queues: a server puts its weights into each worker's queue and waits for a gradient from each. pool:
each task of a pool opens the data, computes a gradient and applies it under a lock. Prints one JSON
line; gradients/s exclude the first round and start-up."""
import argparse
import json
import multiprocessing
import time
from multiprocessing.managers import SyncManager

import mnist
import torch

PATIENCE = 120  # seconds; the original has 15 and 35


class Server:
    def __init__(self, rate):
        torch.set_num_threads(1)
        self.model = mnist.ConvNet()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate)

    def push(self, *gradients):
        self.model.apply(gradients, self.optimizer)

    def pull(self):
        return self.model.weights()


def pool_task(server, lock, root, batch):
    torch.set_num_threads(1)
    torch.seed()  # forked processes would draw identical batches
    model = mnist.ConvNet()
    with lock:
        model.load_state_dict(server.pull())
    data, target = next(iter(mnist.loader(root, True, batch)))
    gradients = model.gradients(data, target)
    with lock:
        server.push(gradients)


def pool_form(a, root):
    SyncManager.register("Server", Server)
    marks = [time.time()]
    with SyncManager() as manager, multiprocessing.Pool(a.workers) as pool:
        server, lock = manager.Server(a.rate), manager.Lock()
        test, model = mnist.loader(root, False, a.batch), mnist.ConvNet()
        for _ in range(a.rounds):
            pool.starmap(pool_task, [(server, lock, root, a.batch)] * a.workers)
            model.load_state_dict(server.pull())
            accuracy = model.accuracy(test)
            marks.append(time.time())
    return marks, accuracy


def queue_worker(inbox, outbox, root, batch):
    torch.set_num_threads(1)
    torch.seed()
    model, batches = mnist.ConvNet(), mnist.endless(root, batch)
    while (weights := inbox.get(timeout=PATIENCE)) is not None:
        model.load_state_dict(weights)
        outbox.put(model.gradients(*next(batches)))


def queue_server(a, root, inbox, outboxes, result):
    server, test = Server(a.rate), mnist.loader(root, False, a.batch)
    marks = [time.time()]
    for _ in range(a.rounds):
        for outbox in outboxes:
            outbox.put(server.pull())
        server.push(*(inbox.get(timeout=PATIENCE) for _ in outboxes))
        accuracy = server.model.accuracy(test)
        marks.append(time.time())
    for outbox in outboxes:
        outbox.put(None)
    result.put((marks, accuracy))


def queue_form(a, root):
    inbox, result = multiprocessing.Queue(), multiprocessing.Queue()
    outboxes = [multiprocessing.Queue() for _ in range(a.workers)]
    processes = [multiprocessing.Process(target=queue_server, args=(a, root, inbox, outboxes, result))]
    processes += [multiprocessing.Process(target=queue_worker, args=(outbox, inbox, root, a.batch)) for outbox in outboxes]
    for process in processes:
        process.start()
    found = result.get(timeout=600)
    for process in processes:
        process.join()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--form", choices=("queues", "pool"), required=True)
    parser.add_argument("--data", required=True, help="directory with MNIST's IDX files")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=1e-2)
    a = parser.parse_args()
    root = mnist.unpack(a.data)
    begin = time.time()
    marks, accuracy = (queue_form if a.form == "queues" else pool_form)(a, root)
    seconds = time.time() - begin
    rate = a.workers * (a.rounds - 1) / (marks[-1] - marks[1])
    print(json.dumps({"benchmark": "multiprocessing_mnist", "form": a.form, "workers": a.workers, "torch": torch.__version__,
                      "gradients_per_second": rate, "seconds": seconds, "accuracy": accuracy}))


if __name__ == "__main__":
    main()
