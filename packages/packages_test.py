"""The tools of a release: man pages, the chart's archive, SBOMs."""

import json
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

import yaml

from images import oci_image
from packages import chart
from packages import man_page
from packages import sbom
from tools import unittest_main

HELP = '''Counts things.

  count --all
  count -x 'a\\b'

Ctrl-C stops.

Usage: ./bin/count [OPTIONS] FILE

Positionals:
  FILE TEXT (required)        what is counted

Options:
  -h,--help                   Print this help message
  --a-very-long-flag NUMBER (default: 1)
                              how much
                              of it

Exit codes:
  0    counted
'''


class Case(unittest.TestCase):

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.directory = pathlib.Path(temporary.name)

    def image(self, name):
        """An OCI archive with one program of Debian and its libraries."""
        archive = self.directory / f'{name}.oci.tar'
        subprocess.run([sys.executable, oci_image.__file__, '--output', archive, '--reference', f'localhost/{name}:1', '--compress', 'zstd',
                        '--program', '/usr/bin/env'], check=True, stdout=subprocess.DEVNULL)
        return str(archive)


class ManPage(Case):

    def rendered(self, text):
        page = self.directory / 'page.1'
        page.write_text(text)
        shown = subprocess.run(['groff', '-man', '-Tascii', '-P-cbou', '-ww', page], capture_output=True, text=True, check=True)
        self.assertEqual(shown.stderr, '')
        return shown.stdout

    def test_page_has_each_part_of_the_help(self):
        shown = self.rendered(man_page.page_of('count', '1.2', HELP, ['count-other']))
        for part in ('count - Counts things', 'count [OPTIONS] FILE', "count -x 'a\\b'", 'Ctrl-C stops.', '-h, --help', 'EXIT STATUS', 'count-other(1)'):
            self.assertIn(part, shown)
        self.assertRegex(shown, r'--a-very-long-flag NUMBER \(default: 1\)\n +how much of it')
        # Examples keep their lines.
        self.assertRegex(shown, r"\n +count --all\n +count -x 'a")


class Chart(Case):

    def test_values_name_the_digest_of_each_image(self):
        server = self.image('server')
        for name in ('one.tgz', 'two.tgz'):
            chart.pack(self.directory / name, {'server': chart.digest_of(server)})
        self.assertEqual((self.directory / 'one.tgz').read_bytes(), (self.directory / 'two.tgz').read_bytes())
        with tarfile.open(self.directory / 'one.tgz') as tar:
            names = tar.getnames()
            values = yaml.safe_load(tar.extractfile('sluice/values.yaml'))
        with tarfile.open(server) as archive:
            digest = json.load(archive.extractfile('index.json'))['manifests'][0]['digest']
        self.assertEqual(values['image']['digests'], {'server': digest})
        self.assertIn('sluice/Chart.yaml', names)
        self.assertIn('sluice/files/helm_test.py', names)
        self.assertNotIn('sluice/BUILD', names)
        self.assertNotIn('sluice/chart_test.py', names)

    def test_without_images_the_values_are_those_of_the_tree(self):
        chart.pack(self.directory / 'chart.tgz', {})
        with tarfile.open(self.directory / 'chart.tgz') as tar:
            self.assertEqual(tar.extractfile('sluice/values.yaml').read(), (chart.CHART / 'values.yaml').read_bytes())


class Sbom(Case):

    def of(self, artifact, left_out=()):
        listed = sbom.sbom(str(artifact), '1.2.3', set(left_out))
        self.assertEqual((listed['bomFormat'], listed['specVersion'], listed['metadata']['component']['version']), ('CycloneDX', '1.5', '1.2.3'))
        for component in listed['components']:
            self.assertRegex(component.get('purl', 'pkg:deb/'), r'^pkg:(deb|oci|pypi)/')
        return {component['name']: component for component in listed['components']}

    def test_image_lists_the_packages_of_its_files(self):
        components = self.of(self.image('env'))
        self.assertLessEqual({'coreutils', 'libc6'}, set(components))
        self.assertTrue(components['libc6']['version'])
        self.assertNotIn('libc6', self.of(self.image('env'), ['libc.so.6', 'ld-linux-x86-64.so.2']))

    def test_chart_lists_its_images(self):
        digest = chart.digest_of(self.image('server'))
        chart.pack(self.directory / 'chart.tgz', {'server': digest})
        self.assertEqual({name: one['version'] for name, one in self.of(self.directory / 'chart.tgz').items()}, {'sluice-server': digest})

    def test_wheel_lists_its_libraries_and_requirements(self):
        with zipfile.ZipFile(self.directory / 'x.whl', 'w') as wheel:
            wheel.writestr('x.dist-info/METADATA', "Name: x\nRequires-Dist: numpy (>=1.21)\nRequires-Dist: torch ; extra == 'torch'\n")
            wheel.writestr('x.dist-info/sboms/auditwheel.cdx.json', json.dumps({'components': [
                {'name': 'libc6', 'purl': 'pkg:deb/debian/libc6@2'}, {'name': 'x', 'purl': 'pkg:pypi/x@1'}]}))
        components = self.of(self.directory / 'x.whl')
        self.assertEqual({name: one.get('scope') for name, one in components.items()}, {'libc6': None, 'numpy': 'required', 'torch': 'optional'})

    def test_source_lists_the_packages_that_build_it(self):
        (self.directory / 'x.tar.gz').write_bytes(b'x')
        self.assertLessEqual({'bazel-bootstrap', 'libgrpc++-dev', 'libtorch-dev'}, set(self.of(self.directory / 'x.tar.gz')))

    def test_licences_come_from_the_copyright_file(self):
        names = [one['license']['name'] for one in sbom.licenses('zlib1g')]
        self.assertTrue(any(re.match('zlib', name, re.IGNORECASE) for name in names), names)


if __name__ == '__main__':
    unittest_main.main()
