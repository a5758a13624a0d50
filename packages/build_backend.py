"""Builds the wheel and the source distribution for pip and `python -m build` (PEP 517).

The source distribution is the repository's content. Building the wheel from it needs what building Sluice needs: Debian 12
with the packages of tools/install_dependencies.sh.
"""

import gzip
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def output_of(*command):
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    del config_settings, metadata_directory
    with tempfile.TemporaryDirectory() as output:
        subprocess.run([ROOT / 'tools/build_wheel.sh', '--output', output], check=True)
        (wheel,) = pathlib.Path(output).iterdir()
        (pathlib.Path(wheel_directory) / wheel.name).write_bytes(wheel.read_bytes())
    return wheel.name


def build_sdist(sdist_directory, config_settings=None):
    """The committed files, and PKG-INFO. Its times are those of the commit."""
    del config_settings
    name = f'sluice_training-{(ROOT / "VERSION").read_text().strip()}'
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([sys.executable, '-W', 'ignore', 'setup.py', '-q', 'egg_info', '--egg-base', work], cwd=ROOT / 'python', check=True)
        archive = output_of('git', 'archive', '--format=tar', f'--prefix={name}/',
                            f'--add-file={work}/sluice_training.egg-info/PKG-INFO', 'HEAD')
    (pathlib.Path(sdist_directory) / f'{name}.tar.gz').write_bytes(gzip.compress(archive, 9, mtime=0))
    return f'{name}.tar.gz'
