"""Metrics of a program's own: what workers accumulate over held-out samples, and the values.

Each worker accumulates the states of the samples that it evaluates; one worker merges the states of all
samples, in the samples' order, and computes the values. So each sample counts once, and a value does not
depend on which worker evaluated which samples.
"""

import collections.abc
import io
import json
import math
import sys
import typing

import numpy as np

from sluice import errors

MAX_BYTES = 8 << 20  # of all states of an evaluation: kMaxMetricStateBytes
_WORTH_A_PROJECTION = 64 << 10  # bytes: small states are mostly overhead
_MERGED = ('sum', 'max', 'min', 'cat')
_TORCHMETRICS = {f'dim_zero_{kind}': kind for kind in ('sum', 'mean', 'max', 'min', 'cat')}


class Mean:
    """A metric that is a mean: function(outputs, targets) returns (sum, count) of a batch."""

    reductions = {'total': 'sum', 'count': 'sum'}

    def __init__(self, function: typing.Callable[..., typing.Tuple[float, float]]) -> None:
        self._function = function
        self.reset()

    def reset(self) -> None:
        """Forgets all batches."""
        self.total = self.count = 0.0

    def update(self, outputs: typing.Any, targets: typing.Any) -> None:
        """Adds a batch."""
        total, count = self._function(outputs, targets)
        self.total += float(total)
        self.count += float(count)

    def compute(self) -> float:
        """The mean; NaN of nothing."""
        return self.total / self.count if self.count else math.nan


class Metrics:
    """The metrics of a worker. `names` are sorted; methods take a metric by its place in them.

    `samples`: held-out samples; `torch`: the module if the model is PyTorch's, else None."""

    def __init__(self, given: typing.Mapping[str, typing.Any], samples: int, torch: typing.Any) -> None:
        if not isinstance(given, collections.abc.Mapping):
            raise errors.UsageError(
                f'metrics is a {type(given).__name__}: give {{"name": metric}}, in which a metric is a function '
                'of (outputs, targets) or an object with update, compute and reset')
        self.names = sorted(given)
        self._samples = samples
        gathered = _Gathered(torch)
        self._metrics = [_make(name, given[name], gathered, torch) for name in self.names]
        self._evaluated = 0

    def begin(self) -> None:
        """Forgets what was accumulated."""
        self._evaluated = 0
        for metric in self._metrics:
            metric.reset()

    def update(self, outputs: typing.Any, targets: typing.Any, samples: int) -> None:
        """Adds a batch of so many samples."""
        self._evaluated += samples
        if not self._metrics:
            return
        if outputs is None:
            raise errors.UsageError(
                f"metric '{self.names[0]}' needs the outputs of the model: let the objective return (loss, "
                'outputs, targets) or {"loss": ..., "outputs": ..., "targets": ...} (of numpy models: '
                '{"loss": ..., "gradients": ..., "outputs": ..., "targets": ...})')
        sizes = [math.prod(leaf.shape) for _, leaf in _leaves(targets) if hasattr(leaf, 'shape')]
        if sizes and not any(sizes):
            return  # a batch without targets adds nothing
        for name, metric in zip(self.names, self._metrics):
            with _named(name, 'update'):
                metric.update(outputs, targets)

    def states(self) -> typing.List[bytes]:
        """What was accumulated, of each metric."""
        states = [_encode(metric.state()) for metric in self._metrics]
        sizes = {name: len(state) for name, state, metric in zip(self.names, states, self._metrics)
                 if metric.grows()}
        size = sum(sizes.values())
        if size > _WORTH_A_PROJECTION and size * self._samples > MAX_BYTES * self._evaluated:
            largest = max(sizes, key=sizes.get)
            raise errors.UsageError(
                f"metric '{largest}' keeps {sizes[largest]:,} bytes of {self._evaluated:,} samples, so that the "
                f'metrics would keep {size * self._samples // self._evaluated:,} bytes of all {self._samples:,} '
                f'held-out samples, and {MAX_BYTES:,} are possible. Give a metric that keeps sums (sluice.Mean, or '
                'an object with update, compute, reset and `reductions`), let the objective return smaller '
                'outputs, or give fewer held-out samples')
        return states

    def value(self, place: int, parts: typing.Callable[[int], typing.List[bytes]]) -> typing.Tuple[float, str]:
        """(value, what the user should know of it). parts(place) returns the states of a metric in the order
        of the samples."""
        metric, name = self._metrics[place], self.names[place]
        source = self._metrics.index(metric.source)
        states = [_decode(part) for part in parts(source)]
        with _named(name, 'compute'):
            value, note = metric.compute(states)
        return _number(name, value), f"metric '{name}' {note}" if note else ''


def _make(name, metric, gathered, torch):
    if not isinstance(name, str):
        raise errors.UsageError(f'the name of a metric is {name!r}: it must be a text')
    if all(callable(getattr(metric, method, None)) for method in ('update', 'compute', 'reset')):
        return _Accumulated(name, metric, torch)
    if not callable(metric) or isinstance(metric, collections.abc.Mapping):
        raise errors.UsageError(
            f"metric '{name}' is a {type(metric).__name__}: it must be a function of (outputs, targets) that "
            'returns a number, or an object with update(outputs, targets), compute() and reset(), such as '
            "torchmetrics'")
    return gathered.function(metric)


class _named:
    """Names the metric whose function raises."""

    def __init__(self, name, method):
        self._what = f"metric '{name}' ({method})"

    def __enter__(self):
        pass

    def __exit__(self, kind, error, traceback):
        if kind is None or not issubclass(kind, Exception) or issubclass(kind, errors.SluiceError):
            return
        raise errors.UsageError(f'{self._what}: {kind.__name__}: {error}') from error


def _number(name, value):
    try:
        if isinstance(value, collections.abc.Mapping):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        shape = f' of shape {list(value.shape)}' if hasattr(value, 'shape') else ''
        raise errors.UsageError(f"the value of metric '{name}' is a {type(value).__name__}{shape}: it must be one "
                                'number (torchmetrics: average="macro", or a metric for each value)') from None


# ---- functions of all outputs and targets


class _Gathered:
    """The outputs and targets of all samples, for all functions: kept once, in the first one's state."""

    def __init__(self, torch):
        self._torch = torch
        self._first = self._padding = None
        self._batches = []

    def function(self, function):
        metric = _Function(self, function)
        self._padding = getattr(function, 'padding', self._padding)
        self._first = self._first or metric
        return metric

    def reset(self):
        self._batches = []

    def update(self, outputs, targets):
        # Copies, because a module may return the same memory for each batch.
        batch = {(what, *path): _array(leaf, what).copy()
                 for what, value in (('outputs', outputs), ('targets', targets)) for path, leaf in _leaves(value)}
        if self._batches and batch.keys() != self._batches[0].keys():
            raise errors.UsageError('batches have different outputs or targets: '
                                    f'{list(batch)}, before {list(self._batches[0])}')
        self._batches.append(batch)

    def state(self):
        return _joined(self._batches, self._padding)

    def arguments(self, states):
        joined = _joined([state for state in states if state], self._padding)
        if not joined:
            return None
        leaves = [(path, self._torch.from_numpy(array) if self._torch else array) for path, array in joined.items()]
        return tuple(_built([(path[1:], leaf) for path, leaf in leaves if path[0] == what])
                     for what in ('outputs', 'targets'))


class _Function:
    """A metric that is a function of (outputs, targets) of all samples."""

    def __init__(self, gathered, function):
        self._gathered = gathered
        self._function = function

    @property
    def source(self):
        """The metric whose states have what this one needs."""
        return self._gathered._first

    def grows(self):
        return self is self.source

    def reset(self):
        if self is self.source:
            self._gathered.reset()

    def update(self, outputs, targets):
        if self is self.source:
            self._gathered.update(outputs, targets)

    def state(self):
        return self._gathered.state() if self is self.source else {}

    def compute(self, states):
        arguments = self._gathered.arguments(states)
        return (math.nan if arguments is None else self._function(*arguments)), ''


def _joined(batches, padding):
    """The arrays of all batches, joined along the samples."""
    if not batches:
        return {}
    try:
        return {path: np.concatenate(_padded([batch[path] for batch in batches], padding)) for path in batches[0]}
    except ValueError as error:
        raise errors.UsageError(
            f'batches have outputs or targets of different shapes ({error}), so those of all samples cannot be '
            'joined: pad them alike, or let the function have an attribute `padding`, the number to '
            'fill them up with, or give an object with update, compute and reset') from None


def _padded(arrays, padding):
    """Arrays of equal length in each dimension but the first one."""
    if padding is None or len({array.ndim for array in arrays}) > 1:
        return arrays
    shape = np.max([array.shape[1:] for array in arrays], axis=0)
    return [np.pad(array, [(0, 0), *((0, int(most - own)) for most, own in zip(shape, array.shape[1:]))],
                   constant_values=padding) for array in arrays]


# ---- objects with update, compute and reset


class _Accumulated:
    """An object of torchmetrics, or one with `reductions`: name of an attribute -> sum, max, min or cat."""

    def __init__(self, name, metric, torch):
        self._metric = metric
        self._torch = torch
        self._reductions = _reductions(name, metric)
        self._guesses = _guesses_by_batch(metric)
        self._updates = self._kinds = 0

    @property
    def source(self):
        return self

    def grows(self):
        return 'cat' in self._reductions.values()

    def reset(self):
        self._metric.reset()
        self._updates = self._kinds = 0

    def update(self, outputs, targets):
        if self._torch is not None:
            device = getattr(self._metric, 'device', None)
            if isinstance(device, self._torch.device):
                outputs, targets = _moved(outputs, device), _moved(targets, device)
        self._metric.update(outputs, targets)
        self._updates += 1
        if self._guesses and getattr(outputs, 'is_floating_point', lambda: False)():
            probable = bool(((outputs >= 0) & (outputs <= 1)).all())
            self._kinds |= 1 if probable else 2

    def state(self):
        state = {('updates',): np.int64(self._updates), ('kinds',): np.int64(self._kinds)}
        for name, reduction in self._reductions.items():
            value = getattr(self._metric, name)
            if reduction != 'cat':
                state[('state', name)] = _array(value, f"its attribute '{name}'")
                continue
            for i, part in enumerate(value):
                state[('state', name, i)] = _array(part, f"its attribute '{name}'")
        return state

    def compute(self, states):
        states = [state for state in states if state[('updates',)] > 0]
        if not states:
            return math.nan, ''
        kinds = 0
        for state in states:
            kinds |= int(state[('kinds',)])
        if kinds == 3:
            return math.nan, (
                'is NaN: torchmetrics takes the outputs of a batch for probabilities if all are in [0, 1], otherwise '
                'for logits, and this evaluation had batches of both kinds. Give it probabilities: override its '
                'update(preds, target) to call super().update(preds.sigmoid(), target), or softmax(1)')
        self._metric.reset()
        for name, reduction in self._reductions.items():
            if reduction == 'cat':
                merged = [self._like(None, array) for state in states for array in _list_of(state, name)]
            else:
                merged = self._like(getattr(self._metric, name),
                                    _merged(reduction, [state[('state', name)] for state in states]))
            setattr(self._metric, name, merged)
        if hasattr(self._metric, '_update_count'):
            self._metric._update_count = sum(int(state[('updates',)]) for state in states)
        if hasattr(self._metric, '_computed'):
            self._metric._computed = None
        try:
            return self._metric.compute(), ''
        finally:
            self.reset()

    def _like(self, before, array):
        """The array in the form of the state before: a tensor, an array or a number."""
        if isinstance(before, (bool, int, float)):
            return array.item()
        if self._torch is not None and (before is None or isinstance(before, self._torch.Tensor)):
            tensor = self._torch.from_numpy(np.array(array))
            device = getattr(self._metric, 'device', None)
            if isinstance(device, self._torch.device):
                tensor = tensor.to(device)
            return tensor if before is None else tensor.to(before.dtype)
        return array


def _list_of(state, name):
    places = sorted(path[2] for path in state if len(path) == 3 and path[1] == name)
    return [state[('state', name, place)] for place in places]


def _merged(reduction, arrays):
    """Merges the states of parts, in their order; sums of floating-point numbers in float64."""
    merged = arrays[0]
    if reduction == 'sum' and merged.dtype.kind == 'f':
        merged = merged.astype(np.float64)
    for array in arrays[1:]:
        merged = {'sum': np.add, 'max': np.maximum, 'min': np.minimum}[reduction](merged, array)
    return np.asarray(merged)


def _reductions(name, metric):
    """Attribute -> how its values are merged. UsageError: they cannot be merged exactly."""
    refused = f"metric '{name}' ({type(metric).__name__}) cannot be computed over several workers"
    if hasattr(metric, '_reductions') and hasattr(metric, '_defaults'):
        _check_flat(metric, refused)
        reductions = {}
        for state, function in metric._reductions.items():
            kind = _TORCHMETRICS.get(getattr(function, '__name__', None))
            if isinstance(metric._defaults[state], list):
                kind = 'cat' if function is None else kind
            elif kind == 'cat' or function is None:
                kind = None
            if kind not in _MERGED:
                what = getattr(function, '__name__', None) or 'None'
                raise errors.UsageError(
                    f"{refused}: its state '{state}' is reduced by {what}, which does not give the value over all "
                    'samples. Give a function of (outputs, targets), which gets those of all samples')
            reductions[state] = kind
        return reductions

    reductions = getattr(metric, 'reductions', None)
    if not isinstance(reductions, collections.abc.Mapping) or not reductions:
        raise errors.UsageError(
            f"{refused}: it has no `reductions`, a dict of the attributes that update() changes, such as "
            "{'correct': 'sum', 'count': 'sum'}")
    for state, kind in reductions.items():
        if kind not in _MERGED:
            raise errors.UsageError(f"{refused}: reductions['{state}'] is {kind!r}; it must be one of "
                                    f'{", ".join(_MERGED)}')
        if not hasattr(metric, state):
            raise errors.UsageError(f"{refused}: it has no attribute '{state}', which `reductions` names")
    return dict(reductions)


def _check_flat(metric, refused):
    """States of metrics within a metric would be lost."""
    inner = [type(part).__name__ for part in metric.modules() if part is not metric and hasattr(part, '_reductions')]
    if inner or not metric._reductions:
        raise errors.UsageError(
            f'{refused}: it has {f"the metric {inner[0]} within it" if inner else "no states of its own"}. Give each '
            'metric by itself, or a function of (outputs, targets)')


def _guesses_by_batch(metric):
    """Whether the metric takes each batch for probabilities or logits by its values (torchmetrics 1.9). Those
    of multiclass labels take the largest output, which is the same for both."""
    classes = type(metric).__mro__
    if '.classification.' not in type(metric).__module__ or not type(metric).__module__.startswith('torchmetrics.'):
        return False
    return not any(each.__name__ in ('MulticlassStatScores', 'MulticlassConfusionMatrix', 'MulticlassExactMatch')
                   for each in classes)


# ---- arrays


def _leaves(value, path=()):
    """(path, array) of each array in tuples, lists and dicts."""
    if isinstance(value, collections.abc.Mapping):
        for key in value:
            yield from _leaves(value[key], (*path, str(key)))
    elif isinstance(value, (tuple, list)):
        for i, part in enumerate(value):
            yield from _leaves(part, (*path, i))
    else:
        yield path, value


def _built(leaves):
    """The opposite of _leaves; lists become tuples."""
    if len(leaves) == 1 and not leaves[0][0]:
        return leaves[0][1]
    groups = {}
    for path, leaf in leaves:
        groups.setdefault(path[0], []).append((path[1:], leaf))
    built = {key: _built(group) for key, group in groups.items()}
    return tuple(built.values()) if all(isinstance(key, int) for key in built) else built


def _moved(value, device):
    if hasattr(value, 'to') and hasattr(value, 'device'):
        return value.to(device)
    if isinstance(value, (tuple, list)):
        return type(value)(_moved(part, device) for part in value)
    if isinstance(value, dict):
        return {key: _moved(part, device) for key, part in value.items()}
    return value


def _array(value, what):
    """The value as a numpy array. Types that numpy lacks become float32, which has all their numbers."""
    torch = sys.modules.get('torch')
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.dtype is torch.bfloat16 else value).numpy()
    array = np.asarray(value)
    if array.dtype.kind not in 'biufc':
        raise errors.UsageError(f'{what} has a {type(value).__name__}: only tensors, arrays and numbers can be kept '
                                'over all samples')
    return array


def _encode(state):
    """Path -> array, as bytes."""
    content = io.BytesIO()
    arrays = {f'a{i}': array for i, array in enumerate(state.values())}
    names = np.frombuffer(json.dumps(list(state)).encode(), np.uint8)
    np.savez_compressed(content, names=names, **arrays)
    return content.getvalue()


def _decode(content):
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        names = json.loads(arrays['names'].tobytes())
        return {tuple(name): arrays[f'a{i}'] for i, name in enumerate(names)}
