"""Many jobs: ten of twenty pods each, applied at once, get each pod once; 200 jobs cost the operator little. scale_bench.py measures
more."""

import pathlib

from tests.cluster.api import scale
from tests.cluster.api.operator_case import OperatorCase
from tests.cluster.testing.cluster import conditions, say, wait_for
from tests.cluster.testing.operator_process import Operator
from tools import unittest_main

JOBS = 10
PODS = 20
IDLE_JOBS = 200
TRAINING_JOBS = 10


class ScaleTest(OperatorCase):

    SIMULATED = scale.nodes_for(JOBS * PODS)

    def test_concurrent_jobs_get_each_pod_exactly_once(self):
        operator = self.enterContext(Operator(self.cluster, self.kubeconfig, metrics_port=scale.METRICS_PORT))
        watcher = scale.Watcher(self.cluster, self.namespace)
        rate = scale.job_pods_per_second(self.cluster, self.namespace, JOBS, PODS, watcher, seconds=300)

        # The counts in a status are up to a second old.
        wait_for('every job trains with all its workers', lambda: all(
            conditions(job).get('Running') == conditions(job).get('Ready') == 'True' and job['status']['worker']['readyReplicas'] == PODS - 3
            for job in self.api.list('trainingjobs', self.namespace)), 120)
        jobs = self.api.list('trainingjobs', self.namespace)
        self.assertEqual(len(jobs), JOBS)
        for job in jobs:
            self.assertNotIn('restarts', job['status'])
        self.assertEqual((watcher.made, watcher.doubled), (JOBS * PODS, []))

        metrics = scale.OperatorMetrics(self.cluster)
        # A repeated create request would not make a second pod, but there is no reason to send one.
        self.assertEqual(metrics.total('sluice_operator_api_requests_total', verb='create', resource='pods', code='201'), JOBS * PODS)
        self.assertEqual(metrics.total('sluice_operator_reconcile_errors_total'), 0)
        self.assertEqual(scale.ends_of_pods(self.cluster, self.namespace), {})

        like = scale.pod_spec_like(self.pods('job-0', 'worker')['job-0-worker-0'])
        plain = scale.plain_pods_per_second(self.cluster, self.namespace, JOBS * PODS, like, seconds=300)
        p99 = metrics.quantile('sluice_operator_reconcile_seconds', 0.99)
        say(f'{rate:.0f} pods/s for jobs, {plain:.0f} pods/s for the cluster alone; 99 % of reconciliations take at most {p99:.3f} s, '
            f'creating a pod takes {1000 * metrics.mean_seconds("create"):.0f} ms on average; '
            f'the operator uses {scale.memory_mib(operator.process.pid):.0f} MiB; '
            f'load {pathlib.Path("/proc/loadavg").read_text().split()[0]}')

    def test_idle_jobs_cost_little(self):
        operator = self.enterContext(Operator(self.cluster, self.kubeconfig, 'idle-operator'))
        mib, cores = scale.footprint(self.cluster, self.namespace, operator.process.pid, IDLE_JOBS, TRAINING_JOBS, seconds=20)
        say(f'{IDLE_JOBS} jobs, {TRAINING_JOBS} of them training: {mib:.0f} MiB, {cores:.3f} cores')
        self.assertLessEqual(mib, scale.MOST_MIB)
        self.assertLessEqual(cores, scale.MOST_CORES)


if __name__ == '__main__':
    unittest_main.main()
