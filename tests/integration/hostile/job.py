"""A job of real processes under attack, and the measurements to check on it: memory, pace, outcome."""

import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
import urllib.request

import grpc

from sluice import checkpoint
from sluice import wire
from tests.integration.hostile import attacker
from tests.python import job_processes

HOSTILE = pathlib.Path(attacker.__file__).parent

# Upper bound of a process's resident memory (VmHWM), whatever its peers send. A coordinator's gRPC buffers are limited to 512 MiB, which
# unfinished messages can fill (the highest measured value is 551 MiB); copies of headers come on top. A connection to a shard has at most
# 32 unfinished frames of 2 MiB, and the attacker has six connections.
BOUND_MIB = {'coordinator': 1024, 'ps': 640}
# Upper bound of what a process logs during an attack of a few seconds.
LOG_BYTES = 2 << 20
# Upper bound of a process's threads after an attack.
THREADS = 200
# The attack is stopped when a process has grown to this many times its bound, to protect the machine.
_GIVE_UP = 3

SAMPLES = 40000  # two blocks, so that two shards have one each
STEPS = 1250
BATCH_SECONDS = 0.025


def counting_job(directory, samples=SAMPLES, **changes):
    """In STEPS steps each sample is used equally often: at the end each element of the only tensor is SAMPLES / `samples`. Two
    shards, two workers."""
    table = pathlib.Path(directory) / 'samples.csv'
    table.write_text('sample,label\n' + ''.join(f'{i},{i % 2}\n' for i in range(samples)))
    job = job_processes.base_job(
        data={'format': 'CSV', 'source': {'path': str(table)},
              'csv': {'labelColumn': 'label', 'numericColumns': ['sample']}},
        model={'dimensions': {'microseconds': int(BATCH_SECONDS * 1e6), 'samples': samples}},
        optimizer={'name': 'Add'},
        training={'aggregation': 'Sum', 'steps': STEPS, 'globalBatchSize': SAMPLES // STEPS, 'microbatchSize': 8},
        parameterServer={'replicas': 2}, worker={'replicas': 2}, backoffLimit=3)
    for field, value in changes.items():
        if isinstance(value, dict):
            job.setdefault(field, {}).update(value)
        else:
            job[field] = value
    return job


class AttackedJob(job_processes.JobProcesses):
    """While the file `slow` exists, each batch of a worker takes BATCH_SECONDS: the pace then shows how long training waits for
    other processes, not how fast the machine is."""

    def __init__(self, job, directory, tls=None):
        super().__init__(job, directory, tls)
        self.slow = self.directory / 'slow'
        self.slow.touch()
        self.pids = {}
        self._kept_control = None

    def __exit__(self, *exception):
        if self._kept_control is not None:
            self._kept_control.__exit__()
        super().__exit__(*exception)

    def progress(self, timeout=30):
        """Asks as the operator does, on its own connection, which stays open."""
        if self._kept_control is None:
            self._kept_control = self._control()
        return self._kept_control.call('GetProgress', wire.GetProgressRequest(), wire.JobProgress, timeout=timeout)

    def _spawn(self, name, arguments):
        arguments = [*arguments, '--metrics-address', '127.0.0.1:0', '--metrics-port-file',
                     str(self.directory / f'{name}.metrics-port')]
        super()._spawn(name, arguments)
        self.pids[name] = self._living[name].pid

    def start_counting_worker(self, index):
        program = pathlib.Path(job_processes.program('ps')).parents[2] / 'tests/testing/counting_worker'
        self._spawn(f'worker-{index}', [str(program), *self._flags(index), '--slow-while', str(self.slow)])

    def start_all(self):
        self.start()
        for index in range(2):
            self.start_counting_worker(index)
        self.wait_for_members(2)
        self.wait_for_step(5)
        return self

    def replace_expelled_workers(self):
        """Restarts expelled workers, as their process manager would: a flood may delay a worker's messages until it is expelled."""
        for name, process in list(self._living.items()):
            if name.startswith('worker') and process.poll() not in (None, 0):
                self.start_counting_worker(int(name.split('-')[1]))

    # ---- what an attacker may know

    def metrics_addresses(self):
        return [f'127.0.0.1:{int((self.directory / f"{name}.metrics-port").read_text())}'
                for name in ('coordinator', 'ps-0', 'ps-1')]

    def target(self, seconds, certificate=None, **more):
        found = {'coordinator': self.address, 'job': self.name, 'seconds': seconds, 'metrics': self.metrics_addresses(),
                 'steps': STEPS, 'samples': self.job['model']['dimensions']['samples'], 'index': 2,
                 'shards': [(each.address, each.process.incarnation) for each in self.progress().view.shards]}
        if self._tls:
            found['certificate'] = str(certificate or self._tls / 'worker-2')
        else:
            found['secret'] = self.secret_file.read_text().strip()
        found.update(more)
        return found

    def attack(self, name, seconds=2.0, **more):
        return Attack(self, name, self.target(seconds, **more))

    # ---- measurements

    def _status(self, name, field):
        try:
            for line in pathlib.Path(f'/proc/{self.pids[name]}/status').read_text().splitlines():
                if line.startswith(field):
                    return int(line.split()[1])
        except FileNotFoundError:
            pass
        return 0

    def memory_mib(self, name, peak=True):
        return self._status(name, 'VmHWM:' if peak else 'VmRSS:') >> 10

    def threads(self, name):
        return self._status(name, 'Threads:')

    def servers(self):
        return ['coordinator'] + [f'ps-{i}' for i in range(self.job['parameterServer']['replicas'])]

    def lives(self, name):
        return self._living[name].poll() is None

    def bound_mib(self, name):
        return BOUND_MIB[name.split('-')[0]]

    def logged_bytes(self, name):
        path = self.directory / f'{name}.log'
        return path.stat().st_size if path.exists() else 0

    def step(self):
        """The job's step; None if the coordinator does not answer in time."""
        try:
            return self.progress(timeout=3).step
        except grpc.RpcError:
            return None

    def trained(self):
        """The number of steps (updates), from the coordinator or, if it is too busy to answer, from the shards' metrics, which lag
        by a second. None: no process answers."""
        step = self.step()
        if step is not None:
            return step
        name = b'sluice_step' if self.job['training']['mode'] == 'Synchronous' else b'sluice_updates_applied'
        lowest = None
        try:
            for address in self.metrics_addresses()[1:]:
                with urllib.request.urlopen(f'http://{address}/metrics', timeout=3) as reply:
                    value = float(re.search(rb'^' + name + rb'\{[^}]*\} (\S+)$', reply.read(), re.M)[1])
                lowest = value if lowest is None else min(lowest, value)
        except (OSError, TypeError):
            return None
        return lowest

    def trained_since(self, before):
        """Whether a step was made since `trained` was `before`; None: no process answers."""
        now = self.trained()
        return None if now is None or before is None else now > before

    def pace(self, seconds):
        """Steps (updates) per second, measured over `seconds`; 0 if no process answers."""
        began, first = time.monotonic(), self.trained()
        time.sleep(seconds)
        return self.pace_since(began, first)

    def pace_since(self, began, first):
        last, ended = self.trained(), time.monotonic()
        if first is None or last is None:
            return 0.0
        return (last - first) / (ended - began)

    # ---- the end of the job

    def let_it_end(self, timeout=60):
        """Lets the job run to its end; the exit code of each process that was not replaced, by name; -1: still running."""
        self.slow.unlink(missing_ok=True)
        deadline = time.monotonic() + timeout
        codes = {}
        for name in list(self._living):
            try:
                codes[name] = self._living[name].wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                codes[name] = -1
        return codes

    def final_step(self):
        manifest = json.loads((self.newest_checkpoint() / 'manifest.json').read_text())
        return int(manifest['checkpoint']['step'])

    def final_counts(self):
        """How often each sample was counted, and the expected number."""
        counts = checkpoint.load(self.newest_checkpoint())['counts']
        return counts, SAMPLES / len(counts)

    def log_tail(self, lines=4):
        """The last lines of each log, for an error message."""
        return '\n'.join(f'--- {name}\n' + '\n'.join(line[:250] for line in self.log(name).splitlines()[-lines:])
                         for name in sorted(self._living))


class Attack:
    """An attacker in its own process. It is stopped early if a process that it attacks grows far beyond its bound."""

    def __init__(self, job, name, target):
        self._job = job
        self.name = name
        self.outcome = {}
        self._process = subprocess.Popen(
            [sys.executable, attacker.__file__, name, json.dumps(target)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path), 'PYTHONFAULTHANDLER': '1'})
        self._seconds = target['seconds']
        self.ready = threading.Event()
        self._lines = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            self._lines.append(line)
            if line.strip() == 'READY':
                self.ready.set()
        self.ready.set()

    def is_running(self):
        return self._process.poll() is None

    def stop(self):
        """Ends the attack early."""
        self._process.kill()

    def wait(self, patience=60):
        """The attacker's report; empty counts if it was stopped."""
        deadline = time.monotonic() + self._seconds + patience
        while self._process.poll() is None and time.monotonic() < deadline:
            if any(self._job.memory_mib(name, peak=False) > _GIVE_UP * self._job.bound_mib(name)
                   for name in self._job.servers() if name in self._job.pids):
                break
            time.sleep(0.02)
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join(5)
        said = [line for line in self._lines if line.startswith('{')]
        self.outcome = json.loads(said[-1]) if said else {
            'counts': {}, 'error': f'ended early, {self._process.returncode}: {self._process.stderr.read()[-2000:]}'}
        self._process.stdout.close()
        self._process.stderr.close()
        return self.outcome
