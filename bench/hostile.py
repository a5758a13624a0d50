#!/usr/bin/env python3
"""What attacks cost a job: steps a second before, during and after each, and the memory of what is attacked.

    bazel run //bench:hostile                            all attacks, in plain text and with TLS; some fifteen minutes
    bazel run //bench:hostile -- --only S13 rapid --tls  those of a number, or with a word in the name

The attacks are those of tests/integration/hostile, which says what must hold of a job in any case. Here the machine is to be quiet,
and the pace may drop by a fifth (`--least 0.8`) during and after an attack; with --check the exit code is 1 where it drops further,
or something else is wrong. Workers take 25 ms a batch, asleep: so it is the waiting for others that shows, and on a machine of few
cores what the attacker itself takes of them too.
"""

import argparse
import os
import pathlib
import statistics
import sys
import tempfile

from tests.integration.hostile import cases
from tests.python import job_processes


def _measure(case, tls, options, sluice):
    outcomes = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            certificates = cases.certify(sluice, folder / 'tls') if tls else None
            arena = cases.Arena(folder, certificates, options.stretch)
            outcome = arena.run(case)
            outcome.problems += arena.close()
            outcomes.append(outcome)
    return outcomes


def _ratio(outcomes, part):
    ratios = [getattr(each, part) / each.before for each in outcomes if each.before > 0]
    return statistics.median(ratios) if ratios else 0.0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--only', nargs='+', default=[], help='numbers of the review, or words of names')
    parser.add_argument('--rounds', type=int, default=1, help='of each; medians are shown')
    parser.add_argument('--stretch', type=float, default=3.0, help='seconds for which the pace is measured')
    parser.add_argument('--least', type=float, default=0.8, help='of the pace before, during and after an attack')
    parser.add_argument('--check', action='store_true', help='exit with 1 if something is wrong')
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument('--plain', action='store_true', help='in plain text alone')
    kinds.add_argument('--tls', action='store_true', help='with TLS alone')
    options = parser.parse_args()
    # The runfiles, where Bazel has put the programs beside this file.
    os.environ.setdefault('SLUICE_PROGRAMS', str(pathlib.Path(__file__).absolute().parent.parent))
    sluice = str(pathlib.Path(job_processes.program('cli')).with_name('sluice'))
    print('| attack | | steps/s before | during | after | coordinator, MiB | shards, MiB | |\n|---|---|---|---|---|---|---|---|')
    wrong = 0
    for tls in (False, True):
        if (tls and options.plain) or (not tls and options.tls):
            continue
        for case in cases.CASES:
            if tls not in case.tls or not _is_wanted(case, options.only):
                continue
            outcomes = _measure(case, tls, options, sluice)
            during, after = _ratio(outcomes, 'during'), _ratio(outcomes, 'after')
            problems = [problem for each in outcomes for problem in each.problems]
            slow = after < options.least or (case.paced and during < options.least)
            wrong += bool(problems or slow)
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
    return 1 if options.check and wrong else 0


def _is_wanted(case, only):
    return not only or any(word == case.number or (word not in _NUMBERS and word in case.name) for word in only)


_NUMBERS = {case.number for case in cases.CASES}


if __name__ == '__main__':
    sys.exit(main())
