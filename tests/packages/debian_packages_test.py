"""The Debian packages are without findings of lintian, reproducible, and train an example in a bare Debian 12."""

import pathlib
import subprocess
import tempfile
import unittest

from tests.packages import bare_debian
from tests.packages import programs
from tools import unittest_main

EXAMPLE = '/usr/share/doc/sluice/examples/fashion-mnist.yaml'
# What the packages do not depend on but this test needs, and LibTorch, whose installation would take most of the test's
# time; test_each_package_depends_on_what_it_links checks that the package names it.
FROM_DEBIAN = ('dataset-fashion-mnist', 'libopenblas0-pthread', 'libtorch1.13')


class DebianPackages(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.packages = cls.build('first')

    @classmethod
    def build(cls, name):
        directory = pathlib.Path(cls.temporary.name) / name
        programs.run_script('tools/build_debian_packages.sh', '--output', directory,
                            names=['sluice', 'sluice-coordinator', 'sluice-operator', 'sluice-ps', 'sluice-ps-torch', 'sluice-worker'])
        return {file.name.split('_')[0]: file for file in directory.iterdir()}

    def field(self, package, name):
        return subprocess.run(['dpkg-deb', '-f', self.packages[package], name], check=True, capture_output=True, text=True).stdout.strip()

    def test_lintian_finds_nothing(self):
        self.assertEqual(set(self.packages), {'sluice', 'sluice-worker', 'sluice-operator'})
        found = subprocess.run(['lintian', '--allow-root', '--tag-display-limit', '0', *self.packages.values()], capture_output=True, text=True,
                               check=False)
        self.assertEqual(found.stdout + found.stderr, '')

    def test_the_same_programs_give_the_same_packages(self):
        for name, file in self.build('second').items():
            self.assertEqual(file.read_bytes(), self.packages[name].read_bytes(), name)

    def test_each_package_depends_on_what_it_links(self):
        self.assertIn('libtorch1.13', self.field('sluice-worker', 'Depends'))
        self.assertIn(f'sluice (= {self.field("sluice", "Version")})', self.field('sluice-worker', 'Depends'))
        for name in self.packages:
            self.assertRegex(self.field(name, 'Depends'), r'libc6 \(>= .*libgrpc|libc6 \(>= ')
            if name != 'sluice-worker':
                self.assertNotIn('torch', self.field(name, 'Depends'))

    def test_installed_packages_train_an_example(self):
        bare_debian.need()
        with bare_debian.BareDebian(*FROM_DEBIAN) as debian:
            debian.install(*self.packages.values())
            self.assertIn(self.field('sluice', 'Version'), debian.run('sluice', '--version'))
            debian.run('sluice-operator', '--version')

            # The example with fewer steps.
            manifest = debian.run('cat', EXAMPLE)
            self.assertIn('epochs: 2', manifest)
            debian.write('/job.yaml', manifest.replace('epochs: 2', 'steps: 20').replace('intervalSteps: 300', 'maxSamples: 500').encode())
            trained = debian.run('sluice', 'run', '/job.yaml')
            self.assertRegex(trained, r'Trained fashion-mnist: accuracy [\d.]+ % after 20 steps')
            debian.run('sluice', 'export', 'fashion-mnist', '-o', '/model.safetensors')

            # Pages and completions are where Debian's programs look for them.
            pages = debian.run('ls', '/usr/share/man/man1').split()
            self.assertLessEqual({f'{name}.1.gz' for name in ('sluice', 'sluice-run', 'sluice-ps', 'sluice-worker', 'sluice-operator')}, set(pages))
            self.assertIn('sluice', debian.run('bash', '-c', '. /usr/share/bash-completion/completions/sluice && complete -p sluice'))

            debian.run(*bare_debian.APT, 'purge', *self.packages)
            self.assertEqual(debian.run('find', '/usr', '/etc', '/var/lib', '-iname', '*sluice*', '-not', '-path', '/var/lib/dpkg/*',
                                        '-not', '-path', '/var/lib/apt/*'), '')


if __name__ == '__main__':
    unittest_main.main()
