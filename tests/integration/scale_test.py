"""`sluice scale` as a user runs it: shards and workers come and go while a job trains, and its result stays the same."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import threading
import time
import unittest

from tools import unittest_main

_ROOT = pathlib.Path(os.environ.get('SLUICE_TEST_PROGRAMS', os.path.abspath('.')))
_SLUICE = _ROOT / 'cli/sluice'
_PATIENCE_S = 120

_MANIFEST = """apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: %(name)s}
spec:
  model: {name: mlp, dimensions: {hidden: %(hidden)s}}
  data: {format: Synthetic, synthetic: {samples: 512, shape: [512], classes: 4}}
  optimizer: {name: Adam, learningRate: 0.01}
  training: {steps: %(steps)s, globalBatchSize: 16, microbatchSize: 4, %(mode)s}
  debug: {stepDelaySeconds: %(delay)s}
  parameterServer: {%(shards)s, partitions: 8}
  worker: {replicas: 2}
  checkpoint: {intervalSteps: 20}
"""


class ScaleTest(unittest.TestCase):

    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(dir=os.environ.get('TEST_TMPDIR'))))
        self.state = self.directory / 'state'

    def sluice(self, *arguments):
        return subprocess.run([_SLUICE, *arguments, '--state-dir', self.state], cwd=self.directory, capture_output=True, text=True,
                              timeout=_PATIENCE_S, check=False)

    def write(self, name, steps=300, mode='determinism: BitExact', shards='replicas: 2, copies: 1', delay=0.02, hidden=1024):
        manifest = _MANIFEST % {'name': name, 'steps': steps, 'mode': mode, 'shards': shards, 'delay': delay, 'hidden': hidden}
        (self.directory / f'{name}.yaml').write_text(manifest)

    def start(self, name, **settings):
        self.write(name, **settings)
        output = open(self.directory / f'{name}.out', 'w+', encoding='utf-8')
        self.addCleanup(output.close)
        process = subprocess.Popen([_SLUICE, 'run', f'{name}.yaml', '--output', 'json', '--bin-dir', _ROOT, '--state-dir', self.state],
                                   cwd=self.directory, stdout=output, text=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.wait_until(name, lambda text: 'step' in text and 'starting' not in text)
        return process

    def wait_until(self, name, reached, patience=_PATIENCE_S):
        """Waits until `reached` is true for the text of `sluice status`; returns the text."""
        deadline = time.monotonic() + patience
        while True:
            self.assertFalse((self.state / name / 'result.json').exists(), 'the job ended before')
            shown = self.sluice('status', name)
            if shown.returncode == 0 and reached(shown.stdout):
                return shown.stdout
            self.assertLess(time.monotonic(), deadline, shown)
            time.sleep(0.1)

    def state_hashes(self, name):
        """The hash of each partition's parameters and optimizer state, to the bit."""
        newest = max((self.state / name / 'checkpoints').glob('attempt-*/manifest.json'))
        index = json.loads(newest.read_text())
        return {int(file.get('partition', 0)): file.get('state_hash', '0') for file in index['files']}

    def printed(self, name):
        return [json.loads(line) for line in (self.directory / f'{name}.out').read_text().splitlines()]

    @contextlib.contextmanager
    def slowed(self, pid):
        """The process runs for about a thirtieth of the time. With a tenth, other programs can make the other shards as slow."""
        ended = threading.Event()

        def disturb():
            while not ended.wait(0.002):
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.058)
                os.kill(pid, signal.SIGCONT)

        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    @staticmethod
    def serving(text):
        """The shards that have partitions."""
        return [line for line in text.splitlines() if re.search(r'\bps-\d+\b.*\b\d+ partition', line)]

    @staticmethod
    def partitions(text, shard):
        found = re.search(rf'\b{shard}\b.*\b(\d+) partition', text)
        return int(found[1]) if found else 0

    def test_result_does_not_depend_on_sizes(self):
        for shards in ('replicas: 2, copies: 1', 'replicas: 2, copies: 2'):
            with self.subTest(shards=shards):
                name = 'copied' if 'copies: 2' in shards else 'scaled'
                process = self.start(name, shards=shards)
                scaled = self.sluice('scale', name, '--shards', '4', '--workers', '3')
                self.assertEqual((scaled.returncode, scaled.stderr), (0, ''))
                self.assertEqual(scaled.stdout, f'{name}: from 2 shards and 2 workers to 4 shards and 3 workers; '
                                 f'sluice status {name} shows them\n')
                self.wait_until(name, lambda text: len(self.serving(text)) == 4 and 'worker-2' in text)
                self.assertIn('has 4 shards and 3 workers already', self.sluice('scale', name, '--shards', '4').stdout)

                down = self.sluice('scale', name, '--shards', '2', '--workers', '1')
                self.assertEqual(down.stdout, f'{name}: from 4 shards and 3 workers to 2 shards and 1 worker; '
                                 f'sluice status {name} shows them\n')
                self.wait_until(name, lambda text: len(self.serving(text)) == 2 and len(re.findall(r'-\d+ +left$', text, re.M)) == 4)
                self.assertEqual(process.wait(timeout=_PATIENCE_S), 0)

                objects = self.printed(name)
                self.assertEqual({entry['attempt'] for entry in objects if entry.get('type') == 'progress'} - {0}, {1})
                codes = {entry['name']: entry.get('exitCode', entry.get('signal')) for entry in objects
                         if entry['type'] == 'process' and entry['state'] == 'ended'}
                self.assertEqual(set(codes.values()), {0}, codes)

        undisturbed = self.start('undisturbed', delay=0)
        self.assertEqual(undisturbed.wait(timeout=_PATIENCE_S), 0)
        for name in ('scaled', 'copied'):
            self.assertEqual(self.state_hashes(name), self.state_hashes('undisturbed'), name)

    def test_asynchronous_jobs_are_scaled_within_their_attempt(self):
        for mode in ('mode: Asynchronous', 'mode: BoundedStaleness, boundedStaleness: {maxStaleness: 2}'):
            with self.subTest(mode=mode):
                name = 'bounded' if 'Bounded' in mode else 'asynchronous'
                process = self.start(name, steps=1000, mode=mode, shards='replicas: 2, copies: 2')
                self.assertEqual(self.sluice('scale', name, '--shards', '3', '--workers', '3').returncode, 0)
                self.wait_until(name, lambda text: len(self.serving(text)) == 3 and 'worker-2' in text)
                self.assertEqual(self.sluice('scale', name, '--shards', '2').returncode, 0)
                self.wait_until(name, lambda text: len(self.serving(text)) == 2 and re.search(r'-\d+ +left$', text, re.M))
                self.assertEqual(process.wait(timeout=_PATIENCE_S), 0)
                objects = self.printed(name)
                self.assertEqual({entry['attempt'] for entry in objects if entry.get('type') == 'progress'} - {0}, {1})

    def test_shards_take_over_partitions_of_a_slow_one(self):
        # A step is more work than fits in one of the times for which the slow shard runs.
        process = self.start('slow', steps=100000, shards='replicas: 3, copies: 2', hidden=4096)
        before = self.wait_until('slow', lambda text: len(self.serving(text)) == 3)
        pid = next(entry['pid'] for entry in self.printed('slow') if entry.get('name') == 'ps-1')
        with self.slowed(pid):
            # After a minute, in each part of which the shard must be slow.
            self.wait_until('slow', lambda text: self.partitions(text, 'ps-1') < self.partitions(before, 'ps-1'), patience=300)
        self.assertEqual(self.sluice('stop', 'slow').returncode, 0)
        self.assertEqual(process.wait(timeout=_PATIENCE_S), 130)
        objects = self.printed('slow')
        self.assertTrue(any(re.match(r'ps-1 was .* times as busy as the median shard for a minute', entry.get('message', ''))
                            for entry in objects), objects)
        self.assertEqual({entry['attempt'] for entry in objects if entry.get('type') == 'progress'} - {0}, {1})

    def test_small_model_leaves_new_shards_without_partitions(self):
        process = self.start('tiny', steps=100000, hidden=4)
        partitions = sum(int(count) for count in re.findall(r'(\d+) partitions?\b', self.sluice('status', 'tiny').stdout))
        self.assertIn(partitions, range(1, 8))
        scaled = self.sluice('scale', 'tiny', '--shards', '8')
        noun = 'partition' if partitions == 1 else 'partitions'
        self.assertEqual((scaled.returncode, scaled.stderr), (0, ''))
        self.assertEqual(scaled.stdout.splitlines()[1], f'The model is too small to be divided further: it fills {partitions} {noun}, '
                         f'so at least {8 - partitions} of the 8 shards will have no partition')
        # More have none if moving small tensors would not relieve the shard that has the largest one.
        self.wait_until('tiny', lambda text: len(re.findall(r'\bps-\d+\b.*, no partitions$', text, re.M)) >= 8 - partitions)
        self.assertEqual(self.sluice('stop', 'tiny').returncode, 0)
        self.assertEqual(process.wait(timeout=_PATIENCE_S), 130)

    def test_refusals_name_what_to_do(self):
        self.assertIn('there are no jobs', self.sluice('scale', 'other', '--shards', '2').stderr)
        process = self.start('elastic', steps=100000,
                             mode='mode: Asynchronous, stalenessRule: {name: DelayCompensation}')
        self.assertEqual(self.sluice('scale', 'elastic').returncode, 2)
        refused = self.sluice('scale', 'elastic', '--shards', '3')
        self.assertEqual(refused.returncode, 2)
        self.assertIn('cannot change its number of shards while it runs', refused.stderr)
        refused = self.sluice('scale', 'elastic', '--shards', '9')
        self.assertEqual(refused.returncode, 2)
        self.assertIn('spec.parameterServer.partitions: each shard needs at least one partition', refused.stderr)
        self.assertIn('(with --shards 9)', refused.stderr)
        self.assertEqual(self.sluice('scale', 'elastic', '--workers', '3').returncode, 0)
        self.wait_until('elastic', lambda text: 'worker-2' in text)
        self.assertEqual(self.sluice('stop', 'elastic').returncode, 0)
        self.assertEqual(process.wait(timeout=_PATIENCE_S), 130)
        self.assertIn('job elastic is not running; sluice run JOB.YAML --workers 4 starts it',
                      self.sluice('scale', 'elastic', '--workers', '4').stderr)


if __name__ == '__main__':
    unittest_main.main()
