"""pip builds the wheel from the source distribution, without git, and leaves nothing of the build behind."""

import os
import pathlib
import subprocess
import tarfile
import tempfile
import unittest
import zipfile
from unittest import mock

from packages import build_backend
from tests.packages import programs
from tools import unittest_main


class SourceDistribution(unittest.TestCase):

    def setUp(self):
        if not (build_backend.ROOT / '.git').exists():
            self.skipTest(f'{build_backend.ROOT} is not a git checkout')
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.directory = pathlib.Path(temporary.name)
        # The checkout may belong to another user. With the PATH of Bazel's tests the compiler is /bin/gcc, for which nothing is
        # compiled yet.
        self.enterContext(mock.patch.dict(os.environ, {
            'PATH': '/usr/local/bin:/usr/bin:/bin',
            'GIT_CONFIG_COUNT': '1', 'GIT_CONFIG_KEY_0': 'safe.directory', 'GIT_CONFIG_VALUE_0': str(build_backend.ROOT)}))

    def test_the_same_commit_gives_the_same_bytes(self):
        archives = []
        for name in ('first', 'second'):
            (self.directory / name).mkdir()
            archives.append((self.directory / name / build_backend.build_sdist(self.directory / name)).read_bytes())
        self.assertEqual(*archives)

    def test_pip_builds_the_wheel_without_git(self):
        programs.need_auditwheel()
        name = build_backend.build_sdist(self.directory)
        with tarfile.open(self.directory / name) as archive:
            archive.extractall(self.directory)
        unpacked = self.directory / name.removesuffix('.tar.gz')
        self.assertIn('\nName: sluice-training\n', (unpacked / 'PKG-INFO').read_text())
        self.assertFalse((unpacked / '.git').exists())

        # pip builds in a Python environment of its own, and needs no package for it.
        done = subprocess.run(['/usr/bin/python3', '-m', 'pip', 'wheel', '--no-deps', '--no-index', '-w', self.directory / 'wheel', unpacked],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        (wheel,) = (self.directory / 'wheel').iterdir()
        version = (unpacked / 'VERSION').read_text().strip()
        self.assertEqual(wheel.name, f'sluice_training-{version}-cp39-abi3-manylinux_2_36_x86_64.whl')
        with zipfile.ZipFile(wheel) as content:
            self.assertLessEqual({f'sluice/{file}' for file in ('bin/sluice', 'bin/sluice-coordinator', 'bin/sluice-ps', 'libsluice-worker.so',
                                                                'wire.descriptors', 'worker.py')}, set(content.namelist()))
        # Bazel's outputs of this one build, 300 MB, and its server.
        self.assertFalse(os.path.lexists(unpacked / 'bazel-bin'))


if __name__ == '__main__':
    unittest_main.main()
