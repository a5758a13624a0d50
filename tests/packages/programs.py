"""The programs that Bazel built for a test, and other things that the scripts that pack them need."""

import pathlib
import re
import subprocess
import tempfile
import unittest

from tests.packages import bare_debian

_PATHS = {
    'libsluice-worker.so': 'services/worker/library/libsluice-worker.so',
    'sluice': 'cli/sluice',
    'sluice-coordinator': 'services/coordinator/sluice-coordinator',
    'sluice-operator': 'operator/sluice-operator',
    'sluice-ps': 'services/ps/sluice-ps',
    'sluice-ps-torch': 'services/execution/shard/sluice-ps-torch',
    'sluice-worker': 'services/worker/sluice-worker',
}


def run_script(script, *arguments, names):
    """Runs a script of tools/ with a directory of these programs. Raises with its output if it fails."""
    with tempfile.TemporaryDirectory() as directory:
        for name in names:
            (pathlib.Path(directory) / name).symlink_to(pathlib.Path(_PATHS[name]).resolve())
        done = subprocess.run([script, '--programs', directory, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        if done.returncode != 0:
            raise AssertionError(f'{script} returned {done.returncode}:\n{done.stdout}')


def need_package_index():
    """Skips the test if pip reaches no package index."""
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(['/usr/bin/python3', '-m', 'pip', 'download', '-q', '--no-deps', '--no-cache-dir', '--retries', '1', '--timeout', '20',
                               '-d', directory, 'packaging'], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise unittest.SkipTest(f'pip reaches no package index: {(done.stdout.splitlines() or ["no message"])[-1]}')


def need_auditwheel():
    """Skips the test if tools/build_wheel.sh has no auditwheel and pip cannot install it."""
    pin = re.search(r'AUDITWHEEL=\((\S+)', pathlib.Path('tools/build_wheel.sh').read_text())[1]
    if not (bare_debian.CACHE.parent / pin).exists():
        need_package_index()
