"""The Python code of docs/checkpoints.md reads a checkpoint that Sluice wrote."""

import os
import pathlib
import struct
import subprocess
import unittest

from docs import pages
from tools import unittest_main


class CheckpointsPage(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        storage = os.path.join(os.environ['TEST_TMPDIR'], 'storage')
        subprocess.run(['docs/testing/write_checkpoint', storage], check=True)
        (cls.directory,) = pathlib.Path(storage).glob('attempt-*')
        page = pathlib.Path('docs/checkpoints.md').read_text()
        cls.page = {}
        exec(pages.fenced_blocks(page, 'python')[0], cls.page)  # pylint: disable=exec-used

    def test_directory_has_the_name_that_the_page_shows(self):
        self.assertEqual(self.directory.name, 'attempt-0001-step-000000000007')

    def test_snippet_reads_every_element_of_every_tensor(self):
        tensors = self.page['read_checkpoint'](self.directory)
        self.assertEqual(list(tensors), ['fc.weight', 'fc.bias', 'steps'])
        dtype, shape, data = tensors['fc.weight']
        self.assertEqual((dtype, shape), ('FLOAT32', [1120, 100]))
        self.assertEqual(struct.unpack('<112000f', data), tuple(float(i) for i in range(112000)))
        dtype, shape, data = tensors['fc.bias']
        self.assertEqual((dtype, shape), ('FLOAT64', [70]))
        self.assertEqual(struct.unpack('<70d', data), tuple(0.5 * i for i in range(70)))
        dtype, shape, data = tensors['steps']
        self.assertEqual((dtype, shape), ('INT64', []))
        self.assertEqual(struct.unpack('<q', data), (7,))

    def test_weight_spans_several_files_and_has_optimizer_state(self):
        # Otherwise the test above would not prove much.
        files = sorted(self.directory.glob('partition-*.safetensors'))
        with_weight = [file for file in files if b'fc.weight[' in file.read_bytes()]
        self.assertGreater(len(with_weight), 1)
        self.assertIn(b'/momentum_buffer', with_weight[0].read_bytes())


if __name__ == '__main__':
    unittest_main.main()
