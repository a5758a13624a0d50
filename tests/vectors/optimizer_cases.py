"""Writes optimizers.json: what PyTorch's optimizers and schedules compute, with unusual settings.

Run by hand with PyTorch; the file was made with version 2.15.0:

    python3 tests/vectors/optimizer_cases.py > tests/vectors/optimizers.json
"""

import itertools
import json
import math
import sys

import numpy
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


    for name, kind in (('N_ADAM', torch.optim.NAdam), ('R_ADAM', torch.optim.RAdam)):
        for beta1, beta2, eps, decoupled, decay in (
                (0.9, 0.999, 1e-8, False, 0), (0.9, 0.999, 1e-8, False, 3.0), (0.9, 0.999, 1e-8, True, 0.02),
                (0.5, 0.9, 1e-3, True, 3.0), (0, 0.999, 1e-8, False, 0.02), (0.9, 0.6, 1e-8, False, 0),
                (0.99, 0.9999, 1.0, False, 0), (0.9, 0, 1e-8, False, 0.02)):
            for momentum_decay in ((4e-3, 0.0, 7.0) if name == 'N_ADAM' else (None,)):
                own = {} if momentum_decay is None else {'momentum_decay': momentum_decay}
                yield name, kind, {'betas': (float(beta1), float(beta2)), 'eps': eps, 'weight_decay': decay,
                                   'decoupled_weight_decay': decoupled, **own}
    for beta1, beta2, eps, decay in itertools.product((0, 0.9), (0.5, 0.999), (1e-8, 1.0), (0, 3.0)):
        yield 'ADAMAX', torch.optim.Adamax, {'betas': (float(beta1), beta2), 'eps': eps, 'weight_decay': decay}
    for rho, eps, decay in itertools.product((0, 0.9, 1.0), (1e-6, 1.0), (0, 3.0)):
        yield 'ADADELTA', torch.optim.Adadelta, {'rho': rho, 'eps': eps, 'weight_decay': decay}
    for beta1, beta2, decay in itertools.product((0, 0.9), (0, 0.99), (0, 0.02, 3.0)):
        yield 'LION', _Lion, {'betas': (float(beta1), float(beta2)), 'weight_decay': decay}


class _Lion(torch.optim.Optimizer):
    """Lion as in algorithm 2 of its paper: PyTorch does not have it."""

    def __init__(self, parameters, lr, betas, weight_decay):
        super().__init__(parameters, {'lr': lr, 'betas': betas, 'weight_decay': weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group['betas']
            for parameter in group['params']:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                average = state.setdefault('exp_avg', torch.zeros_like(parameter))
                parameter.mul_(1 - group['lr'] * group['weight_decay'])
                parameter.sub_(group['lr'] * torch.sign(beta1 * average + (1 - beta1) * parameter.grad))
                average.copy_(beta2 * average + (1 - beta2) * parameter.grad)


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


# ---- 1,000 steps of each type of schedule, of which some are recorded

_RATE = 0.037


def _part(fields):
    """The scheduler of PyTorch with the factors of a schedule's fields."""
    kinds = torch.optim.lr_scheduler
    get = fields.get
    total = get('total_steps')
    return {
        'CONSTANT': lambda o: kinds.ConstantLR(o, get('start_factor'), total),
        'STEP': lambda o: kinds.StepLR(o, get('step_size'), get('gamma')),
        'MULTI_STEP': lambda o: kinds.MultiStepLR(o, get('milestones'), get('gamma')),
        'EXPONENTIAL': lambda o: kinds.ExponentialLR(o, get('gamma')),
        'LINEAR': lambda o: kinds.LinearLR(o, get('start_factor'), get('end_factor'), total),
        'POLYNOMIAL': lambda o: kinds.PolynomialLR(o, total, get('power')),
        'COSINE': lambda o: kinds.CosineAnnealingLR(o, total, _RATE * get('min_factor')),
        'COSINE_RESTARTS': lambda o: kinds.CosineAnnealingWarmRestarts(
            o, get('restart_steps'), get('restart_multiple'), _RATE * get('min_factor')),
        'ONE_CYCLE': lambda o: kinds.OneCycleLR(
            o, _RATE, total, pct_start=get('increasing_fraction'), three_phase=get('three_phases', False),
            anneal_strategy='linear' if get('linear_anneal') else 'cos', div_factor=get('initial_divisor'),
            final_div_factor=get('final_divisor'), cycle_momentum='cycle_momentum' in fields,
            base_momentum=get('cycle_momentum', {}).get('lowest', 0), max_momentum=get('cycle_momentum', {}).get('highest', 0)),
        'POINTS': lambda o: kinds.LambdaLR(o, lambda step: float(numpy.interp(
            step, [point['step'] for point in get('points')], [point['factor'] for point in get('points')]))),
        'SEQUENTIAL': lambda o: kinds.SequentialLR(o, [_part(part)(o) for part in get('parts')], get('milestones', [])),
        'CHAINED': lambda o: kinds.ChainedScheduler([_part(part)(o) for part in get('parts')], o),
    }[fields['type']]


def _kind(type, **fields):
    return {'type': type, **fields}


def _cycle(total, fraction, initial=25.0, final=1e4, **fields):
    return _kind('ONE_CYCLE', total_steps=total, increasing_fraction=fraction, initial_divisor=initial, final_divisor=final,
                 **fields)


def _long_schedules():
    warm = _kind('LINEAR', start_factor=0.1, end_factor=1.0, total_steps=10)
    cosine = _kind('COSINE', total_steps=811, min_factor=0.03)
    exponential = _kind('EXPONENTIAL', gamma=0.997)
    constant = _kind('CONSTANT', start_factor=1 / 3, total_steps=5)
    multi = _kind('MULTI_STEP', milestones=[3, 3, 411, 800], gamma=0.1)
    momentum = {'lowest': 0.81, 'highest': 0.93}
    yield from (warm, cosine, exponential, constant, multi)
    yield _kind('LINEAR', start_factor=1 / 3, end_factor=0.7, total_steps=613)
    yield _kind('LINEAR', start_factor=1.0, end_factor=0.0, total_steps=997)
    yield _kind('LINEAR', start_factor=0.017, end_factor=1.0, total_steps=1)
    yield _kind('CONSTANT', start_factor=0.013, total_steps=777)
    yield _kind('STEP', step_size=17, gamma=0.9)
    yield _kind('MULTI_STEP', milestones=[0, 50], gamma=0.7)
    yield _kind('EXPONENTIAL', gamma=1.003)
    for total, power in ((613, 1.0), (997, 2.7), (100, 0.5), (1, 3.0)):
        yield _kind('POLYNOMIAL', total_steps=total, power=power)
    for first, multiple, least in ((37, 1, 0.0), (7, 2, 0.1), (13, 3, 0.0), (1, 2, 0.5)):
        yield _kind('COSINE_RESTARTS', restart_steps=first, restart_multiple=multiple, min_factor=least)
    for linear, three in itertools.product((False, True), (False, True)):
        flags = {key: True for key, on in (('linear_anneal', linear), ('three_phases', three)) if on}
        yield _cycle(1000, 0.3, **flags)
        yield _cycle(613, 0.41, 3.0, 7.0, cycle_momentum=momentum, **flags)
        yield _cycle(13, 0.17, cycle_momentum=momentum, **flags)
    yield _cycle(100, 0.0)
    yield _cycle(100, 1.0)
    yield _cycle(10, 0.3)
    yield _kind('POINTS', points=[{'step': s, 'factor': f} for s, f in ((5, 0.1), (50, 1.0), (51, 0.5), (900, 0.0))])
    yield _kind('SEQUENTIAL', parts=[warm, _kind('COSINE', total_steps=100, min_factor=0.0)], milestones=[10])
    yield _kind('SEQUENTIAL', parts=[warm, exponential, constant, cosine], milestones=[7, 500, 501])
    yield _kind('SEQUENTIAL', parts=[warm, multi], milestones=[11])
    yield _kind('SEQUENTIAL', parts=[constant, _kind('COSINE_RESTARTS', restart_steps=31, restart_multiple=2, min_factor=0.0)],
                milestones=[20])
    yield _kind('SEQUENTIAL', parts=[exponential])
    yield _kind('CHAINED', parts=[warm, exponential])
    yield _kind('CHAINED', parts=[constant, multi, _kind('COSINE', total_steps=1000, min_factor=0.0)])


def _end(fields):
    """The step after which PyTorch's scheduler does something else: its cosine rises, its cycle raises an error."""
    ends = {'COSINE': 1, 'ONE_CYCLE': 0}
    if fields['type'] in ends:
        return fields['total_steps'] + ends[fields['type']]
    if fields['type'] == 'SEQUENTIAL':
        return fields.get('milestones', [0])[-1] + _end(fields['parts'][-1])
    return 1000


def _recorded_steps(fields):
    near = [*fields.get('milestones', []), fields.get('total_steps', 0), fields.get('restart_steps', 0)]
    near += [point['step'] for point in fields.get('points', [])]
    steps = {*range(14), *range(0, 1000, 41), 999, *(step + more for step in near for more in (-2, -1, 0, 1))}
    return sorted(step for step in steps if 0 <= step < min(1000, _end(fields)))


def _train_schedule(fields, kind):
    optimizer = kind([torch.nn.Parameter(torch.zeros(1))], lr=_RATE)
    schedule = _part(fields)(optimizer)
    group = optimizer.param_groups[0]
    recorded = _recorded_steps(fields)
    rates, momenta = {}, {}
    for step in range(recorded[-1] + 1):
        rates[step] = group['lr']
        momenta[step] = group['betas'][0] if 'betas' in group else group['momentum']
        optimizer.step()
        if step < recorded[-1]:
            schedule.step()
    row = {'schedule': fields, 'steps': recorded, 'rates': [rates[step] for step in recorded]}
    if 'cycle_momentum' in fields:
        row['momenta'] = [momenta[step] for step in recorded]
    return row


def _rows_of_long_schedules():
    for index, fields in enumerate(_long_schedules()):
        yield _train_schedule(fields, (torch.optim.SGD, torch.optim.Adam)[index % 2])


def main():
    torch.set_default_dtype(torch.float64)  # NAdam's product has it
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
    print(f'], "rate": {_RATE}, "long_schedules": [')
    long_schedules = [json.dumps(row) for row in _rows_of_long_schedules()]
    print(',\n'.join(long_schedules))
    print(']}')
    print(len(rows), 'optimizers,', len(schedules) + len(long_schedules), 'schedules', file=sys.stderr)


if __name__ == '__main__':
    main()
