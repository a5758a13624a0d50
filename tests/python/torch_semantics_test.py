"""A worker computes what PyTorch computes, or names what it cannot: modes, memory, buffers."""

from python.testing import requirements
requirements.need('numpy', 'google.protobuf', 'torch')

import os
import pathlib
import tempfile
import unittest
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import sluice
from sluice import data as data_lib
from sluice import extras
from sluice import samples as samples_lib
from sluice import torch_model
from sluice import torch_modules
from sluice import wire
from tests.python.torch_steps import Net
from tests.python.torch_steps import StepTest
from tests.python.torch_steps import bound
from tests.python.torch_steps import step
from tools import unittest_main


def setUpModule():
    torch.set_num_threads(1)


class Modes(StepTest):

    def test_evaluation_keeps_the_mode_of_every_submodule(self):

        class Frozen(nn.Sequential):
            """Keeps its batch norm in evaluation mode, as many programs do."""

            def train(self, mode=True):
                super().train(mode)
                self[1].eval()
                return self

        def frozen_root(module):
            module.eval()
            module[2].train()

        for make, change in ((nn.Sequential, lambda module: module[1].eval()),
                             (nn.Sequential, frozen_root), (Frozen, lambda module: module.train())):
            module = make(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
            model = bound(module, nn.CrossEntropyLoss())
            change(module)
            before = {name: part.training for name, part in module.named_modules()}
            seen = []
            module[2].register_forward_pre_hook(lambda part, _: seen.append(part.training))
            model.evaluate(self.data)
            self.assertEqual(seen, [False])
            self.assertEqual({name: part.training for name, part in module.named_modules()}, before)

    def test_evaluation_changes_no_buffer(self):

        def count(net):
            net.total += 1
            net.steps += 1

        net = Net(count).with_buffer(torch.zeros(1), 'total').with_buffer(torch.tensor(5), 'steps')
        model = bound(net, nn.CrossEntropyLoss())
        model.evaluate(self.data)
        model.check()
        self.assertEqual((float(net.total), int(net.steps)), (0, 5))

    def test_a_frozen_batch_norm_does_not_count(self):
        module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        kinds = {spec.name: spec.kind for spec in bound(module, None, id).table.tensors}
        self.assertEqual(kinds['1.num_batches_tracked'], wire.COUNTER)
        module[1].eval()
        model = bound(module, nn.CrossEntropyLoss())
        self.assertIn('1.num_batches_tracked', model.extras()[1])
        step(model, self.data)
        module[1].train()
        with self.refused("'1.num_batches_tracked'.*Make the Worker while"):
            step(model, self.data)

    def test_the_smallest_batch_is_that_of_a_batch_norm_in_training_mode(self):
        inner = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        module = nn.Sequential(inner, nn.GroupNorm(1, 3))
        self.assertEqual(torch_modules.smallest_batch(module), (2, '0.1'))
        self.assertEqual(torch_modules.smallest_batch(torch.jit.script(module)), (2, '0.1'))
        self.assertEqual(torch_modules.smallest_batch(nn.SyncBatchNorm(3)), (2, 'SyncBatchNorm'))
        inner[1].eval()
        self.assertEqual(torch_modules.smallest_batch(module), (1, ''))
        untracked = nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False)).eval()
        self.assertEqual(torch_modules.smallest_batch(untracked), (2, '0'))

    def test_notes_say_what_batch_norm_and_evaluation_mode_mean(self):
        module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout())
        spec = wire.JobSpec(training=wire.TrainingSpec(mode=wire.SYNCHRONOUS, microbatch_size=4),
                            worker=wire.WorkerSpec(replicas=1))
        self.assertEqual(torch_modules.notes(module, spec), [])
        spec.worker.replicas = 2
        self.assertRegex(torch_modules.notes(module, spec)[0], "'1'.*DistributedDataParallel")
        told = bound(module, nn.CrossEntropyLoss()).describe(spec)
        self.assertEqual((told['smallest_batch'], told['module'], len(told['notes'])), (2, '1', 1))
        spec.training.bit_exact = True
        self.assertRegex(torch_modules.notes(module, spec)[0], r"'1'.*microbatch \(4 samples\)")
        self.assertRegex(torch_modules.notes(module.eval(), spec)[0], r'module\.train\(\)')
        self.assertEqual(torch_modules.notes(nn.Linear(4, 3).eval(), spec), [])


class ChangedParameters(StepTest):

    def test_unchanged_parameters_pass(self):
        module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        model = bound(module, nn.CrossEntropyLoss())
        for _ in range(2):
            step(model, self.data)
            model.evaluate(self.data)
            model.mark()
            model.check()

    def test_max_norm_of_a_trained_table_is_refused_at_the_start(self):
        for make in (nn.Embedding, nn.EmbeddingBag):
            module = nn.Sequential(make(12, 4, max_norm=0.5), nn.Linear(4, 3))
            with self.refused(r"'0\.weight' has max_norm=0\.5.*clamp"):
                bound(module, nn.CrossEntropyLoss())
            module[0].weight.requires_grad_(False)
            bound(module, nn.CrossEntropyLoss())

    def test_a_forward_pass_that_changes_a_parameter_is_refused(self):

        def clamp(net):
            with torch.no_grad():
                net.linear.weight.clamp_(-0.1, 0.1)

        def renorm(net):
            functional.embedding(torch.tensor([0, 1]), net.linear.weight, max_norm=0.1)

        def assign(net):
            net.linear.weight.data = net.linear.weight.data * 0.5

        for change in (clamp, renorm, assign, lambda net: net.linear.weight.data.mul_(0.5)):
            with self.refused("'linear.weight' must not change.*the shards have the parameters"):
                self.step(Net(change))

    def test_an_evaluation_that_changes_a_parameter_is_refused(self):
        net = Net()
        model = bound(net, nn.CrossEntropyLoss())
        with torch.no_grad():
            net.extra = lambda net: net.linear.bias.zero_()
            with self.refused("'linear.bias'"):
                model.evaluate(self.data)

    def test_a_program_that_changes_tensors_between_steps_is_refused(self):

        def optimize(net):
            net.linear.weight.grad = torch.ones(3, 4)
            torch.optim.SGD(net.parameters(), 0.1).step()

        def replace(net):
            net.linear.weight = nn.Parameter(torch.zeros(3, 4), requires_grad=False)

        def clip(net):
            for parameter in net.parameters():
                parameter.data.clamp_(-0.01, 0.01)

        changes = ((optimize, 'linear.weight'), (replace, 'linear.weight'), (clip, 'linear.weight'),
                   (lambda net: net.double(), '.*'),
                   (lambda net: net.extra_buffer.fill_(3), 'extra_buffer'),
                   (lambda net: net.extra_buffer.data.fill_(3), 'extra_buffer'))
        for change, name in changes:
            net = Net().with_buffer(torch.zeros(2))
            model = bound(net, nn.CrossEntropyLoss())
            step(model, self.data)
            change(net)
            with self.refused(f"'{name}' must not change"):
                model.check()

    def test_a_buffer_may_change_after_the_batch_was_taken(self):
        net = Net().with_buffer(torch.zeros(2))
        model = bound(net, nn.CrossEntropyLoss())
        results, _ = step(model, self.data, between=lambda: net.extra_buffer.fill_(3))
        np.testing.assert_array_equal(results['extra_buffer'], [3, 3])

    def test_the_content_of_a_table_that_is_read_by_rows_is_not_compared(self):
        net = Net()
        model = bound(net, nn.CrossEntropyLoss())
        model.skip([0])
        model.mark()
        net.linear.weight.data.mul_(2)  # as the library does when rows arrive
        model.check()
        with torch.no_grad():
            net.linear.weight.mul_(2)
        with self.refused("'linear.weight'"):
            model.check()

    def test_what_changes_before_training_is_the_initial_value(self):
        net = Net()
        model = torch_model.TorchModel(net, nn.CrossEntropyLoss(), None)
        with torch.no_grad():
            net.linear.bias.fill_(7)
        self.assertEqual(model.initial(1).tolist(), [7, 7, 7])
        net.half()
        with self.refused("'linear.bias' was replaced, or has another type"):
            model.initial(1)


class SharedMemory(StepTest):

    def test_parameters_over_the_same_memory_are_one(self):
        module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
        module[1].weight.data = module[0].weight.data
        model = bound(module, nn.CrossEntropyLoss())
        self.assertEqual(model.extras()[0], {'1.weight': '0.weight'})
        self.assertIs(module[1].weight, module[0].weight)
        results, _ = step(model, self.data)
        with torch.enable_grad():
            weight = module[0].weight.detach().clone().requires_grad_()
            hidden = functional.linear(self.data[0], weight, module[0].bias)
            output = module[2](functional.linear(hidden, weight, module[1].bias))
            functional.cross_entropy(output, self.data[1]).backward()
        np.testing.assert_allclose(results['0.weight'], 8 * weight.grad.reshape(-1).numpy(),
                                   rtol=1e-5, atol=1e-6)

    def test_a_frozen_tensor_over_a_trained_ones_memory_follows_it(self):
        for frozen in (lambda weight: nn.Parameter(weight.data, requires_grad=False),
                       lambda weight: weight.data):
            net = Net()
            copy = frozen(net.linear.weight)
            if isinstance(copy, nn.Parameter):
                net.first = copy  # before the trained one in the state_dict
            else:
                net.with_buffer(copy, 'first')
            model = bound(net, nn.CrossEntropyLoss())
            self.assertEqual([(spec.name, spec.kind) for spec in model.table.tensors],
                             [('first', wire.PARAMETER), ('linear.bias', wire.PARAMETER)])
            self.assertEqual(model.extras()[0], {'linear.weight': 'first'})
            model.bind(model.view([np.full(12, 5, np.float32), np.zeros(3, np.float32)]))
            self.assertTrue(bool((net.first == 5).all() and (net.linear.weight == 5).all()))
            self.assertIsNotNone(step(model, self.data)[0]['first'])

    def test_tensors_that_share_memory_in_part_are_refused_with_both_names(self):

        def transposed(net):
            net.tied = nn.Parameter(net.linear.weight.t())

        def part(net):
            net.tied = nn.Parameter(net.linear.weight.data[1:])

        def attribute(net):
            net.tied = net.linear.weight.t()

        def hidden(net):
            net.with_buffer(net.linear.weight.data.t(), 'tied', persistent=False)

        for change in (transposed, part, attribute, hidden):
            net = Net()
            change(net)
            with self.refused("'tied' and 'linear.weight'|'linear.weight' and 'tied'"):
                bound(net, nn.CrossEntropyLoss())

    def test_parts_of_one_memory_that_do_not_overlap_are_separate(self):
        memory = torch.randn(3, 8)
        net = Net()
        net.even, net.odd = nn.Parameter(memory[:, ::2]), nn.Parameter(memory[:, 1::2])
        model = bound(net, nn.CrossEntropyLoss())
        self.assertEqual(model.extras()[0], {})
        np.testing.assert_array_equal(model.initial(1).reshape(3, 4), memory[:, 1::2].numpy())

    def test_old_spectral_norm_and_weight_norm_train(self):
        for wrap in (nn.utils.spectral_norm, nn.utils.weight_norm):
            module = nn.Sequential(wrap(nn.Linear(4, 4)), nn.Linear(4, 3))
            self.step(module)


class Gradients(StepTest):

    def test_a_parameter_that_is_unfrozen_later_is_refused(self):
        module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
        module[0].requires_grad_(False)
        model = bound(module, nn.CrossEntropyLoss())
        step(model, self.data)
        module[0].requires_grad_(True)
        with self.refused(r"'0\.weight' requires a gradient now.*was frozen.*freeze it after"):
            step(model, self.data)

        module[0].requires_grad_(False)
        model = bound(module, objective=lambda module, data: functional.cross_entropy(
            module.requires_grad_(True)(data[0]), data[1]))
        model.begin()
        model.run(self.data, 8)
        module[0].requires_grad_(False)
        with self.refused(r"'0\.weight' requires a gradient now"):
            model.end(1)

    def test_a_parameter_that_is_frozen_later_has_no_gradient(self):
        module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
        model = bound(module, nn.CrossEntropyLoss())
        module[0].requires_grad_(False)
        results, _ = step(model, self.data)
        self.assertIsNone(results['0.weight'])
        module[0].requires_grad_(True)
        results, _ = step(model, self.data)
        self.assertIsNotNone(results['0.weight'])

    def test_a_parameter_that_is_added_later_is_refused(self):
        net = Net()
        model = bound(net, nn.CrossEntropyLoss())
        net.late = nn.Parameter(torch.zeros(2))
        with self.refused("'late' requires a gradient now, and did not exist"):
            step(model, self.data)

    def test_a_trained_parameter_outside_of_the_state_dict_is_refused(self):

        class Short(Net):
            def state_dict(self, *arguments, **keywords):
                state = super().state_dict(*arguments, **keywords)
                del state['linear.bias']
                return state

        with self.refused("'linear.bias' requires a gradient and is not in"):
            bound(Short(), nn.CrossEntropyLoss())

        class Learned(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(1))

        with self.refused("'scale' of the loss_fn would not be trained"):
            bound(Net(), Learned())

    def test_a_loss_without_a_gradient_is_refused(self):

        def without(module, data):
            with torch.no_grad():
                return functional.cross_entropy(module(data[0]), data[1])

        for objective in (lambda module, data: module(data[0]).detach().sum(), without):
            with self.refused('depends on no parameter'):
                step(bound(Net(), objective=objective), self.data)

        def of_input(module, data):
            return (data[0].clone().requires_grad_() * module(data[0]).detach().sum()).mean()

        with self.refused('no gradient of any parameter'):
            step(bound(Net(), objective=of_input), self.data)
        with self.refused('no gradient of any parameter'):
            step(bound(Net()), self.data, gradients={})
        with self.refused('the loss is a float'):
            step(bound(Net(), objective=lambda module, data: 1.0), self.data)

    def test_a_gradient_of_what_is_not_trained_is_refused(self):
        net = Net().with_buffer(torch.zeros(2))
        with self.refused("'extra_buffer' is not trained"):
            step(bound(net), self.data, gradients={'extra_buffer': torch.ones(2)})


class Buffers(StepTest):

    def kept(self, value):
        """What extras say of a constant buffer."""
        return bound(Net().with_buffer(value), nn.CrossEntropyLoss()).extras()[1]['extra_buffer']

    def test_complex_numbers_are_kept_as_they_are(self):
        value = torch.tensor([1 + 2j, 3 - 4j])
        for each, expected in ((value, [1 + 2j, 3 - 4j]), (value.conj(), [1 - 2j, 3 + 4j])):
            kind, flat, shape = self.kept(each)
            self.assertEqual((kind, flat.tolist(), list(shape)), ('C64', expected, [2]))

    def test_a_negative_view_keeps_its_sign(self):
        value = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
        self.assertTrue(value.is_neg())
        net = Net().with_buffer(value)
        net.weight = nn.Parameter(value.detach().clone().conj().neg())
        model = bound(net, nn.CrossEntropyLoss())
        self.assertEqual(net.extra_buffer.tolist(), [-2, 4])
        names = [spec.name for spec in model.table.tensors]
        self.assertEqual(model.initial(names.index('extra_buffer')).tolist(), [-2, 4])

    def test_types_that_a_checkpoint_cannot_contain_are_refused_by_name(self):
        values = [torch.zeros(2, dtype=torch.complex128), torch.quantize_per_tensor(
            torch.ones(2), 0.1, 0, torch.quint8), torch.eye(2).to_sparse(),
            torch.ones(2, device='meta')]
        for value in values:
            with self.refused("tensor 'extra_buffer'"):
                self.kept(value)
            bound(Net().with_buffer(value, persistent=False), nn.CrossEntropyLoss())
        net = Net()
        net.extra = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
        with self.refused("tensor 'extra' is torch.complex64, which cannot be trained"):
            bound(net, nn.CrossEntropyLoss())
        with self.refused("'0.weight' has no shape yet.*one batch"):
            bound(nn.Sequential(nn.LazyLinear(3)), nn.CrossEntropyLoss())

    def test_every_type_of_safetensors_is_kept(self):
        for name in ('uint16', 'uint32', 'uint64', 'float8_e4m3fn', 'float8_e5m2', 'int16'):
            if not hasattr(torch, name):
                continue
            value = torch.tensor([1, 2, 4]).to(getattr(torch, name))
            kind, flat, _ = self.kept(value)
            self.assertEqual(flat.tobytes(), value.view(torch.uint8).numpy().tobytes(), kind)

    def test_a_buffer_that_changes_its_shape_or_type_is_refused(self):

        def grow(net):
            net.extra_buffer = torch.zeros(3)

        def resize(net):
            net.extra_buffer.resize_(3).fill_(1)

        def widen(net):
            net.extra_buffer = net.extra_buffer.double()

        for change in (grow, resize, widen):
            net = Net(change).with_buffer(torch.zeros(2))
            with self.refused(r"'extra_buffer' is torch.float32 of shape \[2\].*persistent=False"):
                self.step(net)
        for change in (resize, lambda net: setattr(net, 'extra_buffer', torch.zeros(3))):
            with self.refused(r"'extra_buffer' .*shape \[0\].*final shape"):
                self.step(Net(change).with_buffer(torch.zeros(0)))

    def test_infinite_and_nan_elements_may_stay_but_not_change(self):

        def change(net):
            net.extra_buffer[1] += 1

        start = [float('inf'), 1, float('nan'), -float('inf')]
        results = self.step(Net(change).with_buffer(torch.tensor(start)))
        self.assertEqual(results['extra_buffer'].tolist(), [0, 1, 0, 0])
        self.assertIsNone(self.step(Net().with_buffer(torch.tensor(start)))['extra_buffer'])

        def lower(net):
            net.extra_buffer = torch.minimum(net.extra_buffer, torch.tensor(1.0))

        with self.refused("'extra_buffer' is infinite or NaN where this step changes it"):
            self.step(Net(lower).with_buffer(torch.tensor(start)))

    def test_an_integer_that_the_forward_pass_changes_is_refused(self):

        def count(net):
            net.extra_buffer += 1

        def assign(net):
            net.extra_buffer = net.extra_buffer + 1

        def hide(net):
            net.extra_buffer.data.add_(1)

        for change in (count, assign, hide):
            with self.refused("'extra_buffer'.*forward pass changes it.*persistent=False"):
                self.step(Net(change).with_buffer(torch.tensor(0)))
            self.step(Net(change).with_buffer(torch.tensor(0), persistent=False))

    def test_an_integer_that_the_program_changes_is_kept(self):
        net = Net().with_buffer(torch.tensor([1, 1]))
        model = bound(net, nn.CrossEntropyLoss())
        model.extras()
        step(model, self.data)
        self.assertFalse(model.extras_changed)
        step(model, self.data, between=lambda: net.extra_buffer.zero_())
        self.assertTrue(model.extras_changed)
        self.assertEqual(model.extras()[1]['extra_buffer'][1].tolist(), [0, 0])
        self.assertFalse(model.extras_changed)

    def test_observers_of_quantization_are_refused_with_the_remedy(self):
        from torch.ao import quantization
        for backend in ('fbgemm', 'qnnpack'):
            for disabled in (False, True):
                net = nn.Sequential(quantization.QuantStub(), nn.Linear(4, 3))
                net.qconfig = quantization.get_default_qat_qconfig(backend)
                net = quantization.prepare_qat(net.train())
                if not disabled:
                    with self.refused('observer'):
                        self.step(net)
                    continue
                net(self.data[0])
                net.apply(quantization.disable_observer)
                self.assertIsNotNone(self.step(net)['1.weight'])


_WEIGHTS = torch.tensor([0.25, 4.0, 1.5])


class Workers(StepTest):
    """What a worker tells the job."""

    def worker(self, module, loss_fn):
        """A worker whose job has no work."""
        self.handle = mock.Mock(next=lambda: None, end=lambda: None, collect=lambda: [],
                                address=lambda tensor: 1)
        spec = wire.JobSpec(training=wire.TrainingSpec(mode=wire.SYNCHRONOUS, seed=1),
                            model=wire.ModelSpec(type=wire.ModelSpec_CUSTOM))
        job = mock.Mock(index=0, _handle=self.handle)
        job.name = 'default/test/test'
        job.spec = spec
        worker = sluice.Worker(job, module, loss_fn)
        self.handle.array = lambda tensor, dtype: worker._model.initial(tensor).copy()
        return worker

    @staticmethod
    def hold_out(worker, *arrays):
        worker._samples = samples_lib.Samples(range(1), sluice.ArrayDataset(*arrays), None,
                                              worker._job.spec, None)

    def test_the_smallest_batch_is_described_in_the_modes_at_the_start(self):
        module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        for frozen, samples in ((False, 2), (True, 1)):
            worker = self.worker(module.train(), nn.CrossEntropyLoss())
            module[1].train(not frozen)
            list(worker.batches(sluice.ArrayDataset(*self.data)))
            self.assertEqual(self.handle.describe.call_args[1]['smallest_batch'], samples)

    def test_the_user_is_told_what_a_stream_costs(self):

        class Stream(torch.utils.data.IterableDataset):
            def __iter__(self):
                return iter(range(4))

        worker = self.worker(Net(), nn.CrossEntropyLoss())
        worker._job.spec.data.no_shuffle = True
        worker._job.spec.training.steps = 3
        list(worker.batches(Stream()))
        self.assertIn('every worker reads all of it', self.handle.describe.call_args[1]['notes'][-1])
        self.assertEqual(self.handle.open.call_args[0], (1 << 40, 0))

    def test_a_module_keeps_its_values_if_the_job_ends_before_the_worker_has_a_version(self):
        net = Net()
        before = net.linear.weight.detach().clone()
        with self.worker(net, nn.CrossEntropyLoss()) as worker:
            self.handle.array = lambda tensor, dtype: np.zeros_like(worker._model.initial(tensor))
            self.assertEqual(list(worker.batches(sluice.ArrayDataset(*self.data))), [])
        self.assertTrue(torch.equal(net.linear.weight, before))

    def test_an_evaluation_is_weighed_over_its_batches(self):
        x, y = torch.randn(600, 4), torch.randint(0, 3, (600,))
        y[:256] = -100  # the first batch
        y[300:500] = -100
        net = Net()
        worker = self.worker(net, nn.CrossEntropyLoss(_WEIGHTS))
        self.hold_out(worker, x, y)
        worker._evaluate(mock.Mock(indices=list(range(600)), samples=600))
        result = self.handle.done.call_args[0][0]
        expected = functional.cross_entropy(net(x), y, _WEIGHTS).item()
        self.assertAlmostEqual(result.loss_sum / 600, expected, places=5)
        self.assertEqual((result.counted, result.correct),
                         (1, int((net(x).argmax(1) == y).sum())))

        worker = self.worker(net, lambda output, y: functional.mse_loss(output[:, 0], y.float()))
        self.hold_out(worker, x, y.float())
        worker._evaluate(mock.Mock(indices=list(range(600)), samples=600))
        self.assertEqual(self.handle.done.call_args[0][0].counted, 0)

    def test_constants_that_the_program_changes_are_written_again(self):
        directory = tempfile.mkdtemp(dir=os.environ.get('TEST_TMPDIR'))
        net = Net().with_buffer(torch.tensor([1, 1]))
        with mock.patch.dict(os.environ, {'SLUICE_CHECKPOINT_DIRECTORY': directory}):
            worker = self.worker(net, nn.CrossEntropyLoss())
            worker._keep_extras()
            net.extra_buffer.zero_()
            self.hold_out(worker, *self.data)
            worker._evaluate(mock.Mock(indices=list(range(8)), samples=8))
        content = pathlib.Path(directory, extras.NAME).read_bytes()
        self.assertIn(bytes(16), content)
        self.assertNotIn(np.array([1, 1]).tobytes(), content)


class Datasets(unittest.TestCase):

    def test_a_dataset_without_numbered_samples_is_refused(self):

        class Stream(torch.utils.data.IterableDataset):
            def __iter__(self):
                return iter(range(4))

            def __len__(self):
                return 4

        class Unfinished(torch.utils.data.Dataset):
            def __len__(self):
                return 4

        for dataset in (Stream(), Unfinished()):
            with self.assertRaisesRegex(sluice.UsageError, r'no sample with a number.*__getitem__'):
                data_lib.check_dataset(dataset, 'the dataset')
        data_lib.check_dataset(torch.utils.data.TensorDataset(torch.ones(3)), 'the dataset')


if __name__ == '__main__':
    unittest_main.main()
