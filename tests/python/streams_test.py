"""Streams: a state is a shortcut to a position, and changes no sample; without one they are read again."""

from python.testing import requirements
requirements.need('numpy', 'grpc', 'google.protobuf', 'torch')

import contextlib
import importlib.util
import io
import itertools
import json
import os
import pathlib
import pickle
import re
import signal
import tempfile
import unittest
from unittest import mock

import numpy as np
import torch

import sluice
from sluice import data as data_lib
from sluice import seeds as seeds_lib
from sluice import stream_states
from sluice import streams
from tests.python import job_processes
from tools import unittest_main

_SAMPLES = 25  # of a pass
_UNRECORDED = 3  # of the positions 0, 7, 14, ...: before the first record with a state is complete


def setUpModule():
    torch.set_num_threads(1)


def directory():
    return pathlib.Path(tempfile.mkdtemp(dir=os.environ.get('TEST_TMPDIR')))


class Plain(torch.utils.data.IterableDataset):
    """Samples with a random number and their pass."""

    def __init__(self, samples=_SAMPLES):
        self.samples = samples
        self.read = []
        self.epoch = 0
        self.generator = np.random.default_rng(1)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def sample(self, place):
        self.read.append(place)
        return 100 * self.epoch + place, self.generator.random()

    def __iter__(self):
        return (self.sample(place) for place in range(self.samples))


class Stateful(Plain):
    """The same with a state, which holds for the next __iter__ alone."""

    def __init__(self, samples=_SAMPLES):
        super().__init__(samples)
        self.next = self.first = 0

    def __iter__(self):
        self.next, self.first = self.first, 0
        while self.next < self.samples:
            self.next += 1
            yield self.sample(self.next - 1)

    def state_dict(self):
        return {'next': self.next}

    def load_state_dict(self, state):
        self.first = state['next']


class Sticky(Stateful):
    """As HuggingFace's: the state holds for each later __iter__ of the same epoch."""

    def __iter__(self):
        first = self.first
        yield from super().__iter__()
        self.first = first


class Late(Stateful):
    """Counts a sample when the next one is asked for, so that a state gives it again."""

    def __iter__(self):
        self.next, self.first = self.first, 0
        while self.next < self.samples:
            yield self.sample(self.next)
            self.next += 1


class Buffered(Stateful):
    """Shuffles in a buffer that is not in the state."""

    def __iter__(self):
        buffer = []
        for sample in super().__iter__():
            buffer.append(sample)
            if len(buffer) == 5:
                yield buffer.pop(2)
        yield from buffer


class Iterator:

    def __init__(self, stream):
        self.stream = stream
        self.next = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.next >= self.stream.samples:
            raise StopIteration
        self.next += 1
        return self.stream.sample(self.next - 1)

    def state_dict(self):
        return {'next': self.next}

    def load_state_dict(self, state):
        self.next = state['next']


class OfIterator(Plain):
    """Its iterator has the state."""

    def __iter__(self):
        return Iterator(self)


class Uncopyable(Stateful):

    def __deepcopy__(self, memo):
        raise TypeError('it has a lock')


class Arguments(Stateful):
    """Its state_dict is of another protocol."""

    def state_dict(self, number):
        raise AssertionError


class Broken(Stateful):

    def state_dict(self):
        return {'file': object()}


class Large(Stateful):

    def state_dict(self):
        return {'next': self.next, 'buffer': bytes(stream_states.MAX_BYTES)}


class Objects(Stateful):

    def sample(self, place):
        return object()


class StreamTest(unittest.TestCase):

    def setUp(self):
        self.directory = directory()
        for name, value in (('_SECONDS', 0), ('_SHARE', 0)):
            patch = mock.patch.object(streams, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def read(self, make, first, end, kept=True):
        """(the samples of positions [first, end), what was printed, the stream)"""
        source = make()
        stream = streams.Stream(source, 4, str(self.directory) if kept else None)
        seeds = seeds_lib.Seeds(5, stream)
        printed = io.StringIO()
        with contextlib.redirect_stderr(printed):
            samples = [stream.at(p, lambda place: seeds.set(0, place)) for p in range(first, end)]
        return samples, printed.getvalue(), source

    def continues(self, make, end=80):
        """Compares reading from each position with reading from the beginning; returns what was printed."""
        expected, _, _ = self.read(make, 0, end, kept=False)
        printed = []
        for first in range(0, end - 8, 7):
            self.directory = directory()
            self.read(make, 0, first)
            samples, text, source = self.read(make, first, end)
            self.assertEqual(samples, expected[first:], first)
            printed.append(text)
        return printed


class Reading(StreamTest):
    """A stream from a position on, in one process after the other."""

    def test_a_state_leads_to_the_same_samples_from_each_position(self):
        for make in (Stateful, Sticky, OfIterator, Uncopyable):
            printed = self.continues(make)
            self.assertEqual(set(printed[:_UNRECORDED]), {''}, 'a record needs the samples that follow it')
            for text in printed[_UNRECORDED:]:
                self.assertRegex(text, '^sluice: the stream continues from its state at sample .*\n$', make)

    def test_only_samples_after_the_state_are_read(self):
        make = lambda: Stateful(100)
        self.read(make, 0, 60)
        _, text, source = self.read(make, 60, 61)
        known = int(text.split('at sample ')[1].split(',')[0])
        self.assertGreaterEqual(known, 60 - 2 * stream_states.CHECKED - 2)
        self.assertEqual(source.read, [], 'a copy of it has read them')

    def test_a_state_that_leads_to_other_samples_is_not_used(self):
        for make in (Late, Buffered):
            for text in self.continues(make)[_UNRECORDED:]:
                self.assertRegex(text, 'cannot be used .*the next 8 samples are others.*read from its beginning')

    def test_a_stream_without_a_state_is_read_from_its_beginning(self):
        for make in (Plain, Arguments):
            self.assertEqual(set(self.continues(make)), {''})

    def test_a_state_that_cannot_be_kept(self):
        for make, message in ((Broken, 'it has a object, and kept are numbers'),
                              (Large, 'bytes, and at most 1048576 are kept'),
                              (Objects, r'its samples \(object\) cannot be compared')):
            self.directory = directory()
            _, text, _ = self.read(make, 0, 60)
            self.assertEqual(text.count('\n'), 1, text)
            self.assertRegex(text, f'^sluice: the state of the stream is not kept.*{message}')
            _, text, _ = self.read(make, 60, 61)
            self.assertNotIn('continues', text)

    def test_a_state_that_cannot_be_loaded(self):
        class Refuses(Stateful):
            def load_state_dict(self, state):
                raise KeyError('shard')

        class Dies(Stateful):
            def __iter__(self):
                return iter(()) if not self.first else 1 / 0

        self.read(Stateful, 0, 40)
        expected, _, _ = self.read(Stateful, 0, 50, kept=False)
        samples, text, _ = self.read(Refuses, 40, 50)
        self.assertEqual(samples, expected[40:])
        self.assertRegex(text, "cannot be used \\(KeyError: 'shard'\\)")
        with self.assertRaisesRegex(sluice.UsageError, 'has no samples'):
            self.read(Dies, 40, 50)

    def test_a_stream_of_another_length_is_refused(self):
        for make in (Plain, Stateful):
            self.read(make, 0, 60)
            with self.assertRaisesRegex(sluice.UsageError, r'sample \d+ of the job is sample \d+ of pass 2 over it, '
                                                           r'and was sample \d+ of pass \d\. Give the same data'):
                self.read(lambda: make(_SAMPLES - 5), 55, 60)

    def test_other_samples_are_reported(self):
        class Other(Plain):
            def sample(self, place):
                return super().sample(place), 'x'

        self.read(Plain, 0, 60)
        _, text, _ = self.read(Other, 60, 70)
        self.assertRegex(text, '^sluice: at sample 48 of the stream, the next 8 samples are others')
        _, text, _ = self.read(Plain, 0, 20)
        self.assertEqual(text, '', 'a job that begins')

    def test_another_order_in_another_worker_is_reported(self):
        class Shuffled(Plain):
            def __iter__(self):
                return iter(np.random.default_rng().permutation(1000).tolist())

        one, other = (streams.Stream(Shuffled(), 4, str(self.directory)) for _ in range(2))
        printed = io.StringIO()
        with contextlib.redirect_stderr(printed):
            for position in range(20):
                for stream in (one, other):
                    stream.at(position, lambda place: None)
        self.assertEqual(printed.getvalue().count('give a stream that shuffles a seed'), 1)

    def test_an_earlier_position_is_read_from_a_state(self):
        expected, _, _ = self.read(Stateful, 0, 90, kept=False)
        stream = streams.Stream(Stateful(), 4)
        seeds = seeds_lib.Seeds(5, stream)
        printed = io.StringIO()
        with contextlib.redirect_stderr(printed):
            for position in (10, 80, 40, 41, 89, 3):
                found = stream.at(position, lambda place: seeds.set(0, place))
                self.assertEqual(found, expected[position], position)
        self.assertIn('to sample 40', printed.getvalue())

    def test_a_process_that_gets_the_stream_opens_the_file_itself(self):
        self.read(Stateful, 0, 60)
        stream = pickle.loads(pickle.dumps(streams.Stream(Stateful(), 4, str(self.directory))))
        printed = io.StringIO()
        with contextlib.redirect_stderr(printed):
            stream.at(60, lambda place: None)
        self.assertIn('the state of the stream at sample', printed.getvalue())  # its numbers are not seeded

    def test_a_record_is_made_once_in_a_while(self):
        with mock.patch.object(streams, '_SECONDS', 3600):
            self.read(Stateful, 0, 60)
        self.assertEqual([each.position for each in self.records()], [0])

    def records(self):
        return [stream_states._parse(line) for line in
                (self.directory / stream_states.NAME).read_text().splitlines()]

    def test_records_in_the_file(self):
        self.read(Stateful, 0, 30)
        self.assertEqual([(each.position, each.number, each.place) for each in self.records()],
                         [(0, -1, 0), (8, 0, 8), (16, 0, 16)])
        self.read(Stateful, 10, 20)  # a job that was set back
        self.assertEqual([each.position for each in self.records()], [0, 8, 16])

    def test_damage(self):
        self.read(Stateful, 0, 60)
        path = self.directory / stream_states.NAME
        content = path.read_bytes()
        expected, _, _ = self.read(Stateful, 0, 62, kept=False)
        for place in range(0, len(content), 11):
            damaged = bytearray(content)
            damaged[place] ^= 1 << place % 8
            path.write_bytes(damaged)
            self.assertEqual(self.read(Stateful, 60, 62)[0], expected[60:], place)
        for text in (b'', b'\xff\xfe', b'{}\n', content[:50]):
            path.write_bytes(text)
            samples, printed, _ = self.read(Stateful, 60, 62)
            self.assertEqual((samples, printed), (expected[60:], ''))


class States(unittest.TestCase):

    def test_a_state_is_the_same_after_it_was_kept(self):
        state = {'a': [1, None, True, 0.1, float('inf'), 'ü'], 2: (b'\x00\xff', {'b': 1 << 100}), (1, 2): {},
                 'array': np.arange(6, dtype='<u2').reshape(2, 3), 'number': np.float32(0.1),
                 'generator': torch.Generator().get_state(), 'rng': np.random.default_rng(3).bit_generator.state}
        found = stream_states.decode(json.loads(json.dumps(stream_states.encode(state))))
        self.assertEqual(list(found), list(state))
        np.testing.assert_equal({**found, 'generator': 0}, {**state, 'generator': 0})
        self.assertTrue(torch.equal(found['generator'], state['generator']))
        self.assertIs(type(found['number']), np.float32)

    def test_records_are_few_and_near_each_earlier_position(self):
        kept, worst = [], 0.0
        for position in range(1, 20001):
            kept = stream_states.thinned([*kept, position])
            if position % 997 == 0:
                # Of a checkpoint before each record: how much is passed over of what is trained on again.
                worst = max(worst, *((after - 1 - before) / (position - after + 1)
                                     for before, after in zip(kept, kept[1:])))
        self.assertLessEqual(len(kept), 64)
        self.assertEqual((kept[0], kept[-3:]), (1, [19998, 19999, 20000]))
        self.assertLess(worst, 0.34)

    def test_a_directory_that_cannot_be_written(self):
        states = stream_states.States('/nowhere')
        states.add(stream_states.Record(5, 0, 5, 'aa'))
        self.assertEqual(states.before(7).position, 5)
        self.assertIsNone(states.before(4))


class Notes(unittest.TestCase):

    def test_what_the_user_does_not_get(self):
        writable = str(directory())
        for stream, place, text in (
                (Stateful(), writable, f'continue from its last state in {writable}/stream.states.'),
                (OfIterator(), writable, 'continue from its last state'),
                (Stateful(), '/nowhere', 'from its beginning: its state cannot be kept: this worker cannot write'),
                (Stateful(), '', 'cannot be kept'),
                (Plain(), writable, r'from its beginning: it has no state_dict\(\) and load_state_dict\(\)'),
                (Arguments(), writable, 'has no state_dict')):
            self.assertRegex(streams.note(stream, place), f'every worker reads all of it.*{text}')

    def test_a_data_set_that_is_iterable_and_numbered_is_numbered(self):
        class Both(Plain):
            def __len__(self):
                return 3

            def __getitem__(self, index):
                return index

        self.assertFalse(streams.is_stream(Both()))
        self.assertTrue(streams.is_stream(Plain()))
        data_lib.check_dataset(Both(), 'the dataset')

    def test_a_loader_is_no_stream(self):
        class Loader(torch.utils.data.DataLoader):
            pass

        self.assertFalse(streams.is_stream(Loader([1, 2])))


class Jobs(unittest.TestCase):
    """Two workers whose streams are read by loader processes, with kills and a resumed job."""

    def job(self, workers):
        return job_processes.base_job(
            training={'steps': 24, 'globalBatchSize': 16, 'microbatchSize': 4, 'determinism': 'BitExact'},
            checkpoint={'intervalSteps': 3}, worker={'replicas': workers},
            data={'shuffle': False, 'evaluation': {'intervalSteps': 8}})

    def start(self, processes, index, records, **arguments):
        records.mkdir(exist_ok=True)
        processes.start_python_worker(index, 'tests/python/loading_worker.py', str(records), json.dumps(arguments))

    def finish(self, processes):
        for name in processes.workers():
            self.assertEqual(processes.wait_for_exit(name, 200), 0, processes.log(name))
        return sluice.load(processes.checkpoints)

    def reads(self, records):
        """pid -> numbers of the training samples that the process has read, in order."""
        return {int(path.name.split('-')[1]): [json.loads(line)[0] for line in path.read_text().splitlines()]
                for path in records.glob('read-*')}

    def check_trained(self, records, end):
        """The samples of each step, over all processes that trained on it, are those at its positions."""
        steps = {}
        for path in itertools.chain(*(each.glob('trained-*') for each in records)):
            for line in path.read_text().splitlines():
                step, indices = json.loads(line)
                steps.setdefault(step, set()).update(indices)
        for step in range(end):
            self.assertEqual(steps[step], set(range(16 * step, 16 * step + 16)))

    def test_kills_and_a_resumed_job_change_no_bit(self):
        with job_processes.JobProcesses(self.job(1), directory()) as processes:
            processes.start()
            self.start(processes, 0, processes.directory / 'records')
            expected = self.finish(processes)

        job = self.job(2)
        gate = directory() / 'open'
        arguments = {'stream': 'stateful', 'num_workers': 1, 'seconds': 0.03, 'gate': str(gate)}
        with job_processes.JobProcesses(job, directory()) as processes:
            processes.start()
            records = [processes.directory / f'records-{index}' for index in range(2)]
            for index in range(2):
                self.start(processes, index, records[index], **arguments)
            processes.wait_for_members(2, 200)
            gate.touch()
            processes.wait_for_step(7, 200)
            loader, = set(self.reads(records[0])) - {processes.pid('worker-0')}
            os.kill(loader, signal.SIGKILL)
            processes.kill('worker-1')
            self.start(processes, 1, records[1], **arguments)
            processes.wait_until(lambda: 'the stream continues from its state' in processes.log('worker-0'), 200,
                                 'the loader process of worker 0 is replaced')
            processes.wait_for_step(processes.progress().step + 2, 200)
            self.assertLess(processes.progress().step, 20, 'it was stopped behind the end')
            self.assertTrue((processes.checkpoints / stream_states.NAME).exists())

        with job_processes.JobProcesses(job, directory()) as processes:
            processes.start()
            resumed = [processes.directory / f'records-{index}' for index in range(2)]
            for index in range(2):
                self.start(processes, index, resumed[index], **arguments)
            found = self.finish(processes)
            logs = [processes.log(f'worker-{index}') for index in range(2)]

        for name, value in expected.items():
            np.testing.assert_array_equal(value, found[name], name)
        self.check_trained([*records, *resumed], 24)
        for log in logs:
            self.assertIn('the stream continues from its state', log)


def _needs(*modules):
    missing = [each for each in modules if importlib.util.find_spec(each) is None]
    return unittest.skipIf(missing, f'there is no {", ".join(missing)}')


class Libraries(StreamTest):
    """Streams of the usual libraries."""

    def continued(self, make, end=60):
        return self.continues(make, end)[_UNRECORDED:]

    @_needs('datasets')
    def test_huggingface(self):
        import datasets
        rows = datasets.Dataset.from_dict({'x': list(range(_SAMPLES)), 't': [str(i) for i in range(_SAMPLES)]})
        base = lambda: rows.to_iterable_dataset(num_shards=4)
        for make in (base,
                     lambda: base().map(lambda row: {'y': row['x'] + np.random.rand()}),
                     lambda: base().filter(lambda row: row['x'] % 3),
                     lambda: base().with_format('numpy'),
                     lambda: base().take(20)):
            for text in self.continued(make):
                self.assertIn('the stream continues from its state', text)
        shuffled = lambda: base().shuffle(seed=3, buffer_size=8)
        self.assertEqual(set(self.continued(shuffled)), {''})
        self.assertIn('does not contain its shuffle buffer', streams.note(shuffled(), str(self.directory)))

    def parquet(self):
        import pyarrow
        from pyarrow import parquet
        files = []
        for part in range(3):
            files.append(str(directory() / 'part.parquet'))
            parquet.write_table(pyarrow.table({'x': list(range(10 * part, 10 * part + 10))}), files[-1],
                                row_group_size=4)
        return files

    @_needs('datasets', 'pyarrow')
    def test_huggingface_over_parquet(self):
        import datasets
        files, cache = self.parquet(), str(directory())
        make = lambda: datasets.load_dataset('parquet', data_files=files, streaming=True, split='train',
                                             cache_dir=cache)
        for text in self.continued(make):
            self.assertIn('the stream continues from its state', text)

    @_needs('pyarrow')
    def test_the_example_of_the_page_about_data(self):
        import pyarrow.parquet
        page = pathlib.Path('docs/data.md').read_text()
        code = re.search(r'^<!-- test: streams_test -->\n```python\n(.*?)^```$', page, re.MULTILINE | re.DOTALL)[1]
        names = {'torch': torch, 'pyarrow': pyarrow}
        exec(code, names)
        files = self.parquet()
        for text in self.continued(lambda: names['Rows'](files)):
            self.assertIn('the stream continues from its state', text)

    @_needs('webdataset')
    def test_webdataset(self):
        import webdataset
        path = str(directory() / 'samples.tar')
        with webdataset.TarWriter(path) as tar:
            for place in range(_SAMPLES):
                tar.write({'__key__': f'{place:03}', 'cls': place})
        self.assertEqual(set(self.continued(
            lambda: webdataset.WebDataset(path, shardshuffle=False).shuffle(5, seed=1).decode().to_tuple('cls'))), {''})

    @_needs('streaming')
    def test_mds_is_numbered(self):
        import streaming
        path = str(directory() / 'mds')
        with streaming.MDSWriter(out=path, columns={'x': 'int'}, size_limit=200) as writer:
            for place in range(_SAMPLES):
                writer.write({'x': place})
        for dataset in (streaming.LocalDataset(path),
                        streaming.StreamingDataset(local=path, shuffle=False, batch_size=4)):
            self.check_numbered(dataset)

    @_needs('litdata')
    def test_litdata_is_numbered(self):
        import litdata
        path = str(directory() / 'litdata')
        writer = litdata.streaming.writer.BinaryWriter(path, chunk_size=7)
        for place in range(_SAMPLES):
            writer[place] = {'x': place}
        writer.done()
        writer.merge()
        self.check_numbered(litdata.StreamingDataset(path))

    def check_numbered(self, dataset):
        self.assertFalse(streams.is_stream(dataset))
        data_lib.check_dataset(dataset, 'the dataset')
        self.assertEqual(len(dataset), _SAMPLES)
        self.assertEqual([int(dataset[index]['x']) for index in (20, 3, 24)], [20, 3, 24])

    @_needs('torchdata')
    def test_torchdata(self):
        from torchdata import nodes, stateful_dataloader
        wrapped = lambda: nodes.IterableWrapper(range(_SAMPLES))
        for make in (lambda: nodes.Loader(wrapped()),
                     lambda: nodes.Loader(nodes.Prefetcher(nodes.ParallelMapper(
                         wrapped(), float, num_workers=2, method='thread'), 4))):
            for text in self.continued(make):
                self.assertIn('the stream continues from its state', text)
        self.assertFalse(streams.is_stream(stateful_dataloader.StatefulDataLoader([1, 2])))


if __name__ == '__main__':
    unittest_main.main()
