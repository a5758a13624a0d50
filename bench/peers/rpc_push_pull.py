"""One tensor pushed to a parameter server and its next version pulled, by PyTorch RPC.

The peer of bench/push_pull.cc, as favourable to RPC as possible: push and pull are one call, large
tensors are sent in concurrent pieces of 4 MiB, and the update is in place (no version is kept).
Every element of every version is checked."""
import argparse
import time

import rpc_job
import torch
import torch.distributed.rpc as rpc

CHUNK = 1 << 20  # elements; larger messages are slower

parameters = {}  # the server's chunks


def update(chunk, gradient, optimizer):
    if chunk not in parameters:
        parameters[chunk] = torch.zeros_like(gradient)
    parameters[chunk].add_(gradient, alpha=1.0 if optimizer == "add" else -0.5)
    return parameters[chunk]


def worker(_, a):
    chunks = torch.ones(a.bytes // 4).split(CHUNK)
    change = 1.0 if a.optimizer == "add" else -0.5
    seconds = []
    for step in range(a.warmup + a.steps):
        begin = time.perf_counter()
        calls = [
            rpc.rpc_async("ps", update, args=(i, chunk, a.optimizer)) for i, chunk in enumerate(chunks)
        ]
        pulled = [call.wait() for call in calls]
        seconds.append(time.perf_counter() - begin)
        if not all(bool((chunk == change * (step + 1)).all()) for chunk in pulled):
            raise ValueError(f"a wrong element in version {step + 1}")
    return seconds[a.warmup :]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=100 << 20)
    parser.add_argument("--optimizer", choices=("add", "sgd"), default="add")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--transport", choices=rpc_job.TRANSPORTS, default="tcp")
    a = parser.parse_args()
    (seconds,) = rpc_job.run(1, a.transport, worker, (a,))
    rpc_job.report("rpc_push_pull", seconds, bytes=a.bytes, optimizer=a.optimizer, transport=a.transport)


if __name__ == "__main__":
    main()
