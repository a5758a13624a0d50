"""Adapts a torch.nn.Module: named tensors whose memory received frames fill."""

import contextlib
import functools

import numpy as np
import torch

from sluice import data as data_lib
from sluice import errors
from sluice import wire

_TYPES = {
    torch.float32: wire.FLOAT32,
    torch.float64: wire.FLOAT64,
    torch.bfloat16: wire.BFLOAT16,
    torch.float16: wire.FLOAT16,
    torch.int64: wire.INT64,
}
# Types of constants, by their safetensors names.
_CONSTANT_TYPES = {
    torch.float32: 'F32', torch.float64: 'F64', torch.bfloat16: 'BF16', torch.float16: 'F16',
    torch.int64: 'I64', torch.int32: 'I32', torch.int16: 'I16', torch.int8: 'I8',
    torch.uint8: 'U8', torch.bool: 'BOOL', torch.complex64: 'C64',
}


def to_flat(tensor):
    """A flat numpy array in storage type, over the tensor's memory if possible."""
    flat = tensor.detach().reshape(-1)
    if flat.device.type != 'cpu':
        flat = flat.cpu()
    if flat.dtype is torch.bfloat16:
        return flat.contiguous().view(torch.int16).numpy().view(np.uint16)
    return flat.contiguous().numpy()


def from_flat(array, tensor):
    """A tensor of the shape and type of `tensor` over the array's memory."""
    if tensor.dtype is torch.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).view(tensor.shape)
    return torch.from_numpy(array).view(tensor.shape)


def module_tensors(module):
    """Splits the state_dict into three parts, each in order.

    Trained tensors: (name, tensor, kind, owner, attribute). Parameters that require no gradient are
    buffers; `num_batches_tracked` is a counter. Second names of these: name -> first name.
    Constants, name -> tensor: other integers, and tensors without elements. Buffers that are not
    persistent are in no part.
    """
    found = []
    first_names = {}
    aliases = {}
    constants = {}
    owners = dict(module.named_modules(remove_duplicate=False))

    for name, tensor in module.state_dict(keep_vars=True).items():
        if not isinstance(tensor, torch.Tensor):
            continue
        if id(tensor) in first_names:
            aliases[name] = first_names[id(tensor)]
            continue

        path, _, attribute = name.rpartition('.')
        if tensor.numel() == 0:
            constants[name] = tensor
            continue

        if isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad:
            kind = wire.PARAMETER
        elif tensor.is_floating_point():
            kind = wire.BUFFER
        elif attribute == 'num_batches_tracked':
            kind = wire.COUNTER
        else:
            constants[name] = tensor
            continue

        if tensor.dtype not in _TYPES:
            raise errors.UsageError(f"tensor '{name}' is {tensor.dtype}, which cannot be trained; "
                                    'use float32, float64, bfloat16 or float16')
        first_names[id(tensor)] = name
        found.append((name, tensor, kind, owners.get(path), attribute))

    if not any(kind == wire.PARAMETER for _, _, kind, _, _ in found):
        raise errors.UsageError('the module has no parameter that requires a gradient')
    return found, aliases, constants


class TorchModel:
    """Uses `loss_fn(output, target)` or, if a batch is not a pair, `objective(module, data)`."""

    def __init__(self, module, loss_fn, objective):
        self._module = module
        self._loss_fn = loss_fn
        self._objective = objective
        self._tensors, self._aliases, self._constants = module_tensors(module)
        self.table = wire.TensorTable()
        for name, tensor, kind, _, _ in self._tensors:
            self.table.tensors.add(name=name, shape=list(tensor.shape), dtype=_TYPES[tensor.dtype],
                                   kind=kind)
        self._initial = [to_flat(tensor).copy() for _, tensor, _, _, _ in self._tensors]
        self._places = {name: i for i, (name, *_) in enumerate(self._tensors)}
        self._current = None
        self._deliver = None  # while backward runs: the callback for gradients
        self._delivered = set()
        self._hooks = [_after_gradient(tensor, functools.partial(self._on_gradient, i))
                       for i, (_, tensor, kind, _, _) in enumerate(self._tensors)
                       if kind == wire.PARAMETER]

    def initial(self, tensor):
        return self._initial[tensor]

    def extras(self):
        """The entries of the state_dict that `table` lacks, in the form that extras.keep takes."""
        constants = {name: (_CONSTANT_TYPES[tensor.dtype], to_flat(tensor), tensor.shape)
                     for name, tensor in self._constants.items() if tensor.dtype in _CONSTANT_TYPES}
        return self._aliases, constants

    def recycle(self, memory):
        """The library no longer reads this gradient."""

    def view(self, arrays):
        """For bind: tensors over flat arrays."""
        return [from_flat(array, entry[1]) for array, entry in zip(arrays, self._tensors)]

    def bind(self, view):
        """Makes the module use the memory of a view (on a GPU: copies its content)."""
        self._current = view
        for each, entry in zip(view, self._tensors):
            tensor = entry[1]
            if tensor.device.type == 'cpu':
                tensor.data = each
            else:
                tensor.data.copy_(each)

    # ---- a step

    def seed(self, seed):
        """Makes dropout draw the same numbers on whichever worker computes the microbatch."""
        # torch.manual_seed keeps a stack trace of every call for devices that were never used.
        torch.default_generator.manual_seed(seed)
        device = self._tensors[0][1].device.type
        if device != 'cpu':
            getattr(torch, device).manual_seed_all(seed)

    def begin(self):
        """Until `end`, tensors that a forward pass may change are copies; gradients start empty."""
        self._delivered.clear()
        for _, tensor, kind, _, _ in self._tensors:
            if kind == wire.PARAMETER:
                tensor.grad = None
            else:
                tensor.data = tensor.detach().clone()

    def run(self, data, scale, loss=None, gradients=None, deliver=None):
        """Runs forward and backward of `scale` times the mean loss; returns the mean loss as a
        float.

        A mean loss that the caller computed, and gradients of it, are used as given. `deliver`
        means that this call is the last one that adds to the gradients: deliver(index, flat
        gradient) is called for each while backward still runs, on any thread, and `end` omits
        these.
        """
        if gradients is not None:
            self._take_gradients(gradients, scale)
            return float(loss) if loss is not None else 0.0
        if loss is None:
            loss = self._mean_loss(data)
        if loss.dim() != 0:
            raise errors.UsageError(f'the loss has shape {list(loss.shape)}: it must be one '
                                    "number, the mean over the batch's samples")
        if loss.requires_grad:
            with self._delivering(deliver):
                (loss * scale).backward()
        return float(loss.detach())

    @contextlib.contextmanager
    def _delivering(self, deliver):
        self._deliver = deliver
        try:
            yield
        finally:
            self._deliver = None

    def _on_gradient(self, i, tensor):
        """Called after backward has added to a parameter's gradient. Delivers the gradient if `run`
        was given `deliver`."""
        if self._deliver is None:
            return
        if i in self._delivered:
            raise errors.UsageError(
                f"the gradient of '{self._tensors[i][0]}' is computed in several parts (as by "
                'torch.utils.checkpoint with use_reentrant=True), so it is complete only when backward '
                'ends: give Worker(..., overlap=False)')
        self._delivered.add(i)
        self._deliver(i, self._take_gradient(tensor))

    @staticmethod
    def _take_gradient(tensor):
        gradient = tensor.grad
        tensor.grad = None
        if gradient is None:
            return None
        if gradient.is_sparse and gradient.dim() == 2 and gradient.sparse_dim() == 1:
            gradient = gradient.coalesce()
            rows = gradient.indices()[0].cpu().numpy().astype(np.uint64)
            return data_lib.RowGradient(rows, to_flat(gradient.values()))
        return to_flat(gradient.to_dense() if gradient.is_sparse else gradient)

    def _mean_loss(self, data):
        return self._forward(data)[0]

    def _forward(self, data):
        """(mean loss, output or None, target or None)"""
        data = self._to_device(data)
        if self._objective is not None:
            return self._objective(self._module, data), None, None
        if not isinstance(data, (tuple, list)) or len(data) < 2:
            raise errors.UsageError(
                'loss_fn(output, target) takes samples that are pairs; for others give '
                'Worker(job, module, objective=...), a function of module and batch')
        output = self._module(*data[:-1])
        return self._loss_fn(output, data[-1]), output, data[-1]

    def _to_device(self, data):
        device = self._tensors[0][1].device
        if device.type == 'cpu':
            return data
        if isinstance(data, torch.Tensor):
            return data.to(device)
        if isinstance(data, (tuple, list)):
            return type(data)(self._to_device(part) for part in data)
        if isinstance(data, dict):
            return {key: self._to_device(part) for key, part in data.items()}
        return data

    def _take_gradients(self, gradients, scale):
        for name, gradient in gradients.items():
            if name not in self._places:
                raise errors.UsageError(f"there is no parameter '{name}'; there are "
                                        f'{", ".join(self._places)}')
            tensor = self._tensors[self._places[name]][1]
            gradient = torch.as_tensor(gradient, dtype=tensor.dtype, device=tensor.device)
            if gradient.shape != tensor.shape:
                raise errors.ModelMismatch(f"the gradient of '{name}' has shape "
                                           f'{list(gradient.shape)}, the parameter '
                                           f'{list(tensor.shape)}: give the gradient of the whole '
                                           "parameter, of the mean loss over the batch's samples")
            tensor.grad = gradient * scale

    def end(self, microbatches):
        """Returns [(index, flat gradient or change or None)] of all that was not delivered, and
        restores what `begin` copied."""
        results = []
        for i, (_, tensor, kind, owner, attribute) in enumerate(self._tensors):
            if kind == wire.PARAMETER:
                if i not in self._delivered:
                    results.append((i, self._take_gradient(tensor)))
                continue
            if kind == wire.BUFFER:
                # A forward pass may have replaced this tensor by another one.
                after = owner._buffers.get(attribute, tensor) if owner is not None else tensor
                change = self._change(self._current[i], after, microbatches)
                results.append((i, change))
            self._restore(i, tensor, owner, attribute)
        return results

    @staticmethod
    def _change(before, after, microbatches):
        after = after.detach().to(before.device)
        if torch.equal(before, after):
            return None
        return to_flat((after - before) * microbatches).copy()

    def _restore(self, i, tensor, owner, attribute):
        if owner is not None and attribute in owner._buffers:
            owner._buffers[attribute] = tensor
        if tensor.device.type == 'cpu':
            tensor.data = self._current[i]
        else:
            tensor.data.copy_(self._current[i])

    # ---- evaluation

    def evaluate(self, data):
        """(mean loss, number of correct predictions or None), in evaluation mode."""
        training = self._module.training
        self._module.eval()
        try:
            with torch.no_grad():
                loss, output, target = self._forward(data)
                correct = None
                if (isinstance(output, torch.Tensor) and output.dim() == 2 and
                        isinstance(target, torch.Tensor) and target.dim() == 1 and
                        not target.is_floating_point()):
                    correct = int((output.argmax(1) == target).sum())
                return float(loss), correct
        finally:
            self._module.train(training)

    def parameters(self):
        return {name: tensor for name, tensor, *_ in self._tensors}


def _after_gradient(tensor, hook):
    """Registers hook(tensor) to be called whenever a backward pass has added to the tensor's
    gradient."""
    if hasattr(tensor, 'register_post_accumulate_grad_hook'):  # since torch 2.1
        return tensor.register_post_accumulate_grad_hook(hook)
    # The node that adds to the gradient lives as long as it is referenced.
    node = tensor.expand_as(tensor).grad_fn.next_functions[0][0]
    return node, node.register_hook(lambda *unused: hook(tensor))


def set_threads(threads):
    torch.set_num_threads(threads)


def choose_deterministic_algorithms():
    """Like C++ for bit-exact jobs. Operations without a deterministic version warn."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
