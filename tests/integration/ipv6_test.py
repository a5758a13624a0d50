"""Jobs and the operator in a network namespace with IPv6 and without IPv4, not even 127.0.0.1."""

from python.testing import requirements
requirements.need('numpy', 'grpc', 'google.protobuf')

import ctypes
import json
import os
import pathlib
import socket
import subprocess
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

from tests.python import job_processes
from tests.python import quadratic_worker
from tools import unittest_main

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
# An address other than loopback, as a pod has.
POD = 'fd00::5'
ROOT = pathlib.Path('.').absolute()
PATIENCE = 120  # seconds


class Outside:
    """A thread that stays in the network namespace in which the test began, which has IPv4."""

    def __init__(self):
        self._calls = []
        self._changed = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._calls)
                call = self._calls.pop(0)
            call()

    def forward(self, listener, port):
        """Forwards each connection of `listener`, in whichever namespace it is, to that port of 127.0.0.1 outside."""
        with self._changed:
            # A thread starts in the namespace of the thread that starts it.
            self._calls.append(lambda: threading.Thread(target=self._accept, args=(listener, port), daemon=True).start())
            self._changed.notify()

    def _accept(self, listener, port):
        while True:
            try:
                inner, _ = listener.accept()
            except OSError:  # closed
                return
            outer = socket.create_connection(('127.0.0.1', port))
            for source, sink in ((inner, outer), (outer, inner)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    @staticmethod
    def _pass(source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:  # one side is gone
            pass


def enter_a_namespace_without_ipv4():
    """Moves this thread, and the threads and processes that it starts later. Returns the reason if that fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    user = os.getuid()
    if libc.unshare(_CLONE_NEWNET) != 0 and libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        return f'unshare: {os.strerror(ctypes.get_errno())}'
    for command in ('link set lo up', '-4 address flush dev lo', f'-6 address add {POD}/128 dev lo nodad'):
        done = subprocess.run(['ip', *command.split()], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f'ip {command}: {done.stderr.strip()} (user {user})'
    try:
        with socket.create_server(('127.0.0.1', 0)):
            return 'the namespace still has 127.0.0.1'
    except OSError:
        pass
    return None


class Job(job_processes.JobProcesses):
    """Each process serves metrics and probes as it does in a pod."""

    def _spawn(self, name, arguments):
        super()._spawn(name, [*arguments, '--metrics-address', '[::]:0', '--metrics-port-file',
                              str(self.directory / f'{name}.metrics')])

    def page(self, name, path):
        port = self.wait_until(lambda: self._metrics_port(name), PATIENCE, f'{name} serves metrics')
        return page(port, path)

    def _metrics_port(self, name):
        try:
            return int((self.directory / f'{name}.metrics').read_text())
        except (FileNotFoundError, ValueError):
            return None


def page(port, path, host='[::1]'):
    """Returns the HTTP status, 0 without an answer, and the text."""
    try:
        with urllib.request.urlopen(f'http://{host}:{port}{path}', timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


class Ipv6Test(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.outside = Outside()
        cls.api_server = subprocess.Popen([ROOT / 'operator/testing/populated_api_server', '1', '4', POD],
                                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        cls.addClassCleanup(cls._stop_api_server)
        cls.api_port = int(cls.api_server.stdout.readline().rsplit(':', 1)[1])
        reason = enter_a_namespace_without_ipv4()
        if reason:
            raise unittest.SkipTest(f'no network namespace without IPv4: {reason}')

    @classmethod
    def _stop_api_server(cls):
        cls.api_server.stdin.close()
        cls.api_server.stdout.close()
        cls.api_server.wait()

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get('TEST_TMPDIR')))

    def start(self, job, tls=None):
        processes = Job(job, self.directory / 'job', tls, host=POD)
        self.addCleanup(processes.__exit__)
        processes.start()
        return processes

    def certificates(self):
        tls = self.directory / 'tls'
        command = [str(ROOT / 'cli/sluice'), 'certificates', 'test', '-o', str(tls), '--shards', '2', '--workers', '2']
        subprocess.run(command, check=True, capture_output=True)
        return tls

    def mlp(self, steps, delay=0.0, **training):
        return job_processes.base_job(
            model={'type': 'Builtin', 'name': 'mlp', 'dimensions': {'hidden': 32}},
            data={'format': 'Synthetic', 'synthetic': {'samples': 500, 'shape': [20], 'classes': 10}},
            training={'steps': steps, 'globalBatchSize': 16, **training}, debug={'stepDelaySeconds': delay},
            worker={'replicas': 2}, parameterServer={'replicas': 2})

    def assert_answers(self, processes, names):
        for name in names:
            processes.wait_until(lambda one=name: processes.page(one, '/readyz')[0] == 200, PATIENCE, f'{name} is ready')
            self.assertEqual(processes.page(name, '/healthz')[0], 200)
            code, text = processes.page(name, '/metrics')
            self.assertEqual(code, 200)
            self.assertIn('sluice_', text)

    def assert_ends(self, processes):
        for name in ('worker-0', 'worker-1', 'coordinator', 'ps-0', 'ps-1'):
            self.assertEqual(processes.wait_for_exit(name, PATIENCE), 0, processes.log(name)[-3000:])
        self.assertEqual(json.loads((processes.directory / 'status.json').read_text())['phase'], 'SUCCEEDED')

    def test_cpp_workers_train_over_tls(self):
        processes = self.start({**self.mlp(steps=400, delay=0.02), 'tls': 'Enabled'}, self.certificates())
        for index in range(2):
            processes.start_cpp_worker(index)
        processes.wait_for_step(5)
        self.assert_answers(processes, ['coordinator', 'ps-0', 'ps-1', 'worker-0', 'worker-1'])
        self.assert_ends(processes)

    def test_workers_all_reduce_gradients(self):
        processes = self.start(self.mlp(steps=60, dense={'aggregation': 'AllReduce'}))
        for index in range(2):
            processes.start_cpp_worker(index)
        self.assert_ends(processes)

    def test_python_workers_train(self):
        processes = self.start(job_processes.base_job(
            training={'steps': 60}, parameterServer={'replicas': 2}, worker={'replicas': 2},
            optimizer={'name': 'SGD', 'learningRate': 0.05}))
        for index in range(2):
            processes.start_python_worker(index, quadratic_worker.__file__)
        self.assert_ends(processes)

    def start_operator(self):
        listener = socket.create_server(('::1', 0), family=socket.AF_INET6)
        self.addCleanup(listener.close)
        self.outside.forward(listener, self.api_port)
        config = self.directory / 'kubeconfig'
        config.write_text(json.dumps({
            'apiVersion': 'v1', 'kind': 'Config', 'current-context': 'it',
            'clusters': [{'name': 'it', 'cluster': {'server': f'http://[::1]:{listener.getsockname()[1]}'}}],
            'users': [{'name': 'it', 'user': {}}],
            'contexts': [{'name': 'it', 'context': {'cluster': 'it', 'user': 'it'}}],
        }))
        log = open(self.directory / 'operator.log', 'w', encoding='utf-8')
        # It serves its pages at the default address.
        operator = subprocess.Popen([ROOT / 'operator/sluice-operator', f'--kubeconfig={config}', '--lease-namespace=ns'],
                                    stdout=log, stderr=log)
        log.close()

        def stop():
            operator.kill()
            operator.wait()
        self.addCleanup(stop)
        return listener.getsockname()[1]

    def test_operator_reaches_api_server_and_coordinator_and_answers_probes(self):
        # The coordinator of the job that the API server has.
        job = self.mlp(steps=100000, delay=0.05)
        job['parameterServer']['replicas'] = 1
        job['checkpoint']['storage'] = {'path': str(self.directory / 'checkpoints')}
        job_file = self.directory / 'job.json'
        job_file.write_text(job_processes.job_file(job))
        name = f'{job["namespace"]}/{job["name"]}/{job["uid"]}'
        address = f'[{POD}]:29500'
        programs = [['coordinator', '--job', job_file, '--listen', '0.0.0.0:29500'],  # as in a pod
                    ['ps', '--job', name, '--coordinator', address, '--index', '0', '--listen', '0.0.0.0:0', '--advertise', POD]]
        programs += [['worker', '--job', name, '--coordinator', address, '--index', str(i), '--threads', '1'] for i in range(2)]
        for role, *arguments in programs:
            with open(self.directory / 'job.log', 'a', encoding='utf-8') as log:
                process = subprocess.Popen([job_processes.program(role), *map(str, arguments), '--insecure', '--parent',
                                            str(os.getpid())], stdout=log, stderr=log)
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)
        api_port = self.start_operator()

        def step():
            code, text = page(api_port, '/apis/sluice.dev/v1alpha1/namespaces/ns/trainingjobs/job-00000')
            return json.loads(text)['status'].get('training', {}).get('step', 0) if code == 200 else 0
        before = step()

        def logs():
            return ''.join((self.directory / f'{log}.log').read_text()[-3000:] for log in ('operator', 'job'))
        try:
            job_processes.JobProcesses.wait_until(lambda: step() not in (0, before), PATIENCE,
                                                  'the operator shows the steps of the coordinator')
        except TimeoutError as error:
            self.fail(f'{error}\n{logs()}')
        for path in ('/healthz', '/readyz'):
            self.assertEqual(page(8080, path)[0], 200, logs())
        self.assertIn('sluice_operator_leader 1', page(8080, '/metrics')[1])


if __name__ == '__main__':
    unittest_main.main()
