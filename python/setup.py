"""Builds sluice/wire.descriptors from ../proto and copies ../LICENSE before packaging.

Only a descriptor set is generated, because it does not depend on the version of protoc or protobuf.
protoc comes from $PROTOC, the PATH, or grpcio-tools.
"""

import os
import pathlib
import shutil
import subprocess
import sys

from setuptools import Distribution
from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

_HERE = pathlib.Path(__file__).resolve().parent
# What tools/build_wheel.sh adds to a copy of this directory: the programs, and a script for each.
_PROGRAMS = _HERE / 'sluice' / 'bin'
_SCRIPTS = sorted(str(file.relative_to(_HERE)) for file in (_HERE / 'scripts').glob('*'))
_TARGET = _HERE / 'sluice' / 'wire.descriptors'


def protoc_command():
    protoc = os.environ.get('PROTOC') or shutil.which('protoc')
    return [protoc] if protoc else [sys.executable, '-m', 'grpc_tools.protoc']


def make_descriptors():
    root = _HERE.parent
    files = sorted(str(file.relative_to(root)) for file in (root / 'proto').glob('*.proto'))
    if not files:  # a source distribution, which includes the result
        if _TARGET.exists():
            return
        raise SystemExit(f'{root / "proto"} is missing: install from the repository')
    subprocess.run(protoc_command() + ['--proto_path=.', f'--descriptor_set_out={_TARGET}'] + files,
                   cwd=root, check=True)


def copy_license():
    license = _HERE.parent / 'LICENSE'
    if license.exists():  # else this is a source distribution, which has it
        shutil.copyfile(license, _HERE / 'LICENSE')


class BuildPy(build_py):

    def run(self):
        make_descriptors()
        super().run()


class SourceDistribution(sdist):

    def run(self):
        make_descriptors()  # package data, which is included if it exists
        super().run()


class Package(Distribution):
    """A package with programs is for one platform."""

    def has_ext_modules(self):
        return _PROGRAMS.exists()


copy_license()  # setuptools includes a file of this name
setup(distclass=Package, scripts=_SCRIPTS, cmdclass={'build_py': BuildPy, 'sdist': SourceDistribution})
