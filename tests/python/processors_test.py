"""The CPU quota of control groups, on files like those of /proc and /sys."""

import os
import pathlib
import tempfile
import unittest
from unittest import mock

from sluice import processors
from tools import unittest_main


class ProcessorsTest(unittest.TestCase):

    def quota(self, membership, files, cores=64):
        with tempfile.TemporaryDirectory() as directory, mock.patch.object(os, 'cpu_count', return_value=cores):
            root = pathlib.Path(directory)
            for name, content in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(content)
            (root / 'membership').write_text(membership)
            return processors.quota(root / 'membership', root)

    def test_version_2(self):
        self.assertEqual(self.quota('0::/pod\n', {'pod/cpu.max': '150000 100000\n'}), 2)
        self.assertEqual(self.quota('0::/pod\n', {'pod/cpu.max': 'max 100000\n'}), 0)
        self.assertEqual(self.quota('0::/\n', {'cpu.max': '300000 100000\n'}), 3)
        self.assertEqual(self.quota('0::/a/b\n', {'a/cpu.max': '200000 100000\n', 'a/b/cpu.max': '400000 100000\n'}), 2)

    def test_version_1(self):
        files = {'cpu,cpuacct/cpu.cfs_quota_us': '250000\n', 'cpu,cpuacct/cpu.cfs_period_us': '100000\n'}
        self.assertEqual(self.quota('7:memory:/x\n4:cpu,cpuacct:/docker/0123\n0::/\n', files), 3)
        files['cpu,cpuacct/cpu.cfs_quota_us'] = '-1\n'
        self.assertEqual(self.quota('4:cpu,cpuacct:/\n', files), 0)

    def test_quota_of_at_least_all_cores_does_not_matter(self):
        self.assertEqual(self.quota('0::/\n', {'cpu.max': '400000 100000\n'}, cores=4), 0)

    def test_unreadable_files_are_no_quota(self):
        for content in ['', '100000', '100000 0', 'x y']:
            self.assertEqual(self.quota('0::/\n', {'cpu.max': content}), 0)
        self.assertEqual(self.quota('nonsense\n::\n', {}), 0)
        self.assertEqual(processors.quota(pathlib.Path('/nowhere')), 0)


if __name__ == '__main__':
    unittest_main.main()
