"""Makes sockets inside a network namespace, for a test that runs outside it."""

import ctypes
import os
import socket
import threading

_CLONE_NEWNET = 0x40000000


def socket_inside(path, make):
    """Returns the result of make(), called in the network namespace at `path`. A socket keeps the namespace it was made in."""
    result = []

    def enter_and_make():
        # A thread changes only its own namespace.
        namespace = os.open(path, os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f'cannot enter {path}')
            result.append(make())
        except OSError as error:
            result.append(error)
        finally:
            os.close(namespace)

    thread = threading.Thread(target=enter_and_make)
    thread.start()
    thread.join()
    if isinstance(result[0], OSError):
        raise result[0]
    return result[0]


def listener_inside(path, address='127.0.0.1', port=0):
    def listen():
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(128)
        return listener
    return socket_inside(path, listen)
