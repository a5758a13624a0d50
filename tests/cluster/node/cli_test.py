"""The command `sluice` with a job that trains on real nodes: following it, its logs, and its parameters during training."""

import re
import subprocess

from tests.cluster.node.node_case import SAMPLES, NodeCase
from tests.cluster.testing import images
from tests.cluster.testing.cluster import say, wait_for
from tests.cluster.testing.operator_process import kubeconfig
from tools import unittest_main


class CliTest(NodeCase):

    def start(self, *arguments):
        path = self.cluster.directory / f'{arguments[0]}.out'
        with open(path, 'w', encoding='utf-8') as output:
            process = subprocess.Popen([images.program('sluice'), *map(str, arguments)], stdout=output,
                                       stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=self.cluster.environment)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process, path

    def run_sluice(self, *arguments):
        return subprocess.run([images.program('sluice'), *map(str, arguments)], capture_output=True, text=True, timeout=120,
                              env=self.cluster.environment, check=False)

    def sluice(self, *arguments):
        done = self.run_sluice(*arguments)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_run_follows_the_first_sample_to_its_end(self):
        # It must last until it has been inspected, on any machine.
        manifest = self.cluster.directory / 'first-job.yaml'
        manifest.write_text((SAMPLES / 'first-job.yaml').read_text().replace('steps: 2000', 'steps: 2000\n    stepDelaySeconds: 0.03'))
        run, shown = self.start('run', manifest, '--namespace', self.namespace)
        wait_for('there is a job', lambda: self.job('first-job') or run.poll() is not None)
        wait_for('it trains', lambda: self.status('first-job').get('summary') == 'Training' or run.poll() is not None, 180)
        wait_for('its shard is ready', lambda: self.is_ready('first-job-ps-0') or run.poll() is not None, 60)
        logs, log = self.start('logs', 'first-job', '-n', self.namespace, '--follow')
        self.assertIn('Listening', self.sluice('logs', 'first-job', 'ps-0', '-n', self.namespace))
        inspected = self.sluice('inspect', 'first-job', '-n', self.namespace, '--stats')
        say(inspected.strip())
        self.assertRegex(inspected, r'first-job \(running\) at step [\d,]+')
        path = self.cluster.directory / 'first-job.safetensors'
        self.sluice('export', 'first-job', '-n', self.namespace, '-o', path)
        self.assertGreater(path.stat().st_size, 100000)
        self.kubectl('delete', 'pod', 'first-job-worker-1', '--wait=false')
        self.assertEqual(run.wait(600), 0, shown.read_text())
        say(shown.read_text().strip())
        self.assertRegex(shown.read_text(), r'Step [\d,]+ \(epoch [\d.]+\): accuracy')
        self.assertRegex(shown.read_text(), r'Trained first-job: accuracy [\d.]+ % after 2,000 steps')
        logs.wait(60)
        lines = log.read_text()
        for process in ('coordinator', 'ps-0', 'ps-1', 'worker-0', 'worker-1'):
            self.assertRegex(lines, rf'(?m)^{process} +\|')
        self.assertGreater(lines.count('worker-1    |'), 1)

    def test_a_job_in_plain_text_can_be_inspected_too(self):
        manifest = (SAMPLES / 'first-job.yaml').read_text()
        for before, after in (('spec:\n  model:', 'spec:\n  tls: Disabled\n  model:'), ('name: first-job', 'name: plain'), ('steps: 2000', 'steps: 20000')):
            self.assertIn(before, manifest)
            manifest = manifest.replace(before, after)
        self.kubectl('apply', '-f', '-', stdin=manifest)
        wait_for('it trains', lambda: self.status('plain').get('summary') == 'Training', 180)
        self.assertEqual(self.status('plain')['tls'], 'Disabled')
        self.assertNotIn('plain-tls-reader', self.kubectl('get', 'secrets'))
        self.assertRegex(self.sluice('inspect', 'plain', '-n', self.namespace), r'plain \(running\) at step [\d,]+')
        self.kubectl('delete', 'stj', 'plain')

    def test_a_user_who_may_not_read_the_secret_of_readers_gets_a_remedy(self):
        manifest = (SAMPLES / 'first-job.yaml').read_text()
        self.kubectl('apply', '-f', '-', stdin=manifest.replace('name: first-job', 'name: closed').replace('steps: 2000', 'steps: 20000'))
        wait_for('it trains', lambda: self.status('closed').get('summary') == 'Training', 180)
        server = self.cluster.kubectl('config', 'view', '-o', 'jsonpath={.clusters[0].cluster.server}').strip()
        self.kubectl('create', 'serviceaccount', 'ann')
        self.kubectl('create', 'rolebinding', 'ann', '--clusterrole=view', f'--serviceaccount={self.namespace}:ann')
        config = kubeconfig(self.cluster, 'ann', server, self.kubectl('create', 'token', 'ann').strip())
        look = ('inspect', 'closed', '-n', self.namespace, '--kubeconfig', config)
        refused = self.run_sluice(*look)
        say(refused.stderr.strip())
        self.assertEqual(refused.returncode, 2)
        self.assertIn('cannot get resource "secrets"', refused.stderr)
        for command in re.findall(r'kubectl (create role.*)', refused.stderr):
            self.kubectl(*command.replace('--user=<you>', f'--serviceaccount={self.namespace}:ann').split())
        self.kubectl('create', 'role', 'forwarder', '--verb=create', '--resource=pods/portforward')
        self.kubectl('create', 'rolebinding', 'forwarder', '--role=forwarder', f'--serviceaccount={self.namespace}:ann')
        self.assertRegex(self.sluice(*look), r'closed \(running\) at step [\d,]+')
        self.kubectl('delete', 'stj', 'closed')


if __name__ == '__main__':
    unittest_main.main()
