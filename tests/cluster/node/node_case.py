"""The base of tests on real nodes: two nodes, the images, and the chart."""

import unittest

from tests.cluster.testing import images, volumes
from tests.cluster.testing.cluster import ROOT, Cluster, conditions, has_failed, say, wait_for
from tests.cluster.testing.metrics import scrape
from tests.cluster.testing.operator_process import NAMESPACE, RELEASE

SAMPLES = ROOT / 'k8s/samples'


class NodeCase(unittest.TestCase):

    IMAGES = ('sluice-operator', 'sluice-server', 'sluice-worker')

    @classmethod
    def setUpClass(cls):
        archives = images.build(*cls.IMAGES)
        cls.cluster = cls.enterClassContext(Cluster(nodes=2, images=archives))
        cls.api = cls.cluster.api
        cls.install()
        say('the chart is installed, its operators are ready')

    @classmethod
    def install(cls):
        try:
            cls.cluster.helm('install', RELEASE, ROOT / 'helm/sluice', '--namespace', NAMESPACE, '--create-namespace', '--set',
                             f'image.registry={images.PREFIX.rstrip("/")},image.tag={images.TAG},image.pullPolicy=Never',
                             '--wait', '--timeout', '5m', timeout=330)
        except BaseException:
            cls.cluster.show_pods(NAMESPACE)
            raise

    def setUp(self):
        self.namespace = self.enterContext(
            self.cluster.namespace({'pod-security.kubernetes.io/enforce': 'restricted'}))
        self.directories = {}
        for claim in ('datasets', 'checkpoints'):
            self.directories[claim] = volumes.provide(self.cluster, self.namespace, claim)
            self.addCleanup(volumes.remove, self.cluster, self.namespace, claim)
        self.kubectl('apply', '-f', SAMPLES / 'claims.yaml')
        for claim in ('datasets', 'checkpoints'):
            volumes.wait_until_bound(self.cluster, self.namespace, claim)
        self.addCleanup(self.show_if_failed)

    def show_if_failed(self):
        if has_failed(self):
            say(self.kubectl('describe', 'stj'))
            self.cluster.show_pods(self.namespace)
            self.cluster.show_pods(NAMESPACE, lines=40)

    def kubectl(self, *arguments, **more):
        return self.cluster.kubectl('-n', self.namespace, *arguments, **more)

    def job(self, name):
        return self.api.get('trainingjobs', self.namespace, name)

    def status(self, name):
        return self.job(name).get('status', {})

    def pod(self, name):
        return self.api.get('pods', self.namespace, name)

    def pods(self, job):
        return {pod['metadata']['name']: pod for pod in self.api.list(
            'pods', self.namespace, f'sluice.dev/training-job={job}') if 'deletionTimestamp' not in pod['metadata']}

    def is_ready(self, name):
        pod = self.pod(name)
        return pod is not None and conditions(pod).get('Ready') == 'True'

    def address(self, name):
        return self.pod(name)['status']['podIP']

    def metric(self, pod, name):
        """None if the pod does not answer."""
        found = self.pod(pod)
        address = (found or {}).get('status', {}).get('podIP')
        return scrape(self.cluster, address).get(name) if address else None

    def attempt(self, job):
        """Waits for it: a coordinator that has just started does not report it yet."""
        return wait_for(f'the coordinator of {job} knows the attempt', lambda: self.metric(f'{job}-coordinator', 'sluice_attempt'))

    def wait_for_steps(self, job, steps, seconds=120):
        wait_for(f'{job} is at step {steps}', lambda: (self.metric(f'{job}-coordinator', 'sluice_step') or 0) >= steps, seconds)
