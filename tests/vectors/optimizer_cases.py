"""Writes optimizers.json: what PyTorch's optimizers and schedules compute, with unusual settings.

Run by hand with PyTorch; the file was made with version 2.15.0:

    python3 tests/vectors/optimizer_cases.py > tests/vectors/optimizers.json
"""

import itertools
import json
import math
import sys

import torch

# The first gradients are of ordinary size; then all are zero; then there is none (the tensor is not
# updated, nor counted); then some are huge or tiny. The first element never has a gradient but zero.
_INITIAL = [0.5, -1.25, 3.0, 1e-3, -0.75, 2.0]
_GRADIENTS = [
    [0.0, 0.3, -0.7, 1.5, 2.0, -0.01], [0.0, -0.2, 0.4, 1.0, -1.0, 0.02], [0.0] * 6, None,
    [0.0, 1e6, -1e-9, 0.0, 0.25, -3.0], [0.0, 0.1, 0.2, 1e-20, -0.5, 0.4], None,
    [0.0, -0.3, 0.6, -2.0, 0.75, 1e-3], [0.0, 0.45, -0.1, 0.3, 1.25, -0.6]]
_RATES = [0.05, 0.05, 0.01, 0.2, 0.0, 1.0, 0.3, 0.3, 0.02]


def _settings():
    """(name, PyTorch's class, its arguments)"""
    for momentum, dampening, decay in itertools.product((0, 0.9, 1.0), (0, 0.5, 1.0, -0.25), (0, 0.02, 3.0)):
        yield 'SGD', torch.optim.SGD, {'momentum': momentum, 'dampening': dampening, 'weight_decay': decay}
    for momentum, decay in itertools.product((0.5, 1.0), (0, 3.0)):
        yield 'SGD', torch.optim.SGD, {'momentum': momentum, 'nesterov': True, 'weight_decay': decay}
    for lr_decay, initial, eps, decay in itertools.product((0, 0.5), (0, 2.0), (1e-10, 0, 1.0), (0, 3.0)):
        yield 'ADAGRAD', torch.optim.Adagrad, {'lr_decay': lr_decay, 'initial_accumulator_value': initial, 'eps': eps,
                                               'weight_decay': decay}
    for name, kind in (('ADAM', torch.optim.Adam), ('ADAM_W', torch.optim.AdamW)):
        for beta1, beta2, eps, amsgrad, decay in (
                (0.9, 0.999, 1e-8, False, 0), (0.9, 0.999, 1e-8, True, 0.02), (0.9, 0.999, 1e-8, True, 3.0),
                (0, 0.999, 1e-8, False, 0), (0.9, 0, 1e-8, False, 0.02), (0, 0, 1e-8, True, 0), (0, 0, 1.0, False, 3.0),
                (0.9, 0.999, 0, False, 0), (0.9, 0.999, 0, True, 0.02), (0.9, 0.999, 1.0, False, 0),
                (0.999999, 0.5, 1e-8, False, 0), (0.5, 0.999999, 1e-3, True, 0)):
            yield name, kind, {'betas': (float(beta1), float(beta2)), 'eps': eps, 'amsgrad': amsgrad, 'weight_decay': decay}
    for alpha, momentum, eps, decay in itertools.product((0, 0.99, 1.0), (0, 0.9, 1.0), (1e-8, 0, 1.0), (0, 3.0)):
        yield 'RMS_PROP', torch.optim.RMSprop, {'alpha': alpha, 'momentum': momentum, 'eps': eps, 'weight_decay': decay}
    # Not with alpha 0: it takes the root of a difference that is all rounding error.
    for momentum, eps, decay in itertools.product((0, 0.9), (1e-8, 1.0), (0, 3.0)):
        yield 'RMS_PROP', torch.optim.RMSprop, {'alpha': 0.9, 'centered': True, 'momentum': momentum, 'eps': eps,
                                                'weight_decay': decay}


def _numbers(tensor):
    """Numbers that JSON lacks as texts."""
    return [value if math.isfinite(value) else str(value) for value in tensor.tolist()]


def _train(kind, arguments):
    parameter = torch.nn.Parameter(torch.tensor(_INITIAL, dtype=torch.float64))
    optimizer = kind([parameter], lr=_RATES[0], **arguments)
    results = []
    for rate, gradient in zip(_RATES, _GRADIENTS):
        optimizer.param_groups[0]['lr'] = rate
        parameter.grad = None if gradient is None else torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
        results.append(_numbers(parameter.detach()))
    return [results[1], results[4], results[-1]]


def _rates(make, steps):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = make(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]['lr'])
        optimizer.step()
        schedule.step()
    return rates


def _schedules():
    kinds = torch.optim.lr_scheduler
    for warmup in (0, 2, 5):
        constant = ({'type': 'CONSTANT'}, lambda o: kinds.ConstantLR(o, factor=1.0), 12)
        steps = [({'type': 'STEP', 'step_size': size, 'gamma': gamma},
                  lambda o, size=size, gamma=gamma: kinds.StepLR(o, size, gamma), 20)
                 for size, gamma in ((1, 0.5), (3, 0.1), (7, 1.0), (4, 2.0), (100, 0.1))]
        cosines = [({'type': 'COSINE', 'total_steps': total + warmup, 'min_factor': least},
                    lambda o, total=total, least=least: kinds.CosineAnnealingLR(o, total, eta_min=least), total + 1)
                   for total, least in ((1, 0.0), (2, 0.5), (13, 0.0), (30, 0.1), (5, 1.0))]
        for fields, make, length in (constant, *steps, *cosines):
            if warmup:
                after = make
                make = lambda o, after=after: kinds.SequentialLR(
                    o, [kinds.LinearLR(o, 1 / warmup, total_iters=warmup - 1), after(o)], [warmup])
            yield {**fields, 'warmup_steps': warmup, 'factors': _rates(make, length + warmup)}


def main():
    print(f'{{"pytorch": "{torch.__version__}", "initial": {_INITIAL}, "learning_rates": {_RATES},')
    print(f'"gradients": {json.dumps(_GRADIENTS)}, "recorded": [1, 4, {len(_RATES) - 1}], "optimizers": [')
    rows = []
    for name, kind, arguments in _settings():
        fields = {key: value for key, value in arguments.items() if value and key != 'betas'}
        if 'betas' in arguments:
            fields['beta1'], fields['beta2'] = arguments['betas']
        rows.append(json.dumps({'name': name, **fields, 'parameters': _train(kind, arguments)}))
    print(',\n'.join(rows))
    print('], "schedules": [')
    schedules = [json.dumps(row) for row in _schedules()]
    print(',\n'.join(schedules))
    print(']}')
    print(len(rows), 'optimizers,', len(schedules), 'schedules', file=sys.stderr)


if __name__ == '__main__':
    main()
