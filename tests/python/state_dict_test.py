"""The result of a job loads strictly into PyTorch and computes the same as the job: for built-in
models, users' modules as TorchScript, and users' programs."""

from python.testing import requirements
requirements.need('numpy', 'grpc', 'google.protobuf', 'torch')

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch
from torch import nn
from torch.nn import functional

import sluice
import sluice.models
from tests.python import job_processes
from tests.python import mlp_worker
from tools import unittest_main

_ROOT = pathlib.Path(job_processes.program('ps')).parents[2].absolute()
_SLUICE = str(_ROOT / 'cli/sluice')
_SAMPLES = 200
_HELD_OUT = 20

_MANIFEST = '''
apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {{name: job}}
spec:
  model: {model}
  {loss}
  data: {data}
  optimizer: {{name: SGD, learningRate: 0.05}}
  training: {{steps: 4, globalBatchSize: 20, seed: 1}}
  parameterServer: {{replicas: 2}}
  worker: {worker}
'''
_SYNTHETIC = ('{{format: Synthetic, synthetic: {{samples: %d, shape: {shape}, classes: {classes}}}, '
              'evaluation: {{intervalSteps: 4}}}}' % _SAMPLES)


def setUpModule():
    torch.set_num_threads(1)


def held_out(elements, classes):
    """The evaluation samples of Synthetic data."""
    data = mlp_worker.make_data(_SAMPLES + _HELD_OUT, elements, classes, 0)
    x, y = data.tensors
    return x[_SAMPLES:], y[_SAMPLES:]


class JobTest(unittest.TestCase):

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get('TEST_TMPDIR')))
        self.state = self.directory / 'state'
        os.environ['SLUICE_BINARY'] = _SLUICE
        os.environ['SLUICE_BIN_DIR'] = str(_ROOT)
        os.environ['PYTHONPATH'] = os.pathsep.join(os.path.abspath(path) for path in sys.path)

    def train(self, model, shape=None, classes=0, data=None, loss='', worker='{replicas: 2}'):
        path = self.directory / 'job.yaml'
        data = data or _SYNTHETIC.format(shape=shape, classes=classes)
        path.write_text(_MANIFEST.format(model=model, data=data, worker=worker,
                                         loss=f'loss: {loss}' if loss else ''))
        return sluice.run(path, display=False, state_directory=self.state)

    def export(self, name):
        path = self.directory / name
        subprocess.run([_SLUICE, 'export', 'job', '-o', path, '--state-dir', self.state,
                        '--bin-dir', _ROOT], check=True, stdout=subprocess.DEVNULL)
        return path


class BuiltInModels(JobTest):
    """Each is loaded by `of_state`, which is strict."""

    def check(self, name, shape, classes, loss, dimensions=''):
        elements = 1
        for extent in shape:
            elements *= extent
        model_text = f'{{name: {name}{dimensions}}}'
        result = self.train(model_text, shape, classes)
        model = sluice.models.of_state(name, result.load(torch=True))
        x, y = held_out(elements, classes)
        with torch.no_grad():
            output = model(x)
        self.assertAlmostEqual(float(loss(output, y)), result.evaluation_loss, places=5)
        right = output.argmax(1) == y if output.shape[1] > 1 else (output[:, 0] > 0) == (y > 0)
        self.assertAlmostEqual(100 * float(right.float().mean()), result.accuracy, places=3)
        exported = sluice.load(self.export('model.safetensors'), torch=True)
        type(model).load_state_dict(model, exported)

    def test_convnet(self):
        self.check('convnet', [28, 28], 10, functional.nll_loss)

    def test_mnist_net(self):
        self.check('mnist-net', [28, 28], 10, functional.nll_loss)

    def test_mlp(self):
        self.check('mlp', [12], 5, functional.cross_entropy, ', dimensions: {hidden: 9}')

    def test_logistic(self):
        self.check('logistic', [12], 2, lambda output, y:
                   functional.binary_cross_entropy_with_logits(output[:, 0], y.float()))

    def test_linear(self):
        for name in ('train', 'test'):
            rows = [f'{i},{(7 * i) % 5},{2 * i + 1}' for i in range(40)]
            (self.directory / f'{name}.csv').write_text('a,b,y\n' + '\n'.join(rows) + '\n')
        result = self.train('{name: linear}', data='''
    format: CSV
    source: {path: train.csv}
    csv: {labelColumn: y, regression: true}
    evaluation: {source: {path: test.csv}, intervalSteps: 4}''')
        model = sluice.models.of_state('linear', result.load(torch=True))
        self.assertEqual(model.weight.shape, (1, 2))
        x = torch.tensor([[float(i), float((7 * i) % 5)] for i in range(40)])
        y = torch.tensor([[2.0 * i + 1] for i in range(40)])
        with torch.no_grad():
            loss = float(functional.mse_loss(model(x), y))
        self.assertAlmostEqual(loss / result.evaluation_loss, 1, places=4)

    def test_lstm_lm(self):
        result = self.train('{name: lstm-lm, dimensions: {embedding: 6, hidden: 5}}', data='''
    format: Synthetic
    synthetic: {samples: 200, shape: [4], vocabulary: 11}
    evaluation: {intervalSteps: 4}''')
        model = sluice.models.of_state('lstm-lm', result.load(torch=True))
        self.assertEqual(model(torch.zeros(2, 4, dtype=torch.long)).shape, (2, 4, 11))

    def test_tensors_of_another_model_are_refused(self):
        state = sluice.models.Convnet().state_dict()
        for name in ('mlp', 'mnist-net'):
            with self.assertRaisesRegex(sluice.UsageError, f'do not match {name}'):
                sluice.models.of_state(name, state)
        with self.assertRaisesRegex(sluice.UsageError, 'there are additive, convnet'):
            sluice.models.of_state('resnet', state)
        self.assertEqual(sluice.models.of_state('additive', {'w': torch.ones(3)}).w.shape, (3,))


class Tied(nn.Module):
    """Has a tied tensor, a mask, an unused parameter, and one that is not trained."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.c = nn.Linear(6, 6)
        self.c.weight = self.a.weight
        self.unused = nn.Parameter(torch.ones(3))
        self.scale = nn.Parameter(torch.full((6,), 2.0), requires_grad=False)
        self.register_buffer('mask', torch.tensor([True, True, False, True, True, True]))
        self.register_buffer('order', torch.tensor([1, 0, 2, 3, 4, 5], dtype=torch.int32))

    def forward(self, x):
        return self.c(torch.relu(self.a(x[:, self.order.long()] * self.mask))) * self.scale


class Normed(nn.Module):

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2),
                                    nn.Linear(8, 6))

    def forward(self, x):
        return self.layers(x)


class Double(nn.Module):

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6).double()

    def forward(self, x):
        return self.layer(x.double())


class Rows(nn.Module):
    """Reads the numbers of a sample as a sequence."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(2, 7, batch_first=True)
        self.out = nn.Linear(7, 6)

    def forward(self, x):
        return self.out(self.rnn(x.reshape(-1, 3, 2))[0][:, -1])


class OwnLoss(nn.Module):

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x, y):
        return functional.cross_entropy(self.layer(x), y)


class TorchScriptModels(JobTest):

    def save(self, module):
        torch.manual_seed(2)
        torch.jit.script(module()).save(str(self.directory / 'net.pt'))

    def check(self, module, loss='crossEntropy'):
        self.save(module)
        result = self.train('{type: TorchScript, path: net.pt}', [6], 6, loss=loss)
        x, y = held_out(6, 6)
        for name in ('trained.safetensors', 'trained.pt'):
            exported = self.export(name)
            model = module()
            model.load_state_dict(torch.jit.load(str(exported)).state_dict()
                                  if name.endswith('.pt') else sluice.load(exported, torch=True))
            model.eval()
            with torch.no_grad():
                value = model(x, y) if not loss else functional.cross_entropy(model(x), y)
            self.assertAlmostEqual(float(value), result.evaluation_loss, places=5)
        module().load_state_dict(result.load(torch=True))
        return model

    def test_tied(self):
        model = self.check(Tied)
        self.assertTrue(torch.equal(model.unused, torch.ones(3)))
        self.assertTrue(torch.equal(model.scale, torch.full((6,), 2.0)))
        self.assertEqual(model.mask.tolist(), [True, True, False, True, True, True])

    def test_norm(self):
        model = self.check(Normed)
        self.assertEqual(int(model.layers[1].num_batches_tracked), 4)
        self.assertFalse(torch.equal(model.layers[1].running_mean, torch.zeros(8)))

    def test_double(self):
        self.assertEqual(self.check(Double).layer.weight.dtype, torch.float64)

    def test_rows(self):
        self.check(Rows)

    def test_own_loss(self):
        self.check(OwnLoss, loss='')

    def test_own_loss_together_with_a_loss_of_the_manifest_is_refused(self):
        self.save(OwnLoss)
        with self.assertRaisesRegex(sluice.JobFailed, 'leave loss out'):
            self.train('{type: TorchScript, path: net.pt}', [6], 6, loss='crossEntropy')

    def test_files_that_are_not_modules_are_refused_with_their_kind(self):
        path = self.directory / 'net.pt'
        for write, message in (
                (lambda: path.write_text('import torch'), 'is not a TorchScript file'),
                (lambda: torch.save(Tied().state_dict(), path),
                 'looks like torch.save of a state_dict')):
            write()
            with self.assertRaisesRegex(sluice.JobFailed, message):
                self.train('{type: TorchScript, path: net.pt}', [6], 6, loss='crossEntropy')

    @unittest.skipUnless(hasattr(functional, 'scaled_dot_product_attention'),
                         'this torch has no operator that LibTorch 1.13 lacks')
    def test_a_missing_operator_is_named(self):

        class Attention(nn.Module):

            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(6, 6)

            def forward(self, x):
                y = self.layer(x)[None]
                return functional.scaled_dot_product_attention(y, y, y)[0]

        self.save(Attention)
        with self.assertRaisesRegex(sluice.JobFailed, 'scaled_dot_product_attention'):
            self.train('{type: TorchScript, path: net.pt}', [6], 6, loss='crossEntropy')


class Programs(JobTest):

    def test_a_tied_module_of_a_program_loads_strictly(self):
        command = [sys.executable, str(pathlib.Path(__file__).absolute()), 'worker']
        result = self.train('{type: Custom}', data='{format: Custom, evaluation: {intervalSteps: 4}}',
                            worker=f'{{replicas: 2, command: {command}}}')
        x, y = held_out(6, 6)
        for state in (result.load(torch=True),
                      sluice.load(self.export('trained.safetensors'), torch=True)):
            model = Tied()
            model.load_state_dict(state)
            with torch.no_grad():
                loss = float(functional.cross_entropy(model(x), y))
            self.assertAlmostEqual(loss, result.evaluation_loss, places=5)
        state = result.load(torch=True)
        self.assertIs(state['c.weight'], state['a.weight'])
        self.assertEqual(state['mask'].dtype, torch.bool)
        self.assertEqual(state['order'].dtype, torch.int32)


def work():
    """A worker of Programs."""
    torch.set_num_threads(1)
    job = sluice.join()
    torch.manual_seed(job.seed)
    x, y = mlp_worker.make_data(_SAMPLES, 6, 6, 0).tensors
    dataset = torch.utils.data.TensorDataset(x, y)
    with sluice.Worker(job, Tied(), functional.cross_entropy) as worker:
        for batch in worker.batches(dataset, torch.utils.data.TensorDataset(*held_out(6, 6))):
            worker.step(batch)


if __name__ == '__main__':
    if sys.argv[1:] == ['worker']:
        work()
    else:
        unittest_main.main()
