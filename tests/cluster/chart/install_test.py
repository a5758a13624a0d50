"""The chart on an API server: installed, upgraded, rolled back, uninstalled; the operator within the rights that it gives, and its metrics."""

import os
import pathlib
import socket
import subprocess
import tempfile
import time
import unittest

import yaml

from helm.sluice import queries
from tests.cluster.testing.cluster import ROOT, Cluster, conditions, wait_for
from tests.monitoring import prometheus
from tools import unittest_main

CHART = ROOT / 'helm/sluice'
ACCOUNT = 'system:serviceaccount:sluice-system:sluice'

JOB = '''
apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: NAME, namespace: default}
spec:
  model: {name: additive, dimensions: {dim: 10}}
  data: {format: Synthetic}
  optimizer: {name: Add}
  training: {steps: 10}
  checkpoint: {storage: {type: Local, path: /scratch}}
  backoffLimit: 1000
'''


class InstallTest(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster())
        cls.api = cls.cluster.api
        cls.cluster.helm('install', 'sluice', CHART, '--namespace', 'sluice-system', '--create-namespace')
        wait_for('the custom resource is established', lambda: conditions(cls.api.get(
            'customresourcedefinitions', None, 'trainingjobs.sluice.dev')).get('Established') == 'True')

    def may(self, verb, resource, group, namespace):
        answer = self.api.request('POST', '/apis/authorization.k8s.io/v1/subjectaccessreviews', {
            'kind': 'SubjectAccessReview', 'apiVersion': 'authorization.k8s.io/v1',
            'spec': {'user': ACCOUNT, 'groups': ['system:serviceaccounts', 'system:authenticated'], 'resourceAttributes': {
                'verb': verb, 'resource': resource.partition('/')[0], 'subresource': resource.partition('/')[2],
                'group': group, 'namespace': namespace}}})
        return answer['status']['allowed']

    def test_the_account_of_the_operator_has_only_the_listed_rights(self):
        rules = yaml.safe_load((ROOT / 'operator/rbac.yaml').read_text())
        verbs = ('get', 'list', 'watch', 'create', 'update', 'patch', 'delete', 'deletecollection')
        for where, namespace in (('jobs', 'default'), ('leader', 'sluice-system')):
            for rule in rules[where]:
                for resource in rule['resources']:
                    for verb in verbs:
                        with self.subTest(verb=verb, resource=resource):
                            self.assertEqual(self.may(verb, resource, rule['apiGroups'][0], namespace), verb in rule['verbs'])
        for resource in ('serviceaccounts', 'nodes', 'namespaces'):
            self.assertFalse(self.may('get', resource, '', 'default'), resource)
        self.assertFalse(self.may('update', 'leases', 'coordination.k8s.io', 'default'))

    def test_editors_of_a_namespace_may_edit_its_jobs(self):
        self.cluster.kubectl('create', 'rolebinding', 'editor', '--clusterrole=edit', '--user=alice', '-n', 'default')
        for verb, resource in (('create', 'stj'), ('patch', 'stj/scale'), ('get', 'stj')):
            wait_for(f'{verb} {resource}', lambda v=verb, r=resource: 'yes' in self.cluster.kubectl(
                'auth', 'can-i', v, r, '--as=alice', '-n', 'default'))

    def test_upgrade_rollback_and_uninstall_do_not_change_jobs(self):
        self.cluster.apply(JOB.replace('NAME', 'stays').replace('spec:', 'spec:\n  suspend: true', 1))
        helm = lambda *arguments: self.cluster.helm(*arguments, '--namespace', 'sluice-system')
        replicas = lambda: self.api.get('deployments', 'sluice-system', 'sluice')['spec']['replicas']
        helm('upgrade', 'sluice', CHART, '--set', 'replicas=3')
        self.assertEqual(replicas(), 3)
        helm('rollback', 'sluice', '1')
        self.assertEqual(replicas(), 2)
        helm('uninstall', 'sluice')
        self.assertEqual(self.api.get('trainingjobs', 'default', 'stays')['spec']['suspend'], True)
        # The custom resource was kept, and a new release adopts it.
        helm('install', 'sluice', CHART)
        self.assertEqual(replicas(), 2)
        self.api.delete('trainingjobs', 'default', 'stays')

    def run_operator(self, directory):
        """Runs the program itself, outside the cluster; returns the address of its metrics."""
        with socket.socket() as free:
            free.bind(('127.0.0.1', 0))
            address = f'127.0.0.1:{free.getsockname()[1]}'
        log = open(directory / 'operator.log', 'wb')
        self.addCleanup(log.close)
        process = subprocess.Popen(
            [ROOT / 'operator/sluice-operator', '--kubeconfig', self.cluster.kubeconfig, '--namespaces', 'default',
             '--leader-elect', '--lease-name', 'queries', '--lease-namespace', 'default', '--metrics-address', address,
             '--server-image', 'none', '--worker-image', 'none'], stdout=log, stderr=log)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        return address

    def take_a_pod_away(self):
        wait_for('a pod', lambda: [one for one in self.api.list('pods', 'default')
                                   if one['metadata']['name'] == 'loses-a-pod-coordinator'], 60)
        self.cluster.kubectl('delete', 'pod', '-n', 'default', 'loses-a-pod-coordinator', '--wait=false', '--ignore-not-found')

    @unittest.skipIf(prometheus.program() is None, 'Debian\'s package prometheus is not there')
    def test_every_query_about_the_operator_finds_data(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        address = self.run_operator(pathlib.Path(directory.name))
        with prometheus.Prometheus(pathlib.Path(directory.name) / 'prometheus') as server:
            server.set_targets({'sluice-operator': [address]})
            server.wait_for('the operator leads', lambda: server.query('sluice_operator_leader == 1'), 60)
            # One job whose pod is deleted, one that does not end in time.
            self.cluster.apply(JOB.replace('NAME', 'loses-a-pod'), JOB.replace('NAME', 'fails') + '  activeDeadlineSeconds: 1\n')
            for name in ('loses-a-pod', 'fails'):
                self.addCleanup(self.api.delete, 'trainingjobs', 'default', name)
            self.take_a_pod_away()
            wait_for('the other has failed', lambda: conditions(self.api.get('trainingjobs', 'default', 'fails')).get(
                'Failed') == 'True', 60)
            wanted = [query for query in queries.all_queries(prometheus.CHART) if queries.is_operators(query)]
            self.assertGreater(len(wanted), 30)
            deadline = time.monotonic() + 60
            while (empty := server.empty_queries(wanted)) and time.monotonic() < deadline:
                # A pod that was gone before the operator had seen it does not count as a failure.
                if any('sluice_operator_pod_failures_total' in query for query in empty):
                    self.take_a_pod_away()
                time.sleep(3)
            self.assertEqual(empty, [])


if __name__ == '__main__':
    os.chdir(ROOT)
    unittest_main.main()
