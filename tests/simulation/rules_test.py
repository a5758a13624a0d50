"""Every rule of the protocol has a mutation, a deliberate bug that the simulator finds, or a unit
test that fails without the rule. mutations.cc names each of them, and the unit tests exist."""

import glob
import os
import re
import unittest

from tools import unittest_main

_ROOT = os.path.dirname(os.path.realpath('WORKSPACE'))
_RULES = {
    'ShardRules': 'services/ps/core/base/rules.h',
    'CoordinatorRules': 'services/coordinator/core/base/rules.h',
    'WorkerRules': 'services/worker/core/base/rules.h',
}


def read(path):
    with open(os.path.join(_ROOT, path), encoding='utf-8') as file:
        return file.read()


def rules():
    return {(role, rule) for role, path in _RULES.items()
            for rule in re.findall(r'virtual bool (\w+)\(\) const', read(path))}


class Rules(unittest.TestCase):

    def setUp(self):
        text = read('tests/simulation/mutations.cc')
        self.mutated = set(re.findall(r'[({ ]SLUICE_WITHOUT\((\w+Rules), (\w+)\)', text))
        named = re.findall(r'//   (\w+)::(\w+):(?:\n//    )? (\w+)\.(\w+)\n', text)
        self.tests = {(role, rule): (suite, test) for role, rule, suite, test in named}

    def test_each_rule_has_either_a_mutation_or_a_unit_test(self):
        self.assertGreater(len(rules()), 40)
        self.assertEqual(self.mutated | set(self.tests), rules())
        self.assertEqual(self.mutated & set(self.tests), set())

    def test_unit_tests_exist(self):
        there = set()
        for path in glob.glob(os.path.join(_ROOT, 'services/**/*_test.cc'), recursive=True):
            there.update(re.findall(r'TEST(?:_F)?\((\w+),\s*(\w+)\)', read(path)))
        self.assertTrue(self.tests)
        self.assertEqual(set(self.tests.values()) - there, set())

    def test_protocol_page_states_their_number(self):
        self.assertIn(f'({len(rules())} in all; the simulator detects {len(self.mutated)})',
                      ' '.join(read('docs/protocol.md').split()))


if __name__ == '__main__':
    unittest_main.main()
