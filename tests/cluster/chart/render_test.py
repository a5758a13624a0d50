"""The chart's output in Helm: for every way to configure it, and as the plain manifests in k8s/."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import yaml

from tests.cluster.testing.cluster import CACHE
from tools import unittest_main

CHART = 'helm/sluice'
MONITORING = [f'monitoring.coreos.com/v1/{kind}' for kind in ('PodMonitor', 'ServiceMonitor', 'PrometheusRule')]


def helm(*arguments):
    with tempfile.TemporaryDirectory() as home:
        return subprocess.run([CACHE / 'bin/helm', *arguments], capture_output=True, text=True, check=False,
                              env={**os.environ, 'HOME': home})


def render(*settings, apis=()):
    """{(kind, name): object}"""
    flags = [flag for setting in settings for flag in ('--set', setting)] + [flag for api in apis for flag in ('-a', api)]
    done = helm('template', 'sluice', CHART, '--namespace', 'sluice-system', *flags)
    if done.returncode:
        raise AssertionError(done.stderr)
    objects = [one for one in yaml.safe_load_all(done.stdout) if one]
    keyed = {(one['kind'], one['metadata']['name'], one['metadata'].get('namespace', '')): one for one in objects}
    assert len(keyed) == len(objects), 'two objects of one name'
    return {(kind, name): one for (kind, name, _), one in keyed.items()}


def operator_rules():
    return yaml.safe_load(pathlib.Path('operator/rbac.yaml').read_text())


class RenderTest(unittest.TestCase):

    def test_helm_lint_reports_nothing(self):
        done = helm('lint', '--strict', CHART)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_plain_manifests_match_the_chart(self):
        done = subprocess.run(['k8s/render.sh'], capture_output=True, text=True, check=False,
                              env={**os.environ, 'HELM': str(CACHE / 'bin/helm')})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(pathlib.Path('k8s/sluice.yaml').read_text(), done.stdout, 'run tools/regenerate.sh')

    def test_a_wrong_value_is_refused_by_name(self):
        for setting, word in [('replicas=0', '/replicas'), ('image.tag=a b', '/image/tag'), ('imagee.tag=1', 'imagee'),
                              ('image.pullPolicy=Sometimes', '/image/pullPolicy'), ('watchNamespaces={A_b}', '/watchNamespaces/0'),
                              ('monitoring.interval=often', '/monitoring/interval'), ('workers=many', '/workers'),
                              ('monitoring.interval=', '/monitoring/interval'),
                              ('image.digests.operator=latest', '/image/digests/operator'),
                              ('image.digests.other=', 'other'),
                              (r'podLabels.app\.kubernetes\.io/name=mine', 'app.kubernetes.io/name'),
                              (r'monitoring.labels.helm\.sh/chart=mine', 'helm.sh/chart'),
                              ('serviceAccount.create=false', 'serviceAccount.name is required')]:
            with self.subTest(setting):
                self.assert_refused(setting, word)

    def assert_refused(self, setting, word):
        done = helm('template', 'sluice', CHART, '--set', setting)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(word, done.stderr)
        self.assertNotIn('nil pointer', done.stderr)

    def test_null_is_refused_by_name_or_does_no_harm(self):
        values = yaml.safe_load(pathlib.Path(f'{CHART}/values.yaml').read_text())
        paths = [(name, *rest) for name, value in values.items() for rest in [(), *(
            (inner,) for inner in (value if isinstance(value, dict) else ()))]]
        paths += [('monitoring', part, name) for part in ('prometheusRule', 'dashboards', 'podMonitor') for name in values['monitoring'][part]]
        self.assertGreater(len(paths), 40)
        refused = set()
        for path in map('.'.join, paths):
            with self.subTest(path):
                done = helm('template', 'sluice', CHART, '--set', f'{path}=null', *[flag for api in MONITORING for flag in ('-a', api)])
                if done.returncode:
                    refused.add(path)
                    self.assertIn(path.rpartition('.')[2], done.stderr)
                    self.assertRegex(done.stderr, 'missing propert|is required')
                else:
                    self.assertTrue(list(yaml.safe_load_all(done.stdout)))
        self.assertLessEqual({'image', 'monitoring', 'crds', 'image.operator', 'crds.keep'}, refused)

    def test_images_are_chosen_by_digest_if_given(self):
        digest = f'sha256:{"0a" * 32}'
        container = render('image.registry=r.example.com/s', 'image.tag=v1', f'image.digests.operator={digest}',
                           f'image.digests.worker={digest}')['Deployment', 'sluice']['spec']['template']['spec']['containers'][0]
        self.assertEqual(container['image'], f'r.example.com/s/sluice-operator@{digest}')
        self.assertIn(f'--worker-image=r.example.com/s/sluice-worker@{digest}', container['args'])
        self.assertIn('--server-image=r.example.com/s/sluice-server:v1', container['args'])

    def test_intervals_are_those_of_prometheus(self):
        for interval in ('15s', '1h', '1m30s', '500ms'):
            monitor = render(f'monitoring.interval={interval}', apis=MONITORING)['ServiceMonitor', 'sluice']
            self.assertEqual(monitor['spec']['endpoints'][0]['interval'], interval)

    def test_labels_of_pods_are_added_to_the_selector_labels(self):
        labels = render('podLabels.team=vision')['Deployment', 'sluice']['spec']['template']['metadata']['labels']
        self.assertEqual((labels['team'], labels['app.kubernetes.io/name']), ('vision', 'sluice-operator'))

    def test_roles_can_be_left_out_and_the_default_account_never_gets_rights(self):
        kinds = [key[0] for key in render('rbac.create=false')]
        self.assertFalse([kind for kind in kinds if 'Role' in kind])
        self.assertIn('Pod', kinds)
        binding = render('serviceAccount.create=false', 'serviceAccount.name=mine')['ClusterRoleBinding', 'sluice']
        self.assertEqual(binding['subjects'][0]['name'], 'mine')

    def test_by_default_all_namespaces_are_watched_with_one_cluster_role(self):
        objects = render()
        self.assertEqual(objects['ClusterRole', 'sluice']['rules'], operator_rules()['jobs'])
        self.assertEqual(objects['Role', 'sluice-leader']['rules'], operator_rules()['leader'])
        self.assertNotIn(('Role', 'sluice'), objects)
        arguments = objects['Deployment', 'sluice']['spec']['template']['spec']['containers'][0]['args']
        self.assertFalse([one for one in arguments if one.startswith('--namespaces')])

    def test_the_operator_accepts_every_flag_of_the_chart(self):
        container = render('watchNamespaces={a}', 'extraArgs={--log-format=json}')[
            'Deployment', 'sluice']['spec']['template']['spec']['containers'][0]
        said = subprocess.run(['operator/sluice-operator', '--help'], capture_output=True, text=True, check=True).stdout
        self.assertGreater(len(container['args']), 8)
        for argument in container['args']:
            self.assertRegex(said, rf'(?m)^  ([\w,-]+,)?{argument.partition("=")[0]}\b')

    def test_listed_namespaces_get_roles_and_the_cluster_gets_none(self):
        objects = render('watchNamespaces={a,b}', 'rbac.aggregate=false')
        self.assertFalse([key for key in objects if key[0].startswith('ClusterRole')])
        for_people = [key for key in render('watchNamespaces={a,b}') if key[0].startswith('ClusterRole')]
        self.assertEqual(for_people, [('ClusterRole', 'sluice-view'), ('ClusterRole', 'sluice-edit')])
        self.assertEqual(objects['Role', 'sluice']['rules'], operator_rules()['jobs'])
        done = helm('template', 'sluice', CHART, '--set', 'watchNamespaces={a,b}')
        bindings = [one for one in yaml.safe_load_all(done.stdout) if one and one['kind'] == 'RoleBinding' and
                    one['metadata']['name'] == 'sluice']
        self.assertEqual([one['metadata']['namespace'] for one in bindings], ['a', 'b'])
        arguments = objects['Deployment', 'sluice']['spec']['template']['spec']['containers'][0]['args']
        self.assertIn('--namespaces=a,b', arguments)

    def test_monitors_and_rules_are_made_if_their_kinds_exist(self):
        self.assertFalse([key for key in render() if key[0] in ('PodMonitor', 'ServiceMonitor', 'PrometheusRule')])
        objects = render('monitoring.labels.release=prometheus', apis=MONITORING)
        self.assertEqual(objects['PodMonitor', 'sluice-jobs']['spec']['podMetricsEndpoints'][0]['port'], 'metrics')
        rules = objects['PrometheusRule', 'sluice']
        self.assertEqual(rules['metadata']['labels']['release'], 'prometheus')
        self.assertNotIn('RUNBOOK_URL', json.dumps(rules))
        # Prometheus' own templates must not be rendered by Helm.
        self.assertIn('{{ $labels.training_job }}', json.dumps(rules))
        ours = [yaml.safe_load(path.read_text())['groups'] for path in sorted(pathlib.Path(f'{CHART}/files/rules').glob('*.yaml'))]
        self.assertEqual([group['name'] for group in rules['spec']['groups']], [group['name'] for groups in ours for group in groups])
        self.assertEqual(sum(len(group['rules']) for group in rules['spec']['groups']), sum(len(group['rules']) for groups in ours for group in groups))
        for kind, name in [('PodMonitor', 'podMonitor'), ('ServiceMonitor', 'serviceMonitor'),
                           ('PrometheusRule', 'prometheusRule')]:
            self.assertNotIn(kind, [key[0] for key in render(f'monitoring.{name}.enabled=false', apis=MONITORING)])

    def test_dashboards_are_config_maps_with_the_label_of_grafana(self):
        for name in ('fleet', 'job'):
            config = render()['ConfigMap', f'sluice-dashboard-{name}']
            self.assertEqual(config['metadata']['labels']['grafana_dashboard'], '1')
            self.assertEqual(json.loads(config['data'][f'sluice-{name}.json'])['uid'], f'sluice-{name}')
        self.assertFalse([key for key in render('monitoring.dashboards.enabled=false') if key[0] == 'ConfigMap'])

    def test_the_custom_resource_is_kept_unless_disabled(self):
        key = ('CustomResourceDefinition', 'trainingjobs.sluice.dev')
        self.assertEqual(render()[key]['metadata']['annotations'], {'helm.sh/resource-policy': 'keep'})
        self.assertNotIn('annotations', render('crds.keep=false')[key]['metadata'])
        self.assertNotIn(key, render('crds.enabled=false'))
        plain = yaml.safe_load(pathlib.Path(f'{CHART}/files/trainingjobs.sluice.dev.yaml').read_text())
        self.assertEqual(render()[key]['spec'], plain['spec'])

    def test_a_single_replica_has_no_disruption_budget(self):
        self.assertIn(('PodDisruptionBudget', 'sluice'), render())
        self.assertNotIn(('PodDisruptionBudget', 'sluice'), render('replicas=1'))

    def test_every_pod_is_made_for_restricted_namespaces(self):
        objects = render()
        for pod in (objects['Deployment', 'sluice']['spec']['template']['spec'], objects['Pod', 'sluice-test']['spec']):
            self.assertTrue(pod['securityContext']['runAsNonRoot'])
            self.assertEqual(pod['securityContext']['seccompProfile'], {'type': 'RuntimeDefault'})
            for container in pod['containers']:
                self.assertEqual(container['securityContext'], {
                    'allowPrivilegeEscalation': False, 'readOnlyRootFilesystem': True, 'capabilities': {'drop': ['ALL']}})
                self.assertIn('requests', container['resources'])

    def test_the_platform_can_choose_the_user_of_pods(self):
        for setting, user, flags in (('runAsUser=65532', 65532, set()), ('runAsUser=1000', 1000, {'--job-user=1000'}),
                                     ('runAsUser=null', None, {'--platform-user'})):
            with self.subTest(setting):
                objects = render(setting)
                pod = objects['Deployment', 'sluice']['spec']['template']['spec']
                self.assertEqual({pod['securityContext'].get(field) for field in ('runAsUser', 'runAsGroup', 'fsGroup')}, {user})
                self.assertEqual({flag for flag in pod['containers'][0]['args'] if '-user' in flag}, flags)
                self.assertEqual(objects['Pod', 'sluice-test']['spec']['securityContext'].get('runAsUser'), user)

    def test_the_script_of_the_test_is_complete(self):
        container = render()['Pod', 'sluice-test']['spec']['containers'][0]
        compile(container['command'][2], 'helm_test.py', 'exec')
        self.assertIn('def main', container['command'][2])
        job = json.loads(next(one['value'] for one in container['env'] if one['name'] == 'JOB'))
        self.assertEqual(job['kind'], 'TrainingJob')


if __name__ == '__main__':
    unittest_main.main()
