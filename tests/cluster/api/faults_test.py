"""The operator while it, the API server, and the network between them fail."""

import collections
import dataclasses
import os
import random
import signal
import threading
import time

from tests.cluster.api.operator_case import API_SERVER, OperatorCase
from tests.cluster.testing.cluster import say, wait_for
from tests.cluster.testing.fault_proxy import NONE, Fault, FaultProxy
from tests.cluster.testing.operator_process import ACCOUNT, NAMESPACE, Operator, kubeconfig
from tools import unittest_main

FROZEN_SECONDS = 30
RESYNCS = 10
RESYNC_SECONDS = 3


@dataclasses.dataclass(frozen=True)
class Write:
    """Identifies a write across runs, in which writes come in different orders."""

    method: str
    path: str
    occurrence: int  # of this method and path, from 1
    resource: str

    def __str__(self):
        return f'{self.method} {self.path} ({self.occurrence})'


def writes(requests):
    """The writes among the requests, except those of leases, by the requests' numbers."""
    result = {}
    occurrences = collections.Counter()
    for one in requests:
        if one.write and not one.lease:
            occurrences[one.method, one.path] += 1
            result[one.number] = Write(one.method, one.path, occurrences[one.method, one.path], one.resource)
    return result


class FaultsTest(OperatorCase):

    def operator(self, *flags, server=API_SERVER, identity=None):
        """A replica that watches only this test's namespace, through a proxy if `server` is one."""
        identity = identity or f'{self.namespace}-operator'
        config = kubeconfig(self.cluster, identity, server, self.token)
        return self.enterContext(Operator(self.cluster, config, identity, '--namespaces', self.namespace, *flags))

    def proxy(self, rule=None):
        return self.enterContext(FaultProxy(self.cluster, rule))

    # ---- the network and the API server

    def check_a_life(self, history):
        """Runs a job from its creation to its end, with the death of a worker in between."""
        self.start()
        before = self.uids()['job-worker-0']
        self.end_pod('job-worker-0', 137)
        wait_for('the worker is replaced', lambda: self.uids().get('job-worker-0', before) != before, 90)
        self.wait_for_pods(seconds=90)
        self.finish()
        self.wait_for_condition('Succeeded', seconds=90)
        self.assert_never_doubled(history)

    def test_a_watch_that_is_cut_every_second(self):
        proxy = self.proxy(lambda request: Fault(cut_after_seconds=1) if request.watch else NONE)
        self.operator(server=proxy.url)
        self.check_a_life(self.history())

    def test_requests_that_are_lost_delayed_and_refused_at_random(self):
        seed = 20
        say(f'seed {seed}')
        choices = random.Random(seed)
        faults = [Fault(drop_before=True), Fault(drop_after=True), Fault(delay_seconds=1), Fault(status=500),
                  Fault(status=429, retry_after=1), Fault(status=409, reason='Conflict'), Fault(status=503)]
        lock = threading.Lock()

        def rule(request):
            with lock:
                if request.lease or choices.random() > 0.3:
                    return NONE
                return choices.choice(faults)

        proxy = self.proxy(rule)
        self.operator(server=proxy.url)
        self.check_a_life(self.history())

    def test_expired_history_and_stale_lists(self):
        watches = {}
        lock = threading.Lock()

        def rule(request):
            if request.lease:
                return NONE
            with lock:
                if request.watch:
                    watches[request.path] = watches.get(request.path, 0) + 1
                    # Every second watch gets the answer that its version is too old.
                    if watches[request.path] % 2 == 0:
                        return Fault(status=410, reason='Expired')
                    return Fault(cut_after_seconds=2)
                return Fault(stale=watches.get(request.path, 0) == 3)

        proxy = self.proxy(rule)
        self.operator(server=proxy.url)
        self.check_a_life(self.history())

    def test_a_restart_of_the_api_server(self):
        self.operator()
        self.start()
        history = self.history()
        self.cluster.script('down.sh', 'process', 'apiserver')
        self.cluster.script('up-control-plane.sh')
        self.delete_pod('job-worker-0')
        self.wait_for_pods(seconds=90)
        self.assert_never_doubled(history)

    def test_a_frozen_storage(self):
        operator = self.operator()
        self.start()
        before = self.uids()
        etcd = self.cluster.process('etcd')
        os.kill(etcd, signal.SIGSTOP)
        time.sleep(FROZEN_SECONDS)
        os.kill(etcd, signal.SIGCONT)
        wait_for('the API server answers', lambda: self.cluster.client().list('pods', self.namespace) is not None, 60)
        self.assertTrue(operator.running())
        self.assertEqual(self.uids(), before)
        self.delete_pod('job-worker-0')
        wait_for('it is replaced', lambda: self.uids().get('job-worker-0', before['job-worker-0']) != before['job-worker-0'], 90)

    # ---- the operator itself

    def test_only_the_lease_is_written_when_nothing_changes(self):
        self.operator('--leader-elect', '--resync', f'{RESYNC_SECONDS}s')
        self.start()

        def written(seconds):
            """Renewals of the lease, and the operator's other writes, during that time."""
            position = self.cluster.audit_position()
            time.sleep(seconds)
            writes = self.cluster.writes('serviceaccount:', position)
            return ([one for one in writes if one['objectRef']['resource'] == 'leases'],
                    [(one['verb'], one['requestURI']) for one in writes
                     if one['user']['username'].endswith(f':{ACCOUNT}') and one['objectRef']['resource'] != 'leases'])

        wait_for('events and the last of the status are written', lambda: not written(5)[1], 120)
        renewals, others = written(RESYNCS * RESYNC_SECONDS + 1)
        self.assertEqual(others, [])
        self.assertGreater(len(renewals), 5)
        say(f'{RESYNCS} resyncs, {len(renewals)} renewals of the lease, and no other write')

    def test_a_frozen_leader_is_succeeded_and_does_nothing_when_it_wakes(self):
        proxies = {name: self.proxy() for name in ('first', 'second')}
        first = self.operator('--leader-elect', server=proxies['first'].url, identity=f'{self.namespace}-first')
        self.start()
        second = self.operator('--leader-elect', server=proxies['second'].url, identity=f'{self.namespace}-second')
        history = self.history()
        first.freeze()
        began = time.monotonic()
        before = self.uids()
        self.end_pod('job-worker-0', 137)
        wait_for('the second replica replaces the worker', lambda: self.uids().get('job-worker-0', before['job-worker-0']) !=
                 before['job-worker-0'], 60)
        say(f'a new leader replaced a worker {time.monotonic() - began:.1f} s after the old one was frozen')
        time.sleep(max(0.0, FROZEN_SECONDS - (time.monotonic() - began)))
        written = len([one for one in proxies['first'].requests() if one.write])
        first.thaw()
        self.delete_pod('job-worker-1')
        self.wait_for_pods()
        self.assertTrue(second.running())
        late = [one for one in proxies['first'].requests() if one.write][written:]
        self.assertEqual([(one.method, one.path) for one in late if not one.lease], [])
        self.assert_never_doubled(history)
        lease = [one for one in self.api.list('leases', NAMESPACE)][0]
        self.assertIn('second', lease['spec']['holderIdentity'])

    def crash_at(self, write):
        """Runs a job; kills the operator after that write, one of `writes`, and restarts it.

        Returns whether that write happened, and all requests.
        """
        proxy = self.proxy()
        operator = self.operator(server=proxy.url)
        crashed = threading.Event()

        def after_write(request):
            if write and not crashed.is_set() and writes(proxy.requests()).get(request.number) == write:
                operator.process.kill()
                crashed.set()

        proxy.after_write = after_write
        ended = threading.Event()

        def start_again():
            while not ended.is_set():
                if not operator.running():
                    operator.process.wait()
                    operator.start()
                time.sleep(0.05)

        watchdog = threading.Thread(target=start_again, daemon=True)
        watchdog.start()
        try:
            self.check_a_life(self.history())
        finally:
            ended.set()
            watchdog.join()
            operator.kill()
        return crashed.is_set(), proxy.requests()

    def end_state(self):
        """The state that must be the same in every run, once all pods have ended."""
        wait_for('all pods have ended', lambda: all(pod['status']['phase'] == 'Succeeded' for pod in self.pods().values()))
        status = self.job()['status']
        return {
            'owned': self.owned(),
            'pods': {name: pod['status']['phase'] for name, pod in self.pods().items()},
            'conditions': {one['type']: one['status'] for one in status['conditions']},
            'summary': status['summary'],
            'restarts': status['restarts'],
        }

    def test_a_crash_at_every_write(self):
        _, requests = self.crash_at(None)
        expected = self.end_state()
        undisturbed = list(writes(requests).values())
        say(f'an undisturbed life has {len(undisturbed)} writes')
        for number, write in enumerate(undisturbed, 1):
            with self.subTest(write=write):
                self.coordinators.forget()
                self.api.delete('trainingjobs', self.namespace, 'job')
                wait_for('nothing is left', lambda: not any(self.owned().values()), 60)
                crashed, _ = self.crash_at(write)
                self.assertEqual(self.end_state(), expected)
                said = f'write {number} of {len(undisturbed)}: {write}'
                if crashed:
                    say(said)
                else:
                    # Changes at the same time are written together, so a run may have fewer writes
                    # of status, or of events.
                    if write.resource != 'events':
                        self.assertEqual(write.resource, 'trainingjobs/status')
                        self.assertGreater(write.occurrence, 1)
                    say(f'{said}: this life had fewer')


if __name__ == '__main__':
    unittest_main.main()
