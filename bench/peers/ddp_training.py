"""Data-parallel training without servers: DistributedDataParallel over gloo.

A peer of bench/training.cc, with the models and batches of rpc_training.py: one thread per process,
batches made beforehand. Only the time in which all workers were training counts."""
import argparse
import tempfile
import time

import rpc_job  # sets OMP_NUM_THREADS, before torch is imported
import rpc_training
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def worker(rank, a, directory, times):
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=a.workers)
    make, loss, batch_of = rpc_training.MODELS[a.model]
    model = make()
    optimizer = rpc_training.optimizer_of(a.model, model)
    parallel = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    batches = [batch_of() for _ in range(16)]
    for step in range(a.warmup + a.steps):
        if step == a.warmup:
            dist.barrier()
            begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=False)
        inputs, targets = batches[step % len(batches)]
        loss(parallel(inputs), targets).backward()
        optimizer.step()
    dist.barrier()
    times.put(time.perf_counter() - begin)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    models = sorted(name for name, (_, loss, _) in rpc_training.MODELS.items() if loss is not None)
    parser.add_argument("--model", choices=models, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--warmup", type=int, default=30)
    a = parser.parse_args()
    times = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as directory:
        mp.start_processes(worker, args=(a, directory, times), nprocs=a.workers, start_method="spawn")
        seconds = max(times.get() for _ in range(a.workers))
    rpc_job.report(
        "ddp_training",
        [seconds / a.steps],
        model=a.model,
        workers=a.workers,
        gradients_per_second=a.workers * a.steps / seconds,
    )


if __name__ == "__main__":
    main()
