"""The random numbers of a data set: a function of the job's seed and the sample's position.

A sample is then augmented alike by every process that reads it, and reading it changes no random
numbers of the program.
"""

import contextlib
import hashlib
import random
import struct
import sys
import typing

import numpy as np

# What the numbers are drawn for.
TRAINING, EVALUATION, COLLATE, EVALUATION_COLLATE = range(4)

_DEPTH = 4       # of attributes, from the data set on
_ELEMENTS = 64   # of a list or tuple that may have generators


def _torch():
    return sys.modules.get('torch')


class Seeds:
    """Seeds `random`, `numpy.random`, `torch` and the generators that are attributes of `dataset`, of
    its transforms or of the data sets within it."""

    def __init__(self, seed: int, dataset: typing.Any = None) -> None:
        self._seed = seed
        self._generators = generators_of(dataset)

    def of(self, purpose: int, position: int) -> int:
        """63 bits."""
        digest = hashlib.blake2b(struct.pack('<QBQ', self._seed, purpose, position), digest_size=8)
        return int.from_bytes(digest.digest(), 'little') >> 1

    def set(self, purpose: int, position: int) -> None:
        seed = self.of(purpose, position)
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        torch = _torch()
        if torch is not None:
            torch.default_generator.manual_seed(seed)
        for number, generator in enumerate(self._generators):
            _seed_generator(generator, (seed + number) >> 1)


@contextlib.contextmanager
def kept() -> typing.Iterator[None]:
    """Restores the program's random numbers after the block."""
    torch = _torch()
    states = random.getstate(), np.random.get_state(), torch and torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if torch is not None:
            torch.default_generator.set_state(states[2])


def _seed_generator(generator, seed):
    if isinstance(generator, random.Random):
        generator.seed(seed)
    elif isinstance(generator, np.random.RandomState):
        generator.seed(seed & 0xFFFFFFFF)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    else:
        generator.manual_seed(seed)


def generators_of(dataset: typing.Any) -> list:
    """The generators of random numbers among the attributes of a data set, and of objects in them."""
    torch = _torch()
    kinds = (random.Random, np.random.RandomState, np.random.Generator)
    if torch is not None:
        kinds += (torch.Generator,)
    found, seen = [], set()

    def visit(value, depth):
        if id(value) in seen or depth > _DEPTH:
            return
        seen.add(id(value))
        if isinstance(value, kinds):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            if len(value) <= _ELEMENTS:
                for element in value:
                    visit(element, depth)
        elif not isinstance(value, type) and hasattr(value, '__dict__'):
            for name, attribute in sorted(vars(value).items()):
                visit(attribute, depth + 1)

    visit(dataset, 0)
    return found
