"""What the mean of a loss is a mean of.

The shards divide the sum of a step's gradients by the sum of its parts' weights. That is the gradient
of the loss over the whole step if each part gives its mean times its weight. The weight is the number
of samples, unless targets are left out (ignore_index) or weighed (class weights).
"""

import functools
import typing

import torch
from torch.nn import functional

from sluice import data as data_lib
from sluice import errors

_MEAN, _SUM = 1, 2  # at::Reduction
_CROSS_ENTROPY = ('NllLossBackward0', 'NllLoss2DBackward0')
# Nodes of a graph that multiply by a number, or change the shape only.
_LINEAR = ('MulBackward0', 'DivBackward0', 'NegBackward0', 'SqueezeBackward0', 'ViewBackward0',
           'ReshapeAliasBackward0', 'ToCopyBackward0', 'CloneBackward0', 'AliasBackward0')
_SEARCHED = 64  # nodes next to the loss
_RETURN_WEIGHT = ('Let the objective (or loss_fn) return (loss, weight): the mean, and what it was divided '
                  'by, such as the number of targets that count')


class Settings(typing.NamedTuple):
    """Of a cross entropy of class numbers."""
    weight: typing.Optional[torch.Tensor]
    ignore_index: int


def check(loss_fn, module, divided):
    """UsageError if a part of a step cannot compute the loss, or would not train all of it. `divided`:
    a step is the mean over its parts."""
    if isinstance(loss_fn, torch.nn.Module):
        known = {id(parameter) for parameter in module.parameters()}
        for name, parameter in loss_fn.named_parameters():
            if parameter.requires_grad and id(parameter) not in known:
                raise errors.UsageError(
                    f"parameter '{name}' of the loss_fn would not be trained: make the loss_fn a part "
                    'of the module and use Worker(..., objective=...), or freeze the parameter')
    if divided and _keywords(loss_fn).get('reduction', 'mean') == 'sum':
        raise _not_a_mean()


def _not_a_mean():
    return errors.UsageError(
        "the loss has reduction='sum', so the result would depend on the number of workers: use "
        "reduction='mean' (and a learning rate for the mean), or set training.aggregation: Sum in the "
        'manifest, which adds the losses of all microbatches')


def _keywords(loss_fn):
    """The settings of a loss function of PyTorch, as far as they can be known."""
    keywords = {}
    while isinstance(loss_fn, functools.partial):
        keywords = {**loss_fn.keywords, **keywords}
        loss_fn = loss_fn.func
    if isinstance(loss_fn, torch.nn.Module):
        keywords = {name: getattr(loss_fn, name) for name in ('weight', 'ignore_index', 'reduction')
                    if hasattr(loss_fn, name)}
    return keywords


def settings(loss_fn) -> typing.Optional[Settings]:
    """None: it is not a cross entropy that PyTorch defines."""
    keywords = _keywords(loss_fn)
    function = loss_fn
    while isinstance(function, functools.partial):
        function = function.func
    forwards = (torch.nn.CrossEntropyLoss.forward, torch.nn.NLLLoss.forward)
    if (getattr(type(function), 'forward', None) not in forwards and
            function not in (functional.cross_entropy, functional.nll_loss)):
        return None
    if keywords.get('reduction', 'mean') != 'mean':
        return None
    return Settings(keywords.get('weight'), keywords.get('ignore_index', -100))


class Returned(typing.NamedTuple):
    """What an objective or a loss_fn has returned."""
    loss: typing.Any
    weight: typing.Optional[float] = None
    outputs: typing.Any = None
    targets: typing.Any = None


def split(result) -> Returned:
    """Takes apart a loss, (loss, weight), (loss, outputs, targets) or a dict of these."""
    if isinstance(result, dict):
        unknown = [key for key in result if key not in Returned._fields]
        if 'loss' not in result or unknown:
            raise errors.UsageError(
                f'the objective returned a dict with {", ".join(map(repr, result))}: it must have '
                f"'loss' and may have {', '.join(map(repr, Returned._fields[1:]))}")
        result = Returned(**result)
    elif not isinstance(result, (tuple, list)):
        result = Returned(result)
    elif len(result) == 3:
        result = Returned(result[0], None, *result[1:])
    elif len(result) == 2:
        result = Returned(*result)
    else:
        raise errors.UsageError(f'the loss is a tuple of {len(result)}: give the mean loss, (mean loss, '
                                'weight) or (mean loss, outputs, targets)')
    if result.weight is None:
        return result
    return result._replace(weight=data_lib.checked_weight(result.weight))


def weight_of_targets(known, target):
    """The weight of a batch under Settings; None: the number of samples."""
    if known is None or not isinstance(target, torch.Tensor):
        return None
    if target.is_floating_point():  # probabilities of classes
        return target.numel() / target.shape[0 if target.dim() == 1 else 1]
    counted = target[target != known.ignore_index]
    if known.weight is None:
        return float(counted.numel())
    return data_lib.checked_weight(known.weight[counted].double().sum())


def weight_of_loss(loss, known, target, samples):
    """The weight of a loss, by the operations that computed it; None: the number of samples.

    UsageError: its mean is not over samples, and the weight cannot be known.
    """
    node, factors = _past_factors(loss.grad_fn)
    reduction = getattr(node, '_saved_reduction', None)
    if node is not None and node.name() in _CROSS_ENTROPY and reduction == _MEAN:
        return data_lib.checked_weight(node._saved_total_weight)
    if reduction == _SUM:
        return _weight_of_sum(node, factors, samples)
    if known is not None:
        return weight_of_targets(known, target)
    divisor = _divisor(node, factors)
    if divisor % samples != 0:
        raise errors.UsageError(
            f'the loss is a mean over {divisor:g}, which is no multiple of the {samples} samples of this '
            'part of the step (masked or selected elements), so the result would depend on the number of '
            f'workers. {_RETURN_WEIGHT}')
    for node in _near(loss.grad_fn):
        if (node.name() in _CROSS_ENTROPY and node._saved_reduction == _MEAN and
                float(node._saved_total_weight) != node._saved_target.numel()):
            raise errors.UsageError(
                'the loss is a sum of terms, and one of them is a cross entropy that leaves out targets '
                'or weighs classes: the mean over a part of a step is not a mean over samples, so the '
                f'result would depend on the number of workers. {_RETURN_WEIGHT}')
    return None


def _past_factors(node):
    """The first node that is not linear, and the linear ones before it."""
    passed = []
    while node is not None and node.name() in _LINEAR:
        children = [child for child, _ in node.next_functions if child is not None]
        if len(children) != 1:
            break
        passed.append(node)
        node = children[0]
    return node, passed


def _divisor(node, factors):
    """What a mean over elements was divided by, if the operations tell; 0: they do not."""
    if node is None:
        return 0
    children = [child.name() for child, _ in node.next_functions if child is not None]
    if node.name() == 'MeanBackward0' and children != ['MeanBackward1']:  # not of a mean over the batch
        return getattr(node, '_saved_self_sym_numel', getattr(node, '_saved_self_numel', 0))
    if getattr(node, '_saved_reduction', None) == _MEAN and hasattr(node, '_saved_self'):
        return node._saved_self.numel()
    divided_by = getattr(factors[-1], '_saved_other', None) if factors else None
    if node.name() == 'SumBackward0' and divided_by is not None and factors[-1].name() == 'DivBackward0':
        # By a tensor that was computed, as in (losses * mask).sum() / mask.sum().
        if divided_by.dim() == 0 and not _is_number(divided_by):
            return float(divided_by)
    return 0


def _is_number(tensor):
    """Whether the tensor represents a Python number, whose type yields to that of any tensor."""
    small = torch.tensor(1, dtype=torch.float16 if tensor.is_floating_point() else torch.int8)
    return torch.result_type(tensor, small) == small.dtype


def _weight_of_sum(node, factors, samples):
    """The weight of a sum that the program divided."""
    if not factors:
        raise _not_a_mean()
    divisor = getattr(factors[-1], '_saved_other', None)
    if len(factors) == 1 and factors[0].name() == 'DivBackward0' and divisor is not None:
        divisor = float(divisor)
        known = [samples, node._saved_target.numel()]
        if node.name() in _CROSS_ENTROPY:
            known.append(float(node._saved_total_weight))
        if divisor in known:
            return divisor
    raise errors.UsageError(
        "the loss is a sum over the batch (reduction='sum') times a number that is not 1 / the number "
        f"of its samples: the result would depend on the number of workers. {_RETURN_WEIGHT}")


def _near(node):
    """The nodes of the graph next to the loss, nearest first."""
    nodes, seen = [node] if node is not None else [], set()
    for node in nodes:
        if len(seen) == _SEARCHED:
            return
        if node in seen:
            continue
        seen.add(node)
        yield node
        nodes.extend(child for child, _ in node.next_functions if child is not None)
