"""`sluice plan` predicts the bytes that a run measures."""

import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.request

from tools import unittest_main

PROGRAMS = os.path.abspath('.')
SLUICE = os.path.join(PROGRAMS, 'cli', 'sluice')
PATIENCE_S = 120
STEPS = (300, 1000, 3000)  # minimum steps to measure over; with more steps, the error at both ends matters less
TOLERANCE = 0.05


def manifest(**training):
    return {
        'apiVersion': 'sluice.dev/v1alpha1',
        'kind': 'TrainingJob',
        'metadata': {'name': 'planned'},
        'spec': {
            'model': {'name': 'mlp', 'dimensions': {'hidden': 64}},
            'data': {'format': 'Synthetic', 'synthetic': {'samples': 512, 'shape': [784], 'classes': 10}},
            'optimizer': {'name': 'Adam', 'learningRate': 1e-3},
            'training': {'steps': 100000, 'globalBatchSize': 16, 'threads': 1, **training},
            'debug': {'stepDelaySeconds': 0.01},
            'parameterServer': {'replicas': 2},
            'worker': {'replicas': 2},
        },
    }


class PlanTest(unittest.TestCase):

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(dir=os.environ['TEST_TMPDIR']))

    def plan(self, spec, *flags):
        path = self.directory / 'job.yaml'
        path.write_text(json.dumps(spec))
        return subprocess.run([SLUICE, 'plan', str(path), '--bin-dir', PROGRAMS, *flags], capture_output=True, text=True)

    def metrics(self, process):
        """Name -> value of one process's series without labels of their own; empty while it does not serve metrics."""
        ports = list((self.directory / 'state').glob(f'*/run/{process}.metrics-port'))
        if not ports or not ports[0].read_text().strip():
            return {}
        with urllib.request.urlopen(f'http://127.0.0.1:{ports[0].read_text().strip()}/metrics', timeout=10) as reply:
            text = reply.read().decode()
        return {name: float(value) for name, value in re.findall(r'^(\w+)(?:{[^}]*})? ([-+.\de]+)$', text, flags=re.MULTILINE)}

    def until(self, what, condition):
        deadline = time.monotonic() + PATIENCE_S
        while not (found := condition()):
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.02)
        return found

    def just_counted(self, process, counter, least):
        """The metrics just after `counter`, which is reported only now and then, has changed and is at least `least`."""
        seen = []

        def fresh():
            now = self.metrics(process)
            seen.append(now.get(counter, 0))
            return now if seen[-1] >= least and len(seen) > 1 and seen[-1] != seen[-2] else None

        return self.until(f'{process} trains', fresh)

    def measured(self, spec, planned, counter):
        """
        Bytes received and sent by each process per unit of `counter`. `planned` has the expected values; where they differ, the
        measurement is repeated over more steps.
        """
        path = self.directory / 'job.yaml'
        path.write_text(json.dumps(spec))
        command = [SLUICE, 'run', str(path), '--bin-dir', PROGRAMS, '--state-dir', str(self.directory / 'state'), '--quiet']

        with subprocess.Popen(command, cwd=self.directory, stdout=subprocess.DEVNULL) as job:
            try:
                begins = {process: self.just_counted(process, counter, 5) for process in planned}
                found = {}
                for process, begin in begins.items():
                    for steps in STEPS:
                        end = self.just_counted(process, counter, begin[counter] + steps)
                        count = end[counter] - begin[counter]
                        found[process] = [(end[name] - begin[name]) / count
                                          for name in ('sluice_received_bytes_total', 'sluice_sent_bytes_total')]
                        if all(abs(plan / got - 1) <= TOLERANCE for plan, got in zip(planned[process], found[process])):
                            break
                return found
            finally:
                job.send_signal(signal.SIGINT)
                job.send_signal(signal.SIGINT)
                job.wait(PATIENCE_S)

    def check(self, spec):
        planned = json.loads(self.plan(spec, '--output', 'json').stdout)
        names = ('receivedBytes', 'sentBytes')
        bytes_planned = {f'ps-{shard}': [plan[name] for name in names] for shard, plan in enumerate(planned['shards'])}
        measured = self.measured(spec, bytes_planned, 'sluice_step')
        for shard, plans in bytes_planned.items():
            for name, plan, got in zip(names, plans, measured[shard]):
                with self.subTest(shard=shard, name=name):
                    self.assertAlmostEqual(plan / got, 1, delta=TOLERANCE)
        return planned

    def test_predicts_bytes_of_synchronous_step(self):
        planned = self.check(manifest())
        self.assertEqual(planned['per'], 'step')
        self.assertEqual(planned['parameters'], 784 * 64 + 64 + 64 * 10 + 10)

    def test_predicts_bytes_of_compressed_gradients(self):
        self.check(manifest(compression={'push': 'Int8', 'pull': 'Float16'}))

    def language_model(self, **training):
        spec = manifest(globalBatchSize=64, **training)
        spec['spec']['model'] = {'name': 'lstm-lm', 'dimensions': {'embedding': 256, 'hidden': 2}}
        spec['spec']['data'] = {'format': 'Synthetic', 'synthetic': {'samples': 512, 'shape': [20], 'vocabulary': 4000}}
        spec['spec']['optimizer'] = {'name': 'SGD', 'learningRate': 0.1}
        return spec

    def check_random_tokens(self, tokens, **training):
        table, = self.check(self.language_model(**training))['rowTables']
        self.assertEqual((table['tensor'], table['basis']), ('embedding.weight', 'RandomTokens'))
        self.assertAlmostEqual(table['touchedRows'], 4000 * (1 - (1 - 1 / 4000)**tokens), places=6)

    def test_predicts_row_bytes_of_synchronous_step_with_random_tokens(self):
        self.check_random_tokens(640)

    def test_predicts_row_bytes_of_asynchronous_update_with_random_tokens(self):
        self.check_random_tokens(1280, mode='Asynchronous')

    def test_predicts_row_bytes_from_text_data(self):
        spec = self.language_model()
        text = self.directory / 'train.txt'
        # Some words are in every line, others in few.
        text.write_text('\n'.join(' '.join(f'w{(i * i + j * j * j) % (20 if j % 2 else 3000)}' for j in range(20)) for i in range(2000)))
        spec['spec']['data'] = {'format': 'Text', 'source': {'path': str(text)}, 'text': {'sequenceLength': 20, 'vocabularySize': 4000}}
        table, = self.check(spec)['rowTables']
        self.assertEqual(table['basis'], 'Data')
        self.assertLess(table['touchedRows'], 640)
        self.assertIn('read from the data', self.plan(spec).stdout)

    def test_dense_tables_are_counted_whole(self):
        spec = self.language_model()
        spec['spec']['model']['embeddings'] = 'Dense'
        planned = json.loads(self.plan(spec, '--output', 'json').stdout)
        self.assertEqual(planned['rowTables'], [])
        self.assertEqual(planned['worker']['sentBytes'], planned['parameterBytes'])

    def test_predicts_bytes_of_update_under_server_execution(self):
        spec = manifest(execution='Server', mode='Asynchronous')
        spec['spec']['model']['stages'] = [{'layers': ['fc1']}, {'layers': ['fc2']}]
        planned = self.check(spec)
        self.assertEqual(planned['per'], 'update')

    def test_custom_model_is_planned_from_its_parameter_count(self):
        spec = manifest()
        spec['spec'].update(model={'type': 'Custom'}, data={'format': 'Custom'}, worker={'command': ['python3', 'worker.py']})
        unknown = self.plan(spec)
        self.assertEqual(unknown.returncode, 2)
        self.assertIn('--parameters', unknown.stderr)
        planned = json.loads(self.plan(spec, '--parameters', '1000000', '--output', 'json').stdout)
        self.assertEqual(planned['parameterBytes'], 4000000)
        self.assertEqual(planned['worker']['sentBytes'], 4000000)

    def test_default_output_is_a_table(self):
        done = self.plan(manifest(), '--bandwidth', '1Gbit')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r'50,890 parameters, 198.8 KiB')
        self.assertRegex(done.stdout, r'ps-1 +\S+ MiB +\S+ KiB')
        self.assertRegex(done.stdout, r'at 1 Gbit/s the network is busy for \S+ ms a step')

    def test_job_for_a_gpu_is_planned_without_one(self):
        spec = manifest()
        spec['spec']['model']['device'] = 'cuda:63'
        done = self.plan(spec)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_errors_are_reported_before_anything_starts(self):
        spec = manifest()
        spec['spec']['model']['dimensions']['kernels'] = 3
        wrong = self.plan(spec)
        self.assertNotEqual(wrong.returncode, 0)
        self.assertIn('model.dimensions.kernels', wrong.stderr)
        wrong = self.plan(manifest(), '--bandwidth', 'fast')
        self.assertNotEqual(wrong.returncode, 0)
        self.assertIn('the bandwidth "fast" is invalid', wrong.stderr)


if __name__ == '__main__':
    unittest_main.main()
