"""Adapts a torch.nn.Module: named tensors whose memory received frames fill."""

import contextlib
import functools

import numpy as np
import torch

from sluice import data as data_lib
from sluice import errors
from sluice import torch_losses
from sluice import torch_modules
from sluice import torch_sync
from sluice import torch_tensors
from sluice import torch_watch
from sluice import wire


class TorchModel:
    """Uses `loss_fn(output, target)` or, if a batch is not a pair, `objective(module, data)`.

    `divided`: a step's gradient is the mean over its parts, which are weighed. `sums`: the
    torch_sync.Sums of the job's workers, if batch norms use the statistics of a whole step.
    """

    def __init__(self, module, loss_fn, objective, divided=True, sums=None):
        self._module = module
        self._sums = sums
        if sums is not None:
            torch_sync.convert(module, sums)
        self._loss_fn = loss_fn
        self._objective = objective
        self._divided = divided
        torch_losses.check(loss_fn, module, divided)
        self._settings = torch_losses.settings(loss_fn)

        found = torch_tensors.of_module(module)
        self._tensors, self._aliases, self._followers = (found.trained, found.aliases,
                                                         found.followers)
        self._check_max_norm()
        self._constants = torch_watch.Constants(found.constants)
        self._watch = torch_watch.Watch(self._tensors)
        self.table = wire.TensorTable()
        for entry in self._tensors:
            self.table.tensors.add(name=entry.name, shape=list(entry.tensor.shape),
                                   dtype=torch_tensors.TYPES[entry.tensor.dtype], kind=entry.kind)
        self._places = {entry.name: i for i, entry in enumerate(self._tensors)}
        self._trained = {id(entry.tensor) for entry in self._tensors
                         if entry.kind == wire.PARAMETER}
        self._current, self._words = None, None
        self.extras_changed = False  # since `extras` was called
        self._ran = self._differentiated = False
        self._deliver = None  # while backward runs: the callback for gradients
        self._delivered = set()
        self._hooks = [_after_gradient(entry.tensor, functools.partial(self._on_gradient, i))
                       for i, entry in enumerate(self._tensors) if entry.kind == wire.PARAMETER]

    def _check_max_norm(self):
        names = {id(entry.tensor): entry.name for entry in self._tensors
                 if entry.kind == wire.PARAMETER}
        for part in self._module.modules():
            if getattr(part, 'max_norm', None) is not None and id(getattr(part, 'weight', None)) in names:
                raise errors.UsageError(
                    f"parameter '{names[id(part.weight)]}' has max_norm={part.max_norm}, which changes "
                    'the parameter in the forward pass: that would be lost, because the shards have the '
                    'parameters. Leave max_norm out, and limit the rows that were read in forward: '
                    'rows * (max_norm / rows.norm(dim=-1, keepdim=True)).clamp(max=1)')

    def initial(self, tensor):
        """The tensor's value, flat, before the first version is bound."""
        entry, spec = self._tensors[tensor], self.table.tensors[tensor]
        now = entry.current()
        if (now is not entry.tensor or list(now.shape) != list(spec.shape) or
                torch_tensors.TYPES.get(now.dtype) != spec.dtype):
            raise errors.UsageError(f"tensor '{entry.name}' was replaced, or has another type or shape, "
                                    'since sluice.Worker got the module: change the module before')
        return torch_tensors.to_flat(entry.tensor)

    def extras(self):
        """The entries of the state_dict that `table` lacks, in the form that extras.keep takes."""
        self._constants.accept()
        self.extras_changed = False
        return self._aliases, self._constants.values()

    def describe(self, spec):
        """Arguments of library.Handle.describe. `spec`: the JobSpec."""
        return torch_modules.describe(self._module, spec, self._sums is not None)

    def skip(self, places):
        """Tables of which only some rows are read."""
        self._watch = torch_watch.Watch(self._tensors, places)

    def recycle(self, memory):
        """The library no longer reads this gradient."""

    def view(self, arrays):
        """For bind: tensors over flat arrays, and the arrays' words."""
        return ([torch_tensors.from_flat(array, spec)
                 for array, spec in zip(arrays, self.table.tensors)],
                [torch_watch.words(array) if entry.tensor.device.type == 'cpu' else None
                 for array, entry in zip(arrays, self._tensors)])

    def bind(self, view):
        """Makes the module use the memory of a view (on a GPU: copies its content)."""
        self._current, self._words = view
        for i, (each, entry) in enumerate(zip(self._current, self._tensors)):
            if entry.tensor.device.type == 'cpu':
                self._set(i, each)
            else:
                entry.tensor.data.copy_(each)
        self.mark()

    def mark(self):
        """The module has the content of a version. `check` compares with it."""
        self._watch.mark(self._words)

    def check(self):
        """UsageError names a tensor that the program, or a forward pass, has changed."""
        self._watch.check()

    def _set(self, i, memory):
        """Gives a tensor, and each that must be the same memory, this memory."""
        self._tensors[i].tensor.data = memory
        for follower in self._followers.get(i, ()):
            follower.data = memory

    # ---- a step

    def seed(self, seed):
        """Makes dropout draw the same numbers on whichever worker computes the microbatch."""
        # torch.manual_seed keeps a stack trace of every call for devices that were never used.
        torch.default_generator.manual_seed(seed)
        device = self._tensors[0].tensor.device.type
        if device != 'cpu':
            getattr(torch, device).manual_seed_all(seed)

    def begin(self):
        """Until `end`, tensors that a forward pass may change are copies; gradients start empty."""
        self._delivered.clear()
        self._ran = self._differentiated = False
        for entry in self._tensors:
            entry.tensor.grad = None
        self._separate_buffers()
        self._accept_constants()
        self._synchronize(True)

    def _synchronize(self, running):
        if self._sums is not None:
            self._sums.running = running

    def _accept_constants(self):
        self.extras_changed = self._constants.accept() or self.extras_changed

    def _separate_buffers(self):
        for i, entry in enumerate(self._tensors):
            if entry.kind != wire.PARAMETER:
                self._set(i, entry.tensor.detach().clone())

    def run(self, data, samples, loss=None, gradients=None, deliver=None, weight=None, weigh=None):
        """Runs forward and backward of the mean loss times its weight; returns the mean loss as a float.

        The weight is `samples` unless the loss, or the argument, says otherwise: then weigh(weight)
        is called before the first gradient. With `aggregation: Sum`, where `samples` is None, it is 1.

        A mean loss that the caller computed, and gradients of it, are used as given. `deliver`
        means that this call is the last one that adds to the gradients: deliver(index, flat
        gradient) is called for each while backward still runs, on any thread, and `end` omits
        these.
        """
        self._ran = True
        self._check_trained()
        if loss is None:
            self._accept_constants()
        if gradients is not None:
            self._check_synchronized_loss()
            weight = data_lib.applied_weight(weight, samples, weigh)
            self._differentiated = weight > 0
            if weight > 0:
                self._take_gradients(gradients, weight)
            return float(loss) if loss is not None else 0.0
        output = target = None
        if loss is None:
            loss, output, target, weight = self._forward(data)
        self._check_loss(loss)
        if weight is None and self._divided:
            weight = torch_losses.weight_of_loss(loss, self._settings, target, samples)
        weight = data_lib.applied_weight(weight, samples, weigh)
        if weight == 0:
            if self._sums is None:
                return 0.0
            loss = _nothing(loss, output)
        self._differentiated = True
        with self._delivering(deliver):
            (loss * weight).backward()
        return float(loss.detach())

    def _check_synchronized_loss(self):
        if self._sums is not None:
            raise errors.UsageError(
                'with `sync: BatchNorm` step() takes no gradients: batch norms exchange gradients of the losses of '
                'all workers in their backward passes, which must be weighed alike. Give step(batch, loss=loss), or '
                'the Worker a loss_fn')

    @staticmethod
    def _check_loss(loss):
        if not isinstance(loss, torch.Tensor):
            raise errors.UsageError(f'the loss is a {type(loss).__name__}: it must be a tensor with one '
                                    "number, the mean over the batch's samples")
        if loss.dim() != 0:
            raise errors.UsageError(f'the loss has shape {list(loss.shape)}: it must be one '
                                    "number, the mean over the batch's samples")
        if not loss.requires_grad:
            raise errors.UsageError(
                'the loss depends on no parameter that requires a gradient, so nothing would be trained: '
                'it was computed with torch.no_grad(), from a detached output or from numbers (.item(), '
                'numpy), or all parameters are frozen')

    def _check_trained(self):
        """Every parameter that requires a gradient must be one that the job trains."""
        for parameter in self._module.parameters():
            if parameter.requires_grad and id(parameter) not in self._trained and parameter.numel():
                raise self._not_trained(parameter)

    def _not_trained(self, parameter):
        names = [name for name, each in self._module.named_parameters() if each is parameter]
        return errors.UsageError(
            f"parameter '{names[0]}' requires a gradient now, and did not exist or was frozen when "
            'sluice.Worker got the module, so it would not be trained: make the Worker while every '
            'parameter that is to be trained later requires a gradient, and freeze it after that with '
            'requires_grad_(False)')

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
                f"the gradient of '{self._tensors[i].name}' is computed in several parts (as by "
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
            return data_lib.RowGradient(rows, torch_tensors.to_flat(gradient.values()))
        return torch_tensors.to_flat(gradient.to_dense() if gradient.is_sparse else gradient)

    def _forward(self, data):
        """(mean loss, output or None, target or None, weight or None)"""
        data = self._to_device(data)
        if self._objective is not None:
            returned = torch_losses.split(self._objective(self._module, data))
            return returned.loss, returned.outputs, returned.targets, returned.weight
        if not isinstance(data, (tuple, list)) or len(data) < 2:
            raise errors.UsageError(
                'loss_fn(output, target) takes samples that are pairs; for others give '
                'Worker(job, module, objective=...), a function of module and batch')
        output = self._module(*data[:-1])
        returned = torch_losses.split(self._loss_fn(output, data[-1]))
        return returned.loss, output, data[-1], returned.weight

    def _to_device(self, data):
        device = self._tensors[0].tensor.device
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
            entry = self._tensors[self._places[name]]
            if entry.kind != wire.PARAMETER:
                raise errors.UsageError(f"tensor '{name}' is not trained: it is a buffer, or required no "
                                        'gradient when sluice.Worker got the module')
            tensor = entry.tensor
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
        self._synchronize(False)
        if self._ran:
            self._watch.check_parameters()
            self._constants.check()
        if self._differentiated and not self._delivered and not any(
                entry.tensor.grad is not None for entry in self._tensors):
            raise errors.UsageError(
                'this step has no gradient of any parameter, so nothing would be trained: the loss depends '
                'on none of them (detach, no_grad), or all are frozen')
        results = []
        for i, entry in enumerate(self._tensors):
            if entry.kind == wire.PARAMETER:
                if i not in self._delivered:
                    results.append((i, self._take_gradient(entry.tensor)))
                continue
            if entry.tensor.grad is not None and isinstance(entry.tensor, torch.nn.Parameter):
                raise self._not_trained(entry.tensor)
            if entry.kind == wire.BUFFER:
                # A forward pass may have replaced this tensor by another one.
                results.append((i, _change(entry, self._current[i], microbatches)))
        self._restore_buffers()
        return results

    def _restore_buffers(self):
        for i, entry in enumerate(self._tensors):
            if entry.kind == wire.PARAMETER:
                continue
            entry.put_back()
            if entry.tensor.device.type == 'cpu':
                self._set(i, self._current[i])
            else:
                entry.tensor.data.copy_(self._current[i])
        self._watch.settle()

    # ---- evaluation

    def evaluate(self, data):
        """The data_lib.Evaluated of a batch, in evaluation mode. Buffers that it changes are restored."""
        modes = [(part, part.training) for part in self._module.modules()]
        self._accept_constants()
        self._separate_buffers()
        self._module.eval()
        try:
            with torch.no_grad():
                loss, output, target, weight = self._forward(data)
                if weight is None:
                    weight = torch_losses.weight_of_targets(self._settings, target)
                correct = None
                if (isinstance(output, torch.Tensor) and output.dim() == 2 and
                        isinstance(target, torch.Tensor) and target.dim() == 1 and
                        not target.is_floating_point()):
                    correct = int((output.argmax(1) == target).sum())
                self._watch.check_parameters()
                return data_lib.Evaluated(0.0 if weight == 0 else float(loss), correct, weight, output, target)
        finally:
            for part, training in modes:
                part.training = training
            self._constants.restore()
            self._restore_buffers()

    def parameters(self):
        return {entry.name: entry.tensor for entry in self._tensors}


def _nothing(loss, output):
    """A loss without an effect, whose backward pass takes part in the sums of batch norms all the same."""
    if isinstance(output, torch.Tensor):
        return (output * 0).sum()
    if loss.detach().isfinite():
        return loss
    raise errors.UsageError(
        f'the weight of a batch is 0, and its loss is {float(loss.detach())}: with `sync: BatchNorm` its backward '
        'pass takes part in the step, so the loss must be finite: divide by the weight, but at least by 1 '
        '(weight.clamp(min=1))')


def _change(entry, before, microbatches):
    """What the microbatches add to a buffer, flat; None: nothing."""
    after = entry.current()
    if after is None or after.shape != before.shape or after.dtype != before.dtype:
        now = 'None' if after is None else f'{after.dtype} of shape {list(after.shape)}'
        raise errors.UsageError(
            f"buffer '{entry.name}' is {before.dtype} of shape {list(before.shape)}, and this step made "
            f'it {now}, which the shards cannot add up: give it its final type and shape before '
            'sluice.Worker gets the module, or register it with persistent=False')

    after = after.detach().to(before.device)
    if torch_tensors.same(before, after):
        return None
    changed = (before != after) & ~(before.isnan() & after.isnan())
    if not before[changed].isfinite().all():
        raise errors.UsageError(
            f"buffer '{entry.name}' is infinite or NaN where this step changes it, so there is no change "
            'that the shards can add: let it begin with a finite number, or register it with '
            'persistent=False')
    # Unchanged elements may be infinite.
    return torch_tensors.to_flat(
        torch.where(changed, (after - before) * microbatches, torch.zeros_like(before))).copy()


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
