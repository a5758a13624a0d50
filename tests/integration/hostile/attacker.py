"""A hostile client: carries out one attack per run, with messages made from proto/ or, below gRPC, by hand.

    attacker.py ATTACK '{"coordinator": "127.0.0.1:1234", "job": "default/test/test", "seconds": 2, ...}'

The attacks are the methods of Attacker; client.py describes the settings. The last line of its output is its report, as JSON.
"""

import json
import os
import sys

import grpc

from sluice import wire
from tests.integration.hostile import client
from tests.integration.hostile import floods
from tests.integration.hostile import member_attacks
from tests.integration.hostile import word_attacks


class Attacker(member_attacks.MemberAttacks, word_attacks.WordAttacks, floods.Floods):

    # ---- S8, S9: clients without permission

    def everything_without_permission(self):
        """As a process that does not belong to the job: reads, suspends, registers. Calls that succeed are counted as 'let through: ...'."""
        def attempt(what, call):
            try:
                call()
                self.count(f'let through: {what}')
            except grpc.RpcError as error:
                self.count(f'refused {what}: {error.code().name}')
            except StopIteration:
                self.count(f'refused {what}: no answer')

        attempt('OpenSnapshot', self.open_snapshot)
        attempt('SetDesired', lambda: self.control(
            'SetDesired', wire.SetDesiredRequest(suspend=True), wire.SetDesiredResponse))
        attempt('GetProgress', self.progress)
        for name, channel, method, first in self._first_messages():
            stream = client.Stream(channel, method, self.metadata())
            stream.send(first)
            if stream.wait(lambda: len(stream.replies) > 0, 3):
                refused = name == 'Join' and wire.CoordinatorMessage.FromString(stream.replies[0]).HasField('refusal')
                self.count(f'refused {name}: Refusal' if refused else f'let through: {name}')
            else:
                self.count(f'refused {name}: {stream.end[0] if stream.end else "no answer"}')
            stream.cancel()

    def _first_messages(self):
        yield 'Join', self.channel(self.coordinator, 'coordinator'), client.JOIN, self.register()
        shards = [tuple(each) for each in self.target.get('shards', [])]
        if 'let through: GetProgress' in self.counts:  # its answer has the incarnations
            shards = [(each.address, each.process.incarnation) for each in self.progress().view.shards]
        for address, incarnation in shards:
            shard = wire.View().shards.add(address=address, process=wire.ProcessId(incarnation=incarnation))
            for role in (wire.WORKER, wire.READER, wire.SHARD):
                yield f'Exchange as {role}', self.channel(address, 'ps'), client.EXCHANGE, self.hello(shard, role)


def main():
    name, target = sys.argv[1], json.loads(sys.argv[2])
    if target.get('idle'):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    if 'user' in target:
        os.setgroups([])
        os.setgid(target['user'])
        os.setuid(target['user'])
    attacker = Attacker(target)
    error = None
    try:
        getattr(attacker, name)()
    except (grpc.RpcError, OSError) as raised:
        error = f'{type(raised).__name__}: {raised}'
    print(json.dumps({'counts': attacker.counts, 'error': error}), flush=True)
    os._exit(0)  # without waiting for the threads of open streams


if __name__ == '__main__':
    main()
