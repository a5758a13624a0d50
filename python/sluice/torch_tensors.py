"""The tensors of a torch.nn.Module: which are trained, which are constants, and which share memory."""

import typing

import numpy as np
import torch

from sluice import errors
from sluice import tensors
from sluice import wire

TYPES = {
    torch.float32: wire.FLOAT32,
    torch.float64: wire.FLOAT64,
    torch.bfloat16: wire.BFLOAT16,
    torch.float16: wire.FLOAT16,
    torch.int64: wire.INT64,
}
# Names in safetensors, by PyTorch's names: releases of PyTorch lack some of these types. Those of
# sluice.tensors.TORCH are bytes to numpy.
_SAFETENSORS = {
    'float32': 'F32', 'float64': 'F64', 'bfloat16': 'BF16', 'float16': 'F16', 'int64': 'I64',
    'int32': 'I32', 'int16': 'I16', 'int8': 'I8', 'uint8': 'U8', 'bool': 'BOOL',
    'complex64': 'C64', 'uint16': 'U16', 'uint32': 'U32', 'uint64': 'U64',
    **{name: kind for name, kind in tensors.TORCH.items() if kind != 'F4'},
}


class Entry(typing.NamedTuple):
    """A tensor of the state_dict, and the module's attribute that holds it."""
    name: str
    tensor: torch.Tensor
    kind: typing.Optional[int]  # TensorKind; None: a constant
    owner: typing.Optional[torch.nn.Module]
    attribute: str

    def current(self) -> typing.Optional[torch.Tensor]:
        """The tensor that the attribute holds now."""
        if self.owner is None:
            return self.tensor
        for group in (self.owner._parameters, self.owner._buffers):
            if self.attribute in group:
                return group[self.attribute]
        return None

    def put_back(self) -> None:
        """Undoes an assignment to a buffer's attribute."""
        if self.owner is not None and self.attribute in self.owner._buffers:
            self.owner._buffers[self.attribute] = self.tensor


class Tensors(typing.NamedTuple):
    """The tensors of a module, in the order of its state_dict."""
    trained: typing.List[Entry]        # and what training changes: buffers, counters
    constants: typing.List[Entry]
    aliases: typing.Dict[str, str]     # second name -> first name, of trained tensors
    # Place in `trained` -> other tensors over the same memory.
    followers: typing.Dict[int, typing.List[torch.Tensor]]


def to_flat(tensor):
    """A flat numpy array in storage type, over the tensor's memory if possible."""
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    if flat.device.type != 'cpu':
        flat = flat.cpu()
    if flat.dtype is torch.bfloat16:
        return flat.contiguous().view(torch.int16).numpy().view(np.uint16)
    if _type_name(flat.dtype) in tensors.TORCH:
        return flat.contiguous().view(torch.uint8).numpy()
    return flat.contiguous().numpy()


def from_flat(array, spec):
    """The tensor of a TensorSpec over the array's memory."""
    if spec.dtype == wire.BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).view(list(spec.shape))
    return torch.from_numpy(array).view(list(spec.shape))


def same(before, after):
    """Whether two tensors have the same content. A NaN equals a NaN."""
    if after is before:
        return True
    if after is None or before.shape != after.shape or before.dtype != after.dtype:
        return False
    if torch.equal(before, after):
        return True
    if not (before.is_floating_point() or before.is_complex()):
        return False
    return bool(((before == after) | (before.isnan() & after.isnan())).all())


def version(tensor):
    """A number that changes when an operation changes the tensor in place."""
    return 0 if tensor.is_inference() else tensor._version


def of_module(module: torch.nn.Module) -> Tensors:
    """The tensors of the state_dict. UsageError names a tensor that cannot be kept as it is.

    Parameters that require no gradient are buffers. Constants are buffers of integers or of other
    types that are not trained, and tensors without elements. Buffers that are not persistent are in
    no part.
    """
    entries = []
    aliases = {}
    first_names: typing.Dict[int, str] = {}
    owners = dict(module.named_modules(remove_duplicate=False))

    for name, tensor in module.state_dict(keep_vars=True).items():
        if not isinstance(tensor, torch.Tensor):
            continue
        if id(tensor) in first_names:
            aliases[name] = first_names[id(tensor)]
            continue
        path, _, attribute = name.rpartition('.')
        owner = owners.get(path)
        kind = _kind(name, tensor, owner, attribute)
        if kind is not None:
            first_names[id(tensor)] = name
        entries.append(Entry(name, tensor, kind, owner, attribute))

    _check_parameters(module, entries)
    trained, followers = _join_shared(module, entries, aliases)
    constants = [entry for entry in entries if entry.kind is None]
    return Tensors(trained, constants, aliases, followers)


def _kind(name, tensor, owner, attribute):
    """The tensor's TensorKind; None: a constant."""
    _check_form(name, tensor)
    trained = isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad
    if tensor.numel() > 0:
        if trained:
            if tensor.dtype not in TYPES:
                raise errors.UsageError(f"tensor '{name}' is {tensor.dtype}, which cannot be trained; "
                                        'use float32, float64, bfloat16 or float16')
            return wire.PARAMETER
        if tensor.is_floating_point() and tensor.dtype in TYPES:
            return wire.BUFFER
        # A frozen batch norm does not count.
        if (attribute == 'num_batches_tracked' and tensor.dtype is torch.int64 and
                getattr(owner, 'training', True)):
            return wire.COUNTER
    if constant_type(tensor) is None:
        raise errors.UsageError(
            f"tensor '{name}' is {tensor.dtype}, which checkpoints cannot contain: register the "
            'buffer with persistent=False, so that it is not in the state_dict, or use one of '
            f'{", ".join(sorted(name for name in _SAFETENSORS if hasattr(torch, name)))}')
    return None


def _type_name(dtype):
    return str(dtype).rpartition('.')[2]


def constant_type(tensor):
    """The safetensors name of the type; None: there is none."""
    return _SAFETENSORS.get(_type_name(tensor.dtype))


def _check_form(name, tensor):
    """Refuses tensors that are not plain arrays."""
    problem = None
    if torch.nn.parameter.is_lazy(tensor):
        problem = ('has no shape yet: run one batch through the module before sluice.Worker gets it')
    elif tensor.device.type == 'meta':
        problem = ("has no memory (device 'meta'): give it some with module.to_empty(device='cpu'), "
                   'and initialize it')
    elif tensor.layout is not torch.strided or getattr(tensor, 'is_nested', False):
        problem = (f'has the layout {tensor.layout}: convert it with to_dense(), or register the '
                   'buffer with persistent=False')
    elif tensor.is_quantized:
        problem = (f'is quantized ({tensor.dtype}): train the module before it is converted, or '
                   'convert the tensor with dequantize()')
    if problem:
        raise errors.UsageError(f"tensor '{name}' {problem}")


def _check_parameters(module, entries):
    """Refuses parameters that would not be trained although they require a gradient."""
    known = {id(entry.tensor) for entry in entries}
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad or id(parameter) in known or parameter.numel() == 0:
            continue
        raise errors.UsageError(
            f"parameter '{name}' requires a gradient and is not in the module's state_dict, so it "
            'would not be trained: leave it in the state_dict, or freeze it with '
            'requires_grad_(False)')
    if not any(entry.kind == wire.PARAMETER for entry in entries):
        raise errors.UsageError('the module has no parameter that requires a gradient')


# ---- shared memory


def _join_shared(module, entries, aliases):
    """The entries of a kind, with one for those that are the same memory, and the other tensors over
    that memory. `aliases` gets their names. UsageError: tensors share memory in part."""
    candidates = [entry for entry in entries if entry.kind is not None]
    others = _other_tensors(module, {id(entry.tensor) for entry in entries})
    first_of = {}  # id of an entry's tensor -> the first entry over its memory
    sharing = {}   # name of a first entry -> the entries over its memory
    for one, other in _overlapping(candidates + others):
        if not _same_memory(one.tensor, other.tensor) or not other.tensor.is_leaf:
            raise errors.UsageError(
                f"tensors '{one.name}' and '{other.name}' are different views of the same memory, "
                'which Sluice cannot keep: compute one from the other in forward (as in '
                'weight.t()), or give each its own memory with clone()')
        first = first_of.setdefault(id(one.tensor), one)
        if id(other.tensor) not in first_of:
            first_of[id(other.tensor)] = first
            sharing.setdefault(first.name, [first]).append(other)

    trained, followers, tied = [], {}, {}
    for entry in candidates:
        if first_of.get(id(entry.tensor), entry) is not entry:
            continue  # the first one represents it
        group = sharing.get(entry.name, [entry])
        # What is trained decides for the memory.
        chosen = next((each for each in group if each.kind == wire.PARAMETER), entry)
        names = {each.name for each in group if each.kind is not None} - {entry.name}
        aliases.update({name: first for name, first in _renamed(aliases, names, entry.name)})
        for each in group:
            if each.tensor is chosen.tensor:
                continue
            if each.kind == wire.PARAMETER:
                tied[id(each.tensor)] = chosen.tensor
            else:
                followers.setdefault(len(trained), []).append(each.tensor)
        trained.append(chosen._replace(name=entry.name))
    _tie(module, tied)
    return trained, followers


def _tie(module, tied):
    """Replaces parameters, by id, by the one that has their memory, as if it was assigned."""
    for owner in module.modules() if tied else ():
        for attribute, parameter in list(owner._parameters.items()):
            if id(parameter) in tied:
                setattr(owner, attribute, tied[id(parameter)])


def _renamed(aliases, names, first):
    """Aliases of `names`, and of what was an alias of them."""
    yield from ((name, first) for name in names)
    yield from [(name, first) for name, known in aliases.items() if known in names]


def _other_tensors(module, known):
    """Tensors that modules hold outside of the state_dict."""
    others = []
    for path, owner in module.named_modules():
        held = {**vars(owner), **dict(owner.named_buffers(recurse=False))}
        for attribute, tensor in held.items():
            if isinstance(tensor, torch.Tensor) and id(tensor) not in known:
                known.add(id(tensor))
                others.append(Entry(f'{path}.{attribute}'.lstrip('.'), tensor, None, owner, attribute))
    return others


def _overlapping(entries):
    """Pairs of entries that have an element in common, the first one before the other in order."""
    spans = []
    for place, entry in enumerate(entries):
        tensor = entry.tensor
        if tensor.numel() == 0 or tensor.layout is not torch.strided or tensor.device.type == 'meta':
            continue
        last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride()))
        begin = tensor.data_ptr()
        spans.append((str(tensor.device), begin, begin + (last + 1) * tensor.element_size(), place))
    active = []
    pairs = []
    for device, begin, end, place in sorted(spans):
        active = [each for each in active if each[0] == device and each[2] > begin]
        for each in active:
            first, second = sorted((each[3], place))
            if entries[first].kind is None and entries[second].kind is None:
                continue
            if _share_elements(entries[first].tensor, entries[second].tensor):
                pairs.append((first, second))
        active.append((device, begin, end, place))
    return [(entries[first], entries[second]) for first, second in sorted(pairs)]


def _same_memory(one, other):
    return (one.data_ptr() == other.data_ptr() and one.dtype == other.dtype and
            one.shape == other.shape and one.stride() == other.stride())


def _share_elements(one, other):
    """Whether tensors whose spans overlap have an element in common."""
    if _same_memory(one, other) or one.element_size() != other.element_size():
        return True
    begin = min(one.data_ptr(), other.data_ptr())
    offsets = [divmod(tensor.data_ptr() - begin, tensor.element_size()) for tensor in (one, other)]
    if any(rest for _, rest in offsets):
        return True
    lengths = [offset + sum((extent - 1) * stride for extent, stride in
                            zip(tensor.shape, tensor.stride())) + 1
               for tensor, (offset, _) in zip((one, other), offsets)]
    used = torch.zeros(max(lengths), dtype=torch.bool)
    used.as_strided(one.shape, one.stride(), offsets[0][0]).fill_(True)
    return bool(used.as_strided(other.shape, other.stride(), offsets[1][0]).any())
