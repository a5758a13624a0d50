#!/usr/bin/env python3
"""Makes man pages from a program's help text.

    man_page.py PROGRAM DIRECTORY    writes NAME.1 to the directory, and NAME-COMMAND.1 for each command of the program
"""

import os
import re
import subprocess
import sys


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def escaped(text):
    text = text.replace('\\', '\\e').replace('-', '\\-')
    return re.sub(r"^(?=[.'])", r'\\&', text, flags=re.MULTILINE)


def prose(lines):
    """Paragraphs; an indented block is an example."""
    page, example = [], False
    for line in lines:
        indented = line.startswith('  ')
        if indented != example and line:
            page.append('.PP\n.RS 4\n.EX' if indented else '.EE\n.RE\n.PP')
            example = indented
        page.append(escaped(line[2:] if indented else line) if line else '' if example else '.PP')
    if example:
        page.append('.EE\n.RE')
    return page


def entries(lines):
    """Pairs of a name and its description: the description follows after two spaces, or in the next lines."""
    found = []
    for line in lines:
        if not line.strip():
            continue
        inner = re.fullmatch(r'  (\S.*?)(?:\s{2,}(\S.*))?', line)
        if inner:
            found.append([inner[1], inner[2] or ''])
        else:
            found[-1][1] = f'{found[-1][1]} {line.strip()}'.strip()
    return found


def tagged(lines):
    """Flags, arguments, commands or exit codes with their descriptions."""
    page = []
    for name, description in entries(lines):
        flags, value = re.fullmatch(r'(\S+)(.*)', re.sub(r'(?<=\w),(?=-)', ',\0', name)).groups()
        page.append(f'.TP\n\\fB{escaped(flags)}\\fR{escaped(value)}\n{escaped(description)}'.replace('\0', ' '))
    return page


class Help:
    """A help text in parts: the description's lines, the usage, and the sections by their titles."""

    def __init__(self, text):
        before, _, after = text.partition('\nUsage: ')
        self.description = before.strip('\n').splitlines()
        self.usage, *rest = after.splitlines()
        self.sections = {}
        for line in rest:
            if re.fullmatch(r'\S.*:', line):
                title = line[:-1]
                self.sections[title] = []
            elif line:
                self.sections[title].append(line)


def page_of(name, version, text, related):
    """The man page of a program or command. `related` are the names of other pages."""
    parts = Help(text)
    summary, _, description = '\n'.join(parts.description).partition('\n\n')
    summary = summary.replace('\n', ' ').rstrip('.')
    usage = re.sub(r'^\S*/', '', parts.usage)
    page = [f'.TH {name.upper()} 1 "" "Sluice {version}" "User Commands"',
            f'.SH NAME\n{escaped(name)} \\- {escaped(summary)}',
            f'.SH SYNOPSIS\n.B {escaped(usage)}']
    if description:
        page += ['.SH DESCRIPTION', *prose(description.splitlines())]
    for title, lines in parts.sections.items():
        heading = {'Exit codes': 'EXIT STATUS', 'Positionals': 'ARGUMENTS', 'Subcommands': 'COMMANDS'}.get(title, title.upper())
        page += [f'.SH {escaped(heading)}', *tagged(lines)]
    if related:
        page += ['.SH SEE ALSO', ',\n'.join(f'.BR {escaped(one)} (1)' for one in related).replace(')\n', '),\n')]
    return '\n'.join(page) + '\n'


def write_pages(program, directory):
    name = os.path.basename(program)
    version = output_of(program, '--version').split()[-1]
    text = output_of(program, '--help')
    commands = [entry[0] for entry in entries(Help(text).sections.get('Subcommands', []))]
    pages = {name: page_of(name, version, text, [f'{name}-{command}' for command in commands])}
    for command in commands:
        pages[f'{name}-{command}'] = page_of(f'{name}-{command}', version, output_of(program, command, '--help'), [name])
    for page, content in pages.items():
        with open(os.path.join(directory, f'{page}.1'), 'w', encoding='utf-8') as file:
            file.write(content)


if __name__ == '__main__':
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    write_pages(*sys.argv[1:])
