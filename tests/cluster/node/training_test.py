"""Trains a sample as a user applies it, on real nodes, to its accuracy."""

import json
import os
import pathlib
import re
import subprocess
import tempfile

from tests.cluster.node.node_case import SAMPLES, NodeCase
from tests.cluster.testing import images, volumes
from tests.cluster.testing.cluster import plain, say, wait_for
from tools import unittest_main

# Lasts until it is suspended, so that the test can act on the job meanwhile on any machine.
ENDLESS = 'steps: 1000000'
SLOWER = '  debug: {stepDelaySeconds: 0.005}\n'

# Part of a pod template's spec: puts no two workers of a job on one node.
SPREAD = '''        topologySpreadConstraints:
          - maxSkew: 1
            topologyKey: kubernetes.io/hostname
            whenUnsatisfiable: DoNotSchedule
            labelSelector: {matchLabels: {sluice.dev/training-job: hybrid, sluice.dev/role: worker}}
'''

BIT_EXACT = '''apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: exact}
spec:
  model: {name: mlp, dimensions: {hidden: 48}}
  data: {format: Synthetic, synthetic: {samples: 512, shape: [96], classes: 10}}
  optimizer: {name: Adam, learningRate: 0.01}
  training: {steps: 40, globalBatchSize: 64, microbatchSize: 16, determinism: BitExact}
  parameterServer: {replicas: 1, partitions: 4}
  worker: {replicas: 2}
'''
# Kernels that OpenBLAS and LibTorch do not choose in a pod.
OTHER_KERNELS = {'OPENBLAS_CORETYPE': 'Nehalem', 'ATEN_CPU_CAPABILITY': 'default'}


def last_checkpoint(directory):
    """What the workers of the newest checkpoint computed with, and the hash of each partition's state."""
    index = json.loads(max(directory.rglob('attempt-*/manifest.json')).read_text())
    return index['environment'], {int(file.get('partition', 0)): file['state_hash'] for file in index['files']}


class TrainingTest(NodeCase):

    def step(self, job):
        return wait_for(f'{job} reports its step', lambda: self.metric(f'{job}-coordinator', 'sluice_step'))

    def suspend(self, job):
        """Ends a job that lasts as long as the test needs it, with its last checkpoint."""
        self.kubectl('patch', f'stj/{job}', '--type=merge', '-p', '{"spec": {"suspend": true}}')
        self.kubectl('wait', f'stj/{job}', '--for=condition=Suspended', '--timeout=300s', timeout=310)

    def test_the_mnist_sample_trains_to_its_accuracy(self):
        source, threshold, name = volumes.handwritten_digits()
        say(f'{name} from {source}; at least {threshold} % are expected')
        volumes.copy_images(source, self.directories['datasets'] / 'mnist')
        # One epoch instead of three.
        manifest, count = re.subn('epochs: 3', 'epochs: 1', (SAMPLES / 'mnist.yaml').read_text())
        self.assertEqual(count, 1)
        self.kubectl('apply', '-f', '-', stdin=manifest)
        wait_for('it trains', lambda: self.status('mnist').get('summary') == 'Training', 120)
        # The kubelet notices a second later than the job that a container runs, and has no logs of
        # it before.
        wait_for('its shard is ready', lambda: self.is_ready('mnist-ps-0'), 60)
        say(plain(self.kubectl('get', 'stj', 'mnist')).strip())
        say(plain(self.kubectl('get', 'pods', '-o', 'wide')).strip())
        nodes = {pod['spec']['nodeName'] for pod in self.pods('mnist').values()}
        self.assertEqual(len(nodes), 2, 'pods are on both nodes')
        self.assertIn('Listening', self.kubectl('logs', 'mnist-ps-0'))
        self.assertRegex(self.kubectl('exec', 'mnist-coordinator', '--', '/usr/bin/sluice', '--version'), r'\d+\.\d+')
        self.kubectl('wait', 'stj/mnist', '--for=condition=Succeeded', '--timeout=900s', timeout=910)
        status = self.status('mnist')
        say(plain(self.kubectl('get', 'stj', 'mnist')).strip())
        accuracy = float(re.search(r'accuracy ([\d.]+) %', status['training']['metric'])[1])
        say(f'{name}: {accuracy} % after {status["training"]["step"]} steps')
        self.assertGreaterEqual(accuracy, threshold)
        self.assertEqual(status['training']['step'], status['training']['totalSteps'])
        self.assertIn('Succeeded', self.kubectl('describe', 'stj', 'mnist'))
        self.kubectl('delete', 'stj', 'mnist')
        wait_for('its pods are gone', lambda: not self.pods('mnist'), 60)

    def test_a_bit_exact_job_has_the_same_bits_in_pods_and_in_a_shell_with_other_kernels(self):
        self.kubectl('apply', '-f', '-', stdin=BIT_EXACT + '  checkpoint: {storage: {type: PersistentVolumeClaim, claimName: checkpoints}}\n')
        self.kubectl('wait', 'stj/exact', '--for=condition=Succeeded', '--timeout=300s', timeout=310)
        in_pods = last_checkpoint(self.directories['checkpoints'])
        local = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(dir=os.environ.get('TEST_TMPDIR'))))
        (local / 'job.yaml').write_text(BIT_EXACT)
        subprocess.run([images.program('sluice'), 'run', 'job.yaml', '--quiet'], cwd=local, env={**os.environ, **OTHER_KERNELS}, timeout=120,
                       check=True)
        say(f'in pods: {in_pods}')
        self.assertEqual(last_checkpoint(local), in_pods)

    def test_a_worker_joins_after_certificates_were_renewed(self):
        manifest = (SAMPLES / 'first-job.yaml').read_text()
        for before, after in (('name: first-job', 'name: tls'), ('steps: 2000', ENDLESS)):
            self.assertIn(before, manifest)
            manifest = manifest.replace(before, after)
        self.kubectl('apply', '-f', '-', stdin=manifest + SLOWER)
        wait_for('it trains', lambda: self.status('tls').get('summary') == 'Training', 120)
        self.wait_for_steps('tls', 20)
        self.assertEqual(self.status('tls')['tls'], 'Enabled')
        self.assertIn('--tls-directory=/etc/sluice-tls', self.pod('tls-ps-0')['spec']['containers'][0]['args'])
        # The old certificates are gone; the new worker has a new one.
        self.kubectl('delete', 'secret', 'tls-tls-worker')
        self.kubectl('scale', 'stj/tls', '--replicas=3')
        wait_for('the third worker is a member', lambda: self.is_ready('tls-worker-2'), 120)
        self.wait_for_steps('tls', self.step('tls') + 20)
        self.suspend('tls')
        say(plain(self.kubectl('get', 'stj', 'tls')).strip())

    def test_shards_compute_layers_for_workers_over_tls(self):
        manifest, count = re.subn(r'data:\n    format: IDX\n(    .*\n)*?    normalize: .*', 'data:\n    format: Synthetic\n    synthetic: {samples: 2000, '
                                  'shape: [1, 28, 28], classes: 10}', (SAMPLES / 'server-execution.yaml').read_text())
        self.assertEqual(count, 1)
        self.kubectl('apply', '-f', '-', stdin=manifest)
        self.kubectl('wait', 'stj/mnist-server', '--for=condition=Succeeded', '--timeout=600s', timeout=610)
        self.assertEqual(self.status('mnist-server')['tls'], 'Enabled')
        self.assertIn('Stage opened', self.kubectl('logs', 'mnist-server-worker-0'))
        say(plain(self.kubectl('get', 'stj', 'mnist-server')).strip())

    def test_workers_on_two_nodes_all_reduce_dense_gradients(self):
        manifest, count = re.subn(r'  data:\n    format: Text\n(    .*\n)*', '  data:\n    format: Synthetic\n    synthetic: {samples: 640, shape: [20], '
                                  'vocabulary: 500}\n', (SAMPLES / 'hybrid.yaml').read_text())
        self.assertEqual(count, 1)
        for before, after in (('name: lstm-lm', 'name: lstm-lm\n    dimensions: {embedding: 32, hidden: 32}'), ('epochs: 3', ENDLESS),
                              ('  worker:\n    replicas: 2\n    template:\n      spec:\n', '  worker:\n    replicas: 2\n    template:\n      spec:\n' + SPREAD)):
            self.assertIn(before, manifest)
            manifest = manifest.replace(before, after)
        self.kubectl('apply', '-f', '-', stdin=manifest + SLOWER)
        self.wait_for_steps('hybrid', 50)
        nodes = {self.pod(f'hybrid-worker-{i}')['spec']['nodeName'] for i in range(2)}
        self.assertEqual(len(nodes), 2, 'the workers are on two nodes')
        self.assertGreater(self.metric('hybrid-worker-1', 'sluice_all_reduce_sent_bytes_total') or 0, 0)
        # A worker that dies breaks the group; the next view has a new one.
        before = self.pod('hybrid-worker-0')
        self.kubectl('delete', 'pod', 'hybrid-worker-0', '--wait=false')
        wait_for('it is replaced', lambda: (self.pod('hybrid-worker-0') or before)['metadata']['uid'] != before['metadata']['uid'], 120)
        wait_for('the new one sums with the other', lambda: self.metric('hybrid-worker-0', 'sluice_all_reduce_sent_bytes_total'), 120)
        self.wait_for_steps('hybrid', self.step('hybrid') + 20)
        self.suspend('hybrid')
        say(plain(self.kubectl('get', 'stj', 'hybrid')).strip())


if __name__ == '__main__':
    unittest_main.main()
