"""Failures of pods and nodes during a job on real nodes: it continues to train, to the same parameters.

    bazel run //tests/cluster/node:failures_test -- FailuresTest.test_random_events_cost_no_attempt --events 100 --seed 1
"""

import argparse
import collections
import random
import sys
import time

from tests.cluster.node.training_case import ENDLESS, TrainingCase, bit_exact_job, template
from tests.cluster.testing.cluster import say, wait_for
from tools import unittest_main

# Bounds on a machine with one runnable process per core; see TrainingCase.assert_within.
REPLACED = 5  # until a new worker contributes, beyond its pod's own start
STOPPED = 1.5  # for which the other workers pause
STOPPED_BY_A_LOST_NODE = 6
RESTORED = 10  # until steps continue after the loss of a shard or the coordinator, beyond its pod's own start


ARGUMENTS = argparse.ArgumentParser()
ARGUMENTS.add_argument('--events', type=int, default=4)
ARGUMENTS.add_argument('--seed', type=int, default=1)


class FailuresTest(TrainingCase):
    arguments = ARGUMENTS.parse_args([])

    def test_dead_workers_are_replaced_without_loss(self):
        job = bit_exact_job('disturbed', ENDLESS, slow=0.003)
        self.wrap_workers(job)
        self.apply(job)
        self.wait_for_steps('disturbed', 200)
        worker = 'disturbed-worker-1'
        own_start = self.own_start(worker)
        times = {}
        for what, act in {
            'pod deleted': lambda: self.kubectl('delete', 'pod', worker, '--wait=false'),
            'exit code 1': lambda: self.end_with_1(worker),
            'killed (137)': lambda: self.kill_inside(worker, 'SIGKILL'),
        }.items():
            times[what] = self.disturb(what, 'disturbed', worker, act, 'worker-0')
        with self.memory_taken(worker):
            times['out of memory'] = self.disturb('out of memory', 'disturbed', worker, lambda: None, 'worker-0')
        for what, (replaced, stopped) in times.items():
            with self.subTest(what):
                self.assert_within(replaced, REPLACED, own_start)
                self.assert_within(stopped, STOPPED)
        ends = [(one['reason'], one.get('exitCode')) for one in self.status('disturbed')['lastFailures']]
        self.assertEqual(ends[:3], [('OOMKilled', 137), ('Killed', 137), ('Error', 1)])
        self.assertEqual([reason for reason, _ in ends[3:]], ['Deleted'])
        self.assert_equals_undisturbed('disturbed')

    def test_shards_and_the_coordinator_are_replaced_within_the_attempt(self):
        job = bit_exact_job('job', ENDLESS, slow=0.002)
        self.apply(job)
        self.wait_for_steps('job', 1200)
        own_start = self.own_start('job-ps-1')
        for what, pod in (('deleted', 'job-ps-1'), ('killed', 'job-ps-0'), ('deleted', 'job-coordinator')):
            wait_for('every partition has two copies', lambda: self.metric('job-coordinator', 'sluice_missing_copies') == 0, 60)
            before = self.pod(pod)['metadata']['uid']
            began, clock, here = time.monotonic(), time.time(), self.metric('job-coordinator', 'sluice_step') or 0
            if what == 'killed':
                self.kill_inside(pod, 'SIGKILL')
            else:
                self.kubectl('delete', 'pod', pod, '--wait=false')
            wait_for('steps continue', lambda: (self.metric('job-coordinator', 'sluice_step') or 0) > here, 90)
            took = time.monotonic() - began
            wait_for(f'{pod} has a successor', lambda: (self.pod(pod) or {'metadata': {'uid': before}})['metadata']['uid'] != before and
                     self.is_ready(pod), 60)
            say(f'{pod} {what}: steps continue after {took:.1f} s (the container of its successor began after '
                f'{self.started(pod) - clock:.0f} s)')
            with self.subTest(pod):
                self.assert_within(took, RESTORED, own_start)
            self.assertEqual(self.attempt('job'), 1)
        self.assert_equals_undisturbed('job')
        self.assertEqual(self.status('job')['attempt'], 1)

    def test_random_events_cost_no_attempt(self):
        job = bit_exact_job('events', ENDLESS, workers=3, slow=0.003)
        sizes = {'ps': 3, 'worker': 3}
        job['spec']['parameterServer']['replicas'] = 3
        self.apply(job)
        self.wait_for_steps('events', 100)
        choice = random.Random(self.arguments.seed)
        done = collections.Counter()
        for number in range(self.arguments.events):
            self.wait_until_whole('events', sizes)
            here = self.metric('events-coordinator', 'sluice_step') or 0
            role = choice.choice(('worker', 'ps', 'coordinator'))
            act = choice.choice(('delete', 'SIGKILL', 'SIGSTOP', 'SIGTERM') + (() if role == 'coordinator' else ('scale', 'scale')))
            if act == 'scale':
                sizes[role] = choice.choice([size for size in range(2, 6) if size != sizes[role]])
                change = {'worker': 'worker', 'ps': 'parameterServer'}[role]
                self.change('events', {change: {'replicas': sizes[role]}})
                what = f'{sizes[role]} {role}'
            else:
                pod = 'events-coordinator' if role == 'coordinator' else f'events-{role}-{choice.randrange(sizes[role])}'
                before = self.pod(pod)['metadata']['uid']
                if act == 'delete':
                    self.kubectl('delete', 'pod', pod, '--wait=false')
                else:
                    self.kill_inside(pod, act)
                wait_for(f'{pod} has a successor', lambda p=pod, b=before: (self.pod(p) or {'metadata': {'uid': b}})['metadata']['uid'] != b,
                         120)
                what = f'{act} {pod}'
            wait_for(f'steps continue after event {number}, {what}',
                     lambda h=here: (self.metric('events-coordinator', 'sluice_step') or 0) > h, 120)
            done[f'{act} {role}'] += 1
        self.wait_until_whole('events', sizes)
        say(f'{sum(done.values())} events by step {self.metric("events-coordinator", "sluice_step"):.0f}: '
            f'{", ".join(f"{count} x {name}" for name, count in sorted(done.items()))}')
        self.assertEqual(self.attempt('events'), 1)
        self.assert_equals_undisturbed('events')

    def wait_until_whole(self, job, sizes):
        """Every process takes part, and every partition has two whole copies: one more death costs no step."""
        def is_whole():
            names = [f'{job}-{role}-{index}' for role, count in sizes.items() for index in range(count)] + [f'{job}-coordinator']
            members = [name for name in names if '-worker-' in name and self.metric(name, 'sluice_member') == 1]
            return (set(self.pods(job)) == set(names) and all(self.is_ready(name) for name in names) and len(members) == sizes['worker'] and
                    self.metric(f'{job}-coordinator', 'sluice_missing_copies') == 0)
        wait_for(f'{job} is whole with {sizes}', is_whole, 180)

    def test_a_worker_that_runs_out_of_memory_is_reported(self):
        job = bit_exact_job('hungry', ENDLESS, workers=1)
        job['spec']['worker']['template'] = template('worker', '24Mi')
        job['spec']['worker']['template']['spec']['containers'][0]['resources']['requests']['memory'] = '24Mi'
        self.apply(job)
        failure = wait_for('the death is reported', lambda: self.status('hungry').get('lastFailures'), 60)[0]
        self.assertEqual((failure['reason'], failure['role']), ('OOMKilled', 'worker'))
        self.assertIn('memory', failure['message'] + self.kubectl('describe', 'stj', 'hungry'))

    # ---- lost nodes

    def on_two_nodes(self, name, steps, **more):
        """A job with a worker on each node and all else on the first; returns the worker on the second, and the other."""
        job = bit_exact_job(name, steps, **more)
        for role in ('coordinator', 'parameterServer'):
            job['spec'][role]['template']['spec']['nodeSelector'] = {'kubernetes.io/hostname': f'{self.cluster.name}-n1'}
        self.spread(job, worker='worker')
        self.apply(job)
        self.wait_for_steps(name, 200)
        on = {pod: value['spec']['nodeName'].rpartition('n')[2] for pod, value in self.pods(name).items() if '-worker-' in pod}
        self.assertEqual(sorted(on.values()), ['1', '2'])
        victim, other = sorted(on, key=on.get, reverse=True)
        return victim, other[len(name) + 1:]

    @staticmethod
    def spread(job, **roles):
        """Spreads the pods of each role over the nodes, as far as possible; `roles`: their labels by field of the spec."""
        for field, role in roles.items():
            job['spec'][field]['template']['spec']['topologySpreadConstraints'] = [{
                'maxSkew': 1, 'topologyKey': 'kubernetes.io/hostname', 'whenUnsatisfiable': 'ScheduleAnyway',
                'labelSelector': {'matchLabels': {'sluice.dev/training-job': job['metadata']['name'], 'sluice.dev/role': role}}}]

    def test_pods_that_are_stopped_together_cost_no_attempt(self):
        node = f'{self.cluster.name}-n2'
        sizes = {'ps': 3, 'worker': 2}
        job = bit_exact_job('drained', ENDLESS, slow=0.003)
        job['spec']['parameterServer']['replicas'] = sizes['ps']
        job['spec']['coordinator']['template']['spec']['affinity'] = {'nodeAffinity': {
            'preferredDuringSchedulingIgnoredDuringExecution': [{'weight': 100, 'preference': {'matchExpressions': [
                {'key': 'kubernetes.io/hostname', 'operator': 'In', 'values': [node]}]}}]}}
        self.spread(job, parameterServer='ps', worker='worker')
        self.apply(job)
        self.wait_for_steps('drained', 200)
        self.wait_until_whole('drained', sizes)
        there = [name for name, pod in self.pods('drained').items() if pod['spec']['nodeName'] == node]
        self.assertEqual({name.split('-')[1] for name in there}, {'coordinator', 'ps', 'worker'}, there)
        here = self.metric('drained-coordinator', 'sluice_step')
        try:
            self.cluster.kubectl('drain', node, '--ignore-daemonsets', '--delete-emptydir-data', '--force', '--timeout=120s', timeout=130)
            self.wait_until_whole('drained', sizes)
            self.wait_for_steps('drained', here + 200)
            self.assertEqual({pod['spec']['nodeName'] for pod in self.pods('drained').values()}, {f'{self.cluster.name}-n1'})
        finally:
            self.cluster.kubectl('uncordon', node)
        say(f'{", ".join(sorted(there))} moved in {self.metric("drained-coordinator", "sluice_step") - here:.0f} steps')
        self.assertEqual(self.attempt('drained'), 1)

        # A drain evicts one pod at a time (the PodDisruptionBudget). A node that shuts down stops all its pods at once.
        stopped = ('drained-coordinator', 'drained-ps-0', 'drained-ps-2', 'drained-worker-1')
        before = [self.pod(name)['metadata']['uid'] for name in stopped]
        self.kubectl('delete', 'pod', *stopped, '--wait=false')
        wait_for('all have successors', lambda: all(
            (self.pod(name) or {'metadata': {'uid': uid}})['metadata']['uid'] != uid for name, uid in zip(stopped, before)), 120)
        self.wait_until_whole('drained', sizes)
        self.assertEqual(self.attempt('drained'), 1)

        # A job that is suspended while it has no coordinator gets one, which saves its steps.
        here = self.metric('drained-coordinator', 'sluice_step')
        self.kubectl('delete', 'pod', 'drained-coordinator', '--grace-period=0', '--force')
        self.assert_equals_undisturbed('drained')
        status = self.status('drained')
        self.assertEqual(status['attempt'], 1)
        self.assertGreaterEqual(status['checkpoint']['step'], here)

    def wait_for_node(self):
        self.kubectl('wait', f'node/{self.cluster.name}-n2', '--for=condition=Ready', '--timeout=90s')

    def test_pods_of_a_node_without_power_move(self):
        victim, other = self.on_two_nodes('power', ENDLESS, slow=0.003)
        try:
            replaced, stopped = self.disturb('node without power', 'power', victim,
                                             lambda: self.cluster.script('node-power.sh', 2, 'off'), other)
        finally:
            self.cluster.script('node-power.sh', 2, 'on')
        self.assertLess(replaced, 60)
        self.assert_within(stopped, STOPPED_BY_A_LOST_NODE)
        self.kubectl('delete', 'stj', 'power')
        self.wait_for_node()

    def test_pods_of_a_disconnected_node_move_and_its_return_changes_nothing(self):
        victim, other = self.on_two_nodes('cut', ENDLESS, slow=0.003)
        try:
            replaced, stopped = self.disturb('node cut off', 'cut', victim,
                                             lambda: self.cluster.script('node-link.sh', 2, 'down'), other)
            self.assertLess(replaced, 60)
            self.assert_within(stopped, STOPPED_BY_A_LOST_NODE)
            self.assertEqual(self.pod(victim)['spec']['nodeName'], f'{self.cluster.name}-n1')
        finally:
            # The worker that kept running there reconnects after a new instance of its replica has joined.
            self.cluster.script('node-link.sh', 2, 'up')
        self.wait_for_node()
        failure = self.status('cut')['lastFailures'][0]
        self.assertEqual((failure['pod'], failure['reason'], failure['counted']), (victim, 'NodeLost', False))
        self.assertEqual(self.status('cut')['restarts']['total'], 1)
        self.assert_equals_undisturbed('cut')


if __name__ == '__main__':
    FailuresTest.arguments, sys.argv[1:] = ARGUMENTS.parse_known_args()
    unittest_main.main()
