"""Tests `sluice` with jobs of a real API server, by its commands and their output. Pods are simulated."""

import json
import re
import signal
import subprocess

from tests.cluster.api.operator_case import OperatorCase, training_job
from tests.cluster.testing import images
from tests.cluster.testing.cluster import wait_for
from tests.cluster.testing.operator_process import Operator
from tests.testing import terminal
from tools import unittest_main


class CliTest(OperatorCase):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.operator = cls.enterClassContext(Operator(cls.cluster, cls.kubeconfig))

    def setUp(self):
        super().setUp()
        self.manifest = self.cluster.directory / f'{self.namespace}.yaml'
        self.write()
        self.output = self.cluster.directory / f'{self.namespace}.out'

    def write(self, **spec):
        self.manifest.write_text(json.dumps(training_job('job', self.namespace, **spec)))

    def sluice(self, *arguments, kubeconfig=None):
        """(exit code, output) of a command that ends by itself."""
        done = subprocess.run([images.program('sluice'), *map(str, arguments)], capture_output=True, text=True, timeout=120,
                              env={**self.cluster.environment, **({'KUBECONFIG': kubeconfig} if kubeconfig else {})})
        return done.returncode, done.stdout + done.stderr

    def follow(self, *arguments):
        """Starts `sluice run --cluster` as a process; its output is in self.output."""
        with open(self.output, 'w', encoding='utf-8') as output:
            process = subprocess.Popen(
                [images.program('sluice'), 'run', '--cluster', str(self.manifest), *arguments],
                stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=self.cluster.environment)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def printed(self, text):
        return wait_for(f'it prints "{text}"', lambda: text in self.output.read_text() or None, 60)

    def test_a_job_is_applied_and_followed_to_its_end(self):
        process = self.follow()
        self.printed('created')
        self.wait_for_pods()
        self.printed('training is at step')
        managers = {entry['manager'] for entry in self.job()['metadata']['managedFields'] if 'subresource' not in entry}
        self.assertEqual(managers, {'sluice'})
        self.coordinators.say(step=600, last_evaluation={'step': 500, 'epoch': 2, 'loss': 0.1, 'samples': 100,
                                                         'has_accuracy': True, 'accuracy': 97.5})
        self.printed('Step 500 (epoch 2.00): accuracy 97.50 %, loss 0.1000 on 100 samples')
        code, shown = self.sluice('status', '--cluster', '-n', self.namespace)
        self.assertEqual(code, 0, shown)
        self.assertRegex(shown, r'job +training: step 600 of 1,000 \(60 %\)')
        code, shown = self.sluice('status', 'job', '--cluster', '-n', self.namespace)
        self.assertRegex(shown, r'worker-1 +training on ')
        self.finish()
        self.assertEqual(process.wait(60), 0, self.output.read_text())
        self.assertIn('Trained job: accuracy 97.50 % after 1,000 steps', self.output.read_text())
        code, shown = self.sluice('run', '--cluster', self.manifest)
        self.assertEqual((code, 'has already ended: Succeeded at step 1,000' in shown), (0, True), shown)

    def test_on_a_terminal_the_job_is_drawn_in_one_place_and_its_events_above(self):
        own = {name: value for name, value in self.cluster.environment.items() if name != 'NO_COLOR'}
        shown = terminal.Terminal([images.program('sluice'), 'run', '--cluster', self.manifest], {**own, 'TERM': 'xterm'})
        self.addCleanup(shown.close)
        self.wait_for_pods()
        shown.read(lambda text: all(re.search(part, text) for part in (
            r'(?m)^ *worker-1 +training on ', r'(?m)^ *ps-0 +serving on ', r'█+░+\s+12 %')))
        text = shown.screen.text()
        self.assertIn(f'Job job in namespace {self.namespace} ', text)
        self.coordinators.say(step=600)
        shown.read(lambda text: re.search(r'█+░+\s+60 %', text))
        self.assertEqual(len(re.findall('[█░]+', shown.screen.text())), 1, shown.screen.text())
        self.finish()
        shown.read()
        self.assertEqual(shown.process.wait(), 0, shown.output[-2000:])
        end = shown.screen.text()
        self.assertNotRegex(end, '[█░]')
        self.assertNotRegex(end, r'worker-1 +training on')
        self.assertIn('Trained job', end)
        self.assertLessEqual(shown.widest, terminal.COLUMNS)
        self.assertEqual(shown.screen.unknown, set())

    def test_a_failure_sets_the_exit_code_and_shows_its_reason(self):
        process = self.follow('--output', 'json')
        self.wait_for_pods()
        self.wait_for_condition('Running')
        self.coordinators.say(phase='FAILED', reason='the loss is not a number')
        wait_for('the operator knows', lambda: self.job()['status']['recovery'].get('outcome'))
        self.end_pods(1)
        self.assertEqual(process.wait(60), 1)
        last = json.loads(self.output.read_text().splitlines()[-1])
        self.assertEqual((last['type'], last['outcome']), ('summary', 'Failed'))
        self.assertIn('the loss is not a number', last['reason'])

    def test_ctrl_c_detaches_and_the_same_command_attaches_again(self):
        process = self.follow()
        self.wait_for_pods()
        self.printed('training is at step')
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(30), 130)
        self.printed(f'Job job continues in namespace {self.namespace}')
        self.assertFalse(self.job()['spec'].get('suspend'))
        before = self.job()['metadata']['resourceVersion'], self.job()['metadata']['generation']
        process = self.follow()
        self.printed('already exists, unchanged')
        self.assertEqual(self.job()['metadata']['generation'], before[1])
        self.finish()
        self.assertEqual(process.wait(60), 0, self.output.read_text())

    def test_a_stopped_job_is_resumed_by_the_same_command(self):
        self.assertEqual(self.sluice('run', '--cluster', '--detach', self.manifest)[0], 0)
        self.wait_for_pods()
        self.wait_for_condition('Running')
        stop = subprocess.Popen([images.program('sluice'), 'stop', 'job', '-n', self.namespace], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=self.cluster.environment)
        self.addCleanup(stop.kill)
        wait_for('the coordinator gets the request', lambda: self.coordinators.calls()[-1]['suspend'])
        self.end_pods()
        shown = stop.communicate(timeout=60)[0]
        self.assertEqual(stop.returncode, 0, shown)
        self.assertIn('job: Suspended at step', shown)
        code, shown = self.sluice('run', '--cluster', '--detach', self.manifest)
        self.assertEqual((code, 'The job was suspended; it is resumed' in shown), (0, True), shown)
        self.wait_for_pods()
        self.wait_for_condition('Running')

    def test_refusals_of_the_api_server_are_shown_with_a_remedy(self):
        self.assertEqual(self.sluice('run', '--cluster', '--detach', self.manifest)[0], 0)
        self.write(model={'name': 'logistic'})
        code, shown = self.sluice('run', '--cluster', self.manifest)
        self.assertEqual(code, 2, shown)
        self.assertIn('spec.model', shown)
        self.assertIn('give the job another name', shown)
        self.cluster.kubectl('scale', 'stj/job', '--replicas=5', '-n', self.namespace)
        self.write()
        code, shown = self.sluice('run', '--cluster', '--detach', self.manifest)
        self.assertEqual((code, '--force-conflicts' in shown), (2, True), shown)
        self.assertEqual(self.sluice('run', '--cluster', '--detach', '--force-conflicts', self.manifest)[0], 0)
        self.assertEqual(self.job()['spec']['worker']['replicas'], 2)

    def test_a_user_without_rights_sees_which_role_to_ask_for(self):
        token = self.cluster.kubectl('create', 'token', 'default', '-n', self.namespace).strip()
        config = json.loads(self.cluster.kubectl('config', 'view', '--raw', '-o', 'json'))
        config['users'] = [{'name': config['users'][0]['name'], 'user': {'token': token}}]
        path = self.cluster.directory / f'{self.namespace}.kubeconfig'
        path.write_text(json.dumps(config))
        code, shown = self.sluice('run', '--cluster', self.manifest, kubeconfig=str(path))
        self.assertEqual(code, 2, shown)
        self.assertRegex(shown, r'cannot \w+ resource "trainingjobs"')
        self.assertIn('ask for the role edit', shown)
        self.cluster.kubectl('create', 'rolebinding', 'edit', '--clusterrole=edit',
                             f'--serviceaccount={self.namespace}:default', '-n', self.namespace)
        wait_for('the role edit is enough', lambda: self.sluice(
            'run', '--cluster', '--detach', self.manifest, kubeconfig=str(path))[0] == 0, 30)
        self.wait_for_pods()
        code, shown = self.sluice('status', 'job', '-n', self.namespace, kubeconfig=str(path))
        self.assertEqual((code, 'cannot be read' in shown), (0, False), shown)
        process = subprocess.Popen([images.program('sluice'), 'run', '--cluster', str(self.manifest)],
                                   stdout=open(self.output, 'w', encoding='utf-8'), stderr=subprocess.STDOUT,
                                   env={**self.cluster.environment, 'KUBECONFIG': str(path)})
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.printed('already exists')
        self.finish()
        self.assertEqual(process.wait(60), 0)
        self.assertNotIn('may not be read', self.output.read_text())

    def test_a_temporary_loss_of_the_api_server_ends_nothing(self):
        process = self.follow()
        self.wait_for_pods()
        self.printed('training is at step')
        self.cluster.script('down.sh', 'process', 'apiserver')
        self.cluster.script('up-control-plane.sh')
        self.finish()
        self.assertEqual(process.wait(120), 0, self.output.read_text())

    def test_a_missing_job_is_reported_with_the_existing_ones(self):
        code, shown = self.sluice('status', '-n', self.namespace)
        self.assertEqual((code, f'No jobs in namespace {self.namespace}' in shown), (0, True), shown)
        self.assertEqual(self.sluice('run', '--cluster', '--detach', self.manifest)[0], 0)
        code, shown = self.sluice('logs', 'other', '-n', self.namespace)
        self.assertEqual((code, 'there are: job' in shown), (2, True), shown)


if __name__ == '__main__':
    unittest_main.main()
