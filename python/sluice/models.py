"""The built-in models (`model.name` of a manifest) as torch modules.

Each module's state_dict has the names and shapes of the job's tensors, and it computes the same
function as the job:

    model = sluice.models.MnistNet()
    model.load_state_dict(sluice.load('.sluice/mnist', torch=True))
    model.eval()

`of_state` derives the sizes from the state:

    state = sluice.load('.sluice/my-mlp', torch=True)
    model = sluice.models.of_state('mlp', state)     # with the state loaded

docs/models.md describes them. `import sluice.models` needs torch.
"""

import typing

import torch
from torch import nn
from torch.nn import functional

from sluice import errors


class Convnet(nn.Module):
    """`convnet`: 28x28 grey images to the log-probabilities of 10 classes. Loss: nll."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.fc = nn.Linear(192, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(functional.max_pool2d(self.conv(x.reshape(-1, 1, 28, 28)), 3))
        return functional.log_softmax(self.fc(x.flatten(1)), 1)


class MnistNet(nn.Module):
    """`mnist-net`: 28x28 grey images to the log-probabilities of 10 classes. Loss: nll.

    The net of PyTorch's tutorial on a parameter server with RPC. The example mnist/main.py of
    pytorch/examples has the same names and shapes, and one more relu, after conv2: its module loads
    the state_dict but computes a different function.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.conv1(x.reshape(-1, 1, 28, 28)))
        x = functional.max_pool2d(self.conv2(x), 2)
        x = functional.dropout2d(x, 0.25, self.training)
        x = functional.relu(self.fc1(x.flatten(1)))
        x = functional.dropout(x, 0.5, self.training)
        return functional.log_softmax(self.fc2(x), 1)


class Mlp(nn.Module):
    """`mlp`: numbers to logits. Loss: crossEntropy. Sizes: `model.dimensions` in, hidden, out."""

    def __init__(self, inputs: int = 784, hidden: int = 256, outputs: int = 10) -> None:
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(functional.relu(self.fc1(x.flatten(1))))


class LstmLm(nn.Module):
    """`lstm-lm`: words [n, length] to logits of the next word [n, length, vocabulary]. Loss:
    crossEntropy, the mean over all positions."""

    def __init__(self, vocabulary: int = 10000, embedding: int = 256,
                 hidden: int = 512) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, vocabulary)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.fc(self.lstm(self.embedding(words))[0])


class Linear(nn.Linear):
    """`linear`: numbers to numbers. Loss: mse."""

    def __init__(self, inputs: int, outputs: int = 1) -> None:
        super().__init__(inputs, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.flatten(1))


class Logistic(Linear):
    """`logistic`: numbers to the logit of class 1. Loss: binaryCrossEntropyWithLogits."""

    def __init__(self, inputs: int) -> None:
        super().__init__(inputs, 1)


class Additive(nn.Module):
    """`additive`: one vector, to which the job adds. It takes no data."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(dim))


def _shape(state, name):
    return list(state[name].shape)


# `model.name` -> function that makes the module with a state_dict's sizes.
_MAKERS = {
    'additive': lambda state: Additive(*_shape(state, 'w')),
    'convnet': lambda state: Convnet(),
    'linear': lambda state: Linear(*reversed(_shape(state, 'weight'))),
    'logistic': lambda state: Logistic(_shape(state, 'weight')[1]),
    'lstm-lm': lambda state: LstmLm(*_shape(state, 'embedding.weight'),
                                    _shape(state, 'fc.weight')[1]),
    'mlp': lambda state: Mlp(*reversed(_shape(state, 'fc1.weight')),
                             _shape(state, 'fc2.weight')[0]),
    'mnist-net': lambda state: MnistNet(),
}


def of_state(name: str, state: typing.Dict[str, torch.Tensor]) -> nn.Module:
    """The built-in model of this `model.name` with a state_dict (`sluice.load(..., torch=True)`),
    in the state's dtype and in evaluation mode. UsageError: there is no such model, or the state
    belongs to another model."""
    if name not in _MAKERS:
        raise errors.UsageError(f"there is no built-in model '{name}'; there are "
                                f'{", ".join(_MAKERS)}')
    try:
        model = _MAKERS[name](state).to(next(iter(state.values())).dtype)
        model.load_state_dict(state)
    except (KeyError, RuntimeError) as error:
        raise errors.UsageError(f'the tensors do not match {name}: {error}') from error
    return model.eval()
