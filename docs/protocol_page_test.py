"""docs/protocol.md has a row for every field that a peer sends, and no other rows."""

import pathlib
import re
import unittest

from tools import unittest_main

# Files whose messages no peer sends: the user writes the job's description (docs/manifest.md), and
# a program that the command line starts writes a model's description.
NOT_FROM_PEERS = {'job.proto', 'describe.proto'}

# Files whose table is not written yet; remove a name together with writing its table.
PENDING = set()

COLUMNS = ['message', 'fields', 'sent by', 'what the receiver checks']


def fields_of_proto(text):
    """Message -> set of the names of its fields; a nested message is Outer.Inner."""
    text = re.sub(r'//[^\n]*', '', text)
    messages = {}
    blocks = []  # (kind, full name) of each open brace
    statement = ''
    for token in re.findall(r'"[^"]*"|[{};]|[^"{};]+', text):
        if token == '{':
            kind, _, name = statement.strip().partition(' ')
            parents = [outer for outer_kind, outer in blocks if outer_kind == 'message']
            if kind == 'message':
                name = '.'.join(parents[-1:] + [name.strip()])
                messages[name] = set()
            blocks.append((kind, name))
            statement = ''
        elif token == '}':
            blocks.pop()
            statement = ''
        elif token == ';':
            holders = [name for kind, name in blocks if kind == 'message']
            field = re.fullmatch(r'\s*(?:(?:repeated|optional)\s+)?[\w.]+(?:\s*<[^>]*>)?\s+(\w+)'
                                 r'\s*=\s*\d+\s*(?:\[.*\])?\s*', statement, flags=re.DOTALL)
            if field and holders and blocks[-1][0] in ('message', 'oneof'):
                messages[holders[-1]].add(field[1])
            statement = ''
        else:
            statement += token
    return {message: fields for message, fields in messages.items() if fields}


def table_of_page(page, proto):
    """The rows of the table between "<!-- fields: PROTO -->" and the next "<!-- end -->"."""
    found = re.search(rf'<!-- fields: {re.escape(proto)} -->\n(.*?)<!-- end -->', page,
                      flags=re.DOTALL)
    if found is None:
        return None
    rows = []
    for line in found[1].splitlines():
        if line.startswith('|'):
            rows.append([cell.strip() for cell in line.strip('|').split(' | ')])
    return rows


def fields_of_table(rows):
    """(message -> fields, problems with the form of the table)."""
    problems = []
    if [cell.strip() for cell in rows[0]] != COLUMNS:
        problems.append(f'the columns are {rows[0]}, they should be {COLUMNS}')
    messages = {}
    for row in rows[2:]:
        if len(row) != len(COLUMNS) or not all(row):
            problems.append(f'this row does not have {len(COLUMNS)} filled cells: {row}')
            continue
        message = re.fullmatch(r'`([\w.]+)`', row[0])
        fields = re.findall(r'`(\w+)`', row[1])
        if message is None or ', '.join(f'`{field}`' for field in fields) != row[1]:
            problems.append(f'a row must name `Message` and `field`, `field`: {row[:2]}')
            continue
        for field in fields:
            if field in messages.setdefault(message[1], set()):
                problems.append(f'{message[1]}.{field} has two rows')
            messages[message[1]].add(field)
    return messages, problems


def differences(wanted, found):
    """The missing and the surplus rows of a table, one line each."""
    def flat(messages):
        return {f'{message}.{field}' for message, fields in messages.items() for field in fields}
    return ([f'{field} has no row' for field in sorted(flat(wanted) - flat(found))] +
            [f'{field} is not a field' for field in sorted(flat(found) - flat(wanted))])


class ProtocolPage(unittest.TestCase):

    def setUp(self):
        self.page = pathlib.Path('docs/protocol.md').read_text()
        self.protos = {path.name: path.read_text()
                       for path in pathlib.Path('proto').glob('*.proto')}
        self.assertGreater(len(self.protos), 5)

    def test_each_field_has_a_row_and_each_row_is_a_field(self):
        for name, text in self.protos.items():
            if name in NOT_FROM_PEERS | PENDING:
                continue
            with self.subTest(proto=name):
                rows = table_of_page(self.page, name)
                self.assertIsNotNone(rows, f'docs/protocol.md has no table of {name}')
                found, problems = fields_of_table(rows)
                self.assertEqual(problems + differences(fields_of_proto(text), found), [])

    def test_pending_and_excluded_files_have_no_table(self):
        for name in NOT_FROM_PEERS | PENDING:
            with self.subTest(proto=name):
                self.assertIn(name, self.protos)
                self.assertIsNone(table_of_page(self.page, name),
                                  f'{name} has a table: remove it from PENDING')

    def test_finds_missing_and_surplus_rows(self):
        proto = '''
            // message Comment { uint64 no = 1; }
            message Outer {
              message Inner { repeated double deep = 1; }
              enum Kind { NONE = 0; }
              Kind kind = 1;  // = 9;
              oneof body { Inner inner = 2; string text = 3; }
              optional uint64 long_name =
                  4;
            }
            message Empty {}
            service S { rpc Call(Outer) returns (Outer); }'''
        fields = fields_of_proto(proto)
        self.assertEqual(fields, {'Outer': {'kind', 'inner', 'text', 'long_name'},
                                  'Outer.Inner': {'deep'}})

        page = ('<!-- fields: x.proto -->\n| message | fields | sent by | what the receiver checks |\n'
                '|---|---|---|---|\n| `Outer` | `kind`, `inner`, `gone` | A | B |\n'
                '| `Outer.Inner` | `deep` | A | B |\n<!-- end -->')
        found, problems = fields_of_table(table_of_page(page, 'x.proto'))
        self.assertEqual(problems, [])
        self.assertEqual(differences(fields, found),
                         ['Outer.long_name has no row', 'Outer.text has no row',
                          'Outer.gone is not a field'])


if __name__ == '__main__':
    unittest_main.main()
