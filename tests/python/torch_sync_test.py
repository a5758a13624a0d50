"""Batch norms of several workers, as threads, against one batch norm over all samples."""

from python.testing import requirements
requirements.need('numpy', 'google.protobuf', 'torch')

import copy
import pickle
import threading
import unittest

import numpy as np
import torch

from sluice import errors
from sluice import torch_sync
from tools import unittest_main


class Exchange:
    """Adds the parts of some threads."""

    def __init__(self, threads):
        self._barrier = threading.Barrier(threads)
        self._parts = {}

    def give(self, name, numbers):
        self._parts[threading.get_ident()] = (name, numbers.copy())
        self._barrier.wait(10)
        names = {name for name, _ in self._parts.values()}
        assert len(names) == 1, names
        numbers[:] = sum(part for _, part in self._parts.values())
        self._barrier.wait(10)


def run(module, x, weights, sums=None):
    """(output, gradients, buffers) after forward and backward of a loss."""
    if sums is not None:
        torch_sync.convert(module, sums)
        sums.running = True
    x = x.clone().requires_grad_()
    output = module(x)
    (output.double().pow(3) * weights).sum().backward()
    return (output.detach(), x.grad, {name: each.grad for name, each in module.named_parameters()},
            {name: each.clone() for name, each in module.named_buffers()})


def run_in_parts(module, x, weights, sizes):
    exchange = Exchange(len(sizes))
    results = [None] * len(sizes)

    def work(place, own, some, weights):
        results[place] = run(own, some, weights, torch_sync.Sums(exchange.give))

    threads = [threading.Thread(target=work, args=(place, copy.deepcopy(module), some, weights_of_some))
               for place, (some, weights_of_some) in enumerate(zip(x.split(sizes), weights.split(sizes)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def make(kind, channels, **arguments):
    module = kind(channels, **arguments)
    if module.affine:
        with torch.no_grad():
            module.weight.uniform_(0.5, 2)
            module.bias.uniform_(-1, 1)
    return module


class Statistics(unittest.TestCase):

    def compare(self, module, x, sizes=(3, 1, 4), tolerance=1e-5):
        torch.manual_seed(3)
        weights = torch.rand(x.shape, dtype=torch.float64)
        output, of_input, of_parameters, buffers = run(copy.deepcopy(module), x, weights)
        parts = run_in_parts(module, x, weights, list(sizes))
        close = dict(rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(torch.cat([part[0] for part in parts]), output, **close)
        torch.testing.assert_close(torch.cat([part[1] for part in parts]), of_input, **close)
        for name, gradient in of_parameters.items():
            torch.testing.assert_close(sum(part[2][name] for part in parts), gradient, **close)
        for _, _, _, found in parts:
            self.assertEqual(list(found), list(buffers))
            for name, value in buffers.items():
                torch.testing.assert_close(found[name], value, **close)

    def test_they_are_those_of_all_samples(self):
        torch.manual_seed(1)
        cases = [(make(torch.nn.BatchNorm1d, 5), (8, 5)),
                 (make(torch.nn.BatchNorm1d, 5), (8, 5, 3)),
                 (make(torch.nn.BatchNorm2d, 3), (8, 3, 4, 2)),
                 (make(torch.nn.BatchNorm2d, 3, momentum=None), (8, 3, 4, 2)),
                 (make(torch.nn.BatchNorm2d, 3, affine=False), (8, 3, 4, 2)),
                 (make(torch.nn.BatchNorm2d, 3, track_running_stats=False), (8, 3, 4, 2)),
                 (make(torch.nn.BatchNorm3d, 2, eps=1e-3), (8, 2, 2, 3, 2)),
                 (make(torch.nn.BatchNorm2d, 3).double(), (8, 3, 4, 2))]
        for module, shape in cases:
            with self.subTest(module=module, shape=shape):
                x = torch.randn(shape, dtype=next(module.parameters(), torch.empty(0)).dtype) * 3 + 2
                self.compare(module, x)

    def test_a_mean_far_from_zero_loses_no_digits(self):
        torch.manual_seed(2)
        self.compare(torch.nn.BatchNorm1d(4).double(), torch.randn(8, 4, dtype=torch.float64) + 1e5, tolerance=1e-4)

    def test_bfloat16_is_computed_in_float32(self):
        torch.manual_seed(4)
        module = make(torch.nn.BatchNorm2d, 3)
        x = torch.randn(8, 3, 4, 4).bfloat16()
        weights = torch.rand(x.shape, dtype=torch.float64)
        output, of_input, *_ = run(copy.deepcopy(module), x.float(), weights)
        parts = run_in_parts(module, x, weights, [4, 4])
        self.assertEqual(parts[0][0].dtype, torch.bfloat16)
        torch.testing.assert_close(torch.cat([part[0] for part in parts]).float(), output, rtol=0.01, atol=0.01)
        torch.testing.assert_close(torch.cat([part[1] for part in parts]).float(), of_input, rtol=0.05, atol=0.5)

    def test_one_value_per_channel_is_refused(self):
        with self.assertRaisesRegex(ValueError, 'more than 1 value per channel'):
            run(torch.nn.BatchNorm1d(3), torch.ones(1, 3), torch.ones(1, 3), torch_sync.Sums(lambda *unused: None))

    def test_what_the_job_no_longer_needs_is_computed_with_own_numbers(self):
        x, weights = torch.randn(6, 3), torch.rand(6, 3, dtype=torch.float64)
        expected = run(torch.nn.BatchNorm1d(3), x, weights)
        found = run(torch.nn.BatchNorm1d(3), x, weights, torch_sync.Sums(lambda *unused: None))
        torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found[1], expected[1], rtol=1e-5, atol=1e-5)

    @unittest.skipUnless(hasattr(torch.nn.Module, 'compile'), 'PyTorch 2.2 compiles modules in place')
    def test_a_compiled_module_computes_with_the_same_sums(self):
        class Net(torch.nn.Module):

            def __init__(self):
                super().__init__()
                self.first = torch.nn.Linear(4, 6)
                self.norm, self.other = (make(torch.nn.BatchNorm1d, 6, momentum=momentum) for momentum in (0.1, None))
                self.last = torch.nn.Linear(6, 2)

            def forward(self, x):
                return self.last(torch.relu(self.other(torch.relu(self.norm(self.first(x))))))

        graphs, names = [], []

        def compiled(**arguments):
            torch._dynamo.reset()
            own = copy.deepcopy(module)
            own.compile(backend=lambda graph, inputs: graphs.append(graph) or graph.forward, **arguments)
            return own

        torch.manual_seed(5)
        module = Net()
        x, weights = torch.randn(8, 4), torch.rand(8, 2, dtype=torch.float64)
        expected = run(copy.deepcopy(module), x, weights)
        found = run(compiled(), x, weights, torch_sync.Sums(lambda name, numbers: names.append(name)))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        self.assertEqual(len(graphs), 3)  # before, between and after the batch norms
        self.assertEqual(names, ["the statistics of batch norm 'norm'", "the statistics of batch norm 'other'",
                                 "the gradients of batch norm 'other'", "the gradients of batch norm 'norm'"])
        with self.assertRaisesRegex(Exception, 'waits for the other workers: leave fullgraph=True out'):
            run(compiled(fullgraph=True), x, weights, torch_sync.Sums(lambda *unused: None))

    def test_outside_of_a_step_and_in_evaluation_nothing_is_exchanged(self):
        def give(*unused):
            raise AssertionError('a sum')

        module = torch.nn.BatchNorm1d(3)
        plain = copy.deepcopy(module)
        sums = torch_sync.Sums(give)
        torch_sync.convert(module, sums)
        x = torch.randn(4, 3)
        torch.testing.assert_close(module(x), plain(x), rtol=0, atol=0)
        sums.running = True
        torch.testing.assert_close(module.eval()(x), plain.eval()(x), rtol=0, atol=0)


class Conversion(unittest.TestCase):

    def setUp(self):
        self.sums = torch_sync.Sums(lambda *unused: None)

    def test_names_tensors_and_copies_stay_what_they_were(self):
        module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.SyncBatchNorm(3))
        before = module.state_dict()
        weight = module[1].weight
        self.assertEqual(torch_sync.convert(module, self.sums), 2)
        self.assertEqual(list(module.state_dict()), list(before))
        self.assertIs(module[1].weight, weight)
        self.assertIsInstance(module[1], torch.nn.BatchNorm1d)
        for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            self.assertIs(type(other[1]), torch.nn.BatchNorm1d)
            self.assertEqual(list(other.state_dict()), list(before))
            self.assertFalse(hasattr(other[1], '_sluice_name'))

    def test_a_subclass_without_a_forward_is_converted(self):
        class Mine(torch.nn.BatchNorm2d):
            pass

        self.assertEqual(torch_sync.convert(Mine(3), self.sums), 1)

    def test_what_cannot_be_synchronized_is_named(self):
        class Own(torch.nn.BatchNorm1d):
            def forward(self, x):
                return x

        scripted = torch.nn.Sequential(torch.jit.script(torch.nn.Sequential(torch.nn.BatchNorm1d(3))))
        replaced = torch.nn.BatchNorm1d(3)
        replaced.forward = lambda x: x
        for module, text in ((torch.nn.Sequential(torch.nn.ReLU(), Own(3)), "'1' is a Own, which has a forward"),
                             (torch.nn.Sequential(replaced), "'0' is a BatchNorm1d, which has a forward"),
                             (scripted, "'0.0' is in TorchScript"),
                             (torch.nn.Sequential(torch.nn.BatchNorm1d(70000)), 'has 70000 channels; at most 65535')):
            with self.subTest(text), self.assertRaisesRegex(errors.UsageError, text):
                torch_sync.convert(module, self.sums)


if __name__ == '__main__':
    unittest_main.main()
