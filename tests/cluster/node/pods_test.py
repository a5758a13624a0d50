"""The images on real nodes, without an operator: pods written by hand train a job."""

import unittest

from tests.cluster.testing import images
from tests.cluster.testing.cluster import Cluster, has_failed, run, say, wait_for
from tools import unittest_main

JOB = '''
apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: by-hand, namespace: %s}
spec:
  model: {name: mlp, dimensions: {hidden: 64}}
  data: {format: Synthetic, synthetic: {samples: 4096, shape: [16], classes: 4}}
  optimizer: {name: SGD, learningRate: 0.05}
  training: {globalBatchSize: 32, steps: 2000, seed: 3}
  parameterServer: {replicas: 2}
  worker: {replicas: 2}
'''
# The requirements of the most restrictive namespaces.
POD_SECURITY = {'runAsNonRoot': True, 'runAsUser': 65532, 'seccompProfile': {'type': 'RuntimeDefault'}}
CONTAINER_SECURITY = {
    'allowPrivilegeEscalation': False,
    'readOnlyRootFilesystem': True,
    'capabilities': {'drop': ['ALL']},
}


def pod(name, image, command, *, role='', node=None, volumes=()):
    return {
        'apiVersion': 'v1',
        'kind': 'Pod',
        'metadata': {'name': name, 'labels': {'role': role}},
        'spec': {
            'restartPolicy': 'Never',
            'terminationGracePeriodSeconds': 5,
            'automountServiceAccountToken': False,
            'enableServiceLinks': False,
            'securityContext': POD_SECURITY,
            **({'nodeName': node} if node else {}),
            'containers': [{
                'name': 'main',
                'image': images.reference(image),
                'imagePullPolicy': 'Never',
                'command': command,
                'env': [{'name': 'POD_IP', 'valueFrom': {'fieldRef': {'fieldPath': 'status.podIP'}}}],
                'securityContext': CONTAINER_SECURITY,
                'resources': {'requests': {'cpu': '50m', 'memory': '64Mi'}, 'limits': {'memory': '512Mi'}},
                'volumeMounts': [{'name': volume, 'mountPath': path} for volume, path, _ in volumes],
                **({'readinessProbe': {'httpGet': {'path': '/readyz', 'port': 9090}, 'periodSeconds': 1}} if role else {}),
            }],
            'volumes': [{'name': volume, **source} for volume, _, source in volumes],
        },
    }


class PodsTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        archives = images.build('sluice-server', 'sluice-worker')
        cls.cluster = cls.enterClassContext(Cluster(nodes=2, images=archives))
        cls.api = cls.cluster.api

    def setUp(self):
        self.namespace = self.enterContext(
            self.cluster.namespace({'pod-security.kubernetes.io/enforce': 'restricted'}))
        self.addCleanup(self.show_if_failed)

    def show_if_failed(self):
        if has_failed(self):
            self.cluster.show_pods(self.namespace)

    def phase(self, name):
        return self.api.get('pods', self.namespace, name)['status'].get('phase')

    def logs(self, name):
        return self.cluster.kubectl('logs', '-n', self.namespace, name)

    def wait_for_end(self, name, seconds):
        wait_for(f'{name} ends', lambda: self.ended(name), seconds)
        self.assertEqual(self.phase(name), 'Succeeded', self.logs(name))

    def ended(self, name):
        return self.phase(name) in ('Succeeded', 'Failed')

    def test_every_program_runs_without_rights_and_with_a_read_only_root(self):
        cases = [('sluice-server', 'sluice'), ('sluice-server', 'sluice-coordinator'), ('sluice-server', 'sluice-ps'),
                 ('sluice-worker', 'sluice-worker')]
        for image, program in cases:
            self.api.create('pods', pod(program, image, [f'/usr/bin/{program}', '--version']), self.namespace)
        for image, program in cases:
            with self.subTest(program):
                self.wait_for_end(program, 120)
                self.assertRegex(self.logs(program), r'\d+\.\d+\.\d+')

    def test_a_job_of_pods_on_two_nodes_trains_to_its_end(self):
        manifest = self.cluster.directory / 'job.yaml'
        manifest.write_text(JOB % self.namespace)
        job = run([images.program('sluice'), 'render', manifest])
        self.api.create('configmaps', {'metadata': {'name': 'job'}, 'data': {'job.json': job}}, self.namespace)
        # With its own address, as the operator makes it: the name of a headless service is unknown until the pod has an address,
        # and name servers and gRPC remember for up to half a minute that it was unknown.
        self.api.create('services', {'metadata': {'name': 'coordinator'}, 'spec': {
            'publishNotReadyAddresses': True, 'selector': {'role': 'coordinator'},
            'ports': [{'name': 'control', 'port': 29500, 'targetPort': 29500}]}}, self.namespace)
        name = f'{self.namespace}/by-hand/'
        metrics = ['--metrics-address', '0.0.0.0:9090', '--insecure']
        config = ('job', '/etc/sluice', {'configMap': {'name': 'job'}})
        storage = ('storage', '/checkpoints', {'emptyDir': {}})
        coordinator = f'coordinator.{self.namespace}.svc:29500'
        nodes = [f'{self.cluster.name}-n1', f'{self.cluster.name}-n2']
        # The storage is a directory of one node here, so the pods that need it are on that node.
        self.api.create('pods', pod(
            'coordinator', 'sluice-server',
            ['/usr/bin/sluice-coordinator', '--job', '/etc/sluice/job.json', '--listen', '0.0.0.0:29500', '--storage',
             '/checkpoints', '--linger', '5', *metrics], role='coordinator', node=nodes[0],
            volumes=[config, storage]), self.namespace)
        for index in (0, 1):
            self.api.create('pods', pod(
                f'ps-{index}', 'sluice-server',
                ['/usr/bin/sluice-ps', '--job', name, '--index', str(index), '--coordinator', coordinator, '--listen',
                 '0.0.0.0:29501', '--advertise', '$(POD_IP)', *metrics], role='ps', node=nodes[0],
                volumes=[storage]), self.namespace)
            self.api.create('pods', pod(
                f'worker-{index}', 'sluice-worker',
                ['/usr/bin/sluice-worker', '--job', name, '--index', str(index), '--coordinator', coordinator, '--threads', '1',
                 *metrics], role='worker', node=nodes[index]), self.namespace)
        processes = ['coordinator', 'ps-0', 'ps-1', 'worker-0', 'worker-1']
        # A worker whose membership was too short to be observed has succeeded all the same.
        wait_for('a worker is a member of the view, or has ended', lambda: self.ready('worker-0') or self.ended('worker-0'), 180)
        for process in processes:
            self.wait_for_end(process, 240)
        say('the job is done: ' + self.logs('coordinator').strip().splitlines()[-1][:200])

    def ready(self, name):
        found = self.api.get('pods', self.namespace, name)
        return any(one['type'] == 'Ready' and one['status'] == 'True' for one in found['status'].get('conditions', []))


if __name__ == '__main__':
    unittest_main.main()
