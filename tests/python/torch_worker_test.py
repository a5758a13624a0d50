"""Complete jobs with PyTorch workers: the examples, workers that die, and C++ workers beside them."""

from python.testing import requirements
requirements.need('numpy', 'grpc', 'google.protobuf', 'torch')

import difflib
import inspect
import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import unittest
from unittest import mock

import numpy as np
import torch

import sluice
from sluice import kernels
from sluice import torch_model
from sluice import worker as worker_lib
from sluice import wire
from tests.python import job_processes
from tests.python import mlp_worker
from tests.python import sequence
from tests.python import weighted_worker
from tools import unittest_main

_TRANSFORMER = 'examples/python/transformer.py'
_MLP = 'tests/python/mlp_worker.py'
_NEEDS_TORCH_2 = unittest.skipUnless(hasattr(torch.nn.functional, 'scaled_dot_product_attention'),
                                     'examples/python/transformer.py needs PyTorch 2')


def setUpModule():
    torch.set_num_threads(1)  # several threads that wait for each other are slow on a busy machine


def directory():
    return tempfile.mkdtemp(dir=os.environ.get('TEST_TMPDIR'))


def train(job, start, disturb=None):
    """The final tensors of a job; `start` starts its workers."""
    with job_processes.JobProcesses(job, directory()) as processes:
        processes.start()
        start(processes)
        if disturb is not None:
            disturb(processes)
        for name in processes.workers():
            code = processes.wait_for_exit(name, 200)
            if code != 0:
                raise AssertionError(f'{name}: {processes.log(name)}')
        return sluice.load(processes.checkpoints)


class Transformer(unittest.TestCase):

    def job(self, delay):
        return job_processes.base_job(
            training={'steps': 60, 'globalBatchSize': 16, 'microbatchSize': 4, 'determinism': 'BitExact'},
            debug={'stepDelaySeconds': delay},
            optimizer={'name': 'AdamW', 'learningRate': 1e-3, 'betas': [0.9, 0.999],
                       'eps': 1e-8, 'weightDecay': 0.01, 'clipNorm': 1.0},
            parameterServer={'replicas': 2}, worker={'replicas': 2},
            data={'evaluation': {'intervalSteps': 20}})

    def start_two(self, processes):
        for index in range(2):
            processes.start_python_worker(index, _TRANSFORMER)

    def kill_one(self, processes):
        processes.wait_for_members(2)
        processes.wait_for_step(processes.progress().step + 3)
        processes.kill('worker-1')
        self.assertLess(processes.progress().step, 55, 'it was killed behind the end')

    @_NEEDS_TORCH_2
    def test_killing_one_of_two_workers_does_not_change_the_bits(self):
        undisturbed = train(self.job(0.0), self.start_two)
        disturbed = train(self.job(0.4), self.start_two, self.kill_one)
        self.assertIn('tokens.weight', undisturbed)
        np.testing.assert_array_equal(undisturbed['head.weight'], undisturbed['tokens.weight'])
        self.assertEqual(list(undisturbed), list(disturbed))
        for name, value in undisturbed.items():
            np.testing.assert_array_equal(value, disturbed[name], name)


class Loading(unittest.TestCase):
    """Samples with random numbers, read by loader processes."""

    def job(self, workers, **data):
        return job_processes.base_job(
            training={'steps': 24, 'globalBatchSize': 16, 'microbatchSize': 4, 'determinism': 'BitExact'},
            worker={'replicas': workers}, data={'evaluation': {'intervalSteps': 8}, **data})

    def start(self, workers, **arguments):
        def start(processes):
            for index in range(workers):
                records = processes.directory / f'records-{index}'
                records.mkdir()
                processes.start_python_worker(index, 'tests/python/loading_worker.py', str(records),
                                              json.dumps(arguments))
        return start

    def kill_a_loader_and_a_worker(self, processes):
        processes.wait_for_members(2)
        processes.wait_for_step(processes.progress().step + 2)
        loaders = {int(path.name.split('-')[1]) for path in processes.directory.glob('records-0/read-*')}
        os.kill(max(loaders - {processes.pid('worker-0')}), signal.SIGKILL)
        processes.wait_for_step(processes.progress().step + 2)
        processes.kill('worker-1')
        self.assertLess(processes.progress().step, 22, 'it was killed behind the end')
        processes.wait_until(lambda: 'loader processes are restarted' in processes.log('worker-0'), 60,
                             'worker 0 restarts its loader processes')

    def test_killed_loader_processes_and_workers_do_not_change_the_bits(self):
        undisturbed = train(self.job(1), self.start(1))
        disturbed = train(self.job(2), self.start(2, num_workers=2, seconds=0.05),
                          self.kill_a_loader_and_a_worker)
        for name, value in undisturbed.items():
            np.testing.assert_array_equal(value, disturbed[name], name)

    def kill_a_worker(self, processes):
        processes.wait_for_members(2)
        processes.wait_for_step(processes.progress().step + 2)
        processes.kill('worker-1')
        self.assertLess(processes.progress().step, 22, 'it was killed behind the end')

    def test_a_stream_is_the_same_as_numbered_samples_in_order(self):
        numbered = train(self.job(1, shuffle=False), self.start(1))
        stream = train(self.job(2, shuffle=False), self.start(2, stream='plain', num_workers=1, seconds=0.02),
                       self.kill_a_worker)
        for name, value in numbered.items():
            np.testing.assert_array_equal(value, stream[name], name)


def mlp_job(workers, **training):
    return job_processes.base_job(
        model={'type': 'Builtin', 'name': 'mlp', 'dimensions': {'hidden': 32}},
        data={'format': 'Synthetic',
              'synthetic': {'samples': 500, 'shape': [20], 'classes': 10}},
        training={'steps': 40, **training}, worker={'replicas': workers},
        parameterServer={'replicas': 2})


class BesideCpp(unittest.TestCase):
    """`mlp` of C++ and of Python. With the same LibTorch, equal to the bit; else to 1e-5."""

    def job(self, workers, **training):
        return mlp_job(workers, **training)

    def train_mixed(self, **training):
        """The tensors of a job with a worker of each kind, and the LibTorch of the C++ one."""
        job = {**self.job(2, **training), 'debug': {'stepDelaySeconds': 0.25}}
        with job_processes.JobProcesses(job, directory()) as processes:
            processes.start()
            processes.start_python_worker(1, _MLP)  # takes longer
            processes.wait_for_members(1)
            processes.start_cpp_worker(0)
            processes.wait_for_members(2)
            begun = processes.progress()
            self.assertLess(begun.step, 35, 'they hardly met')
            shares = [len(member.microbatches) for member in begun.view.workers]
            self.assertTrue(all(shares), 'one of them has nothing to compute')
            for name in processes.workers():
                self.assertEqual(processes.wait_for_exit(name, 200), 0, processes.log(name))
            return sluice.load(processes.checkpoints), processes.libtorch('worker-0')

    def compare(self, expected, found, same_libtorch):
        self.assertEqual(list(expected), list(found))
        for name, value in expected.items():
            if same_libtorch:
                np.testing.assert_array_equal(value, found[name], name)
            else:
                np.testing.assert_allclose(value, found[name], rtol=0, atol=1e-5, err_msg=name)

    def check(self, **training):
        mixed, libtorch = self.train_mixed(**training)
        cpp = train(self.job(1, **training), lambda p: p.start_cpp_worker(0))
        python = train(self.job(1, **training), lambda p: p.start_python_worker(0, _MLP))
        same = libtorch == kernels.libtorch(torch.__version__)
        print(f'C++ with LibTorch {libtorch}, Python with {torch.__version__}: compared '
              f'{"bit for bit" if same else "to 1e-5"}')
        return mixed, cpp, python, same

    def train_cpp(self):
        """The tensors of a BitExact job of one C++ worker, and its LibTorch."""
        with job_processes.JobProcesses(self.job(1, determinism='BitExact'), directory()) as processes:
            processes.start()
            processes.start_cpp_worker(0)
            self.assertEqual(processes.wait_for_exit('worker-0', 200), 0)
            return sluice.load(processes.checkpoints), processes.libtorch('worker-0')

    def test_bit_exact_job_has_workers_of_one_library_only(self):
        cpp, libtorch = self.train_cpp()
        if libtorch == kernels.libtorch(torch.__version__):
            mixed, _ = self.train_mixed(determinism='BitExact')
            python = train(self.job(1, determinism='BitExact'), lambda p: p.start_python_worker(0, _MLP))
            self.compare(cpp, mixed, True)
            self.compare(python, mixed, True)
            return

        job = {**self.job(2, determinism='BitExact'), 'debug': {'stepDelaySeconds': 0.1}}
        with job_processes.JobProcesses(job, directory()) as processes:
            processes.start()
            processes.start_python_worker(1, _MLP)
            processes.wait_for_members(1)
            processes.start_cpp_worker(0)
            self.assertNotEqual(processes.wait_for_exit('worker-1', 60), 0)
            failed = processes.log('worker-1')
        self.assertIn('worker-0 and worker-1 would compute different bits', failed)
        self.assertIn(f'it computes with kernels x86-64-v3; LibTorch {libtorch}', failed)
        self.assertIn(f'not with kernels x86-64-v3; PyTorch {kernels.libtorch(torch.__version__)}',
                      failed)

    def test_otherwise_only_the_order_of_sums_differs(self):
        mixed, cpp, python, same = self.check()
        self.compare(cpp, mixed, False)
        self.compare(cpp, python, same)
        self.compare(self.plain_pytorch(), python, False)

    def plain_pytorch(self):
        return train_plainly(self.job(1), lambda model, job: [
            (torch.optim.SGD(model.parameters(), job['optimizer']['learningRate']), None)])


def train_plainly(job, make):
    """The final tensors of a job with `mlp` in plain PyTorch; make(model, job) makes pairs of an optimizer and its
    schedule."""
    data, training = job['data']['synthetic'], job['training']
    model = mlp_worker.Mlp(20, 32, 10, training['seed'])
    x, y = mlp_worker.make_data(data['samples'], 20, 10, 0).tensors
    order = sequence.SampleOrder(data['samples'], training['seed'])
    plan = sequence.StepSchedule(data['samples'], training['globalBatchSize'],
                                 training['microbatchSize'])
    pairs = make(model, job)
    for step in range(training['steps']):
        rows = order.indices_of(*plan.positions_of_step(step))
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        for optimizer, schedule in pairs:
            optimizer.step()
            if schedule is not None:
                schedule.step()
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


class SeveralOptimizers(unittest.TestCase):
    """Groups with optimizers and schedules of their own train as these optimizers do side by side."""

    # Name and options of the weights' optimizer, and of the biases'; the same in PyTorch.
    CASES = [
        ({'name': 'NAdam', 'betas': [0.9, 0.999], 'eps': 1e-8, 'momentumDecay': 4e-3}, torch.optim.NAdam, {},
         {'name': 'Adagrad', 'eps': 1e-10}, torch.optim.Adagrad, {}),
        ({'name': 'RAdam', 'betas': [0.9, 0.9], 'eps': 1e-8, 'weightDecay': 0.1, 'decoupledWeightDecay': True},
         torch.optim.RAdam, {'betas': (0.9, 0.9), 'weight_decay': 0.1, 'decoupled_weight_decay': True},
         {'name': 'SGD', 'momentum': 0.9}, torch.optim.SGD, {'momentum': 0.9}),
        ({'name': 'Adamax', 'betas': [0.9, 0.999], 'eps': 1e-8}, torch.optim.Adamax, {},
         {'name': 'Adadelta', 'rho': 0.9, 'eps': 1e-6}, torch.optim.Adadelta, {})]

    def test_they_are_those_of_pytorch(self):
        kinds = torch.optim.lr_scheduler
        for ours, kind, arguments, of_biases, kind_of_biases, arguments_of_biases in self.CASES:
            with self.subTest(ours['name']):
                missing = set(arguments) - set(inspect.signature(kind).parameters)
                if missing:
                    self.skipTest(f'{kind.__name__} of PyTorch {torch.__version__} has no {", ".join(missing)}')
                if kind is torch.optim.NAdam and torch.__version__.startswith('1.'):
                    self.skipTest('NAdam of PyTorch 1.13 multiplies its product of momenta by one of them twice')
                job = mlp_job(1)
                schedule = {'type': 'OneCycle', 'totalSteps': 50, 'increasingFraction': 0.3, 'initialDivisor': 25,
                            'finalDivisor': 1e4}
                cycles = of_biases['name'] == 'SGD'
                if cycles:
                    schedule['cycleMomentum'] = {'lowest': 0.85, 'highest': 0.95}
                job['optimizer'] = {
                    **ours, 'learningRate': 0.01, 'schedule': {'type': 'Exponential', 'gamma': 0.98},
                    'groups': [{**of_biases, 'learningRate': 0.1, 'patterns': ['*.bias'], 'schedule': schedule}]}

                def make(model, job):
                    biases = [tensor for name, tensor in model.named_parameters() if name.endswith('bias')]
                    weights = [tensor for name, tensor in model.named_parameters() if name.endswith('weight')]
                    first = kind(weights, lr=0.01, **arguments)
                    second = kind_of_biases(biases, lr=0.1, **arguments_of_biases)
                    return [(first, kinds.ExponentialLR(first, 0.98)),
                            (second, kinds.OneCycleLR(second, 0.1, 50, cycle_momentum=cycles))]

                found = train(job, lambda processes: processes.start_python_worker(0, _MLP))
                for name, value in train_plainly(job, make).items():
                    np.testing.assert_allclose(value, found[name], rtol=0, atol=1e-5, err_msg=name)


class WeightedLosses(unittest.TestCase):

    def test_class_weights_and_ignored_targets_train_as_one_loop_with_any_number_of_workers(self):
        module, loss, x, y = weighted_worker.make_torch()
        order = sequence.SampleOrder(len(y), 1)
        plan = sequence.StepSchedule(len(y), 40, 4)
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        for step in range(20):
            rows = order.indices_of(*plan.positions_of_step(step))
            optimizer.zero_grad()
            loss(module(x[rows]), y[rows]).backward()
            optimizer.step()
        for workers, bit_exact in ((1, False), (3, False), (2, True)):
            job = job_processes.base_job(
                model={'type': 'Custom'}, worker={'replicas': workers},
                training={'steps': 20, 'globalBatchSize': 40, 'microbatchSize': 4,
                          'determinism': 'BitExact' if bit_exact else 'Default'})

            def start(processes):
                for index in range(workers):
                    processes.start_python_worker(index, weighted_worker.__file__, 'torch')

            found = train(job, start)
            for name, value in module.state_dict().items():
                np.testing.assert_allclose(found[name], value.numpy(), rtol=1e-4, atol=1e-6)


class Examples(unittest.TestCase):

    def setUp(self):
        root = pathlib.Path(job_processes.program('ps')).parents[2].absolute()
        self.directory = pathlib.Path(directory())
        shutil.copytree('examples/python', self.directory / 'python')
        (self.directory / 'bin').mkdir()
        (self.directory / 'bin' / 'python3').symlink_to(sys.executable)
        paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
        self.enterContext(mock.patch.dict(os.environ, {
            'PATH': f'{self.directory / "bin"}:{os.environ["PATH"]}', 'PYTHONPATH': paths,
            'SLUICE_BINARY': str(root / 'cli/sluice'), 'SLUICE_BIN_DIR': str(root)}))
        before = os.getcwd()
        os.chdir(self.directory / 'python')
        self.addCleanup(os.chdir, before)

    def test_the_cells_of_the_notebook_run_a_job_and_load_its_parameters(self):
        manifest = pathlib.Path('mnist.yaml')
        manifest.write_text(manifest.read_text().replace('epochs: 3', 'epochs: 1'))
        notebook = json.loads(pathlib.Path('notebook.ipynb').read_text())
        plot = mock.MagicMock()  # pictures are not checked
        self.enterContext(mock.patch.dict(sys.modules, {
            'matplotlib': plot, 'matplotlib.pyplot': plot.pyplot}))
        self.enterContext(mock.patch.object(sys, 'path', [os.getcwd()] + sys.path))
        names = {}
        for cell in notebook['cells']:
            if cell['cell_type'] == 'code':
                self.assertEqual(cell['outputs'], [])
                source = ''.join(cell['source'])
                exec(compile(source, 'cell', 'exec'), names)
        plot.pyplot.plot.assert_called_once()
        result, model = names['result'], names['model']
        self.assertEqual(result.step, 94)
        self.assertGreater(result.accuracy, 50)  # chance is 10 %
        # The same numbers in plain PyTorch.
        import mnist_plain
        images, labels = mnist_plain.make_data(1000, 2).tensors
        right = float((model(images).argmax(1) == labels).float().mean())
        self.assertAlmostEqual(100 * right, result.accuracy, delta=0.2)
        mnist_plain.make_model().load_state_dict(result.load(torch=True))

    def test_the_plain_program_and_its_sluice_version_differ_in_few_lines(self):
        plain, changed = (pathlib.Path(name).read_text().splitlines()
                          for name in ('mnist_plain.py', 'mnist_sluice.py'))
        added = [line for line in difflib.ndiff(plain, changed) if line.startswith('+ ')]
        self.assertLess(len(added), 12, added)

    @_NEEDS_TORCH_2
    def test_the_language_model_learns_the_made_up_text(self):
        with mock.patch.object(sys, 'path', [os.getcwd()] + sys.path):
            import transformer
        torch.manual_seed(1)
        model = transformer.Transformer()
        text = sluice.TextDataset(transformer.read_text(), transformer.LENGTH)
        optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
        for step in range(150):
            data, target = sluice.data.default_collate([text[16 * (step % 50) + i] for i in range(16)])
            optimizer.zero_grad()
            loss = transformer.loss_fn(model(data), target)
            loss.backward()
            optimizer.step()
        self.assertLess(loss.item(), 1.8)  # 2.3: the frequencies of letters alone


class Models(unittest.TestCase):

    def setUp(self):
        torch.manual_seed(3)
        self.module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3),
                                          torch.nn.ReLU(), torch.nn.Linear(3, 2))
        self.model = torch_model.TorchModel(self.module, torch.nn.CrossEntropyLoss(), None)
        self.arrays = [self.model.initial(i).copy() for i in range(len(self.model.table.tensors))]
        self.model.bind(self.model.view(self.arrays))
        self.data = (torch.randn(8, 4), torch.randint(0, 2, (8,)))

    def step(self):
        self.model.begin()
        loss = self.model.run(self.data, 8.0)
        return loss, dict(self.model.end(2))

    def test_the_table_is_the_state_dict(self):
        names = [spec.name for spec in self.model.table.tensors]
        self.assertEqual(names, list(self.module.state_dict()))
        kinds = {spec.name: spec.kind for spec in self.model.table.tensors}
        self.assertEqual(kinds['0.weight'], wire.PARAMETER)
        self.assertEqual(kinds['1.running_mean'], wire.BUFFER)
        self.assertEqual(kinds['1.num_batches_tracked'], wire.COUNTER)

    def test_aliases_and_constants_are_extras(self):
        self.module.add_module('again', self.module[0])
        self.module.register_buffer('mask', torch.tensor([True, False]))
        self.module.register_buffer('hidden', torch.tensor([1]), persistent=False)
        model = torch_model.TorchModel(self.module, torch.nn.CrossEntropyLoss(), None)
        aliases, constants = model.extras()
        self.assertEqual(aliases, {'again.weight': '0.weight', 'again.bias': '0.bias'})
        self.assertEqual(list(constants), ['mask'])
        kind, flat, shape = constants['mask']
        self.assertEqual((kind, flat.tolist(), tuple(shape)), ('BOOL', [True, False], (2,)))
        names = [spec.name for spec in model.table.tensors]
        self.assertEqual(sorted(names + ['mask', 'again.weight', 'again.bias']),
                         sorted(self.module.state_dict()))

    def test_gradients_equal_those_of_plain_pytorch_summed_over_samples(self):
        _, results = self.step()
        plain = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3),
                                    torch.nn.ReLU(), torch.nn.Linear(3, 2))
        plain.load_state_dict(self.module.state_dict())
        torch.nn.functional.cross_entropy(plain(self.data[0]), self.data[1]).backward()
        np.testing.assert_allclose(results[0], 8 * plain[0].weight.grad.numpy().reshape(-1),
                                   rtol=1e-5, atol=1e-6)

    def test_the_same_step_twice_gives_the_same_bits_and_changes_nothing(self):
        before = {name: value.clone() for name, value in self.module.state_dict().items()}
        _, first = self.step()
        _, second = self.step()
        for name, value in self.module.state_dict().items():
            self.assertTrue(torch.equal(value, before[name]), name)
        for tensor, value in first.items():
            if value is not None:
                np.testing.assert_array_equal(value, second[tensor])

    def test_a_buffers_change_counts_for_each_microbatch(self):
        _, results = self.step()
        place = list(self.module.state_dict()).index('1.running_mean')
        mean = torch.nn.functional.linear(self.data[0], self.module[0].weight,
                                          self.module[0].bias).mean(0)
        np.testing.assert_allclose(results[place], 2 * 0.1 * mean.detach().numpy(), rtol=1e-4,
                                   atol=1e-6)

    def test_a_parameter_that_the_loss_does_not_touch_has_no_gradient(self):
        self.module.add_module('unused', torch.nn.Linear(2, 2))
        self.module.forward = lambda x: self.module[3](torch.relu(self.module[0](x)))
        model = torch_model.TorchModel(self.module, torch.nn.CrossEntropyLoss(), None)
        model.bind(model.view([model.initial(i) for i in range(len(model.table.tensors))]))
        model.begin()
        model.run(self.data, 1.0)
        results = dict(model.end(1))
        names = [spec.name for spec in model.table.tensors]
        self.assertIsNone(results[names.index('unused.weight')])
        self.assertIsNotNone(results[0])

    def delivered(self, model=None, module=None):
        """The gradients delivered during backward, and those left for the end."""
        model = model or self.model
        early = []
        model.begin()
        model.run(self.data, 8.0, deliver=lambda i, gradient: early.append((i, gradient)))
        return early, model.end(1)

    def check_that_gradients_are_delivered_from_the_last_layer_to_the_first(self):
        _, expected = self.step()
        early, rest = self.delivered()
        names = [spec.name for spec in self.model.table.tensors]
        layers = [names[i].split('.')[0] for i, _ in early]
        self.assertEqual(layers, ['3', '3', '1', '1', '0', '0'])
        self.assertEqual({i for i, _ in early} & {i for i, _ in rest}, set())
        for i, gradient in early:
            np.testing.assert_array_equal(gradient, expected[i])
        _, again = self.step()  # without delivery all come at the end
        np.testing.assert_array_equal(again[0], expected[0])

    def test_gradients_are_delivered_while_backward_still_runs(self):
        self.check_that_gradients_are_delivered_from_the_last_layer_to_the_first()

    @unittest.skipUnless(hasattr(torch.Tensor, 'register_post_accumulate_grad_hook'),
                         'this torch is such an older one')
    def test_gradients_are_delivered_with_an_older_torch_too(self):
        hook = torch.Tensor.register_post_accumulate_grad_hook
        del torch.Tensor.register_post_accumulate_grad_hook  # new in 2.1
        self.addCleanup(setattr, torch.Tensor, 'register_post_accumulate_grad_hook', hook)
        self.model = torch_model.TorchModel(self.module, torch.nn.CrossEntropyLoss(), None)
        self.model.bind(self.model.view(self.arrays))
        self.check_that_gradients_are_delivered_from_the_last_layer_to_the_first()

    def test_a_tied_parameter_is_delivered_once_with_its_whole_gradient(self):
        module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        module[1].weight = module[0].weight
        model = torch_model.TorchModel(module, torch.nn.CrossEntropyLoss(), None)
        model.bind(model.view([model.initial(i).copy() for i in range(len(model.table.tensors))]))
        model.begin()
        model.run(self.data, 8.0)
        expected = dict(model.end(1))
        early, _ = self.delivered(model)
        self.assertEqual(sorted(i for i, _ in early), [0, 1, 2])
        np.testing.assert_array_equal(dict(early)[0], expected[0])

    def test_a_gradient_that_backward_computes_in_parts_is_refused_with_the_remedy(self):
        from torch.utils import checkpoint

        def objective(module, data):
            hidden = data[0].requires_grad_()
            for _ in range(2):  # the same parameter in two parts
                hidden = checkpoint.checkpoint(self.shared, hidden, use_reentrant=True)
            return hidden.sum()

        self.shared = torch.nn.Linear(4, 4)
        model = torch_model.TorchModel(self.shared, None, objective)
        model.bind(model.view([model.initial(i).copy() for i in range(len(model.table.tensors))]))
        with self.assertRaisesRegex(sluice.UsageError, "'(weight|bias)'.*overlap=False"):
            self.delivered(model)
        model.begin()
        model.run(self.data, 1.0)
        self.assertEqual(len(model.end(1)), 2)

    def test_seeding_every_batch_keeps_no_record_of_the_calls(self):
        def waiting():
            return len(torch.cuda._queued_calls) + len(torch.cuda._lazy_seed_tracker.get_calls())
        before = waiting()
        for step in range(5):
            self.model.seed(step)
        self.assertEqual(waiting(), before)

    def test_evaluation_counts_correct_answers_and_keeps_the_mode(self):
        loss, correct, weight, _, _ = self.model.evaluate(self.data)
        self.assertGreater(loss, 0)
        self.assertTrue(0 <= correct <= 8)
        self.assertEqual(weight, 8)
        self.assertTrue(self.module.training)

    def test_bfloat16_survives_a_round_trip(self):
        module = torch.nn.Linear(3, 2).to(torch.bfloat16)
        model = torch_model.TorchModel(module, torch.nn.MSELoss(), None)
        before = module.weight.detach().clone()
        model.bind(model.view([model.initial(i).copy() for i in range(2)]))
        self.assertTrue(torch.equal(module.weight, before))

    def test_a_loss_that_is_not_one_number_is_refused(self):
        model = torch_model.TorchModel(self.module, torch.nn.CrossEntropyLoss(reduction='none'),
                                       None)
        model.bind(model.view(self.arrays))
        model.begin()
        with self.assertRaisesRegex(sluice.UsageError, r'shape \[8\].*mean'):
            model.run(self.data, 1.0)

    def test_a_bit_exact_job_is_computed_by_deterministic_algorithms_only(self):
        self.addCleanup(torch.use_deterministic_algorithms, False)
        for bit_exact in (False, True):
            spec = wire.JobSpec(training=wire.TrainingSpec(bit_exact=bit_exact))
            worker_lib._torch_model(self.module, torch.nn.CrossEntropyLoss(), None, spec, None)
            self.assertEqual(torch.are_deterministic_algorithms_enabled(), bit_exact)

    def test_dropout_depends_on_the_seed_of_the_work(self):
        def draw(seed):
            self.model.seed(seed)
            return torch.rand(3).tolist()
        self.assertEqual(draw(2**64 - 1), draw(2**64 - 1))
        self.assertNotEqual(draw(1), draw(2))


if __name__ == '__main__':
    unittest_main.main()
