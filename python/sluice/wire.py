"""The messages of proto/ by name: `wire.View`, `wire.SYNCHRONOUS`, ...

They are created at import from the descriptor set that the build writes beside this file. Unlike
generated code, a descriptor set works with any version of protobuf in the environment. The pool is
private: a program may use other messages of the same names.
"""

import os

from google.protobuf import descriptor_pb2
from google.protobuf import descriptor_pool
from google.protobuf import message_factory

_PACKAGE = 'sluice.v1'
_DESCRIPTORS = os.path.join(os.path.dirname(__file__), 'wire.descriptors')


def _message_class(pool, descriptor):
    if hasattr(message_factory, 'GetMessageClass'):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(pool).GetPrototype(descriptor)


def _load(path):
    """Maps names to message classes and enumeration values.

    Names within a message have its name as prefix: `Refusal_EXPELLED`.
    """
    try:
        with open(path, 'rb') as file:
            content = file.read()
    except FileNotFoundError:
        raise ImportError(
            f'{path} is missing: the build makes it from proto/. Install the package with '
            '`pip install ./python` from the root of the repository.') from None

    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(content)
    names = {}
    for file in files.file:
        pool.Add(file) if hasattr(pool, 'Add') else pool.AddSerializedFile(file.SerializeToString())

    for file in files.file:
        for message in file.message_type:
            descriptor = pool.FindMessageTypeByName(f'{_PACKAGE}.{message.name}')
            names[message.name] = _message_class(pool, descriptor)
            for enum in message.enum_type:
                for value in enum.value:
                    names[f'{message.name}_{value.name}'] = value.number
        for enum in file.enum_type:
            for value in enum.value:
                names[value.name] = value.number
    return names


globals().update(_load(_DESCRIPTORS))
