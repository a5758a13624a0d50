"""Two more ways to install: for listed namespaces, and without Helm. //tests/cluster/chart has the rest."""

import json
import unittest

from tests.cluster.testing.api_client import path_of
from tests.cluster.testing.cluster import ROOT, Cluster, CommandFailed, say, wait_for
from tools import unittest_main

CHART = ROOT / 'helm/sluice'
ON_SIMULATED_NODES = json.dumps({
    'nodeSelector': {'type': 'kwok'},
    'tolerations': [{'key': 'kwok.x-k8s.io/node', 'operator': 'Exists'}],
})
JOB = '''
apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: kept, namespace: default}
spec:
  model: {name: mlp}
  data: {format: Synthetic, synthetic: {samples: 4096, shape: [16], classes: 4}}
  optimizer: {name: SGD}
  training: {steps: 100}
  parameterServer: {replicas: 1}
  worker: {replicas: 1}
'''


class ChartTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster(simulated=2))
        cls.api = cls.cluster.api
        cls.values = cls.cluster.directory / 'values.yaml'
        cls.values.write_text(ON_SIMULATED_NODES)

    def install(self, *values):
        self.cluster.helm('install', 'sluice', CHART, '--namespace', 'system', '--create-namespace', '-f', self.values,
                          '--wait', '--timeout', '1m', *values)
        self.addCleanup(self.uninstall)

    def uninstall(self):
        self.cluster.helm('uninstall', 'sluice', '--namespace', 'system', '--wait', '--timeout', '1m')
        self.cluster.kubectl('delete', 'crd', 'trainingjobs.sluice.dev', '--wait')

    def can(self, verb, resource, namespace):
        try:
            return self.cluster.kubectl('auth', 'can-i', verb, resource, '-n', namespace, '--as',
                                        'system:serviceaccount:system:sluice').strip() == 'yes'
        except CommandFailed as failed:
            self.assertIn('no', failed.output)
            return False

    def test_with_listed_namespaces_it_has_no_rights_elsewhere(self):
        self.cluster.kubectl('create', 'namespace', 'team-a')
        self.install('--set', 'watchNamespaces={team-a}')
        self.assertTrue(self.can('create', 'pods', 'team-a'))
        self.assertFalse(self.can('create', 'pods', 'default'))

    def test_plain_manifests_install_alike_with_server_side_and_client_side_apply(self):
        for flags in ('--server-side',), ():
            with self.subTest(flags=flags):
                try:
                    self.install_plain(flags)
                finally:
                    self.cluster.kubectl('delete', '-f', ROOT / 'k8s/sluice.yaml', '--ignore-not-found', '--wait')

    def install_plain(self, flags):
        self.cluster.kubectl('apply', *flags, '-f', ROOT / 'k8s/sluice.yaml')
        wait_for('the resource is served', lambda: self.api.request('GET', path_of('trainingjobs')))
        namespace = next(one['metadata']['namespace'] for one in self.api.request(
            'GET', '/apis/apps/v1/deployments')['items'])
        say(f'installed into {namespace}')
        wait_for('jobs can be made', lambda: self.cluster.apply(JOB))


if __name__ == '__main__':
    unittest_main.main()
