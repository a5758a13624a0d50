"""Reads the samples that a job asks a worker for, in this process or ahead in loader processes."""

import typing

from sluice import data as data_lib
from sluice import errors
from sluice import seeds as seeds_lib
from sluice import streams
from sluice import wire

# A batch of samples: (held-out data?, position of the first sample, number of samples).
Key = typing.Tuple[bool, int, int]


class Reader:
    """Reads samples of one data set, with random numbers that follow from their positions.

    Picklable, if data set and `collate` are.
    """

    def __init__(self, dataset: typing.Any, collate: typing.Optional[typing.Callable], seed: int,
                 what: str = 'the dataset', held_out: bool = False) -> None:
        self._dataset = dataset
        self.own_collate = collate is not None
        # Chosen here, because a loader process imports torch.
        self._collate = collate or data_lib.default_collate_of_program()
        self._what = what
        self._purposes = ((seeds_lib.EVALUATION, seeds_lib.EVALUATION_COLLATE) if held_out else
                          (seeds_lib.TRAINING, seeds_lib.COLLATE))
        self._seed = seed
        self._seeds = None

    def __getstate__(self):
        return {**self.__dict__, '_seeds': None}

    def read(self, positions: typing.Sequence[int], indices: typing.Sequence[int],
             cancelled: typing.Optional[typing.Callable[[], bool]] = None) -> typing.Any:
        """The batch of these samples; None if it was cancelled meanwhile."""
        arrays = None if self.own_collate else data_lib.arrays_of(self._dataset)
        if arrays is not None:
            return data_lib.rows_of(arrays, indices)
        if self._seeds is None:
            self._seeds = seeds_lib.Seeds(self._seed, self._dataset)
        samples = self._read(positions, indices, cancelled)
        if samples is None:
            return None
        if self.own_collate:
            self._seeds.set(self._purposes[1], positions[0])
        return self._collate(samples)

    def _read(self, positions, indices, cancelled):
        if hasattr(self._dataset, '__getitems__') and not data_lib.reads_one_by_one(self._dataset):
            self._seeds.set(self._purposes[0], positions[0])
            return self._guarded(lambda: self._dataset.__getitems__(list(indices)), indices[0])
        samples = []
        draws = not data_lib.draws_nothing(self._dataset)
        for position, index in zip(positions, indices):
            if cancelled is not None and cancelled():
                return None
            if draws:
                self._seeds.set(self._purposes[0], position)
            samples.append(self._sample(position, index))
        return samples

    def _sample(self, position, index):
        if isinstance(self._dataset, streams.Stream):
            return self._dataset.at(position, lambda place: self._seeds.set(self._purposes[0], place))
        return self._guarded(lambda: self._dataset[index], index)

    def _guarded(self, function, index):
        # These two would end a loop or a generator of the program without an error.
        try:
            return function()
        except (StopIteration, GeneratorExit) as error:
            raise errors.UsageError(
                f'{self._what} raised {type(error).__name__} for sample {index}, as next() does when it '
                'finds nothing: give next() a default, or raise an error that says what is missing'
            ) from error


class Expected:
    """Guesses which batches a worker will be asked for next.

    Intuition. In a synchronous job a worker computes the same part of each step as long as the
    members stay the same; otherwise it walks along a lease. A wrong guess costs the time of reading
    ahead, nothing else.
    """

    def __init__(self, samples: int, spec: typing.Any) -> None:
        training = spec.training
        self._samples = samples
        self._batch = max(1, training.global_batch_size)
        self._walks = (training.mode != wire.SYNCHRONOUS or
                       spec.data.partitioning == wire.DataSpec_PER_WORKER)
        drop = training.last_batch == wire.TrainingSpec_DROP
        self._steps = max(1, samples // self._batch if drop else -(-samples // self._batch))
        self._last_step = training.steps or training.epochs * self._steps
        self._step = None
        self._parts = []    # (offset, size) of the batches in this step
        self._pattern = []  # of those of a whole step

    def following(self, first: int, size: int, count: int) -> typing.List[typing.Tuple[int, int]]:
        """(first position, size) of the `count` batches after this one."""
        if self._walks:
            return [(first + size + i * size, size) for i in range(count)]
        step = self._step_at(first)
        begin, end = self._range(step)
        part = (first - begin, size)
        if step != self._step:
            self._pattern = self._parts or self._pattern
            self._step, self._parts = step, []
        pattern = self._pattern
        if end - begin == min(self._batch, self._samples):
            self._parts = sorted({*self._parts, part})
            if part not in pattern:
                pattern = self._parts
        return self._predict(pattern, step, part[0], count)

    def _predict(self, pattern, step, offset, count):
        found = []
        while pattern and len(found) < count and step < (self._last_step or step + 1):
            begin, end = self._range(step)
            for place, size in pattern:
                size = min(size, end - begin - place)
                if size > 0 and place > offset:
                    found.append((begin + place, size))
            step, offset = step + 1, -1
        return found[:count]

    def _step_at(self, position):
        epoch, place = divmod(position, self._samples)
        return epoch * self._steps + place // self._batch

    def _range(self, step):
        epoch, place = divmod(step, self._steps)
        begin = place * self._batch
        return (epoch * self._samples + begin,
                epoch * self._samples + min(begin + self._batch, self._samples))


class Samples:
    """The training samples of a worker, and the held-out ones.

    `indices_at(first, count)` returns the samples at positions of the training data. `loaders` has
    the arguments of loaders.Loaders; None: samples are read in this process.
    """

    def __init__(self, training: typing.Any, evaluation: typing.Any, collate: typing.Any,
                 spec: typing.Any, indices_at: typing.Callable[[int, int], typing.List[int]],
                 loaders: typing.Optional[dict] = None) -> None:
        seed = spec.training.seed
        self._readers = {False: Reader(training, collate, seed)}
        if evaluation is not None:
            self._readers[True] = Reader(evaluation, collate, seed, 'the evaluation dataset', True)
        self._indices_at = indices_at
        self._expected = Expected(len(training), spec)
        self._following = []  # expected after the batch that was read last
        self._loaders = None
        if loaders is not None:
            from sluice import loaders as loaders_lib
            self._loaders = loaders_lib.Loaders(self._readers, self._indices_of, **loaders)

    def read(self, positions: typing.Sequence[int], indices: typing.Sequence[int]) -> typing.Any:
        """The batch of these training samples."""
        contiguous = positions[-1] - positions[0] + 1 == len(positions)
        if self._loaders is None or not contiguous:
            return self._read_here(False, positions, indices)
        key = (False, positions[0], len(positions))
        self._following = [(False, *each) for each in self._expected.following(
            positions[0], len(positions), self._loaders.ahead)]
        return self._loaders.get(key, self._following)

    def evaluate(self, indices: typing.Sequence[int],
                 size: int) -> typing.Iterator[typing.Tuple[int, typing.Any]]:
        """(number of samples, batch) of held-out samples with successive indices."""
        parts = [indices[begin:begin + size] for begin in range(0, len(indices), size)]
        keys = [(True, part[0], len(part)) for part in parts]
        for number, part in enumerate(parts):
            if self._loaders is None:
                yield len(part), self._read_here(True, part, part)
            else:
                yield len(part), self._loaders.get(keys[number], keys[number + 1:] + self._following)

    def close(self) -> None:
        """Ends the loader processes."""
        if self._loaders is not None:
            self._loaders.close()

    def _read_here(self, held_out, positions, indices):
        with seeds_lib.kept():
            return self._readers[held_out].read(positions, indices)

    def _indices_of(self, key):
        held_out, first, size = key
        return list(range(first, first + size)) if held_out else self._indices_at(first, size)
