"""The sharded vector on Ray: each actor holds a shard; tasks pull the whole vector and push an
update that is added.

Prints one JSON line. `seconds` end when the tasks return, like the original's, whose last updates
may still be queued; `applied_seconds` end when every shard has applied everything. Values are
checked."""
import argparse
import json
import time

import numpy as np
import ray


@ray.remote
class Shard:
    def __init__(self, size):
        self.values = np.zeros(size)

    def pull(self):
        return self.values

    def push(self, update):
        self.values += update

    def first(self):
        return float(self.values[0])


@ray.remote
def work(shards, iterations, size):
    for _ in range(iterations):
        values = np.concatenate([ray.get(shard.pull.remote()) for shard in shards])
        assert values.shape == (size,)
        for shard, update in zip(shards, np.split(np.ones(size), len(shards))):
            shard.push.remote(update)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=12_500_000, help="float64 numbers")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=5)
    a = parser.parse_args()
    ray.init(num_cpus=8, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    shards = [Shard.remote(a.size // a.shards) for _ in range(a.shards)]
    ray.get([work.remote(shards, 1, a.size) for _ in range(a.workers)])  # starts the processes
    before = ray.get([shard.first.remote() for shard in shards])
    begin = time.time()
    ray.get([work.remote(shards, a.iterations, a.size) for _ in range(a.workers)])
    seconds = time.time() - begin
    after = ray.get([shard.first.remote() for shard in shards])
    applied = time.time() - begin
    if any(late - early != a.workers * a.iterations for early, late in zip(before, after)):
        raise SystemExit(f"updates were lost: {before} {after}")
    print(json.dumps({"benchmark": "ray_vector", "ray": ray.__version__, "shards": a.shards, "workers": a.workers,
                      "seconds": seconds, "applied_seconds": applied}))
    ray.shutdown()


if __name__ == "__main__":
    main()
