"""The attacks of a hostile client, one by one, which must not affect the attacked jobs.

An Arena starts a job, attacks it, waits until it trains again, and lets it end. It reports each problem as a sentence. The pace of
training is measured only for bench/hostile.py: on a busy machine it means nothing.
"""

import dataclasses
import json
import pathlib
import shutil
import subprocess
import time
import typing
import urllib.request

import grpc
import numpy as np

from sluice import wire
from tests.integration.hostile import job as job_lib

# After an attack, a job must train STEPS_AFTER steps within PATIENCE seconds: a process may have to be expelled and replaced first.
STEPS_AFTER = 20
PATIENCE = 120

PLAIN, TLS, BOTH = (False,), (True,), (False, True)

ASYNCHRONOUS = {'mode': 'Asynchronous', 'microbatchSize': 16}
BOUNDED = {'mode': 'BoundedStaleness', 'boundedStaleness': {'maxStaleness': 2}, 'microbatchSize': 16}


@dataclasses.dataclass
class Case:
    number: str               # the group of attacks, for bench/hostile.py --only; the headings in the attacker's files have it too
    name: str                 # of the test
    attack: str = ''          # a method of attacker.Attacker
    certificate: str = 'worker-2'  # of the attacker; the job needs workers 0 and 1
    training: dict = dataclasses.field(default_factory=dict)
    changes: dict = dataclasses.field(default_factory=dict)  # of the job
    more: dict = dataclasses.field(default_factory=dict)     # further settings of the attacker
    during: typing.Callable = None  # (job, attack, problems): acts and checks during the attack
    never: tuple = ()         # counters of the attacker that must stay 0
    always: tuple = ()        # counters that must not stay 0, or the attack was none
    restarts: int = 0         # attempts that the attack may cost
    paced: bool = True        # training continues during the attack, at full pace on a quiet machine
    flood: bool = False       # the attack uses all processor time that it gets
    seconds: float = 2.0
    tls: tuple = TLS          # both if the kind of security makes a difference, else one of the two
    own_job: bool = False     # the effect is visible only at the job's end
    samples: int = job_lib.SAMPLES  # number of samples in the job's data, and of elements in its model

    def timeouts(self):
        """Short if a member that does nothing has to be expelled; long if a flood on a busy machine must not expel any member."""
        if self.alone() and not self.flood:
            return {'gradientsSeconds': 8}
        return {'gradientsSeconds': 40, 'suspectSeconds': 10, 'heartbeatTimeoutSeconds': 30, 'pauseSeconds': 30}

    def alone(self):
        return self.own_job or bool(self.training or self.changes) or self.samples != job_lib.SAMPLES


@dataclasses.dataclass
class Outcome:
    case: Case
    tls: bool
    problems: list = dataclasses.field(default_factory=list)
    before: float = 0.0       # steps per second, if measured
    during: float = 0.0
    after: float = 0.0
    memory_mib: dict = dataclasses.field(default_factory=dict)
    said: dict = dataclasses.field(default_factory=dict)  # the attacker's report

    def record(self):
        return {'number': self.case.number, 'name': self.case.name, 'tls': self.tls, 'problems': self.problems,
                'before': self.before, 'during': self.during, 'after': self.after, 'memory_mib': self.memory_mib,
                'said': self.said}


# ---- acts and checks during some attacks

def checkpoints_continue(job, attack, problems):
    attack.ready.wait(60)
    seen = {job.progress().checkpoint.last.step}
    # The first new one may have begun before the attack.
    while len(seen) < 3 and attack.is_running():
        time.sleep(0.05)
        seen.add(job.progress().checkpoint.last.step)
    if len(seen) < 3:
        problems.append(f'too few checkpoints during the attack: only of steps {sorted(seen)}, at step {job.step()}')
    attack.stop()


def a_worker_is_replaced(job, attack, problems):
    attack.ready.wait(60)
    job.kill('worker-1')
    job.start_counting_worker(1)
    try:
        job.wait_for_members(2, 60)
    except Exception as error:  # too late, or the coordinator does not answer
        problems.append(f'the restarted worker did not become a member: {_brief(error)}')
        return
    before = job.trained()
    while not job.trained_since(before) and attack.is_running():
        time.sleep(0.05)
    if not attack.is_running():
        problems.append('training makes no progress while the streams are open')
    attack.stop()


def probes_are_answered(job, attack, problems):
    attack.ready.wait(60)
    failed = []
    for _ in range(8):
        for address in job.metrics_addresses():
            try:
                with urllib.request.urlopen(f'http://{address}/healthz', timeout=20) as reply:
                    reply.read()
            except OSError as error:
                failed.append(f'{address}: {_brief(error)}')
        if failed:
            break
        time.sleep(0.1)
    if failed:
        problems.append(f'{len(failed)} probes without an answer: {failed[0]}')

    try:
        # The coordinator must serve a new connection too.
        job.progress()
    except Exception as error:
        problems.append(f'the coordinator serves no new connection: {_brief(error)}')
    attack.stop()


def the_place_is_given_back(job, attack, problems):
    """The attacker takes the place of a dead worker while the attack lasts; then the worker must become a member again."""
    job.kill('worker-1')
    attack.wait()
    job.start_counting_worker(1)
    try:
        job.wait_for_members(2, 60)
    except Exception as error:
        problems.append(f'the honest worker did not become a member again: {_brief(error)}')


# ---- the cases

_CHECKPOINTS = {'checkpoint': {'intervalSteps': 10}}


def _of_member(number, name, attack, **settings):
    """An attack of worker 1, whose process works on meanwhile."""
    return Case(number, name, attack, certificate='worker-1', more={'index': 1}, own_job=True, paced=False, always=('admitted',),
                **settings)


CASES = [
    Case('S1', 'stranger_cannot_end_job_by_push_of_huge_step', 'push_of_a_huge_step', seconds=1.5, tls=BOTH),
    Case('S1', 'reader_cannot_end_job_by_push_of_huge_step', 'push_of_a_huge_step', certificate='reader', seconds=1.5),
    _of_member('S1', 'member_cannot_end_job_by_push_of_huge_step', 'members_push_of_a_huge_step'),
    Case('S2', 'gradient_in_the_name_of_another_worker_is_not_applied', 'push_in_the_name_of_a_worker', own_job=True, tls=BOTH),
    Case('S2', 'reader_cannot_close_stream_of_a_worker', 'take_over_streams', certificate='reader', more={'as': 'reader'},
         never=('taken',)),
    Case('S2', 'worker_cannot_close_stream_of_another', 'take_over_streams', never=('taken',), tls=BOTH),
    Case('S3', 'worker_cannot_end_coordinator_by_newer_term', 'newer_coordinators', seconds=1.5, tls=PLAIN),
    Case('S3', 'worker_in_its_place_cannot_end_coordinator_by_newer_term', 'newer_coordinators', certificate='worker-1',
         own_job=True, paced=False, more={'index': 1}, during=the_place_is_given_back, seconds=1.5),
    Case('S4', 'headers_of_a_future_view_take_bounded_memory', 'headers_of_a_future_view', tls=PLAIN),
    _of_member('S4', 'headers_that_a_member_sends_take_bounded_memory', 'members_headers_of_a_future_view', seconds=5,
               tls=PLAIN),
    Case('S4', 'pull_that_repeats_a_partition_takes_bounded_memory', 'one_partition_many_times', certificate='reader',
         samples=320, tls=PLAIN),
    Case('S4', 'unfinished_messages_take_bounded_memory', 'unfinished_messages', flood=True, seconds=4),
    Case('S4', 'large_messages_to_the_coordinator_take_bounded_memory', 'large_messages_to_the_coordinator', tls=PLAIN),
    Case('S4', 'messages_of_small_pieces_take_bounded_memory', 'messages_of_small_pieces', flood=True, seconds=3, tls=PLAIN),
    Case('S5', 'reader_that_holds_snapshots_does_not_block_checkpoints', 'hold_snapshots', certificate='reader',
         changes=_CHECKPOINTS, during=checkpoints_continue, seconds=60, tls=PLAIN),
    Case('S6', 'silent_streams_do_not_keep_a_worker_out', 'silent_streams', certificate='reader',
         during=a_worker_is_replaced, flood=True, paced=False, own_job=True, more={'opening': 5}, seconds=60),
    Case('S7', 'silent_connections_do_not_block_probes', 'silent_connections', during=probes_are_answered, seconds=60, tls=PLAIN),
    Case('S9', 'certificate_of_another_job_is_refused', 'everything_without_permission', certificate='other/worker-0'),
    Case('S9', 'operator_of_another_job_is_refused', 'everything_without_permission', certificate='other/operator'),
    Case('S13', 'job_survives_rapid_reset_at_shards', 'rapid_reset', flood=True, more={'only': 'shards'}, seconds=2, tls=BOTH),
    Case('S13', 'job_survives_rapid_reset_at_coordinator', 'rapid_reset', flood=True, more={'only': 'coordinator'}, seconds=2,
         tls=BOTH),
    Case('S13', 'endless_headers_take_bounded_memory', 'continuation_flood', flood=True, tls=BOTH),
    Case('S13', 'many_small_headers_take_bounded_memory', 'many_headers', flood=True),
    Case('S14', 'unreached_clock_does_not_block_workers', 'clocks', training=BOUNDED, seconds=1.5, tls=PLAIN),
    _of_member('S14', 'member_with_a_clock_ahead_does_not_block_workers', 'members_requests_beyond_its_clock', training=BOUNDED,
               tls=PLAIN),
    Case('S14', 'update_without_samples_is_not_applied', 'updates_without_samples', training=ASYNCHRONOUS, seconds=1.5, tls=PLAIN),
    _of_member('S14', 'update_without_samples_by_member_is_not_applied', 'members_updates_without_samples', training=ASYNCHRONOUS,
               tls=PLAIN),
    Case('S15', 'stranger_beyond_desired_size_cannot_join', 'stranger', more={'register_as': 777}, never=('stayed',),
         tls=PLAIN),
    Case('S15', 'certificate_beyond_desired_size_cannot_join', 'stranger', never=('stayed',)),
    Case('S15', 'lies_of_a_stranger_change_nothing', 'stranger', more={'lies': True}, tls=PLAIN),
    Case('S15', 'failure_of_a_stranger_does_not_fail_job', 'stranger', more={'fails': True}, seconds=1.5),
    Case('S15', 'idle_member_is_replaced', 'stranger', certificate='worker-1', own_job=True, paced=False,
         more={'index': 1, 'until_expelled': True}, during=the_place_is_given_back, seconds=60),
    _of_member('S15', 'lies_of_a_member_about_its_work_change_nothing', 'members_lies_of_its_work', tls=PLAIN),
    _of_member('S15', 'member_cannot_say_what_others_may', 'members_words_of_others', tls=PLAIN),
    Case('S15', 'failure_of_a_newcomer_does_not_fail_job', 'stranger', certificate='worker-1', own_job=True, paced=False,
         more={'index': 1, 'fails': True}, during=the_place_is_given_back, seconds=2),
    Case('new', 'long_strings_of_a_worker_take_bounded_memory', 'long_words', certificate='worker-1', own_job=True, paced=False,
         more={'index': 1}, during=the_place_is_given_back, seconds=3),
    Case('new', 'unknown_fields_of_a_worker_reach_no_other_process', 'unknown_fields', certificate='worker-1', own_job=True,
         paced=False, more={'index': 1}, during=the_place_is_given_back, seconds=3, tls=BOTH),
    Case('new', 'unread_answers_take_bounded_memory', 'answers_never_read', flood=True, certificate='reader', seconds=3,
         tls=PLAIN),
    Case('new', 'job_survives_more_connections_than_files', 'many_connections', flood=True, seconds=3, tls=PLAIN),
    Case('new', 'job_survives_endless_pings_and_settings', 'ping_flood', flood=True, seconds=1.5),
    Case('new', 'job_survives_empty_data_frames', 'empty_data', flood=True, seconds=1.5, tls=PLAIN),
    Case('new', 'job_survives_random_frames', 'random_frames', flood=True, seconds=1.5),
    Case('new', 'stranger_cannot_expel_shard_by_naming_it', 'owing', seconds=1.5),
    _of_member('new', 'member_cannot_expel_shard_by_naming_it', 'members_shards_that_owe', tls=PLAIN),
    Case('new', 'worker_that_joins_and_leaves_costs_no_attempt', 'come_and_go', certificate='worker-1', own_job=True, paced=False,
         more={'index': 1}, during=the_place_is_given_back, seconds=3),
]


# ---- running a case

def certify(sluice, directory):
    """Makes certificates for the job in `directory`, and for another job, by the same authority, in other/ there."""
    def make(job, where):
        subprocess.run([sluice, 'certificates', job, '-o', str(where), '--shards', '2', '--workers', '3'], check=True,
                       capture_output=True)
    make('test', directory)
    other = directory / 'other'
    other.mkdir()
    shutil.copytree(directory / 'ca', other / 'ca')
    make('other', other)
    return directory


def _brief(error):
    if isinstance(error, grpc.RpcError) and hasattr(error, 'details'):
        return f'{error.code().name}: {error.details()}'[:300]
    return f'{type(error).__name__}: {error}'[:300]


def _let_through(case, outcome):
    """What the attacker achieved although it must not."""
    return [what for what in outcome.said.get('counts', {}) if what.startswith('let through') or what in case.never]


class Arena:
    """Jobs to attack, of one kind of security. Attacks that do not change a job share one as long as it lasts; `close` reports the
    problems at the end of shared jobs."""

    def __init__(self, directory, tls=None, stretch=0.0):
        """`tls`: the directory that `certify` filled, or None for plain text. `stretch`: for how many seconds to measure the pace,
        while the attacker gets only idle processor time; 0: no measurement."""
        self._directory = pathlib.Path(directory)
        self._tls = tls
        self._stretch = stretch
        self._shared = None  # (job, its pace, names of the attacks on it)
        self._jobs = 0
        self._problems = []  # of shared jobs, found at their end

    def _start(self, case):
        self._jobs += 1
        directory = self._directory / f'{self._jobs}'
        directory.mkdir()
        spec = job_lib.counting_job(directory, case.samples, training=case.training, **case.changes,
                                    timeouts=case.timeouts(), **({'tls': 'Enabled'} if self._tls else {}))
        job = job_lib.AttackedJob(spec, directory / 'job', self._tls)
        try:
            job.start_all()
            return job, job.pace(self._stretch) if self._stretch else 0.0
        except BaseException:
            job.__exit__()
            raise

    def run(self, case):
        outcome = Outcome(case, self._tls is not None)
        if case.alone():
            job, outcome.before = self._start(case)
            with job:
                self._attack(job, case, outcome)
                _check_end(job, outcome.problems)
                self._explain(job, outcome)
            return outcome

        if self._shared is not None:
            trained = self._shared[0].trained()  # it kept training while other jobs were attacked
            if trained is None or trained > 0.6 * job_lib.STEPS:
                self._end_shared()
        if self._shared is None:
            self._shared = (*self._start(case), [])

        job, outcome.before, attacks = self._shared
        attacks.append(case.name)
        self._attack(job, case, outcome)
        if outcome.problems:
            # The next attack gets a new job.
            self._explain(job, outcome)
            job.__exit__()
            self._shared = None
        return outcome

    def close(self):
        """Ends the shared job; returns the problems at the end of all shared jobs."""
        self._end_shared()
        return self._problems

    def _end_shared(self):
        if self._shared is None:
            return
        (job, _, attacks), self._shared = self._shared, None
        problems = []
        with job:
            _check_end(job, problems)
            if problems:
                self._problems += [f'after {", ".join(attacks)}:', *problems, job.log_tail()]

    def _attack(self, job, case, outcome):
        attempt = job.progress().attempt
        logged = {name: job.logged_bytes(name) for name in job.servers()}
        began, first = time.monotonic(), job.trained()

        certificate = self._tls / case.certificate if self._tls else None
        while True:
            attack = job.attack(case.attack, case.seconds, certificate=certificate, idle=bool(self._stretch), **case.more)
            if case.during is not None:
                case.during(job, attack, outcome.problems)
            outcome.said = attack.wait()
            # The pace needs at least `stretch` seconds: a short attack is repeated.
            if case.during is not None or time.monotonic() - began >= self._stretch:
                break

        outcome.during = job.pace_since(began, first)
        if case.paced and first is not None and job.trained_since(first) is False:
            outcome.problems.append(f'no step during the attack, which began at step {first:g}')
        _check_reports(job, outcome.problems)
        _wait_until_it_trains(job, case, outcome.problems)
        if self._stretch:
            outcome.after = _pace_afterwards(job, case, outcome.before, self._stretch)
        _check_processes(job, case, outcome, attempt, logged)

    @staticmethod
    def _explain(job, outcome):
        if outcome.problems:
            outcome.problems.append('report of the attacker: ' + json.dumps(outcome.said)[:600])
            outcome.problems.append('the logs:\n' + job.log_tail())


def _wait_until_it_trains(job, case, problems):
    deadline = time.monotonic() + PATIENCE
    first = None
    while time.monotonic() < deadline and job.lives('coordinator'):
        if case.flood:
            job.replace_expelled_workers()
        now = job.trained()
        if first is None:
            first = now
        elif now is not None and now >= first + STEPS_AFTER:
            return
        time.sleep(0.05)
    problems.append(f'the job did not train {STEPS_AFTER} steps after the attack: from step {first} to {job.trained()}')


def _pace_afterwards(job, case, before, stretch):
    """The pace once training has recovered, for which it has 12 seconds: a member may have to be expelled first."""
    pace = 0.0
    deadline = time.monotonic() + 12
    while time.monotonic() < deadline and job.lives('coordinator'):
        if case.flood:
            job.replace_expelled_workers()
        pace = job.pace(stretch)
        if pace >= 0.8 * before:
            break
    return pace


def _check_reports(job, problems):
    """Checks the workers' reports, which are shown to users and determine how the work is divided."""
    try:
        progress = job.progress()
    except Exception:
        return  # _check_processes reports it
    for what, value in (('loss', progress.loss), ('samples_per_second', progress.samples_per_second),
                        ('compute_seconds', progress.compute_seconds), ('pushed_bytes', progress.pushed_bytes)):
        if not 0 <= value < 1e15:
            problems.append(f'the progress of the job has {what} {value}')
    for process in progress.processes:
        if not 0 <= process.samples_per_second < 1e9:
            problems.append(f'the progress has {process.samples_per_second} samples per second for worker {process.process.index}')


def _check_processes(job, case, outcome, attempt, logged):
    problems = outcome.problems
    for name in job.servers():
        outcome.memory_mib[name] = job.memory_mib(name)
        if not job.lives(name):
            problems.append(f'{name} ended with exit code {job._living[name].poll()}')
        if outcome.memory_mib[name] > job.bound_mib(name):
            problems.append(f'{name} had {outcome.memory_mib[name]} MiB resident, over its bound of {job.bound_mib(name)} MiB')
        if job.threads(name) > job_lib.THREADS:
            problems.append(f'{name} has {job.threads(name)} threads')
        if job.logged_bytes(name) - logged[name] > job_lib.LOG_BYTES:
            problems.append(f'{name} logged {job.logged_bytes(name) - logged[name]} bytes')

    try:
        progress = job.progress()
    except Exception as error:
        problems.append(f'the coordinator does not answer: {_brief(error)}')
        return
    if progress.phase != wire.JobProgress_TRAINING:
        problems.append(f'the job is in phase {progress.phase}: {progress.reason}')
    if progress.attempt > attempt + case.restarts:
        problems.append(f'the attack cost {progress.attempt - attempt} attempts')
    for what in _let_through(case, outcome):
        problems.append(what)
    for what in case.always:
        if what not in outcome.said.get('counts', {}):
            problems.append(f'the attacker was never {what}')


def _check_end(job, problems):
    codes = job.let_it_end(240 if not problems else 8 if job.lives('coordinator') else 2)
    wrong = {name: code for name, code in codes.items() if code != 0}
    if wrong:
        problems.append(f'exit codes at the end: {wrong}')
        return
    counts, expected = job.final_counts()
    different = int(np.count_nonzero(counts != expected))
    if different:
        problems.append(f'{different} of {len(counts)} samples do not count {expected:g} times but {counts.min()} to {counts.max()}')
    synchronous = job.job['training']['mode'] == 'Synchronous'
    if synchronous and job.final_step() != job_lib.STEPS:
        problems.append(f'the job ended at step {job.final_step()} of {job_lib.STEPS}')
