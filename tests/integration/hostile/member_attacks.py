"""Attacks of a worker of the job: what it must not say, under its own identity, on streams that take the place of its own."""

import time

from sluice import wire
from tests.integration.hostile import client
from tests.integration.hostile import frame_attacks
from tests.integration.hostile import frames as frame_lib

HUGE = client.HUGE


class MemberAttacks(frame_attacks.FrameAttacks):

    def _members_turns(self):
        """Yields the progress of the job and the worker's incarnation, while it is a member, until the attack ends."""
        for _ in self.until_end():
            progress = self.progress()
            own = [member.process.incarnation for member in progress.view.workers if member.process.index == self.index]
            if own:
                yield progress, own[0]
            else:
                time.sleep(0.05)

    def _as_member(self, stream, first, data):
        """Introduces itself as the member and sends one message. A lie usually ends the stream."""
        stream.send(first)
        if stream.wait(lambda: len(stream.replies) > 0, 1):
            self.count('admitted')
        stream.send(data)
        stream.wait(lambda: False, 0.05)
        self.count(f'ended {stream.end[0]}' if stream.end else 'took it')
        stream.cancel()

    def _to_shards(self, bodies_of):
        """Sends each of `bodies_of(progress, shard)` to each shard, on a stream of its own."""
        for progress, own in self._members_turns():
            for shard in progress.view.shards:
                for body in bodies_of(progress, shard):
                    self._as_member(self.exchange(shard), self.hello(shard, wire.WORKER, self.index, own),
                                    frame_lib.encode(client.header(progress.view.id, **body)))

    def _to_coordinator(self, messages_of):
        for progress, own in self._members_turns():
            for message in messages_of(progress):
                self._as_member(self.join(), self.register(self.index, own, newest_view=progress.view.id),
                                wire.MemberMessage(**message).SerializeToString())

    def members_push_of_a_huge_step(self):
        steps = self.target['steps']
        self._to_shards(lambda progress, shard: [dict(push=wire.Push(step=step)) for step in (steps, steps + 1, 1 << 40, HUGE)])

    def members_words_of_others(self):
        """Claims more samples and microbatches than exist, and says what only shards may say."""
        norms = wire.Norms(step=HUGE)
        norms.partitions.add(partition=0, square_sum=1e300)

        def bodies(progress, shard):
            del shard
            for samples, microbatches in ((HUGE, HUGE), (1 << 40, 1), (0, 1 << 40)):
                yield dict(push=wire.Push(step=progress.step + 1, complete=[0, 1], samples=samples, microbatch_count=microbatches))
            yield dict(step_participants=wire.StepParticipants(step=HUGE, members=[1]))
            yield dict(norms=norms)
        self._to_shards(bodies)

    def members_requests_beyond_its_clock(self):
        self._to_shards(lambda progress, shard: [
            dict(pull=wire.Pull(version=HUGE, clock=HUGE, request=HUGE)),
            dict(pull=wire.Pull(version=1, snapshot_id=HUGE)),
            dict(pull=wire.Pull(clock=1 << 40, counted=[1, 2, 3], counted_from=[HUGE] * 3)),
            dict(lease_request=wire.LeaseRequest(clock=HUGE, samples=HUGE)),
            dict(permit_request=wire.PermitRequest(clock=HUGE, base_version=HUGE)),
            dict(permit_request=wire.PermitRequest(clock=1 << 30, base_version=0))])

    def members_updates_without_samples(self):
        def bodies(progress, shard):
            position = [each.process.incarnation for each in progress.view.shards].index(shard.process.incarnation)
            owned = [number for number in (0, 1) if progress.view.owner[number] == position]
            # Two workers share the updates.
            for clock in (progress.step // 2 + 1, progress.step + 1):
                for samples in (wire.Range(), wire.Range(begin=HUGE - 1, end=HUGE), wire.Range(begin=9, end=3)):
                    apply = wire.Apply(clock=clock, samples=samples, ordinal=HUGE, staleness=HUGE)
                    yield dict(push=wire.Push(clock=clock, complete=owned, samples=1, microbatch_count=1, apply=apply))
        self._to_shards(bodies)

    def members_headers_of_a_future_view(self):
        progress, own = next(self._members_turns())
        self._pour_on_all(progress.view, [(wire.WORKER, self.index, own)], self.frames_of_a_future_view)

    def members_lies_of_its_work(self):
        def messages(progress):
            report = wire.WorkerProgress(view=progress.view.id, recomputed_samples=HUGE, pushed_bytes=HUGE, compute_seconds=1e-300)
            for value in (1e289, -1e300, float('inf'), float('nan')):
                report.steps.add(step=HUGE, samples=1, loss_sum=value, correct=1e300)
            report.steps.add(step=0, samples=HUGE, loss_sum=1e300)
            yield dict(worker_progress=report)
            yield dict(evaluation_result=wire.EvaluationResult(evaluation=1, samples=wire.Range(begin=0, end=HUGE),
                                                               loss_sum=float('nan'), correct=1e300, count=HUGE))
        self._to_coordinator(messages)

    def members_shards_that_owe(self):
        self._to_coordinator(lambda progress: [
            dict(worker_progress=wire.WorkerProgress(view=progress.view.id, owed_version=owed,
                                                     owing=[shard.process.incarnation for shard in progress.view.shards]))
            for owed in (0, 1, HUGE)])
