"""A sample as a user applies it, on real nodes, to its accuracy."""

import re

from tests.cluster.node.node_case import NodeCase
from tests.cluster.testing import volumes
from tests.cluster.testing.cluster import plain, say, wait_for
from tools import unittest_main


class TrainingTest(NodeCase):

    def test_the_mnist_sample_trains_to_its_accuracy(self):
        source, threshold, name = volumes.handwritten_digits()
        say(f'{name} from {source}; at least {threshold} % are expected')
        volumes.copy_images(source, self.folders['datasets'] / 'mnist')
        self.sample('mnist.yaml')
        try:
            wait_for('it trains', lambda: self.status('mnist').get('summary') == 'Training', 120)
            say(plain(self.kubectl('get', 'stj', 'mnist')).strip())
            say(plain(self.kubectl('get', 'pods', '-o', 'wide')).strip())
            nodes = {pod['spec']['nodeName'] for pod in self.pods('mnist').values()}
            self.assertEqual(len(nodes), 2, 'pods are on both nodes')
            self.assertIn('The shard listens', self.kubectl('logs', 'mnist-ps-0'))
            self.assertRegex(self.kubectl('exec', 'mnist-coordinator', '--', '/usr/bin/sluice', '--version'), r'\d+\.\d+')
            self.kubectl('wait', 'stj/mnist', '--for=condition=Succeeded', '--timeout=900s', timeout=910)
        except BaseException:
            self.show('mnist')
            raise
        status = self.status('mnist')
        say(plain(self.kubectl('get', 'stj', 'mnist')).strip())
        accuracy = float(re.search(r'accuracy ([\d.]+) %', status['training']['metric'])[1])
        say(f'{name}: {accuracy} % after {status["training"]["step"]} steps')
        self.assertGreaterEqual(accuracy, threshold)
        self.assertEqual(status['training']['step'], status['training']['totalSteps'])
        self.assertIn('Succeeded', self.kubectl('describe', 'stj', 'mnist'))
        self.kubectl('delete', 'stj', 'mnist')
        wait_for('its pods are gone', lambda: not self.pods('mnist'), 60)


if __name__ == '__main__':
    unittest_main.main()
