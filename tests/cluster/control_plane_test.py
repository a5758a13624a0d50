"""Tests the features of the test cluster that other tests rely on, with simulated nodes only."""

import unittest

from tests.cluster.testing.cluster import Cluster, wait_for
from tools import unittest_main

TOLERATIONS = [{'key': 'kwok.x-k8s.io/node', 'operator': 'Exists'}]


def pod(name, annotations=None):
    return {
        'apiVersion': 'v1',
        'kind': 'Pod',
        'metadata': {'name': name, 'annotations': annotations or {}},
        'spec': {
            'restartPolicy': 'Never',
            'tolerations': TOLERATIONS,
            'containers': [{'name': 'main', 'image': 'none'}],
        },
    }


class ControlPlaneTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster(simulated=3))
        cls.api = cls.cluster.api

    def setUp(self):
        self.namespace = self.enterContext(self.cluster.namespace())

    def create(self, name, **annotations):
        self.api.create('pods', pod(name, {f'fault.test/{key.replace("_", "-")}': value for key, value in annotations.items()}),
                        self.namespace)

    def phase(self, name):
        found = self.api.get('pods', self.namespace, name)
        return found and found['status'].get('phase')

    def wait_for_phase(self, name, phase):
        wait_for(f'{name} is {phase}', lambda: self.phase(name) == phase)

    def test_pods_run_on_simulated_nodes_and_are_gone_when_deleted(self):
        self.create('plain')
        self.wait_for_phase('plain', 'Running')
        self.assertTrue(self.api.get('pods', self.namespace, 'plain')['status']['podIP'].startswith('10.245.'))
        self.api.delete('pods', self.namespace, 'plain')
        wait_for('the pod is gone', lambda: self.phase('plain') is None)

    def test_annotations_make_pods_fail(self):
        self.create('killed')
        self.wait_for_phase('killed', 'Running')
        self.api.merge('pods', self.namespace, 'killed', {'metadata': {'annotations': {
            'fault.test/exit-code': '137', 'fault.test/reason': 'OOMKilled'}}})
        self.wait_for_phase('killed', 'Failed')
        ended = self.api.get('pods', self.namespace, 'killed')['status']['containerStatuses'][0]['state']['terminated']
        self.assertEqual((ended['exitCode'], ended['reason']), (137, 'OOMKilled'))

        self.create('stuck', stuck='pending')
        wait_for('it is scheduled', lambda: self.api.get('pods', self.namespace, 'stuck')['spec'].get('nodeName'))
        self.assertEqual(self.phase('stuck'), 'Pending')

    def test_a_node_without_its_kubelet_is_reported_as_lost(self):
        self.create('victim')
        self.wait_for_phase('victim', 'Running')
        node = self.api.get('pods', self.namespace, 'victim')['spec']['nodeName']
        ready = lambda: [one['status'] for one in self.api.get('nodes', None, node)['status']['conditions']
                         if one['type'] == 'Ready'][0]
        self.cluster.kubectl('label', 'node', node, 'kwok-')
        wait_for('the node is unknown', lambda: ready() == 'Unknown', 60)
        self.cluster.kubectl('label', 'node', node, 'kwok=up')
        wait_for('the node is ready again', lambda: ready() == 'True', 60)

    def test_state_outlives_a_restart_of_the_api_server(self):
        self.create('kept')
        self.wait_for_phase('kept', 'Running')
        before = self.cluster.process('apiserver')
        self.cluster.script('down.sh', 'process', 'apiserver')
        self.cluster.script('up-control-plane.sh')
        self.assertNotEqual(self.cluster.process('apiserver'), before)
        self.assertEqual(self.phase('kept'), 'Running')

    def test_the_audit_log_names_the_user_of_each_write(self):
        position = self.cluster.audit_position()
        self.create('written')
        self.api.list('pods', self.namespace)
        wait_for('the write is in the log', lambda: self.cluster.writes('admin', position))
        # The simulated kubelet, which is the same user, may have reported the pod's status already.
        written = [one for one in self.cluster.writes('admin', position) if 'subresource' not in one['objectRef']]
        self.assertEqual([(one['verb'], one['objectRef']['resource']) for one in written], [('create', 'pods')])


if __name__ == '__main__':
    unittest_main.main()
