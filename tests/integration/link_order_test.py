"""The order of the libraries that a worker is linked with."""
import os
import subprocess
import unittest

from tools import unittest_main

WORKER = os.path.join(os.environ.get('TEST_SRCDIR', 'bazel-bin'), 'sluice/services/worker/sluice-worker')


class LinkOrderTest(unittest.TestCase):

    def test_gloo_is_linked_before_libtorch(self):
        # In PyTorch's wheels, libtorch_cpu exports the symbols of another version of gloo. All callers use the library that is first.
        output = subprocess.run(['readelf', '--dynamic', '--wide', WORKER], check=True, capture_output=True, text=True).stdout
        needed = [line.split('[')[1].rstrip(']') for line in output.splitlines() if '(NEEDED)' in line]
        places = {name.split('.so')[0]: place for place, name in enumerate(needed)}
        self.assertIn('libgloo', places)
        self.assertLess(places['libgloo'], places['libtorch_cpu'], needed)


if __name__ == '__main__':
    unittest_main.main()
