"""From an empty cluster to a trained job, as on the page about Kubernetes: the chart, its own test, the first sample."""

import re
import shlex
import time
import unittest

from tests.cluster.testing import images
from tests.cluster.testing.cluster import ROOT, Cluster, conditions, run, say, wait_for
from tools import unittest_main

CHART = ROOT / 'helm/sluice'
NAMESPACE = 'sluice-system'


def transcript():
    """[(command, its output)] of the page."""
    page = (ROOT / 'docs/kubernetes.md').read_text()
    block = re.search(r'<!-- transcript -->\n```console\n(.*?)\n```', page, re.DOTALL)[1]
    parts = re.split(r'^\$ (.*)$', block, flags=re.MULTILINE)[1:]
    return [(command, answer.strip()) for command, answer in zip(parts[::2], parts[1::2])]


def without_numbers(text):
    """Lines without the parts that vary: numbers, ages, widths of columns, names of namespaces."""
    text = re.sub(r'\btest-\d+\b', 'default', text)
    text = re.sub(r'\b(\d+[dhms])+\b', 'AGE', text)
    text = re.sub(r'\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b', 'UID', text)
    return [' '.join(re.sub(r'[\d.,:TZ-]*\d[\d.,:TZ-]*', '0', line).split()) for line in text.splitlines() if line.strip()]


# Commands that change nothing, so they may be repeated.
READING = ('kubectl get', 'kubectl describe', 'kubectl events', 'kubectl logs')


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

    def run_line(self, namespace, command):
        command, _, filtered = command.partition(' | ')
        words = shlex.split(command)
        self.assertEqual(words[0], 'kubectl')
        words = [str(ROOT / word) if word.startswith('k8s/') else word for word in words[1:]]
        said = self.cluster.kubectl(words[0], '-n', namespace, *words[1:], timeout=620)
        return run(shlex.split(filtered), stdin=said) if filtered else said

    def test_the_first_sample_behaves_as_on_the_page(self):
        with self.cluster.namespace({'pod-security.kubernetes.io/enforce': 'restricted'}) as namespace:
            for command, shown in transcript():
                try:
                    said = self.run_line(namespace, command)
                    if command.startswith(READING):
                        # Events come a moment after what they report.
                        deadline = time.monotonic() + 20
                        while without_numbers(said) != without_numbers(shown) and time.monotonic() < deadline:
                            time.sleep(0.5)
                            said = self.run_line(namespace, command)
                except Exception:
                    say(self.cluster.kubectl('describe', '-n', namespace, 'stj,pods'))
                    raise
                print(f'$ {command}\n{said}', end='', flush=True)
                if command.startswith('kubectl get stj'):
                    self.look_at(namespace)
                with self.subTest(command):
                    self.assertEqual(without_numbers(said), without_numbers(shown))

    def look_at(self, namespace):
        status = self.api.get('trainingjobs', namespace, 'first-job')['status']
        self.assertEqual(status['training']['step'], 2000)
        self.assertEqual(status['checkpoint']['step'], 2000)
        self.assertEqual(status.get('restarts', {}).get('total', 0), 0, status)
        self.assertEqual(conditions({'status': status})['Failed'], 'False')


if __name__ == '__main__':
    unittest_main.main()
