"""A model of plain numpy arrays: a dict of parameters, and a function that differentiates."""

import numpy as np

from sluice import data as data_lib
from sluice import elements
from sluice import errors
from sluice import wire

_TYPES = {np.dtype(np.float32): wire.FLOAT32, np.dtype(np.float64): wire.FLOAT64}

_RETURNED = ('loss', 'gradients', 'weight', 'outputs', 'targets')  # keys of a loss_fn's dict


class NumpyModel:
    """`loss_fn(parameters, data)` returns (mean loss, {name: gradient of the mean loss}), or these and
    the weight of the mean: (mean loss, gradients, weight) or ((mean loss, weight), gradients), or a dict
    with loss, gradients and, if there are, weight, outputs and targets."""

    def __init__(self, arrays, loss_fn):
        self._loss_fn = loss_fn
        self._shapes = {name: np.shape(array) for name, array in arrays.items()}
        self._places = {name: i for i, name in enumerate(arrays)}

        self.table = wire.TensorTable()
        self._initial = []
        for name, array in arrays.items():
            array = np.asarray(array)
            if array.dtype not in _TYPES:
                raise errors.UsageError(f"parameter '{name}' is {array.dtype}: use float32 or "
                                        'float64')
            self.table.tensors.add(name=name, shape=list(array.shape), dtype=_TYPES[array.dtype],
                                   kind=wire.PARAMETER)
            self._initial.append(np.array(array, dtype=array.dtype).reshape(-1))

        if not self._initial:
            raise errors.UsageError('the model has no parameters')

        self._parameters = {}
        self._pool = _Pool()
        self.begin()

    def initial(self, tensor):
        return self._initial[tensor]

    @staticmethod
    def extras():
        return {}, {}

    extras_changed = False

    @staticmethod
    def describe(spec):
        """Any number of samples, and nothing to note."""
        return {}

    def skip(self, places):
        pass

    def mark(self):
        pass

    def check(self):
        """The arrays are read only, so nothing has changed."""

    def recycle(self, memory):
        """Reuses an array that the library no longer reads."""
        self._pool.put(memory)

    def view(self, arrays):
        """For bind: name -> array, read only."""
        view = {}
        for (name, shape), array in zip(self._shapes.items(), arrays):
            view[name] = array.reshape(shape)
            view[name].flags.writeable = False
        return view

    def bind(self, view):
        """Makes these the parameters."""
        self._parameters = view

    def seed(self, seed):
        pass  # numpy programs use their own generators

    def begin(self):
        self._gradients = {}  # by index, flat
        self._delivered = set()

    def run(self, data, samples, loss=None, gradients=None, deliver=None, weight=None,
            weigh=None):
        """Like TorchModel.run. The function returns all gradients at once, so each is delivered as
        soon as it is scaled."""
        if gradients is None:
            loss, gradients, weight, _, _ = self._computed(data)
        weight = data_lib.applied_weight(weight, samples, weigh)
        if weight == 0:  # a mean of nothing
            return 0.0
        if not gradients:
            raise errors.UsageError('this step has no gradient of any parameter, so nothing would be '
                                    'trained')
        for name, gradient in gradients.items():
            self._check(name, gradient)
        for name, gradient in gradients.items():
            place = self._places[name]
            total = self._scaled(place, gradient, weight)
            if place in self._gradients:
                total = self._whole(place, self._gradients[place]) + self._whole(place, total)
            self._gradients[place] = total
            if deliver is not None:
                self._delivered.add(place)
                deliver(place, total)
        return float(loss) if loss is not None else 0.0

    def _computed(self, data):
        """(mean loss, gradients, weight, outputs, targets) of the program's function; None: not given."""
        if self._loss_fn is None:
            raise errors.UsageError('give worker.step(batch, gradients=...), or the worker a '
                                    'loss_fn(parameters, data) -> (mean loss, gradients)')
        given = dict(self._parameters)
        returned = self._loss_fn(given, data)
        replaced = [name for name, array in self._parameters.items() if given.get(name) is not array]
        if replaced:
            raise errors.UsageError(
                f"parameter '{replaced[0]}' was replaced in the loss_fn, which would be lost: the job's "
                'optimizer changes parameters, by their gradients')
        if isinstance(returned, dict):
            unknown = [key for key in returned if key not in _RETURNED]
            if unknown or not {'loss', 'gradients'} <= returned.keys():
                raise errors.UsageError(
                    f'the loss_fn returned a dict with {", ".join(map(repr, returned))}: it must have '
                    f"'loss' and 'gradients', and may have {', '.join(map(repr, _RETURNED[2:]))}")
            loss, gradients, weight, outputs, targets = (returned.get(key) for key in _RETURNED)
        else:
            loss, gradients, *weight = returned
            outputs = targets = None
            if isinstance(loss, tuple):  # jax.value_and_grad(loss, has_aux=True)
                loss, *weight = loss
            weight = weight[0] if weight else None
        return loss, gradients, None if weight is None else data_lib.checked_weight(weight), outputs, targets

    def _check(self, name, gradient):
        if name not in self._places:
            raise errors.UsageError(f"there is no parameter '{name}'; there are "
                                    f'{", ".join(self._places)}')
        if isinstance(gradient, data_lib.RowGradient):
            shape = self._shapes[name]
            rows = np.asarray(gradient.rows)
            if len(shape) != 2 or np.size(gradient.values) != rows.size * shape[1]:
                raise errors.ModelMismatch(f"the gradient of '{name}' has {rows.size} rows and "
                                           f'{np.size(gradient.values)} values, the parameter '
                                           f'shape {list(shape)}')
            data_lib.check_rows(rows, f"the gradient of '{name}'")
        elif np.shape(gradient) != self._shapes[name]:
            raise errors.ModelMismatch(f"the gradient of '{name}' has shape "
                                       f'{list(np.shape(gradient))}, the parameter '
                                       f'{list(self._shapes[name])}: give the gradient of the '
                                       "whole parameter, of the mean loss over the batch's "
                                       'samples')

    def _scaled(self, place, gradient, scale):
        """A scaled flat copy, because the program may reuse its own array for the next batch."""
        dtype = elements.STORAGE[self.table.tensors[place].dtype]
        if isinstance(gradient, data_lib.RowGradient):
            return data_lib.RowGradient(np.array(gradient.rows, np.uint64),
                                        np.array(gradient.values, dtype).reshape(-1) * dtype.type(scale))
        flat = np.asarray(gradient, dtype=dtype).reshape(-1)
        if scale == 1 and _is_frozen(flat):
            return flat
        scaled = self._pool.take(flat.size, dtype)
        np.multiply(flat, dtype.type(scale), out=scaled)
        return scaled

    def _whole(self, place, gradient):
        if isinstance(gradient, data_lib.RowGradient):
            return gradient.dense(self.table.tensors[place].shape)
        return gradient

    def end(self, microbatches):
        del microbatches
        results = [(place, self._gradients.get(place)) for place in self._places.values()
                   if place not in self._delivered]
        self.begin()
        return results

    def evaluate(self, data):
        if self._loss_fn is None:
            raise errors.UsageError('to evaluate held-out samples the worker needs a loss_fn('
                                    'parameters, data)')
        loss, _, weight, outputs, targets = self._computed(data)
        correct = None
        if np.ndim(outputs) == 2 and np.ndim(targets) == 1 and np.asarray(targets).dtype.kind in 'iu':
            correct = int((np.argmax(outputs, 1) == np.asarray(targets)).sum())
        return data_lib.Evaluated(0.0 if weight == 0 else float(loss), correct, weight, outputs, targets)

    def parameters(self):
        return dict(self._parameters)


def _is_frozen(array):
    """Whether neither the array nor any array that it is a view of is writable."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        array = array.base
    return array is None


class _Pool:
    """Arrays that are reused: fresh memory from the system costs as much as filling it twice."""

    _MOST = 2  # unused arrays of one kind that are kept

    def __init__(self):
        self._mine = {}  # id -> an array of the pool that is in use
        self._free = {}  # (elements, dtype) -> arrays

    def take(self, count, dtype):
        """A flat array of undefined content."""
        free = self._free.setdefault((count, dtype), [])
        array = free.pop() if free else np.empty(count, dtype=dtype)
        self._mine[id(array)] = array
        return array

    def put(self, array):
        """Takes back an array of the pool; ignores any other array."""
        if self._mine.pop(id(array), None) is not None:
            free = self._free[array.size, array.dtype]
            if len(free) < self._MOST:
                free.append(array)
