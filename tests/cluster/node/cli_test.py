"""The command `sluice` with a job that trains on real nodes: looking on, logs, and the parameters while it trains."""

import subprocess

from tests.cluster.node.node_case import SAMPLES, NodeCase
from tests.cluster.testing import images
from tests.cluster.testing.cluster import say, wait_for
from tools import unittest_main


class CliTest(NodeCase):

    def start(self, *arguments):
        path = self.cluster.folder / f'{arguments[0]}.out'
        with open(path, 'w', encoding='utf-8') as output:
            process = subprocess.Popen([images.program('sluice'), *map(str, arguments)], stdout=output,
                                       stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=self.cluster.environment)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process, path

    def sluice(self, *arguments):
        done = subprocess.run([images.program('sluice'), *map(str, arguments)], capture_output=True, text=True, timeout=120,
                              env=self.cluster.environment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_the_first_sample_is_followed_to_its_end_by_run_on_the_cluster(self):
        run, shown = self.start('run', SAMPLES / 'first-job.yaml', '--namespace', self.namespace)
        wait_for('there is a job', lambda: self.job('first-job') or run.poll() is not None)
        wait_for('it trains', lambda: self.status('first-job').get('summary') == 'Training' or run.poll() is not None, 180)
        logs, told = self.start('logs', 'first-job', '-n', self.namespace, '--follow')
        self.assertIn('The shard listens', self.sluice('logs', 'first-job', 'ps-0', '-n', self.namespace))
        inspected = self.sluice('inspect', 'first-job', '-n', self.namespace, '--stats')
        say(inspected.strip())
        self.assertRegex(inspected, r'first-job \(running\) at step [\d,]+')
        path = self.cluster.folder / 'first-job.safetensors'
        self.sluice('export', 'first-job', '-n', self.namespace, '-o', path)
        self.assertGreater(path.stat().st_size, 100000)
        self.kubectl('delete', 'pod', 'first-job-worker-1', '--wait=false')
        self.assertEqual(run.wait(600), 0, shown.read_text())
        say(shown.read_text().strip())
        self.assertRegex(shown.read_text(), r'Step [\d,]+ \(epoch [\d.]+\): accuracy')
        self.assertRegex(shown.read_text(), r'Trained first-job: accuracy [\d.]+ % after 2,000 steps')
        logs.wait(60)
        lines = told.read_text()
        for process in ('coordinator', 'ps-0', 'ps-1', 'worker-0', 'worker-1'):
            self.assertRegex(lines, rf'(?m)^{process} +\|')
        self.assertGreater(lines.count('worker-1    |'), 1)


if __name__ == '__main__':
    unittest_main.main()
