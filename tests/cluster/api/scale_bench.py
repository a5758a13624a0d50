"""Measures how fast the operator makes pods, compared with the cluster alone in the same run, and the cost of many idle jobs.

    bazel run //tests/cluster/api:scale_bench -- [--jobs 100] [--pods 100] [--idle 1000] [--training 20] [--seconds 120]

It exits with 1 if idle jobs exceed their bounds, or if jobs of 100 pods or more get them at less than 0.8 of the rate of the
cluster alone. It starts its own cluster of simulated nodes. 100 jobs of 100 pods take six minutes on two cores; other
programs on the machine slow it down, so it prints the load with the figures.
"""

import argparse
import contextlib
import os
import sys

from tests.cluster.api import scale
from tests.cluster.api.operator_case import API_SERVER
from tests.cluster.testing.cluster import Cluster, conditions, say, wait_for
from tests.cluster.testing.operator_process import ACCOUNT, NAMESPACE, Coordinators, Operator, install_chart, kubeconfig

LEAST_SHARE = 0.8
LARGE_JOB = 100  # pods; in smaller jobs the fixed cost of a job weighs more


def load():
    return f'load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores'


def measure_rates(cluster, operator, jobs, pods, alone_pods):
    """Whether the operator makes pods fast enough."""
    cluster.api.create('namespaces', {'metadata': {'name': 'rates'}})
    watcher = scale.Watcher(cluster, 'rates')
    processors = scale.ProcessorTime(cluster)
    rate = scale.job_pods_per_second(cluster, 'rates', jobs, pods, watcher)
    wait_for('every job trains', lambda: all(conditions(job).get('Running') == 'True' for job in cluster.api.list(
        'trainingjobs', 'rates')), 600, every=2)
    spent = processors.since()
    metrics = scale.OperatorMetrics(cluster)
    say(f'jobs: {jobs * pods} pods, {watcher.made} made, {len(watcher.doubled)} doubled, {rate:.1f} pods/s; {load()}')
    say(f'  pods that ended: {scale.ends_of_pods(cluster, "rates") or "none"}')
    for what in ('reconcile_seconds', 'queue_wait_seconds'):
        say(f'  {what}: 50 in 100 at most {metrics.quantile(f"sluice_operator_{what}", 0.5):.3f}, 99 in 100 at most '
            f'{metrics.quantile(f"sluice_operator_{what}", 0.99):.3f}')
    for verb, resource, code, count in metrics.requests():
        if verb != 'watch':
            say(f'  {verb} {resource}: {count} answered with {code}')
    say('  requests took, in the mean: ' + ', '.join(f'{verb} {1000 * metrics.mean_seconds(verb):.1f} ms' for verb in ('create', 'patch', 'update')))
    say(f'  the operator has {scale.memory_mib(operator.process.pid):.0f} MiB and took {scale.cpu_seconds(operator.process.pid):.1f} s of CPU')
    watcher.end()
    like = scale.pod_spec_like(cluster.api.get('pods', 'rates', 'job-0-worker-0'))
    cluster.api.create('namespaces', {'metadata': {'name': 'plain'}})
    wait_for('the default service account', lambda: cluster.api.get('serviceaccounts', 'plain', 'default'))
    processors.since()
    plain = scale.plain_pods_per_second(cluster, 'plain', alone_pods, like)
    say(f'the cluster alone: {plain:.1f} pods/s of {alone_pods}; {load()}. The operator reaches {rate / plain:.2f} of it')
    alone = processors.since()
    for what, times in (('with the operator', spent), ('the cluster alone', alone)):
        say(f'  seconds of processors, {what}: {sum(times.values()):.1f}: ' + ', '.join(f'{name} {one:.1f}' for name, one in times.items()))
    share = sum(alone.values()) / alone_pods / (sum(spent.values()) / (jobs * pods))
    say(f'  by these, the operator reaches {share:.2f} of it')
    enough = pods < LARGE_JOB or rate >= LEAST_SHARE * plain
    if not enough:
        say(f'jobs of {pods} pods should get them at {LEAST_SHARE} of the rate of the cluster alone, or more')
    return enough


def measure_idle(cluster, operator, jobs, training, seconds):
    """Whether the operator takes as little as it should."""
    cluster.api.create('namespaces', {'metadata': {'name': 'idle'}})
    mib, cores = scale.footprint(cluster, 'idle', operator.process.pid, jobs, training, seconds)
    say(f'{jobs} jobs of which {training} train: {mib:.0f} MiB (at most {scale.MOST_MIB}), {cores:.3f} cores (at most {scale.MOST_CORES}) '
        f'over {seconds} s; {load()}')
    return mib <= scale.MOST_MIB and cores <= scale.MOST_CORES


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--jobs', type=int, default=100)
    parser.add_argument('--pods', type=int, default=100, help='pods of each job; with --jobs 0, rates are not measured')
    parser.add_argument('--alone', type=int, default=0, help='pods that are created without an operator; 0: as many as all jobs have')
    parser.add_argument('--idle', type=int, default=1000, help='number of existing jobs; 0: not measured')
    parser.add_argument('--training', type=int, default=20, help='how many of these jobs train')
    parser.add_argument('--seconds', type=int, default=120, help='how long idle jobs are measured')
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(Cluster(
            simulated=scale.nodes_for(max(arguments.jobs * arguments.pods, 4 * arguments.training)), flags=scale.STEADY_NODES))
        install_chart(cluster)
        token = cluster.kubectl('create', 'token', ACCOUNT, '-n', NAMESPACE, '--duration', '4h').strip()
        config = kubeconfig(cluster, 'operator', API_SERVER, token)
        stack.enter_context(Coordinators(cluster))
        operator = stack.enter_context(Operator(cluster, config, metrics_port=scale.METRICS_PORT))
        small = not arguments.idle or measure_idle(cluster, operator, arguments.idle, arguments.training, arguments.seconds)
        alone = arguments.alone or arguments.jobs * arguments.pods
        quick = not arguments.jobs or measure_rates(cluster, operator, arguments.jobs, arguments.pods, alone)
    return 0 if small and quick else 1


if __name__ == '__main__':
    sys.exit(main())
