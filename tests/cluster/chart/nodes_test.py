"""From nothing to a trained job, as the page on Kubernetes tells it: the chart, its own test, the first sample."""

import unittest

from tests.cluster.testing import images
from tests.cluster.testing.cluster import ROOT, Cluster, conditions, say, wait_for
from tools import unittest_main

CHART = ROOT / 'helm/sluice'
SAMPLE = ROOT / 'k8s/samples/first-job.yaml'
NAMESPACE = 'sluice-system'


class NodesTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        archives = images.build('sluice-operator', 'sluice-server', 'sluice-worker', 'sluice-worker-python')
        cls.cluster = cls.enterClassContext(Cluster(nodes=1, images=archives))
        cls.api = cls.cluster.api
        cls.api.create('namespaces', {'metadata': {'name': NAMESPACE, 'labels': {
            'pod-security.kubernetes.io/enforce': 'restricted'}}})
        cls.cluster.helm('install', 'sluice', CHART, '--namespace', NAMESPACE, '--set',
                         f'image.registry={images.PREFIX.rstrip("/")},image.tag={images.TAG},image.pullPolicy=Never',
                         '--wait', '--timeout', '3m', timeout=200)
        say('the chart is installed, both replicas are ready')

    def test_helm_test_trains_a_tiny_job(self):
        said = self.cluster.helm('test', 'sluice', '--namespace', NAMESPACE, '--logs', '--timeout', '5m', timeout=320)
        self.assertIn('Succeeded', said)
        self.assertIn('step 20', said)
        wait_for('its job is gone', lambda: self.api.list('trainingjobs', NAMESPACE) == [])

    def test_the_first_sample_trains_to_its_end(self):
        with self.cluster.namespace({'pod-security.kubernetes.io/enforce': 'restricted'}) as namespace:
            self.cluster.kubectl('apply', '-n', namespace, '-f', SAMPLE)
            try:
                self.cluster.kubectl('wait', '-n', namespace, '--for=condition=Succeeded', 'stj/first-job',
                                     '--timeout=400s', timeout=420)
            except Exception:
                say(self.cluster.kubectl('describe', '-n', namespace, 'stj,pods'))
                raise
            say(self.cluster.kubectl('get', '-n', namespace, 'stj', '-o', 'wide'))
            status = self.api.get('trainingjobs', namespace, 'first-job')['status']
            self.assertEqual(status['training']['step'], 2000)
            self.assertRegex(status['training']['metric'], r'^accuracy \d+\.\d\d %$')
            self.assertEqual(status['checkpoint']['step'], 2000)
            self.assertEqual(status.get('restarts', {}).get('total', 0), 0, status)
            self.assertEqual(conditions({'status': status})['Failed'], 'False')


if __name__ == '__main__':
    unittest_main.main()
