"""Parsing of Markdown pages for the tests of the documentation."""

import os
import pathlib
import re


def enter_repository():
    """Changes to the root of the source tree; WORKSPACE must be in the test's data."""
    os.chdir(os.path.dirname(os.path.realpath('WORKSPACE')))


def pages():
    """Every page of the repository, as a path from the root."""
    return sorted(pathlib.Path('.').glob('*.md')) + sorted(pathlib.Path('docs').glob('**/*.md'))


def without_code(text):
    """The text without fenced blocks and code spans."""
    text = re.sub(r'^ *```.*?^ *```$', '', text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r'`[^`\n]*`', '', text)


def fenced_blocks(text, language):
    """The contents of the fenced blocks of a language, in order, without their indentation."""
    blocks = re.findall(
        rf'^( *)```{language}\n(.*?)^ *```$', text, flags=re.MULTILINE | re.DOTALL)
    return [re.sub(rf'^{indent}', '', block, flags=re.MULTILINE) for indent, block in blocks]


def links(text):
    """The targets of all links."""
    return re.findall(r'\]\(([^)\s]+)\)', without_code(text))


def anchors(text):
    """The anchors of a page's headings, as GitHub makes them."""
    result = set()
    for heading in re.findall(r'^#+ +(.*)$', re.sub(
            r'^ *```.*?^ *```$', '', text, flags=re.MULTILINE | re.DOTALL), flags=re.MULTILINE):
        words = re.sub(r'[^\w\- ]', '', heading.lower())
        result.add(words.strip().replace(' ', '-'))
    return result


# The top-level directories: a path in backquotes that begins with one of them is a path of this repository.
_DIRECTORIES = ('bench', 'cli', 'docs', 'examples', 'helm', 'k8s', 'operator', 'packages', 'proto', 'services', 'tests', 'third_party', 'tools')


def paths(text):
    """The paths of the repository in code spans."""
    spans = re.findall(r'`([^`\n]+)`', text)
    return sorted({span for span in spans
                   if re.fullmatch(rf'\.?/?({"|".join(_DIRECTORIES)})/[\w./-]*', span)})


def transcript(text):
    """[(command, the lines of its output that the page shows)] of the blocks of a terminal, in order."""
    result = []
    for block in fenced_blocks(text, 'console'):
        for part in re.split(r'^\$ ', block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition('\n')
            result.append((command, [line for line in output.splitlines() if line.strip() not in ('', '…')]))
    return result


def form(line):
    """A line of output without the parts that differ from run to run."""
    line = re.sub(r'time=\S+', 'time', line)
    line = re.sub(r'[█▏▎▍▌▋▊▉░]+', 'bar', line)
    line = re.sub(r'\b(?:(?:\d+h )?(?:\d+m )?\d+s|\d+\.\d+ s)\b', 'duration', line)
    line = re.sub(r'attempt-\d+-step-\d+', 'checkpoint', line)
    line = re.sub(r'\d[\d,.]*', 'number', line)
    return re.sub(r'\s+', ' ', line).strip()


def missing(lines, printed):
    """Those of a page's lines whose form no line of the printed text has."""
    have = {form(line) for line in printed.splitlines()}
    return [line for line in lines if form(line) not in have]
