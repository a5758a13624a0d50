"""A separate cluster for a test program, started by the scripts in the parent directory, and removed completely at its end."""

import contextlib
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from tests.cluster.testing import api_client

SCRIPTS = pathlib.Path(__file__).absolute().parent.parent
ROOT = SCRIPTS.parent.parent
CACHE = pathlib.Path(os.environ.get('CLUSTER_CACHE') or pathlib.Path(
    os.environ.get('XDG_CACHE_HOME') or pathlib.Path(os.environ.get('HOME') or '/root') / '.cache') / 'sluice/cluster')

_BEGAN = time.monotonic()
_namespaces = itertools.count(1)


def say(text):
    """Progress, with the seconds since the program began."""
    print(f'[{time.monotonic() - _BEGAN:6.1f} s] {text}', flush=True)


class CommandFailed(Exception):

    def __init__(self, command, status, output, error):
        super().__init__(f'{" ".join(map(str, command))} ended with {status}:\n{output}{error}')
        self.status = status
        self.output = output
        self.error = error


def run(command, stdin=None, timeout=120, environment=None):
    """Returns a command's standard output; raises CommandFailed if its exit code is not 0."""
    done = subprocess.run([str(part) for part in command], input=stdin, capture_output=True, text=True, timeout=timeout,
                          env=environment)
    if done.returncode != 0:
        raise CommandFailed(command, done.returncode, done.stdout, done.stderr)
    return done.stdout


def wait_for(what, look, seconds=60, every=0.1):
    """Returns the first true result of look(); after the time an AssertionError with `what` and the last result."""
    deadline = time.monotonic() + seconds
    seen = None
    while True:
        try:
            result = look()
            if result:
                return result
            if result is not None and result is not False:
                seen = result
        except (OSError, api_client.ApiError, CommandFailed, LookupError) as error:  # the object does not exist yet
            seen = repr(error)
        if time.monotonic() > deadline:
            raise AssertionError(f'after {seconds} s still not: {what}' + (f' ({seen})' if seen else ''))
        time.sleep(every)


def _free_ports():
    """A free port after which the next one is free as well (for a second API server)."""
    for _ in range(100):
        with socket.socket() as one, socket.socket() as two:
            one.bind(('127.0.0.1', 0))
            port = one.getsockname()[1]
            try:
                two.bind(('127.0.0.1', port + 1))
                return port
            except (OSError, OverflowError):
                continue
    raise RuntimeError('no two neighbouring ports are free')


def _end_abandoned():
    """Ends clusters of killed tests, which no other process would end."""
    for directory in pathlib.Path(tempfile.gettempdir()).glob('sluice-cluster-t*'):
        owner = directory / 'owner'
        try:
            pid, began = owner.read_text().split()
        except (OSError, ValueError):
            continue
        if _start_time(pid) != began:
            say(f'ending the cluster of a test that is gone: {directory}')
            name = directory.name[len('sluice-cluster-'):]
            subprocess.run([SCRIPTS / 'down.sh', 'all'], check=False, stdout=subprocess.DEVNULL,
                           env={**os.environ, 'CLUSTER_NAME': name, 'CLUSTER_DIR': str(directory), 'PURGE': '1'})


def _start_time(pid):
    try:
        with open(f'/proc/{pid}/stat', encoding='ascii', errors='replace') as file:
            return file.read().rpartition(')')[2].split()[19]
    except OSError:
        return ''


class Cluster:
    """`with Cluster(nodes=2) as cluster:`.

    `flags` has more flags for its programs, named as in up-control-plane.sh and up-kwok.sh.
    """

    def __init__(self, nodes=0, simulated=0, images=(), flags=None):
        _end_abandoned()
        # Short, because namespaces, links and socket paths are named after it.
        self.name = 't' + os.urandom(2).hex()
        self.nodes = nodes
        self._simulated = simulated
        self.directory = pathlib.Path(tempfile.gettempdir()) / f'sluice-cluster-{self.name}'
        self._images = images
        self.port = _free_ports()
        self.kubeconfig = self.directory / 'admin.kubeconfig'
        self.environment = {
            **os.environ,
            **(flags or {}),
            'CLUSTER_NAME': self.name,
            'CLUSTER_DIR': str(self.directory),
            'CLUSTER_CACHE': str(CACHE),
            'CLUSTER_API_PORT': str(self.port),
            'KUBECONFIG': str(self.kubeconfig),
            'HOME': str(self.directory),  # kubectl's and Helm's own caches
            'GOGC': '400',  # memory for processor time: its programs live for minutes
            'PATH': f'{CACHE}/bin:{os.environ.get("PATH", "")}:/usr/sbin:/sbin:/usr/bin:/bin',
        }
        self.api = None

    def __enter__(self):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit('ended by SIGTERM'))
        self.directory.mkdir(mode=0o711)
        (self.directory / 'owner').write_text(f'{os.getpid()} {_start_time(os.getpid())}')
        (self.directory / 'images').mkdir()
        for archive in self._images:
            (self.directory / 'images' / pathlib.Path(archive).name).symlink_to(archive)
        try:
            self.script('up.sh', self.nodes, self._simulated, timeout=400)
        except BaseException:
            self.show_logs()
            self.down()
            raise
        self.api = self.client()
        return self

    def __exit__(self, kind, value, traceback):
        if os.environ.get('TEST_UNDECLARED_OUTPUTS_DIR'):
            shutil.copytree(self.directory / 'log', pathlib.Path(os.environ['TEST_UNDECLARED_OUTPUTS_DIR']) / 'log',
                            dirs_exist_ok=True)
        self.down()

    def down(self):
        subprocess.run([SCRIPTS / 'down.sh', 'all'], check=False, stdout=subprocess.DEVNULL,
                       env={**self.environment, 'PURGE': '1'})

    def script(self, name, *arguments, timeout=120):
        """Runs a script of tests/cluster and shows its output."""
        for line in run([SCRIPTS / name, *arguments], environment=self.environment, timeout=timeout).splitlines():
            say(f'  {name}: {line.split(" ", 1)[-1]}')

    def show_logs(self):
        for log in sorted((self.directory / 'log').glob('*.log')):
            lines = log.read_text(errors='replace').splitlines()[-8:]
            print('\n'.join([f'--- {log.name}', *lines]), flush=True)

    def show_pods(self, namespace, lines=12):
        """Shows the first things to check when the pods of a namespace fail."""
        for command in (('get', 'pods', '-o', 'wide'), ('get', 'events', '--sort-by=.metadata.creationTimestamp')):
            say(f'--- kubectl {" ".join(command)}\n' + '\n'.join(self._answer('-n', namespace, *command).splitlines()[-40:]))
        for pod in self.api.list('pods', namespace):
            status, name = pod['status'], pod['metadata']['name']
            states = [one.get('state') for one in status.get('containerStatuses', [])]
            say(f'--- {name}: {status.get("phase")} {status.get("reason", "")} {json.dumps(states)}\n' +
                self._answer('-n', namespace, 'logs', name, '--all-containers', f'--tail={lines}'))

    def _answer(self, *arguments):
        """The output of kubectl, or its error."""
        try:
            return self.kubectl(*arguments, timeout=30)
        except (CommandFailed, subprocess.TimeoutExpired) as error:
            return str(error)

    def client(self, port=None):
        """Another connection as administrator; each connection is for one thread."""
        pki = self.directory / 'pki'
        return api_client.ApiClient('127.0.0.1', port or self.port, pki / 'ca.crt', pki / 'admin.crt', pki / 'admin.key')

    def kubectl(self, *arguments, stdin=None, timeout=120):
        return run([CACHE / 'bin/kubectl', *arguments], stdin=stdin, timeout=timeout, environment=self.environment)

    def refused(self, *arguments, stdin=None):
        """Returns the error of a kubectl command that is expected to be refused."""
        try:
            output = self.kubectl(*arguments, stdin=stdin)
        except CommandFailed as failed:
            return failed.error
        raise AssertionError(f'kubectl {" ".join(map(str, arguments))} should have been refused, but printed:\n{output}')

    def helm(self, *arguments, timeout=180):
        return run([CACHE / 'bin/helm', *arguments], timeout=timeout, environment=self.environment)

    def apply(self, *objects):
        """Applies objects, or the text of manifests."""
        text = '\n---\n'.join(one if isinstance(one, str) else json.dumps(one) for one in objects)
        return self.kubectl('apply', '-f', '-', stdin=text)

    @contextlib.contextmanager
    def namespace(self, labels=None):
        """The name of a new namespace, which is deleted at the end."""
        name = f'test-{next(_namespaces)}'
        self.api.create('namespaces', {'metadata': {'name': name, 'labels': labels or {}}})
        wait_for('the default service account', lambda: self.api.get('serviceaccounts', name, 'default'))
        try:
            yield name
        finally:
            self.api.delete('namespaces', None, name)

    def process(self, name):
        """The process id of a part of the cluster, such as `apiserver` or `n1-kubelet`."""
        return int((self.directory / 'pid' / name).read_text().split()[0])

    def writes(self, user='', since=0):
        """The audit log's writes whose user name contains `user`, from the given position on."""
        found = []
        with open(self.directory / 'log/audit.log', encoding='utf-8') as file:
            file.seek(since)
            for line in file:
                if line.endswith('\n'):
                    record = json.loads(line)
                    if user in record['user']['username']:
                        found.append(record)
        return found

    def audit_position(self):
        return (self.directory / 'log/audit.log').stat().st_size


def conditions(value):
    """{type: status} of an object."""
    return {one['type']: one['status'] for one in (value.get('status') or {}).get('conditions') or []}


def has_failed(test):
    """Whether an assertion of a unittest.TestCase has failed so far, for cleanups that show more of a failed test."""
    result = test._outcome.result
    return any(getattr(one, 'test_case', one) is test for one, _ in result.failures + result.errors)


def plain(text):
    """The text without the escape sequences of a terminal."""
    return re.sub(r'\x1b\[[0-9;]*m', '', text)
