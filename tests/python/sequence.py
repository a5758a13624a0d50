"""Which sample is trained on when. Specified to the bit in services/protocol/samples/sequence.h."""

import numpy as np

MAX_SAMPLES = 1 << 40
_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_ROUNDS = 8
_WINDOW = 1024  # places of an epoch that are permuted together: calls cost more than elements


def splitmix64_mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def splitmix64_at(seed, n):
    """Output n (from 0) of the generator with this `seed`."""
    return splitmix64_mix((seed + (n + 1) * _GAMMA) & _MASK)


def _mix_array(z):
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def fnv1a64(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & _MASK
    return value


def uniform(seed, name, bound, count):
    """The initial values of C++'s built-in models (services/worker/models/initial_values.h)."""
    stream = splitmix64_mix(seed ^ fnv1a64(name))
    n = np.arange(1, count + 1, dtype=np.uint64)
    bits = _mix_array(np.uint64(stream) + n * np.uint64(_GAMMA))
    return (2 * ((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53) - 1) * bound


def _check(what, value):
    if not 1 <= value <= MAX_SAMPLES:
        raise ValueError(f'{what} is {value}: should be from 1 to {MAX_SAMPLES}')


class SampleOrder:
    """Maps positions to samples."""

    def __init__(self, samples, seed, shuffle=True):
        _check('number of samples', samples)
        self.samples = samples
        self._seed = seed
        self._shuffle = shuffle
        self._half_bits = 1
        while 1 << (2 * self._half_bits) < samples:
            self._half_bits += 1
        self._permuted_window = None  # (epoch, number) of the cached window
        self._permuted_indices = None

    def index_at(self, position):
        return self.indices_of(position, position + 1)[0]

    def indices_of(self, begin, end):
        """The sample indices of positions [begin, end), in order; the range may span epochs."""
        indices = []
        while begin < end:
            epoch, place = divmod(begin, self.samples)
            count = min(end - begin, self.samples - place)
            if not self._shuffle:
                places = np.arange(place, place + count)
            else:
                places = self._permuted(epoch, place, place + count)
            indices.extend(places.tolist())
            begin += count
        return indices

    def _permuted(self, epoch, begin, end):
        """Permutes places [begin, end) of an epoch. Consecutive calls usually ask for adjacent
        ranges."""
        if end - begin > _WINDOW:
            return self._permute(epoch, np.arange(begin, end, dtype=np.uint64))
        parts = []
        while begin < end:
            number, first = divmod(begin, _WINDOW)
            last = min(_WINDOW, first + end - begin)
            parts.append(self._window(epoch, number)[first:last])
            begin += last - first
        return np.concatenate(parts)

    def _window(self, epoch, number):
        if (epoch, number) != self._permuted_window:
            begin = number * _WINDOW
            self._permuted_indices = self._permute(epoch, np.arange(
                begin, min(begin + _WINDOW, self.samples), dtype=np.uint64))
            self._permuted_window = (epoch, number)
        return self._permuted_indices

    def _permute(self, epoch, x):
        seed = splitmix64_at(self._seed, epoch)
        keys = [np.uint64(splitmix64_at(seed, r)) for r in range(_ROUNDS)]
        half = np.uint64(self._half_bits)
        mask = np.uint64((1 << self._half_bits) - 1)
        # Arithmetic is modulo 2^64; numpy warns about overflow for scalars only.
        out = np.empty_like(x)
        todo = np.arange(x.size)
        while todo.size:
            left, right = x >> half, x & mask
            for key in keys:
                left, right = right, left ^ (_mix_array(right + key) & mask)
            x = left << half | right
            done = x < np.uint64(self.samples)
            out[todo[done]] = x[done]
            todo, x = todo[~done], x[~done]
        return out


class StepSchedule:
    """The steps of a synchronous job, their microbatches, and the positions of these."""

    def __init__(self, samples, global_batch_size, microbatch_size):
        _check('number of samples', samples)
        _check('globalBatchSize', global_batch_size)
        _check('microbatchSize', microbatch_size)
        self._samples = samples
        self._batch = global_batch_size
        self._microbatch = microbatch_size

    def steps_per_epoch(self):
        return -(-self._samples // self._batch)

    def steps_of_epochs(self, epochs):
        return min(epochs * self.steps_per_epoch(), _MASK)

    def microbatches_per_step(self):
        return -(-self._batch // self._microbatch)

    def microbatches_of_step(self, step):
        begin, end = self.positions_of_step(step)
        return -(-(end - begin) // self._microbatch)

    def positions_of_step(self, step):
        epoch, place = divmod(step, self.steps_per_epoch())
        begin = place * self._batch
        end = min(begin + self._batch, self._samples)
        return epoch * self._samples + begin, epoch * self._samples + end

    def positions_of(self, step, begin, end):
        """The positions of microbatches [begin, end) of a step; empty if all of these are empty."""
        first, last = self.positions_of_step(step)
        count = self.microbatches_of_step(step)

        def border(microbatch):
            return first + min(min(microbatch, count) * self._microbatch, last - first)

        return border(begin), border(end)
