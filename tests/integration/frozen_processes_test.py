"""Processes that freeze, die or receive SIGTERM: whichever processes are hit, the job ends by itself, and with the same bytes.

Each schedule is a job of its own under `sluice run` (BitExact, three workers), disturbed by signals and compared byte by byte with the
undisturbed job. The test runs all schedules of the table, and --random random ones (permanent freezes among them) from --seed on, or 100 of
them with --full. --only=NAME runs one alone, by its name in the table or as random-SEED. CONTRIBUTING.md shows how to pass these flags.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import typing
import unittest

from tools import unittest_main

PROGRAMS = os.environ.get('SLUICE_TEST_PROGRAMS', os.path.abspath('.'))
SLUICE = os.path.join(PROGRAMS, 'cli', 'sluice')

STEPS = 60
STEP_S = 0.02
INTERVAL = 10  # steps between two checkpoints
WORKERS = 3
# Seconds within which every job ends on a busy machine. By the job's own timers a schedule needs far less: SILENCE + 2 s for each process
# frozen one after the other, START for a process that is frozen before it registers.
PATIENCE_S = 120
SILENCE_S = 2
START_S = 15

STOP, CONT, KILL, TERM = signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL, signal.SIGTERM
W = [f'worker-{i}' for i in range(WORKERS)]
PARENT = 'parent'
COORDINATOR = 'coordinator'


def manifest(shards, long_evaluation):
    # At its end the job evaluates all held-out samples; a long evaluation takes a second or two.
    evaluation = {'maxSamples': 500000} if long_evaluation else {'intervalSteps': 20}
    return {
        'apiVersion': 'sluice.dev/v1alpha1',
        'kind': 'TrainingJob',
        'metadata': {'name': 'frozen'},
        'spec': {
            'model': {'name': 'mlp', 'dimensions': {'hidden': 16}},
            'data': {
                'format': 'Synthetic',
                'synthetic': {'samples': 512, 'shape': [16], 'classes': 4},
                'evaluation': evaluation,
            },
            'optimizer': {'name': 'Adam', 'learningRate': 0.01},
            'training': {'steps': STEPS, 'globalBatchSize': 16, 'microbatchSize': 2, 'determinism': 'BitExact'},
            'debug': {'stepDelaySeconds': STEP_S},
            'parameterServer': {'replicas': shards, 'partitions': 8},
            'worker': {'replicas': WORKERS},
            'checkpoint': {'intervalSteps': INTERVAL},
            'backoffLimit': 100,
            'timeouts': {
                'heartbeatSeconds': 0.2, 'suspectSeconds': 0.5, 'heartbeatTimeoutSeconds': SILENCE_S, 'pauseSeconds': 2, 'evaluationSeconds': 20,
                'suspendCheckpointSeconds': 10, 'startSeconds': START_S,
            },
        },
    }


# ---- what the schedules do, and when


@dataclasses.dataclass
class Act:
    """A signal to some processes."""
    signal: int
    names: typing.Sequence[str]
    # Seconds after the moment in `when`.
    after: float = 0
    # A step; 'checkpoint': files of a checkpoint are being written; ('start', name): the process's next instance has begun; None: directly
    # after the previous act.
    when: typing.Any = None


@dataclasses.dataclass
class Schedule:
    name: str
    acts: typing.Sequence[Act]
    shards: int = 2
    long_evaluation: bool = False


def at(when, number, *names, after=0.0):
    return Act(number, names, after, when)


def then(number, *names, after=0.0):
    return Act(number, names, after)


def table():
    middle = 20
    return [
        # Workers.
        Schedule('worker killed', [at(middle, KILL, W[0])]),
        Schedule('two workers killed at once', [at(middle, KILL, W[0], W[1])], shards=3),
        Schedule('all workers killed at once', [at(middle, KILL, *W)]),
        Schedule('workers killed one after the other', [at(10, KILL, W[0]), at(20, KILL, W[1]), at(30, KILL, W[2])]),
        Schedule('worker frozen for good', [at(middle, STOP, W[1])]),
        Schedule('worker frozen for a moment', [at(middle, STOP, W[1]), then(CONT, W[1], after=0.5)], shards=3),
        Schedule('worker frozen for longer than its heartbeat timeout', [at(middle, STOP, W[1]), then(CONT, W[1], after=SILENCE_S + 1)]),
        Schedule('all workers frozen for good', [at(middle, STOP, *W)]),
        Schedule('worker frozen for good while it starts', [at(('start', W[2]), STOP, W[2])]),
        Schedule('worker frozen for good a moment after its start', [at(('start', W[0]), STOP, W[0], after=0.7)]),
        Schedule('all workers frozen for good while they start', [at(('start', W[2]), STOP, *W)]),
        Schedule('successor of a dead worker frozen for good while it starts', [at(middle, KILL, W[0]), at(('start', W[0]), STOP, W[0])]),
        # Shards.
        Schedule('shard killed', [at(middle, KILL, 'ps-0')]),
        Schedule('all shards killed at once', [at(middle, KILL, 'ps-0', 'ps-1', 'ps-2')], shards=3),
        Schedule('shard frozen for good', [at(middle, STOP, 'ps-1')]),
        Schedule('shard frozen for longer than its heartbeat timeout', [at(middle, STOP, 'ps-1'), then(CONT, 'ps-1', after=SILENCE_S + 1)], shards=3),
        Schedule('all shards frozen for good', [at(middle, STOP, 'ps-0', 'ps-1')]),
        Schedule('shard frozen for good while it starts', [at(('start', 'ps-1'), STOP, 'ps-1')]),
        # The coordinator.
        Schedule('coordinator killed', [at(middle, KILL, COORDINATOR)]),
        Schedule('coordinator killed twice', [at(15, KILL, COORDINATOR), at(40, KILL, COORDINATOR)], shards=3),
        Schedule('coordinator frozen for good', [at(middle, STOP, COORDINATOR)]),
        Schedule('coordinator frozen for a while', [at(middle, STOP, COORDINATOR), then(CONT, COORDINATOR, after=SILENCE_S)]),
        Schedule('coordinator frozen for good while it starts', [at(('start', COORDINATOR), STOP, COORDINATOR)]),
        # Several kinds of processes.
        Schedule('shard frozen for good, then the coordinator killed', [at(middle, STOP, 'ps-0'), then(KILL, COORDINATOR, after=0.3)]),
        Schedule('worker frozen for good, then the coordinator killed', [at(middle, STOP, W[0]), then(KILL, COORDINATOR, after=0.3)]),
        Schedule('worker, shard and coordinator killed at once', [at(middle, KILL, W[0], 'ps-0', COORDINATOR)]),
        Schedule('worker, shard and coordinator frozen for good', [at(middle, STOP, W[0], 'ps-0', COORDINATOR)], shards=3),
        Schedule('all processes but the parent frozen for good', [at(middle, STOP, COORDINATOR, 'ps-0', 'ps-1', *W)]),
        # At special moments.
        Schedule('shard killed while a checkpoint is written', [at('checkpoint', KILL, 'ps-0')]),
        Schedule('shard frozen for good while a checkpoint is written', [at('checkpoint', STOP, 'ps-1')], shards=3),
        Schedule('coordinator killed while a checkpoint is written', [at('checkpoint', KILL, COORDINATOR)]),
        Schedule('worker killed in the last evaluation', [at(STEPS, KILL, W[0], after=0.05)], long_evaluation=True),
        Schedule('all workers frozen for good in the last evaluation', [at(STEPS, STOP, *W, after=0.05)], long_evaluation=True),
        Schedule('coordinator frozen for good in the last evaluation', [at(STEPS, STOP, COORDINATOR, after=0.05)], long_evaluation=True),
        Schedule('shard frozen for good at the end', [at(STEPS, STOP, 'ps-0')]),
        # The parent.
        Schedule('parent killed', [at(middle, KILL, PARENT)]),
        Schedule('parent frozen for a while', [at(middle, STOP, PARENT), then(CONT, PARENT, after=2 * SILENCE_S + 3)]),
        Schedule('parent frozen for a while, the coordinator meanwhile for good', [
            at(middle, STOP, PARENT), then(STOP, COORDINATOR), then(CONT, PARENT, after=SILENCE_S)]),
        # SIGTERM.
        Schedule('SIGTERM to a worker', [at(middle, TERM, W[0])]),
        Schedule('SIGTERM to a worker while it starts', [at(('start', W[0]), TERM, W[0])]),
        Schedule('SIGTERM to all workers at once', [at(middle, TERM, *W)]),
        Schedule('SIGTERM to all workers at once in the last evaluation', [at(STEPS, TERM, *W, after=0.05)], long_evaluation=True),
        Schedule('SIGTERM to a shard', [at(middle, TERM, 'ps-0')]),
        Schedule('SIGTERM to a shard while it starts', [at(('start', 'ps-0'), TERM, 'ps-0')]),
        Schedule('SIGTERM to all shards at once', [at(middle, TERM, 'ps-0', 'ps-1', 'ps-2')], shards=3),
        Schedule('SIGTERM to a shard at the end', [at(STEPS, TERM, 'ps-1')]),
        Schedule('SIGTERM to the coordinator', [at(middle, TERM, COORDINATOR)]),
        Schedule('SIGTERM to the coordinator at the end', [at(STEPS, TERM, COORDINATOR)]),
        Schedule('SIGTERM to all processes but the parent', [at(middle, TERM, COORDINATOR, 'ps-0', 'ps-1', *W)]),
        # Many faults.
        Schedule('eight random kills', random_acts(random.Random(8), 2, 8, [KILL])),
    ]


def random_acts(source, shards, count, kinds):
    names = [COORDINATOR, *(f'ps-{i}' for i in range(shards)), *W]
    acts = []
    for when in sorted(source.choices([*range(1, STEPS), STEPS, 'checkpoint', 'start'], k=count), key=lambda w: w if isinstance(w, int) else 0):
        name = source.choice(names)
        kind = source.choice(kinds)
        if when == 'start':
            when = ('start', name)
        acts.append(Act(kind, [name], round(source.uniform(0, 0.3), 3), when))
        if kind == STOP and source.random() < 0.3:
            acts.append(Act(CONT, [name], round(source.uniform(0.1, SILENCE_S + 2), 2)))
    return acts


def random_schedule(seed):
    source = random.Random(seed)
    shards = source.choice([2, 3])
    return Schedule(f'random-{seed}', random_acts(source, shards, source.randint(1, 3), [STOP, STOP, KILL, TERM]), shards)


# ---- a run


class Run:
    """A job under `sluice run`, and its output."""

    def __init__(self, directory, schedule):
        self.directory = directory
        self.schedule = schedule
        self.pids = {}
        self.instances = collections.Counter()
        self.summary = None
        self.codes = []
        self.changed = threading.Condition()
        self.process = None
        self.thread = None
        (directory / 'job.yaml').write_text(json.dumps(manifest(schedule.shards, schedule.long_evaluation)))

    @property
    def checkpoints(self):
        return self.directory / 'state' / 'frozen' / 'checkpoints'

    def start(self):
        output = open(self.directory / 'stderr', 'ab')
        self.process = subprocess.Popen(
            [SLUICE, 'run', 'job.yaml', '--output', 'json', '--bin-dir', PROGRAMS, '--state-dir', 'state'], cwd=self.directory,
            stdout=subprocess.PIPE, stderr=output, text=True, start_new_session=True)
        output.close()
        self.pids[PARENT] = self.process.pid
        self.thread = threading.Thread(target=self.read, args=(self.process,), daemon=True)
        self.thread.start()

    def read(self, process):
        with open(self.directory / 'output', 'a') as log:
            for line in process.stdout:
                log.write(line)
                log.flush()
                entry = json.loads(line)
                with self.changed:
                    if entry['type'] == 'process' and entry['state'] == 'started':
                        self.pids[entry['name']] = entry['pid']
                        self.instances[entry['name']] += 1
                    elif entry['type'] == 'process':
                        self.pids.pop(entry['name'], None)
                    elif entry['type'] == 'summary':
                        self.summary = entry
                    self.changed.notify_all()
        with self.changed:
            self.changed.notify_all()

    def ended(self):
        return self.process.poll() is not None

    def wait(self, deadline, condition):
        """Whether the condition became true before the job ended or the deadline passed."""
        with self.changed:
            while not condition():
                if self.ended() or time.monotonic() > deadline:
                    return condition()
                self.changed.wait(0.02)
        return True

    def writing(self):
        """Whether a checkpoint is being written."""
        return any('-step-' in path.name and not (path / 'manifest.json').exists() for path in self.checkpoints.glob('attempt-*'))

    def saving(self):
        """The newest step that has checkpoint files; progress itself is reported only once a second."""
        return max((int(path.name.split('-step-')[1]) for path in self.checkpoints.glob('attempt-*-step-*')), default=0)

    def reached(self, act, instances):
        if act.when is None:
            return lambda: True
        if act.when == 'checkpoint':
            return self.writing
        if isinstance(act.when, tuple):
            name = act.when[1]
            # An instance that began after the last act.
            return lambda: self.instances[name] > instances[name]
        return lambda: self.saving() >= act.when // INTERVAL * INTERVAL

    def disturb(self, deadline):
        instances = collections.Counter()
        for act in self.schedule.acts:
            if not self.wait(deadline, self.reached(act, instances)):
                return
            steps = act.when % INTERVAL if isinstance(act.when, int) else 0
            time.sleep(act.after + steps * STEP_S)
            instances = collections.Counter(self.instances)
            for name in act.names:
                self.signal(name, act.signal)
            if PARENT in act.names and act.signal == KILL:
                self.codes.append(self.process.wait())
                self.thread.join()
                self.start()  # resumes

    def signal(self, name, number):
        with self.changed:
            pid = self.pids.get(name)
        if pid is None or (name == PARENT and self.ended()):
            return
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    def end(self, deadline):
        try:
            return self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self.thread.join(10)

    def files(self):
        """The bytes of the newest checkpoint's partitions, by name."""
        newest = max((path for path in self.checkpoints.glob('attempt-*-step-*') if (path / 'manifest.json').exists()),
                     key=lambda path: path.name.split('-step-')[1] + path.name, default=None)
        if newest is None:
            return None, {}
        step = int(newest.name.split('-step-')[1])
        return step, {path.name: path.read_bytes() for path in newest.glob('partition-*.safetensors')}


@dataclasses.dataclass
class Outcome:
    schedule: Schedule
    seconds: float
    code: typing.Optional[int]
    step: typing.Optional[int]
    files: dict
    directory: pathlib.Path
    restarts: int

    def text(self, reference):
        if self.code is None:
            return f'still running after {self.seconds:.0f} s'
        if self.code != 0:
            return f'ended with exit code {self.code}'
        if self.step != STEPS:
            return f'ended at step {self.step}'
        return 'same bytes' if self.files == reference else 'DIFFERENT BYTES'


def run(schedule, root):
    directory = pathlib.Path(tempfile.mkdtemp(dir=root, prefix='job-'))
    job = Run(directory, schedule)
    began = time.monotonic()
    deadline = began + PATIENCE_S
    job.start()
    job.disturb(deadline)
    code = job.end(deadline)
    step, files = job.files()
    restarts = job.summary['restarts'] if job.summary else -1
    return Outcome(schedule, time.monotonic() - began, code, step, files, directory, restarts)


def run_all(schedules, root, jobs):
    references = {}
    for shards in (2, 3):
        undisturbed = run(Schedule(f'undisturbed, {shards} shards', [], shards), root)
        if undisturbed.code != 0 or undisturbed.step != STEPS or not undisturbed.files:
            raise AssertionError(f'the undisturbed job ended with exit code {undisturbed.code}; see {undisturbed.directory}')
        references[shards] = undisturbed.files
        print(f'{undisturbed.schedule.name:<72} {undisturbed.seconds:5.1f} s', flush=True)

    bad = []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for outcome in pool.map(lambda schedule: run(schedule, root), schedules):
            text = outcome.text(references[outcome.schedule.shards])
            print(f'{outcome.schedule.name:<72} {outcome.seconds:5.1f} s  {outcome.restarts:2} restarts  {text}', flush=True)
            if text != 'same bytes':
                acts = ', '.join(f'{signal.Signals(a.signal).name} {"+".join(a.names)} at {a.when} + {a.after}' for a in outcome.schedule.acts)
                bad.append(f'{outcome.schedule.name}: {text} ({acts}); see {keep(outcome)}')
            else:
                shutil.rmtree(outcome.directory, ignore_errors=True)
    return bad


def keep(outcome):
    """The directory of the job's files after the test: a copy without the large ones in the test's outputs, if it has such a directory."""
    outputs = os.environ.get('TEST_UNDECLARED_OUTPUTS_DIR')
    if not outputs:
        return outcome.directory
    kept = pathlib.Path(outputs) / outcome.schedule.name.replace(' ', '-')
    shutil.copytree(outcome.directory, kept, ignore=shutil.ignore_patterns('partition-*', 'secret*'), dirs_exist_ok=True)
    return kept


def chosen(arguments):
    schedules = table() + [random_schedule(arguments.seed + i) for i in range(100 if arguments.full else arguments.random)]
    if arguments.only:
        known = {schedule.name: schedule for schedule in schedules}
        schedules = [known[name] if name in known else random_schedule(int(name.removeprefix('random-'))) for name in arguments.only]
    return schedules


ARGUMENTS = argparse.ArgumentParser()
ARGUMENTS.add_argument('--full', action='store_true')
ARGUMENTS.add_argument('--random', type=int, default=20)
ARGUMENTS.add_argument('--seed', type=int, default=1)
ARGUMENTS.add_argument('--jobs', type=int, default=6)
ARGUMENTS.add_argument('--only', action='append')


class FrozenProcesses(unittest.TestCase):
    arguments = ARGUMENTS.parse_args([])

    def test_job_ends_with_same_bytes_whatever_freezes_or_dies(self):
        began = time.monotonic()
        bad = run_all(chosen(self.arguments), os.environ.get('TEST_TMPDIR'), self.arguments.jobs)
        print(f'{time.monotonic() - began:.0f} s in all')
        self.assertFalse(bad, '\n'.join(bad))


if __name__ == '__main__':
    FrozenProcesses.arguments, rest = ARGUMENTS.parse_known_args()
    sys.argv[1:] = rest
    unittest_main.main()
