"""`sluice verify` as a user runs it: equal replays, planted differences that it must name, and refusals."""

import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import unittest

from tools import unittest_main

_ROOT = pathlib.Path(os.environ.get('SLUICE_TEST_PROGRAMS', os.path.abspath('.')))
_SLUICE = _ROOT / 'cli/sluice'
_PATIENCE_S = 120

_MANIFEST = """apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: example}
spec:
  model: {name: mlp, dimensions: {hidden: 16}}
  data: {format: Synthetic, synthetic: {samples: 512, shape: [16], classes: 4}}
  optimizer: {%(optimizer)s, learningRate: 0.01}
  training: {steps: 60, globalBatchSize: 16, microbatchSize: 2, %(mode)s}
  debug: {stepDelaySeconds: 0.02}
  parameterServer: {replicas: 2, partitions: 8}
  worker: {replicas: 3}
  checkpoint: {intervalSteps: 20, maxToKeep: 10%(checkpoint)s}
"""

# Plain SGD. With another build (WRONG), the update number 30 of a tensor of 4 elements, the last bias, is wrong.
_OPTIMIZER = """
#include <sluice/optimizer_plugin.h>

namespace {

using sluice::plugin::Arguments;
using sluice::plugin::Parameters;
using sluice::plugin::Range;

class Sgd final : public sluice::plugin::Optimizer {
 public:
  explicit Sgd(Parameters&) {}
  void Step(const Arguments& arguments, const Range<float>& range) const override { Run<float>(arguments, range); }
  void Step(const Arguments& arguments, const Range<double>& range) const override { Run<double>(arguments, range); }

 private:
  template <typename T>
  void Run(const Arguments& arguments, const Range<T>& range) const {
    T rate = static_cast<T>(arguments.learning_rate * arguments.gradient_scale);
#ifdef WRONG
    if (arguments.count == 30 && range.count == 4) rate *= T{1.0009765625};
#endif
    for (size_t i = 0; i < range.count; ++i) range.parameters_out[i] = range.parameters[i] - rate * range.gradient[i];
  }
};

}  // namespace

SLUICE_OPTIMIZER_PLUGIN(Sgd)
"""

_XXHASH = ctypes.CDLL('libxxhash.so.0')
_XXHASH.XXH3_64bits.restype = ctypes.c_uint64
_XXHASH.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


def crc32c(content):
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def partition_file(checkpoint, tensor):
    """(entry of the index, path, header, begin of the data) of the file that has the first block of this tensor."""
    index = json.loads((checkpoint / 'manifest.json').read_text())
    for entry in index['files']:
        content = (checkpoint / entry['name']).read_bytes()
        (length,) = struct.unpack('<Q', content[:8])
        header = json.loads(content[8:8 + length])
        if any(name.startswith(f'{tensor}[0:') for name in header):
            return entry, checkpoint / entry['name'], header, 8 + length
    raise AssertionError(f'{tensor} is in no file of {checkpoint}')


def flip_bit(checkpoint, tensor):
    """Flips a bit of a tensor, and makes every hash and checksum right again. Returns the partition."""
    entry, path, header, begin = partition_file(checkpoint, tensor)
    content = bytearray(path.read_bytes())
    array = next(value for name, value in header.items() if name.startswith(f'{tensor}[0:') and '/' not in name)
    content[begin + array['data_offsets'][0]] ^= 1
    counts = [int(count) for count in header['__metadata__']['counts'].split()]
    hashed = bytes(content[begin:]) + b''.join(struct.pack('<Q', count) for count in counts)
    state_hash = _XXHASH.XXH3_64bits(hashed, len(hashed))
    old = header['__metadata__']['state_hash'].encode()
    content[:begin] = content[:begin].replace(b'"state_hash":"' + old, b'"state_hash":"%016x' % state_hash)
    path.write_bytes(content)

    # The index, with its own checksum.
    index_path = checkpoint / 'manifest.json'
    text = index_path.read_bytes()
    for name, before, after in (('crc32c', f'{entry["crc32c"]}', f'{crc32c(content)}'),
                                ('state_hash', f'"{entry["state_hash"]}"', f'"{state_hash}"')):
        text, replaced = re.subn(rb'("%s": ?)%s(?=[,\s}])' % (name.encode(), re.escape(before.encode())),
                                 lambda found: found[1] + after.encode(), text)
        assert replaced == 1, (name, replaced)
    body = text[:text.rindex(b',\n "crc32c": "')]
    index_path.write_bytes(body + b',\n "crc32c": "%08x"\n}\n' % crc32c(body))
    return int(entry.get('partition', 0))


class VerifyTest(unittest.TestCase):

    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(dir=os.environ.get('TEST_TMPDIR'))))
        self.state = self.directory / '.sluice/example'

    def sluice(self, *arguments):
        return subprocess.run([_SLUICE, *arguments], cwd=self.directory, capture_output=True, text=True, timeout=_PATIENCE_S,
                              check=False, env={**os.environ, 'SLUICE_PLUGIN_PATH': str(self.directory)})

    def train(self, optimizer='name: Adam', mode='determinism: BitExact', checkpoint=''):
        manifest = _MANIFEST % {'optimizer': optimizer, 'mode': mode, 'checkpoint': checkpoint}
        (self.directory / 'job.yaml').write_text(manifest)
        done = self.sluice('run', 'job.yaml', '--quiet')
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def checkpoint(self, step):
        return self.state / f'checkpoints/attempt-0001-step-{step:012}'

    def steps(self):
        """The steps of the checkpoints: a checkpoint may be late, so they need not be multiples of the interval."""
        steps = sorted(int(path.name[-12:]) for path in (self.state / 'checkpoints').glob('attempt-*'))
        self.assertGreaterEqual(len(steps), 3)
        return steps

    def intervals(self):
        steps = self.steps()
        return list(zip(steps, steps[1:]))

    def verify(self, *flags):
        """The exit code and the verdict."""
        done = self.sluice('verify', 'example', '--output', 'json', *flags)
        verdict = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual(verdict['type'], 'verdict', done.stdout + done.stderr)
        self.assertEqual(verdict['exitCode'], done.returncode)
        return done.returncode, verdict

    def files(self):
        return {path: path.read_bytes() for path in self.state.rglob('*') if path.is_file()}

    def test_bit_exact_job_is_equal_in_every_interval(self):
        self.train(checkpoint=', hashIntervalSteps: 1')
        before = self.files()
        code, verdict = self.verify('--from', '0')
        self.assertEqual((code, verdict['verdict'], verdict['exact']), (0, 'Passed', True), verdict)
        intervals = [(entry['from'], entry['to'], entry['equal'], entry['stepHashes']) for entry in verdict['intervals']]
        partitions = verdict['intervals'][0]['partitions']
        self.assertGreater(partitions, 2)
        expected = [(0, self.steps()[0]), *self.intervals()]
        self.assertEqual(intervals, [(begin, end, True, (end - begin) * partitions) for begin, end in expected])
        self.assertEqual(self.files(), before)

        done = self.sluice('verify', 'example')
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        begin, end = expected[-1]
        self.assertRegex(done.stdout, rf'(?m)^ +{begin} +{end} +{partitions} +{(end - begin) * partitions}  equal$')
        self.assertTrue(done.stdout.endswith(f'Equal: 1 interval, {partitions} partitions compared\n'), done.stdout)

    def test_interval_across_a_restoration_is_equal(self):
        manifest = _MANIFEST % {'optimizer': 'name: Adam', 'mode': 'determinism: BitExact', 'checkpoint': ''}
        (self.directory / 'job.yaml').write_text(manifest.replace('steps: 60', 'steps: 30'))
        self.assertEqual(self.sluice('run', 'job.yaml', '--quiet').returncode, 0)
        (self.directory / 'job.yaml').write_text(
            manifest.replace('maxToKeep: 10', 'maxToKeep: 10, onExisting: Resume').replace('replicas: 2', 'replicas: 1'))
        done = self.sluice('run', 'job.yaml', '--quiet')
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        code, verdict = self.verify('--all')
        self.assertEqual(code, 0, verdict)
        # The second run has begun with the checkpoint of step 30.
        found = [(entry['from'], entry['to']) for entry in verdict['intervals']]
        self.assertEqual([begin for begin, _ in found[1:]], [end for _, end in found[:-1]])
        self.assertIn(30, [begin for begin, _ in found])
        self.assertEqual(found[-1][1], 60)

    def test_optimizer_that_differs_at_one_step_is_named_by_step_partition_and_tensor(self):
        include = self.directory / 'include/sluice'
        include.mkdir(parents=True)
        shutil.copy(_ROOT / 'include/sluice/optimizer_plugin.h', include)
        source = self.directory / 'plain.cc'
        source.write_text(_OPTIMIZER)

        def build(*flags):
            subprocess.run(['g++', '-std=c++17', '-O1', '-fPIC', '-shared', *flags, '-I', include.parent, source, '-o',
                            self.directory / 'libplain.so'], check=True)

        build('-DWRONG')
        self.train(optimizer='name: Plugin, library: plain', checkpoint=', hashIntervalSteps: 1')
        build()
        code, verdict = self.verify('--all')
        self.assertEqual((code, verdict['verdict']), (1, 'Failed'), verdict)
        # The other intervals begin with the recorded state, so that they are equal.
        wrong = [begin < 30 <= end for begin, end in self.intervals()]
        self.assertIn(True, wrong)
        self.assertEqual([not entry['passed'] for entry in verdict['intervals']], wrong)
        begin, end = self.intervals()[wrong.index(True)]
        difference = verdict['intervals'][wrong.index(True)]['difference']
        entry, _, _, _ = partition_file(self.checkpoint(end), 'fc2.bias')
        self.assertEqual((difference['after'], difference['step'], difference['storedOnly']), (29, 30, False))
        self.assertEqual(difference['partitions'], [int(entry.get('partition', 0))])
        self.assertIn('fc2.bias[0:4]', difference['arrays'])

        done = self.sluice('verify', 'example', '--to', f'{end}')
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn(f'differs: partition {difference["partitions"][0]} after step 30 (fc2.bias[0:4]', done.stdout)
        self.assertTrue((self.state / f'verify/steps-{begin}-{end}/example/checkpoints').is_dir(), done.stdout)

    def test_checkpoint_that_was_changed_is_distinguished_from_training_that_differs(self):
        self.train(checkpoint=', hashIntervalSteps: 1')
        partition = flip_bit(self.checkpoint(60), 'fc1.weight')
        code, verdict = self.verify()
        self.assertEqual(code, 1, verdict)
        self.assertEqual(verdict['intervals'][0]['difference'],
                         {'after': 60, 'step': 60, 'partitions': [partition], 'arrays': ['fc1.weight[0:256]'], 'storedOnly': True})

        # A changed checkpoint in the middle is named where an interval ends with it and where one begins with it.
        begin, step, end = self.steps()[:3]
        partition = flip_bit(self.checkpoint(step), 'fc2.weight')
        code, verdict = self.verify('--from', f'{begin}', '--to', f'{end}')
        self.assertEqual(code, 1, verdict)
        differences = [entry['difference'] for entry in verdict['intervals']]
        self.assertEqual([(entry['step'], entry['partitions'], entry['storedOnly']) for entry in differences],
                         [(step, [partition], True), (step, [partition], True)])
        self.assertEqual(differences[0]['arrays'], ['fc2.weight[0:64]'])

    def test_without_step_hashes_the_interval_and_the_tensor_are_named(self):
        self.train()
        begin, end = self.intervals()[0]
        partition = flip_bit(self.checkpoint(end), 'fc1.bias')
        code, verdict = self.verify('--to', f'{end}')
        self.assertEqual(code, 1, verdict)
        self.assertEqual(verdict['intervals'][0]['difference'],
                         {'after': begin, 'step': end, 'partitions': [partition], 'arrays': ['fc1.bias[0:16]'], 'storedOnly': False})
        done = self.sluice('verify', 'example', '--to', f'{end}')
        self.assertIn(f'partition {partition} between the steps {begin} and {end} (fc1.bias[0:16])', done.stdout)
        self.assertIn('hashIntervalSteps', done.stdout)

    def test_job_without_bit_exact_is_compared_with_a_tolerance(self):
        self.train(mode='mode: Synchronous')
        code, verdict = self.verify()
        self.assertEqual((code, verdict['exact'], verdict['tolerance']), (0, False, 0.001), verdict)
        flip_bit(self.checkpoint(60), 'fc1.weight')
        code, verdict = self.verify('--tolerance', '0')
        self.assertEqual((code, verdict['intervals'][0]['passed']), (1, False), verdict)
        self.assertGreater(verdict['intervals'][0]['largest'], 0)

    def test_damaged_checkpoint_is_named(self):
        self.train()
        step = self.steps()[-2]
        _, path, _, _ = partition_file(self.checkpoint(step), 'fc1.weight')
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        for flags in ((), ('--to', f'{step}')):
            done = self.sluice('verify', 'example', *flags)
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
            self.assertIn(path.name, done.stderr)

    def test_changed_data_is_named(self):
        data = self.directory / 'points.csv'
        rows = [f'{i % 7},{i % 5},{i % 3},{i % 2}' for i in range(256)]
        data.write_text('\n'.join(['a,b,c,label', *rows]) + '\n')
        manifest = _MANIFEST % {'optimizer': 'name: Adam', 'mode': 'determinism: BitExact', 'checkpoint': ''}
        (self.directory / 'job.yaml').write_text(
            re.sub('  data: .*', '  data: {format: CSV, source: {path: points.csv}, csv: {labelColumn: label}}', manifest))
        done = self.sluice('run', 'job.yaml', '--quiet')
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.verify()[0], 0)

        rows[9] = '6,4,2,0'
        data.write_text('\n'.join(['a,b,c,label', *rows]) + '\n')
        done = self.sluice('verify', 'example')
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r'Note: spec.data.source.path: \S*points.csv was changed after the checkpoint of step 60')
        self.assertIn('differs: partitions ', done.stdout)

        data.unlink()
        done = self.sluice('verify', 'example')
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertIn('points.csv: no such file', done.stderr)

    def test_asynchronous_job_is_refused(self):
        self.train(mode='mode: Asynchronous')
        done = self.sluice('verify', 'example')
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertIn('not a function of the seed', done.stderr)

    def test_ctrl_c_ends_the_replay(self):
        self.train()
        process = subprocess.Popen([_SLUICE, 'verify', 'example', '--from', '0', '--output', 'json'], cwd=self.directory,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        pids = []
        while len(pids) < 3:
            entry = json.loads(process.stdout.readline())
            if entry['type'] == 'process' and entry['state'] == 'started':
                pids.append(entry['pid'])
                if entry['name'] == 'ps-0':
                    os.kill(entry['pid'], signal.SIGSTOP)  # so that the replay cannot end before the signal
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=_PATIENCE_S)
        self.assertEqual(process.returncode, 130, errors)
        self.assertIn('interrupted', errors)
        for pid in pids:
            self.assertFalse(pathlib.Path(f'/proc/{pid}').exists())
        self.assertEqual(list(pathlib.Path(self.directory).glob('.sluice/*/verify')), [])


if __name__ == '__main__':
    unittest_main.main()
