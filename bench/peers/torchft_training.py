"""Data-parallel training of mnist-net with torchft, whose replicas are killed meanwhile.

    torchft_training.py --seconds 180                     undisturbed
    torchft_training.py --seconds 180 --kill-at 10 20 30  a replica is killed after so many seconds

Every replica is a process, which is started again at once when it was killed, as a process manager
would. Prints one JSON line: samples per second, of the steps that the replicas have committed."""
import argparse
import datetime
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
NAME = "torchft"


def replica(a):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn import functional
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    class Net(nn.Module):
        """As PyTorch's parameter server tutorial has it; like `mnist-net`."""

        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(1, 32, 3, 1)
            self.conv2 = nn.Conv2d(32, 64, 3, 1)
            self.dropout1 = nn.Dropout2d(0.25)
            self.dropout2 = nn.Dropout(0.5)
            self.fc1 = nn.Linear(9216, 128)
            self.fc2 = nn.Linear(128, 10)

        def forward(self, x):
            x = functional.relu(self.conv1(x))
            x = self.dropout1(functional.max_pool2d(self.conv2(x), 2))
            x = functional.relu(self.fc1(torch.flatten(x, 1)))
            return functional.log_softmax(self.fc2(self.dropout2(x)), dim=1)

    torch.set_num_threads(1)
    torch.manual_seed(1)
    net = Net()
    torch.manual_seed(time.time_ns())
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=datetime.timedelta(seconds=5)), min_replica_size=1, rank=0, world_size=1,
        store_addr="127.0.0.1", store_port=store.port, lighthouse_addr=a.lighthouse, hostname="127.0.0.1",
        replica_id=f"replica_{a.index}", timeout=datetime.timedelta(seconds=10),
        state_dict=lambda: {"net": net.state_dict(), "optimizer": optimizer.state_dict()},
        load_state_dict=lambda state: (net.load_state_dict(state["net"]), optimizer.load_state_dict(state["optimizer"])))
    model = DistributedDataParallel(manager, net)
    managed = Optimizer(manager, optimizer)
    images = torch.rand(a.batch // a.replicas, 1, 28, 28)
    labels = torch.randint(0, 10, (a.batch // a.replicas,))
    with open(a.log, "a", encoding="utf-8") as log:
        while True:
            managed.zero_grad()
            functional.nll_loss(model(images), labels).backward()
            managed.step()
            log.write(f"{time.time()} {manager.current_step()} {manager.batches_committed()}\n")
            log.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--kill-at", type=float, nargs="*", default=[])
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--index", type=int)
    parser.add_argument("--lighthouse")
    parser.add_argument("--log")
    a = parser.parse_args()
    if a.index is not None:
        replica(a)
        return

    from torchft.coordination import LighthouseServer
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=100, quorum_tick_ms=50,
                                  heartbeat_timeout_ms=1000)
    port = lighthouse.address().rsplit(":", 1)[1]
    directory = pathlib.Path(tempfile.mkdtemp(prefix="torchft-"))
    logs = [directory / f"{i}.log" for i in range(a.replicas)]
    processes = {}

    def start(i):
        with open(directory / f"{i}.err", "ab") as errors:
            processes[i] = subprocess.Popen(
                [sys.executable, __file__, "--index", str(i), "--lighthouse", f"http://127.0.0.1:{port}", "--log", logs[i],
                 "--batch", str(a.batch), "--replicas", str(a.replicas)], stderr=errors, stdout=errors)

    def newest():
        """The steps that were committed, as (time, step, batches)."""
        lines = [line.split() for log in logs if log.exists() for line in log.read_text().splitlines() if line.count(" ") == 2]
        return sorted((float(at), int(step), int(batches)) for at, step, batches in lines)

    try:
        for i in range(a.replicas):
            start(i)
        deadline = time.time() + 120
        while not (newest() and all(log.exists() and log.stat().st_size for log in logs)):
            if time.time() > deadline:
                sys.exit(f"no step: see {directory}")
            time.sleep(0.2)
        time.sleep(3)
        begin = time.time()
        choice = random.Random(a.seed)
        for at in sorted(a.kill_at) + [a.seconds]:
            while time.time() < begin + at:
                for i, process in processes.items():
                    if process.poll() is not None:
                        start(i)  # it has failed
                time.sleep(min(0.05, max(0, begin + at - time.time())))
            if at < a.seconds:
                i = choice.randrange(a.replicas)
                processes[i].send_signal(signal.SIGKILL)
                processes[i].wait()
                start(i)
        end = time.time()
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
        lighthouse.shutdown()
    before = [entry for entry in newest() if entry[0] <= begin][-1]
    after = [entry for entry in newest() if entry[0] <= end][-1]
    print(json.dumps({"system": NAME, "seconds": round(end - begin, 1), "kills": len(a.kill_at),
                      "steps_per_s": round((after[1] - before[1]) / (end - begin), 2),
                      "samples_per_s": round((after[2] - before[2]) * (a.batch // a.replicas) / (end - begin), 1)}))


if __name__ == "__main__":
    main()
