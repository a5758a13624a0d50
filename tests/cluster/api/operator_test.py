"""The life of a TrainingJob with the operator at a real API server. Pods and coordinators are simulated."""

import copy
import json
import shlex

from tests.cluster.api.operator_case import JOB_LABEL, ON_SIMULATED_NODES, OperatorCase, training_job
from tests.cluster.testing.api_client import ApiError, path_of
from tests.cluster.testing.cluster import wait_for
from tests.cluster.testing.operator_process import Operator
from tools import unittest_main


class OperatorTest(OperatorCase):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.operator = cls.enterClassContext(Operator(cls.cluster, cls.kubeconfig))

    def setUp(self):
        super().setUp()
        self.assertTrue(self.operator.running(), self.operator.log()[-2000:])

    # ---- from the manifest to the end

    def test_a_job_gets_its_pods_and_objects_trains_and_succeeds(self):
        self.cluster.apply(training_job('job', self.namespace, workers=3, shards=2))
        self.wait_for_pods(workers=3, shards=2)
        self.wait_for_condition('Running')
        self.assertEqual(self.owned()['services'], ['job', 'job-coordinator'])
        for resource in ('configmaps', 'poddisruptionbudgets', 'networkpolicies'):
            self.assertEqual(self.owned()[resource], ['job'], resource)
        self.coordinators.say(step=340)
        wait_for('the step is in the status', lambda: self.job()['status']['training']['step'] == 340)
        self.assertEqual(self.job()['status']['worker']['readyReplicas'], 3)
        self.finish()
        self.cluster.kubectl('wait', '-n', self.namespace, 'stj/job', '--for=condition=Succeeded', '--timeout=60s')
        status = self.job()['status']
        self.assertEqual((status['summary'], status['training']['step']), ('Succeeded', 1000))
        wait_for('all pods are kept for their logs', lambda: [pod['status']['phase'] for pod in self.pods().values()] == 6 * ['Succeeded'])

    def test_jobs_whose_names_look_like_services_of_others_run_side_by_side(self):
        for name in ('7b', 'j7b', 'a', 'a-coordinator', 'ps--7b'):
            self.create(name, workers=1)
        for name in ('7b', 'j7b', 'a', 'a-coordinator', 'ps--7b'):
            self.wait_for_pods(workers=1, name=name)
        self.assertEqual(self.owned('7b')['services'], ['coordinator--7b', 'ps--7b'])

    def test_kubectl_shows_the_progress_of_a_job(self):
        self.start()
        shown = self.cluster.kubectl('get', 'stj', '-n', self.namespace).splitlines()
        self.assertEqual(shown[0].split(), ['NAME', 'STATUS', 'STEP', 'METRIC', 'PS', 'WORKERS', 'RESTARTS', 'AGE'])
        self.assertIn('Training', shown[1])
        described = self.cluster.kubectl('describe', 'stj', 'job', '-n', self.namespace)
        self.assertIn('Running', described)
        self.assertIn('Events:', described)
        self.assertIn('trainingjob.sluice.dev/job', self.cluster.kubectl('get', 'all', '-n', self.namespace))

    def test_all_objects_of_a_deleted_job_are_collected(self):
        self.start()
        self.cluster.kubectl('delete', 'stj', 'job', '-n', self.namespace)
        wait_for('nothing is left', lambda: not any(self.owned().values()), 60)

    def test_a_pod_that_a_finalizer_keeps_after_its_job_has_an_event_with_the_remedy(self):
        self.start()
        self.api.merge('pods', self.namespace, 'job-worker-0', {'metadata': {'finalizers': ['example.com/kept']}})
        self.cluster.kubectl('delete', 'stj', 'job', '-n', self.namespace)

        def note():
            return next((one['note'] for one in self.api.list('events', self.namespace) if one['reason'] == 'HeldByFinalizer' and
                         one['regarding']['name'] == 'job-worker-0'), None)
        said = wait_for('the pod has an event', note, 60)
        self.assertIn('example.com/kept', said)
        self.cluster.kubectl('-n', self.namespace, *shlex.split(said.partition('kubectl ')[2]))
        wait_for('the pod is gone', lambda: not self.api.list('pods', self.namespace))

    def secrets(self):
        return {secret['metadata']['name']: secret for secret in self.api.list('secrets', self.namespace, f'{JOB_LABEL}=job')}

    def test_certificates_are_made_remade_and_collected_and_each_pod_mounts_its_own(self):
        self.create(tls='Enabled')
        self.wait_for_pods()
        self.assertEqual(self.job()['status']['tls'], 'Enabled')
        wanted = {f'job-tls-{name}' for name in ('ca', 'coordinator', 'ps', 'worker', 'reader')}
        self.assertEqual(set(self.secrets()), wanted)
        self.assertNotIn('ca.key', self.secrets()['job-tls-worker']['data'])
        for volume in self.pods()['job-worker-1']['spec']['volumes']:
            if 'secret' in volume:
                self.assertEqual([item['key'] for item in volume['secret']['items']], ['ca.crt', '1.crt', '1.key'])
        before = self.secrets()['job-tls-worker']
        self.cluster.kubectl('delete', 'secret', 'job-tls-worker', '-n', self.namespace)
        wait_for('it is made again', lambda: set(self.secrets()) == wanted)
        after = self.secrets()['job-tls-worker']
        self.assertNotEqual(after['data']['0.crt'], before['data']['0.crt'])
        self.assertEqual(after['data']['ca.crt'], before['data']['ca.crt'])
        self.cluster.refused('patch', 'stj', 'job', '-n', self.namespace, '--type=merge', '-p', '{"spec": {"tls": "Disabled"}}')
        self.cluster.kubectl('delete', 'stj', 'job', '-n', self.namespace)
        wait_for('nothing is left', lambda: not self.secrets() and not any(self.owned().values()), 60)

    def test_a_failed_job_reports_the_reason_and_stays_failed(self):
        self.start()
        self.coordinators.say(phase='FAILED', reason='the loss is not a number')
        wait_for('the operator knows', lambda: self.job()['status']['recovery'].get('outcome'))
        self.end_pods(1)
        failed = self.wait_for_condition('Failed')
        self.assertIn('the loss is not a number', failed['message'])
        self.cluster.kubectl('scale', 'stj/job', '--replicas=5', '-n', self.namespace)
        wait_for('the operator has seen the change', lambda: self.job()['status']['observedGeneration'] ==
                 self.job()['metadata']['generation'])
        wait_for('nothing runs', lambda: not [pod for pod in self.pods().values() if pod['status']['phase'] == 'Running'])

    # ---- deleted objects and pods are made again

    def test_each_deleted_object_is_made_again(self):
        self.start()
        for resource, name in [('services', 'job'), ('services', 'job-coordinator'), ('configmaps', 'job'),
                               ('poddisruptionbudgets', 'job'), ('networkpolicies', 'job')]:
            with self.subTest(resource=resource, name=name):
                before = self.api.get(resource, self.namespace, name)['metadata']['uid']
                self.api.delete(resource, self.namespace, name)
                wait_for('it is there again', lambda: (self.api.get(resource, self.namespace, name) or {}).get(
                    'metadata', {}).get('uid', before) != before)

    def test_only_the_deleted_worker_is_replaced(self):
        self.start()
        before, history = self.uids(), self.history()
        self.delete_pod('job-worker-1')
        wait_for('there is a new one', lambda: self.uids().get('job-worker-1', before['job-worker-1']) != before['job-worker-1'])
        self.wait_for_pods()
        after = self.uids()
        self.assertEqual({name for name in before if before[name] != after[name]}, {'job-worker-1'})
        self.assert_never_doubled(history)

    def test_causes_of_death_are_distinguished(self):
        self.start(workers=3)
        cases = [(139, None, 'Killed'), (137, None, 'Killed'), (137, 'OOMKilled', 'OOMKilled')]
        for index, (code, given, reason) in enumerate(cases):
            with self.subTest(reason):
                pod = f'job-worker-{index}'
                before = self.uids()[pod]
                self.end_pod(pod, code, given)
                wait_for('it is replaced', lambda: self.uids().get(pod, before) != before, 60)
                failure = wait_for('it is reported', lambda pod=pod: self.reported_exit(pod))
                self.assertEqual((failure['role'], failure['reason']), ('worker', reason))
        wait_for('they are counted', lambda: self.job()['status']['restarts']['worker'] == 3)

    def reported_exit(self, pod):
        """The end of that pod, as the status lists it."""
        return next((one for one in self.job().get('status', {}).get('lastFailures', []) if one['pod'] == pod), None)

    def test_an_evicted_worker_is_reported_replaced_and_not_counted(self):
        self.start()
        before = self.uids()['job-worker-1']
        # As on a real node, it takes a moment to exit.
        self.api.merge('pods', self.namespace, 'job-worker-1', {'metadata': {'annotations': {'fault.test/stop-delay': '2s'}}})
        eviction = {'apiVersion': 'policy/v1', 'kind': 'Eviction', 'metadata': {'name': 'job-worker-1', 'namespace': self.namespace}}
        self.api.request('POST', path_of('pods', self.namespace, 'job-worker-1', 'eviction'), eviction)
        failure = wait_for('it is reported', lambda: self.reported_exit('job-worker-1'))
        self.assertEqual((failure['reason'], failure['counted']), ('Evicted', False))
        wait_for('it is replaced', lambda: self.uids().get('job-worker-1', before) != before)
        self.wait_for_pods()

    def test_a_preempted_worker_is_reported_and_moves_to_another_node(self):
        template = copy.deepcopy(ON_SIMULATED_NODES)
        template['spec']['containers'] = [{'name': 'worker', 'resources': {'requests': {'cpu': '20'}}}]
        self.start(worker={'replicas': 2, 'template': template})
        victim = self.pods()['job-worker-1']
        node = victim['spec']['nodeName']
        self.api.merge('pods', self.namespace, 'job-worker-1', {'metadata': {'annotations': {'fault.test/stop-delay': '2s'}}})
        urgent = f'{self.namespace}-urgent'
        self.cluster.apply({'apiVersion': 'scheduling.k8s.io/v1', 'kind': 'PriorityClass', 'metadata': {'name': urgent}, 'value': 1000})
        self.addCleanup(self.cluster.kubectl, 'delete', 'priorityclass', urgent)
        only_there = {'nodeSelectorTerms': [{'matchFields': [{'key': 'metadata.name', 'operator': 'In', 'values': [node]}]}]}
        self.cluster.apply({
            'apiVersion': 'v1',
            'kind': 'Pod',
            'metadata': {'name': 'urgent', 'namespace': self.namespace},
            'spec': {
                'priorityClassName': urgent,
                'tolerations': ON_SIMULATED_NODES['spec']['tolerations'],
                'affinity': {'nodeAffinity': {'requiredDuringSchedulingIgnoredDuringExecution': only_there}},
                'containers': [{'name': 'urgent', 'image': 'urgent', 'resources': {'requests': {'cpu': '20'}}}],
            },
        })
        failure = wait_for('it is reported', lambda: self.reported_exit('job-worker-1'))
        self.assertEqual((failure['reason'], failure['counted']), ('Preempted', False))
        wait_for('it is replaced', lambda: self.uids().get('job-worker-1', victim['metadata']['uid']) != victim['metadata']['uid'])
        wait_for('all are ready', lambda: self.ready(self.pods()) >= self.names(2), 60)
        self.assertNotEqual(self.pods()['job-worker-1']['spec']['nodeName'], node)

    def test_a_death_is_reported_to_the_coordinator(self):
        self.start()
        address = self.pods(role='coordinator')['job-coordinator']['status']['podIP']
        self.end_pod('job-worker-0', 137)
        death = wait_for('it is reported', lambda: [death for call in self.coordinators.calls(address) for death in call['deaths']])
        self.assertEqual(death[0]['process'].get('role'), 'WORKER')

    def test_a_dead_coordinator_is_replaced(self):
        self.start()
        before = self.uids()['job-coordinator']
        self.end_pod('job-coordinator', 139)
        wait_for('there is another', lambda: self.uids().get('job-coordinator', before) != before, 60)
        self.wait_for_pods()
        self.wait_for_condition('Running')

    # ---- sizes

    def test_workers_scale_to_six_and_to_one(self):
        self.start()
        for replicas in (6, 1):
            self.cluster.kubectl('scale', 'stj/job', f'--replicas={replicas}', '-n', self.namespace)
            if replicas == 1:
                # A surplus worker exits when the coordinator has released it; simulated processes
                # do not exit.
                wanted = self.names(6) - self.names(1)
                wait_for('the coordinator gets the request', lambda: self.coordinators.calls()[-1]['workers'] == 1)
                for pod in wanted & set(self.pods()):
                    self.end_pod(pod, 0)
            self.wait_for_pods(workers=replicas, seconds=60)
        self.assertEqual(self.condition('Failed').get('status', 'False'), 'False')

        def scaled():
            scale = self.api.request('GET', f'/apis/sluice.dev/v1alpha1/namespaces/{self.namespace}/trainingjobs/job/scale')
            return scale['spec']['replicas'], scale['status']['replicas']

        wait_for('the counts are written, which they are once a second', lambda: scaled() == (1, 1))

    def test_a_job_cannot_be_scaled_beyond_its_bounds(self):
        self.start()
        self.api.merge('trainingjobs', self.namespace, 'job', {'spec': {
            'worker': {'minReplicas': 2, 'maxReplicas': 3}, 'parameterServer': {'maxReplicas': 2}}})
        for replicas, bound in ((4, 'maxReplicas'), (1, 'minReplicas')):
            said = self.cluster.refused('scale', 'stj/job', f'--replicas={replicas}', '-n', self.namespace)
            self.assertIn(f'`{bound}`', said)
        with self.assertRaisesRegex(ApiError, 'maxReplicas'):
            self.api.merge('trainingjobs', self.namespace, 'job', {'spec': {'parameterServer': {'replicas': 3}}})
        self.cluster.kubectl('scale', 'stj/job', '--replicas=3', '-n', self.namespace)
        self.wait_for_pods(workers=3)

    def test_a_suspended_job_has_no_pods_and_continues_when_resumed(self):
        self.start()
        self.api.merge('trainingjobs', self.namespace, 'job', {'spec': {'suspend': True}})
        wait_for('the coordinator gets the request', lambda: self.coordinators.calls()[-1]['suspend'])
        self.end_pods()
        self.wait_for_condition('Suspended')
        wait_for('no pod is left', lambda: not self.pods())
        self.api.merge('trainingjobs', self.namespace, 'job', {'spec': {'suspend': False}})
        self.wait_for_pods()
        self.wait_for_condition('Running')

    def test_a_new_mode_takes_a_checkpoint_and_restarts_the_pods(self):
        self.start()
        before = self.uids()
        self.api.merge('trainingjobs', self.namespace, 'job', {'spec': {'training': {'mode': 'Asynchronous'}}})
        wait_for('the coordinator gets the request to save and stop', lambda: self.coordinators.calls()[-1]['suspend'])
        wait_for('the job reports it', lambda: self.job()['status']['summary'] == 'SwitchingMode')
        self.assertEqual(self.job()['status']['recovery']['mode'], 'Synchronous', 'as long as pods train so')
        self.end_pods()
        wait_for('there are new pods', lambda: set(self.uids()) == set(before) and
                 not set(self.uids().values()) & set(before.values()), 60)
        self.wait_for_pods()
        self.wait_for_condition('Running')
        status = self.job()['status']
        self.assertEqual((status['recovery']['mode'], status.get('restarts', {}).get('total', 0)), ('Asynchronous', 0))
        job = json.loads(self.api.get('configmaps', self.namespace, 'job')['data']['job.json'])
        self.assertEqual(job['spec']['training']['mode'], 'Asynchronous')
        self.assertEqual(self.condition('Failed').get('status', 'False'), 'False')

    # ---- obstacles

    def test_a_small_quota_is_reported_until_it_is_raised(self):
        self.api.create('resourcequotas', {'metadata': {'name': 'small'}, 'spec': {'hard': {'pods': '2'}}}, self.namespace)
        wait_for('the quota counts', lambda: self.api.get('resourcequotas', self.namespace, 'small').get('status', {}).get('used'))
        self.create()
        self.assertRegex(self.degraded_message('QuotaExceeded'), r'exceeded quota: small, requested: pods=1, .*limited: pods=2.*; raise the quota')
        self.api.merge('resourcequotas', self.namespace, 'small', {'spec': {'hard': {'pods': '20'}}})
        self.wait_for_pods(seconds=90)
        self.wait_for_condition('Running')

    def test_objects_of_other_owners_are_kept_and_reported_until_they_are_deleted(self):
        theirs = {
            'services': {'spec': {'selector': {'app': 'web'}, 'ports': [{'port': 80}]}},
            'configmaps': {'data': {'job.json': 'theirs'}},
            'networkpolicies': {'spec': {'podSelector': {'matchLabels': {'app': 'web'}}, 'policyTypes': ['Egress']}},
        }
        metadata = {'name': 'job', 'labels': {'app.kubernetes.io/managed-by': 'Helm'}}
        for resource, body in theirs.items():
            self.api.create(resource, {'metadata': metadata, **body}, self.namespace)
        before = {resource: self.api.get(resource, self.namespace, 'job') for resource in theirs}
        self.create()
        for resource in theirs:  # in the order in which the operator makes its own
            text = f'the {before[resource]["kind"]} {self.namespace}/job already exists and is managed by Helm; '
            wait_for(f'{resource} is reported', lambda text=text: text in self.condition('Degraded').get('message', ''), 60)
            self.assertEqual(self.condition('Degraded')['reason'], 'NameTaken')
            self.assertIn('delete it, or give the job another name', self.condition('Degraded')['message'])
            if resource == 'networkpolicies':
                self.cluster.kubectl('delete', 'stj', 'job', '-n', self.namespace)
                wait_for('nothing of the job is left', lambda: not any(self.owned().values()), 60)
                self.create()
                wait_for('it is reported', lambda: self.condition('Degraded').get('reason') == 'NameTaken', 60)
            self.assertEqual(self.api.get(resource, self.namespace, 'job'), before[resource])
            self.api.delete(resource, self.namespace, 'job')
        self.wait_for_pods(seconds=90)
        self.wait_for_condition('Running')
        self.wait_for_condition('Degraded', 'False')

    def test_a_missing_volume_is_reported_until_it_exists(self):
        job = {'checkpoint': {'storage': {'type': 'PersistentVolumeClaim', 'claimName': 'later'}}}
        self.create(**job)
        wait_for('the status names the claim', lambda: 'later' in self.shown(), 60)
        claim = self.api.get('persistentvolumeclaims', self.namespace, 'checkpoints')['spec']
        self.api.create('persistentvolumeclaims', {'metadata': {'name': 'later'}, 'spec': {
            'accessModes': ['ReadWriteMany'], 'storageClassName': f'{self.namespace}-later',
            'resources': claim['resources']}}, self.namespace)
        self.cluster.apply({'apiVersion': 'v1', 'kind': 'PersistentVolume', 'metadata': {'name': f'{self.namespace}-later'}, 'spec': {
            'capacity': {'storage': '1Gi'}, 'accessModes': ['ReadWriteMany'], 'storageClassName': f'{self.namespace}-later',
            'hostPath': {'path': '/nowhere'}}})
        self.addCleanup(self.cluster.kubectl, 'delete', 'pv', f'{self.namespace}-later', '--wait=false')
        self.wait_for_pods(seconds=90)

    def test_a_pod_security_violation_is_reported_until_it_is_fixed(self):
        def enforce(level):
            self.api.merge('namespaces', None, self.namespace, {'metadata': {'labels': {
                'pod-security.kubernetes.io/enforce': level}}})

        enforce('restricted')
        worker = copy.deepcopy(ON_SIMULATED_NODES)
        worker['spec']['containers'] = [{'name': 'worker', 'securityContext': {'capabilities': {'add': ['SYS_ADMIN']}}}]
        self.create(worker={'replicas': 2, 'template': worker})
        wait_for('it is reported', lambda: self.condition('Degraded').get('reason') == 'PodSecurityRefused', 60)
        self.assertIn('SYS_ADMIN', self.condition('Degraded')['message'])
        self.assertIn('correct the templates', self.condition('Degraded')['message'])
        wait_for('an event reports it', lambda: any(one['reason'] == 'PodSecurityRefused' and one['regarding']['name'] == 'job'
                                                 for one in self.api.list('events', self.namespace)))
        enforce('privileged')
        self.wait_for_pods(seconds=90)
        self.wait_for_condition('Running')
        self.wait_for_condition('Degraded', 'False')

    def of_this_namespace(self, kind, **spec):
        """Makes an object of admissionregistration.k8s.io, deleted with the test; it takes effect within moments."""
        self.cluster.apply({'apiVersion': 'admissionregistration.k8s.io/v1', 'kind': kind, 'metadata': {'name': self.namespace}, **spec})
        self.addCleanup(self.cluster.kubectl, 'delete', kind, self.namespace, '--ignore-not-found')

    def wait_until_pods_are_refused(self, why):
        def refused():
            pod = {'metadata': {'name': 'probe'}, 'spec': {'containers': [{'name': 'probe', 'image': 'probe'}]}}
            try:
                self.api.request('POST', f'/api/v1/namespaces/{self.namespace}/pods?dryRun=All', pod)
            except ApiError as error:
                return why in str(error)
            return False

        wait_for('pods are refused', refused, 60)

    def degraded_message(self, reason):
        return wait_for(f'{reason} is reported', lambda: self.condition('Degraded') if self.condition('Degraded').get(
            'reason') == reason else None, 90)['message']

    PODS = [{'apiGroups': [''], 'apiVersions': ['v1'], 'operations': ['CREATE'], 'resources': ['pods']}]

    def test_a_refusing_admission_policy_is_named_and_can_be_satisfied(self):
        here = {'matchLabels': {'kubernetes.io/metadata.name': self.namespace}}
        self.of_this_namespace('ValidatingAdmissionPolicy', spec={
            'failurePolicy': 'Fail', 'matchConstraints': {'resourceRules': self.PODS},
            'validations': [{'expression': "'team' in object.metadata.?labels.orValue({})", 'message': 'every pod names its team'}]})
        self.of_this_namespace('ValidatingAdmissionPolicyBinding', spec={
            'policyName': self.namespace, 'validationActions': ['Deny'], 'matchResources': {'namespaceSelector': here}})
        self.wait_until_pods_are_refused('every pod names its team')
        self.create()
        message = self.degraded_message('Forbidden')
        self.assertIn(f"ValidatingAdmissionPolicy '{self.namespace}'", message)
        self.assertIn('denied request: every pod names its team', message)
        self.assertIn("correct the job's templates", message)
        self.assertEqual(self.pods(), {})
        named = {'template': {'metadata': {'labels': {'team': 'vision'}}}}
        self.api.merge('trainingjobs', self.namespace, 'job', {'spec': {
            role: named for role in ('coordinator', 'parameterServer', 'worker')}})
        self.wait_for_pods(seconds=90)
        self.wait_for_condition('Running')
        self.wait_for_condition('Degraded', 'False')

    def test_a_dead_webhook_is_reported_until_it_answers(self):
        self.of_this_namespace('ValidatingWebhookConfiguration', webhooks=[{
            'name': 'gate.example.com', 'clientConfig': {'url': 'https://127.0.0.1:9/'}, 'rules': self.PODS, 'sideEffects': 'None',
            'namespaceSelector': {'matchLabels': {'kubernetes.io/metadata.name': self.namespace}},
            'admissionReviewVersions': ['v1'], 'timeoutSeconds': 1}])
        self.wait_until_pods_are_refused('failed calling webhook')
        self.create()
        message = self.degraded_message('WebhookUnavailable')
        self.assertIn('gate.example.com', message)
        self.assertIn('failurePolicy', message)
        wait_for('an event reports it', lambda: any(one['reason'] == 'WebhookUnavailable' and one['regarding']['name'] == 'job'
                                                 for one in self.api.list('events', self.namespace)))
        said = [line for line in self.operator.log().splitlines() if 'Reconcile failed' in line and 'gate.example.com' in line]
        self.assertIn(f'job={self.namespace}/job', said[0])
        self.cluster.kubectl('delete', 'ValidatingWebhookConfiguration', self.namespace)
        self.wait_for_pods(seconds=90)
        self.wait_for_condition('Running')
        self.wait_for_condition('Degraded', 'False')

    def test_a_quota_on_resources_missing_from_templates_is_reported(self):
        self.api.create('resourcequotas', {'metadata': {'name': 'cpus'}, 'spec': {'hard': {'limits.cpu': '20'}}}, self.namespace)
        wait_for('the quota counts', lambda: self.api.get('resourcequotas', self.namespace, 'cpus').get('status', {}).get('used'))
        self.create()
        self.assertIn('failed quota: cpus: must specify limits.cpu', self.degraded_message('ResourcesNotSet'))

    def test_pods_of_a_lost_node_move_and_are_not_counted(self):
        self.start(nodeFailure={'tolerationSeconds': 1, 'forceDeleteAfterSeconds': 1})
        victim = self.pods()['job-worker-0']
        node = victim['spec']['nodeName']
        history = self.history()
        self.cluster.kubectl('label', 'node', node, 'kwok-')
        self.addCleanup(self.cluster.kubectl, 'label', 'node', node, 'kwok=up', '--overwrite')
        wait_for('there is another elsewhere', lambda: self.pods().get('job-worker-0', victim)['metadata']['uid'] !=
                 victim['metadata']['uid'], 60)
        wait_for('all are ready', lambda: self.ready(self.pods()) >= self.names(2), 60)
        self.assertNotEqual(self.pods()['job-worker-0']['spec']['nodeName'], node)
        self.assert_never_doubled(history)
        failure = wait_for('it is reported', lambda: self.reported_exit('job-worker-0'))
        self.assertFalse(failure['counted'])


if __name__ == '__main__':
    unittest_main.main()
