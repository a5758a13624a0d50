"""Checks that the interpreter has the modules that a test needs.

    from python.testing import requirements
    requirements.need('numpy', 'grpc', 'google.protobuf', 'torch')

Put this first in a test. If a module is missing and SLUICE_PYTHON names another interpreter, the
test runs there; else the whole test is skipped, with the reason as its only case.
"""

import importlib.util
import os
import sys
import unittest


def _is_there(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a parent module is missing
        return False


def need(*modules):
    missing = [module for module in modules if not _is_there(module)]
    if not missing:
        return
    other = os.environ.get('SLUICE_PYTHON')
    if other and os.path.realpath(other) != os.path.realpath(sys.executable) and (
            'SLUICE_PYTHON_TRIED' not in os.environ):
        # Only the repository's paths: the system's packages belong to another interpreter.
        ours = [path for path in sys.path if 'runfiles' in path]
        os.environ['PYTHONPATH'] = os.pathsep.join(ours)
        os.environ['SLUICE_PYTHON_TRIED'] = '1'
        os.execv(other, [other] + sys.argv)
    reason = (f'{sys.executable} has no {", ".join(missing)}; '
              'SLUICE_PYTHON may name an interpreter that has them')

    class Skipped(unittest.TestCase):

        @unittest.skip(reason)
        def test_everything(self):
            pass

    from tools import unittest_main
    sys.modules['__main__'].Skipped = Skipped
    unittest_main.main()
    sys.exit(0)
