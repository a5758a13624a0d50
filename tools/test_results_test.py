import json
import unittest

from tools import test_results
from tools import unittest_main

GTEST_XML = """<?xml version="1.0" encoding="UTF-8"?>
<testsuites><testsuite name="S">
  <testcase name="Good" status="run" result="completed" classname="S" />
  <testcase name="Bad" status="run" result="completed" classname="S">
    <failure message="first&#x0A;second" type="" />
    <failure message="another" type="" />
  </testcase>
  <testcase name="Skipped" status="run" result="skipped" classname="S">
    <skipped message="needs root" />
  </testcase>
  <testcase name="DISABLED_Off" status="notrun" result="suppressed" classname="S" />
</testsuite></testsuites>"""

GREEN_XML = '<testsuites><testsuite><testcase name="a" status="run"/></testsuite></testsuites>'


def result(label, path, attempt=1, shard=1):
    outputs = [{'name': 'test.log', 'uri': 'file:///log'}]
    if path:
        outputs.append({'name': 'test.xml', 'uri': 'file://' + path})
    return json.dumps({
        'id': {'testResult': {'label': label, 'run': 1, 'shard': shard, 'attempt': attempt}},
        'testResult': {'testActionOutput': outputs},
    })


def summary(label, status):
    return json.dumps(
        {'id': {'testSummary': {'label': label}}, 'testSummary': {'overallStatus': status}})


def read(lines, files, asked):
    def read_file(path):
        if path not in files:
            raise OSError('no such file')
        return files[path]

    return test_results.settle(test_results.read_events(lines, read_file), asked)


class TestResultsTest(unittest.TestCase):
    def counts(self, target):
        return (target.passed, len(target.failed), len(target.skipped))

    def test_counts_cases_not_targets(self):
        targets = read([result('//a', '/x'), summary('//a', 'FAILED')], {'/x': GTEST_XML}, ['//a'])
        self.assertEqual(self.counts(targets['//a']), (1, 1, 2))

    def test_target_that_did_not_build_counts_as_one_failure(self):
        targets = read([], {}, ['//a'])
        self.assertEqual(self.counts(targets['//a']), (0, 1, 0))

    def test_killed_target_with_passing_result_counts_as_failed(self):
        targets = read([result('//a', '/x'), summary('//a', 'TIMEOUT')], {'/x': GREEN_XML}, ['//a'])
        self.assertEqual(self.counts(targets['//a']), (1, 1, 0))

    def test_passed_target_without_cases_counts_as_failed(self):
        empty = '<testsuites/>'
        targets = read([result('//a', '/x'), summary('//a', 'PASSED')], {'/x': empty}, ['//a'])
        self.assertEqual(self.counts(targets['//a']), (0, 1, 0))

    def test_unreadable_result_counts_as_failed(self):
        for files in ({}, {'/x': '<testsuites>'}):
            targets = read([result('//a', '/x'), summary('//a', 'PASSED')], files, ['//a'])
            self.assertEqual(self.counts(targets['//a']), (0, 1, 0))

    def test_shards_add_up_and_the_last_attempt_counts(self):
        lines = [
            result('//a', '/bad', attempt=1),
            result('//a', '/good', attempt=2),
            result('//a', '/good', shard=2),
            summary('//a', 'FLAKY'),
        ]
        targets = read(lines, {'/bad': GTEST_XML, '/good': GREEN_XML}, ['//a'])
        self.assertEqual(self.counts(targets['//a']), (2, 0, 0))


if __name__ == '__main__':
    unittest_main.main()
