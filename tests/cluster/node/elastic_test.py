"""Jobs that change while they train on real nodes: they are scaled, switch their mode, and are suspended."""

import re

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
            self.assertIn(f'"{mode.upper()}"', config)
        self.assert_never_failed('switching')
        self.kubectl('delete', 'stj', 'switching')


if __name__ == '__main__':
    unittest_main.main()
