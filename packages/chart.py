#!/usr/bin/env python3
"""Packs the Helm chart, whose values name the images by their digests.

    chart.py OUTPUT [NAME=ARCHIVE]...    NAME: operator, server, worker or python; ARCHIVE: an OCI archive of that image

The same chart and images produce the same bytes, which `helm package` does not promise.
"""

import fnmatch
import gzip
import io
import json
import pathlib
import re
import sys
import tarfile

CHART = pathlib.Path(__file__).resolve().parent.parent / 'helm/sluice'
NO_DIGESTS = re.compile(r'^  digests: \{\} .*$', re.MULTILINE)


def digest_of(archive):
    """The digest of the image in an OCI archive, by which a registry names it."""
    with tarfile.open(archive) as tar:
        return json.load(tar.extractfile('index.json'))['manifests'][0]['digest']


def values_with(text, digests):
    if not digests:
        return text
    changed, count = NO_DIGESTS.subn('  digests: {' + ', '.join(f'{name}: "{value}"' for name, value in sorted(digests.items())) + '}', text)
    if count != 1:
        sys.exit('values.yaml has no line "  digests: {}" to fill in')
    return changed


def files_of(chart):
    """The chart's files, without those that .helmignore names."""
    ignored = [line.lstrip('/') for line in (chart / '.helmignore').read_text().splitlines()]
    for path in sorted(chart.rglob('*')):
        name = str(path.relative_to(chart))
        if path.is_file() and not any(fnmatch.fnmatch(name, pattern) and '/' not in name for pattern in ignored):
            yield name, path.read_bytes()


def pack(output, digests):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode='w', format=tarfile.GNU_FORMAT) as tar:
        for name, data in files_of(CHART):
            if name == 'values.yaml':
                data = values_with(data.decode(), digests).encode()
            entry = tarfile.TarInfo(f'sluice/{name}')
            entry.size = len(data)
            entry.mode = 0o644
            tar.addfile(entry, io.BytesIO(data))
    pathlib.Path(output).write_bytes(gzip.compress(content.getvalue(), 9, mtime=0))


if __name__ == '__main__':
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    pack(sys.argv[1], {name: digest_of(archive) for name, archive in (argument.split('=', 1) for argument in sys.argv[2:])})
