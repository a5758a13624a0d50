"""unittest.main() that also writes the result of every case to Bazel's test.xml.

Without it, Bazel counts a whole Python test as one case. At the end of a test:

    if __name__ == '__main__':
        unittest_main.main()
"""

import os
import pathlib
import sys
import time
import unittest
import xml.etree.ElementTree as ElementTree


class _Result(unittest.TextTestResult):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._cases = {}
        self._began = {}

    def _record(self, test, tag=None, message=''):
        # A case whose subtests or tearDown fail is reported more than once.
        if self._cases.get(test.id(), (None,))[0] in ('failure', 'error'):
            return
        seconds = time.monotonic() - self._began.get(test.id(), time.monotonic())
        self._cases[test.id()] = (tag, message, seconds)

    def startTest(self, test):
        super().startTest(test)
        self._began[test.id()] = time.monotonic()

    def addSuccess(self, test):
        super().addSuccess(test)
        self._record(test)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._record(test, 'failure', f'{err[0].__name__}: {err[1]}')

    def addError(self, test, err):
        super().addError(test, err)
        self._record(test, 'error', f'{err[0].__name__}: {err[1]}')

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._record(test, 'failure', f'{subtest}: {err[1]}')

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._record(test, 'skipped', reason)

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        self._record(test)

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self._record(test, 'failure', 'succeeded, but was expected to fail')

    def stopTestRun(self):
        super().stopTestRun()
        path = os.environ.get('XML_OUTPUT_FILE')
        if not path:
            return
        suite = ElementTree.Element('testsuite', name=os.environ.get('TEST_TARGET', 'unittest'))
        for name, (tag, message, seconds) in self._cases.items():
            class_name, _, method = name.rpartition('.')
            case = ElementTree.SubElement(
                suite, 'testcase', classname=class_name, name=method, time=f'{seconds:.3f}')
            if tag:
                ElementTree.SubElement(case, tag, message=message)
        root = ElementTree.Element('testsuites')
        root.append(suite)
        ElementTree.ElementTree(root).write(path, encoding='utf-8', xml_declaration=True)


class _Loader(unittest.TestLoader):
    """Of a target with a shard_count of n, shard i runs every n-th case, from the i-th on."""

    def loadTestsFromModule(self, module, *arguments, **options):
        suite = super().loadTestsFromModule(module, *arguments, **options)
        shards = int(os.environ.get('TEST_TOTAL_SHARDS', '1'))
        if shards == 1:
            return suite
        pathlib.Path(os.environ['TEST_SHARD_STATUS_FILE']).touch()
        return self.suiteClass(list(_cases(suite))[int(os.environ['TEST_SHARD_INDEX'])::shards])


def _cases(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _cases(test)
        else:
            yield test


def main():
    program = unittest.main(
        testLoader=_Loader(), testRunner=unittest.TextTestRunner(resultclass=_Result, verbosity=2), exit=False)
    sys.exit(not program.result.wasSuccessful())
