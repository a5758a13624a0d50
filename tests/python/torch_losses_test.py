"""Losses whose mean is not over samples: the parts of a step add up to the step, or are refused."""

from python.testing import requirements
requirements.need('numpy', 'google.protobuf', 'torch')

import functools

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from sluice import errors
from tests.python.torch_steps import Net
from tests.python.torch_steps import StepTest
from tests.python.torch_steps import bound
from tests.python.torch_steps import step
from tools import unittest_main


def setUpModule():
    torch.set_num_threads(1)


_WEIGHTS = torch.tensor([0.25, 4.0, 1.5])


class Losses(StepTest):
    """The gradients of the parts of a batch, each times its weight, add up to that of the batch."""

    def setUp(self):
        super().setUp()
        self.x = torch.randn(12, 4)
        self.y = torch.tensor([0, 1, 2, -100, -100, -100, 2, 2, 1, 0, -100, 1])

    def total(self, parts, data, **arguments):
        """(sum of gradients, weight) of the parts."""
        gradient, weight = 0.0, 0.0
        for part in parts:
            model = bound(Net(), **arguments)
            results, each = step(model, tuple(value[part] for value in data), len(part))
            if results['linear.weight'] is not None:
                gradient = gradient + results['linear.weight'].astype(np.float64)
            weight += each
        return gradient / weight

    def check(self, loss, data=None, evaluated=None, **arguments):
        data = data or (self.x, self.y)
        net = Net()
        loss(net(data[0]), *data[1:]).backward()
        expected = net.linear.weight.grad.reshape(-1).numpy()
        for parts in ([range(12)], [range(6), range(6, 12)], [range(3), range(3, 6), range(6, 12)],
                      [range(3), range(3, 5), range(5, 12)], [range(1), range(1, 12)]):
            found = self.total(parts, data, **(arguments or {'loss_fn': loss}))
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)

    def test_cross_entropies_with_weights_and_ignored_targets(self):
        for smoothing in (0.0, 0.2):
            for weight in (None, _WEIGHTS):
                self.check(nn.CrossEntropyLoss(weight, label_smoothing=smoothing))
                self.check(functools.partial(functional.cross_entropy, weight=weight,
                                             label_smoothing=smoothing))
        self.check(functional.cross_entropy)
        y = self.y.clamp(min=0)
        self.check(nn.CrossEntropyLoss(_WEIGHTS, ignore_index=0), (self.x, y))

        class Likelihood(nn.NLLLoss):
            def forward(self, output, target):
                return super().forward(output.log_softmax(1), target)

        self.check(Likelihood(_WEIGHTS, ignore_index=2), (self.x, y))
        self.check(lambda output, target: functional.cross_entropy(output, target, _WEIGHTS))
        self.check(lambda output, target: 0.5 * functional.cross_entropy(output, target) / 3)

    def test_targets_of_more_dimensions(self):
        x, y = torch.randn(12, 5, 4), torch.randint(0, 3, (12, 5))
        y[:3] = -100
        y[4, 2:] = -100

        def loss(output, target):
            return functional.cross_entropy(output.flatten(0, 1), target.flatten(), _WEIGHTS)

        self.check(loss, (x, y))
        self.check(lambda output, target: nn.CrossEntropyLoss()(output.transpose(1, 2), target),
                   (x, y))

    def test_probabilities_as_targets(self):
        target = torch.rand(12, 3).softmax(1)
        self.check(nn.CrossEntropyLoss(_WEIGHTS, label_smoothing=0.1), (self.x, target))

    def test_means_over_samples(self):
        y = torch.rand(12, 3)
        for loss in (nn.MSELoss(), nn.L1Loss(), nn.HuberLoss(), nn.KLDivLoss(reduction='batchmean'),
                     nn.BCEWithLogitsLoss(_WEIGHTS, pos_weight=_WEIGHTS), nn.MultiLabelSoftMarginLoss()):
            self.check(loss, (self.x, y))
        self.check(nn.MultiMarginLoss(weight=_WEIGHTS), (self.x, self.y.clamp(min=0)))
        self.check(lambda output, y: functional.mse_loss(output, y, reduction='sum') / len(y),
                   (self.x, y))
        self.check(lambda output, y: functional.cross_entropy(output, y, reduction='sum') /
                   (y != -100).sum())

    def test_a_weight_that_the_program_gives(self):
        y = torch.rand(12, 3)
        w = torch.rand(12)

        def loss(output, y, w):
            return (w[:, None] * (output - y) ** 2).sum() / w.sum()

        def objective(module, data):
            return loss(module(data[0]), *data[1:]), data[2].sum()

        self.check(loss, (self.x, y, w), objective=objective)
        with self.refused('the weight of the loss is -1'):
            step(bound(Net(), objective=lambda module, data: (module(data[0]).mean(), -1)), (self.x,))

    def test_a_loss_that_the_program_computed(self):
        parts = [slice(0, 3), slice(3, 6), slice(6, 12)]
        gradient, weight = 0.0, 0.0
        for part in parts:
            net = Net()
            model = bound(net)
            model.begin()
            loss = functional.cross_entropy(net(self.x[part]), self.y[part])
            given = []
            model.run(None, 6, loss=loss, weigh=given.append)
            weight += given[0]
            result = dict(model.end(1))[0]
            gradient = gradient + (0 if result is None else result)
        plain = Net()
        functional.cross_entropy(plain(self.x), self.y).backward()
        np.testing.assert_allclose(gradient / weight, plain.linear.weight.grad.reshape(-1).numpy(),
                                   rtol=1e-4, atol=1e-6)

    def test_a_part_without_a_target_has_the_weight_zero_and_no_gradient(self):
        model = bound(Net(), nn.CrossEntropyLoss())
        model.begin()
        given = []
        self.assertEqual(model.run((self.x[3:6], self.y[3:6]), 3, weigh=given.append), 0)
        self.assertEqual(given, [0])
        self.assertEqual(dict(model.end(1)), {0: None, 1: None})
        self.assertEqual(model.evaluate((self.x[3:6], self.y[3:6]))[:3], (0.0, 0, 0.0))

    def test_evaluations_weigh_too(self):
        loss, _, weight = bound(Net(), nn.CrossEntropyLoss(_WEIGHTS)).evaluate((self.x, self.y))[:3]
        expected = functional.cross_entropy(Net()(self.x), self.y, _WEIGHTS).detach()
        self.assertAlmostEqual(loss, float(expected), places=5)
        self.assertAlmostEqual(weight, float(_WEIGHTS[self.y[self.y >= 0]].sum()), places=5)

    def test_an_objective_that_returns_outputs_and_targets_has_an_accuracy_and_outputs_for_metrics(self):
        target = self.y.clamp(min=0)

        def returning(form):
            def objective(module, data):
                output = module(data[0])
                loss = functional.cross_entropy(output, data[1])
                return form(loss, output, data[1])
            return bound(Net(), objective=objective)

        plain = Net()(self.x).detach()
        correct = int((plain.argmax(1) == target).sum())
        for form, weight in ((lambda loss, output, target: (loss, output, target), None),
                             (lambda loss, output, target: {'loss': loss, 'outputs': output, 'targets': target,
                                                            'weight': 5}, 5.0)):
            evaluated = returning(form).evaluate((self.x, target))
            self.assertEqual((evaluated.correct, evaluated.weight), (correct, weight))
            self.assertTrue(torch.equal(evaluated.outputs, plain) and torch.equal(evaluated.targets, target))
            results, _ = step(returning(form), (self.x, target), 12)
            self.assertIsNotNone(results['linear.weight'], 'it trains with the same objective')
        self.assertIsNone(returning(lambda loss, *_: loss).evaluate((self.x, target)).correct)
        for form, text in ((lambda loss, *_: {'loss': loss, 'logits': loss}, "a dict with 'loss', 'logits'"),
                           (lambda loss, *_: (loss, 1, 2, 3), 'a tuple of 4')):
            with self.assertRaisesRegex(errors.UsageError, text):
                returning(form).evaluate((self.x, target))

    def test_sums_are_refused_unless_the_job_adds_the_losses(self):
        data = (self.x, self.y.clamp(min=0))
        for loss in (nn.CrossEntropyLoss(reduction='sum'), nn.L1Loss(reduction='sum'),
                     functools.partial(functional.cross_entropy, reduction='sum')):
            with self.refused("reduction='sum'.*aggregation: Sum"):
                bound(Net(), loss)
        for loss in (lambda output, y: functional.cross_entropy(output, y, reduction='sum'),
                     lambda output, y: functional.mse_loss(output, output.detach() + 1, reduction='sum'),
                     lambda output, y: functional.cross_entropy(output, y, reduction='sum') / 64):
            with self.refused("reduction='sum'"):
                step(bound(Net(), loss), data, 12)
        for loss in (nn.CrossEntropyLoss(reduction='sum'),
                     lambda output, y: functional.cross_entropy(output, y, reduction='sum')):
            results, _ = step(bound(Net(), loss, divided=False), data, None)
            net = Net()
            functional.cross_entropy(net(data[0]), data[1], reduction='sum').backward()
            np.testing.assert_array_equal(results['linear.weight'],
                                          net.linear.weight.grad.reshape(-1).numpy())

    def test_a_mean_over_selected_elements_is_refused_without_a_weight(self):
        mask = torch.tensor([1.0, 0, 1, 1, 0, 1, 1, 1])

        def losses(module, data):
            return (module(data[0]) - 1).pow(2).mean(1)

        for objective in (lambda module, data: (losses(module, data) * mask).sum() / mask.sum(),
                          lambda module, data: 0.5 * losses(module, data)[mask > 0].mean(),
                          lambda module, data: functional.mse_loss(
                              module(data[0])[mask > 0], torch.zeros(6, 3))):
            with self.refused(r'a mean over (6|18), which is no multiple of the 8 samples.*weight'):
                step(bound(Net(), objective=objective), self.data)
            weighted = functools.partial(lambda objective, *both: (objective(*both), 6), objective)
            self.assertEqual(step(bound(Net(), objective=weighted), self.data)[1], 6)
        for objective in (lambda module, data: losses(module, data).sum() / 8,
                          lambda module, data: losses(module, data).sum() / torch.tensor(16.0),
                          lambda module, data: losses(module, data).mean(),
                          lambda module, data: (module(data[0]) - 1).pow(2).mean(0).mean(),
                          lambda module, data: (module(data[0]) - 1).pow(2).mean(0).sum() / 3):
            self.assertEqual(step(bound(Net(), objective=objective), self.data)[1], 8)

    def test_a_sum_of_terms_with_ignored_targets_is_refused(self):

        def objective(module, data):
            output = module(data[0])
            return functional.cross_entropy(output, data[1]) + 0.1 * output.pow(2).mean()

        with self.refused(r'a cross entropy that leaves out targets.*return \(loss, weight\)'):
            step(bound(Net(), objective=objective), (self.x, self.y), 12)
        step(bound(Net(), objective=objective), (self.x, self.y.clamp(min=0)), 12)
        step(bound(Net(), objective=objective, divided=False), (self.x, self.y), None)


if __name__ == '__main__':
    unittest_main.main()
