"""The programs that Bazel built for a test, for the scripts that pack them."""

import pathlib
import subprocess
import tempfile

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
