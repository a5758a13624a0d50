"""Jobs that change while they train on real nodes: they are scaled, switch their mode, and are suspended."""

import re

from tests.cluster.node.node_case import SAMPLES
from tests.cluster.node.training_case import ENDLESS, TrainingCase, bit_exact_job
from tests.cluster.testing.cluster import say, wait_for
from tools import unittest_main


class ElasticTest(TrainingCase):

    def step(self, job):
        return self.metric(f'{job}-coordinator', 'sluice_step') or 0

    def wait_for_more_steps(self, job):
        here = self.step(job)
        return wait_for('steps continue', lambda: max(0, self.step(job) - here), 90)

    def count(self, job, role, there=lambda name: True):
        return len([name for name in self.pods(job) if re.search(f'-{role}-', name) and there(name)])

    def assert_never_failed(self, job):
        status = self.status(job)
        self.assertEqual(status.get('restarts', {}).get('total', 0), 0, status)
        self.assertEqual(status.get('lastFailures', []), [])

    def test_workers_and_shards_scale_while_training_to_the_same_parameters(self):
        job = bit_exact_job('scaled', ENDLESS, slow=0.005)
        job['spec']['parameterServer']['replicas'] = 1
        self.apply(job)
        self.wait_for_steps('scaled', 200)
        for replicas in (6, 1):
            self.kubectl('scale', 'stj/scaled', f'--replicas={replicas}')
            wait_for(f'{replicas} workers are members', lambda: self.count(
                'scaled', 'worker', lambda name: self.metric(name, 'sluice_member') == 1) == replicas, 120)
            wait_for('no more are there', lambda: self.count('scaled', 'worker') == replicas, 60)
            self.wait_for_more_steps('scaled')
        for shards in (3, 2):
            before = self.step('scaled')
            self.change('scaled', {'parameterServer': {'replicas': shards}})
            wait_for(f'{shards} shards serve', lambda: self.count('scaled', 'ps', self.is_ready) == shards and self.count(
                'scaled', 'ps') == shards and self.status('scaled').get('summary') == 'Training', 120)
            self.wait_for_more_steps('scaled')
            self.assertGreaterEqual(self.step('scaled'), before, 'no step is lost')
        say(f'2, 6 and 1 workers, 1, 3 and 2 shards by step {self.step("scaled"):.0f}')
        self.assert_never_failed('scaled')
        self.assert_equals_undisturbed('scaled')

    def test_a_suspended_job_continues_at_the_same_sample(self):
        self.apply(bit_exact_job('pausing', ENDLESS, slow=0.002))
        self.wait_for_steps('pausing', 500)
        self.suspend('pausing')
        wait_for('no pod is left', lambda: not self.api.list('pods', self.namespace))
        saved = self.status('pausing')['checkpoint']['step']
        self.assertGreaterEqual(saved, 500)
        self.change('pausing', {'suspend': False})
        self.kubectl('wait', 'stj/pausing', '--for=condition=Running', '--timeout=60s')
        self.wait_for_steps('pausing', saved + 500)
        self.assertEqual(self.status('pausing')['checkpoint']['restoredFromStep'], saved)
        self.assert_never_failed('pausing')
        self.assert_equals_undisturbed('pausing')

    def warnings(self):
        """Warning events, without those about a machine that is too slow for the cluster itself."""
        found = [(one['reason'], one['regarding']['name'], one.get('note', '')) for one in self.api.list('events', self.namespace)
                 if one['type'] == 'Warning']
        # The kubelet's caches and the API server's graph of pods and nodes lag behind.
        lags = ('cache: timed out waiting for the condition', 'no relationship found between node')
        slow = [one for one in found if any(words in one[2] for words in lags) or
                (self.slowness() > 2 and one[2].startswith('Startup probe failed') and 'refused' in one[2])]
        for one in slow:
            say(f'not counted: {one}')
        return [one for one in found if one not in slow]

    # A kubelet reports each probe that fails, also of a container that has ended; and for a second or two after the end
    # of its containers, a pod's phase is Running.
    def test_a_normal_life_has_no_warning_event_and_leaves_the_logs(self):
        self.apply(bit_exact_job('calm', ENDLESS, slow=0.005))
        self.kubectl('apply', '-f', SAMPLES / 'first-job.yaml')
        self.kubectl('wait', 'stj/first-job', '--for=condition=Succeeded', '--timeout=600s', timeout=610)
        self.kubectl('wait', 'stj/calm', '--for=condition=Ready', '--timeout=120s', timeout=130)
        for replicas in (4, 1):
            self.kubectl('scale', 'stj/calm', f'--replicas={replicas}')
            wait_for(f'{replicas} workers are ready', lambda: self.count('calm', 'worker', self.is_ready) == replicas and self.count(
                'calm', 'worker') == replicas, 120)
        self.suspend('calm')
        self.change('calm', {'suspend': False})
        self.kubectl('wait', 'stj/calm', '--for=condition=Ready', '--timeout=120s', timeout=130)
        self.wait_for_more_steps('calm')
        self.suspend('calm')
        self.kubectl('delete', 'stj', 'calm')
        self.assertEqual(self.warnings(), [])
        phases = {name: pod['status']['phase'] for name, pod in self.pods('first-job').items()}
        self.assertEqual(set(phases.values()), {'Succeeded'})
        self.assertEqual(len(phases), 5)
        self.assertIn('Coordinator exits', self.kubectl('logs', 'first-job-coordinator', '--tail=1'))

    def test_the_mode_is_switched_while_training(self):
        job = bit_exact_job('switching', ENDLESS, slow=0.005)
        job['spec']['training']['determinism'] = 'Default'
        self.apply(job)
        self.wait_for_steps('switching', 500)
        for mode in ('Asynchronous', 'Synchronous'):
            before = self.step('switching')
            self.change('switching', {'training': {'mode': mode}})
            wait_for(f'it trains in mode {mode}', lambda m=mode: self.status('switching')['recovery']['mode'] == m and
                     self.status('switching')['summary'] == 'Training', 120)
            self.wait_for_more_steps('switching')
            self.assertGreaterEqual(self.step('switching'), before, 'no step is lost')
            config = self.api.get('configmaps', self.namespace, 'switching')['data']['job.json']
            self.assertIn(f'"{mode}"', config)
        self.assert_never_failed('switching')
        self.kubectl('delete', 'stj', 'switching')


if __name__ == '__main__':
    unittest_main.main()
