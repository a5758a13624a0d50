"""Starts a job's real programs one by one, as tests/testing/job_processes.h does in C++."""

import json
import os
import pathlib
import re
import secrets
import signal
import subprocess
import sys
import time

from sluice import kernels
from sluice import wire
from tests.python import job_control


def base_job(**changes):
    """The `spec` of a manifest, and the job's name, namespace and uid: synchronous, one shard, one worker, SGD 0.1, short
    timers; as tests/testing/jobs.h."""
    job = {
        'name': 'test', 'namespace': 'default', 'uid': 'test',
        'training': {'mode': 'Synchronous', 'globalBatchSize': 64, 'microbatchSize': 8, 'seed': 1},
        'optimizer': {'name': 'SGD', 'learningRate': 0.1},
        'parameterServer': {'replicas': 1, 'partitions': 8, 'copies': 1},
        'worker': {'replicas': 1},
        'checkpoint': {'maxToKeep': 3},
        'backoffLimit': 100,
        'timeouts': {'heartbeatSeconds': 0.5, 'suspectSeconds': 1, 'heartbeatTimeoutSeconds': 5, 'pauseSeconds': 5,
                     'initializationSeconds': 60, 'suspendCheckpointSeconds': 30},
    }
    for field, value in changes.items():
        if isinstance(value, dict):
            job.setdefault(field, {}).update(value)
        else:
            job[field] = value
    return job


def job_file(job):
    """The file of a base_job, as the coordinator reads it."""
    names = ('name', 'namespace', 'uid')
    return json.dumps({'metadata': {name: job[name] for name in names},
                       'spec': {field: value for field, value in job.items() if field not in names}})


def program(role):
    """Path of a program: in Bazel's runfiles, or in SLUICE_PROGRAMS.

    SLUICE_WORKER may name a different sluice-worker, built with another LibTorch.
    """
    if role == 'worker' and os.environ.get('SLUICE_WORKER'):
        return os.environ['SLUICE_WORKER']
    root = os.environ.get('SLUICE_PROGRAMS') or os.path.join(
        os.environ.get('TEST_SRCDIR', '.'), 'sluice')
    return os.path.join(root, 'services', role, f'sluice-{role}')


class JobProcesses:

    def __init__(self, job, directory, tls=None, host='127.0.0.1'):
        """`tls`: the directory of `sluice certificates`; None: plain text with a secret. `host`: the
        address that the servers listen on, without brackets."""
        self._tls = pathlib.Path(tls) if tls else None
        self._host = f'[{host}]' if ':' in host else host
        self.job = job
        self.directory = pathlib.Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.secret_file = self.directory / 'secret'
        self.secret_file.unlink(missing_ok=True)
        self.secret_file.touch(mode=0o600)
        self.secret_file.write_text(secrets.token_hex(32) + '\n')
        # For the test's own calls of sluice.join and sluice.connect.
        os.environ.pop('SLUICE_SECRET_FILE', None)
        if not self._tls:
            os.environ['SLUICE_SECRET_FILE'] = str(self.secret_file)
        job['checkpoint'].setdefault('storage', {'path': str(self.directory / 'checkpoints')})
        self.address = None
        self._living = {}

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for process in self._living.values():
            process.kill()  # SIGKILL ends stopped processes, too
            process.wait()

    @property
    def name(self):
        return f'{self.job["namespace"]}/{self.job["name"]}/{self.job["uid"]}'

    @property
    def checkpoints(self):
        return pathlib.Path(self.job['checkpoint']['storage']['path'])

    def newest_checkpoint(self):
        return max(self.checkpoints.glob('attempt-*/manifest.json')).parent

    def start(self, shards=None):
        path = self.directory / 'job.json'
        path.write_text(job_file(self.job))
        self._spawn('coordinator', [program('coordinator'), '--job', str(path), '--listen',
                                    f'{self._host}:0', '--status-file',
                                    str(self.directory / 'status.json'), '--termination-file',
                                    str(self.directory / 'termination.json')])
        self.address = f'{self._host}:{self._read_port("coordinator")}'
        for index in range(shards or self.job['parameterServer']['replicas']):
            self.start_shard(index)
        return self

    def start_shard(self, index):
        self._spawn(f'ps-{index}', [program('ps'), *self._flags(index), '--listen',
                                    f'{self._host}:0'])
        self._read_port(f'ps-{index}')

    def start_cpp_worker(self, index):
        self._spawn(f'worker-{index}', [program('worker'), *self._flags(index), '--threads', '1'])

    def start_python_worker(self, index, script, *arguments, **environment):
        """Starts a Python program, in the interpreter that runs the test."""
        self.start_program(index, [sys.executable, script, *arguments], **environment)

    def start_program(self, index, command, **environment):
        """Starts a worker that is not Sluice's own."""
        log = self.directory / f'worker-{index}.log'
        environment = {
            **os.environ, 'SLUICE_COORDINATOR': self.address, 'SLUICE_JOB': self.name,
            'SLUICE_WORKER_INDEX': str(index), 'SLUICE_THREADS': '1',
            'PYTHONPATH': os.pathsep.join(sys.path),
            **({'SLUICE_TLS_DIRECTORY': str(self._tls / f'worker-{index}')} if self._tls else
               {'SLUICE_SECRET_FILE': str(self.secret_file)}),
            **kernels.variables(wire.JobSpec(training=wire.TrainingSpec(
                bit_exact=self.job['training'].get('determinism') == 'BitExact'))),
            **environment,
        }
        with open(log, 'ab') as output:
            self._living[f'worker-{index}'] = subprocess.Popen(
                command, env=environment, stdout=output, stderr=subprocess.STDOUT)

    def _flags(self, index):
        return ['--job', self.name, '--coordinator', self.address, '--index', str(index)]

    def _spawn(self, name, arguments):
        port_file = self.directory / f'{name}.port'
        port_file.unlink(missing_ok=True)
        if self._tls:
            arguments = arguments + ['--tls-directory', str(self._tls / name)]
        else:
            arguments = arguments + ['--secret-file', str(self.secret_file)]
        with open(self.directory / f'{name}.stderr', 'ab') as output:
            self._living[name] = subprocess.Popen(
                arguments + ['--port-file', str(port_file), '--log-file',
                             str(self.directory / f'{name}.log'), '--parent', str(os.getpid())],
                stderr=output)

    def _read_port(self, name):
        def read():
            try:
                return int((self.directory / f'{name}.port').read_text())
            except (FileNotFoundError, ValueError):
                return None
        return self.wait_until(read, 20, f'{name} listens')

    def _control(self):
        return job_control.JobControl(self.address, self._tls and self._tls / 'operator',
                                      self.secret_file)

    def kill(self, name):
        """Sends SIGKILL and reports the death to the coordinator, as a process manager would."""
        process = self._living.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()
        role, index = name.split('-')
        request = wire.SetDesiredRequest(
            workers=self.job['worker']['replicas'],
            shards=self.job['parameterServer']['replicas'])
        request.deaths.add(
            process=wire.ProcessId(role=wire.SHARD if role == 'ps' else wire.WORKER,
                                   index=int(index)),
            pid=process.pid, reason='killed by signal 9')
        with self._control() as control:
            control.call('SetDesired', request, wire.SetDesiredResponse)

    def signal(self, name, number):
        self._living[name].send_signal(number)

    def pid(self, name):
        return self._living[name].pid

    def incarnations(self):
        """Incarnations of the view's workers, by index."""
        return {member.process.index: member.process.incarnation
                for member in self.progress().view.workers}

    def wait_for_exit(self, name, timeout=60):
        return self._living[name].wait(timeout)

    def log(self, name):
        for suffix in ('.log', '.stderr'):
            path = self.directory / (name + suffix)
            if path.exists() and path.stat().st_size:
                return path.read_text(errors='replace')
        return ''

    def libtorch(self, name):
        """The version of LibTorch that a C++ worker reports."""
        found = re.search(r' libtorch=(\S+)', self.log(name))
        return found[1] if found else None

    def progress(self):
        with self._control() as control:
            return control.progress()

    def outcome(self):
        """The progress with which the coordinator ended the job, from JSON."""
        return json.loads((self.directory / 'termination.json').read_text())

    def workers(self):
        return sorted(name for name in self._living if name.startswith('worker'))

    def wait_for_members(self, workers, timeout=60):
        def all_there():
            return sum(status.process.role == wire.WORKER and
                       status.state == wire.ProcessStatus_MEMBER
                       for status in self.progress().processes) == workers
        self.wait_until(all_there, timeout, f'{workers} workers are members')

    def wait_for_step(self, step, timeout=60):
        def reached():
            try:
                return self.progress().step >= step
            except Exception:  # not yet up, or already gone
                return False
        self.wait_until(reached, timeout, f'step {step} is reached')

    @staticmethod
    def wait_until(condition, timeout, what):
        deadline = time.monotonic() + timeout
        while True:
            value = condition()
            if value:
                return value
            if time.monotonic() > deadline:
                raise TimeoutError(f'not within {timeout} s: {what}')
            time.sleep(0.01)
