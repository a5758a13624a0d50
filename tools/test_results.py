"""Counts the test cases of one `bazel test` run from Bazel's report of it.

    python3 tools/test_results.py EVENTS TARGETS

EVENTS is the file of --build_event_json_file, TARGETS lists the requested test targets, one per line.
Prints the cases that failed, were skipped or have no result, and ends with a line of three numbers:
`PASSED FAILED SKIPPED`.

A target without results (it did not build, or was killed) counts as one failed case, so that lost
results never make a run look better.
"""

import dataclasses
import json
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree


@dataclasses.dataclass
class Target:
    """The results of one test target."""

    status: str = 'NO_STATUS'
    passed: int = 0
    skipped: list = dataclasses.field(default_factory=list)
    failed: list = dataclasses.field(default_factory=list)


def _local_path(uri):
    parsed = urllib.parse.urlparse(uri)
    return urllib.parse.unquote(parsed.path) if parsed.scheme == 'file' else None


def add_cases(target, xml_text):
    """Adds the test cases of one test.xml to a target."""
    for case in ElementTree.fromstring(xml_text).iter('testcase'):
        name = '.'.join(part for part in (case.get('classname'), case.get('name')) if part)
        failure = case.find('failure')
        if failure is None:
            failure = case.find('error')
        skipped = case.find('skipped')
        if failure is not None:
            target.failed.append((name, failure.get('message') or ''))
        elif skipped is not None or case.get('result') == 'skipped':
            target.skipped.append((name, (skipped.get('message') or '') if skipped is not None else ''))
        elif case.get('status') == 'notrun':
            target.skipped.append((name, 'disabled'))
        else:
            target.passed += 1


def read_events(lines, read_file):
    """Returns {label: Target} for every test that the events mention.

    read_file returns the text of a path. Of several attempts at one shard or run, the last one counts.
    """
    targets = {}
    attempts = {}  # (label, run, shard) -> (attempt, path of its test.xml)
    for line in lines:
        event = json.loads(line)
        event_id = event.get('id', {})
        if 'testResult' in event_id and 'testResult' in event:
            which = event_id['testResult']
            key = (which['label'], which.get('run', 1), which.get('shard', 1))
            xml = [
                output.get('uri', '')
                for output in event['testResult'].get('testActionOutput', [])
                if output.get('name') == 'test.xml'
            ]
            attempt = which.get('attempt', 1)
            if attempt >= attempts.get(key, (0, None))[0]:
                attempts[key] = (attempt, _local_path(xml[0]) if xml else None)
        elif 'testSummary' in event_id and 'testSummary' in event:
            target = targets.setdefault(event_id['testSummary']['label'], Target())
            target.status = event['testSummary'].get('overallStatus', 'NO_STATUS')
    for (label, _, _), (_, path) in sorted(attempts.items()):
        target = targets.setdefault(label, Target())
        if path is None:
            continue
        try:
            add_cases(target, read_file(path))
        except (OSError, ElementTree.ParseError) as error:
            target.failed.append(('test.xml', str(error)))
    return targets


def settle(targets, asked):
    """Gives every requested target a definite result, by the rule at the top of this file."""
    for label in asked:
        target = targets.setdefault(label, Target())
        green = target.status in ('PASSED', 'FLAKY')
        known = target.passed or target.skipped or target.failed
        if not target.failed and not (green and known):
            reason = target.status if not green else 'it reported no test case'
            target.failed.append(('(the target)', reason.replace('NO_STATUS', 'it did not build or run')))
    return targets


def _read_text(path):
    with open(path, encoding='utf-8', errors='replace') as file:
        return file.read()


def main(argv):
    events_path, targets_path = argv[1:]
    asked = _read_text(targets_path).split()
    try:
        with open(events_path, encoding='utf-8') as events:
            targets = read_events(events, _read_text)
    except FileNotFoundError:
        targets = {}

    targets = settle(targets, asked)
    for label, target in sorted(targets.items()):
        for verdict, cases in (('FAILED', target.failed), ('skipped', target.skipped)):
            for name, message in cases:
                # GoogleTest's first line has only the location.
                short = ' | '.join(line.strip() for line in message.splitlines()[:4] if line.strip())
                print(f'  {verdict} {label} {name}' + (f': {short[:200]}' if short else ''))
    print(
        sum(target.passed for target in targets.values()),
        sum(len(target.failed) for target in targets.values()),
        sum(len(target.skipped) for target in targets.values()),
    )


if __name__ == '__main__':
    main(sys.argv)
