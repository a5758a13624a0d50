"""Volumes that all nodes of a test cluster share, which are directories of this machine."""

import gzip
import os
import pathlib
import shutil

from tests.cluster.testing.cluster import ROOT, wait_for

FASHION = pathlib.Path('/usr/share/datasets/fashion-mnist')


def provide(cluster, namespace, claim, size='10Gi'):
    """Makes a volume for the claim of that name, which may be made later; returns the volume's directory."""
    directory = cluster.directory / 'volumes' / namespace / claim
    directory.mkdir(parents=True)
    directory.chmod(0o777)  # pods run as a different user
    cluster.apply({
        'apiVersion': 'v1',
        'kind': 'PersistentVolume',
        'metadata': {'name': f'{namespace}-{claim}'},
        'spec': {
            'capacity': {'storage': size},
            'accessModes': ['ReadWriteMany'],
            'claimRef': {'namespace': namespace, 'name': claim},
            'hostPath': {'path': str(directory)},
        },
    })
    return directory


def remove(cluster, namespace, claim):
    cluster.kubectl('delete', 'pv', f'{namespace}-{claim}', '--wait=false')


def wait_until_bound(cluster, namespace, claim):
    wait_for(f'{claim} is bound', lambda: cluster.api.get('persistentvolumeclaims', namespace, claim)['status'].get(
        'phase') == 'Bound')


def handwritten_digits():
    """The directory of MNIST's files, the least accuracy after one epoch, and the data's name.

    Without MNIST on this machine it is Fashion-MNIST, whose pictures are harder.
    """
    beside = (ROOT / 'WORKSPACE').resolve().parent.parent / 'shared/data'
    for root in (os.environ.get('SLUICE_DATA'), beside):
        directory = pathlib.Path(root or '/nonexistent') / 'mnist'
        if (directory / 'train-images-idx3-ubyte.gz').exists():
            return directory, 98.0, 'MNIST'
    return FASHION, 86.0, 'Fashion-MNIST'


def copy_images(source, target):
    """Copies image data sets as their owners publish them, compressed, from files that are compressed or not."""
    target.mkdir(exist_ok=True)
    for file in source.iterdir():
        if 'ubyte' not in file.name:
            continue
        if file.suffix == '.gz':
            shutil.copyfile(file, target / file.name)
        else:
            with open(file, 'rb') as plain, gzip.open(target / f'{file.name}.gz', 'wb', 1) as packed:
                shutil.copyfileobj(plain, packed)
    target.chmod(0o755)
