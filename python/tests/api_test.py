"""Checks that each public name of the package has a docstring, types, and an entry on the page."""

from python.testing import requirements
requirements.need('numpy', 'grpc', 'google.protobuf')

import inspect
import pathlib
import types
import unittest

import sluice
from tools import unittest_main

_PAGE = pathlib.Path('docs/python.md').read_text()


def public_names():
    return {name: value for name, value in vars(sluice).items()
            if not name.startswith('_') and not isinstance(value, types.ModuleType)}


def functions_of(name, value):
    """Yields (name, function) of a function, or of a class's methods and properties."""
    if inspect.isfunction(value):
        yield name, value
        return
    for member_name, member in vars(value).items():
        if isinstance(member, property):
            member = member.fget
        if not inspect.isfunction(member) or member.__module__.split('.')[0] != 'sluice':
            continue
        if not member_name.startswith('_') or member_name == '__init__':
            yield f'{name}.{member_name}', member


class PublicNames(unittest.TestCase):

    def test_all_parameters_and_results_have_types(self):
        for name, value in public_names().items():
            for full_name, function in functions_of(name, value):
                signature = inspect.signature(function)
                missing = [parameter.name for parameter in signature.parameters.values()
                           if parameter.name != 'self' and
                           parameter.annotation is inspect.Parameter.empty]
                if signature.return_annotation is inspect.Signature.empty:
                    missing.append('the result')
                with self.subTest(full_name):
                    self.assertEqual(missing, [])

    def test_all_names_have_docstrings(self):
        for name, value in public_names().items():
            self.assertTrue(value.__doc__, name)
            for full_name, function in functions_of(name, value):
                if not full_name.endswith('.__init__'):
                    self.assertTrue(function.__doc__, full_name)

    def test_page_lists_all_names(self):
        for name, value in public_names().items():
            names = [name] + [full_name.rpartition('.')[2]
                              for full_name, _ in functions_of(name, value)]
            for word in names:
                if not word.startswith('_'):
                    with self.subTest(word):
                        self.assertRegex(_PAGE, rf'`[^`]*\b{word}\b[^`]*`')


if __name__ == '__main__':
    unittest_main.main()
