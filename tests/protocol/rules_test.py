"""Every rule of docs/protocol.md is left out by a test of a model, and README.md says by which one."""

import pathlib
import re
import unittest

from tools import unittest_main

HERE = pathlib.Path(__file__).parent
PAGE = HERE.parent.parent / 'docs' / 'protocol.md'


def rules_in(text):
    return set(re.findall(r'R\d+(?!\d)', text))


def tested_rules():
    """Model -> the rules that its tests leave out."""
    tested = {}
    for file in HERE.rglob('*_test.cc'):
        names = re.findall(r'^TEST\(\w+,\s*(\w+)\)', file.read_text(), flags=re.MULTILINE)
        tested[file.name.removesuffix('_test.cc')] = set().union(*map(rules_in, names))
    return tested


class RulesTest(unittest.TestCase):
    def test_models_leave_out_each_rule_of_the_page_and_no_other(self):
        table = PAGE.read_text().partition('\n## The rules\n')[2].partition('\n## ')[0]
        rules = set(re.findall(r'^\| \[(R\d+)\]', table, flags=re.MULTILINE))
        self.assertEqual(rules, {f'R{number}' for number in range(1, 15)})
        self.assertEqual(set().union(*tested_rules().values()), rules)

    def test_readme_lists_the_rules_of_each_model(self):
        rows = re.findall(r'^\| `(\w+)` \|.*?\| ([^|]*) \|', (HERE / 'README.md').read_text(),
                          flags=re.MULTILINE)
        models = {file.stem for file in HERE.rglob('*.h') if file.with_name(f'{file.stem}_test.cc').exists()}
        self.assertEqual({model for model, _ in rows}, models - {'explorer'})
        tested = tested_rules()
        for model, rules in rows:
            self.assertEqual(rules_in(rules), tested[model], model)


if __name__ == '__main__':
    unittest_main.main()
