"""The base of tests of the operator on simulated nodes: a cluster with the chart's rights, coordinators and jobs."""

import contextlib
import json
import unittest

from tests.cluster.testing.api_client import ApiError, History
from tests.cluster.testing.cluster import Cluster, conditions, has_failed, wait_for
from tests.cluster.testing.operator_process import ACCOUNT, NAMESPACE, Coordinators, install_chart, kubeconfig

API_SERVER = 'https://10.88.0.1:6443'  # its address in the control plane's network namespace
JOB_LABEL = 'sluice.dev/training-job'
ON_SIMULATED_NODES = {'spec': {
    'nodeSelector': {'type': 'kwok'},
    'tolerations': [{'key': 'kwok.x-k8s.io/node', 'operator': 'Exists'}],
}}
OWNED = ('services', 'configmaps', 'poddisruptionbudgets', 'networkpolicies', 'pods')


def training_job(name, namespace, workers=2, shards=1, **spec):
    return {
        'apiVersion': 'sluice.dev/v1alpha1',
        'kind': 'TrainingJob',
        'metadata': {'name': name, 'namespace': namespace},
        'spec': {
            'model': {'name': 'mlp'},
            'data': {'format': 'Synthetic', 'synthetic': {'samples': 4096, 'shape': [16], 'classes': 4}},
            'optimizer': {'name': 'SGD', 'learningRate': 0.1},
            'training': {'steps': 1000},
            'coordinator': {'template': ON_SIMULATED_NODES},
            'parameterServer': {'replicas': shards, 'template': ON_SIMULATED_NODES},
            'worker': {'replicas': workers, 'template': ON_SIMULATED_NODES},
            'checkpoint': {'storage': {'type': 'PersistentVolumeClaim', 'claimName': 'checkpoints'}},
            'tls': 'Disabled',  # the coordinators of simulated pods use plain text
            **spec,
        },
    }


class OperatorCase(unittest.TestCase):
    """The cluster, the rights and the coordinators are made once for a class; each test has its own namespace."""

    SIMULATED = 4

    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster(simulated=cls.SIMULATED))
        cls.api = cls.cluster.api
        install_chart(cls.cluster)
        cls.token = cls.cluster.kubectl('create', 'token', ACCOUNT, '-n', NAMESPACE, '--duration', '2h').strip()
        cls.kubeconfig = kubeconfig(cls.cluster, 'operator', API_SERVER, cls.token)
        cls.coordinators = cls.enterClassContext(Coordinators(cls.cluster))

    def setUp(self):
        self.namespace = self.enterContext(self.cluster.namespace())
        self.coordinators.forget()
        self.enterContext(self.claim())
        self.addCleanup(self.show_if_failed)

    def show_if_failed(self):
        if not has_failed(self):
            return
        for job in self.api.list('trainingjobs', self.namespace):
            print(json.dumps(job.get('status'), indent=1))
        print(self.cluster.kubectl('get', 'pods', '-n', self.namespace, '-o', 'wide'))
        for log in sorted((self.cluster.directory / 'log').glob('*operator*.log')):
            print(f'--- {log.name}', *log.read_text(errors='replace').splitlines()[-25:], sep='\n', flush=True)

    @contextlib.contextmanager
    def claim(self):
        """Makes a bound claim named `checkpoints`."""
        volume = {
            'apiVersion': 'v1',
            'kind': 'PersistentVolume',
            'metadata': {'name': self.namespace},
            'spec': {
                'capacity': {'storage': '1Gi'},
                'accessModes': ['ReadWriteMany'],
                'storageClassName': self.namespace,
                'hostPath': {'path': '/nowhere'},
            },
        }
        claim = {
            'apiVersion': 'v1',
            'kind': 'PersistentVolumeClaim',
            'metadata': {'name': 'checkpoints', 'namespace': self.namespace},
            'spec': {
                'accessModes': ['ReadWriteMany'],
                'storageClassName': self.namespace,
                'resources': {'requests': {'storage': '1Gi'}},
            },
        }
        self.cluster.apply(volume, claim)
        yield
        self.cluster.kubectl('delete', 'pv', self.namespace, '--wait=false')

    def create(self, name='job', **more):
        return self.api.create('trainingjobs', training_job(name, self.namespace, **more), self.namespace)

    def job(self, name='job'):
        return self.api.get('trainingjobs', self.namespace, name)

    def condition(self, kind, name='job'):
        """The condition of that type, or {}."""
        for one in self.job(name).get('status', {}).get('conditions', []):
            if one['type'] == kind:
                return one
        return {}

    def pods(self, name='job', role=None):
        """{name: pod} of the pods that exist and are not being deleted."""
        selector = f'{JOB_LABEL}={name}' + (f',sluice.dev/role={role}' if role else '')
        return {pod['metadata']['name']: pod for pod in self.api.list('pods', self.namespace, selector)
                if 'deletionTimestamp' not in pod['metadata']}

    def uids(self, name='job'):
        return {pod: value['metadata']['uid'] for pod, value in self.pods(name).items()}

    def ready(self, pods):
        return {name for name, pod in pods.items() if conditions(pod).get('Ready') == 'True'}

    def names(self, workers, shards=1, name='job'):
        return {f'{name}-coordinator', *(f'{name}-ps-{i}' for i in range(shards)),
                *(f'{name}-worker-{i}' for i in range(workers))}

    def delete_pod(self, name):
        """Deletes a pod as a user does, and waits until it is gone or another one has its name.

        `kubectl delete` without --wait=false waits forever if the next pod of that name is made too soon.
        """
        before = self.uids()[name]
        self.cluster.kubectl('delete', 'pod', name, '-n', self.namespace, '--wait=false')
        wait_for(f'{name} is gone', lambda: self.uids().get(name) != before, 120)

    def wait_for_pods(self, workers=2, shards=1, name='job', seconds=90):
        """Waits until exactly the wanted pods exist and are ready."""
        wanted = self.names(workers, shards, name)
        wait_for(f'{sorted(wanted)} are ready', lambda: set(self.pods(name)) == wanted and
                 self.ready(self.pods(name)) == wanted, seconds)

    def wait_for_condition(self, kind, status='True', name='job', seconds=90):
        return wait_for(f'{name} has {kind}={status}',
                        lambda: self.condition(kind, name) if self.condition(kind, name).get('status') == status else None,
                        seconds)

    def start(self, name='job', workers=2, shards=1, **spec):
        """Makes a job and waits until it trains."""
        self.create(name, workers=workers, shards=shards, **spec)
        self.wait_for_pods(workers, shards, name)
        self.wait_for_condition('Running', name=name)

    def end_pod(self, pod, code, reason=None, uid=None):
        """Makes the pod end by itself, unless it is already gone, or another one has its name."""
        annotations = {'fault.test/exit-code': str(code), **({'fault.test/reason': reason} if reason else {})}
        try:
            self.api.merge('pods', self.namespace, pod, {'metadata': {'annotations': annotations, **({'uid': uid} if uid else {})}})
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    def end_pods(self, code=0, name='job'):
        """Makes all pods of the job end, the coordinator last, as in a job that ends or is suspended."""
        pods = self.pods(name)
        for pod in sorted(pods, key=lambda pod: pod.endswith('-coordinator')):
            self.end_pod(pod, code, uid=pods[pod]['metadata']['uid'])

    def finish(self, name='job'):
        """Ends training: coordinators report success, and all processes exit."""
        self.coordinators.say(phase='SUCCEEDED', step=1000)
        wait_for('the operator knows', lambda: self.job(name)['status']['recovery'].get('outcome'))
        self.end_pods(name=name)

    def history(self):
        history = History(self.cluster.client(), 'pods', self.namespace)
        self.addCleanup(history.end)
        return history

    def assert_never_doubled(self, history):
        """Asserts that no replica ever had a second pod while the first one was not known to have ended."""
        there = {}
        for _, kind, pod in history.changes():
            uid, metadata = pod['metadata']['uid'], pod['metadata']
            replica = (metadata['labels'].get(JOB_LABEL), metadata['labels'].get('sluice.dev/role'),
                       metadata['labels'].get('sluice.dev/index'))
            if kind == 'DELETED':
                there.pop(uid, None)
                continue
            there[uid] = replica
            self.assertEqual(len(there), len(set(there.values())), f'a second pod of {replica}')

    def owned(self, name='job'):
        """{resource: [names]} of all objects that a job owns."""
        return {resource: sorted(one['metadata']['name'] for one in self.api.list(
            resource, self.namespace, f'{JOB_LABEL}={name}')) for resource in OWNED}

    def shown(self):
        """The job as shown after a failed test."""
        return json.dumps(self.job().get('status'), indent=1)
