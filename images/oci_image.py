#!/usr/bin/env python3
"""Packs programs and files as an OCI image, without a registry, a daemon or a base image.

    oci_image.py --output x.tar --reference localhost/x:1 [--program SOURCE[:PATH]]... [--copy SOURCE:PATH]...
                 [--tree DIRECTORY[:PATH]]... [--link TARGET:PATH]... [--env NAME=VALUE]... [--user UID[:GID]] -- ENTRYPOINT...
    oci_image.py --rootfs DIRECTORY [--program …]…       only the files, into a directory: for the Dockerfile

A program is packed with the shared libraries that it needs. Libraries and base directories are one layer, all other files another,
so images with the same libraries share that layer. Times are 0 and owners are root, so the same files produce the same image.

The archive is an OCI layout, which `ctr images import`, `podman load`, `skopeo copy oci-archive:…` and `docker load` (from
version 25) accept.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile

LIBRARIES = '/usr/lib/x86_64-linux-gnu'
PASSWD = b'root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n'
GROUP = b'root:x:0:\nnonroot:x:65532:\n'
NSSWITCH = b'hosts: files dns\n'
LAYER_TYPE = 'application/vnd.oci.image.layer.v1.tar'
MANIFEST_TYPE = 'application/vnd.oci.image.manifest.v1+json'


class Layer:
    """A tar archive in which each path occurs once, and a directory precedes its entries."""

    def __init__(self):
        self._file = tempfile.TemporaryFile()
        self._tar = tarfile.open(fileobj=self._file, mode='w', format=tarfile.GNU_FORMAT)
        self._paths = set()

    def directory(self, path, mode=0o755):
        path = path.strip('/')
        if path and path not in self._paths:
            self._directories_above(path)
            self._paths.add(path)
            entry = tarfile.TarInfo(path)
            entry.type = tarfile.DIRTYPE
            entry.mode = mode
            self._tar.addfile(entry)

    def file(self, path, content, mode):
        path = path.strip('/')
        if path not in self._paths:
            self._directories_above(path)
            self._paths.add(path)
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            entry.mode = mode
            self._tar.addfile(entry, io.BytesIO(content))

    def link(self, target, path):
        path = path.strip('/')
        if path not in self._paths:
            self._directories_above(path)
            self._paths.add(path)
            entry = tarfile.TarInfo(path)
            entry.type = tarfile.SYMTYPE
            entry.linkname = target
            entry.mode = 0o777
            self._tar.addfile(entry)

    def _directories_above(self, path):
        parts = path.split('/')[:-1]
        for count in range(1, len(parts) + 1):
            self.directory('/'.join(parts[:count]))

    def bytes(self):
        """Closes the archive and returns it; empty if it has no entries."""
        if not self._paths:
            return b''
        self._tar.close()
        self._file.seek(0)
        return self._file.read()


class Files:
    """The layers of an image: one for libraries, one for all other files."""

    def __init__(self, stand_ins='', strip=False):
        self.libraries = Layer()
        self.rest = Layer()
        self._stand_ins = os.path.realpath(stand_ins) if stand_ins else ''
        self._strip = strip
        for path in ('usr', 'usr/lib', 'usr/lib64', 'usr/bin', 'etc'):
            self.libraries.directory(path)
        # As in Debian: programs name the loader by /lib64, and libraries may be named by /lib.
        self.libraries.link('usr/lib', 'lib')
        self.libraries.link('usr/lib64', 'lib64')
        self.libraries.directory('tmp', 0o1777)
        self.libraries.file('etc/passwd', PASSWD, 0o644)
        self.libraries.file('etc/group', GROUP, 0o644)
        self.libraries.file('etc/nsswitch.conf', NSSWITCH, 0o644)

    def add_libraries_of(self, program):
        environment = dict(os.environ)
        if self._stand_ins:
            environment['LD_LIBRARY_PATH'] = self._stand_ins
        libraries = subprocess.run(['ldd', program], capture_output=True, text=True, env=environment).stdout
        if 'not found' in libraries:
            sys.exit(f'{program} needs libraries that are not installed:\n{libraries}')
        for library in sorted(set(re.findall(r'(?:=> )?(/\S+) \(0x', libraries))):  # a static program has none
            directory = os.path.realpath(os.path.dirname(library))
            if directory == self._stand_ins:
                directory = LIBRARIES
            self.libraries.file(f'{directory}/{os.path.basename(library)}', self._content(os.path.realpath(library)), 0o755)

    def add_program(self, source, path):
        source = os.path.realpath(source)
        self.add_libraries_of(source)
        self.rest.file(path, self._content(source), 0o755)

    def add_copy(self, source, path):
        self.rest.file(path, self._content(source), os.stat(source).st_mode & 0o755)

    def add_tree(self, source, path):
        """Adds a directory with its entries, and the libraries that extension modules in it need."""
        for directory, directories, files in sorted(os.walk(source)):
            directories[:] = sorted(name for name in directories if name != '__pycache__')
            links = [name for name in directories if os.path.islink(os.path.join(directory, name))]
            for name in sorted(files + links):
                here = os.path.join(directory, name)
                there = os.path.normpath(f'{path}/{os.path.relpath(here, source)}')
                if os.path.islink(here) and not os.path.isabs(os.readlink(here)):
                    self.rest.link(os.readlink(here), there)
                elif os.path.isfile(here):
                    if re.search(r'\.so(\.|$)', name):
                        self.add_libraries_of(here)
                    self.rest.file(there, self._content(here), os.stat(here).st_mode & 0o755)

    def _content(self, path):
        with open(path, 'rb') as file:
            content = file.read()
        if not self._strip or content[:4] != b'\x7fELF':
            return content
        with tempfile.NamedTemporaryFile() as stripped:
            subprocess.run(['strip', '--strip-unneeded', '-o', stripped.name, path], check=True)
            with open(stripped.name, 'rb') as file:
                return file.read()


def compressed(content, how):
    if how == 'gzip':
        return gzip.compress(content, 5, mtime=0), LAYER_TYPE + '+gzip'
    if how == 'zstd':
        packed = subprocess.run(['zstd', '-q', '-T0', '-3'], input=content, capture_output=True, check=True).stdout
        return packed, LAYER_TYPE + '+zstd'
    return content, LAYER_TYPE


def digest(content):
    return 'sha256:' + hashlib.sha256(content).hexdigest()


def canonical(value):
    return json.dumps(value, sort_keys=True).encode()


def write_image(arguments, layers):
    """Writes the OCI layout. Returns the sizes of its layers, unpacked and compressed."""
    blobs = {}

    def blob(content, **more):
        blobs[digest(content)] = content
        return {'digest': digest(content), 'size': len(content), **more}

    descriptors, raw_digests = [], []
    for raw in layers:
        raw_digests.append(digest(raw))
        content, media_type = compressed(raw, arguments.compress)
        descriptors.append(blob(content, mediaType=media_type))
    config = canonical({
        'architecture': 'amd64',
        'os': 'linux',
        'created': '1970-01-01T00:00:00Z',
        'config': {
            'Env': ['PATH=/usr/bin:/bin'] + arguments.env,
            'Entrypoint': arguments.entrypoint or None,
            'User': arguments.user,
            'WorkingDir': '/',
            'Labels': dict(label.split('=', 1) for label in arguments.label),
        },
        'rootfs': {'type': 'layers', 'diff_ids': raw_digests},
    })
    manifest = canonical({
        'schemaVersion': 2,
        'mediaType': MANIFEST_TYPE,
        'config': blob(config, mediaType='application/vnd.oci.image.config.v1+json'),
        'layers': descriptors,
    })
    index = canonical({
        'schemaVersion': 2,
        'manifests': [blob(
            manifest, mediaType=MANIFEST_TYPE, platform={'architecture': 'amd64', 'os': 'linux'},
            annotations={
                'io.containerd.image.name': arguments.reference,
                'org.opencontainers.image.ref.name': arguments.reference.rsplit(':', 1)[-1],
            })],
    })
    with tarfile.open(arguments.output, 'w') as tar:
        for path, content in [('oci-layout', b'{"imageLayoutVersion":"1.0.0"}'), ('index.json', index)] + [
                ('blobs/' + name.replace(':', '/'), blobs[name]) for name in blobs]:
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            entry.mode = 0o644
            tar.addfile(entry, io.BytesIO(content))
    return sum(map(len, layers)), sum(one['size'] for one in descriptors)


def parsed_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--output', help='the archive to write')
    parser.add_argument('--reference', help='name:tag of the image')
    parser.add_argument('--rootfs', help='write the files into this directory instead')
    for name in ('--program', '--copy', '--tree', '--link', '--env', '--label'):
        parser.add_argument(name, action='append', default=[])
    parser.add_argument('--user', default='')
    parser.add_argument('--compress', default='none', choices=['none', 'gzip', 'zstd'])
    parser.add_argument('--stand-ins', default='', help='a directory of libraries that replace the system\'s')
    parser.add_argument('--strip', action='store_true', help='remove symbols')
    parser.add_argument('entrypoint', nargs='*')
    arguments = parser.parse_args()
    if not arguments.rootfs and not (arguments.output and arguments.reference):
        parser.error('--output and --reference, or --rootfs')
    return arguments


def main():
    arguments = parsed_arguments()
    files = Files(arguments.stand_ins, arguments.strip)
    for program in arguments.program:
        source, _, path = program.partition(':')
        files.add_program(source, path or '/usr/bin/' + os.path.basename(source))
    for copy in arguments.copy:
        files.add_copy(*copy.split(':'))
    for tree in arguments.tree:
        source, _, path = tree.partition(':')
        files.add_tree(source, path or source)
    for link in arguments.link:
        files.rest.link(*link.split(':'))

    layers = [content for content in (files.libraries.bytes(), files.rest.bytes()) if content]
    if arguments.rootfs:
        os.makedirs(arguments.rootfs, exist_ok=True)
        for content in layers:
            with tarfile.open(fileobj=io.BytesIO(content)) as tar:
                tar.extractall(arguments.rootfs)
        return
    raw, stored = write_image(arguments, layers)
    print(f'{arguments.reference}: {raw / 1e6:.1f} MB, {stored / 1e6:.1f} MB as stored')


if __name__ == '__main__':
    main()
