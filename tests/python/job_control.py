"""The coordinator's calls for the operator, as tests make them. Each raises grpc.RpcError."""

import pathlib

import grpc

from sluice import wire


def open_channel(address, tls_directory=None, role='coordinator', options=()):
    """A connection of its own; with TLS, to a server of this role."""
    options = [('grpc.use_local_subchannel_pool', 1), ('grpc.enable_http_proxy', 0), *options]
    if tls_directory is None:
        return grpc.insecure_channel(address, options=options)
    files = [(pathlib.Path(tls_directory) / name).read_bytes()
             for name in ('ca.crt', 'tls.key', 'tls.crt')]
    # Processes are dialled by address; a server must present the certificate of its role.
    options.append(('grpc.ssl_target_name_override', f'{role}.sluice.internal'))
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(*files), options=options)


def secret_metadata(secret_file):
    """The metadata that shows a run's secret; None: no secret."""
    if secret_file is None:
        return None
    return (('sluice-secret', pathlib.Path(secret_file).read_text().strip()),)


class JobControl:

    def __init__(self, address, tls_directory=None, secret_file=None, timeout=10):
        self._channel = open_channel(address, tls_directory)
        self._metadata = None if tls_directory else secret_metadata(secret_file)
        self._timeout = timeout

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._channel.close()

    def progress(self):
        return self.call('GetProgress', wire.GetProgressRequest(), wire.JobProgress)

    def call(self, method, request, response, timeout=None):
        call = self._channel.unary_unary(
            f'/sluice.v1.JobControl/{method}',
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString)
        return call(request, timeout=timeout or self._timeout, metadata=self._metadata)
