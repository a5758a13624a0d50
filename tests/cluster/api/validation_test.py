"""The API server's answers to manifests: the schema and its rules give the same messages as `sluice validate`."""

import copy
import json
import re
import unittest

import yaml

from tests.cluster.testing import largest
from tests.cluster.testing.api_client import ApiError, path_of
from tests.cluster.testing.cluster import ROOT, Cluster, conditions, run, say, wait_for
from tools import unittest_main

JOBS = '/apis/sluice.dev/v1alpha1/namespaces/default/trainingjobs?dryRun=All&fieldValidation=Strict'
# Fields that other fields limit further: the data's path is in its volume.
NOT_REACHED = {'spec.data.source.volume.mountPath'}


class ValidationTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.cases = json.loads(run([ROOT / 'services/manifest/print_api_cases']))
        cls.cluster = cls.enterClassContext(Cluster())
        cls.api = cls.cluster.api
        cls.cluster.kubectl('apply', '--server-side', '-f', ROOT / 'helm/sluice/files/trainingjobs.sluice.dev.yaml')
        # `kubectl wait` fails while there are no conditions at all.
        wait_for('the API is established', lambda: conditions(cls.api.get(
            'customresourcedefinitions', None, 'trainingjobs.sluice.dev')).get('Established') == 'True')
        wait_for('jobs can be listed', lambda: cls.api.list('trainingjobs', 'default') is not None)

    def test_kubectl_refuses_each_invalid_manifest_with_field_and_rule(self):
        refused = [case for case in self.cases if not case['accepted'] and not case['before']]
        self.assertGreaterEqual(len(refused), 60)
        directory = self.cluster.directory / 'manifests'
        directory.mkdir()
        for case in refused:
            (directory / f'{case["name"]}.yaml').write_text(case['manifest'])

        said = self.cluster.refused('apply', '--dry-run=server', '-f', directory)
        messages = {}
        for message in re.split(r'\n(?=Error from server|error: |Error parsing|\S+\.yaml)', said):
            for name in re.findall(r'/([\w.-]+)\.yaml', message):
                messages[name] = messages.get(name, '') + message

        for case in refused:
            with self.subTest(case['name']):
                message = messages.get(case['name'], '')
                if any(word not in message for word in case['words']):
                    # Not every message names its file.
                    message = self.cluster.refused('apply', '--dry-run=server', '-f', directory / f'{case["name"]}.yaml')
                for word in case['words']:
                    self.assertIn(word, message)
        say(f'kubectl refuses {len(refused)} invalid manifests')

    def test_valid_manifests_are_accepted(self):
        valid = [case for case in self.cases if case['accepted'] and not case['before']]
        for case in valid:
            with self.subTest(case['name']):
                self.api.request('POST', JOBS, case['manifest'], 'application/yaml')
        say(f'the API server accepts {len(valid)} valid manifests')

    def dry_run(self, job):
        """None if the API server accepts the job, else its answer. No answer may be that rules cost too much."""
        try:
            self.api.request('POST', JOBS, json.dumps(job), 'application/json')
        except ApiError as error:
            for words in ('cost limit exceeded', 'cost exceeds limit', 'exceeds budget'):
                self.assertNotIn(words, str(error)[:2000])
            return str(error)
        return None

    def enlarge(self, schema, case, path):
        """The manifest with the field as large as the schema allows, if the API server accepts it in one of these forms."""
        for others in (False, True):  # with or without the other lists of the same object
            for way in range(3):
                job = yaml.safe_load(case)
                for holder, key in largest.places(job, path):
                    names = [name for name in holder if others and name != key and isinstance(holder[name], list)]
                    for name in [key, *names]:
                        node = largest.schema_at(schema, path if name == key else (*path[:-1], name))
                        example = holder[name] if isinstance(name, int) else holder.get(name)
                        values = largest.largest(node, example)
                        holder[name] = values[min(way, len(values) - 1)]
                if path == ('spec', 'model', 'stages'):  # each stage is on a shard of its own
                    job['spec']['parameterServer'] = {'replicas': len(job['spec']['model']['stages'])}
                if self.dry_run(job) is None:
                    return job
        return None

    # The budget of a rule that runs is a tenth of the one that the API server allows for its estimate when the CRD is
    # applied, so a CRD with rules that refuse objects of its own schema is accepted.
    def test_no_rule_is_too_expensive_for_the_largest_values_of_the_schema(self):
        crd = yaml.safe_load((ROOT / 'helm/sluice/files/trainingjobs.sluice.dev.yaml').read_text())
        schema = crd['spec']['versions'][0]['schema']['openAPIV3Schema']
        fields = [path for path in largest.sized_fields(schema) if path[0] == 'spec' and largest.has_rules(schema, path)]
        self.assertGreaterEqual(len(fields), 40)
        cases = [case['manifest'] for case in self.cases if case['accepted'] and not case['before']]
        large = {}  # the accepted jobs, by field
        for path in fields:
            if any(path[:i] in large for i in range(len(path))):
                continue  # a part of a list or map that is as large as it can be
            fitting = [case for case in cases if any(largest.places(yaml.safe_load(case), path))]
            # First the cases that have the field.
            fitting.sort(key=lambda case, path=path: not any(
                key in holder for holder, key in largest.places(yaml.safe_load(case), path) if isinstance(holder, dict)))
            job = next(filter(None, (self.enlarge(schema, case, path) for case in fitting[:8])), None)
            if job is not None:
                large[path] = job
        say(f'{len(large)} fields are as large as the schema allows')
        self.assertEqual({'.'.join(path) for path in fields if not any(path[:i] in large for i in range(len(path) + 1))}, NOT_REACHED)
        self.update_together(large)

    def update_together(self, large):
        """Rules may compare fields of one object, and rules on updates compare all fields."""
        for parent in {path[:-1] for path in large}:
            with self.subTest('.'.join(parent)):
                together = None
                for path, job in large.items():
                    if path[:-1] != parent:
                        continue
                    changed = copy.deepcopy(together or job)
                    for (holder, key), (source, _) in zip(largest.places(changed, path), largest.places(job, path)):
                        holder[key] = source[key]
                    if self.dry_run(changed) is None:
                        together = changed
                together['metadata']['name'] = 'largest'
                made = self.api.create('trainingjobs', together, 'default')
                try:
                    made['metadata']['labels'] = {'changed': 'yes'}
                    self.api.request('PUT', path_of('trainingjobs', 'default', 'largest'), made)
                finally:
                    self.api.delete('trainingjobs', 'default', 'largest')

    def test_changes_of_immutable_fields_are_refused(self):
        changes = [case for case in self.cases if case['before']]
        self.assertTrue(changes)
        for case in changes:
            with self.subTest(case['name']):
                self.cluster.kubectl('apply', '-n', 'default', '-f', '-', stdin=case['before'])
                name = yaml.safe_load(case['before'])['metadata']['name']
                try:
                    if case['accepted']:
                        self.cluster.kubectl('apply', '-n', 'default', '-f', '-', stdin=case['manifest'])
                    else:
                        said = self.cluster.refused('apply', '-n', 'default', '-f', '-', stdin=case['manifest'])
                        for word in case['words']:
                            self.assertIn(word, said)
                finally:
                    self.api.delete('trainingjobs', 'default', name)

    def test_tables_of_thousands_of_columns_are_accepted(self):
        """An API server bounds what a rule costs when it runs, and not only when it is accepted."""
        def job(numeric, categorical):
            csv = {'labelColumn': 'y', 'regression': True, 'numericColumns': numeric, 'categoricalColumns': categorical}
            return json.dumps({
                'apiVersion': 'sluice.dev/v1alpha1', 'kind': 'TrainingJob', 'metadata': {'name': 'wide'},
                'spec': {'model': {'name': 'linear'},
                         'data': {'format': 'CSV', 'source': {'path': '/t.csv'}, 'csv': csv},
                         'optimizer': {'name': 'SGD', 'learningRate': 0.1},
                         'training': {'epochs': 1, 'globalBatchSize': 4}}})

        for numeric, categorical in [(4096, 1024), (4096, 122), (488, 1024), (700, 700)]:
            names = [f'{index:0253}' for index in range(numeric + categorical)]
            with self.subTest(f'{numeric} numeric, {categorical} categorical'):
                self.api.request('POST', JOBS, job(names[:numeric], names[numeric:]), 'application/json')
        said = self.cluster.refused('apply', '--dry-run=server', '-n', 'default', '-f', '-', stdin=job(['a', 'b'], ['b']))
        self.assertIn('either numeric or categorical', said)

    def test_every_sample_is_accepted(self):
        samples = sorted((ROOT / 'k8s/samples').glob('*.yaml'))
        self.assertGreaterEqual(len(samples), 15)
        jobs = 0
        for sample in samples:
            with self.subTest(sample.name):
                documents = list(yaml.safe_load_all(sample.read_text()))
                for document in documents:
                    if document['kind'] == 'Namespace':  # without it, objects in it are refused
                        self.cluster.apply(json.dumps(document))
                said = self.cluster.kubectl('apply', '--dry-run=server', '-n', documents[-1]['metadata'].get('namespace', 'default'),
                                            '-f', sample)
                self.assertEqual(said.count('(server dry run)'), len(documents), said)
                jobs += said.count('trainingjob.sluice.dev/')
        say(f'the API server accepts {jobs} jobs of {len(samples)} samples')
        self.assertGreaterEqual(jobs, 13)

    def test_kubectl_explains_fields(self):
        said = self.cluster.kubectl('explain', 'stj.spec.training.globalBatchSize')
        self.assertIn('FIELD: globalBatchSize <integer>', said)
        self.assertIn('DESCRIPTION:', said)

    def test_defaults_are_filled_in(self):
        valid = next(case for case in self.cases if case['accepted'] and not case['before'])
        made = self.api.request('POST', JOBS, valid['manifest'], 'application/yaml')
        self.assertTrue(made['spec']['training']['mode'])


if __name__ == '__main__':
    unittest_main.main()
