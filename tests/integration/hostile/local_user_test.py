"""Another user of the machine can neither read the model of a job under `sluice run`, nor suspend or end the job.

Needs root, to become another user.
"""

from python.testing import requirements
requirements.need('numpy', 'grpc', 'google.protobuf')

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from tests.integration.hostile import attacker
from tests.python import job_processes
from tools import unittest_main

_NOBODY = 65534
_SLUICE = str(pathlib.Path(job_processes.program('ps')).parents[2] / 'cli/sluice')
_ROOT = pathlib.Path(_SLUICE).parents[1]
_MANIFEST = """apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: private}
spec:
  model: {name: logistic}
  data: {format: Synthetic, synthetic: {samples: 512, shape: [6], classes: 2}}
  optimizer: {name: SGD, learningRate: 0.1}
  training: {steps: %d, globalBatchSize: 16}
  debug: {stepDelaySeconds: 0.02}
  parameterServer: {replicas: 2}
  worker: {replicas: 2}
"""


class LocalUserTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        if os.getuid() != 0:
            raise unittest.SkipTest('only root can become another user')

    def setUp(self):
        # A directory that every user may read: only `sluice run` itself may protect the job's files.
        self.directory = pathlib.Path(tempfile.mkdtemp(dir='/tmp'))
        self.addCleanup(shutil.rmtree, self.directory)
        self.directory.chmod(0o755)
        (self.directory / 'job.yaml').write_text(_MANIFEST % 400)
        log = open(self.directory / 'run.log', 'w')
        self.addCleanup(log.close)
        previous = os.umask(0o022)
        self.process = subprocess.Popen(
            [_SLUICE, 'run', str(self.directory / 'job.yaml'), '--bin-dir', str(_ROOT), '--state-dir', str(self.directory / 'state')],
            stdout=log, stderr=subprocess.STDOUT, cwd=self.directory)
        os.umask(previous)
        self.addCleanup(self.end)
        self.run_directory = self.directory / 'state' / 'private' / 'run'

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def port(self, name):
        """The port that the process has logged."""
        log = self.directory / 'state' / 'private' / 'logs' / f'{name}.log'

        def read():
            self.assertIsNone(self.process.poll(), (self.directory / 'run.log').read_text())
            found = re.search(r'(?:listens|Listening)".* port=(\d+)', log.read_text()) if log.exists() else None
            return found and int(found[1])
        return job_processes.JobProcesses.wait_until(read, 30, f'{name} listens')

    def attack(self, user):
        uid = json.loads((self.run_directory / 'job.json').read_text())['metadata'].get('uid', '')
        target = {'coordinator': f'127.0.0.1:{self.port("coordinator")}', 'job': f'default/private/{uid}', 'seconds': 1,
                  'samples': 512, 'shards': [[f'127.0.0.1:{self.port(f"ps-{i}")}', 1] for i in range(2)],
                  **({'user': user} if user else {})}
        done = subprocess.run([sys.executable, attacker.__file__, 'everything_without_permission', json.dumps(target)],
                              env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)}, capture_output=True, text=True,
                              timeout=120)
        self.assertTrue(done.stdout, done.stderr)
        return json.loads(done.stdout.splitlines()[-1])['counts']

    def wait_for_training(self):
        text = pathlib.Path(self.directory / 'state' / 'private' / 'logs' / 'ps-0.log')
        job_processes.JobProcesses.wait_until(
            lambda: text.exists() and 'View installed' in text.read_text(), 60, 'training began')

    def test_other_local_user_reads_and_changes_nothing(self):
        self.wait_for_training()
        counts = self.attack(_NOBODY)
        self.assertFalse([what for what in counts if what.startswith('let through')], counts)
        for what in ('OpenSnapshot', 'SetDesired', 'Join', 'GetProgress', 'Exchange as 4'):
            self.assertTrue(any(each.startswith(f'refused {what}') for each in counts), counts)
        self.assertEqual(self.process.wait(120), 0, (self.directory / 'run.log').read_text())
        self.assertIn('Trained private', (self.directory / 'run.log').read_text())

    def test_secret_is_in_no_file_or_command_line_readable_by_others(self):
        self.wait_for_training()
        secrets = [path for path in (self.directory / 'state').rglob('*') if 'secret' in path.name and path.is_file()]
        self.assertTrue(secrets, [str(path) for path in (self.directory / 'state').rglob('*')])
        for path in secrets:
            self.assertEqual(path.stat().st_mode & 0o077, 0, path)

        texts = [path.read_text().strip() for path in secrets]
        others = [path for path in (self.directory / 'state').rglob('*') if path.is_file() and path not in secrets]
        for path in others:
            content = path.read_bytes()
            for text in texts:
                self.assertNotIn(text.encode(), content, path)

        for directory in pathlib.Path('/proc').glob('[0-9]*'):
            try:
                line = (directory / 'cmdline').read_bytes()
            except OSError:
                continue
            for text in texts:
                self.assertNotIn(text.encode(), line, directory)


if __name__ == '__main__':
    unittest_main.main()
