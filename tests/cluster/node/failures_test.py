"""What a cluster does to pods, done to those of a job on real nodes: it trains on, to the same parameters."""

import json
import re
import time

from tests.cluster.node.node_case import NodeCase
from tests.cluster.testing import images
from tests.cluster.testing.cluster import run, say, wait_for
from tests.cluster.testing.metrics import Progress
from tools import unittest_main

SMALL = {
    'coordinator': {'cpu': '20m', 'memory': '48Mi'},
    'ps': {'cpu': '20m', 'memory': '48Mi'},
    'worker': {'cpu': '50m', 'memory': '128Mi'},
}


def template(role, memory):
    return {'spec': {'containers': [{
        'name': role, 'resources': {'requests': SMALL[role], 'limits': {'memory': memory}}}]}}


def bit_exact_job(name, steps, workers=2):
    """The same steps give the same bits, whatever happens on the way."""
    return {
        'apiVersion': 'sluice.dev/v1alpha1',
        'kind': 'TrainingJob',
        'metadata': {'name': name},
        'spec': {
            'model': {'name': 'mlp', 'dimensions': {'hidden': 64}},
            'data': {'format': 'Synthetic', 'synthetic': {'samples': 8192, 'shape': [32], 'classes': 4}},
            'optimizer': {'name': 'Adam', 'learningRate': 0.001},
            'training': {'determinism': 'BitExact', 'globalBatchSize': 64, 'microbatchSize': 8, 'steps': steps, 'seed': 11},
            'coordinator': {'template': template('coordinator', '256Mi')},
            'parameterServer': {'replicas': 2, 'template': template('ps', '256Mi')},
            'worker': {'replicas': workers, 'template': template('worker', '768Mi')},
            'checkpoint': {'storage': {'type': 'PersistentVolumeClaim', 'claimName': 'checkpoints'}, 'intervalSteps': 2000},
            'nodeFailure': {'tolerationSeconds': 2, 'forceDeleteAfterSeconds': 2},
        },
    }


class FailuresTest(NodeCase):

    STEPS = 12000

    def apply(self, job):
        job['metadata']['namespace'] = self.namespace
        self.cluster.apply(job)

    def parameters(self, job):
        """The final parameters: their table and their bytes."""
        folder = next(self.folders['checkpoints'].rglob(f'{job}/attempt-*')).parent
        newest = sorted(folder.glob('attempt-*'))[-1]
        file = self.cluster.folder / f'{self.namespace}-{job}.safetensors'
        run([images.program('sluice'), 'export', newest, '-o', file])
        content = file.read_bytes()
        begin = 8 + int.from_bytes(content[:8], 'little')
        table = json.loads(content[8:begin])
        table.pop('__metadata__', None)  # whose they are
        return table, content[begin:]

    def first_contribution(self, pod, before, seconds=90):
        """Waits for the first step of the pod's next life; when its container began, and when it contributed."""
        def next_life():
            found = self.pod(pod)
            return found if found and found['metadata']['uid'] != before else None
        wait_for(f'{pod} has a successor', next_life, seconds, every=0.05)
        wait_for(f'the new {pod} contributes', lambda: (self.metric(pod, 'sluice_steps_total') or 0) > 0, seconds, every=0.05)
        return time.monotonic()

    def disturb(self, what, job, pod, act, other):
        """Does it to a worker; times from the event to the replacement's first contribution, and of the others' stop."""
        before = self.pod(pod)['metadata']['uid']
        progress = Progress(self.cluster, self.address(f'{job}-{other}'), 'sluice_steps_total')
        began = time.monotonic()
        act()
        contributed = self.first_contribution(pod, before)
        stopped = progress.longest_stop(began)
        progress.end()
        say(f'{what}: the replacement contributes after {contributed - began:.1f} s; the other worker stood for {stopped:.1f} s')
        return contributed - began, stopped

    def kill_inside(self, pod, signal):
        """The pod's process dies by a signal, as the node sees it."""
        node = int(self.pod(pod)['spec']['nodeName'].rpartition('n')[2])
        container = self.pod(pod)['status']['containerStatuses'][0]['containerID'].rpartition('/')[2]
        socket = self.cluster.folder / f'n{node}/run-containerd/containerd.sock'
        run(['ctr', '-a', socket, '-n', 'k8s.io', 'tasks', 'kill', '-s', signal, container])

    def test_workers_that_die_are_replaced_and_nothing_is_lost(self):
        self.apply(bit_exact_job('disturbed', self.STEPS))
        self.wait_for_steps('disturbed', 200)
        worker = 'disturbed-worker-1'
        times = {
            'deleted': self.disturb('pod deleted', 'disturbed', worker, lambda: self.kubectl(
                'delete', 'pod', worker, '--wait=false'), 'worker-0'),
            'killed': self.disturb('killed (137)', 'disturbed', worker, lambda: self.kill_inside(worker, 'SIGKILL'), 'worker-0'),
        }
        status = self.status('disturbed')
        self.assertEqual(status['lastFailures'][0]['exitCode'], 137)
        self.wait_until_succeeded('disturbed')
        self.apply(bit_exact_job('undisturbed', self.STEPS))
        self.wait_until_succeeded('undisturbed')
        self.assertEqual(self.parameters('disturbed'), self.parameters('undisturbed'))
        for what, (replaced, stopped) in times.items():
            with self.subTest(what):
                self.assertLess(replaced, 25)
                self.assertLess(stopped, 10)

    def wait_until_succeeded(self, job, seconds=300):
        try:
            self.kubectl('wait', f'stj/{job}', '--for=condition=Succeeded', f'--timeout={seconds}s', timeout=seconds + 10)
        except BaseException:
            self.show(job)
            raise

    def test_a_shard_and_the_coordinator_are_replaced_in_a_new_attempt(self):
        self.apply(bit_exact_job('job', self.STEPS))
        self.wait_for_steps('job', 2200)  # there is a checkpoint
        attempt = self.status('job').get('attempt', 1)
        for pod in ('job-ps-1', 'job-coordinator'):
            before = self.pod(pod)['metadata']['uid']
            began = time.monotonic()
            self.kubectl('delete', 'pod', pod, '--wait=false', '--grace-period=1')
            wait_for(f'{pod} has a successor', lambda: (self.pod(pod) or {'metadata': {'uid': before}})['metadata']['uid'] != before, 60)
            attempt += 1
            wait_for('it trains in a new attempt', lambda: self.metric('job-coordinator', 'sluice_attempt') == attempt and
                     (self.metric('job-worker-0', 'sluice_member') or 0) > 0, 90)
            here = self.metric('job-coordinator', 'sluice_step') or 0
            wait_for('steps go on', lambda: (self.metric('job-coordinator', 'sluice_step') or 0) > here, 30)
            say(f'{pod} deleted: steps go on after {time.monotonic() - began:.1f} s')
            wait_for('the status has the attempt', lambda: self.status('job').get('attempt') == attempt, 60)
        self.wait_until_succeeded('job')

    def test_a_worker_that_needs_too_much_memory_is_told_so(self):
        job = bit_exact_job('hungry', self.STEPS, workers=1)
        job['spec']['worker']['template'] = template('worker', '24Mi')
        job['spec']['worker']['template']['spec']['containers'][0]['resources']['requests']['memory'] = '24Mi'
        self.apply(job)
        failure = wait_for('the death is told', lambda: self.status('hungry').get('lastFailures'), 60)[0]
        self.assertEqual((failure['reason'], failure['role']), ('OOMKilled', 'worker'))
        self.assertIn('memory', failure['message'] + self.kubectl('describe', 'stj', 'hungry'))

    def test_workers_and_shards_scale_while_training(self):
        self.apply(bit_exact_job('scaled', 40000))
        self.wait_for_steps('scaled', 200)
        for replicas in (4, 1):
            self.kubectl('scale', 'stj/scaled', f'--replicas={replicas}')
            wait_for(f'{replicas} workers are members', lambda: len([name for name in self.pods('scaled') if '-worker-' in name and
                     self.metric(name, 'sluice_member') == 1]) == replicas, 90)
            wait_for('no more are there', lambda: len([name for name in self.pods('scaled') if '-worker-' in name]) == replicas, 60)
        for shards in (3, 2):
            self.api.merge('trainingjobs', self.namespace, 'scaled', {'spec': {'parameterServer': {'replicas': shards}}})
            wait_for(f'{shards} shards serve', lambda: len([name for name in self.pods('scaled') if re.search('-ps-', name) and
                     self.is_ready(name)]) == shards and self.status('scaled').get('summary') == 'Training', 120)
            here = self.metric('scaled-coordinator', 'sluice_step') or 0
            wait_for('steps go on', lambda: (self.metric('scaled-coordinator', 'sluice_step') or 0) > here, 60)
        self.kubectl('delete', 'stj', 'scaled')

    def test_a_node_without_power_costs_its_pods_a_new_place(self):
        job = bit_exact_job('power', 60000)
        for role in ('coordinator', 'parameterServer'):
            job['spec'][role]['template']['spec']['nodeSelector'] = {'kubernetes.io/hostname': f'{self.cluster.name}-n1'}
        job['spec']['worker']['template']['spec']['topologySpreadConstraints'] = [{
            'maxSkew': 1, 'topologyKey': 'kubernetes.io/hostname', 'whenUnsatisfiable': 'ScheduleAnyway',
            'labelSelector': {'matchLabels': {'sluice.dev/training-job': 'power', 'sluice.dev/role': 'worker'}}}]
        self.apply(job)
        self.wait_for_steps('power', 200)
        on = {name: pod['spec']['nodeName'].rpartition('n')[2] for name, pod in self.pods('power').items() if '-worker-' in name}
        self.assertEqual(sorted(on.values()), ['1', '2'])
        victim, other = sorted(on, key=on.get, reverse=True)
        try:
            replaced, stopped = self.disturb('node without power', 'power', victim,
                                             lambda: self.cluster.script('node-power.sh', 2, 'off'), other[len('power-'):])
        finally:
            self.cluster.script('node-power.sh', 2, 'on')
        self.assertLess(replaced, 60)
        self.assertLess(stopped, 15)
        self.kubectl('delete', 'stj', 'power')


if __name__ == '__main__':
    unittest_main.main()
