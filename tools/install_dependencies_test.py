"""tools/install_dependencies.sh with stand-ins for Debian's programs."""

import os
import pathlib
import subprocess
import tempfile
import unittest

from tools import unittest_main

SCRIPT = pathlib.Path('tools/install_dependencies.sh').absolute()

# No package is installed until apt-get has run. apt-get enables a service, as packages do.
STAND_INS = {
    'dpkg-query': 'test -e "$HERE/installed" && echo installed',
    'id': 'echo "${USER_ID:-0}"',
    'sudo': 'echo "sudo $*" >>"$HERE/commands"; exec "$@"',
    'systemctl': 'echo "systemctl $*" >>"$HERE/commands"',
    'apt-get': '''
echo "apt-get $*" >>"$HERE/commands"
case "$*" in *--simulate*) exit 0 ;; esac
touch "$HERE/installed"
ln -s /lib/containerd.service "$SLUICE_TEST_UNITS/multi-user.target.wants/containerd.service"
for i in $(seq 120); do echo "Setting up package-$i (1.0) ..."; done''',
}


class InstallDependencies(unittest.TestCase):

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(dir=os.environ['TEST_TMPDIR']))
        self.wants = self.directory / 'units' / 'multi-user.target.wants'
        self.wants.mkdir(parents=True)
        (self.wants / 'cron.service').symlink_to('/lib/cron.service')
        (self.directory / 'bin').mkdir()
        for name, text in STAND_INS.items():
            self.stand_in(name, text)

    def stand_in(self, name, text):
        path = self.directory / 'bin' / name
        path.write_text(f'#!/bin/sh\n{text}\n')
        path.chmod(0o755)

    def run_script(self, *arguments, **environment):
        done = subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, env={
            **os.environ, 'PATH': f'{self.directory / "bin"}:/usr/bin:/bin', 'HERE': str(self.directory), 'HOME': str(self.directory),
            'SLUICE_TEST_UNITS': str(self.directory / 'units'), **environment})
        return done.returncode, done.stdout + done.stderr

    def commands(self):
        return (self.directory / 'commands').read_text().splitlines()

    def test_packages_to_run_include_no_services_and_no_test_tools(self):
        all_packages = set(self.run_script('--list')[1].split())
        to_run = set(self.run_script('--list', '--run')[1].split())
        self.assertLess(to_run, all_packages)
        self.assertLessEqual({'bazel-bootstrap', 'libtorch-dev', 'dataset-fashion-mnist'}, to_run)
        self.assertFalse({'containerd', 'prometheus', 'clang-tidy-14', 'golang-go', 'libgtest-dev'} & to_run)

    def test_only_services_that_packages_enabled_are_disabled(self):
        code, output = self.run_script()
        self.assertEqual(code, 0, output)
        self.assertIn('systemctl --quiet disable containerd.service', self.commands())
        self.assertLess(len(output.splitlines()), 12, output)  # not one line per package

    def test_user_other_than_root_goes_through_sudo(self):
        code, output = self.run_script('--run', USER_ID='1000')
        self.assertEqual(code, 0, output)
        self.assertIn('needs root: sudo may ask for your password', output)
        self.assertTrue(any(line.startswith('sudo env DEBIAN_FRONTEND=noninteractive') for line in self.commands()))

    def test_nothing_is_changed_if_nothing_is_missing(self):
        (self.directory / 'installed').touch()
        code, output = self.run_script()
        self.assertEqual(code, 0, output)
        self.assertFalse((self.directory / 'commands').exists())


if __name__ == '__main__':
    unittest_main.main()
