"""The base of tests that disturb a job on real nodes: a job whose result is known to the bit, and faults for its pods."""

import calendar
import contextlib
import copy
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

from tests.cluster.node.node_case import NodeCase
from tests.cluster.testing import images
from tests.cluster.testing.cluster import ROOT, run, say, wait_for
from tests.cluster.testing.metrics import Progress, scrape

SMALL = {
    'coordinator': {'cpu': '20m', 'memory': '48Mi'},
    'ps': {'cpu': '20m', 'memory': '48Mi'},
    'worker': {'cpu': '50m', 'memory': '128Mi'},
}
ENDLESS = 1000000  # steps of a job that ends in assert_equals_undisturbed
# Runs a worker, and exits with 1 on request, as a program does after an error.
WRAPPER = '''
"$@" &
worker=$!
trap 'kill -TERM $worker' TERM
while kill -0 $worker 2>/dev/null; do
  if /wrapper/busybox test -e "/wrapper/fail-$HOSTNAME"; then
    /wrapper/busybox rm "/wrapper/fail-$HOSTNAME"
    kill -KILL $worker
    exit 1
  fi
  /wrapper/busybox sleep 0.1
done
wait $worker
'''
# Fills the remaining memory of its control group.
HOG = '''
import os, sys, time
with open(os.path.join(sys.argv[1], 'cgroup.procs'), 'w') as group:
    group.write(str(os.getpid()))
kept = []
while True:
    kept.append(b'x' * (4 << 20))
    time.sleep(0.001)
'''


def template(role, memory):
    return {'spec': {'containers': [{
        'name': role, 'resources': {'requests': SMALL[role], 'limits': {'memory': memory}}}]}}


def bit_exact_job(name, steps, workers=2, slow=0.0):
    """A job in which the same steps give the same bits, whatever happens; `slow`: seconds that a worker waits per microbatch."""
    return {
        'apiVersion': 'sluice.dev/v1alpha1',
        'kind': 'TrainingJob',
        'metadata': {'name': name},
        'spec': {
            'model': {'name': 'mlp', 'dimensions': {'hidden': 64}},
            'data': {'format': 'Synthetic', 'synthetic': {'samples': 8192, 'shape': [32], 'classes': 4}},
            'optimizer': {'name': 'Adam', 'learningRate': 0.001},
            'training': {'determinism': 'BitExact', 'globalBatchSize': 64, 'microbatchSize': 8, 'steps': steps, 'seed': 11},
            'debug': {'stepDelaySeconds': slow},
            'coordinator': {'template': template('coordinator', '256Mi')},
            'parameterServer': {'replicas': 2, 'template': template('ps', '256Mi')},
            'worker': {'replicas': workers, 'template': template('worker', '768Mi')},
            'checkpoint': {'storage': {'type': 'PersistentVolumeClaim', 'claimName': 'checkpoints'}, 'intervalSteps': 1000},
            'nodeFailure': {'tolerationSeconds': 2, 'forceDeleteAfterSeconds': 2},
        },
    }


class TrainingCase(NodeCase):

    def apply(self, job):
        job['metadata']['namespace'] = self.namespace
        self.cluster.apply(job)

    def wait_until_succeeded(self, job, seconds=300):
        self.kubectl('wait', f'stj/{job}', '--for=condition=Succeeded', f'--timeout={seconds}s', timeout=seconds + 10)

    def parameters(self, job):
        """The newest parameters: their table and their bytes."""
        return self.exported(job, next(self.directories['checkpoints'].rglob(f'{job}/attempt-*')).parent)

    def exported(self, job, checkpoints):
        newest = sorted(checkpoints.glob('attempt-*'), key=lambda one: int(one.name.rpartition('-')[2]))[-1]
        file = self.cluster.directory / f'{self.namespace}-{job}.safetensors'
        run([images.program('sluice'), 'export', newest, '-o', file])
        content = file.read_bytes()
        begin = 8 + int.from_bytes(content[:8], 'little')
        table = json.loads(content[8:begin])
        table.pop('__metadata__', None)  # the job's identity
        return table, content[begin:]

    def change(self, job, spec):
        self.api.merge('trainingjobs', self.namespace, job, {'spec': spec})

    def suspend(self, job):
        self.change(job, {'suspend': True})
        self.kubectl('wait', f'stj/{job}', '--for=condition=Suspended', '--timeout=60s')

    def assert_equals_undisturbed(self, job):
        """Suspends the job. As many steps of one worker and one shard, without a cluster, must give the same parameters."""
        self.suspend(job)
        steps = self.status(job)['checkpoint']['step']
        state = self.cluster.directory / f'undisturbed-{job}'
        state.mkdir()
        manifest = state / 'job.yaml'
        manifest.write_text(json.dumps(bit_exact_job('undisturbed', steps)))
        run([images.program('sluice'), 'run', manifest, '--workers', '1', '--shards', '1', '--output', 'plain', '--bin-dir', ROOT,
             '--state-dir', state], timeout=300)
        self.assertEqual(self.parameters(job), self.exported('undisturbed', state / 'undisturbed/checkpoints'))

    # ---- faults of workers

    def wrap_workers(self, job):
        """Lets a test end workers of this job with exit code 1."""
        directory = self.directories['datasets']
        shutil.copy('/bin/busybox', directory / 'busybox')
        (directory / 'run.sh').write_text(WRAPPER)
        spec = job['spec']['worker']['template']['spec']
        spec['volumes'] = [{'name': 'wrapper', 'persistentVolumeClaim': {'claimName': 'datasets'}}]
        spec['containers'][0]['volumeMounts'] = [{'name': 'wrapper', 'mountPath': '/wrapper'}]
        spec['containers'][0]['command'] = ['/wrapper/busybox', 'sh', '/wrapper/run.sh', '/usr/bin/sluice-worker']

    def end_with_1(self, pod):
        (self.directories['datasets'] / f'fail-{pod}').touch()

    def container(self, pod):
        return self.pod(pod)['status']['containerStatuses'][0]['containerID'].rpartition('/')[2]

    def kill_inside(self, pod, signal):
        """Kills the pod's process by a signal, from the node."""
        node = int(self.pod(pod)['spec']['nodeName'].rpartition('n')[2])
        socket = self.cluster.directory / f'n{node}/run-containerd/containerd.sock'
        run(['ctr', '-a', socket, '-n', 'k8s.io', 'tasks', 'kill', '-s', signal, self.container(pod)])

    @contextlib.contextmanager
    def memory_taken(self, pod):
        """A process in the pod's container takes all memory of the container, until the end of the block."""
        group = next(one for one in pathlib.Path('/sys/fs/cgroup/memory').rglob(self.container(pod)) if one.is_dir())
        with subprocess.Popen([sys.executable, '-c', HOG, group]) as hog:
            try:
                yield
            finally:
                hog.kill()

    # ---- measurements

    @staticmethod
    def slowness():
        """How much longer than on an idle machine work may take: the number of runnable processes per core."""
        return max(1.0, os.getloadavg()[0] / os.cpu_count())

    def own_start(self, like):
        """How long a pod like that one takes until its program answers, outside any job: it has no coordinator."""
        spec = copy.deepcopy(self.pod(like)['spec'])
        for assigned in ('nodeName', 'hostname', 'subdomain'):
            spec.pop(assigned, None)
        container = spec['containers'][0]
        container['args'] = [re.sub('^--coordinator=.*', '--coordinator=127.0.0.1:1', one) for one in container['args']]
        began = time.monotonic()
        self.api.create('pods', {'metadata': {'name': 'alone'}, 'spec': spec}, self.namespace)
        wait_for('a pod alone answers', lambda: (address := self.pod('alone')['status'].get('podIP')) and
                 scrape(self.cluster, address), every=0.05)
        took = time.monotonic() - began
        self.api.delete('pods', self.namespace, 'alone', grace_seconds=0)
        say(f'a pod like {like}, alone, answers after {took:.1f} s')
        return took

    def assert_within(self, took, seconds, own_start=0.0):
        """Asserts a time of at most the pod's own start plus that many seconds times the machine's load."""
        slowness = self.slowness()
        self.assertLessEqual(took, own_start + seconds * slowness, f'{slowness:.1f} processes want each core')

    def first_contribution(self, pod, before, seconds=90):
        """Waits for the first step of the pod's next instance; returns its time."""
        def next_instance():
            found = self.pod(pod)
            return found if found and found['metadata']['uid'] != before else None
        wait_for(f'{pod} has a successor', next_instance, seconds, every=0.05)
        wait_for(f'the new {pod} contributes', lambda: (self.metric(pod, 'sluice_steps_total') or 0) > 0, seconds, every=0.05)
        return time.monotonic()

    def started(self, pod):
        """When the container of a pod started, to the second."""
        text = self.pod(pod)['status']['containerStatuses'][0]['state']['running']['startedAt']
        return calendar.timegm(time.strptime(text, '%Y-%m-%dT%H:%M:%SZ'))

    def disturb(self, what, job, pod, act, other):
        """Applies a fault to a worker; measures when the replacement contributes, and how long the others pause."""
        before = self.pod(pod)['metadata']['uid']
        progress = Progress(self.cluster, self.address(f'{job}-{other}'), 'sluice_steps_total')
        began, clock = time.monotonic(), time.time()
        act()
        contributed = self.first_contribution(pod, before)
        stopped = progress.longest_stop(began)
        progress.end()
        say(f'{what}: the replacement contributes after {contributed - began:.1f} s (its container began after '
            f'{self.started(pod) - clock:.0f} s); the other worker paused for {stopped:.1f} s')
        return contributed - began, stopped
