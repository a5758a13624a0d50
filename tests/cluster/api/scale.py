"""Many jobs at once on simulated nodes: measurements for the test and the benchmark."""

import collections
import concurrent.futures
import http.client
import json
import pathlib
import re
import threading
import time

from tests.cluster.api.operator_case import JOB_LABEL, training_job
from tests.cluster.testing.api_client import path_of
from tests.cluster.testing.cluster import conditions, say, wait_for
from tests.cluster.testing.metrics import scrape_text

METRICS_PORT = 9099
PODS_OF_A_NODE = 100
CONNECTIONS = 8
SPEC = {
    # No claim: nodes are simulated, and only pods are measured.
    'checkpoint': {'storage': {'type': 'Local', 'path': '/scratch'}},
    # On a busy machine kwok may renew the nodes' leases late, which must not cost pods.
    'nodeFailure': {'tolerationSeconds': 3600, 'forceDeleteAfterSeconds': 3600},
}
# Timing as in Kubernetes: nodes renew their leases every 10 s (of 40) and are lost after 50 s. Other test clusters lose them
# sooner, but under load that would remove nodes, and renewing hundreds of leases would cost as much as making the pods.
STEADY_NODES = {
    'KWOK_FLAGS': '--node-lease-duration-seconds=40',
    'CONTROLLER_MANAGER_FLAGS': '--node-monitor-period=5s --node-monitor-grace-period=50s',
}
# Bounds of the operator with 1,000 jobs of which 20 train.
MOST_MIB = 150
MOST_CORES = 0.05


def nodes_for(pods):
    """How many simulated nodes have room for twice that many pods."""
    return 2 + 2 * pods // PODS_OF_A_NODE


class Watcher(threading.Thread):
    """When each pod of a namespace was created, ran, and was gone; and how often two pods of one replica ran at once."""

    def __init__(self, cluster, namespace):
        super().__init__(daemon=True)
        self._client = cluster.client()
        self._path = path_of('pods', namespace)
        self._version = self._client.request('GET', self._path)['metadata']['resourceVersion']
        self._lock = threading.Lock()
        self._replicas = {}  # uid -> replica
        self._running = {}  # uid -> when
        self.made = 0
        self.doubled = []
        self._ended = threading.Event()
        self.start()

    def run(self):
        while not self._ended.is_set():
            connection = self._client.connect()
            try:
                connection.request('GET', f'{self._path}?watch=true&resourceVersion={self._version}&timeoutSeconds=300')
                answer = connection.getresponse()
                while not self._ended.is_set() and (line := answer.readline()):
                    self._see(json.loads(line))
            except (OSError, http.client.HTTPException, ValueError):
                time.sleep(0.1)
            finally:
                connection.close()

    def _see(self, change):
        pod = change['object']
        if change['type'] == 'ERROR':
            raise ValueError(pod)
        metadata = pod['metadata']
        self._version = metadata['resourceVersion']
        uid = metadata['uid']
        replica = tuple(metadata['labels'].get(label) for label in (JOB_LABEL, 'sluice.dev/role', 'sluice.dev/index'))
        with self._lock:
            if change['type'] == 'DELETED':
                self._replicas.pop(uid, None)
                return
            if uid not in self._replicas:
                self.made += 1
                if replica[0] and replica in self._replicas.values():
                    self.doubled.append(replica)
                self._replicas[uid] = replica
            if uid not in self._running and conditions(pod).get('Ready') == 'True':
                self._running[uid] = time.monotonic()

    def running(self):
        with self._lock:
            return len(self._running)

    def last_began(self):
        with self._lock:
            return max(self._running.values())

    def end(self):
        self._ended.set()


def wait_for_running(watcher, pods, seconds):
    """When the last of that many pods began to run."""
    deadline = time.monotonic() + seconds
    while watcher.running() < pods:
        if time.monotonic() > deadline:
            raise AssertionError(f'{watcher.running()} of {pods} pods run after {seconds} s')
        time.sleep(0.2)
    return watcher.last_began()


def in_parallel(cluster, items, act):
    """Calls act(client, item) for all items, over a few connections."""
    local = threading.local()

    def one(item):
        if not hasattr(local, 'client'):
            local.client = cluster.client()
        act(local.client, item)

    with concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(one, items))


def plain_pods_per_second(cluster, namespace, count, like, seconds=1800):
    """The rate of the cluster without an operator: makes pods like the operator's, over as many connections."""
    watcher = Watcher(cluster, namespace)
    began = time.monotonic()

    def create(client, index):
        client.create('pods', {'metadata': {'name': f'plain-{index}', 'labels': {'set': 'plain'}}, 'spec': like}, namespace)

    in_parallel(cluster, range(count), create)
    rate = count / (wait_for_running(watcher, count, seconds) - began)
    watcher.end()
    return rate


def pod_spec_like(pod):
    """The spec of a pod that the operator made, as a template for others."""
    spec = {name: value for name, value in pod['spec'].items() if name not in ('nodeName', 'hostname', 'subdomain')}
    # Simulated nodes ignore claims and config maps, but the API server and the scheduler do not.
    return spec


def job_pods_per_second(cluster, namespace, jobs, pods, watcher, seconds=1800):
    """Applies jobs of that many pods each, all at once, and waits until every pod runs."""
    # The API server needs two seconds for the first object of a kind that was just defined.
    cluster.api.create('trainingjobs', training_job('first', namespace, suspend=True, **SPEC), namespace)
    cluster.api.delete('trainingjobs', namespace, 'first')
    began = time.monotonic()
    in_parallel(cluster, range(jobs), lambda client, index: client.create(
        'trainingjobs', training_job(f'job-{index}', namespace, workers=pods - 3, shards=2, **SPEC), namespace))
    applied = time.monotonic()
    last = wait_for_running(watcher, jobs * pods, seconds)
    say(f'{jobs} jobs were applied in {applied - began:.1f} s, their {jobs * pods} pods ran {last - began:.1f} s after the first')
    return jobs * pods / (last - began)


def ends_of_pods(cluster, namespace):
    """How many pods of the namespace's jobs ended, by the newest failures of each job."""
    return dict(collections.Counter(failure['reason'] for job in cluster.api.list('trainingjobs', namespace)
                                    for failure in job.get('status', {}).get('lastFailures', [])))


def footprint(cluster, namespace, pid, jobs, training, seconds):
    """(MiB, cores) of the operator with that many jobs, of which some train and the others are suspended."""

    def create(client, index):
        client.create('trainingjobs', training_job(f'job-{index}', namespace, suspend=index >= training, **SPEC), namespace)

    in_parallel(cluster, range(jobs), create)
    # A job trains when its coordinator reports so; the cost of the calls to coordinators is
    # included.
    wait_for('all jobs train or are suspended', lambda: sum(
        one.get('status', {}).get('summary') in ('Training', 'Suspended')
        for one in cluster.api.list('trainingjobs', namespace)) == jobs, 600, every=2)
    time.sleep(15)  # wait until the work after the changes has ended
    began, before = time.monotonic(), cpu_seconds(pid)
    time.sleep(seconds)
    return memory_mib(pid), (cpu_seconds(pid) - before) / (time.monotonic() - began)


class OperatorMetrics:
    """The metrics of an operator that runs beside the API server with metrics_port=METRICS_PORT."""

    def __init__(self, cluster):
        self._text = scrape_text(cluster, '127.0.0.1', METRICS_PORT)

    def total(self, name, **labels):
        found = [float(value) for given, value in re.findall(rf'^{name}(?:\{{([^}}]*)\}})? (\S+)', self._text, flags=re.MULTILINE)
                 if all(f'{label}="{wanted}"' in given for label, wanted in labels.items())]
        return sum(found)

    def requests(self):
        """[(verb, resource, code, count)] of the requests to the API server."""
        found = re.findall(r'^sluice_operator_api_requests_total\{([^}]*)\} (\S+)', self._text, flags=re.MULTILINE)
        rows = [(dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)) for labels, value in found]
        return sorted((labels['verb'], labels['resource'], labels['code'], int(value)) for labels, value in rows)

    def mean_seconds(self, verb):
        """The mean time of a request with that verb."""
        name = 'sluice_operator_api_request_seconds'
        return self.total(f'{name}_sum', verb=verb) / max(1, self.total(f'{name}_count', verb=verb))

    def quantile(self, name, fraction):
        """The upper bound of the bucket that contains the quantile."""
        buckets = {}
        for labels, value in re.findall(rf'^{name}_bucket\{{([^}}]*)\}} (\S+)', self._text, flags=re.MULTILINE):
            bound = float(re.search(r'le="([^"]*)"', labels)[1])
            buckets[bound] = buckets.get(bound, 0) + float(value)
        count = max(buckets.values(), default=0)
        return min((bound for bound, below in buckets.items() if below >= fraction * count), default=float('nan'))


def memory_mib(pid):
    """Resident memory of a process, now."""
    with open(f'/proc/{pid}/status', encoding='ascii') as file:
        return int(re.search(r'VmRSS:\s+(\d+) kB', file.read())[1]) / 1024


class ProcessorTime:
    """CPU time of a cluster's programs, by name; more reliable than a clock on a machine with other work."""

    def __init__(self, cluster):
        self._directory = str(cluster.directory)
        self._before = self._now()

    def _now(self):
        times = collections.Counter()
        for directory in pathlib.Path('/proc').glob('[0-9]*'):
            try:
                command = (directory / 'cmdline').read_bytes().decode(errors='replace').split('\0')
                if self._directory in ' '.join(command[1:]):
                    times[pathlib.Path(command[0]).name] += cpu_seconds(directory.name)
            except OSError:
                continue  # it has ended
        return times

    def since(self):
        """Seconds by program since the construction, or since the last call."""
        now = self._now()
        spent = {name: seconds - self._before[name] for name, seconds in now.items()}
        self._before = now
        return {name: seconds for name, seconds in sorted(spent.items()) if seconds >= 0.05}


def cpu_seconds(pid):
    with open(f'/proc/{pid}/stat', encoding='ascii', errors='replace') as file:
        fields = file.read().rpartition(')')[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
