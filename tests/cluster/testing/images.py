"""Makes the project's images from the programs that Bazel built for the test."""

import fcntl
import hashlib
import os
import pathlib
import tempfile

from tests.cluster.testing import cluster

TAG = 'test'
PREFIX = 'localhost/'
_PROGRAMS = {
    'libsluice-worker.so': 'services/worker/library/libsluice-worker.so',
    'sluice': 'cli/sluice',
    'sluice-coordinator': 'services/coordinator/sluice-coordinator',
    'sluice-operator': 'operator/sluice-operator',
    'sluice-ps': 'services/ps/sluice-ps',
    'sluice-ps-torch': 'services/execution/shard/sluice-ps-torch',
    'sluice-worker': 'services/worker/sluice-worker',
}
_KEPT = 4  # sets of archives to keep; more than the number of tests that run at once


def program(name):
    """The path of a program in the test's data."""
    return (cluster.ROOT / _PROGRAMS[name]).resolve()


def reference(image):
    return f'{PREFIX}{image}:{TAG}'


def build(*images):
    """Returns the paths of the images' archives, which are made once for the same programs and kept in the cache."""
    content = hashlib.sha256()
    present = {name: program(name) for name in _PROGRAMS if program(name).exists()}
    for file in [*present.values(), cluster.ROOT / 'images/oci_image.py', cluster.ROOT / 'tools/build_images.sh']:
        content.update(file.read_bytes())
    directory = cluster.CACHE / 'built-images' / content.hexdigest()[:16]
    directory.parent.mkdir(parents=True, exist_ok=True)
    with open(cluster.CACHE / 'built-images.lock', 'w', encoding='ascii') as lock:
        # If two tests start together, one makes them and the other waits.
        fcntl.flock(lock, fcntl.LOCK_EX)
        _make(directory, present, images)
        os.utime(directory)
        _remove_old(directory.parent)
    return [directory / f'{image}.tar' for image in images]


def _make(directory, present, images):
    wanted = [image for image in images if not (directory / f'{image}.tar').exists()]
    if wanted:
        with tempfile.TemporaryDirectory() as programs:
            for name, path in present.items():
                (pathlib.Path(programs) / name).symlink_to(path)
            for line in cluster.run([cluster.ROOT / 'tools/build_images.sh', '--programs', programs, '--output', directory,
                                     '--tag', TAG, '--prefix', PREFIX, *wanted], timeout=300).splitlines():
                cluster.say('  ' + line.split('] ', 1)[-1])


def _remove_old(directory):
    for old in sorted(directory.iterdir(), key=lambda one: one.stat().st_mtime)[:-_KEPT]:
        for archive in old.iterdir():
            archive.unlink(missing_ok=True)
        old.rmdir()
