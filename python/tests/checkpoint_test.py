"""Tests of reading checkpoints that are intact, damaged, or not files at all."""

import gc
import importlib.util
import json
import os
import pathlib
import struct
import sys
import tempfile
import unittest
import warnings
from unittest import mock

from python.testing import requirements
requirements.need('numpy', 'google.protobuf')

import numpy as np

import sluice.checkpoint
from sluice import errors
from sluice import extras
from sluice import library
from sluice import safetensors
from sluice import tensors
from tools import unittest_main


def _bitwise(content):
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _safetensors(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack('<Q', len(text)) + text + data


class ChecksumTest(unittest.TestCase):

    def test_matches_rfc_3720(self):
        self.assertEqual(library.crc32c(b''), 0)
        self.assertEqual(library.crc32c(b'123456789'), 0xE3069283)
        self.assertEqual(library.crc32c(bytes(32)), 0x8A9136AA)

    def test_matches_the_bitwise_definition(self):
        content = np.random.default_rng(1).bytes(8000)
        for size in (1, 1023, 1024, 1025, 2048, 3072, 5121, 7168, 8000):
            self.assertEqual(library.crc32c(content[:size]), _bitwise(content[:size]), size)


class MissingLibraryTest(unittest.TestCase):

    def test_it_is_the_only_error(self):
        ignored = []
        with mock.patch.object(library, 'get', side_effect=ImportError('it is missing')), \
                mock.patch.object(sys, 'unraisablehook', ignored.append):
            with self.assertRaisesRegex(ImportError, 'it is missing'):
                library.Handle(None)
            gc.collect()
        self.assertEqual(ignored, [])


class CheckpointTest(unittest.TestCase):

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.storage = pathlib.Path(temporary.name)

    def save(self, step, version=2, attempt=1):
        """A tensor of eight times the step's number."""
        directory = self.storage / f'attempt-{attempt:04d}-step-{step:012d}'
        directory.mkdir()
        data = np.full(8, step, dtype='<f4').tobytes()
        content = _safetensors(
            {'__metadata__': {}, 'w[0:8]': {'dtype': 'F32', 'shape': [8], 'data_offsets': [0, 32]}},
            data)
        (directory / 'partition-00000.safetensors').write_bytes(content)
        checkpoint_index = {'format_version': version,
                    'table': {'tensors': [{'name': 'w', 'shape': ['8'], 'dtype': 'FLOAT32'}]},
                    'files': [{'name': 'partition-00000.safetensors', 'bytes': str(len(content)),
                               'crc32c': library.crc32c(content)}]}
        text = json.dumps(checkpoint_index, indent=1).encode()
        if version == 1:
            (directory / 'manifest.json').write_bytes(text + b'\n')
        else:
            body = text.removesuffix(b'\n}')
            crc = b'%08x' % library.crc32c(body)
            (directory / 'manifest.json').write_bytes(body + b',\n "crc32c": "' + crc + b'"\n}\n')
        return directory

    def load_all(self, path):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter('always')
            state = sluice.checkpoint.load(path)
        return state['w'][0], [str(warning.message) for warning in said]

    def test_reads_formats_with_and_without_checksum(self):
        for step, version in ((1, 1), (2, 2)):
            self.assertEqual(self.load_all(self.save(step, version)), (step, []))

    def test_extras_have_second_names_and_constants(self):
        directory = self.save(1)
        mask = np.array([True, False])
        extras.keep(str(self.storage), 0, {'tied': 'w'}, {'mask': ('BOOL', mask, (2,)),
                                                          'none': ('I32', mask[:0], (0, 3))})
        for path in (directory, self.storage):
            state = sluice.checkpoint.load(path)
            self.assertEqual(list(state), ['w', 'mask', 'none', 'tied'])
            np.testing.assert_array_equal(state['tied'], state['w'])
            np.testing.assert_array_equal(state['mask'], mask)
            self.assertEqual((state['none'].dtype, state['none'].shape), (np.int32, (0, 3)))
        extras.keep(str(self.storage), 0, {}, {})  # extras of another model
        self.assertEqual(list(sluice.checkpoint.load(directory)), ['w'])
        extras.keep(str(self.storage / 'nowhere'), 0, {'tied': 'w'}, {})

    def test_rejects_extras_of_another_model(self):
        directory = self.save(1)
        path = self.storage / extras.NAME
        for aliases, constants in (({'tied': 'v'}, {}), ({'w': 'w'}, {}),
                                   ({}, {'w': ('U8', np.zeros(1, np.uint8), (1,))})):
            extras.keep(str(self.storage), 0, aliases, constants)
            with self.assertRaisesRegex(errors.SluiceError, 'belongs to another model'):
                sluice.checkpoint.load(directory)
        extras.keep(str(self.storage), 0, {'tied': 'w'}, {})
        whole = path.read_bytes()
        for bit in range(0, 8 * len(whole), 5):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            with self.assertRaisesRegex(errors.SluiceError, 'state_dict.extras'):
                sluice.checkpoint.load(directory)

    def test_every_flipped_bit_warns_and_loads_the_older_checkpoint(self):
        self.save(1)
        newest = self.save(2)
        for name in ('manifest.json', 'partition-00000.safetensors'):
            whole = (newest / name).read_bytes()
            for bit in range(0, 8 * len(whole), 7):
                damaged = bytearray(whole)
                damaged[bit // 8] ^= 1 << bit % 8
                (newest / name).write_bytes(damaged)
                value, said = self.load_all(self.storage)
                self.assertEqual(value, 1, (name, bit))
                self.assertEqual(len(said), 1, (name, bit))
                self.assertIn(newest.name, said[0])
            (newest / name).write_bytes(whole)
        self.assertEqual(self.load_all(self.storage), (2, []))

    def test_newest_is_by_number_not_by_name(self):
        self.save(3, attempt=9999)
        self.save(2, attempt=10000)
        self.assertEqual(self.load_all(self.storage), (2, []))

    def test_explicitly_named_damaged_checkpoint_is_an_error(self):
        directory = self.save(1)
        for size in range(0, (directory / 'manifest.json').stat().st_size, 5):
            os.truncate(self.save(size + 2) / 'manifest.json', size)
            with self.assertRaises(errors.SluiceError):
                sluice.checkpoint.load(self.storage / f'attempt-0001-step-{size + 2:012d}')

    def test_error_names_all_damaged_checkpoints(self):
        for step in (1, 2):
            (self.save(step) / 'manifest.json').write_text('{')
        with warnings.catch_warnings(), self.assertRaises(errors.SluiceError) as raised:
            warnings.simplefilter('ignore')
            sluice.checkpoint.load(self.storage)
        self.assertIn('step-000000000001', str(raised.exception))
        self.assertIn('step-000000000002', str(raised.exception))

    def test_rejects_non_files_immediately(self):
        directory = self.save(1)
        path = directory / 'partition-00000.safetensors'
        for make in (os.mkfifo, os.mkdir):
            if path.exists():
                path.rmdir() if path.is_dir() else path.unlink()
            make(path)
            with self.assertRaisesRegex(errors.SluiceError, 'partition-00000'):
                sluice.checkpoint.load(directory)

    def test_rejects_deep_nesting(self):
        path = self.storage / 'model.safetensors'
        path.write_bytes(_safetensors(b'[' * 200000 + b']' * 200000, b''))
        with self.assertRaises(errors.SluiceError):
            sluice.checkpoint.load(path)
        directory = self.save(1)
        (directory / 'manifest.json').write_bytes(b'[' * 200000)
        with self.assertRaises(errors.SluiceError):
            sluice.checkpoint.load(directory)


class SafetensorsTest(unittest.TestCase):

    def setUp(self):
        self.path = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get('TEST_TMPDIR'))) / 'model.safetensors'

    def load(self, kind, shape, data):
        self.path.write_bytes(_safetensors(
            {'w': {'dtype': kind, 'shape': shape, 'data_offsets': [0, len(data)]}}, data))
        return sluice.checkpoint.load(self.path)['w']

    def test_accepts_what_the_reference_reader_accepts(self):
        cases = json.loads(pathlib.Path('tests/vectors/safetensors.json').read_text('utf-8'))['cases']
        self.assertGreater(len(cases), 100)
        for case in cases:
            header = case['header'].encode()
            content = struct.pack('<Q', case.get('length', len(header))) + header + bytes(case['data'])
            try:
                safetensors.read(self.path, content)
                accepted = True
            except errors.SluiceError as error:
                accepted = False
                self.assertIn(str(self.path), str(error))
            self.assertEqual(accepted, case['accepted'], case['name'])

    def test_types_that_numpy_has_keep_their_type(self):
        for kind, dtype in {'U16': 'uint16', 'U32': 'uint32', 'U64': 'uint64', 'C64': 'complex64', 'BOOL': 'bool'}.items():
            expected = np.array([0, 1], dtype=dtype)
            loaded = self.load(kind, [2], expected.tobytes())
            self.assertEqual(loaded.dtype, expected.dtype)
            self.assertEqual(loaded.tolist(), expected.tolist())

    def test_types_of_8_bits_become_float32(self):
        # Byte -> number: the largest finite numbers, the smallest ones, and what is special.
        cases = {'F8_E4M3': {0x7E: 448, 0x01: 2**-9, 0xB8: -1, 0x7F: np.nan},
                 'F8_E5M2': {0x7B: 57344, 0x01: 2**-16, 0xBC: -1, 0x7C: np.inf, 0x7D: np.nan},
                 'F8_E4M3FNUZ': {0x7F: 240, 0x01: 2**-10, 0xC0: -1, 0x80: np.nan},
                 'F8_E5M2FNUZ': {0x7F: 57344, 0x01: 2**-17, 0xC0: -1, 0x80: np.nan},
                 'F8_E8M0': {0x7F: 1, 0x00: 2.0**-127, 0xFE: 2.0**127, 0xFF: np.nan}}
        for kind, numbers in cases.items():
            loaded = self.load(kind, [len(numbers)], bytes(numbers))
            self.assertEqual(loaded.dtype, np.float32)
            np.testing.assert_array_equal(loaded, np.array(list(numbers.values()), np.float32), kind)

    @unittest.skipIf(importlib.util.find_spec('torch') is None, 'torch is not installed')
    def test_types_keep_their_type_in_torch(self):
        import torch
        for name, kind in tensors.TORCH.items():
            dtype = getattr(torch, name, None)
            shape = [2, 6] if kind == 'F4' else [2, 3]
            data = bytes(range(6))
            self.path.write_bytes(_safetensors(
                {'w': {'dtype': kind, 'shape': shape, 'data_offsets': [0, len(data)]}}, data))
            if dtype is None:
                with self.assertRaisesRegex(errors.SluiceError, f"'w' is {kind} of shape.*PyTorch {torch.__version__}"):
                    sluice.checkpoint.load(self.path, torch=True)
                continue
            loaded = sluice.checkpoint.load(self.path, torch=True)['w']
            self.assertEqual((loaded.dtype, list(loaded.shape)), (dtype, [2, 3]))
            self.assertEqual(loaded.view(torch.uint8).flatten().tolist(), list(data))

    def test_a_type_that_numpy_lacks_is_named(self):
        with self.assertRaisesRegex(errors.SluiceError, "model.safetensors: array 'w' is F4.*torch=True"):
            self.load('F4', [4], bytes(2))


if __name__ == '__main__':
    unittest_main.main()
