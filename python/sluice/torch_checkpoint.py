"""PyTorch's checkpoints: reads them into a module and its optimizer, and writes these as a checkpoint of a
job. docs/checkpoints.md, "There and back"."""

import json
import os
import pathlib
import pickle
import subprocess
import tempfile
import typing
import warnings

import torch

from sluice import checkpoint
from sluice import elements
from sluice import errors
from sluice import running
from sluice import safetensors
from sluice import torch_optimizers
from sluice import torch_tensors
from sluice import wire

_MODEL_FORMAT = 'sluice-model-1'
_MODEL_FILE, _OPTIMIZER_FILE = 'model.safetensors', 'optimizer.safetensors'
_KINDS = {wire.PARAMETER: 'PARAMETER', wire.BUFFER: 'BUFFER', wire.COUNTER: 'COUNTER'}
# Keys of a checkpoint's dict, as programs name them.
_MODEL_KEYS = ('model', 'model_state_dict', 'state_dict', 'module')
_OPTIMIZER_KEYS = ('optimizer', 'optimizer_state_dict', 'optim', 'optimizer_states')
_BINFLOAT = 'Unsupported operand 71'  # of pickle, in PyTorch 1.13
# What wrappers put before each name.
_PREFIXES = ('module.', '_orig_mod.')


# ---------------------------------------------------------------- reading


def load(path, model, optimizer, optimizer_path):
    content = _read(path)
    state = _model_of(path, content)
    for prefix in _PREFIXES:
        if state and all(name.startswith(prefix) for name in state):
            state = {name[len(prefix):]: value for name, value in state.items()}
    _add_tied(state, model)
    _check_model(path, state, model)
    if optimizer is None:
        if optimizer_path is not None:
            raise errors.UsageError('optimizer_path is given, and no optimizer to load it into')
        model.load_state_dict(state)
        return
    source = path if optimizer_path is None else optimizer_path
    saved = _optimizer_of(source, content if optimizer_path is None else _read(optimizer_path))
    if 'format' in saved:  # a file of `sluice export --optimizer`
        saved = torch_optimizers.load(source, optimizer, model)
    else:
        saved = _by_position(source, saved, optimizer, model)
        _check_optimizer(source, saved, optimizer, model)
    model.load_state_dict(state)
    optimizer.load_state_dict(saved)


def _read(path):
    path = pathlib.Path(path)
    if path.is_dir():
        return _read_distributed(path)
    if path.suffix == '.safetensors':
        metadata, _ = safetensors.read(path, checkpoint.read_file(path))
        if metadata.get('format') == torch_optimizers.FORMAT:
            return {'optimizer': {'format': torch_optimizers.FORMAT}}
        return checkpoint.load(path, torch=True)
    return _read_saved(path)


def _read_saved(path):
    try:
        return torch.load(path, map_location='cpu', weights_only=True)
    except FileNotFoundError:
        raise
    except pickle.UnpicklingError as error:
        if _BINFLOAT in str(error):
            raise errors.UsageError(
                f'{path} has floating-point numbers beside tensors, as the state of each optimizer, and PyTorch '
                f'{torch.__version__} cannot read them with weights_only=True: PyTorch 2 can. Or, if you trust the '
                'file, load it with torch.load(path), and give the state_dicts to the model and the optimizer') from error
        raise errors.UsageError(
            f'{path} has more than tensors and plain values, or is no file of torch.save '
            f'({str(error).splitlines()[0]}). Loading it would run code of the file. If you trust it, load it '
            'with torch.load(path, weights_only=False), and save a dict of model.state_dict() and '
            'optimizer.state_dict(), which load_pytorch reads') from error
    except (RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        raise errors.SluiceError(f'{path} is not a whole file of torch.save: '
                                 f'{(str(error) or repr(error)).splitlines()[0]}') from error


def _read_distributed(path):
    if not (path / '.metadata').exists():
        raise errors.UsageError(f'{path} is a directory without .metadata, so not one of '
                                'torch.distributed.checkpoint. sluice.load reads a checkpoint of a job')
    try:
        from torch.distributed.checkpoint import format_utils
    except ImportError as error:
        raise errors.UsageError(f'{path}: PyTorch {torch.__version__} has no '
                                'torch.distributed.checkpoint.format_utils, which reads it: 2.3 has') from error
    with tempfile.TemporaryDirectory() as directory:
        whole = pathlib.Path(directory) / 'whole.pt'
        try:
            format_utils.dcp_to_torch_save(path, whole)
        except Exception as error:  # its reader raises what it meets
            raise errors.SluiceError(f'{path} is not a whole directory of torch.distributed.checkpoint: '
                                     f'{(str(error) or repr(error)).splitlines()[0]}') from error
        return _read_saved(whole)


def _is_state(value):
    return isinstance(value, dict) and bool(value) and all(
        isinstance(name, str) and (isinstance(tensor, torch.Tensor) or name.endswith('_extra_state'))
        for name, tensor in value.items())


def _model_of(path, content):
    if _is_state(content):
        return dict(content)
    for key in _MODEL_KEYS:
        if isinstance(content, dict) and _is_state(content.get(key)):
            return dict(content[key])
    raise errors.UsageError(f'{path} has no state_dict of a model: it must be one, or a dict with one under '
                            f'{", ".join(map(repr, _MODEL_KEYS))}. It {_description(content)}')


def _optimizer_of(path, content):
    for candidate in [content] + [content.get(key) for key in _OPTIMIZER_KEYS if isinstance(content, dict)]:
        if isinstance(candidate, list) and len(candidate) == 1:
            candidate = candidate[0]
        if isinstance(candidate, dict) and ('param_groups' in candidate or 'format' in candidate):
            return candidate
    raise errors.UsageError(f'{path} has no state_dict of an optimizer: it must be one, or a dict with one under '
                            f'{", ".join(map(repr, _OPTIMIZER_KEYS))}; a file of its own is given with '
                            f'optimizer_path. It {_description(content)}')


def _description(content):
    if isinstance(content, dict):
        return f'has {", ".join(map(repr, list(content)[:8])) or "nothing"}'
    return f'is a {type(content).__name__}'


def _add_tied(state, model):
    """Adds the names of tied tensors that a file has once, as safetensors.torch.save_model writes it."""
    own = model.state_dict(keep_vars=True)
    known = {id(tensor): state[name] for name, tensor in own.items() if name in state}
    for name, tensor in own.items():
        if name not in state and id(tensor) in known:
            state[name] = known[id(tensor)]


def _check_model(path, state, model):
    own = model.state_dict()
    missing = [name for name in own if name not in state]
    unexpected = [name for name in state if name not in own]
    if missing or unexpected:
        texts = [f'{what}: {", ".join(names[:5])}' + (f' and {len(names) - 5} more' if len(names) > 5 else '')
                 for what, names in (('missing', missing), ('not in the model', unexpected)) if names]
        raise errors.UsageError(f'{path} is of another model: {"; ".join(texts)}')
    for name, tensor in own.items():
        if isinstance(tensor, torch.Tensor) and tensor.shape != state[name].shape:
            raise errors.UsageError(f"{path}: '{name}' has shape {list(state[name].shape)}, and in the model "
                                    f'{list(tensor.shape)}')


def _by_position(path, saved, optimizer, model):
    """A state_dict of names, as torch.distributed.checkpoint.state_dict makes it, or whose groups have
    param_names, with the optimizer's own places."""
    groups = saved['param_groups']
    by_name = all(isinstance(name, str) for group in groups for name in group['params'])
    if not by_name and not all('param_names' in group for group in groups):
        return saved
    named = {}  # name -> (group, key of the state)
    for group in groups:
        for key, name in zip(group['params'], group['params' if by_name else 'param_names']):
            named[name] = (group, key)
    names = torch_optimizers.names_of(optimizer, model)
    result = optimizer.state_dict()
    state = {}
    for own, place in zip(optimizer.param_groups, result['param_groups']):
        found = []
        for parameter, position in zip(own['params'], place['params']):
            name = names.get(id(parameter))
            if name not in named:
                raise errors.UsageError(f"{path} has no state of the parameter '{name}', which the optimizer has")
            group, key = named.pop(name)
            found.append(group)
            if key in saved['state']:
                state[position] = saved['state'][key]
        if any(group is not found[0] for group in found):
            raise errors.UsageError(f'{path}: one group of the optimizer given has parameters of several groups')
        place.update({key: value for key, value in (found[0] if found else {}).items()
                      if key not in ('params', 'param_names')})
    if named:
        raise errors.UsageError(f"{path} has the parameter '{next(iter(named))}', which the optimizer given does "
                                'not have')
    return {**result, 'state': state}


def _check_optimizer(path, saved, optimizer, model):
    sizes = [len(group['params']) for group in saved['param_groups']]
    own = [len(group['params']) for group in optimizer.param_groups]
    if sizes != own:
        raise errors.UsageError(f'{path}: the groups of its optimizer have {sizes} parameters, and those of the '
                                f'optimizer given {own}')
    for theirs, mine in zip(saved['param_groups'], optimizer.param_groups):
        decoupled = theirs.get('decoupled_weight_decay')
        if decoupled is not None and decoupled != mine.get('decoupled_weight_decay', decoupled):
            raise errors.UsageError(f"{path}: this state has decoupled_weight_decay={decoupled}, as AdamW's has; "
                                    f'the optimizer given is {torch_optimizers.class_of(optimizer, mine)}'
                                    if decoupled else
                                    f"{path}: this state has decoupled_weight_decay=False, as Adam's has; the "
                                    f'optimizer given is {torch_optimizers.class_of(optimizer, mine)}')
    names = torch_optimizers.names_of(optimizer, model)
    for theirs, mine in zip(saved['param_groups'], optimizer.param_groups):
        known = {'step', 'mu_product', *torch_optimizers.KINDS[torch_optimizers.class_of(optimizer, mine)].state}
        for key, parameter in zip(theirs['params'], mine['params']):
            for slot, value in saved['state'].get(key, {}).items():
                if slot not in known:
                    raise errors.UsageError(f"{path}: this state has {slot}, which {type(optimizer).__name__}, the "
                                            'optimizer given, does not have')
                if (slot not in ('step', 'mu_product') and isinstance(value, torch.Tensor) and
                        value.shape != parameter.shape):
                    raise errors.UsageError(f"{path}: {slot} of '{names.get(id(parameter))}' has shape "
                                            f'{list(value.shape)}, and the parameter {list(parameter.shape)}: its '
                                            'parameters are in another order, or of another model')


# ---------------------------------------------------------------- writing


def save(directory, manifest, model, optimizer, step, binary):
    program = running.find_binary(binary)
    names = torch_optimizers.names_of(None, model)
    found = torch_tensors.of_module(model)
    arrays = [safetensors.Array(entry.name, elements.KINDS[torch_tensors.TYPES[entry.tensor.dtype]],
                                list(entry.tensor.shape), torch_tensors.to_flat(entry.tensor).tobytes())
              for entry in found.trained]
    listed = [[entry.name, _KINDS[entry.kind]] for entry in found.trained]
    optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer or ())
    state = None
    if optimizers:
        parameters = {entry.name for entry in found.trained if entry.kind == wire.PARAMETER}
        trained = {key: found.aliases.get(name, name) for key, name in names.items()}
        state, step = torch_optimizers.encode(
            optimizers, {key: name for key, name in trained.items() if name in parameters}, step)
    with tempfile.TemporaryDirectory() as temporary:
        content = safetensors.write(arrays, {'format': _MODEL_FORMAT, 'tensors': json.dumps(listed)})
        (pathlib.Path(temporary) / _MODEL_FILE).write_bytes(content)
        command = [os.path.abspath(program), 'import', os.path.abspath(os.fspath(manifest)), '--model',
                   _MODEL_FILE, '--output', os.path.abspath(os.fspath(directory))]
        if state is not None:
            (pathlib.Path(temporary) / _OPTIMIZER_FILE).write_bytes(state)
            command += ['--optimizer', _OPTIMIZER_FILE]
        command += ['--step', str(step)] if step is not None else []
        return _import(command, temporary)


def _import(command, directory):
    done = subprocess.run(command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding='utf-8',
                          errors='replace', check=False)
    if done.returncode != 0:
        kind = errors.UsageError if done.returncode == 2 else errors.SluiceError
        raise kind(done.stderr.strip() or f'sluice import ended with code {done.returncode}')
    written = ''
    for line in done.stdout.splitlines():
        if line.startswith('Note: '):
            warnings.warn(line[len('Note: '):], stacklevel=4)
        elif line.startswith('Wrote '):
            written = line[len('Wrote '):].partition(': ')[0]
    return written
