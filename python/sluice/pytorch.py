"""To PyTorch and back: a job's optimizer for torch.optim, and a PyTorch checkpoint for a job.

docs/checkpoints.md, "There and back", describes the files. torch is imported when a function is called.
"""

import typing

from sluice import types

if typing.TYPE_CHECKING:
    import torch

_Optimizers = typing.Union['torch.optim.Optimizer', typing.Sequence['torch.optim.Optimizer']]


def load_optimizer(path: types.Path, optimizer: 'torch.optim.Optimizer',
                   model: typing.Optional['torch.nn.Module'] = None) -> typing.Dict[str, typing.Any]:
    """Returns what `optimizer.load_state_dict` takes, from a file of `sluice export --optimizer`.

    Parameters are matched by their names in `model`, so that their order does not matter; an optimizer
    of named parameters needs no `model`. Options are the file's; a warning names each that differs from
    the optimizer's own. What says how PyTorch computes (foreach, fused, capturable, differentiable) stays
    the optimizer's. Changes nothing. UsageError names what does not fit: the class, or parameters that
    are missing, unexpected or of another shape. SluiceError: the file is damaged.
    """
    from sluice import torch_optimizers
    return torch_optimizers.load(path, optimizer, model)


def load_pytorch(path: types.Path, model: 'torch.nn.Module',
                 optimizer: typing.Optional['torch.optim.Optimizer'] = None, *,
                 optimizer_path: typing.Optional[types.Path] = None) -> None:
    """Loads a PyTorch checkpoint into a module and its optimizer.

    `path` is a file of torch.save (a state_dict, or a dict with 'model' and 'optimizer'), a .safetensors
    file, or a directory of torch.distributed.checkpoint. The optimizer's state may be in a file of its
    own, `optimizer_path`. Files of torch.save are read with weights_only=True. Everything is checked
    before anything is changed; UsageError names what does not fit, such as tensors that are missing,
    unexpected or of another shape, and a state of another optimizer's class.
    """
    from sluice import torch_checkpoint
    torch_checkpoint.load(path, model, optimizer, optimizer_path)


def save_checkpoint(directory: types.Path, manifest: types.Path, model: 'torch.nn.Module',
                    optimizer: typing.Optional[_Optimizers] = None, *,
                    step: typing.Optional[int] = None,
                    binary: typing.Optional[types.Path] = None) -> str:
    """Writes a module, and the state of its optimizers, as a checkpoint for `checkpoint.restoreFrom`.

    `directory` must not have checkpoints yet. The job of the manifest continues at `step`: by default
    the step of the optimizer's state (SGD has none), or 0 without an optimizer. Options of the optimizer
    are the manifest's; a warning names each that differs. Returns the checkpoint's directory. Needs the
    program `sluice`, as `run` does. UsageError names what does not fit, and nothing is written.
    """
    from sluice import torch_checkpoint
    return torch_checkpoint.save(directory, manifest, model, optimizer, step, binary)
