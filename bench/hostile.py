#!/usr/bin/env python3
"""Measures the cost of attacks on a job: steps per second before, during and after each, and the
memory of the attacked processes.

    bazel run //bench:hostile -- --quick --check         each attack once, with TLS if possible; less than ten minutes
    bazel run //bench:hostile -- --check                 each attack on its own job; about fifteen minutes
    bazel run //bench:hostile -- --only S13 rapid --tls  attacks by number or by a word of their name

The attacks are those of tests/integration/hostile, whose tests state what must hold for a job on
any machine. This program needs a quiet machine and measures the pace: steps (or updates) per second
over `--stretch` seconds before an attack, from its beginning to its end, and over the same time
afterwards, as soon as the pace has recovered or 12 s have passed. A worker sleeps 25 ms per batch,
so the job needs little processor time. The attacker runs with the policy SCHED_IDLE and only gets
processor time that no other process uses, so the figures show what the attack makes the job's
processes do, not what the attacker itself takes from them. A hostile member is a worker of the job
and runs like one.

With --check the exit code is 1 if the pace during or after an attack falls below `--least` of the
pace before it, if a process exceeds its memory bound, if an attempt is lost, or if a job ends
differently than without attacks. The pace during an attack does not count if the attacker is one of
the job's two workers, or replaces one: the other worker waits for it until it is expelled.
"""

import argparse
import os
import pathlib
import statistics
import sys
import tempfile

from tests.integration.hostile import cases
from tests.python import job_processes


def _open_arena(directory, tls, options, sluice):
    certificates = cases.certify(sluice, directory / 'tls') if tls else None
    return cases.Arena(directory, certificates, options.stretch)


def _measure(case, tls, options, sluice, shared):
    if shared is not None:
        return [shared.run(case) for _ in range(options.rounds)]
    outcomes = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as directory:
            arena = _open_arena(pathlib.Path(directory), tls, options, sluice)
            outcome = arena.run(case)
            outcome.problems += arena.close()
            outcomes.append(outcome)
    return outcomes


def _ratio(outcomes, part):
    ratios = [getattr(each, part) / each.before for each in outcomes if each.before > 0]
    return statistics.median(ratios) if ratios else 0.0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--only', nargs='+', default=[], help='numbers of attacks, or words of their names')
    parser.add_argument('--rounds', type=int, default=1, help='rounds of each attack; medians are shown')
    parser.add_argument('--stretch', type=float, default=3.0, help='seconds for which the pace is measured')
    parser.add_argument('--least', type=float, default=0.8, help='minimum pace during and after an attack, as a fraction of the pace before')
    parser.add_argument('--check', action='store_true', help='exit with 1 if something is wrong')
    parser.add_argument('--quick', action='store_true', help='run each attack once, as many as possible on one job')
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument('--plain', action='store_true', help='only in plain text')
    kinds.add_argument('--tls', action='store_true', help='only with TLS')
    options = parser.parse_args()
    # The runfiles, if Bazel has put the programs beside this file.
    os.environ.setdefault('SLUICE_PROGRAMS', str(pathlib.Path(__file__).absolute().parent.parent))
    sluice = str(pathlib.Path(job_processes.program('ps')).parents[2] / 'cli/sluice')
    print('| attack | | steps/s before | during | after | coordinator, MiB | shards, MiB | |\n|---|---|---|---|---|---|---|---|')
    wrong = 0
    for tls in (True, False):
        if (tls and options.plain) or (not tls and options.tls):
            continue
        wanted = [case for case in cases.CASES if tls in case.tls and _is_wanted(case, options.only)
                  and not (options.quick and not tls and True in case.tls and not options.plain)]
        with tempfile.TemporaryDirectory() as directory:
            shared = _open_arena(pathlib.Path(directory), tls, options, sluice) if options.quick else None
            for case in wanted:
                wrong += _print_row(case, tls, _measure(case, tls, options, sluice, shared), options)
            for problem in shared.close() if shared else ():
                wrong += 1
                print(problem, file=sys.stderr)
    return 1 if options.check and wrong else 0


def _print_row(case, tls, outcomes, options):
    """Prints a line of the table; returns whether there is a problem."""
    during, after = _ratio(outcomes, 'during'), _ratio(outcomes, 'after')
    problems = [problem for each in outcomes for problem in each.problems]
    slow = after < options.least or (case.paced and during < options.least)
    memory = {}
    for each in outcomes:
        for name, mib in each.memory_mib.items():
            memory[name] = max(memory.get(name, 0), mib)
    shards = [mib for name, mib in memory.items() if name != 'coordinator']
    print(f'| {case.number} {case.name.replace("_", " ")} | {"TLS" if tls else "plain"} '
          f'| {statistics.median(each.before for each in outcomes):.1f} '
          f'| {100 * during:.0f} % | {100 * after:.0f} % | {memory.get("coordinator", 0)} | {max(shards, default=0)} '
          f'| {problems[0] if problems else "too slow" if slow else ""} |', flush=True)
    for problem in problems:
        print(problem, file=sys.stderr)
    return bool(problems or slow)


def _is_wanted(case, only):
    return not only or any(word == case.number or (word not in _NUMBERS and word in case.name) for word in only)


_NUMBERS = {case.number for case in cases.CASES}


if __name__ == '__main__':
    sys.exit(main())
