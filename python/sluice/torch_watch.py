"""Notices changes to a module's tensors that no step would pass on to the job.

The module's tensors are the library's memory of a version. The next version replaces their content,
so what a forward pass or the program writes into a parameter would be lost.
"""

import numpy as np
import torch

from sluice import errors
from sluice import torch_tensors
from sluice import wire

_WORDS = {8: np.uint64, 4: np.uint32, 2: np.uint16, 1: np.uint8}
_COMPARED = 4096  # elements of a constant that are compared although its version is the same


def words(flat):
    """The flat array's bytes as the largest unsigned integers that fit."""
    size = next(size for size in _WORDS if flat.nbytes % size == 0)
    return flat.view(np.uint8).view(_WORDS[size])


class Watch:
    """The trained tensors of a module, and the buffers."""

    def __init__(self, entries, skipped=()):
        """`skipped`: places of tables of which only some rows are read: their content is not compared,
        because reading them whole would cost more than a step."""
        self._entries = entries
        self._skipped = set(skipped)
        self._marks = []   # for each tensor (version, address)
        self._memory = []
        self._sums = []

    def mark(self, memory):
        """The tensors are as they should be. `memory`: words() of each; None on a GPU."""
        self._memory = [None if place in self._skipped else each
                        for place, each in enumerate(memory)]
        self._marks = [_mark(entry.tensor) for entry in self._entries]
        self._sums = self._sum()

    def settle(self):
        """The step is over: buffers have the version's content again."""
        for place, entry in enumerate(self._entries):
            if entry.kind != wire.PARAMETER:
                self._marks[place] = _mark(entry.tensor)

    def check_parameters(self):
        """After a forward pass: UsageError names a parameter that an operation has changed."""
        for place, entry in enumerate(self._entries):
            if entry.kind == wire.PARAMETER and self._marks:
                self._check(place, 'the forward pass of this step changes it in place')

    def check(self):
        """Between steps: UsageError names any tensor that has changed since `mark`."""
        when = 'it was changed in place in this step, or after it'
        for place in range(len(self._marks)):
            self._check(place, when)
        for entry, before, after in zip(self._entries, self._sums, self._sum()):
            if before != after:
                raise _changed(entry, when)

    def _check(self, place, when):
        entry = self._entries[place]
        if entry.current() is not entry.tensor:
            raise _changed(entry, 'another tensor was assigned to its name')
        if entry.tensor.device.type != 'cpu' and place not in self._skipped:
            return  # cuDNN may move it (flatten_parameters); the sums tell
        version, address = _mark(entry.tensor)
        if address != self._marks[place][1]:
            raise _changed(entry, 'it was given other memory (.data, or module.to)')
        if version != self._marks[place][0]:
            raise _changed(entry, when)

    def _sum(self):
        """For each tensor a sum of its bits, which costs one read of its memory."""
        sums = [None if memory is None else int(np.add.reduce(memory, dtype=memory.dtype))
                for memory in self._memory]
        remote = [place for place, entry in enumerate(self._entries)
                  if place not in self._skipped and entry.tensor.device.type != 'cpu']
        if remote:
            found = torch.stack([
                self._entries[place].tensor.detach().reshape(-1).view(torch.int16).sum()
                for place in remote])
            for place, value in zip(remote, found.tolist()):
                sums[place] = value
        return sums


def _mark(tensor):
    return torch_tensors.version(tensor), tensor.data_ptr()


def _changed(entry, how):
    if entry.kind == wire.PARAMETER:
        return errors.UsageError(
            f"parameter '{entry.name}' must not change outside of the job's optimizer, and {how}: the "
            'change would be lost, because the shards have the parameters. Compute what the model '
            'needs from the parameter in forward (clamp or normalize a copy), remove an optimizer.step() of '
            'your own, and freeze a moving average before sluice.Worker gets the module')
    return errors.UsageError(
        f"tensor '{entry.name}' must not change between steps, and {how}: the change would be lost. "
        'Change it in forward, or after the batch was taken and before worker.step(batch)')


class Constants:
    """The entries of a state_dict that are not trained: integers, masks, empty tensors.

    The program may change them between steps; a forward pass must not, because each worker has
    its own.
    """

    def __init__(self, entries):
        self._entries = entries
        self._versions = [torch_tensors.version(entry.tensor) for entry in entries]
        self._values = [entry.tensor.detach().clone() for entry in entries]

    def values(self):
        """For extras.keep: name -> (safetensors type, flat array, shape)."""
        return {entry.name: (torch_tensors.constant_type(value), _encodable(value), value.shape)
                for entry, value in zip(self._entries, self._values)}

    def accept(self):
        """Takes over what the program changed. Returns whether that is anything."""
        changed = list(self._changed())
        for place, now in changed:
            entry = self._entries[place]
            if now is None or torch_tensors.constant_type(now) is None:
                raise errors.UsageError(f"tensor '{entry.name}' became "
                                        f'{"None" if now is None else now.dtype}, which checkpoints '
                                        'cannot contain')
            self._entries[place] = entry._replace(tensor=now)
            self._values[place] = now.detach().clone()
        return bool(changed)

    def check(self):
        """After a forward pass: UsageError names a tensor that it has changed."""
        for place, _ in self._changed():
            entry, value = self._entries[place], self._values[place]
            raise errors.UsageError(
                f"tensor '{entry.name}' ({value.dtype}, shape {list(value.shape)}) is a constant of the "
                'job, and the forward pass changes it: each worker would have another value. '
                f'{_remedy(entry, value)}')

    def restore(self):
        """Undoes all changes."""
        for place, now in self._changed():
            entry = self._entries[place]
            with torch.no_grad():
                if now is not entry.tensor:
                    entry.put_back()
                entry.tensor.data = self._values[place].clone()
            self._versions[place] = torch_tensors.version(entry.tensor)

    def _changed(self):
        """(place, what it is now) of each that differs from its value."""
        for place, entry in enumerate(self._entries):
            now = entry.current()
            known = now is entry.tensor
            current = torch_tensors.version(now) if now is not None else 0
            if known and current == self._versions[place] and now.numel() > _COMPARED:
                continue
            if not torch_tensors.same(self._values[place], now):
                yield place, now
            elif known:
                self._versions[place] = current


def _remedy(entry, value):
    if entry.attribute == 'num_batches_tracked':
        return ('Make the Worker while the batch norm is in training mode, and freeze it afterwards, '
                'or leave it frozen')
    if type(entry.owner).__module__.startswith(('torch.ao.', 'torch.quantization')):
        return ('Run some batches through the module before sluice.Worker gets it, so that the '
                'observers know the ranges, then module.apply(torch.ao.quantization.'
                'disable_observer)')
    if value.numel() == 0:
        return ('Give the buffer its final shape before sluice.Worker gets the module, or register it '
                'with persistent=False')
    return ('Register it with persistent=False, which leaves it out of the state_dict, or make it a '
            'floating-point buffer, which is averaged over the workers; if only the first batch changes '
            'it, run one batch through the module before sluice.Worker gets it')


def _encodable(value):
    """A flat numpy array; the bytes of a type that numpy lacks."""
    flat = value.resolve_conj().resolve_neg().reshape(-1)
    if str(flat.dtype).startswith(('torch.float8', 'torch.uint16', 'torch.uint32', 'torch.uint64')):
        return flat.view(torch.uint8).cpu().numpy()
    return torch_tensors.to_flat(flat).copy()
