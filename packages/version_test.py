"""The files that repeat the version have that of the file VERSION, and tools/release.sh --set-version writes it to all of them."""

import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from tools import unittest_main

# Each file, and the pattern of its line.
FILES = {
    'helm/sluice/Chart.yaml': r'^(?:appVersion|version): (.*)$',
    'k8s/sluice.yaml': r'(?:app\.kubernetes\.io/version: "?|helm\.sh/chart: sluice-|localhost/sluice-\w+:)([\d.]+)',
    'python/sluice/__init__.py': r"^__version__ = '(.*)'$",
}


def versions(root):
    return {name: set(re.findall(pattern, (root / name).read_text(), re.MULTILINE)) for name, pattern in FILES.items()}


class Version(unittest.TestCase):

    def setUp(self):
        self.root = pathlib.Path('.')
        self.version = (self.root / 'VERSION').read_text().strip()

    def test_every_file_has_the_version(self):
        self.assertEqual(versions(self.root), {name: {self.version} for name in FILES})

    def test_changelog_begins_with_the_version_and_its_date(self):
        headings = re.findall(r'^## (.*)$', (self.root / 'CHANGELOG.md').read_text(), re.MULTILINE)
        released = [heading for heading in headings if heading != 'Unreleased']
        self.assertRegex(released[0], rf'^{re.escape(self.version)} \(\d{{4}}-\d\d-\d\d\)$')

    def test_set_version_writes_every_file(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        copy = pathlib.Path(temporary.name)
        for name in [*FILES, 'VERSION', 'tools/common.sh', 'tools/programs.sh', 'tools/release.sh']:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(name, copy / name)
        before = (copy / 'k8s/sluice.yaml').read_text()
        subprocess.run([copy / 'tools/release.sh', '--set-version', '12.34.56'], check=True, stdout=subprocess.DEVNULL)
        self.assertEqual(versions(copy), {name: {'12.34.56'} for name in FILES})
        self.assertEqual((copy / 'VERSION').read_text(), '12.34.56\n')
        self.assertEqual((copy / 'k8s/sluice.yaml').read_text(), before.replace(self.version, '12.34.56'))

    def test_set_version_refuses_what_is_no_version(self):
        done = subprocess.run(['tools/release.sh', '--set-version', '1.2-rc1'], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("not '1.2-rc1'", done.stderr)


if __name__ == '__main__':
    unittest_main.main()
