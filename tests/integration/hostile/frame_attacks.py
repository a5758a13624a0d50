"""Attacks on shards, with frames."""

import secrets
import struct
import threading
import time

from sluice import wire
from tests.integration.hostile import client
from tests.integration.hostile import frames as frame_lib


class FrameAttacks(client.HostileClient):

    # ---- S1: steps that no member has reached

    def push_of_a_huge_step(self):
        def frames(view, shard):
            del shard
            for step in (self.target.get('steps', 1000), self.target.get('steps', 1000) + 1, 1 << 40, client.HUGE):
                yield frame_lib.encode(client.header(view.id, push=wire.Push(step=step)))
                yield frame_lib.encode(client.header(view.id, push=wire.Push(step=step, clock=step, complete=[], samples=client.HUGE,
                                                                      microbatch_count=client.HUGE)))
        self.say_on_each(frames)

    # ---- S2: the name of another process

    def _gradient(self, view, shard, step, microbatches):
        """Frames of a complete contribution with enormous values."""
        snapshot = self.layout
        position = [each.process.incarnation for each in view.shards].index(shard.process.incarnation)
        partitions = [p for p, owner in enumerate(view.owner) if owner == position]
        frames = []
        for number in partitions:
            blocks = [(i, block) for i, block in enumerate(snapshot.blocks) if block.partition == number]
            for i, block in blocks:
                payload = struct.pack('<d', 1e6) * block.count
                frames.append((client.header(view.id, push=wire.Push(
                    step=step, clock=0, partition=number, microbatches=microbatches,
                    blocks=[wire.BlockHeader(block=i, payload_bytes=len(payload))])), [payload]))
            if blocks:
                frames.append((client.header(view.id, push=wire.Push(
                    step=step, complete=[number], samples=1, microbatch_count=1)), []))
        return [frame_lib.encode(*each) for each in frames]

    def push_in_the_name_of_a_worker(self):
        snapshot, call = self.open_snapshot()
        call.cancel()
        self.layout = snapshot.layout
        for _ in self.until_end():
            progress = self.progress()
            view = progress.view
            for member in view.workers:
                for shard in view.shards:
                    # Without certificates, the attacker must not use that worker's index: the two could not be distinguished.
                    for role, index in ((wire.WORKER, self.index),
                                        (wire.WORKER if self.certificate else wire.READER, member.process.index)):
                        stream = self.exchange(shard)
                        stream.send(self.hello(shard, role, index, member.process.incarnation))
                        for step in range(progress.step, progress.step + 3):
                            for data in self._gradient(view, shard, step, member.microbatches[0]):
                                stream.send(data)
                        stream.wait(lambda: False, 0.05)
                        self.count(f'ended {stream.end[0]}' if stream.end else 'took it')
                        stream.cancel()

    def take_over_streams(self):
        """Sends Hello with the incarnation of each worker: a newer stream closes the previous one."""
        view = self.progress().view
        role = wire.READER if self.target.get('as') == 'reader' else wire.WORKER
        index = 0 if role == wire.READER else self.index
        deadline = time.monotonic() + self.seconds

        def take_over(shard, incarnation):
            while time.monotonic() < deadline:
                stream = self.exchange(shard)
                stream.send(self.hello(shard, role, index, incarnation))
                taken = stream.wait(lambda: len(stream.replies) > 0, 0.2)
                self.count('taken' if taken else f'ended {stream.end[0]}' if stream.end else 'no answer')
                stream.cancel()

        threads = [threading.Thread(target=take_over, args=(shard, member.process.incarnation), daemon=True)
                   for shard in view.shards for member in view.workers for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self.seconds + 5)

    # ---- S4: memory

    def _pour(self, shard, identity, frames, keep):
        """Sends the frames again and again, as fast as the shard takes them; `keep`: answers are read."""
        role, index, incarnation = identity
        while time.monotonic() < self._deadline:
            stream = self.exchange(shard, keep, fresh=True)
            stream.send(self.hello(shard, role, index, incarnation))
            while time.monotonic() < self._deadline and not stream.is_over():
                if stream.backlog() > 16:
                    time.sleep(0.002)
                    continue
                for data in frames:
                    stream.send(data)
                    self.count('sent bytes', len(data))
            if stream.replies:
                self.count('admitted')
            self.count(f'ended {stream.end[0]}' if stream.end else 'open')
            stream.cancel()
            time.sleep(0.02)

    def _pour_on_all(self, view, identities, frames_of, keep=True):
        self._deadline = time.monotonic() + self.seconds
        threads = [threading.Thread(target=self._pour, args=(shard, identity, list(frames_of(view)), keep), daemon=True)
                   for shard in view.shards for identity in identities]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self.seconds + 5)

    def frames_of_a_future_view(self, view):
        future = wire.ViewId()
        future.CopyFrom(view.id)
        future.number += 1000
        for body in (dict(push=wire.Push(step=1, clock=1, complete=[1] * 60000)),
                     dict(pull=wire.Pull(version=1, rows=[wire.RowSelection()] * 30000))):
            yield frame_lib.encode(client.header(future, **body))
        small = frame_lib.encode(client.header(future, lease_request=wire.LeaseRequest(clock=1)))
        yield frame_lib.batch([small] * 256)

    def headers_of_a_future_view(self):
        """Frames without payload that wait for a view: only their headers take memory."""
        view = self.progress().view
        # Streams under a worker's own incarnation are closed by that worker's next stream.
        fresh = [(wire.WORKER, self.index, None), (wire.WORKER, 0, None), (wire.WORKER, 1, None)]
        self._pour_on_all(view, [*fresh, next(self.identities(view))], self.frames_of_a_future_view)

    def one_partition_many_times(self):
        """Pulls of a pinned version that name a partition thousands of times; the reader never reads the answers."""
        reader = secrets.randbits(63) + 1
        snapshot, call = self.open_snapshot(reader, self.seconds + 5)
        view = snapshot.view
        self._deadline = time.monotonic() + self.seconds
        threads = []
        for position, shard in enumerate(view.shards):
            # The nonempty partitions of this shard.
            owned = sorted({block.partition for block in snapshot.layout.blocks if view.owner[block.partition] == position})
            pulls = [frame_lib.encode(client.header(view.id, pull=wire.Pull(
                version=snapshot.version, snapshot_id=snapshot.snapshot_id,
                partitions=[number] * 20000, request=number))) for number in owned]
            threads.append(threading.Thread(target=self._pour, daemon=True,
                                            args=(shard, (wire.READER, 0, reader), pulls, False)))

        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self.seconds + 5)
        call.cancel()

    # ---- S14: clocks and ranges

    def clocks(self):
        """Asynchronous modes: pulls of a clock that no worker has reached, and lease requests for it."""
        def frames(view, shard):
            del shard
            yield frame_lib.encode(client.header(view.id, pull=wire.Pull(clock=client.HUGE)))
            yield frame_lib.encode(client.header(view.id, lease_request=wire.LeaseRequest(clock=client.HUGE, samples=client.HUGE)))
        self.say_on_each(frames)

    def updates_without_samples(self):
        def frames(view, shard):
            position = [each.process.incarnation for each in view.shards].index(shard.process.incarnation)
            # The model has two blocks: only partitions 0 and 1 are nonempty.
            owned = [number for number in (0, 1) if view.owner[number] == position]
            for clock in (client.HUGE, 1 << 20):
                for samples in (wire.Range(), wire.Range(begin=client.HUGE - 1, end=client.HUGE), wire.Range(begin=5, end=1)):
                    apply = wire.Apply(clock=clock, samples=samples, ordinal=client.HUGE, square_sum=float('nan'))
                    yield frame_lib.encode(client.header(view.id, push=wire.Push(clock=clock, complete=owned, samples=1,
                                                                          microbatch_count=1, apply=apply)))
        self.say_on_each(frames)
