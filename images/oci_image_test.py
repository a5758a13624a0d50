"""Images packed by oci_image.py, read as a registry or a container runtime reads them."""

import gzip
import hashlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import unittest

from images import oci_image
from tools import unittest_main


class OciImageTest(unittest.TestCase):

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def pack(self, name, *arguments):
        """The blobs of an image by digest, and its manifest."""
        archive = self.directory / name
        subprocess.run([sys.executable, oci_image.__file__, '--output', archive, '--reference', 'localhost/x:1', *arguments],
                       check=True, stdout=subprocess.DEVNULL)
        blobs = {}
        with tarfile.open(archive) as tar:
            for entry in tar:
                content = tar.extractfile(entry).read()
                if entry.name.startswith('blobs/sha256/'):
                    self.assertEqual(entry.name, 'blobs/sha256/' + hashlib.sha256(content).hexdigest())
                    blobs['sha256:' + entry.name.rpartition('/')[2]] = content
                elif entry.name == 'index.json':
                    index = json.loads(content)
        return blobs, json.loads(blobs[index['manifests'][0]['digest']])

    def files(self, blobs, manifest):
        """{path: entry} over all layers."""
        found = {}
        for layer in manifest['layers']:
            with tarfile.open(fileobj=io.BytesIO(blobs[layer['digest']])) as tar:
                found.update({entry.name: entry for entry in tar})
        return found

    def test_the_same_files_produce_the_same_image(self):
        for name in ('one.tar', 'two.tar'):
            self.pack(name, '--program', '/usr/bin/env', '--', '/usr/bin/env')
        self.assertEqual((self.directory / 'one.tar').read_bytes(), (self.directory / 'two.tar').read_bytes())

    def test_a_program_is_packed_with_the_libraries_that_it_needs(self):
        files = self.files(*self.pack('x.tar', '--program', '/usr/bin/env'))
        self.assertIn('usr/bin/env', files)
        self.assertTrue(any(path.endswith('/libc.so.6') for path in files))
        self.assertEqual(files['lib64'].linkname, 'usr/lib64')

    def test_images_with_the_same_libraries_share_that_layer(self):
        _, one = self.pack('one.tar', '--program', '/usr/bin/env')
        _, two = self.pack('two.tar', '--program', '/usr/bin/env', '--copy', '/etc/debian_version:/etc/debian_version')
        self.assertEqual(one['layers'][0], two['layers'][0])
        self.assertNotEqual(one['layers'][1], two['layers'][1])

    def test_the_digest_of_a_layer_is_that_of_its_unpacked_content(self):
        blobs, manifest = self.pack('x.tar', '--program', '/usr/bin/env', '--compress', 'gzip')
        config = json.loads(blobs[manifest['config']['digest']])
        unpacked = ['sha256:' + hashlib.sha256(gzip.decompress(blobs[layer['digest']])).hexdigest()
                    for layer in manifest['layers']]
        self.assertEqual(config['rootfs']['diff_ids'], unpacked)

    def test_directories_precede_their_entries(self):
        tree = self.directory / 'tree/a/b'
        tree.mkdir(parents=True)
        (tree / 'c').write_text('text')
        blobs, manifest = self.pack('x.tar', '--tree', f'{self.directory}/tree:/opt')
        seen = set()
        for layer in manifest['layers']:
            with tarfile.open(fileobj=io.BytesIO(blobs[layer['digest']])) as tar:
                for entry in tar:
                    above = os.path.dirname(entry.name)
                    self.assertTrue(not above or above in seen, entry.name)
                    seen.add(entry.name)
        self.assertIn('opt/a/b/c', seen)

    def test_a_missing_library_is_an_error(self):
        broken = self.directory / 'broken'
        library = self.directory / 'libgone.so'
        subprocess.run(['gcc', '-shared', '-Wl,-soname,libgone.so', '-o', library, '-xc', '/dev/null'], check=True)
        subprocess.run(['gcc', '-o', broken, '-Wl,--no-as-needed', '-xc', '-', '-xnone', library], input=b'int main() { return 0; }',
                       check=True)
        library.unlink()
        done = subprocess.run([sys.executable, oci_image.__file__, '--output', self.directory / 'x.tar', '--reference', 'x:1',
                               '--program', broken], capture_output=True, text=True, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn('libgone.so', done.stderr)


if __name__ == '__main__':
    unittest_main.main()
