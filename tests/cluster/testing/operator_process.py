"""The operator as a child process of the test, beside the API server: the test can kill, freeze and restart it.

It has only the rights of the chart's service account. The addresses of simulated pods are local to the network namespace
that it runs in, where one server replaces all of their coordinators (fake_job_control.py).
"""

import json
import os
import pathlib
import signal
import subprocess
import sys

from tests.cluster.testing import cluster as clusters
from tests.cluster.testing import images

SIMULATED_PODS = '10.245.0.0/16'
NAMESPACE = 'sluice-system'
RELEASE = 'sluice-operator'
ACCOUNT = 'sluice-operator'
TRAINING = {
    'phase': 'TRAINING', 'attempt': 1, 'step': 120, 'total_steps': 1000, 'epoch': 0.5, 'samples': 7680, 'loss': 0.5,
    'has_loss': True, 'samples_per_second': 900, 'view': {'id': {'attempt': 1}},
    'processes': [{'process': {'role': role, 'index': index, 'incarnation': 1000 + index}, 'state': 'MEMBER'}
                  for role in ('SHARD', 'WORKER') for index in range(6)],
}


def install_chart(cluster, *values):
    """Installs CRD, service account and rights. Simulated nodes do not accept the operator's pod, so it does not run."""
    cluster.helm('install', RELEASE, clusters.ROOT / 'helm/sluice', '--namespace', NAMESPACE, '--create-namespace', '--set',
                 'replicas=1', *values)


def kubeconfig(cluster, name, server, token):
    """Writes a kubeconfig with a token, for use inside the control plane's network namespace."""
    path = cluster.directory / f'{name}.kubeconfig'
    path.write_text(json.dumps({
        'apiVersion': 'v1',
        'kind': 'Config',
        'clusters': [{'name': 'test', 'cluster': {
            'server': server, 'certificate-authority': str(cluster.directory / 'pki/ca.crt')}}],
        'users': [{'name': 'operator', 'user': {'token': token}}],
        'contexts': [{'name': 'test', 'context': {'cluster': 'test', 'user': 'operator'}}],
        'current-context': 'test',
    }))
    path.chmod(0o600)
    return path


def inside_control_plane(cluster, command):
    return ['nsenter', f'--net=/run/netns/{cluster.name}-cp', '--', *map(str, command)]


class Coordinators:
    """`with Coordinators(cluster) as coordinators:`; sets the answers of all simulated pods' coordinators."""

    def __init__(self, cluster):
        self._cluster = cluster
        self._directory = cluster.directory / 'coordinators'
        self._said = {'default': dict(TRAINING)}

    def __enter__(self):
        self._directory.mkdir()
        self._write()
        clusters.run(['ip', '-n', f'{self._cluster.name}-cp', 'route', 'replace', 'local', SIMULATED_PODS, 'dev', 'lo'])
        path = os.pathsep.join([str(clusters.ROOT), str(clusters.ROOT / 'tests/cluster/testing/wire')])
        self._log = open(self._cluster.directory / 'log/coordinators.log', 'w', encoding='utf-8')
        self._process = subprocess.Popen(
            inside_control_plane(self._cluster, [
                sys.executable, '-m', 'tests.cluster.testing.fake_job_control', self._directory]),
            env={**os.environ, 'PYTHONPATH': path}, cwd=clusters.ROOT, stdout=self._log, stderr=self._log)
        log = pathlib.Path(self._log.name)
        clusters.wait_for('the coordinators listen', lambda: 'listening' in log.read_text() or self._process.poll(), 30)
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _write(self):
        new = self._directory / 'jobs.json.new'
        new.write_text(json.dumps(self._said))
        new.rename(self._directory / 'jobs.json')

    def say(self, address='default', **progress):
        """Changes the answers of one coordinator (by its pod's address), or of all others."""
        self._said[address] = {**self._said.get(address, self._said['default']), **progress}
        self._write()

    def forget(self):
        self._said = {'default': dict(TRAINING)}
        self._write()

    def calls(self, address=None):
        """The calls to coordinators, oldest first."""
        try:
            lines = (self._directory / 'calls.jsonl').read_text().splitlines()
        except FileNotFoundError:
            return []
        calls = [json.loads(line) for line in lines]
        return [call for call in calls if address in (None, call['address'])]


class Operator:
    """A replica of the operator. `with Operator(...) as operator:` starts it and, at the end, kills it."""

    def __init__(self, cluster, kubeconfig_path, identity='operator', *flags, metrics_port=0):
        self._cluster = cluster
        self._identity = identity
        if '--leader-elect' not in flags:
            # There is no other replica, so it need not wait for the lease of a killed one.
            flags = ('--no-leader-elect', *flags)
        self._command = inside_control_plane(cluster, [
            images.program('sluice-operator'), '--kubeconfig', kubeconfig_path, '--identity', identity, '--metrics-address',
            f'127.0.0.1:{metrics_port}', '--lease-namespace', NAMESPACE, '--server-image', 'server', '--worker-image', 'worker', *flags])
        self._log = None
        self.process = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()
        self._log.close()

    def start(self):
        if self._log is None:
            self._log = open(self._cluster.directory / f'log/{self._identity}.log', 'a', encoding='utf-8')
        # nsenter becomes the operator, so signals reach it.
        self.process = subprocess.Popen(self._command, stdout=self._log, stderr=self._log)

    def log(self):
        return (self._cluster.directory / f'log/{self._identity}.log').read_text(errors='replace')

    def running(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self, seconds=30):
        """Sends SIGTERM and returns the exit code."""
        self.process.terminate()
        return self.process.wait(seconds)

    def freeze(self):
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)
