"""`sluice chaos` as a user runs it: a job that survives, and jobs that a deliberate bug breaks."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from tools import unittest_main

_ROOT = pathlib.Path(os.environ.get('SLUICE_TEST_PROGRAMS', os.path.abspath('.')))
_SLUICE = _ROOT / 'cli/sluice'
_PATIENCE_S = 240

_MANIFEST = """apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: example}
spec:
  model: {%(model)s}
  data: {format: Synthetic, synthetic: {samples: 512, %(data)s}}
  optimizer: {%(optimizer)s, learningRate: 0.01}
  training: {steps: %(steps)s, globalBatchSize: 16, microbatchSize: 2, %(mode)s}
  debug: {stepDelaySeconds: %(delay)s}
  parameterServer: {%(shards)s, partitions: 8}
  worker: {replicas: 3}
  checkpoint: {intervalSteps: 10}
  timeouts: {%(timeouts)s}
"""
_TIMEOUTS = 'heartbeatSeconds: 0.2, suspectSeconds: 0.5, heartbeatTimeoutSeconds: 2, pauseSeconds: 2'

# An optimizer with a warm-up, whose steps are counted with a deliberate bug.
_PLUGIN = """
#include <sluice/optimizer_plugin.h>

#include <algorithm>
#include <atomic>
#include <cstdio>

namespace {

using sluice::plugin::Arguments;
using sluice::plugin::Parameters;
using sluice::plugin::Range;

STEPS_OF

class WarmUp final : public sluice::plugin::Optimizer {
 public:
  explicit WarmUp(Parameters&) {}
  void Step(const Arguments& arguments, const Range<float>& range) const override { Run<float>(arguments, range); }
  void Step(const Arguments& arguments, const Range<double>& range) const override { Run<double>(arguments, range); }

 private:
  template <typename T>
  void Run(const Arguments& arguments, const Range<T>& range) const {
    const double steps = StepsOf(arguments.count);
    const T rate = static_cast<T>(arguments.learning_rate * arguments.gradient_scale * std::min(1.0, steps / 50));
    for (size_t i = 0; i < range.count; ++i) range.parameters_out[i] = range.parameters[i] - rate * range.gradient[i];
  }
};

}  // namespace

SLUICE_OPTIMIZER_PLUGIN(WarmUp)
"""

# Only a replaced shard shows it: it counts the steps of this process, not those of the job.
_FORGETFUL = """
double StepsOf(uint64_t count) {
  static std::atomic<uint64_t> first{0};
  uint64_t none = 0;
  first.compare_exchange_strong(none, count);
  return static_cast<double>(count - std::min<uint64_t>(first, count) + 1);
}
"""

# Only a full disk shows it: it does not check whether its scratch file was written.
_CARELESS = """
double StepsOf(uint64_t count) {
  double steps = 0;
  std::FILE* scratch = std::tmpfile();
  std::fprintf(scratch, "%g", static_cast<double>(count));
  std::rewind(scratch);
  if (std::fscanf(scratch, "%lg", &steps) != 1) steps = 0;
  std::fclose(scratch);
  return steps;
}
"""


def processes_below(directory):
    """The pids of the processes with this directory in their arguments."""
    found = []
    for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):
        try:
            if str(directory).encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            pass  # it has ended
    return found


class ChaosTest(unittest.TestCase):

    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(dir=os.environ.get('TEST_TMPDIR'))))
        self.state = self.directory / 'state'

    def start(self, *flags, programs=_ROOT, **job):
        manifest = _MANIFEST % {
            'model': 'name: mlp, dimensions: {hidden: 16}', 'data': 'shape: [16], classes: 4', 'optimizer': 'name: Adam', 'steps': 80,
            'mode': 'determinism: BitExact', 'delay': 0.02, 'shards': 'replicas: 2, copies: 1', 'timeouts': _TIMEOUTS, **job}
        (self.directory / 'job.yaml').write_text(manifest)
        process = subprocess.Popen(
            [_SLUICE, 'chaos', 'job.yaml', '--output', 'json', '--bin-dir', programs, '--state-dir', self.state, *flags],
            cwd=self.directory, stdout=subprocess.PIPE, text=True, env={**os.environ, 'SLUICE_PLUGIN_PATH': str(self.directory)})
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def finish(self, process, patience=_PATIENCE_S):
        """The exit code and the objects that were printed."""
        output, _ = process.communicate(timeout=patience)
        objects = [json.loads(line) for line in output.splitlines()]
        self.assertEqual(objects[-1]['type'], 'verdict', output)
        self.assertEqual(objects[-1]['exitCode'], process.returncode)
        return process.returncode, objects

    def test_bit_exact_job_survives_every_kind_of_fault(self):
        faults = ('kill:worker,kill:shard,kill:coordinator,freeze:worker,freeze:shard,freeze:coordinator,'
                  'term:worker,term:shard,kill:worker+shard+worker')
        code, objects = self.finish(
            self.start('--faults', faults, '--seed', '7', '--every', '0.4s', '--for', '0.4s', '--count', '9', '--baseline', 'run',
                       steps=160))
        verdict = objects[-1]
        self.assertEqual((code, verdict['verdict'], verdict['problems']), (0, 'Passed', []))
        self.assertIs(verdict['parametersEqual'], True)
        self.assertEqual(verdict['seed'], 7)

        kinds = [' '.join(word.rstrip('-0123456789') for word in fault['fault'].split()[:2]) for fault in verdict['faults']]
        self.assertCountEqual(kinds, ['kill worker', 'kill ps', 'kill coordinator', 'freeze worker', 'freeze ps', 'freeze coordinator',
                                      'term worker', 'term ps', 'kill worker'], verdict)
        for fault in verdict['faults']:
            with self.subTest(fault=fault['fault']):
                self.assertGreater(fault['recoveredSeconds'], 0)
                self.assertGreaterEqual(fault['caughtUpSeconds'], fault['recoveredSeconds'])
                self.assertGreaterEqual(fault['allBackSeconds'], fault['recoveredSeconds'])
                if fault['fault'].startswith('freeze'):
                    self.assertGreaterEqual(fault['recoveredSeconds'], 0.4)
        # The death of a shard that holds partitions begins an attempt, that of the coordinator may, and no other fault does: a shard
        # that receives SIGTERM is drained. Two shards are killed; one at least holds partitions.
        self.assertIn(verdict['run']['attempts'], (2, 3, 4))
        self.assertEqual(verdict['baseline']['attempts'], 1)
        self.assertEqual(verdict['baseline']['steps'], 160)
        self.assertGreater(verdict['baseline']['stepsPerSecond'], verdict['run']['stepsPerSecond'])

        # Every signal hit a process of the job.
        started = {(entry['name'], entry['pid']) for entry in objects if entry['type'] == 'process' and entry['state'] == 'started'}
        hit = {(target['name'], target['pid']) for fault in verdict['faults'] for target in fault['targets']}
        self.assertLessEqual(hit, started)
        shown = [(entry['state'], entry['number']) for entry in objects if entry['type'] == 'fault']
        self.assertEqual(shown, [(state, number) for number in range(1, 10) for state in ('injected', 'recovered')])
        self.assertFalse((self.directory / '.sluice').exists())

    def test_with_second_copies_dead_shards_cost_no_step(self):
        code, objects = self.finish(
            self.start('--faults', 'kill:shard', '--seed', '3', '--every', '2s', '--count', '3', '--baseline', 'run', steps=400,
                       shards='replicas: 3, copies: 2'))
        verdict = objects[-1]
        self.assertEqual((code, verdict['verdict'], verdict['problems']), (0, 'Passed', []))
        self.assertIs(verdict['parametersEqual'], True)
        self.assertEqual(len(verdict['faults']), 3)
        self.assertEqual(verdict['run']['attempts'], 1, verdict)
        # Of the step that was under way, workers may compute samples again for the view without the shard.
        self.assertLessEqual(verdict['run']['recomputedSamples'], 3 * 16, verdict)

    def test_with_second_copies_hundred_faults_change_no_byte(self):
        faults = ('kill:shard,kill:worker,kill:coordinator,freeze:shard,freeze:worker,freeze:coordinator,term:shard,term:worker,'
                  'scale:shard,scale:worker')
        code, objects = self.finish(
            self.start('--faults', faults, '--seed', '100', '--every', '0.2s', '--count', '100', '--for', '1s', '--baseline', 'run',
                       model='name: convnet', data='shape: [1, 28, 28], classes: 10', steps=200, delay=0.1,
                       shards='replicas: 3, copies: 2'),
            patience=400)
        verdict = objects[-1]
        self.assertEqual((code, verdict['verdict'], verdict['problems']), (0, 'Passed', []))
        self.assertIs(verdict['parametersEqual'], True)
        self.assertGreater(len(verdict['faults']), 5)
        self.assertEqual(verdict['run']['attempts'], 1, verdict)
        replay = subprocess.run([_SLUICE, 'verify', 'example', '--bin-dir', _ROOT, '--state-dir', self.state / 'faults', '--all'],
                                cwd=self.directory, capture_output=True, text=True, timeout=_PATIENCE_S)
        self.assertEqual(replay.returncode, 0, replay.stdout + replay.stderr)

    def test_cut_and_slow_links_cost_no_step_unless_a_shard_is_expelled(self):
        # Shorter than heartbeatTimeoutSeconds, so no process is expelled.
        faults = 'cut:worker,cut:shard,cut:coordinator,slow:worker,slow:shard,slow:coordinator'
        code, objects = self.finish(
            self.start('--faults', faults, '--seed', '7', '--every', '0.4s', '--for', '0.7s', '--count', '6', '--baseline', 'run',
                       steps=500))
        verdict = objects[-1]
        self.assertEqual((code, verdict['verdict'], verdict['problems'], verdict['unexplained']), (0, 'Passed', [], []))
        self.assertIs(verdict['parametersEqual'], True)
        self.assertEqual(len(verdict['faults']), 6, verdict)
        self.assertEqual((verdict['run']['attempts'], verdict['run']['restarts']), (1, 0), verdict)
        for fault in verdict['faults']:
            with self.subTest(fault=fault['fault']):
                if fault['fault'].startswith('cut ps'):
                    self.assertGreaterEqual(fault['recoveredSeconds'], 0.7)
                    self.assertGreaterEqual(fault['longestStallSeconds'], 0.5)
                if fault['fault'].startswith('slow'):
                    self.assertRegex(fault['fault'], r'^slow \S+ for 0\.7 s \(\d+ ms, 10 MB/s\)$')
                    self.assertGreaterEqual(fault['allBackSeconds'], 0.7)

    def test_process_that_is_cut_off_too_long_is_replaced(self):
        code, objects = self.finish(
            self.start('--faults', 'cut:worker,cut:shard,cut:coordinator', '--seed', '3', '--every', '1s', '--for', '6s', '--count', '3',
                       '--baseline', 'run', steps=200, delay=0.1, shards='replicas: 3, copies: 2'))
        verdict = objects[-1]
        self.assertEqual((code, verdict['verdict'], verdict['problems'], verdict['unexplained']), (0, 'Passed', [], []))
        self.assertIs(verdict['parametersEqual'], True)
        self.assertEqual(len(verdict['faults']), 3, verdict)
        self.assertEqual(verdict['run']['attempts'], 1, verdict)
        for fault in verdict['faults']:
            with self.subTest(fault=fault['fault']):
                pids = {target['pid'] for target in fault['targets']}
                ended = {entry['pid'] for entry in objects if entry['type'] == 'process' and entry['state'] == 'ended'}
                self.assertLessEqual(pids, ended)

    def test_coordinator_that_is_cut_off_expels_no_process(self):
        # Longer than heartbeatTimeoutSeconds, and not so long that `sluice run` replaces the coordinator (2 s more).
        for timeouts, lasting, count in ((_TIMEOUTS, '2.4s', 2), (_TIMEOUTS, '3.4s', 2), ('suspectSeconds: 1', '5.8s', 1)):
            with self.subTest(lasting=lasting):
                self.state = self.directory / lasting
                code, objects = self.finish(
                    self.start('--faults', 'cut:coordinator', '--seed', '6', '--every', '1s', '--for', lasting, '--count', str(count),
                               timeouts=timeouts, steps=150, delay=0.1, shards='replicas: 3, copies: 2'))
                verdict = objects[-1]
                self.assertEqual((code, verdict['verdict'], verdict['problems'], verdict['unexplained']), (0, 'Passed', [], []))
                self.assertEqual(len(verdict['faults']), count, verdict)
                run = verdict['run']
                self.assertEqual((run['attempts'], run['restarts'], run['recomputedSamples']), (1, 0, 0), verdict)
                events = [entry['message'] for entry in objects if entry['type'] == 'event']
                self.assertTrue(any('the coordinator may have been cut off' in text for text in events), events)

    def test_full_disk_costs_checkpoints_and_no_step(self):
        code, objects = self.finish(
            self.start('--faults', 'fill:disk', '--every', '0.5s', '--for', '2s', '--count', '2', '--baseline', 'run', steps=400))
        verdict = objects[-1]
        self.assertEqual((code, verdict['verdict'], verdict['problems'], verdict['unexplained']), (0, 'Passed', [], []))
        self.assertIs(verdict['parametersEqual'], True)
        self.assertEqual((verdict['run']['attempts'], verdict['run']['restarts']), (1, 0), verdict)
        self.assertEqual([fault['fault'] for fault in verdict['faults']], ['fill the disk for 2.0 s'] * 2)
        events = [entry['message'] for entry in objects if entry['type'] == 'event']
        self.assertTrue(any('checkpoint' in text and 'too large' in text.lower() for text in events), events)

    def test_full_disk_at_the_end_delays_the_last_checkpoint(self):
        code, objects = self.finish(self.start('--faults', 'fill:disk', '--every', '1s', '--for', '6s', '--count', '1', steps=100))
        verdict = objects[-1]
        self.assertEqual((code, verdict['verdict'], verdict['unexplained']), (0, 'Passed', []))
        self.assertTrue(list((self.state / 'faults/example/checkpoints').glob('*/manifest.json')))

    def build_plugin(self, name, source):
        include = self.directory / 'include/sluice'
        include.mkdir(parents=True)
        shutil.copy(_ROOT / 'include/sluice/optimizer_plugin.h', include)
        (self.directory / f'{name}.cc').write_text(source)
        subprocess.run(['g++', '-std=c++17', '-O1', '-fPIC', '-shared', '-I', include.parent, self.directory / f'{name}.cc', '-o',
                        self.directory / f'lib{name}.so'], check=True)

    def assert_other_result(self, code, objects):
        verdict = objects[-1]
        self.assertEqual((code, verdict['verdict']), (1, 'Failed'), verdict)
        self.assertIs(verdict['parametersEqual'], False)
        self.assertRegex(verdict['problems'][0], r"tensor \S+ differs from the baseline's in \d+ of \d+ bytes")

    def test_optimizer_that_forgets_its_steps_is_found(self):
        self.build_plugin('forgetful', _PLUGIN.replace('STEPS_OF', _FORGETFUL))
        for flags in (['--faults', 'kill:shard'], ['--faults', 'cut:shard', '--for', '6s']):
            with self.subTest(flags=flags):
                self.assert_other_result(*self.finish(
                    self.start(*flags, '--every', '1s', '--baseline', 'run', optimizer='name: Plugin, library: forgetful')))

    def test_optimizer_that_ignores_a_full_disk_is_found(self):
        self.build_plugin('careless', _PLUGIN.replace('STEPS_OF', _CARELESS))
        self.assert_other_result(*self.finish(
            self.start('--faults', 'fill:disk', '--every', '1s', '--for', '1s', '--baseline', 'run', steps=200,
                       optimizer='name: Plugin, library: careless')))

    def test_shard_that_never_comes_back_is_a_hang(self):
        programs = self.directory / 'programs'
        programs.mkdir()
        for path in ('services/coordinator/sluice-coordinator', 'services/worker/sluice-worker'):
            (programs / os.path.basename(path)).symlink_to(_ROOT / path)
        begun = self.directory / 'begun'
        shard = programs / 'sluice-ps'
        shard.write_text('#!/bin/sh\n'
                         f'if [ $(ls {begun}* | wc -l) -lt 2 ]; then touch {begun}$$; exec {_ROOT}/services/ps/sluice-ps "$@"; fi\n'
                         'exec sleep 1000\n')
        shard.chmod(0o755)
        code, objects = self.finish(
            self.start('--faults', 'kill:shard', '--every', '0.5s', '--for', '1s', '--stall', '10s', programs=programs, steps=10000))
        verdict = objects[-1]
        self.assertEqual((code, verdict['verdict']), (1, 'Failed'), verdict)
        self.assertIn('the job hangs: no step for 10 s', verdict['problems'][0])
        self.assertIn('the last fault: kill ps-', verdict['problems'][0])
        self.assertNotIn('recoveredSeconds', verdict['faults'][0])
        self.assertEqual(processes_below(self.directory), [])

    def test_ctrl_c_stops_job_without_verdict(self):
        process = self.start('--faults', 'freeze:shard', '--for', '60s', '--every', '0.5s', steps=10000)
        lines = []
        for line in process.stdout:
            lines.append(line)
            if json.loads(line)['type'] == 'fault':
                break
        # The frozen shard continues, so that the checkpoint can be saved.
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        code, objects = self.finish(process)
        self.assertEqual((code, objects[-1]['verdict']), (130, 'Interrupted'))
        self.assertLess(time.monotonic() - began, 20)
        summary = [entry for entry in objects if entry['type'] == 'summary'][-1]
        self.assertEqual((summary['outcome'], summary['reason']), ('Suspended', ''))
        self.assertEqual(processes_below(self.directory), [])

    def test_second_ctrl_c_stops_immediately(self):
        process = self.start('--every', '60s', steps=10000)
        shard = None
        while True:
            entry = json.loads(process.stdout.readline())
            if entry['type'] == 'process' and entry['name'] == 'ps-0':
                shard = entry['pid']
            if entry['type'] == 'progress' and entry['step'] > 0:
                os.kill(shard, signal.SIGSTOP)  # so that no checkpoint completes
                process.send_signal(signal.SIGINT)
            if entry['type'] == 'stopping':
                break
        process.send_signal(signal.SIGINT)
        code, objects = self.finish(process)
        self.assertEqual((code, objects[-1]['verdict'], objects[-1]['faults']), (130, 'Interrupted', []))
        summary = [entry for entry in objects if entry['type'] == 'summary'][-1]
        self.assertEqual(summary['reason'], 'stopped immediately')
        self.assertEqual(processes_below(self.directory), [])


if __name__ == '__main__':
    unittest_main.main()
