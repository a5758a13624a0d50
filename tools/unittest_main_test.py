import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

from tools import unittest_main

_MODULE = """import unittest
from tools import unittest_main

class One(unittest.TestCase):
    def test_a(self): pass
    def test_b(self): pass

class Two(unittest.TestCase):
    def test_c(self): pass
    def test_d(self): pass
    def test_e(self): pass

unittest_main.main()
"""


class UnittestMainTest(unittest.TestCase):

    def cases(self, **shard):
        """The names of the cases that ran."""
        with tempfile.TemporaryDirectory(dir=os.environ.get('TEST_TMPDIR')) as directory:
            module = pathlib.Path(directory) / 'module.py'
            module.write_text(_MODULE)
            results = pathlib.Path(directory) / 'test.xml'
            status = pathlib.Path(directory) / 'status'
            environment = {name: value for name, value in os.environ.items() if not name.startswith('TEST_')}
            subprocess.run([sys.executable, module], check=True, capture_output=True, env={
                **environment, **shard, 'PYTHONPATH': os.pathsep.join(sys.path), 'XML_OUTPUT_FILE': str(results),
                'TEST_SHARD_STATUS_FILE': str(status)})
            self.assertEqual(status.exists(), bool(shard))
            return [case.get('name') for case in ElementTree.parse(results).iter('testcase')]

    def test_each_case_runs_in_one_shard(self):
        ran = []
        for index in range(3):
            names = self.cases(TEST_TOTAL_SHARDS='3', TEST_SHARD_INDEX=str(index))
            self.assertLess(len(names), 5)
            ran += names
        self.assertCountEqual(ran, ['test_a', 'test_b', 'test_c', 'test_d', 'test_e'])

    def test_without_shards_all_cases_run(self):
        self.assertEqual(len(self.cases()), 5)


if __name__ == '__main__':
    unittest_main.main()
