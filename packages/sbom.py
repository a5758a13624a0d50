#!/usr/bin/env python3
"""Writes an SBOM (CycloneDX 1.5) beside each artifact of a release: ARTIFACT.cdx.json.

    sbom.py --version VERSION [--stand-ins DIRECTORY] ARTIFACT...

It lists what an artifact contains or depends on, by where it came from:

    .whl      the Debian packages of the libraries inside (auditwheel has listed them), and the wheels that pip adds
    .deb      the packages that it depends on
    .oci.tar  the Debian packages of the files inside; --stand-ins: a directory of libraries to leave out, which images contain empty
    .tgz      the images of the chart
    .tar.gz   the packages from which the source is built

Versions are those of this machine. The same artifacts on the same machine produce the same bytes.
"""

import argparse
import email.parser
import functools
import hashlib
import io
import json
import os
import pathlib
import re
import subprocess
import tarfile
import urllib.parse
import uuid
import zipfile

DPKG = pathlib.Path('/var/lib/dpkg/info')
ROOT = pathlib.Path(__file__).resolve().parent.parent


@functools.lru_cache(maxsize=None)
def installed():
    """{package: (version, source package)} of this machine."""
    listing = subprocess.run(['dpkg-query', '-W', '-f', '${Package}\t${Version}\t${source:Package}\n'], check=True, capture_output=True, text=True).stdout
    return {name: (version, source) for name, version, source in (line.split('\t') for line in listing.splitlines())}


@functools.lru_cache(maxsize=None)
def owners():
    """{path of a file: package} of this machine. /lib and /bin are links to /usr/lib and /usr/bin."""
    found = {}
    for file in DPKG.glob('*.list'):
        for path in file.read_text().splitlines():
            found[re.sub(r'^/(?=(lib|bin|sbin)\b)', '/usr/', path)] = file.stem.split(':')[0]
    return found


def owner(path):
    """The package of a file; also of one that an alternative names, such as libblas.so.3. None without a package."""
    return owners().get(path) or owners().get(os.path.realpath(path))


def licenses(package):
    """The short names of licences in a package's copyright file, if the file is in Debian's format for machines."""
    file = pathlib.Path(f'/usr/share/doc/{package}/copyright')
    text = file.read_text(errors='replace') if file.exists() else ''
    names = re.findall(r'^License: *(\S.*)$', text, re.MULTILINE) if text.startswith('Format:') else []
    return [{'license': {'name': name}} for name in sorted({name.strip() for name in names})]


def quoted(text):
    return urllib.parse.quote(text, safe='')


def debian(package):
    version, source = installed().get(package, ('', ''))
    component = {'type': 'library', 'name': package}
    if version:
        component |= {'version': version, 'purl': f'pkg:deb/debian/{quoted(package)}@{quoted(version)}?arch=amd64&upstream={quoted(source)}'}
    if licenses(package):
        component['licenses'] = licenses(package)
    return component


def of_wheel(artifact):
    with zipfile.ZipFile(artifact) as wheel:
        names = {pathlib.PurePath(name).name: name for name in wheel.namelist() if '.dist-info/' in name}
        listed = json.loads(wheel.read(names['auditwheel.cdx.json'])) if 'auditwheel.cdx.json' in names else {}
        needed = email.parser.BytesParser().parsebytes(wheel.read(names['METADATA'])).get_all('Requires-Dist', [])
    packages = sorted({one['name'] for one in listed.get('components', []) if one.get('purl', '').startswith('pkg:deb/')})
    return [debian(package) for package in packages] + [
        {'type': 'library', 'name': re.match(r'[\w.-]+', line)[0], 'scope': 'optional' if 'extra ==' in line else 'required',
         'purl': 'pkg:pypi/' + re.match(r'[\w.-]+', line)[0]} for line in needed]


def of_debian_package(artifact):
    depends = subprocess.run(['dpkg-deb', '-f', artifact, 'Depends'], check=True, capture_output=True, text=True).stdout
    return [debian(name) for name in sorted({re.match(r'\s*([\w.+-]+)', one)[1] for one in depends.split(',') if one.strip()})]


def of_image(artifact, left_out):
    packages = set()
    with tarfile.open(artifact) as archive:
        index = json.load(archive.extractfile('index.json'))

        def blob(descriptor):
            return archive.extractfile('blobs/' + descriptor['digest'].replace(':', '/'))

        for layer in json.load(blob(index['manifests'][0]))['layers']:
            content = subprocess.run(['zstd', '-dcq'], input=blob(layer).read(), check=True, capture_output=True).stdout
            with tarfile.open(fileobj=io.BytesIO(content)) as files:
                packages |= {owner('/' + file.name) for file in files
                             if file.isfile() and os.path.basename(file.name) not in left_out}
    return [debian(package) for package in sorted(packages - {None})]


def of_chart(artifact):
    with tarfile.open(artifact) as chart:
        values = chart.extractfile('sluice/values.yaml').read().decode()
    names = dict(re.findall(r'^  (operator|server|worker|python): ([\w-]+)', values, re.MULTILINE))
    digests = dict(re.findall(r'(\w+): "(sha256:[0-9a-f]+)"', values))
    return [{'type': 'container', 'name': names[one], 'version': digest, 'purl': f'pkg:oci/{names[one]}@{quoted(digest)}'}
            for one, digest in sorted(digests.items())]


def of_source(_):
    listing = subprocess.run([ROOT / 'tools/install_dependencies.sh', '--run', '--list'], check=True, capture_output=True, text=True).stdout
    return [debian(name) for name in sorted(listing.split())]


def components_of(artifact, left_out):
    if artifact.endswith('.whl'):
        return of_wheel(artifact)
    if artifact.endswith('.deb'):
        return of_debian_package(artifact)
    if artifact.endswith('.oci.tar'):
        return of_image(artifact, left_out)
    return of_chart(artifact) if artifact.endswith('.tgz') else of_source(artifact)


def sbom(artifact, version, left_out):
    digest = hashlib.sha256(pathlib.Path(artifact).read_bytes()).hexdigest()
    return {
        'bomFormat': 'CycloneDX',
        'specVersion': '1.5',
        'serialNumber': f'urn:uuid:{uuid.UUID(digest[:32])}',
        'version': 1,
        'metadata': {'component': {
            'type': 'container' if artifact.endswith('.oci.tar') else 'application',
            'name': os.path.basename(artifact),
            'version': version,
            'hashes': [{'alg': 'SHA-256', 'content': digest}],
            'licenses': [{'license': {'id': 'Apache-2.0'}}],
        }},
        'components': components_of(artifact, left_out),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--version', required=True)
    parser.add_argument('--stand-ins')
    parser.add_argument('artifact', nargs='+')
    arguments = parser.parse_args()
    left_out = set(os.listdir(arguments.stand_ins)) if arguments.stand_ins else set()
    for artifact in arguments.artifact:
        with open(f'{artifact}.cdx.json', 'w', encoding='utf-8') as file:
            json.dump(sbom(artifact, arguments.version, left_out), file, indent=1)
            file.write('\n')


if __name__ == '__main__':
    main()
