"""The credentials that a program presents to a job's processes: the job's certificates, or a run's
secret. The library reads the files (services/transport/security)."""

import os
import typing

from sluice import errors
from sluice import types

VARIABLE = 'SLUICE_TLS_DIRECTORY'
SECRET_VARIABLE = 'SLUICE_SECRET_FILE'


class Credentials(typing.NamedTuple):
    """One of the two: a directory with ca.crt, tls.crt and tls.key, as in `sluice certificates` or a
    job's pod; or the file with the secret of a run of this machine, whose connections are plain
    text."""
    tls_directory: typing.Optional[types.Path] = None
    secret_file: typing.Optional[types.Path] = None


def find(directory: typing.Optional[types.Path] = None,
         secret_file: typing.Optional[types.Path] = None) -> typing.Optional[Credentials]:
    """The given credentials, or else those of the environment; None: plain text without a
    secret."""
    if directory and secret_file:
        raise errors.UsageError('give tls_directory= or secret_file=, not both')
    if not directory and not secret_file:
        directory = os.environ.get(VARIABLE)
        secret_file = None if directory else os.environ.get(SECRET_VARIABLE)
    return Credentials(directory, secret_file) if directory or secret_file else None
