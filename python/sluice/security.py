"""The credentials that a program presents to a job's processes: the job's certificates, or a run's
secret."""

import os
import pathlib

import grpc

from sluice import errors

VARIABLE = 'SLUICE_TLS_DIRECTORY'
SECRET_VARIABLE = 'SLUICE_SECRET_FILE'
SECRET_METADATA = 'sluice-secret'  # services/transport/security/job_secret.h
_MAX_SECRET_LENGTH = 256
_FILES = ('ca.crt', 'tls.key', 'tls.crt')


class TlsDirectory:
    """A directory with ca.crt, tls.crt and tls.key, as in `sluice certificates` or a job's pod.

    It is read for each connection, because certificates are renewed while programs run.
    """

    encrypted = True

    def __init__(self, path):
        self._path = pathlib.Path(path)
        self._last = None
        self.credentials()  # reports missing files now

    def credentials(self):
        try:
            authority, key, chain = [(self._path / name).read_bytes() for name in _FILES]
        except OSError as error:
            if self._last is not None:
                return self._last  # the files are being replaced
            raise errors.UsageError(
                f'{self._path} is not a directory of TLS credentials ({error}): it must contain '
                f'ca.crt, tls.crt and tls.key. Set it with tls_directory= or {VARIABLE}') from None
        self._last = grpc.ssl_channel_credentials(authority, key, chain)
        return self._last


    def metadata(self):
        return None


class SecretFile:
    """The file with a run's secret: connections are plain text, and each call carries the secret.

    `sluice run` creates it in the job's directory for the processes that it starts.
    """

    encrypted = False

    def __init__(self, path):
        try:
            with open(path, encoding='ascii') as file:
                secret = file.read(_MAX_SECRET_LENGTH + 16).strip()
        except PermissionError as error:
            raise errors.UsageError(
                f'{path} cannot be read ({error}): only the user who started the job may '
                'communicate with its processes') from None
        except (OSError, ValueError) as error:
            raise errors.UsageError(
                f"{path} is not a file with a run's secret ({error}). Set it with secret_file= or "
                f'{SECRET_VARIABLE}') from None
        if not secret or len(secret) > _MAX_SECRET_LENGTH or not secret.isprintable():
            raise errors.UsageError(f"{path} does not contain a run's secret, "
                                    'which is one line of text')
        self._metadata = ((SECRET_METADATA, secret),)

    def metadata(self):
        return self._metadata


def find(directory=None, secret_file=None):
    """The given credentials, or else those of the environment; None: plain text without a
    secret."""
    if directory and secret_file:
        raise errors.UsageError('give tls_directory= or secret_file=, not both')
    if not directory and not secret_file:
        directory = os.environ.get(VARIABLE)
        secret_file = None if directory else os.environ.get(SECRET_VARIABLE)
    if directory:
        return TlsDirectory(directory)
    return SecretFile(secret_file) if secret_file else None


def is_encrypted(security):
    return security is not None and security.encrypted


def metadata(security):
    """The metadata of each call."""
    return None if security is None else security.metadata()


def server_options(role):
    """Pods are dialled by address; a server must present the certificate of its role."""
    return [('grpc.ssl_target_name_override', f'{role}.sluice.internal')]
