"""TLS with the processes of a job, by certificates of the job's own authority."""

import os
import pathlib

import grpc

from sluice import errors

VARIABLE = 'SLUICE_TLS_DIRECTORY'
_FILES = ('ca.crt', 'tls.key', 'tls.crt')


class TlsDirectory:
    """A folder with ca.crt, tls.crt and tls.key, as `sluice certificates` or a job's pod has it.

    It is read again for each connection: certificates are renewed while programs run.
    """

    def __init__(self, path):
        self._path = pathlib.Path(path)
        self._last = None
        self.credentials()  # what is missing is said now

    def credentials(self):
        try:
            authority, key, chain = [(self._path / name).read_bytes() for name in _FILES]
        except OSError as error:
            if self._last is not None:
                return self._last  # they are being replaced
            raise errors.UsageError(
                f'{self._path} is no folder of TLS credentials ({error}): it must hold ca.crt, '
                f'tls.crt and tls.key. It is given as tls_directory=, or by {VARIABLE}') from None
        self._last = grpc.ssl_channel_credentials(authority, key, chain)
        return self._last


def find(directory=None):
    """The folder that is given, or that the environment names; None: plain text."""
    directory = directory or os.environ.get(VARIABLE)
    return TlsDirectory(directory) if directory else None


def server_options(role):
    """Pods are dialled by addresses; what a server must show is the certificate of its role."""
    return [('grpc.ssl_target_name_override', f'{role}.sluice.internal')]
