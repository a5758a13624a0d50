"""The parts of the chart that need no cluster and no Helm: roles, rules, dashboards, the script of `helm test`."""

import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

import yaml

from helm.sluice import queries
from tools import unittest_main

CHART = pathlib.Path('helm/sluice')


class Roles(unittest.TestCase):

    def test_the_chart_grants_the_requests_that_the_operator_lists(self):
        self.assertEqual((CHART / 'files/rbac.yaml').read_text(), pathlib.Path('operator/rbac.yaml').read_text(),
                         'cp operator/rbac.yaml helm/sluice/files/rbac.yaml')


class Rules(unittest.TestCase):

    def test_alerts_fire_exactly_when_something_is_wrong(self):
        promtool = shutil.which('promtool')
        if promtool is None:
            self.skipTest('promtool (Debian package prometheus) is not installed')
        done = subprocess.run([promtool, 'test', 'rules', 'rules_test.yaml'], cwd=CHART, capture_output=True,
                              text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_every_rule_has_a_case(self):
        cases = (CHART / 'rules_test.yaml').read_text()
        for rule in queries.rules(CHART):
            name = rule.get('alert') or rule['record']
            with self.subTest(name):
                self.assertRegex(cases, rf'\b{re.escape(name)}\b')

    def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_is_silent(self):
        fires, silent = set(), set()
        for world in yaml.safe_load((CHART / 'rules_test.yaml').read_text())['tests']:
            for case in world.get('alert_rule_test', []):
                (fires if case['exp_alerts'] else silent).add(case['alertname'])
        alerts = {rule['alert'] for rule in queries.rules(CHART) if 'alert' in rule}
        self.assertEqual(fires, alerts)
        self.assertEqual(silent, alerts)

    def test_every_alert_has_a_section_in_the_page_of_alerts(self):
        headings = re.findall(r'^## (\w+)$', pathlib.Path('docs/alerts.md').read_text(), re.MULTILINE)
        alerts = [rule for rule in queries.rules(CHART) if 'alert' in rule]
        self.assertEqual(headings, [rule['alert'] for rule in alerts])
        for rule in alerts:
            with self.subTest(rule['alert']):
                self.assertEqual(rule['annotations']['runbook_url'], f'RUNBOOK_URL#{rule["alert"].lower()}')
                self.assertIn(rule['labels']['severity'], ('info', 'warning', 'critical'))


class Dashboards(unittest.TestCase):

    def dashboards(self):
        for path in sorted((CHART / 'files/dashboards').glob('*.json')):
            yield path, json.loads(path.read_text())

    def test_panels_have_unique_ids_and_do_not_overlap(self):
        count = 0
        for path, dashboard in self.dashboards():
            with self.subTest(path.name):
                self.assertEqual(dashboard['uid'], path.stem)
                ids = [panel['id'] for panel in dashboard['panels']]
                self.assertEqual(len(ids), len(set(ids)))
                taken = set()
                for panel in dashboard['panels']:
                    at = panel['gridPos']
                    cells = {(x, y) for x in range(at['x'], at['x'] + at['w']) for y in range(at['y'], at['y'] + at['h'])}
                    self.assertFalse(cells & taken, panel['title'])
                    self.assertLessEqual(at['x'] + at['w'], 24)
                    taken |= cells
                    if panel['type'] != 'row':
                        self.assertTrue(panel['description'], panel['title'])
                        count += 1
        self.assertGreater(count, 40)

    def test_dashboards_have_the_fields_that_grafanas_schema_requires(self):
        for path, dashboard in self.dashboards():
            for panel in dashboard['panels']:
                legend = panel.get('options', {}).get('legend')
                self.assertTrue(legend is None or legend['showLegend'], f'{path.name}: {panel["title"]}')
            for link in dashboard['links']:
                self.assertLessEqual({'asDropdown', 'includeVars', 'keepTime', 'tags', 'targetBlank', 'tooltip'}, link.keys())
            for variable in dashboard['templating']['list']:
                self.assertNotEqual(variable.get('current'), {})

    def test_queries_name_existing_metrics(self):
        page = pathlib.Path('docs/metrics.md').read_text()
        known = set(re.findall(r'^\| `(sluice_\w+)` \|', page, re.MULTILINE))
        known |= {rule['record'] for rule in queries.rules(CHART) if 'record' in rule}
        self.assertGreater(len(known), 40)
        seen = set()
        for query in queries.all_queries(CHART):
            for name in queries.metric_names(query.expression):
                seen.add(name)
                with self.subTest(query.place, name=name):
                    self.assertIn(re.sub(r'_(bucket|sum|count)$', '', name), known)
        self.assertGreater(len(seen), 40)


class FakeApiServer(http.server.BaseHTTPRequestHandler):
    """Stores one job. Its status is the next of `statuses`; the last one remains."""

    job = None
    statuses = []
    log = []

    def answer(self, code, body):
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header('Content-Length', str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def handle_one(self):
        kind = type(self)
        kind.log.append((self.command, self.path.split('?')[0], self.headers['Authorization']))
        body = self.rfile.read(int(self.headers.get('Content-Length', 0)))
        if self.command == 'POST':
            kind.job = json.loads(body)
            self.answer(201, kind.job)
        elif kind.job is None:
            self.answer(404, {'message': 'not found'})
        elif self.command == 'DELETE':
            kind.job = None
            self.answer(200, {})
        else:
            status = kind.statuses.pop(0) if len(kind.statuses) > 1 else kind.statuses[0]
            self.answer(200, {**kind.job, 'status': status})

    do_GET = do_POST = do_DELETE = handle_one

    def log_message(self, *_):
        pass


class HelmTest(unittest.TestCase):
    """The script that `helm test` runs in a pod, against a fake API server."""

    def setUp(self):
        FakeApiServer.job, FakeApiServer.log = None, []
        self.server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), FakeApiServer)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        account = tempfile.TemporaryDirectory()
        self.addCleanup(account.cleanup)
        (pathlib.Path(account.name) / 'token').write_text('the-token')
        self.environment = {
            **os.environ, 'ACCOUNT': account.name, 'SERVER': f'http://127.0.0.1:{self.server.server_port}',
            'KUBERNETES_SERVICE_HOST': '127.0.0.1', 'KUBERNETES_SERVICE_PORT': '1', 'NAMESPACE': 'team-a',
            'INTERVAL_SECONDS': '0', 'TIMEOUT_SECONDS': '60',
            'JOB': json.dumps(yaml.safe_load((CHART / 'files/helm_test_job.yaml').read_text())),
        }

    def run_script(self, statuses, **environment):
        FakeApiServer.statuses = statuses
        return subprocess.run([sys.executable, CHART / 'files/helm_test.py'], env={**self.environment, **environment},
                              capture_output=True, text=True, timeout=60, check=False)

    def test_a_job_that_succeeds_is_deleted(self):
        done = self.run_script([
            {},
            {'summary': 'Training', 'training': {'step': 7}},
            {'summary': 'Succeeded', 'conditions': [{'type': 'Succeeded', 'status': 'True'}]},
        ])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn('Training, step 7', done.stdout)
        self.assertIsNone(FakeApiServer.job)
        self.assertEqual({token for _, _, token in FakeApiServer.log}, {'Bearer the-token'})
        self.assertIn('/apis/sluice.dev/v1alpha1/namespaces/team-a/trainingjobs', [path for _, path, _ in FakeApiServer.log])

    def test_a_job_that_fails_is_kept_and_its_reason_is_printed(self):
        done = self.run_script([{'summary': 'Failed', 'conditions': [
            {'type': 'Failed', 'status': 'True', 'reason': 'BackoffLimitExceeded', 'message': 'too many'}]}])
        self.assertEqual(done.returncode, 1)
        self.assertIn('BackoffLimitExceeded: too many', done.stdout)
        self.assertIsNotNone(FakeApiServer.job)

    def test_a_job_that_does_not_end_fails_with_its_conditions(self):
        done = self.run_script([{'summary': 'Starting', 'conditions': [
            {'type': 'Ready', 'status': 'False', 'reason': 'ImagePullFailed'}]}], TIMEOUT_SECONDS='0.2')
        self.assertEqual(done.returncode, 1)
        self.assertIn('ImagePullFailed', done.stdout)


if __name__ == '__main__':
    unittest_main.main()
