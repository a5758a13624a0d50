"""A model of plain numpy arrays: a dict of parameters, and a function that differentiates."""

import numpy as np

from sluice import errors
from sluice import memory as memory_lib
from sluice.protocol import elements
from sluice.protocol import wire

_TYPES = {np.dtype(np.float32): wire.FLOAT32, np.dtype(np.float64): wire.FLOAT64}


class NumpyModel:
    """`loss_fn(parameters, data)` returns (mean loss, {name: gradient of the mean loss})."""

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
        self._pool = memory_lib.Pool()
        self.begin()

    def initial(self, tensor):
        return self._initial[tensor]

    @staticmethod
    def extras():
        return {}, {}

    @staticmethod
    def allocate(count, dtype):
        return np.zeros(count, dtype=dtype)

    def bind(self, arrays):
        self._parameters = {}
        for (name, shape), array in zip(self._shapes.items(), arrays):
            view = array.view()
            view.flags.writeable = False
            self._parameters[name] = view.reshape(shape)

    def seed(self, job_seed, step, first_microbatch):
        pass  # numpy programs use their own generators

    def begin(self):
        self._gradients = {}  # by index, flat
        self._delivered = set()

    def run(self, data, scale, loss=None, gradients=None, deliver=None):
        """Like TorchModel.run. The function returns all gradients at once, so each is delivered as
        soon as it is scaled."""
        if gradients is None:
            if self._loss_fn is None:
                raise errors.UsageError('give worker.step(batch, gradients=...), or the worker a '
                                        'loss_fn(parameters, data) -> (mean loss, gradients)')
            loss, gradients = self._loss_fn(self._parameters, data)
        for name, gradient in gradients.items():
            self._check(name, gradient)
        for name, gradient in gradients.items():
            place = self._places[name]
            total = self._scaled(place, gradient, scale)
            if place in self._gradients:
                total = self._gradients[place] + total
            self._gradients[place] = total
            if deliver is not None:
                self._delivered.add(place)
                deliver(place, total)
        return float(loss) if loss is not None else 0.0

    def _check(self, name, gradient):
        if name not in self._places:
            raise errors.UsageError(f"there is no parameter '{name}'; there are "
                                    f'{", ".join(self._places)}')
        if np.shape(gradient) != self._shapes[name]:
            raise errors.ModelMismatch(f"the gradient of '{name}' has shape "
                                       f'{list(np.shape(gradient))}, the parameter '
                                       f'{list(self._shapes[name])}: give the gradient of the '
                                       "whole parameter, of the mean loss over the batch's "
                                       'samples')

    def _scaled(self, place, gradient, scale):
        """A flat array that the program does not share: it may reuse its own for the next batch."""
        dtype = elements.STORAGE[self.table.tensors[place].dtype]
        flat = np.asarray(gradient, dtype=dtype).reshape(-1)
        if scale == 1 and _is_frozen(flat):
            return flat
        scaled = self._pool.take(flat.size, dtype)
        np.multiply(flat, dtype.type(scale), out=scaled)
        return scaled

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
        return float(self._loss_fn(self._parameters, data)[0]), None

    def parameters(self):
        return self._parameters


def _is_frozen(array):
    """Whether neither the array nor any array that it is a view of is writable."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        array = array.base
    return array is None
