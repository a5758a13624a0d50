"""The state of a torch.optim optimizer as a file: what `sluice export --optimizer` writes, and what
`sluice import --optimizer` reads. docs/checkpoints.md, "There and back", describes the format."""

import json
import pathlib
import typing
import warnings

import torch

from sluice import checkpoint
from sluice import errors
from sluice import safetensors
from sluice import tensors
from sluice import torch_tensors

FORMAT = 'sluice-optimizer-1'
# How PyTorch computes, not what.
_IMPLEMENTATION = ('foreach', 'fused', 'capturable', 'differentiable')


class Kind(typing.NamedTuple):
    """What an optimizer of torch.optim keeps beside a parameter."""
    state: typing.Tuple[str, ...]   # names of arrays, some only with an option
    counts: bool = True             # 'step' too
    at_once: bool = False           # from the optimizer's construction on


KINDS = {
    'SGD': Kind(('momentum_buffer',), counts=False),
    'Adagrad': Kind(('sum',), at_once=True),
    'RMSprop': Kind(('square_avg', 'momentum_buffer', 'grad_avg')),
    'Adam': Kind(('exp_avg', 'exp_avg_sq', 'max_exp_avg_sq')),
    'AdamW': Kind(('exp_avg', 'exp_avg_sq', 'max_exp_avg_sq')),
    'NAdam': Kind(('exp_avg', 'exp_avg_sq')),
    'RAdam': Kind(('exp_avg', 'exp_avg_sq')),
    'Adamax': Kind(('exp_avg', 'exp_inf')),
    'Adadelta': Kind(('square_avg', 'acc_delta')),
}


def class_of(optimizer, group=None):
    """The name in KINDS. UsageError: there is none."""
    name = next((base.__name__ for base in type(optimizer).__mro__
                 if base.__name__ in KINDS and base.__module__.startswith('torch.optim')), None)
    if name is None:
        raise errors.UsageError(f'{type(optimizer).__name__} is not an optimizer of a job; there are '
                                f'{", ".join(KINDS)}')
    group = group if group is not None else optimizer.param_groups[0]
    return 'AdamW' if name == 'Adam' and group.get('decoupled_weight_decay') else name


def names_of(optimizer, model):
    """id of a parameter -> its name in the model's state_dict; without a model, the optimizer's names."""
    if model is not None:
        names = {}
        for name, tensor in model.state_dict(keep_vars=True).items():
            names.setdefault(id(tensor), name)
        return names
    names = {}
    for group in optimizer.param_groups:
        if 'param_names' not in group:
            raise errors.UsageError('the names of the parameters are not known: give the model too, or make '
                                    'the optimizer with model.named_parameters()')
        names.update({id(parameter): name
                      for parameter, name in zip(group['params'], group['param_names'])})
    return names


def _same(one, other):
    return (list(one) if isinstance(one, tuple) else one) == other


# ---------------------------------------------------------------- to PyTorch


class _File(typing.NamedTuple):
    path: pathlib.Path
    parameters: typing.Dict[str, dict]  # name -> {class, options, updates, mu_product}
    arrays: typing.Dict[str, safetensors.Array]


def _read(path):
    path = pathlib.Path(path)
    metadata, arrays = safetensors.read(path, checkpoint.read_file(path))
    if metadata.get('format') != FORMAT or 'optimizer' not in metadata:
        raise errors.UsageError(f"{path} has no optimizer's state: `sluice export --optimizer` writes such a "
                                'file')
    parameters = {}
    try:
        for group in json.loads(metadata['optimizer'])['groups']:
            products = group.get('mu_products', [None] * len(group['params']))
            for name, updates, product in zip(group['params'], group['updates'], products):
                parameters[name] = {'class': group['class'], 'options': group['options'],
                                    'updates': int(updates), 'mu_product': product}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise errors.SluiceError(f'{path} contradicts itself: {error!r}') from error
    return _File(path, parameters, {array.name: array for array in arrays})


def load(path, optimizer, model):
    file = _read(path)
    names = names_of(optimizer, model)
    result = optimizer.state_dict()
    state = {}
    differences: typing.Dict[str, None] = {}
    used = set()
    for group, saved in zip(optimizer.param_groups, result['param_groups']):
        found = {}
        for parameter, place in zip(group['params'], saved['params']):
            name = names.get(id(parameter))
            if name is None:
                raise errors.UsageError(f'the optimizer has a parameter of shape {list(parameter.shape)} that is '
                                        'not in the model')
            if name not in file.parameters:
                if parameter.requires_grad:
                    raise errors.UsageError(f"{file.path} has no parameter '{name}', which the optimizer has")
                continue
            _check_class(file, name, optimizer, group)
            found[name] = parameter
            entry = _state_of(file, name, parameter)
            if entry:
                state[place] = entry
        used.update(found)
        _set_options(file, list(found), saved, differences)
        saved['param_names'] = [names[id(parameter)] for parameter in group['params']]
    _check_all_used(file, used)
    for text in differences:
        warnings.warn(text, stacklevel=3)
    return {**result, 'state': state}


def _check_class(file, name, optimizer, group):
    wanted, given = file.parameters[name]['class'], class_of(optimizer, group)
    if wanted != given:
        raise errors.UsageError(f"{file.path}: the state of '{name}' is {wanted}'s; the optimizer given is "
                                f'{given}')
    if group.get('maximize'):
        raise errors.UsageError('the optimizer has maximize=True, and the job minimized its loss')


def _state_of(file, name, parameter):
    found = file.parameters[name]
    kind = KINDS.get(found['class'])
    if kind is None:
        raise errors.UsageError(f"{file.path}: the state of '{name}' is {found['class']}'s, which this version "
                                'does not know')
    state = {}
    for slot in kind.state:
        array = file.arrays.get(f'{name}/{slot}')
        if array is None:
            continue
        if list(array.shape) != list(parameter.shape):
            raise errors.UsageError(f"{file.path}: {slot} of '{name}' has shape {list(array.shape)}, and the "
                                    f'parameter {list(parameter.shape)}')
        state[slot] = tensors.constant(file.path, array, torch=True)
    if kind.at_once and not state:
        initial = found['options'].get('initial_accumulator_value', 0.0)
        state = {slot: torch.full_like(parameter.detach(), initial) for slot in kind.state}
    if kind.counts and state:
        state['step'] = torch.tensor(float(found['updates']))
    if found['mu_product'] is not None and state:
        state['mu_product'] = torch.tensor(float(found['mu_product']))
    return state


def _set_options(file, names, saved, differences):
    """Gives a group of a state_dict the options that the file has for these parameters."""
    if not names:
        return
    options = file.parameters[names[0]]['options']
    for name in names:
        others = file.parameters[name]['options']
        if others != options:
            option = next(key for key in options if options[key] != others.get(key))
            raise errors.UsageError(
                f"{file.path}: '{names[0]}' and '{name}' are in two groups ({option} {options[option]} and "
                f'{others.get(option)}), and in one group of the optimizer given: give it the groups of the job')
    given = {**saved, 'initial_lr': saved.get('initial_lr', saved['lr'])}
    for key, value in options.items():
        if key in _IMPLEMENTATION or key not in given:
            continue
        before = given[key]
        if key != 'lr' and not _same(before, value):
            differences[f"{'lr' if key == 'initial_lr' else key} {value} of {file.path} replaces "
                        f'{before}'] = None
        saved[key] = tuple(value) if isinstance(value, list) else value


def _check_all_used(file, used):
    """All parameters of the file's optimizer, or those of one of its classes."""
    classes = {file.parameters[name]['class'] for name in used}
    for name, found in file.parameters.items():
        if name not in used and (not classes or found['class'] in classes):
            raise errors.UsageError(f"{file.path} has the parameter '{name}', which the optimizer given does not "
                                    'have')


# ---------------------------------------------------------------- from PyTorch


def encode(optimizers, names, step):
    """The file of the optimizers' state. `names`: id of a parameter -> the name of its trained tensor.
    `step`: of the job; None: that of the state. Returns the content and the step."""
    groups, arrays, updates = [], [], [0]
    counted = False
    found: typing.Set[str] = set()
    for optimizer in optimizers:
        counted = counted or any('step' in state for state in optimizer.state.values())
        for group in optimizer.param_groups:
            entry = {'class': class_of(optimizer, group), 'options': _options(group), 'params': [],
                     'updates': []}
            for parameter in group['params']:
                if not parameter.requires_grad:
                    continue
                name = names.get(id(parameter))
                if name is None:
                    raise errors.UsageError(f'the optimizer has a parameter of shape {list(parameter.shape)} that '
                                            'is not in the model')
                if name in found:
                    raise errors.UsageError(f"the parameter '{name}' is in two optimizers")
                found.add(name)
                state = optimizer.state.get(parameter, {})
                entry['params'].append(name)
                entry['updates'].append(int(state.get('step', 0)))
                arrays += _arrays(name, parameter, state, KINDS[entry['class']])
            updates += entry['updates']
            groups.append(entry)
    missing = sorted(set(names.values()) - found)
    if missing:
        raise errors.UsageError(f"the parameter '{missing[0]}' requires a gradient, so the job trains it, and no "
                                'optimizer has it: freeze it with requires_grad_(False)')
    if step is None and not counted:
        raise errors.UsageError('the state of the optimizer has no step (SGD counts none): say with step= at '
                                'which step the job continues')
    step = max(updates) if step is None else step
    for entry in groups:
        if not KINDS[entry['class']].counts:
            entry['updates'] = [step] * len(entry['params'])
    metadata = {'format': FORMAT, 'optimizer': json.dumps({'step': step, 'groups': groups})}
    return safetensors.write(arrays, metadata), step


def _options(group):
    options = {}
    for key, value in group.items():
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            value = value.item()
        if isinstance(value, (tuple, list)) and all(isinstance(each, (int, float)) for each in value):
            value = list(value)
        elif not (value is None or isinstance(value, (bool, int, float))):
            continue
        if key not in ('params', 'param_names'):
            options[key] = value
    return options


def _arrays(name, parameter, state, kind):
    dtype = torch.float64 if parameter.dtype is torch.float64 else torch.float32
    for slot in kind.state:
        value = state.get(slot)
        if value is None:
            continue
        if not isinstance(value, torch.Tensor) or value.shape != parameter.shape:
            shape = list(value.shape) if isinstance(value, torch.Tensor) else value
            raise errors.UsageError(f"{slot} of '{name}' has shape {shape}, and the parameter "
                                    f'{list(parameter.shape)}: the state is of another model')
        flat = torch_tensors.to_flat(value.to(dtype))
        yield safetensors.Array(f'{name}/{slot}', 'F64' if dtype is torch.float64 else 'F32',
                                list(parameter.shape), flat.tobytes())
