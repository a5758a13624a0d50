"""Attacks on the coordinator, with messages of processes and readers."""

import secrets
import time

import grpc

from sluice import wire
from tests.integration.hostile import client
from tests.integration.hostile import frames


class WordAttacks(client.HostileClient):

    # ---- S3: messages about terms

    def newer_coordinators(self):
        attempt = self.progress().attempt
        views = [wire.ViewId(attempt=client.HUGE, term=wire.Term(counter=client.HUGE, coordinator=1), number=1),
                 wire.ViewId(attempt=attempt + 1, term=wire.Term(counter=1, coordinator=1), number=1),
                 wire.ViewId(attempt=attempt, term=wire.Term(counter=client.HUGE, coordinator=7), number=client.HUGE)]
        for _ in self.until_end():
            for view in views:
                stream = self.join()
                stream.send(self.register(newest_view=view))
                stream.wait(lambda: len(stream.replies) > 0, 0.5)
                self.count(f'ended {stream.end[0]}' if stream.end else 'registered')
                leave = wire.MemberMessage()
                leave.leave.reason = 'done'
                stream.send(leave.SerializeToString())
                stream.cancel()

    # ---- S4: memory

    def large_messages_to_the_coordinator(self):
        """Registers as a worker, then sends a table and progress of many megabytes."""
        table = wire.MemberMessage()
        for i in range(200000):
            table.ready.table.tensors.add(name=f't{i}', shape=[1, 1, 1, 1, 1, 1], dtype=wire.FLOAT32)
        table = table.SerializeToString()
        progress = wire.MemberMessage()
        for i in range(200000):
            progress.worker_progress.steps.add(step=i, samples=1, loss_sum=1)
        progress = progress.SerializeToString()
        progress_of_view = wire.MemberMessage()
        progress_of_view.worker_progress.owing.extend(range(500000))
        progress_of_view = progress_of_view.SerializeToString()

        deadline = time.monotonic() + self.seconds
        while time.monotonic() < deadline:
            stream = self.join(fresh=True)
            stream.send(self.register())
            while time.monotonic() < deadline and not stream.end:
                if stream.backlog() < 4:
                    for message in (progress, progress_of_view):
                        stream.send(message)
                        self.count('sent bytes', len(message))
                time.sleep(0.01)
            stream.send(table)
            stream.wait(lambda: False, 0.2)
            self.count(f'ended {stream.end[0]}' if stream.end else 'open')
            stream.cancel()

    def messages_of_small_pieces(self):
        """Messages of the largest size whose parsed form takes a multiple of it, on several streams at once: their elements, tensors or
        unknown fields, have two bytes."""
        def nested(tag, content):
            return bytes([tag]) + frames.varint(len(content)) + content

        pieces = ((16 << 20) - 64) // 2
        unknown = b'\x7a\x00' * pieces
        messages = [nested(0x1a, nested(0x0a, b'\x0a\x00' * pieces)), unknown]
        methods = [client.CONTROL + 'GetProgress', client.CONTROL + 'OpenSnapshot', '/sluice.v1.Rendezvous/Meet']
        for _ in self.until_end():
            streams = [self.join(fresh=True) for _ in range(8)]
            for number, stream in enumerate(streams):
                stream.send(messages[number % 2])
            for stream in streams:
                stream.wait(lambda: False, 1)
                self.count(f'ended {stream.end[0]}' if stream.end else 'took it')
                stream.cancel()

            # One connection for each: a flood is disconnected.
            calls = [client.Stream(self.channel(self.coordinator, 'coordinator', fresh=True), method, self.metadata())
                     for method in methods * 3]
            for call in calls:
                call.send(unknown)
                call.finish()
            for call in calls:
                call.wait(lambda: False, 1)
                self.count(f'ended {call.end[0]}' if call.end else 'took it')
                call.cancel()

    def long_words(self):
        """Under its own index: names, addresses and reasons of megabytes, each under a new incarnation."""
        long = 'x' * (5 << 20)
        ready = wire.MemberMessage()
        ready.ready.training_samples = 1
        ready.ready.table.tensors.add(name=long, shape=[self.target['samples']], dtype=wire.FLOAT64)
        failure = wire.MemberMessage()
        failure.failure.reason = long
        leave = wire.MemberMessage()
        leave.leave.reason = long

        for _ in self.until_end():
            for more, then in (({}, ready), (dict(address=long), leave), (dict(metrics_address=long), leave), ({}, failure)):
                stream = self.join()
                stream.send(self.register(**more))
                stream.send(then.SerializeToString())
                stream.wait(lambda: False, 0.2)
                self.count(f'ended {stream.end[0]}' if stream.end else 'said')
                stream.cancel()

    def unknown_fields(self):
        """Adds megabytes of unknown fields to its process id: as two readers, whose ids the coordinator sends to every shard, and as
        a worker under its own index, whose id is in every view. A message of twice this size would be over the limit of all receivers."""
        def padded(role):
            name = wire.ProcessId(role=role, index=self.index if role == wire.WORKER else 0, incarnation=secrets.randbits(63) + 1)
            return name.SerializeToString() + (b'\xc1\x3e' + bytes(8)) * ((9 << 20) // 10)  # of field 1000, 8 bytes each

        request = wire.OpenSnapshotRequest(hold_seconds=self.seconds)
        register = wire.MemberMessage.FromString(self.register())
        for _ in self.until_end():
            calls = []
            for _ in range(2):
                request.reader.ParseFromString(padded(wire.READER))
                calls.append(self.control('OpenSnapshot', request, wire.Snapshot, timeout=self.seconds + 5, stream=True))
            register.register.process.ParseFromString(padded(wire.WORKER))
            stream = self.join(fresh=True)  # the connection of the refused calls may be closed as a flood
            stream.send(register.SerializeToString())
            stream.send(self.ready())
            for _ in range(10):
                beat = wire.MemberMessage()
                beat.heartbeat.sequence = 1
                stream.send(beat.SerializeToString())
                time.sleep(0.1)
                if self.progress().ByteSize() > 1 << 20:
                    self.count('let through: an unknown field')
            self.count(f'ended {stream.end[0]}' if stream.end else 'said')
            stream.cancel()
            for call in calls:
                call.cancel()

    # ---- S5: pinned snapshots

    def hold_snapshots(self):
        """Keeps versions pinned until the attack ends, and asks for more."""
        deadline = time.monotonic() + self.seconds
        calls = []
        while time.monotonic() < deadline:
            try:
                calls.append(self.open_snapshot(seconds=600, timeout=self.seconds + 5)[1])
                self.count('held')
                if len(calls) == 1:
                    print('READY', flush=True)
            except (grpc.RpcError, StopIteration) as error:
                self.count(f'refused {error.code().name}' if isinstance(error, grpc.RpcError) else 'ended')
            time.sleep(0.3)
        for call in calls:
            call.cancel()

    # ---- S15: processes that join

    def stranger(self):
        """Registers beyond the desired number of workers (or under a free index) with the job's model; sends heartbeats and does no
        work."""
        deadline = time.monotonic() + self.seconds
        index = self.target.get('register_as', self.index)
        while time.monotonic() < deadline:
            stream = self.join()
            stream.send(self.register(index=index))
            stream.send(self.ready())
            sequence = 0
            while time.monotonic() < deadline and not stream.end:
                beat = wire.MemberMessage()
                sequence += 1
                beat.heartbeat.sequence = sequence
                stream.send(beat.SerializeToString())
                if self.target.get('lies'):
                    stream.send(self._lies())
                if self.target.get('fails'):
                    failure = wire.MemberMessage()
                    failure.failure.reason = 'because a stranger says so'
                    stream.send(failure.SerializeToString())
                time.sleep(0.1)
            self.count(f'ended {stream.end[0]}' if stream.end else 'stayed' if sequence > 5 else 'no answer')
            # An index that is still taken is tried again.
            if self.target.get('until_expelled') and stream.end and sequence > 10:
                return
            stream.cancel()
            time.sleep(0.1)

    def _lies(self):
        message = wire.MemberMessage()
        report = message.worker_progress
        report.view.CopyFrom(self.progress().view.id)
        for value in (1e289, -1e300, float('inf'), float('nan')):
            report.steps.add(step=client.HUGE, samples=1, loss_sum=value, correct=1e300, staleness=client.HUGE)
        report.steps.add(step=0, samples=client.HUGE, loss_sum=1e300)
        report.data_seconds = report.compute_seconds = report.push_seconds = 1e-300
        report.recomputed_samples = report.pushed_bytes = report.gradient_bytes = client.HUGE
        return message.SerializeToString()

    def owing(self):
        """Reports each shard as owing it a version."""
        for _ in self.until_end():
            progress = self.progress()
            for owed in (0, 1, progress.step, client.HUGE):
                message = wire.MemberMessage()
                message.worker_progress.view.CopyFrom(progress.view.id)
                message.worker_progress.owed_version = owed
                message.worker_progress.owing.extend(shard.process.incarnation for shard in progress.view.shards)
                stream = self.join()
                stream.send(self.register())
                stream.send(message.SerializeToString())
                stream.wait(lambda: False, 0.2)
                self.count(f'ended {stream.end[0]}' if stream.end else 'said')
                stream.cancel()
                time.sleep(0.1)

    def come_and_go(self):
        """Registers, is ready, and leaves, under a new incarnation each time."""
        for _ in self.until_end():
            stream = self.join()
            stream.send(self.register())
            stream.send(self.ready())
            leave = wire.MemberMessage()
            leave.leave.reason = 'elsewhere'
            stream.send(leave.SerializeToString())
            stream.wait(lambda: False, 0.05)
            self.count(f'ended {stream.end[0]}' if stream.end else 'left')
            stream.cancel()
