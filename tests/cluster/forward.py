#!/usr/bin/env python3
"""Makes a service inside a network namespace reachable on loopback of the current one.

    forward.py NAMESPACE PORT=HOST:PORT [PORT=HOST:PORT ...]

NAMESPACE is a name in /run/netns, or a path such as /proc/PID/ns/net. The listening sockets are opened here and stay here;
the process then enters the namespace and dials from there.
"""

import asyncio
import os
import socket
import sys


def listen_here_and_go_there(namespace, specs):
    inherited = []
    for spec in specs:
        port, target = spec.split('=')
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(('127.0.0.1', int(port)))
        listener.listen(512)
        listener.set_inheritable(True)
        inherited.append(f'{listener.detach()}={target}')
    path = namespace if '/' in namespace else '/run/netns/' + namespace
    os.execvp('nsenter', ['nsenter', '--net=' + path, sys.executable, __file__, '--inherited'] + inherited)


async def pump(reader, writer):
    try:
        while data := await reader.read(262144):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except (OSError, RuntimeError):
        writer.close()


async def forward(reader, writer, host, port):
    try:
        far_reader, far_writer = await asyncio.open_connection(host, port)
    except OSError:
        writer.close()
        return
    for one in (writer, far_writer):
        one.get_extra_info('socket').setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
    writer.close()
    far_writer.close()


async def serve(specs):
    servers = []
    for spec in specs:
        descriptor, target = spec.split('=')
        host, port = target.rsplit(':', 1)
        servers.append(await asyncio.start_server(
            lambda reader, writer, host=host, port=int(port): forward(reader, writer, host, port),
            sock=socket.socket(fileno=int(descriptor))))
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == '__main__':
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    if sys.argv[1] == '--inherited':
        asyncio.run(serve(sys.argv[2:]))
    else:
        listen_here_and_go_there(sys.argv[1], sys.argv[2:])
