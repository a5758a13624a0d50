"""Tests that the package builds from a source distribution, like `python -m build python`."""

import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

from python.testing import requirements
requirements.need('setuptools')

from tools import unittest_main


def setup(directory, *arguments):
    done = subprocess.run([sys.executable, 'setup.py', '-q', *arguments], cwd=directory, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise AssertionError(done.stdout)


class SourceDistribution(unittest.TestCase):

    def test_source_distribution_is_sufficient_for_a_build(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        clone = pathlib.Path(temporary.name) / 'clone'
        (clone / 'proto').mkdir(parents=True)
        for proto in pathlib.Path('proto').glob('*.proto'):
            shutil.copy(proto, clone / 'proto')
        shutil.copytree('python', clone / 'python',
                        ignore=shutil.ignore_patterns('wire.descriptors', '__pycache__'))
        shutil.copy('LICENSE', clone)
        setup(clone / 'python', 'sdist')
        (archive,) = (clone / 'python' / 'dist').glob('*.tar.gz')
        with tarfile.open(archive) as content:
            content.extractall(clone / 'unpacked')
        (unpacked,) = (clone / 'unpacked').iterdir()
        information = (unpacked / 'PKG-INFO').read_text()
        for line in ('Name: sluice-training', 'License: Apache-2.0', 'Author: ',
                     'Description-Content-Type: text/markdown'):
            self.assertIn(f'\n{line}', information)
        self.assertIn('Apache License', (unpacked / 'LICENSE').read_text())
        setup(unpacked, 'build')
        built = unpacked / 'build' / 'lib' / 'sluice'
        self.assertGreater((built / 'wire.descriptors').stat().st_size, 1000)
        self.assertTrue((built / 'py.typed').exists())
        modules = {path.relative_to('python/sluice') for path in
                   pathlib.Path('python/sluice').rglob('*.py')}
        self.assertEqual(modules, {path.relative_to(built) for path in built.rglob('*.py')})


if __name__ == '__main__':
    unittest_main.main()
