"""Shared by the peers: processes joined by PyTorch RPC, and the one JSON line that they print."""
import json
import os
import socket
import statistics

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402  (the number of threads is read when it is imported)
import torch.distributed.rpc as rpc  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402

TRANSPORTS = ("tcp", "any")  # any: TensorPipe's own choice, which is shared memory on one machine


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _process(rank, workers, port, transport, work, arguments, results):
    torch.set_num_threads(1)
    options = {"init_method": f"tcp://127.0.0.1:{port}", "rpc_timeout": 120}
    if transport == "tcp":
        options.update(_transports=["uv"], _channels=["basic"])
    try:
        rpc.init_rpc(
            "ps" if rank == 0 else f"worker{rank}",
            rank=rank,
            world_size=workers + 1,
            rpc_backend_options=rpc.TensorPipeRpcBackendOptions(**options),
        )
        if rank > 0:
            results.put(work(rank, *arguments))
    except Exception as error:  # report to the parent, which would otherwise wait forever
        results.put(str(error) or type(error).__name__)
        return
    rpc.shutdown()


def run(workers, transport, work, arguments):
    """Calls work(rank, *arguments) in each worker, beside a process "ps"; returns the results."""
    context = mp.get_context("fork")
    results = context.Queue()
    port = free_port()
    processes = [
        context.Process(target=_process, args=(rank, workers, port, transport, work, arguments, results))
        for rank in range(workers + 1)
    ]
    for process in processes:
        process.start()
    found = []
    try:
        for _ in range(workers):
            found.append(results.get(timeout=600))
            if isinstance(found[-1], str):
                raise SystemExit(f"PyTorch RPC failed: {found[-1]}")
        for process in processes:
            process.join(60)
    finally:
        for process in processes:
            process.kill()
    return found


def report(benchmark, seconds, **values):
    values.update(
        benchmark=benchmark,
        torch=torch.__version__,
        median_seconds=statistics.median(seconds),
        fastest_seconds=min(seconds),
    )
    print(json.dumps(values), flush=True)
