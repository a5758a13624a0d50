"""Batch norm with the statistics of a whole step: `training: {sync: BatchNorm}`."""

import inspect
import sys

import torch

from sluice import errors

_BATCH_NORM = torch.nn.modules.batchnorm._BatchNorm
_SCRIPTED = ('BatchNorm1d', 'BatchNorm2d', 'BatchNorm3d', 'SyncBatchNorm')
_MOST_CHANNELS = 65535  # one sum has two numbers for each, and the count
_NAME_LENGTH = 100      # of a module, in messages


class Sums:
    """Sums over the workers that compute in a step. give(name, float64 array): replaces the numbers by
    their sums, or leaves them if the job no longer needs the step's result."""

    def __init__(self, give):
        self._give = give
        self.running = False  # a part of a step is computed

    def of(self, name, *tensors):
        """The sums of each of these tensors of one dimension, in float64 on the CPU."""
        parts = [tensor.detach().to('cpu', torch.float64) for tensor in tensors]
        numbers = torch.cat(parts).numpy()
        if self.running:
            self._give(name, numbers)
        return torch.from_numpy(numbers).split([part.numel() for part in parts])


def convert(module, sums):
    """Makes the batch norms of a module use these sums. Names, parameters, buffers and hooks stay. Returns
    how many there are."""
    classes = {}
    count = 0
    for name, part in list(module.named_modules()):
        if getattr(part, 'original_name', '') in _SCRIPTED:
            raise errors.UsageError(
                f"training.sync: batch norm '{name}' is in TorchScript, where it cannot be replaced: give the "
                'Worker the module before torch.jit.script, or remove `sync: BatchNorm` from the manifest')
        if not isinstance(part, _BATCH_NORM):
            continue
        _check(name or type(module).__name__, part)
        kind = type(part)
        if kind not in classes:
            classes[kind] = type(kind.__name__, (_Synchronized, kind), {
                '_sluice_sums': sums, '_sluice_base': kind, 'forward': _uncompiled(_Synchronized.forward)})
        part.__class__ = classes[kind]
        part._sluice_name = (name or kind.__name__)[:_NAME_LENGTH]
        count += 1
    return count


def _uncompiled(forward):
    """torch.compile makes graphs of what is before and after it: a graph cannot wait for other workers."""
    if 'torch._dynamo' not in sys.modules or not hasattr(torch, 'compiler'):  # importing it takes a second
        return forward
    if 'reason' not in inspect.signature(torch.compiler.disable).parameters:
        return torch.compiler.disable(forward)
    return torch.compiler.disable(forward, reason='a batch norm of a job with `sync: BatchNorm` waits for the other '
                                                  'workers: leave fullgraph=True out')


def _check(name, part):
    own = 'forward' in vars(part) or type(part).forward not in (_BATCH_NORM.forward, torch.nn.SyncBatchNorm.forward)
    if own:
        raise errors.UsageError(
            f"training.sync: batch norm '{name}' is a {type(part).__name__}, which has a forward of its own that "
            'cannot be synchronized: use torch.nn.BatchNorm1d, 2d or 3d, or remove `sync: BatchNorm` from the '
            'manifest')
    if part.num_features > _MOST_CHANNELS:
        raise errors.UsageError(f"training.sync: batch norm '{name}' has {part.num_features} channels; at most "
                                f'{_MOST_CHANNELS} can be synchronized')


class _Synchronized:
    """The forward pass of a batch norm with the statistics of a step, as torch.nn.SyncBatchNorm's."""

    def forward(self, input):
        if not (self.training and self._sluice_sums.running):
            return super().forward(input)
        self._check_input_dim(input)
        output, mean, variance, count = _Normalize.apply(input, self.weight, self.bias, self.eps, self._sluice_sums,
                                                         self._sluice_name)
        if self.track_running_stats and self.running_mean is not None:
            self._keep(mean, variance, float(count))
        return output

    def _keep(self, mean, variance, count):
        factor = 0.0 if self.momentum is None else self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                factor = 1.0 / float(self.num_batches_tracked)
        with torch.no_grad():
            for running, now in ((self.running_mean, mean),
                                 (self.running_var, variance * (count / (count - 1)))):
                running.mul_(1 - factor).add_(now.to(running.device, running.dtype), alpha=factor)

    def __reduce_ex__(self, protocol):
        # A copy, and what torch.save writes, is a batch norm of the class that the program used.
        state = {name: value for name, value in vars(self).items() if name != '_sluice_name'}
        return object.__new__, (self._sluice_base,), state


class _Normalize(torch.autograd.Function):

    @staticmethod
    def forward(ctx, input, weight, bias, eps, sums, name):
        """(output, mean, biased variance, count) of the step, the last three in float64 on the CPU."""
        values = _wide(input)
        dims = _all_but_channels(values)
        own_variance, own_mean = torch.var_mean(values, dim=dims, unbiased=False)
        own_count = torch.tensor([float(values.numel() // values.shape[1])], dtype=torch.float64)
        own_mean, own_variance = own_mean.to('cpu', torch.float64), own_variance.to('cpu', torch.float64)
        count, total, squares = sums.of(f"the statistics of batch norm '{name}'", own_count, own_mean * own_count,
                                        (own_variance + own_mean * own_mean) * own_count)
        if count.item() <= 1:
            raise ValueError(f'Expected more than 1 value per channel when training, got input size {input.shape}')

        mean = total / count
        variance = (squares / count - mean * mean).clamp_(min=0)
        inverse = (variance + eps).rsqrt()
        scale = inverse if weight is None else inverse * weight.detach().to('cpu', torch.float64)
        output = (values - _like(mean, values)) * _like(scale, values)
        if bias is not None:
            output = output + _like(bias.detach(), values)

        ctx.save_for_backward(input, mean, inverse, scale, count)
        ctx.sums, ctx.name = sums, name
        ctx.affine = (weight, bias)
        ctx.mark_non_differentiable(mean, variance, count)
        return output.to(input.dtype), mean, variance, count

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient, *unused):
        input, mean, inverse, scale, count = ctx.saved_tensors
        weight, bias = ctx.affine
        gradient = _wide(gradient)
        centered = _wide(input) - _like(mean, gradient)
        dims = _all_but_channels(gradient)
        own = gradient.sum(dims).to('cpu', torch.float64)
        own_product = (gradient * centered).sum(dims).to('cpu', torch.float64)
        total, product = ctx.sums.of(f"the gradients of batch norm '{ctx.name}'", own, own_product)

        of_input = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            slope = product / count * inverse * inverse
            of_input = (gradient - _like(total / count, gradient) - centered * _like(slope, gradient)) * _like(
                scale, gradient)
            of_input = of_input.to(input.dtype)
        # Those of the other workers are added by the shards.
        if weight is not None and ctx.needs_input_grad[1]:
            of_weight = (own_product * inverse).to(weight.device, weight.dtype)
        if bias is not None and ctx.needs_input_grad[2]:
            of_bias = own.to(bias.device, bias.dtype)
        return of_input, of_weight, of_bias, None, None, None


def _wide(tensor):
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _all_but_channels(tensor):
    return [dim for dim in range(tensor.dim()) if dim != 1]


def _like(numbers, tensor):
    """One number for each channel, to be used with this tensor."""
    return numbers.to(tensor.device, tensor.dtype).reshape([-1 if dim == 1 else 1 for dim in range(tensor.dim())])
