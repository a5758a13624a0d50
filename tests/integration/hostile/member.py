"""A Python worker that does its work and, on orders, sends what it must not: on its own streams, under its own identity.

    member.py SECONDS_A_BATCH SLOW_WHILE ORDERS ANSWERS

It has the counting model of tests/testing/counting_worker. When the file ORDERS appears, it carries out the order named there, and then
writes the result to the file ANSWERS.
"""

import pathlib
import sys
import threading
import time

import numpy as np

import sluice
from sluice import wire

HUGE = (1 << 64) - 1


class Liar:

    def __init__(self, job):
        self._job = job
        self._runtime = job._runtime
        self.order = None
        # Step numbers that the job never reaches.
        self.steps = job.spec.training.steps

    def _to_shards(self, view=None, only=None, **body):
        view = view or self._job.progress().view.id
        with self._runtime._lock:
            for shard, stream in self._runtime._streams.items():
                if only in (None, shard):
                    stream.send([(wire.Header(view=view, **body), [])])

    def _to_coordinator(self, **body):
        self._runtime._coordinator.send(wire.MemberMessage(**body))

    def _again(self, seconds=1.0):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            yield
            time.sleep(0.1)  # by then a closed stream has been opened again

    def push_of_a_huge_step(self):
        for step in (self.steps, self.steps + 1, 1 << 40, HUGE):
            for _ in self._again(0.3):
                self._to_shards(push=wire.Push(step=step))

    def samples_that_are_not_its_own(self):
        """Claims to have contributed more samples and microbatches than exist."""
        for _ in self._again():
            step = self._job.progress().step
            for samples, microbatches in ((HUGE, HUGE), (1 << 40, 1), (0, 1 << 40)):
                for number in (0, 1):
                    self._to_shards(push=wire.Push(step=step, complete=[number], samples=samples, microbatch_count=microbatches))

    def pulls_of_missing_versions(self):
        for _ in self._again():
            self._to_shards(pull=wire.Pull(version=HUGE, clock=HUGE, request=HUGE))
            self._to_shards(pull=wire.Pull(version=1, snapshot_id=HUGE))
            self._to_shards(pull=wire.Pull(clock=1 << 40, counted=[1, 2, 3], counted_from=[HUGE] * 3))

    def leases_and_permits(self):
        for _ in self._again():
            self._to_shards(lease_request=wire.LeaseRequest(clock=HUGE, samples=HUGE))
            self._to_shards(permit_request=wire.PermitRequest(clock=HUGE, base_version=HUGE))
            self._to_shards(permit_request=wire.PermitRequest(clock=1 << 30, base_version=0))

    def updates_without_samples(self):
        for _ in self._again(2.0):
            for samples in (wire.Range(), wire.Range(begin=HUGE - 1, end=HUGE), wire.Range(begin=9, end=3)):
                view = self._job.progress().view
                for position, shard in enumerate(view.shards):
                    owned = [number for number in (0, 1) if view.owner[number] == position]
                    clock = self._runtime.core.step + 1
                    for each in (clock, clock + 1):
                        apply = wire.Apply(clock=each, samples=samples, ordinal=HUGE, staleness=HUGE)
                        self._to_shards(only=shard.process.incarnation, push=wire.Push(
                            clock=each, complete=owned, samples=1, microbatch_count=1, apply=apply))

    def headers_of_a_future_view(self):
        """Frames without payload that wait for a view: only their headers take memory."""
        future = self._job.progress().view.id
        future.number += 1000
        bodies = [dict(push=wire.Push(step=1, clock=1, complete=[1] * 60000)),
                  dict(pull=wire.Pull(version=1, rows=[wire.RowSelection()] * 30000))]
        for _ in range(400):
            for body in bodies:
                self._to_shards(view=future, **body)
            time.sleep(0.0005)

    def words_of_a_shard(self):
        for _ in self._again():
            self._to_shards(step_participants=wire.StepParticipants(step=HUGE, members=[1]))
            norms = wire.Norms(step=HUGE)
            norms.partitions.add(partition=0, square_sum=1e300)
            self._to_shards(norms=norms)

    def lies_of_its_work(self):
        view = self._job.progress().view.id
        for _ in self._again():
            report = wire.WorkerProgress(view=view, recomputed_samples=HUGE, pushed_bytes=HUGE, compute_seconds=1e-300)
            for value in (1e289, -1e300, float('inf'), float('nan')):
                report.steps.add(step=HUGE, samples=1, loss_sum=value, correct=1e300)
            report.steps.add(step=0, samples=HUGE, loss_sum=1e300)
            self._to_coordinator(worker_progress=report)
            self._to_coordinator(evaluation_result=wire.EvaluationResult(
                evaluation=1, samples=wire.Range(begin=0, end=HUGE), loss_sum=float('nan'), correct=1e300, count=HUGE))

    def shards_that_owe(self):
        for _ in self._again():
            view = self._job.progress().view
            for owed in (0, 1, HUGE):
                self._to_coordinator(worker_progress=wire.WorkerProgress(
                    view=view.id, owed_version=owed, owing=[shard.process.incarnation for shard in view.shards]))

    def another_model(self):
        ready = wire.Ready(training_samples=HUGE)
        ready.table.tensors.add(name='counts', shape=[1 << 50], dtype=wire.FLOAT64)
        self._to_coordinator(ready=ready)

    def obey(self, orders, answers):
        while not orders.exists():
            time.sleep(0.02)
        try:
            getattr(self, orders.read_text().strip())()
            answers.write_text('done')
        except Exception as error:  # a refusal is a valid answer
            answers.write_text(f'{type(error).__name__}: {error}')


def main():
    delay, slow_while, orders, answers = float(sys.argv[1]), *map(pathlib.Path, sys.argv[2:5])
    job = sluice.join()
    samples = int(job.spec.model.dimensions['samples'])
    liar = Liar(job)
    threading.Thread(target=liar.obey, args=(orders, answers), daemon=True).start()
    with sluice.Worker(job, {'counts': np.zeros(samples)}, lambda parameters, data: None) as worker:
        for batch in worker.batches(range(samples)):
            if slow_while.exists():
                time.sleep(delay)
            gradient = np.zeros(samples)
            gradient[batch.indices] = 1
            worker.step(batch, loss=0.0, gradients={'counts': gradient})


if __name__ == '__main__':
    main()
