"""Links in the pages lead to existing targets, and files that the pages name exist."""

import os
import pathlib
import re
import unittest

from docs import pages
from tools import unittest_main


class Pages(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        pages.enter_repository()

    def test_relative_links_lead_to_existing_files_and_headings(self):
        for page in pages.pages():
            for link in pages.links(page.read_text()):
                if '://' in link or link.startswith('mailto:'):
                    continue
                target, _, anchor = link.partition('#')
                path = pathlib.Path(os.path.normpath(page.parent / target)) if target else page
                with self.subTest(page=str(page), link=link):
                    self.assertTrue(path.exists(), f'{page} links to {path}, which does not exist')
                    if anchor:
                        self.assertIn(anchor, pages.anchors(path.read_text()))

    def test_paths_that_pages_name_exist(self):
        for page in pages.pages():
            for name in pages.paths(page.read_text()):
                with self.subTest(page=str(page), name=name):
                    self.assertTrue(
                        pathlib.Path(name).exists(), f'{page} names {name}, which does not exist')

    def test_pages_that_sources_name_exist(self):
        seen = 0
        for directory in ('cli', 'operator', 'proto', 'services', 'tests'):
            for source in pathlib.Path(directory).rglob('*'):
                if source.suffix not in ('.h', '.cc', '.proto'):
                    continue
                for page in re.findall(r'\bdocs/[\w-]+\.md', source.read_text()):
                    seen += 1
                    with self.subTest(source=str(source), page=page):
                        self.assertTrue(pathlib.Path(page).exists())
        self.assertGreater(seen, 5)

    def test_readme_links_to_every_page_of_docs(self):
        readme = set(pages.links(pathlib.Path('README.md').read_text()))
        for page in pathlib.Path('docs').glob('*.md'):
            with self.subTest(page=str(page)):
                self.assertIn(str(page), readme)

    def test_pages_install_the_wheel_by_the_name_of_the_distribution(self):
        name = re.search(r'^name = "(.+)"', pathlib.Path('python/pyproject.toml').read_text(), re.MULTILINE)[1]
        shown = [(str(page), wheel) for page in pages.pages() for wheel in re.findall(r'(\S+)-\*\.whl', page.read_text())]
        self.assertTrue(shown)
        for page, wheel in shown:
            with self.subTest(page=page):
                self.assertEqual(wheel.removeprefix('./'), name.replace('-', '_'))

    def test_pictures_are_shown_and_small(self):
        shown = {os.path.normpath(page.parent / link) for page in pages.pages() for link in pages.links(page.read_text())}
        pictures = [path for path in pathlib.Path('docs').iterdir() if path.suffix in ('.svg', '.png')]
        self.assertGreater(len(pictures), 2)
        for picture in pictures:
            with self.subTest(picture=str(picture)):
                self.assertIn(str(picture), shown)
                self.assertLess(picture.stat().st_size, 200_000)

    def test_every_python_snippet_compiles(self):
        for page in pages.pages():
            for number, block in enumerate(pages.fenced_blocks(page.read_text(), 'python')):
                with self.subTest(page=str(page), number=number):
                    compile(block, str(page), 'exec')

    def test_link_parser_finds_links(self):
        text = 'See [a](b.md#c-d), not `[x](y)`.\n```\n[no](no.md)\n```\n## C: d\n'
        self.assertEqual(pages.links(text), ['b.md#c-d'])
        self.assertEqual(pages.anchors(text), {'c-d'})
        self.assertEqual(pages.paths('`services/ps/x.h`, `/metrics`, `a/b`'), ['services/ps/x.h'])

    def test_transcripts_are_compared_by_their_form(self):
        text = '```console\n$ run a\nstep 1,000 of 2,000, 3.5 s left\n…\n$ run b\n```\n'
        ((command, lines), (other, nothing)) = pages.transcript(text)
        self.assertEqual((command, lines, other, nothing), ('run a', ['step 1,000 of 2,000, 3.5 s left'], 'run b', []))
        self.assertEqual(pages.missing(lines, 'begin\n  step 7 of 2,000, 1m 02s left\n'), [])
        self.assertEqual(pages.missing(lines, 'step 7 of 2,000, stopped\n'), lines)


if __name__ == '__main__':
    unittest_main.main()
