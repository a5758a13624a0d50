"""Builds the wheel and the source distribution for pip and `python -m build` (PEP 517).

The source distribution is the repository's content. Building the wheel from it needs what building Sluice needs: Debian 12
with the packages of tools/install_dependencies.sh.
"""

import gzip
import os
import pathlib
import subprocess
import tempfile

PYTHON = '/usr/bin/python3'  # Debian's, as in tools/build_wheel.sh
# With pip's PYTHONPATH for builds, Debian's Python has no setuptools.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != 'PYTHONPATH'}
ROOT = pathlib.Path(__file__).resolve().parent.parent


def output_of(*command):
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    del config_settings, metadata_directory
    with tempfile.TemporaryDirectory() as output:
        try:
            subprocess.run([ROOT / 'tools/build_wheel.sh', '--output', output], check=True, env=ENVIRONMENT)
        finally:
            if not (ROOT / '.git').exists():  # an unpacked source distribution, which is built once
                subprocess.run(['bazel', 'clean', '--expunge'], cwd=ROOT, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        (wheel,) = pathlib.Path(output).iterdir()
        (pathlib.Path(wheel_directory) / wheel.name).write_bytes(wheel.read_bytes())
    return wheel.name


def build_sdist(sdist_directory, config_settings=None):
    """The committed files, and PKG-INFO. Its times are those of the commit."""
    del config_settings
    name = f'sluice_training-{(ROOT / "VERSION").read_text().strip()}'
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([PYTHON, '-W', 'ignore', 'setup.py', '-q', 'egg_info', '--egg-base', work], cwd=ROOT / 'python', check=True,
                       env=ENVIRONMENT)
        archive = output_of('git', 'archive', '--format=tar', f'--prefix={name}/',
                            f'--add-file={work}/sluice_training.egg-info/PKG-INFO', 'HEAD')
    (pathlib.Path(sdist_directory) / f'{name}.tar.gz').write_bytes(gzip.compress(archive, 9, mtime=0))
    return f'{name}.tar.gz'
