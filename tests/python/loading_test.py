"""How samples are read: their order and random numbers, loader processes, streams, digests."""

from python.testing import requirements
requirements.need('numpy', 'google.protobuf', 'torch')

import glob
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

import numpy as np
import torch

import sluice
from sluice import data as data_lib
from sluice import loaders as loaders_lib
from sluice import samples as samples_lib
from sluice import seeds as seeds_lib
from sluice import streams
from sluice import wire
from tools import unittest_main

_SAMPLES = 20


def directory():
    return tempfile.mkdtemp(dir=os.environ.get('TEST_TMPDIR'))


def make_spec(samples_of_step=4, **training):
    spec = wire.JobSpec()
    spec.training.mode = wire.SYNCHRONOUS
    spec.training.global_batch_size = samples_of_step
    spec.training.steps = 1000
    spec.training.seed = 5
    spec.data.no_shuffle = True
    for name, value in training.items():
        setattr(spec.training, name, value)
    return spec


class Noisy(torch.utils.data.Dataset):
    """Samples with random numbers from every source; records which process reads which sample."""

    def __init__(self, reads=None, seconds=0.0):
        self.reads = reads
        self.seconds = seconds
        self.generator = np.random.default_rng(1)
        self.own = torch.Generator()

    def __getstate__(self):
        return {**vars(self), 'own': None}  # PyTorch cannot pass it to a forkserver

    def __setstate__(self, state):
        self.__dict__.update(state, own=torch.Generator())

    def __len__(self):
        return _SAMPLES

    def __getitem__(self, index):
        if self.reads:
            with open(os.path.join(self.reads, str(os.getpid())), 'a') as file:
                file.write(f'{index}\n')
        time.sleep(self.seconds)
        return torch.tensor([index, random.random(), np.random.rand(), torch.rand(()).item(),
                             self.generator.random(), torch.rand((), generator=self.own).item()],
                            dtype=torch.float64)


class Raises(Noisy):
    """Raises an exception for sample 5."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def __getitem__(self, index):
        if index == 5:
            raise self.error
        return super().__getitem__(index)


class Dies(Noisy):
    """The process that reads sample 5 dies, at most so many times."""

    def __init__(self, marks, times):
        super().__init__()
        self.marks = marks
        self.times = times

    def __getitem__(self, index):
        died = len(os.listdir(self.marks))
        if index == 5 and died < self.times:
            tempfile.mkstemp(dir=self.marks)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class OneBuffer(torch.utils.data.Dataset):
    """Every sample is the same memory."""

    def __init__(self):
        self.buffer = torch.zeros(3)
        self.array = np.zeros(3)

    def __len__(self):
        return _SAMPLES

    def __getitem__(self, index):
        self.buffer[:] = index
        self.array[:] = index
        return self.buffer, self.array


class Process(torch.utils.data.Dataset):
    """What a loader process is like."""

    def __init__(self, connections=()):
        self.connections = list(connections)  # numbers of files

    def __len__(self):
        return _SAMPLES

    def __getitem__(self, index):
        return {'pid': os.getpid(), 'type': str(torch.get_default_dtype()),
                'threads': torch.get_num_threads(),
                'connected': [loaders_lib._peer(fd) is not None for fd in self.connections]}


class Sleeps(Process):
    """Samples after the eighth take this time."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def __getitem__(self, index):
        if index >= 8:
            time.sleep(self.seconds)
        return super().__getitem__(index)


def only(samples):
    return samples[0]


class LoadingTest(unittest.TestCase):

    def samples(self, dataset, num_workers=2, prefetch=2, collate=None, context=None, evaluation=None,
                spec=None, address='127.0.0.1:1', pin_memory=False):
        loading = None
        if num_workers:
            loading = {'num_workers': num_workers, 'prefetch': prefetch, 'pin_memory': pin_memory,
                       'context': context, 'address': address, 'index': 0}
        made = samples_lib.Samples(dataset, evaluation, collate, spec or make_spec(),
                                   lambda first, count: [p % _SAMPLES for p in range(first, first + count)],
                                   loading)
        self.addCleanup(made.close)
        return made

    @staticmethod
    def read(samples, first, count=4):
        positions = list(range(first, first + count))
        return samples.read(positions, [p % _SAMPLES for p in positions])


class Order(LoadingTest):

    def test_samples_are_the_same_with_any_number_of_processes_and_prefetch(self):
        expected = None
        for num_workers, prefetch, context in ((0, 2, None), (1, 1, 'fork'), (2, 3, 'fork'),
                                               (2, 1, 'forkserver')):
            samples = self.samples(Noisy(), num_workers, prefetch, context=context)
            found = torch.stack([self.read(samples, 4 * step) for step in range(12)])
            samples.close()
            expected = found if expected is None else expected
            self.assertTrue(torch.equal(found, expected), (num_workers, prefetch, context))
        first, second = expected[0], expected[5]  # the same samples in two epochs
        self.assertTrue(torch.equal(first[:, 0], second[:, 0]))
        self.assertFalse((first[:, 1:] == second[:, 1:]).any())

    def test_a_sample_is_augmented_alike_in_another_share_of_the_step(self):
        samples = self.samples(Noisy())
        whole = self.read(samples, 0, 8)
        self.assertTrue(torch.equal(self.read(samples, 3, 2), whole[3:5]))
        subset = torch.utils.data.Subset(Noisy(), range(_SAMPLES))
        self.assertTrue(torch.equal(self.read(self.samples(subset, 0), 3, 2), whole[3:5]))

    def test_random_numbers_of_the_program_are_not_touched(self):
        def numbers():
            random.seed(1), np.random.seed(1), torch.manual_seed(1)
            yield
            yield random.random(), np.random.rand(), torch.rand(()).item()

        alone = list(numbers())[1]
        for num_workers in (0, 2):
            rest = numbers()
            next(rest)
            samples = self.samples(Noisy(), num_workers, evaluation=Noisy())
            self.read(samples, 0)
            list(samples.evaluate(range(8), 4))
            self.read(samples, 4)
            self.assertEqual(next(rest), alone, num_workers)

    def test_an_evaluation_does_not_change_what_follows_and_is_read_ahead(self):
        reads = directory()
        samples = self.samples(Noisy(), evaluation=Noisy(reads))
        self.read(samples, 0)
        found = [part for _, part in samples.evaluate(list(range(10)), 4)]
        self.assertEqual(torch.cat(found)[:, 0].tolist(), list(range(10)))
        self.assertNotIn(str(os.getpid()), os.listdir(reads))
        self.assertTrue(torch.equal(self.read(samples, 4), self.read(self.samples(Noisy(), 0), 4)))
        here = [part for _, part in self.samples(Noisy(), 0, evaluation=Noisy()).evaluate(list(range(10)), 4)]
        self.assertTrue(torch.equal(torch.cat(found), torch.cat(here)))


class Guesses(unittest.TestCase):

    def test_a_part_of_each_step_over_the_end_of_an_epoch(self):
        expected = samples_lib.Expected(10, make_spec())  # steps of 4, 4, 2
        self.assertEqual(expected.following(0, 2, 4), [(4, 2), (8, 2), (10, 2), (14, 2)])
        self.assertEqual(expected.following(4, 2, 2), [(8, 2), (10, 2)])
        self.assertEqual(expected.following(8, 2, 2), [(10, 2), (14, 2)])

    def test_a_part_that_a_short_step_does_not_have(self):
        expected = samples_lib.Expected(10, make_spec())
        self.assertEqual(expected.following(2, 2, 3), [(6, 2), (12, 2), (16, 2)])

    def test_several_batches_of_a_step_are_learnt(self):
        expected = samples_lib.Expected(100, make_spec(8))
        expected.following(0, 2, 9)
        expected.following(6, 2, 9)
        self.assertEqual(expected.following(8, 2, 3), [(14, 2), (16, 2), (22, 2)])
        # Another view: the step's first half.
        self.assertEqual(expected.following(16, 4, 2), [(24, 4), (32, 4)])

    def test_nothing_is_expected_after_the_last_step(self):
        expected = samples_lib.Expected(100, make_spec(4, steps=3))
        self.assertEqual(expected.following(0, 4, 9), [(4, 4), (8, 4)])
        expected = samples_lib.Expected(10, make_spec(4, steps=0, epochs=1,
                                                      last_batch=wire.TrainingSpec_DROP))
        self.assertEqual(expected.following(0, 4, 9), [(4, 4)])

    def test_an_asynchronous_worker_walks(self):
        expected = samples_lib.Expected(100, make_spec(mode=wire.ASYNCHRONOUS))
        self.assertEqual(expected.following(96, 4, 2), [(100, 4), (104, 4)])


class ReadAhead(LoadingTest):

    def reads(self, reads):
        found = []
        for name in glob.glob(os.path.join(reads, '*')):
            found += [int(line) for line in pathlib.Path(name).read_text().split()]
        return sorted(found)

    def test_each_sample_is_read_once_as_long_as_the_guess_is_right(self):
        reads = directory()
        samples = self.samples(Noisy(reads), spec=make_spec(steps=5))
        for step in range(5):
            self.read(samples, 4 * step)
        self.assertEqual(self.reads(reads), list(range(_SAMPLES)))

    def test_other_positions_are_read_and_batches_still_wanted_are_kept(self):
        reads = directory()
        samples = self.samples(Noisy(reads, 0.02), spec=make_spec(steps=5))
        here = self.samples(Noisy(), 0)
        self.assertTrue(torch.equal(self.read(samples, 0), self.read(here, 0)))
        self.assertTrue(torch.equal(self.read(samples, 8), self.read(here, 8)))   # a step was skipped
        self.assertTrue(torch.equal(self.read(samples, 12), self.read(here, 12)))
        self.assertEqual([place for place in self.reads(reads) if 8 <= place < 16],
                         list(range(8, 16)), 'what was read ahead was read again')
        self.assertTrue(torch.equal(self.read(samples, 6, 3), self.read(here, 6, 3)))


class Failures(LoadingTest):

    def raised(self, error, num_workers):
        samples = self.samples(Raises(error), num_workers)
        self.read(samples, 0)
        with self.assertRaises(Exception) as raised:
            self.read(samples, 4)
        samples.close()
        return raised.exception

    def test_the_end_of_an_iteration_names_the_sample(self):
        for error in (StopIteration(), GeneratorExit()):
            for num_workers in (0, 2):
                found = self.raised(error, num_workers)
                self.assertIsInstance(found, sluice.UsageError)
                self.assertRegex(str(found), f'raised {type(error).__name__} for sample 5, .*default')

    def test_an_exit_of_a_loader_process_is_an_error_with_its_cause(self):
        for error in (SystemExit('no such file'), KeyboardInterrupt('by hand')):
            found = self.raised(error, 2)
            self.assertIsInstance(found, sluice.UsageError)
            self.assertIn(f'{type(error).__name__} in a loader process: {error}', str(found))

    def test_other_errors_keep_their_type_and_have_the_traceback(self):
        found = self.raised(KeyError('label'), 2)
        self.assertIsInstance(found, KeyError)
        self.assertRegex(str(found.__cause__), r'reading samples 4, 5, 6, 7:\n(.|\n)*in __getitem__')

    def test_an_error_that_cannot_be_pickled(self):
        class Local(Exception):
            pass

        found = self.raised(Local('broken'), 2)
        self.assertIsInstance(found, sluice.SluiceError)
        self.assertIn('Local: broken', str(found))

    def test_an_error_of_a_batch_that_is_not_wanted_is_dropped(self):
        samples = self.samples(Raises(KeyError('label')))
        self.read(samples, 0)
        self.read(samples, 8)

    def test_a_killed_loader_process_is_replaced(self):
        samples = self.samples(Dies(directory(), 2))
        here = self.samples(Noisy(), 0)
        for step in range(5):
            self.assertTrue(torch.equal(self.read(samples, 4 * step), self.read(here, 4 * step)))

    def test_a_sample_that_always_kills_is_an_error(self):
        samples = self.samples(Dies(directory(), 100), num_workers=1)
        self.read(samples, 0)
        with self.assertRaisesRegex(sluice.SluiceError, 'ended with signal 9, 4 times in a row.*num_workers'):
            self.read(samples, 4)

    def test_a_dataset_that_cannot_be_pickled(self):
        dataset = Noisy()
        dataset.transform = lambda sample: sample
        with self.assertRaisesRegex(sluice.UsageError, "started by 'forkserver'.*top level"):
            self.samples(dataset, context='forkserver')

    def test_a_loader_process_that_imports_the_program_does_not_join(self):
        process = mock.Mock(_inheriting=True)
        with mock.patch('multiprocessing.current_process', return_value=process):
            with self.assertRaisesRegex(sluice.UsageError, "if __name__ == '__main__'"):
                sluice.join('127.0.0.1:1', timeout=1)

    def test_arguments(self):
        for arguments, message in (((-1, 2, False, None), 'num_workers is -1'),
                                   ((2, 0, False, None), 'prefetch is 0'), ((2.5, 2, False, None), '2.5'),
                                   ((0, 2, True, None), 'pin_memory needs loader processes'),
                                   ((0, 2, False, 'fork'), 'multiprocessing_context needs')):
            with self.assertRaisesRegex(sluice.UsageError, message):
                data_lib.check_loading(*arguments)
        self.assertEqual(data_lib.check_loading(1, 2, False, None), [])
        self.assertRegex(data_lib.check_loading(10000, 2, False, None)[0], 'There are 10000 loader processes')


class Processes(LoadingTest):

    def test_batches_are_copies(self):
        samples = self.samples(OneBuffer(), num_workers=1, prefetch=4, collate=only)
        for epoch in range(3):
            batches = [self.read(samples, epoch * _SAMPLES + place, 1) for place in range(8)]
            for place, (tensor, array) in enumerate(batches):
                self.assertEqual((tensor.tolist(), array.tolist()), ([place] * 3, [place] * 3))
                tensor /= 255  # as a normalisation in place
        nested = {'a': [torch.ones(2)], 'b': (np.ones(2), 'text', None)}
        found = loaders_lib.copied(nested)
        nested['a'][0].zero_()
        nested['b'][0][:] = 0
        self.assertEqual((found['a'][0].sum().item(), found['b'][0].sum()), (2, 2))

    def test_default_type_and_threads(self):
        torch.set_default_dtype(torch.float64)
        self.addCleanup(torch.set_default_dtype, torch.float32)
        for context in ('fork', 'forkserver'):
            found = self.read(self.samples(Process(), collate=only, context=context), 0)
            self.assertEqual((found['type'], found['threads']), ('torch.float64', 1), context)
            self.assertNotEqual(found['pid'], os.getpid())

    def test_connections_to_the_coordinator_are_not_inherited(self):
        with socket.create_server(('127.0.0.1', 0)) as server, \
                socket.create_server(('127.0.0.1', 0)) as other:
            connections = [socket.create_connection(each.getsockname()[:2]) for each in (server, other)]
            samples = self.samples(Process([each.fileno() for each in connections]), collate=only,
                                   context='fork', address=f'localhost:{server.getsockname()[1]}')
            self.assertEqual(self.read(samples, 0)['connected'], [False, True])
            self.assertIsNotNone(loaders_lib._peer(connections[0].fileno()))
            for connection in connections:
                connection.close()

    def program(self, what, context):
        """A process that runs a function of this file, alone in its process group."""
        started = subprocess.Popen([sys.executable, __file__, what, context], text=True, start_new_session=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)})
        self.addCleanup(started.__exit__, None, None, None)
        self.addCleanup(started.kill)
        return started

    def test_loader_processes_end_with_their_worker(self):
        for context in ('fork', 'forkserver'):
            program = self.program('wait', context)
            pids = json.loads(program.stdout.readline())
            self.assertEqual(len(set(pids)), 2)
            self.assertTrue(all(_lives(pid) for pid in pids))
            program.kill()
            program.wait()
            deadline = time.monotonic() + 20
            while any(_lives(pid) for pid in pids):
                self.assertLess(time.monotonic(), deadline, context)
                time.sleep(0.05)

    def test_ctrl_c_is_for_the_worker_alone(self):
        for context in ('fork', 'forkserver'):
            program = self.program('interrupted', context)
            before = json.loads(program.stdout.readline())
            self.assertEqual(len(before), 2)
            os.killpg(program.pid, signal.SIGINT)  # as a terminal does
            after, text = program.communicate(timeout=60)
            self.assertEqual(text, '', context)
            self.assertEqual(json.loads(after), before, context)


def _lives(pid):
    try:
        return pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] != 'Z'
    except FileNotFoundError:
        return False


def wait_for_the_kill(context):
    test = LoadingTest()
    samples = test.samples(Sleeps(60), collate=only, context=context)
    print(json.dumps([test.read(samples, 4 * step)['pid'] for step in range(2)]), flush=True)
    time.sleep(60)


def read_although_interrupted(context):
    """A program that survives Ctrl-C, such as one in a debugger. Prints the loader processes before and after it."""
    interrupted = threading.Event()
    signal.signal(signal.SIGINT, lambda *unused: interrupted.set())
    test = LoadingTest()
    samples = test.samples(Sleeps(0.1), collate=only, context=context)
    for steps in (range(2), range(2, 8)):
        print(json.dumps(sorted({test.read(samples, 4 * step)['pid'] for step in steps})), flush=True)
        interrupted.wait(60)
    samples.close()


class Counting:
    """A stream; records how often it is read from the beginning."""

    def __init__(self, count, length=None):
        self.count = count
        self.epochs = []
        if length is not None:
            self.length = length

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def __iter__(self):
        epoch = self.epochs[-1]
        return (100 * epoch + place for place in range(self.count))


class WithLength(Counting):

    def __len__(self):
        return self.length


class Streams(LoadingTest):

    def test_a_sample_is_that_at_its_position_over_passes(self):
        stream = streams.Stream(Counting(5), keep=4)
        at = lambda position: stream.at(position, lambda place: None)
        self.assertEqual([at(position) for position in (0, 2, 4, 5, 11)], [0, 2, 4, 100, 201])
        self.assertEqual(at(9), 104, 'it was kept')
        self.assertEqual(stream._iterable.epochs, [0, 1, 2])
        self.assertEqual(at(1), 1)
        self.assertEqual(stream._iterable.epochs, [0, 1, 2, 0])
        self.assertEqual(len(stream), streams.ENDLESS)

    def test_a_length_must_be_right(self):
        stream = streams.Stream(WithLength(3, 4), keep=4)
        self.assertEqual(len(stream), 4)
        with self.assertRaisesRegex(sluice.UsageError, r'gave 3 samples, and its len\(\) is 4'):
            stream.at(3, lambda place: None)
        with self.assertRaisesRegex(sluice.UsageError, 'has no samples'):
            streams.Stream(Counting(0), keep=1).at(0, lambda place: None)

    def test_random_numbers_follow_from_the_position(self):
        class Random(torch.utils.data.IterableDataset):
            def __iter__(self):
                while True:
                    yield torch.rand(()).item()

        one, other = (self.samples(streams.Stream(Random(), 8), workers) for workers in (0, 1))
        whole = self.read(one, 0, 12)
        self.assertTrue(torch.equal(self.read(other, 4, 3), whole[4:7]))
        self.assertTrue(torch.equal(self.read(other, 9, 3), whole[9:12]))

    def test_what_cannot_be_trained_on_is_refused(self):
        self.assertTrue(streams.is_stream(Counting(3)))
        self.assertFalse(streams.is_stream(Noisy()))
        self.assertFalse(streams.is_stream(torch.utils.data.DataLoader(Noisy())))
        spec = make_spec()
        with self.assertRaisesRegex(sluice.UsageError, 'an iterator, which can be read once'):
            streams.check(iter([1]), spec, 0)
        with self.assertRaisesRegex(sluice.UsageError, 'num_workers=1 instead of 2'):
            streams.check(_Endless(), spec, 2)
        distributed = _Endless()
        distributed._distributed = object()
        with self.assertRaisesRegex(sluice.UsageError, 'give the whole stream'):
            streams.check(distributed, spec, 1)
        spec.training.steps = 0
        with self.assertRaisesRegex(sluice.UsageError, 'set training.steps'):
            streams.check(_Endless(), spec, 0)
        spec.data.no_shuffle = False
        with self.assertRaisesRegex(sluice.UsageError, 'data.shuffle: false'):
            streams.check(_Endless(), spec, 0)


class _Endless:

    def __iter__(self):
        return iter(range(10))


class Digests(unittest.TestCase):

    def test_the_same_data_in_another_form_of_memory_has_the_same_digest(self):
        x = np.arange(60, dtype=np.float32).reshape(20, 3)
        digest = data_lib.digest_of(sluice.ArrayDataset(x))
        self.assertNotEqual(digest, 0)
        self.assertLess(digest, 1 << 64)
        self.assertEqual(digest, data_lib.digest_of(sluice.ArrayDataset(torch.from_numpy(x.copy()))))
        self.assertEqual(digest, data_lib.digest_of(sluice.ArrayDataset(np.asfortranarray(x))))
        for changed in (x[:-1], x + 1, x.astype(np.float64), x.reshape(20, 3, 1), np.roll(x, 1)):
            self.assertNotEqual(digest, data_lib.digest_of(sluice.ArrayDataset(changed)))

    def test_kinds_of_samples(self):
        samples = [({'b': 1, 'a': 'x'}, b'bytes', None, [1.5, True])] * 3
        digest = data_lib.digest_of(samples)
        self.assertNotEqual(digest, 0)
        self.assertEqual(digest, data_lib.digest_of([({'a': 'x', 'b': 1}, b'bytes', None, [1.5, True])] * 3))
        self.assertNotEqual(digest, data_lib.digest_of([({'a': 'x', 'b': 1}, b'bytes', None, [1.5, 1])] * 3))
        self.assertNotEqual(data_lib.digest_of([1]), data_lib.digest_of([1, 1]))

    def test_random_samples_have_one_and_unrepeatable_ones_none(self):
        torch.manual_seed(1)
        before = torch.rand(())
        digest = data_lib.digest_of(Noisy(), seed=3)
        self.assertNotEqual(digest, 0)
        self.assertEqual(digest, data_lib.digest_of(Noisy(), seed=3))
        torch.manual_seed(1)
        self.assertEqual(before, torch.rand(()))

        class Clock(Noisy):
            def __getitem__(self, index):
                return time.perf_counter_ns()

        class Objects(Noisy):
            def __getitem__(self, index):
                return object()

        for dataset in (Clock(), Objects(), Raises(KeyError('x')), streams.Stream(_Endless(), 1)):
            if isinstance(dataset, Raises):
                dataset.__class__ = type('All', (Raises,), {'__getitem__': lambda self, index: 1 / 0})
            self.assertEqual(data_lib.digest_of(dataset), 0, type(dataset))


if __name__ == '__main__':
    if sys.argv[1:2] == ['wait']:
        wait_for_the_kill(sys.argv[2])
    elif sys.argv[1:2] == ['interrupted']:
        read_although_interrupted(sys.argv[2])
    else:
        unittest_main.main()
