"""Metrics over parts of the held-out samples: the values are those over all samples at once."""

from python.testing import requirements
requirements.need('numpy', 'google.protobuf')

import copy
import math
import unittest

import numpy as np

import sluice
from sluice import errors
from sluice import metrics
from tools import unittest_main

try:
    import torch
except ImportError:
    torch = None
try:
    import torchmetrics
except ImportError:
    torchmetrics = None

_CUTS = [0, 3, 4, 64, 90, 100]  # of the samples, into parts


class Worst:
    """An object of its own: the largest error, the errors' number, and the errors."""

    reductions = {'largest': 'max', 'smallest': 'min', 'count': 'sum', 'errors': 'cat'}

    def __init__(self):
        self.reset()

    def reset(self):
        self.largest, self.smallest, self.count, self.errors = -math.inf, math.inf, 0, []

    def update(self, outputs, targets):
        errors = abs(outputs - targets)
        self.largest = max(self.largest, float(errors.max()))
        self.smallest = min(self.smallest, float(errors.min()))
        self.count += len(errors)
        self.errors.append(errors)

    def compute(self):
        median = float(np.median(np.concatenate(self.errors)))
        return 1e6 * self.count + 1e3 * self.largest + self.smallest + median / 1e3


def values(given, outputs, targets, cuts=(), torch_module=None, batch=16, samples=100):
    """{name: (value, note)} of metrics that a worker each has accumulated for each part."""
    cuts = list(cuts) or [0, len(targets)]
    worker = metrics.Metrics(copy.deepcopy(given), samples, torch_module)
    states = []
    for begin, end in zip(cuts, cuts[1:]):
        worker.begin()
        for at in range(begin, end, batch):
            upto = min(at + batch, end)
            worker.update(_cut(outputs, at, upto), _cut(targets, at, upto), upto - at)
        states.append(worker.states())
    merging = metrics.Metrics(copy.deepcopy(given), samples, torch_module)
    merging.begin()  # the worker that merges has evaluated nothing
    return {name: merging.value(i, lambda place: [state[place] for state in states])
            for i, name in enumerate(merging.names)}


def _cut(value, begin, end):
    if isinstance(value, dict):
        return {key: part[begin:end] for key, part in value.items()}
    return value[begin:end]


class Arrays(unittest.TestCase):

    def setUp(self):
        random = np.random.default_rng(5)
        self.outputs = random.standard_normal(100).astype(np.float32)
        self.targets = random.standard_normal(100).astype(np.float32)

    def test_function_gets_all_outputs_and_targets_in_order(self):
        seen = []

        def last(outputs, targets):
            seen.append((outputs, targets))
            return outputs[-1]

        found = values({'last': last, 'other': lambda outputs, targets: len(targets)}, self.outputs, self.targets,
                       _CUTS)
        np.testing.assert_array_equal(seen[0][0], self.outputs)
        np.testing.assert_array_equal(seen[0][1], self.targets)
        self.assertEqual(found, {'last': (float(self.outputs[-1]), ''), 'other': (100.0, '')})

    def test_function_gets_structures_as_the_model_has_them(self):
        outputs = {'boxes': self.outputs, 'scores': self.targets}
        values({'m': lambda outputs, targets: self.assertEqual(list(outputs), ['boxes', 'scores']) or
                np.testing.assert_array_equal(outputs['scores'], targets) or 0}, outputs, self.targets, _CUTS)

    def test_batches_of_different_lengths_are_filled_up_with_the_functions_padding(self):
        seen = []

        def last(outputs, targets):
            seen.append(outputs)
            return len(targets)

        worker = metrics.Metrics({'last': last}, 3, None)
        ones = np.ones((1, 2, 3))
        with self.assertRaisesRegex(errors.UsageError, 'have an attribute `padding`'):
            worker.update(ones, np.ones(1), 1)
            worker.update(np.ones((2, 4, 1)), np.ones(2), 2)
            worker.states()
        last.padding = -100
        worker = metrics.Metrics({'last': last}, 3, None)
        states = []
        for outputs in (ones, np.ones((2, 4, 1))):
            worker.begin()
            worker.update(outputs, np.ones(len(outputs)), len(outputs))
            states.append(worker.states()[0])
        self.assertEqual(worker.value(0, lambda place: states), (3, ''))
        self.assertEqual(seen[0].shape, (3, 4, 3))
        np.testing.assert_array_equal(seen[0][0], np.pad(ones[0], ((0, 2), (0, 0)), constant_values=-100))
        np.testing.assert_array_equal(seen[0][2], np.pad(np.ones((4, 1)), ((0, 0), (0, 2)), constant_values=-100))

    def test_mean_is_of_sums_over_all_samples(self):
        found = values({'mae': sluice.Mean(lambda outputs, targets: (abs(outputs - targets).sum(), len(targets)))},
                       self.outputs, self.targets, _CUTS)
        self.assertAlmostEqual(found['mae'][0], abs(self.outputs - self.targets).mean(), places=6)

    def test_object_with_reductions(self):
        metric = Worst()
        metric.update(self.outputs, self.targets)
        self.assertEqual(values({'worst': Worst()}, self.outputs, self.targets, _CUTS),
                         {'worst': (metric.compute(), '')})

    def test_batch_without_targets_adds_nothing(self):
        def refuse(outputs, targets):
            if len(targets) == 0:
                raise ValueError('empty')
            return 1, 1

        worker = metrics.Metrics({'m': sluice.Mean(refuse)}, 10, None)
        worker.begin()
        worker.update(self.outputs[:0], self.targets[:0], 5)
        nothing = worker.states()[0]
        self.assertTrue(math.isnan(worker.value(0, lambda place: [nothing])[0]))
        worker.update(self.outputs, self.targets, 5)
        self.assertEqual(worker.value(0, lambda place: [nothing, worker.states()[0]])[0], 1)

    def test_sums_are_of_float64_in_the_order_of_the_parts(self):
        parts = [np.array([1e8, 1], np.float32), np.array([1, 1], np.float32)]
        merged = metrics._merged('sum', parts)
        self.assertEqual(merged.dtype, np.float64)
        np.testing.assert_array_equal(merged, [1e8 + 1, 2])

    def test_value_may_be_nan(self):
        self.assertTrue(math.isnan(values({'m': lambda *_: math.nan}, self.outputs, self.targets)['m'][0]))

    def test_errors_name_the_metric_and_the_remedy(self):
        cases = [
            ('must be a function', {'m': 3}),
            ('has no `reductions`', {'m': type('M', (), {'update': print, 'compute': print, 'reset': print})()}),
            ('must be one of sum, max, min, cat', {'m': _reducing(count='mean')}),
            ("no attribute 'total'", {'m': _reducing(total='sum')}),
        ]
        for text, given in cases:
            with self.assertRaisesRegex(errors.UsageError, f"metric 'm'.*{text}"):
                metrics.Metrics(given, 10, None)
        with self.assertRaisesRegex(errors.UsageError, 'give {"name": metric}'):
            metrics.Metrics([print], 10, None)

        for text, metric in (('must be one number', lambda outputs, targets: targets),
                             ('ZeroDivisionError', lambda outputs, targets: 1 / 0)):
            with self.assertRaisesRegex(errors.UsageError, f"metric 'm'.*{text}"):
                values({'m': metric}, self.outputs, self.targets)
        with self.assertRaisesRegex(errors.UsageError, "metric 'm' needs the outputs of the model: let the obj"):
            worker = metrics.Metrics({'m': max}, 10, None)
            worker.update(None, None, 1)
        with self.assertRaisesRegex(errors.UsageError, "outputs has a str: only tensors"):
            values({'m': max}, ['a'], ['b'])

    def test_states_that_would_not_fit_a_message_are_refused_early(self):
        random = np.random.default_rng(6)
        outputs = random.standard_normal((2000, 30)).astype(np.float32)
        given = {'top': lambda outputs, targets: 0, 'mean': sluice.Mean(lambda *_: (1, 1))}
        values(given, outputs, outputs[:, 0], samples=2000)
        with self.assertRaisesRegex(errors.UsageError, "metric 'top' keeps .* of all 200,000 held-out samples, and "
                                                       '8,388,608 are possible. Give a metric that keeps sums'):
            values(given, outputs, outputs[:, 0], samples=200_000)


def _reducing(**reductions):
    metric = Worst()
    metric.reductions = reductions
    return metric


@unittest.skipUnless(torchmetrics and torch, 'needs torch and torchmetrics')
class Torchmetrics(unittest.TestCase):
    """Values are those of one object that got all batches."""

    def check(self, metric, outputs, targets, batch=16):
        whole = metric.clone()
        for at in range(0, len(targets), batch):
            whole.update(outputs[at:at + batch], targets[at:at + batch])
        (value, note), = values({'m': metric}, outputs, targets, _CUTS, torch, batch).values()
        self.assertEqual(note, '')
        self.assertAlmostEqual(value, float(whole.compute()), delta=1e-6 * abs(value))

    def setUp(self):
        torch.manual_seed(3)
        self.scores = torch.rand(100)
        self.labels = torch.randint(0, 2, (100,))
        self.logits = torch.randn(100, 5)
        self.classes = torch.randint(0, 5, (100,))

    def test_of_classification(self):
        c = torchmetrics.classification
        for metric in (c.BinaryAUROC(), c.BinaryAUROC(thresholds=20), c.BinaryF1Score(), c.BinaryAveragePrecision()):
            self.check(metric, self.scores, self.labels)
        for metric in (c.MulticlassAccuracy(5), c.MulticlassF1Score(5, average='macro'), c.MulticlassAUROC(5),
                       c.MulticlassCohenKappa(5)):
            self.check(metric, self.logits, self.classes)

    def test_of_numbers_and_texts(self):
        self.check(torchmetrics.MeanSquaredError(), self.scores, torch.rand(100))
        self.check(torchmetrics.R2Score(), self.scores, torch.rand(100))
        self.check(torchmetrics.SpearmanCorrCoef(), self.scores, torch.rand(100))
        self.check(torchmetrics.MeanMetric(), self.scores, torch.rand(100))
        self.check(torchmetrics.text.Perplexity(), torch.randn(100, 7, 5), torch.randint(0, 5, (100, 7)))

    def test_batches_of_both_probabilities_and_logits_give_nan_and_a_note(self):
        scores = torch.where(self.labels > 0, 3.0, -3.0)
        scores[:16] = self.scores[:16]
        value, note = values({'auc': torchmetrics.AUROC('binary')}, scores, self.labels, _CUTS, torch)['auc']
        self.assertTrue(math.isnan(value))
        self.assertRegex(note, "metric 'auc' is NaN: torchmetrics takes .* override its update")
        value, note = values({'acc': torchmetrics.Accuracy('multiclass', num_classes=5)}, self.logits, self.classes,
                             _CUTS, torch, batch=1)['acc']
        self.assertEqual(note, '', 'the largest output is the same for both')

    def test_metric_that_cannot_be_merged_is_refused(self):
        cases = [(torchmetrics.PearsonCorrCoef(), "PearsonCorrCoef.*state 'mean_x' is reduced by None"),
                 (torchmetrics.MinMaxMetric(torchmetrics.MeanSquaredError()), 'MeanSquaredError within it'),
                 (torchmetrics.MeanSquaredError() + 1, 'MeanSquaredError within it'),
                 (torchmetrics.MetricCollection([torchmetrics.MeanSquaredError()]), 'has no `reductions`')]
        for metric, text in cases:
            with self.assertRaisesRegex(errors.UsageError, f"metric 'm'.*{text}"):
                metrics.Metrics({'m': metric}, 10, torch)
        with self.assertRaisesRegex(errors.UsageError, "metric 'm' is a Tensor of shape \\[5\\]"):
            values({'m': torchmetrics.classification.MulticlassF1Score(5, average=None)}, self.logits, self.classes,
                   torch_module=torch)


if __name__ == '__main__':
    unittest_main.main()
