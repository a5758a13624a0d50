"""Measures the memory of the operator at its start, when all objects exist already: leader and standby.

    bazel run //operator:restart_benchmark -- [--jobs 1000] [--pods 10000]

Both start against an API server in memory that serves as many jobs that train, with all that they own. It ends with 1 if
one of them ever took more than three quarters of the chart's memory limit: the rest is for pods of other shapes.
"""

import argparse
import contextlib
import json
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import yaml

OPERATOR = 'operator/sluice-operator'
API_SERVER = 'operator/testing/populated_api_server'
VALUES = 'helm/sluice/values.yaml'
PATIENCE = 600  # seconds
SHARE = 0.75  # of the chart's limit


def limit_mib():
    text = yaml.safe_load(pathlib.Path(VALUES).read_text(encoding='utf-8'))['resources']['limits']['memory']
    return int(re.fullmatch(r'(\d+)Mi', text).group(1))


def peak_mib(pid):
    status = pathlib.Path(f'/proc/{pid}/status').read_text(encoding='utf-8')
    return int(re.search(r'^VmHWM:\s+(\d+) kB', status, re.MULTILINE).group(1)) / 1024


def free_port():
    with socket.socket() as one:
        one.bind(('127.0.0.1', 0))
        return one.getsockname()[1]


@contextlib.contextmanager
def process(*command, **options):
    with subprocess.Popen(command, **options) as started:
        try:
            yield started
        finally:
            started.terminate()


class Operator:

    def __init__(self, stack, kubeconfig, log):
        self._port = free_port()
        self._process = stack.enter_context(process(
            OPERATOR, f'--kubeconfig={kubeconfig}', '--lease-namespace=ns', f'--metrics-address=127.0.0.1:{self._port}',
            stdout=log, stderr=log))

    def _page(self, path):
        try:
            with urllib.request.urlopen(f'http://127.0.0.1:{self._port}{path}', timeout=10) as answer:
                return answer.read().decode()
        except (urllib.error.URLError, OSError):
            return None

    def wait_until(self, what, holds):
        deadline = time.monotonic() + PATIENCE
        while not holds():
            if self._process.poll() is not None:
                sys.exit(f'the operator has ended before {what}')
            if time.monotonic() > deadline:
                sys.exit(f'not within {PATIENCE} s: {what}')
            time.sleep(0.5)

    def ready(self):
        return self._page('/readyz') is not None

    def value(self, series):
        """The sum over all labels."""
        page = self._page('/metrics') or ''
        return sum(float(value) for value in re.findall(rf'^{series}(?:{{[^}}]*}})? (\S+)$', page, re.MULTILINE))

    def has_seen(self, jobs):
        return (self.value('sluice_operator_reconcile_total') >= jobs and self.value('sluice_operator_queue_depth') < 1
                and self.value('sluice_operator_reconciles_running') < 1)

    def peak_mib(self):
        return peak_mib(self._process.pid)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--jobs', type=int, default=1000)
    parser.add_argument('--pods', type=int, default=10000, help='of all jobs together')
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(process(API_SERVER, str(arguments.jobs), str(arguments.pods),
                                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        url = server.stdout.readline().strip()
        if not url:
            sys.exit('the API server did not start')
        config = directory / 'kubeconfig'
        config.write_text(json.dumps({
            'apiVersion': 'v1', 'kind': 'Config', 'current-context': 'it',
            'clusters': [{'name': 'it', 'cluster': {'server': url}}],
            'users': [{'name': 'it', 'user': {}}],
            'contexts': [{'name': 'it', 'context': {'cluster': 'it', 'user': 'it'}}],
        }), encoding='utf-8')
        log = stack.enter_context(open(directory / 'log', 'w', encoding='utf-8'))
        limit = limit_mib()
        enough = True
        for role in ('leader', 'standby'):
            operator = Operator(stack, config, log)
            operator.wait_until('its caches are filled', operator.ready)
            if role == 'leader':
                operator.wait_until('every job was reconciled', lambda one=operator: one.has_seen(arguments.jobs))
            peak = operator.peak_mib()
            print(f'{arguments.jobs} jobs, {arguments.pods} pods: the {role} took at most {peak:.0f} MiB since its start '
                  f'(the chart allows {limit})')
            enough = enough and peak <= SHARE * limit
    return 0 if enough else 1


if __name__ == '__main__':
    sys.exit(main())
