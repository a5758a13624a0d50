"""What a cluster does to pods, done to those of a job on real nodes: it trains on."""

import re
import time

from tests.cluster.node.node_case import NodeCase
from tests.cluster.testing.cluster import say, wait_for
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


if __name__ == '__main__':
    unittest_main.main()
