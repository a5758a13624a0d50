"""sluice.run, sluice.connect and sluice.load, with a job of Python workers that `sluice` starts."""

from python.testing import requirements
requirements.need('numpy', 'grpc', 'google.protobuf')

import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock

import numpy as np

import sluice
from sluice import progress
from sluice import wire
from tests.python import job_processes
from tests.python import quadratic_worker
from tests.python import sequence
from tools import unittest_main

_ROOT = pathlib.Path(job_processes.program('ps')).parents[2].absolute()
_WORKER = pathlib.Path('tests/python/quadratic_worker.py').absolute()

_MANIFEST = '''
apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {{name: quadratic}}
spec:
  model: {{type: Custom}}
  data: {{format: Custom, evaluation: {{intervalSteps: 50}}}}
  optimizer: {{name: SGD, learningRate: 0.05}}
  training: {{steps: {steps}, globalBatchSize: 64, seed: 1}}
  debug: {{stepDelaySeconds: {delay}}}
  parameterServer: {{replicas: 2}}
  worker: {{replicas: 2, command: {command}}}
'''


_NO_EVALUATION = '''
import numpy as np
import sluice
data = sluice.ArrayDataset(np.ones((64, 1)))
loss = lambda parameters, batch: (1.0, {'w': parameters['w']})
with sluice.Worker(sluice.join(), {'w': np.ones(1)}, loss) as worker:
    for batch in worker.batches(data):
        worker.step(batch)
'''

# The first worker that has computed a step leaves, once.
_LEAVES = '''
import os
import numpy as np
import sluice
data = sluice.ArrayDataset(np.ones((64, 1)))
loss = lambda parameters, batch: (1.0, {{'w': parameters['w']}})
with sluice.Worker(sluice.join(), {{'w': np.ones(1)}}, loss) as worker:
    for batch in worker.batches(data):
        worker.step(batch)
        try:
            os.close(os.open({marker!r}, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        break
'''

# Both workers ask, more than once.
_STOPS = '''
import pathlib
import numpy as np
import sluice
saved_at = None  # the step in which this worker saw the saved checkpoint
data = sluice.ArrayDataset(np.ones((64, 1)))
loss = lambda parameters, batch: (1.0, {{'w': parameters['w']}})
job = sluice.join()
try:
    job.stop('')
except sluice.SluiceError as error:
    print(error, flush=True)
with sluice.Worker(job, {{'w': np.ones(1)}}, loss) as worker:
    for batch in worker.batches(data, evaluation=data):
        worker.step(batch)
        if batch.step == 10:
            job.save()
        if saved_at is None and any(pathlib.Path({checkpoints!r}).glob('attempt-*/manifest.json')):
            saved_at = batch.step
        if saved_at is not None and batch.step >= max(20, saved_at + 3):
            job.stop('the loss is low enough')
job.stop('too late')
job.save()
'''


class Run(unittest.TestCase):

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get('TEST_TMPDIR')))
        os.environ['SLUICE_BINARY'] = str(_ROOT / 'cli/sluice')
        os.environ['SLUICE_BIN_DIR'] = str(_ROOT)
        os.environ['PYTHONPATH'] = os.pathsep.join(os.path.abspath(path) for path in sys.path)

    def manifest(self, steps=150, command=None, delay=0):
        path = self.directory / 'job.yaml'
        command = command or [sys.executable, str(_WORKER)]
        path.write_text(_MANIFEST.format(steps=steps, command=command, delay=delay))
        return path

    def run_job(self, *arguments, **options):
        return sluice.run(self.manifest(*arguments, **options), display=False,
                          state_directory=self.directory / 'state')

    def test_run_trains_a_job_and_load_reads_its_parameters(self):
        result = self.run_job()
        self.assertEqual((result.outcome.lower(), result.step), ('succeeded', 150))
        self.assertLess(result.loss, 1e-3)
        self.assertLess(result.evaluation_loss, 1e-3)
        tensors = result.load()
        np.testing.assert_allclose(tensors['w'], [1, 2, 3, 4, 5], atol=1e-2)
        again = sluice.load(self.directory / 'state' / 'quadratic')
        np.testing.assert_array_equal(again['w'], tensors['w'])
        exported = self.directory / 'w.safetensors'
        subprocess.run([os.environ['SLUICE_BINARY'], 'export', 'quadratic', '-o', exported,
                        '--state-dir', self.directory / 'state'], check=True)
        self.assertEqual(list(sluice.load(exported)), list(tensors))
        np.testing.assert_array_equal(sluice.load(exported)['w'], tensors['w'])

    def suspended_after(self, step, path):
        """Runs the job until it has trained `step` steps, and suspends it. The step that was saved."""
        process = subprocess.Popen(
            [os.environ['SLUICE_BINARY'], 'run', path, '--state-dir', self.directory / 'state',
             '--output', 'json'], stdout=subprocess.PIPE, text=True)
        for line in process.stdout:
            if json.loads(line).get('step', 0) >= step:
                break
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
        self.assertEqual(process.returncode, 130)
        index = max((self.directory / 'state/quadratic/checkpoints').glob('attempt-*/manifest.json'))
        return int(json.loads(index.read_text())['checkpoint']['step'])

    def continues(self, path):
        return subprocess.run(
            [os.environ['SLUICE_BINARY'], 'run', path, '--state-dir', self.directory / 'state'],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)

    def plain(self, changed_at, steps):
        """The same training in numpy."""
        x, y = quadratic_worker.make_data(1000, 5)
        order = sequence.SampleOrder(len(y), 1)
        plan = sequence.StepSchedule(len(y), 64, 8)
        model = {'w': np.zeros(5), 'b': np.zeros(1)}
        velocity = {name: np.zeros_like(value) for name, value in model.items()}
        for step in range(steps):
            rate, decay = (0.05, 0) if step < changed_at else (0.01, 0.1)
            rows = order.indices_of(*plan.positions_of_step(step))
            gradients = quadratic_worker.loss_fn(model, (x[rows], y[rows]))[1]
            for name, value in model.items():
                velocity[name] = 0.9 * velocity[name] + gradients[name] + decay * value
                value -= rate * velocity[name]
        return model

    def test_rates_and_decays_change_when_the_job_continues_and_nothing_else_of_the_optimizer(self):
        path = self.manifest(steps=120, delay=0.05)
        text = path.read_text().replace('learningRate: 0.05', 'learningRate: 0.05, momentum: 0.9')
        path.write_text(text)
        step = self.suspended_after(20, path)
        self.assertTrue(20 <= step < 120, step)

        path.write_text(text.replace('0.9', '0.8'))
        refused = self.continues(path)
        self.assertEqual(refused.returncode, 2)
        self.assertIn('spec.optimizer.momentum: 0.9 -> 0.8', refused.stdout)
        self.assertNotIn('restoreFrom', refused.stdout)

        path.write_text(text.replace('seed: 1', 'seed: 2'))
        refused = self.continues(path)
        self.assertEqual(refused.returncode, 2)
        checkpoints = self.directory / 'state/quadratic/checkpoints'
        added = f'metadata: {{name: quadratic-2}}\n  spec: {{checkpoint: {{restoreFrom: {checkpoints}}}}}'
        self.assertIn(added, refused.stdout)

        changed = text.replace('learningRate: 0.05', 'learningRate: 0.01, weightDecay: 0.1')
        path.write_text(changed)
        done = self.continues(path)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn(f'training continues at step {step} with learningRate 0.01, was 0.05; '
                      'weightDecay 0.1, was 0', done.stdout)
        found = sluice.load(self.directory / 'state/quadratic')
        for name, value in self.plain(step, 120).items():
            np.testing.assert_allclose(found[name], value, rtol=1e-12, atol=1e-12)

        # The way that the refusal names.
        path.write_text(changed.replace('seed: 1', 'seed: 2').replace('name: quadratic', 'name: quadratic-2')
                        .replace('steps: 120', 'steps: 130') +
                        f'  checkpoint: {{restoreFrom: {checkpoints}}}\n')
        done = self.continues(path)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_a_finished_job_returns_its_result_again(self):
        first = self.run_job(steps=20)
        again = self.run_job(steps=20)
        self.assertEqual((again.outcome, again.step), ('Succeeded', 20))
        self.assertEqual(pathlib.Path(again.checkpoint).resolve(),
                         pathlib.Path(first.checkpoint).resolve())
        self.assertEqual(again.metrics['logs'], first.metrics['logs'])
        np.testing.assert_array_equal(again.load()['w'], first.load()['w'])

    def test_a_program_runs_in_the_directory_of_its_manifest(self):
        (self.directory / 'train.py').write_text(_WORKER.read_text())
        result = self.run_job(steps=5, command=[sys.executable, 'train.py'])
        self.assertEqual(result.step, 5)

    def test_a_program_without_evaluation_data_gets_an_error(self):
        result = self.run_job(steps=5, command=[sys.executable, '-c', _NO_EVALUATION])
        self.assertIsNone(result.evaluation_loss)
        log = (self.directory / 'state/quadratic/logs/worker-0.log').read_text()
        self.assertEqual(log.count('was given no evaluation dataset: nothing is evaluated'), 1)

    def test_a_program_that_leaves_its_loop_is_reported(self):
        # The second incarnation stays.
        program = _LEAVES.format(marker=str(self.directory / 'left'))
        result = self.run_job(steps=60, command=[sys.executable, '-c', program])
        self.assertEqual(result.step, 60)
        logs = ''.join(path.read_text() for path in
                       (self.directory / 'state/quadratic/logs').glob('worker-*.log'))
        self.assertIn('left its loop before the end of the job', logs)
        self.assertIn('sluice stop quadratic', logs)

    def test_a_program_ends_its_job_and_saves_it(self):
        checkpoints = str(self.directory / 'state/quadratic/checkpoints')
        command = [sys.executable, '-c', _STOPS.format(checkpoints=checkpoints)]
        result = self.run_job(steps=2000, command=command, delay=0.01)
        self.assertEqual(result.outcome, 'Succeeded')
        self.assertGreater(result.step, 20)
        self.assertLess(result.step, 1000)
        logs = self.directory / 'state/quadratic/logs'
        text = ''.join(path.read_text() for path in logs.glob('*.log'))
        self.assertIn(f'stopped at step {result.step} by the program of worker-', text)
        self.assertIn('the loss is low enough', text)
        # The last one, and one or two others: requests that wait at the same time are one.
        self.assertIn(text.count('"Checkpoint index written"'), (2, 3), text)
        self.assertIn('the reason is empty: it must say why training ends', text)
        again = self.run_job(steps=2000, command=command, delay=0.01)
        self.assertEqual((again.outcome, again.step), ('Succeeded', result.step))

    def test_an_interrupted_job_continues_where_it_stopped(self):
        manifest = self.manifest(steps=150, delay=0.02)
        state = self.directory / 'state'
        interrupted = []

        def interrupt(entry):
            if entry.get('step', 0) >= 5 and not interrupted:
                interrupted.append(entry)
                raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            sluice.run(manifest, display=False, state_directory=state, on_progress=interrupt)
        self.assertTrue(interrupted)
        entries = []
        result = sluice.run(manifest, display=False, state_directory=state,
                            on_progress=entries.append)
        self.assertEqual((result.outcome, result.step), ('Succeeded', 150))
        self.assertGreaterEqual(entries[-1]['restoredFromStep'], 5)

    def test_a_failed_program_is_reported_with_its_last_output(self):
        program = [sys.executable, '-c', 'raise ValueError("no such wind")']
        with self.assertRaisesRegex(sluice.JobFailed, 'no such wind'):
            self.run_job(command=program)

    def test_python3_in_a_manifest_is_the_calling_interpreter(self):
        python = self.directory / 'python3'
        python.write_text('#!/bin/sh\necho "the one of the notebook: $*" >&2; exit 1\n')
        python.chmod(0o755)
        with mock.patch.object(sys, 'executable', str(python)):
            with self.assertRaisesRegex(sluice.JobFailed, 'the one of the notebook: train.py'):
                self.run_job(command=['python3', 'train.py'])

    def test_a_program_gets_only_the_grpc_settings_of_the_user(self):
        program = [sys.executable, '-c',
                   'import os; raise ValueError(os.environ.get("GRPC_EXPERIMENTS"))']
        os.environ.pop('GRPC_EXPERIMENTS', None)
        with self.assertRaisesRegex(sluice.JobFailed, 'ValueError: None'):
            self.run_job(command=program)

    def test_a_missing_program_is_named(self):
        with self.assertRaisesRegex(sluice.JobFailed, 'no-such-program'):
            self.run_job(command=['no-such-program'])

    def test_an_invalid_manifest_is_reported_with_its_problems(self):
        path = self.directory / 'bad.yaml'
        path.write_text(self.manifest().read_text().replace('SGD', 'SGDD'))
        with self.assertRaisesRegex(sluice.UsageError, 'spec.optimizer.name'):
            sluice.run(path, display=False)

    def test_a_running_job_is_read_at_one_version(self):
        failures = []

        def read(entry):
            # Called while the job runs.
            if entry['type'] != 'progress' or entry.get('step', 0) < 20 or read.done:
                return
            read.done = True
            try:
                connection = sluice.connect('quadratic', self.directory / 'state')
                progress = connection.progress()
                self.assertIn('training', repr(progress))
                self.assertIn('<div', progress._repr_html_())
                self.assertEqual(sorted(progress.processes),
                                 ['ps-0', 'ps-1', 'worker-0', 'worker-1'])
                program = pathlib.Path(f'/proc/{progress.processes["worker-1"]}/cmdline')
                self.assertIn('quadratic_worker.py', program.read_text())
                tensors = connection.tensors()
                self.assertEqual(tensors['w'].shape, (5,))
                self.assertGreater(tensors.version, 0)
                self.assertTrue(np.all(tensors['w'] > 0.1), tensors)
            except Exception as error:
                failures.append(error)

        read.done = False
        sluice.run(self.manifest(steps=300, delay=0.02), display=False, on_progress=read,
                   state_directory=self.directory / 'state')
        self.assertTrue(read.done)
        self.assertEqual(failures, [])

    def test_connect_waits_for_a_job_that_does_not_train_yet(self):
        job = job_processes.base_job(training={'steps': 100000})
        with job_processes.JobProcesses(job, self.directory / 'job') as processes:
            processes.start()
            connection = sluice.connect(processes.address)
            with self.assertRaisesRegex(sluice.SluiceError, 'no tensors within 0.1 s.*starting'):
                connection.tensors(timeout=0.1)
            threading.Timer(0.5, processes.start_python_worker, (0, str(_WORKER), '0.01')).start()
            self.assertEqual(connection.tensors()['w'].shape, (5,))

    def test_no_job_of_that_name(self):
        with self.assertRaisesRegex(sluice.JobNotFound, "no running job 'other'"):
            sluice.connect('other', self.directory / 'state')
        with self.assertRaisesRegex(sluice.JobNotFound, 'sluice.load'):
            sluice.connect('127.0.0.1:9')

    def test_a_missing_checkpoint_and_a_damaged_one(self):
        with self.assertRaisesRegex(FileNotFoundError, 'no manifest.json'):
            sluice.load(self.directory)
        bad = self.directory / 'bad.safetensors'
        bad.write_bytes(b'\x05\0\0\0\0\0\0\0nonsense')
        with self.assertRaisesRegex(sluice.SluiceError, 'bad.safetensors'):
            sluice.load(bad)


class Display(unittest.TestCase):
    """The display of progress, with the values of a job."""

    def setUp(self):
        self.values = [sluice.Progress(wire.JobProgress(
            phase=wire.JobProgress_TRAINING, step=step, total_steps=200, loss=0.5, has_loss=True))
            for step in (50, 100)]

    def test_a_notebook_shows_one_bar_that_moves(self):
        ipython = mock.MagicMock()
        with mock.patch.dict(sys.modules, {'IPython': ipython, 'IPython.display': ipython.display}):
            display = progress.Display()
            for value in self.values:
                display.show(value)
            display.close()
        show = ipython.display.display
        show.assert_called_once_with(self.values[0], display_id=True)
        show.return_value.update.assert_called_once_with(self.values[1])
        self.assertIn('width:50.0%', self.values[1]._repr_html_())
        self.assertIn('step 100 of 200 · loss 0.5', self.values[1]._repr_html_())

    def test_a_terminal_shows_one_line_that_is_overwritten(self):
        stream = io.StringIO()
        display = progress.Display(stream)
        for value in self.values:
            display.show(value)
        display.close()
        self.assertEqual(stream.getvalue().count('\n'), 1)
        self.assertEqual(stream.getvalue().count('\r'), 2)
        self.assertIn('training [############............] step 100 of 200', stream.getvalue())

    def test_a_running_evaluation_is_shown(self):
        value = sluice.Progress(wire.JobProgress(phase=wire.JobProgress_TRAINING, step=60, total_steps=200, evaluating_step=40))
        self.assertIn('evaluating step 40', repr(value))
        self.assertNotIn('evaluating', repr(self.values[0]))

    def test_text_of_a_job_is_never_markup(self):
        failed = sluice.Progress(wire.JobProgress(phase=wire.JobProgress_FAILED, reason='<b>&'))
        self.assertIn('&lt;b&gt;&amp;', failed._repr_html_())


if __name__ == '__main__':
    unittest_main.main()
