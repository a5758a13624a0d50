"""Steps of a module as a worker computes them, without a job."""

import unittest

import torch
from torch import nn

import sluice
from sluice import torch_model


def bound(module, loss_fn=None, objective=None, divided=True):
    """The model of a module, with memory of a version, as a worker has it."""
    model = torch_model.TorchModel(module, loss_fn, objective, divided)
    arrays = [model.initial(i).copy() for i in range(len(model.table.tensors))]
    model.bind(model.view(arrays))
    return model


def step(model, data, samples=8, between=lambda: None, **arguments):
    """A whole step: {name: gradient or change}, and the weight."""
    model.begin()
    between()
    given = []
    model.run(data, samples, weigh=given.append, **arguments)
    weight = given[0] if given else samples
    results = {model.table.tensors[i].name: value for i, value in model.end(1)}
    model.check()
    return results, weight


class Net(nn.Module):
    """A linear layer; `extra` changes or adds something in each forward pass."""

    def __init__(self, extra=lambda net: None):
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(4, 3)
        self.extra = extra

    def forward(self, x):
        self.extra(self)
        return self.linear(x)

    def with_buffer(self, value, name='extra_buffer', persistent=True):
        self.register_buffer(name, value, persistent=persistent)
        return self


class StepTest(unittest.TestCase):

    def setUp(self):
        torch.manual_seed(2)
        self.data = (torch.randn(8, 4), torch.randint(0, 3, (8,)))

    def refused(self, pattern):
        return self.assertRaisesRegex(sluice.UsageError, pattern)

    def step(self, module, **arguments):
        return step(bound(module, nn.CrossEntropyLoss()), self.data, **arguments)[0]
