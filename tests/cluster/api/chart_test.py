"""The chart on a real API server: installed, upgraded, rolled back, taken away. Its pods are simulated."""

import json
import unittest

import yaml

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
        cls.values = cls.cluster.folder / 'values.yaml'
        cls.values.write_text(ON_SIMULATED_NODES)

    def helm(self, *arguments):
        return self.cluster.helm(*arguments, '--namespace', 'system')

    def install(self, *values):
        self.helm('install', 'sluice', CHART, '--create-namespace', '-f', self.values, '--wait', '--timeout', '1m', *values)
        self.addCleanup(self.uninstall)

    def uninstall(self):
        try:
            self.helm('uninstall', 'sluice', '--wait', '--timeout', '1m')
        except CommandFailed as failed:
            if 'not found' not in failed.error:
                raise
        self.cluster.kubectl('delete', 'crd', 'trainingjobs.sluice.dev', '--ignore-not-found', '--wait')

    def replicas(self):
        return self.api.get('deployments', 'system', 'sluice')['spec']['replicas']

    def can(self, verb, resource, namespace):
        resource, _, subresource = resource.partition('/')
        try:
            return self.cluster.kubectl('auth', 'can-i', verb, resource, f'--subresource={subresource}', '-n', namespace,
                                        '--as', 'system:serviceaccount:system:sluice').strip() == 'yes'
        except CommandFailed as failed:
            self.assertIn('no', failed.output)
            return False

    def test_it_is_upgraded_rolled_back_and_taken_away_and_jobs_stay(self):
        self.install('--set', 'replicas=1')
        self.assertEqual(self.replicas(), 1)
        wait_for('jobs can be made', lambda: self.cluster.apply(JOB))
        self.helm('upgrade', 'sluice', CHART, '-f', self.values, '--set', 'replicas=2', '--wait', '--timeout', '1m')
        self.assertEqual(self.replicas(), 2)
        self.assertEqual(len(self.api.list('poddisruptionbudgets', 'system')), 1)
        self.helm('rollback', 'sluice', '1', '--wait', '--timeout', '1m')
        self.assertEqual(self.replicas(), 1)
        uid = self.api.get('trainingjobs', 'default', 'kept')['metadata']['uid']
        self.helm('uninstall', 'sluice', '--wait', '--timeout', '1m')
        self.assertEqual(self.api.list('deployments', 'system'), [])
        # With the resource would go every job.
        self.assertEqual(self.api.get('trainingjobs', 'default', 'kept')['metadata']['uid'], uid)
        # And a new installation takes over what stayed.
        self.install('--take-ownership')
        self.assertEqual(self.api.get('trainingjobs', 'default', 'kept')['metadata']['uid'], uid)

    def test_its_account_may_do_what_the_operator_does_and_no_more(self):
        self.install()
        for rule in yaml.safe_load((ROOT / 'operator/rbac.yaml').read_text())['jobs']:
            for resource in rule['resources']:
                name, _, subresource = resource.partition('/')
                full = f'{name}.{rule["apiGroups"][0]}' if rule['apiGroups'][0] else name
                if subresource:
                    full += f'/{subresource}'
                with self.subTest(resource):
                    for verb in rule['verbs']:
                        self.assertTrue(self.can(verb, full, 'default'), f'{verb} {full}')
        for verb, resource in [('get', 'secrets'), ('list', 'nodes'), ('create', 'pods/exec'), ('delete', 'services'),
                               ('update', 'trainingjobs.sluice.dev'), ('get', 'leases.coordination.k8s.io')]:
            with self.subTest(f'not {verb} {resource}'):
                self.assertFalse(self.can(verb, resource, 'default'))
        self.assertTrue(self.can('update', 'leases.coordination.k8s.io', 'system'))

    def test_with_listed_namespaces_it_has_no_rights_elsewhere(self):
        self.cluster.kubectl('create', 'namespace', 'team-a')
        self.install('--set', 'watchNamespaces={team-a}')
        self.assertTrue(self.can('create', 'pods', 'team-a'))
        self.assertFalse(self.can('create', 'pods', 'default'))

    def test_apis_that_the_cluster_lacks_are_left_out(self):
        self.install('--set', 'monitoring.podMonitor.enabled=true,monitoring.prometheusRule.enabled=true')
        self.assertNotIn('PodMonitor', self.helm('get', 'manifest', 'sluice'))

    def test_plain_manifests_install_the_same(self):
        self.addCleanup(self.cluster.kubectl, 'delete', '-f', ROOT / 'k8s/sluice.yaml', '--ignore-not-found', '--wait')
        self.cluster.kubectl('apply', '--server-side', '-f', ROOT / 'k8s/sluice.yaml')
        wait_for('the resource is served', lambda: self.api.request('GET', path_of('trainingjobs')))
        namespace = next(one['metadata']['namespace'] for one in self.api.request(
            'GET', '/apis/apps/v1/deployments')['items'])
        say(f'installed into {namespace}')
        wait_for('jobs can be made', lambda: self.cluster.apply(JOB))


if __name__ == '__main__':
    unittest_main.main()
