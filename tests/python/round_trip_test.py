"""There and back: 100 steps of a job, 100 of PyTorch with its optimizer, 100 of another job; and what does not
fit is refused."""

from python.testing import requirements
requirements.need('numpy', 'grpc', 'google.protobuf', 'torch')

import inspect
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import warnings

import numpy as np
import torch

import sluice
from sluice import safetensors
from tests.python import job_processes
from tests.python import round_trip_worker
from tools import unittest_main

_ROOT = pathlib.Path(job_processes.program('ps')).parents[2].absolute()
_WORKER = pathlib.Path('tests/python/round_trip_worker.py').absolute()

_MANIFEST = '''
apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {{name: {name}}}
spec:
  model: {{type: Custom}}
  data: {{format: Custom, shuffle: false}}
  optimizer: {optimizer}
  training: {{steps: {steps}, globalBatchSize: 32}}
  parameterServer: {{replicas: 2}}
  worker: {{replicas: 1, command: {command}}}
  checkpoint: {{{checkpoint}}}
'''

# The manifest's optimizer, PyTorch's, the options of its two groups (biases; the rest), and the model.
_CASES = {
    'SGD': ({'name': 'SGD', 'learningRate': 0.1, 'momentum': 0.9, 'dampening': 0.2, 'weightDecay': 1e-3,
             'groups': [{'patterns': ['*.bias'], 'learningRate': 0.2, 'weightDecay': 0, 'momentum': 0}]},
            torch.optim.SGD, [{'lr': 0.2, 'momentum': 0.0, 'dampening': 0.2},
                              {'lr': 0.1, 'momentum': 0.9, 'dampening': 0.2, 'weight_decay': 1e-3}], 'tied'),
    'Nesterov': ({'name': 'SGD', 'learningRate': 0.05, 'momentum': 0.9, 'nesterov': True,
                  'groups': [{'patterns': ['*.bias'], 'learningRate': 0.1}]},
                 torch.optim.SGD, [{'lr': 0.1, 'momentum': 0.9, 'nesterov': True},
                                   {'lr': 0.05, 'momentum': 0.9, 'nesterov': True}], 'tied'),
    'Adagrad': ({'name': 'Adagrad', 'learningRate': 0.1, 'lrDecay': 0.01, 'initialAccumulatorValue': 0.1,
                 'groups': [{'patterns': ['*.bias'], 'learningRate': 0.2}]},
                torch.optim.Adagrad, [{'lr': 0.2, 'lr_decay': 0.01, 'initial_accumulator_value': 0.1},
                                      {'lr': 0.1, 'lr_decay': 0.01, 'initial_accumulator_value': 0.1}], 'sparse'),
    'RMSprop': ({'name': 'RMSprop', 'learningRate': 0.002, 'alpha': 0.9, 'momentum': 0.5, 'centered': True,
                 'groups': [{'patterns': ['*.bias'], 'learningRate': 0.001}]},
                torch.optim.RMSprop, [{'lr': 0.001, 'alpha': 0.9, 'momentum': 0.5, 'centered': True},
                                      {'lr': 0.002, 'alpha': 0.9, 'momentum': 0.5, 'centered': True}], 'tied'),
    'Adam': ({'name': 'Adam', 'learningRate': 0.01, 'weightDecay': 1e-3, 'betas': [0.8, 0.95],
              'groups': [{'patterns': ['*.bias'], 'learningRate': 0.02, 'weightDecay': 0}]},
             torch.optim.Adam, [{'lr': 0.02, 'betas': (0.8, 0.95)},
                                {'lr': 0.01, 'betas': (0.8, 0.95), 'weight_decay': 1e-3}], 'tied'),
    'AdamW': ({'name': 'AdamW', 'learningRate': 0.01, 'weightDecay': 0.1,
               'schedule': {'type': 'Step', 'stepSize': 60, 'gamma': 0.5},
               'groups': [{'patterns': ['*.bias'], 'learningRate': 0.02, 'weightDecay': 0}]},
              torch.optim.AdamW, [{'lr': 0.02, 'weight_decay': 0.0}, {'lr': 0.01, 'weight_decay': 0.1}], 'tied'),
    'Amsgrad': ({'name': 'AdamW', 'learningRate': 0.01, 'weightDecay': 0.1, 'amsgrad': True,
                 'groups': [{'patterns': ['*.bias'], 'learningRate': 0.02}]},
                torch.optim.AdamW, [{'lr': 0.02, 'weight_decay': 0.1, 'amsgrad': True},
                                    {'lr': 0.01, 'weight_decay': 0.1, 'amsgrad': True}], 'tied'),
    'NAdam': ({'name': 'NAdam', 'learningRate': 0.01, 'weightDecay': 1e-3, 'momentumDecay': 0.01,
               'groups': [{'patterns': ['*.bias'], 'learningRate': 0.02, 'weightDecay': 0}]},
              torch.optim.NAdam, [{'lr': 0.02, 'momentum_decay': 0.01},
                                  {'lr': 0.01, 'momentum_decay': 0.01, 'weight_decay': 1e-3}], 'tied'),
    'RAdam': ({'name': 'RAdam', 'learningRate': 0.02, 'weightDecay': 1e-3, 'betas': [0.9, 0.99],
               'groups': [{'patterns': ['*.bias'], 'learningRate': 0.01, 'weightDecay': 0}]},
              torch.optim.RAdam, [{'lr': 0.01, 'betas': (0.9, 0.99)},
                                  {'lr': 0.02, 'betas': (0.9, 0.99), 'weight_decay': 1e-3}], 'tied'),
    'Adamax': ({'name': 'Adamax', 'learningRate': 0.01, 'weightDecay': 1e-3, 'betas': [0.8, 0.99],
                'groups': [{'patterns': ['*.bias'], 'learningRate': 0.02}]},
               torch.optim.Adamax, [{'lr': 0.02, 'betas': (0.8, 0.99), 'weight_decay': 1e-3},
                                    {'lr': 0.01, 'betas': (0.8, 0.99), 'weight_decay': 1e-3}], 'tied'),
    'Adadelta': ({'name': 'Adadelta', 'rho': 0.95, 'eps': 1e-5, 'weightDecay': 1e-3,
                  'groups': [{'patterns': ['*.bias'], 'learningRate': 0.5}]},
                 torch.optim.Adadelta, [{'lr': 0.5, 'rho': 0.95, 'eps': 1e-5, 'weight_decay': 1e-3},
                                        {'lr': 1.0, 'rho': 0.95, 'eps': 1e-5, 'weight_decay': 1e-3}], 'tied'),
}
for _name in ('NAdam', 'RAdam'):
    _spec, _kind, _groups, _variant = _CASES[_name]
    if 'decoupled_weight_decay' in inspect.signature(_kind).parameters:  # not in PyTorch 1.13
        _CASES[f'{_name}W'] = ({**_spec, 'weightDecay': 0.1, 'decoupledWeightDecay': True}, _kind,
                               [{**_groups[0], 'decoupled_weight_decay': True},
                                {**_groups[1], 'decoupled_weight_decay': True, 'weight_decay': 0.1}], _variant)
_STEP_SCHEDULE = {'AdamW': lambda step: 0.5**(step // 60)}


def make_optimizer(case, module):
    """PyTorch's optimizer. Its parameters are in another order than the job's, which has names."""
    _, kind, (biases, others), _ = _CASES[case]
    named = list(module.named_parameters())[::-1]
    # Adagrad takes its initial_accumulator_value from the constructor alone, not from a group.
    return kind([{'params': [p for name, p in named if name.endswith('.bias') and p.requires_grad], **biases},
                 {'params': [p for name, p in named if not name.endswith('.bias') and p.requires_grad], **others}],
                **{key: value for key, value in others.items() if key == 'initial_accumulator_value'})


def train(case, module, optimizer, begin, end):
    """The losses of steps of PyTorch alone."""
    schedule = None
    if case in _STEP_SCHEDULE:
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _STEP_SCHEDULE[case], last_epoch=begin - 1)
    losses = []
    module.train()
    for step in range(begin, end):
        first = step * round_trip_worker.BATCH % round_trip_worker.SAMPLES
        batch = slice(first, first + round_trip_worker.BATCH)
        loss = round_trip_worker.loss_of(module, round_trip_worker.X[batch], round_trip_worker.Y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if schedule is not None:
            schedule.step()
    return losses


def setUpModule():
    torch.set_num_threads(1)
    os.environ['SLUICE_BINARY'] = str(_ROOT / 'cli/sluice')
    os.environ['SLUICE_BIN_DIR'] = str(_ROOT)
    os.environ['PYTHONPATH'] = os.pathsep.join(os.path.abspath(path) for path in sys.path)


class WithJobs(unittest.TestCase):

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get('TEST_TMPDIR')))

    def manifest(self, name, optimizer, steps=100, variant='tied', checkpoint=''):
        path = self.directory / f'{name}.yaml'
        command = [sys.executable, str(_WORKER), str(self.directory / f'{name}.losses'), variant]
        path.write_text(_MANIFEST.format(name=name, optimizer=json.dumps(optimizer), steps=steps,
                                         command=json.dumps(command), checkpoint=checkpoint))
        return path

    def run_job(self, name, *arguments, **options):
        """The losses of a job."""
        sluice.run(self.manifest(name, *arguments, **options), display=False,
                   state_directory=self.directory / 'state')
        return [float(line) for line in (self.directory / f'{name}.losses').read_text().split()]

    def sluice(self, *arguments):
        return subprocess.run([os.environ['SLUICE_BINARY'], *map(str, arguments)], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, encoding='utf-8', check=False)

    def export(self, name):
        """A job's model and the state of its optimizer."""
        model, optimizer = self.directory / 'model.safetensors', self.directory / 'optimizer.safetensors'
        done = self.sluice('export', name, '-o', model, '--optimizer', optimizer, '--state-dir',
                           self.directory / 'state')
        self.assertEqual(done.returncode, 0, done.stdout)
        return model, optimizer


class ThereAndBack(WithJobs):

    def check(self, case):
        spec, kind, _, variant = _CASES[case]
        if kind is torch.optim.NAdam and torch.__version__.startswith('1.'):
            self.skipTest('NAdam of PyTorch 1.13 multiplies its product of momenta by one of them twice')
        module = round_trip_worker.Net(variant)
        plain = train(case, module, make_optimizer(case, module), 0, 300)

        losses = self.run_job('there', spec, variant=variant)
        model, state = self.export('there')
        module = round_trip_worker.Net(variant)
        optimizer = make_optimizer(case, module)
        sluice.load_pytorch(model, module)
        with warnings.catch_warnings():
            warnings.simplefilter('error')  # no option differs
            optimizer.load_state_dict(sluice.load_optimizer(state, optimizer, module))
            losses += train(case, module, optimizer, 100, 200)
            written = sluice.save_checkpoint(self.directory / 'back', self.manifest('back', spec), module,
                                             optimizer, step=200)
        self.assertEqual(pathlib.Path(written).name, 'attempt-0001-step-000000000200')
        losses += self.run_job('back', spec, steps=300, variant=variant,
                               checkpoint=f'restoreFrom: {self.directory / "back"}')

        self.assertEqual(len(losses), 300)
        np.testing.assert_allclose(losses, plain, rtol=0, atol=1e-5, err_msg=case)
        print(f'{case}: largest difference {max(abs(a - b) for a, b in zip(losses, plain)):.1e}')


for _case in _CASES:
    setattr(ThereAndBack, f'test_losses_with_{_case}_are_those_of_pytorch',
            lambda self, case=_case: self.check(case))


def needs_torch_2(test):
    return unittest.skipIf(torch.__version__.startswith('1.'), 'PyTorch 1.13 reads no floating-point number with '
                           'weights_only=True')(test)


class Files(WithJobs):
    """What does not fit is named, and nothing is changed."""

    SPEC = {'name': 'AdamW', 'learningRate': 0.01, 'weightDecay': 0.1}

    def setUp(self):
        super().setUp()
        self.job = self.manifest('back', self.SPEC)
        self.module = round_trip_worker.Net('tied')
        self.optimizer = self.make(torch.optim.AdamW, lr=0.01, weight_decay=0.1)
        train(None, self.module, self.optimizer, 0, 2)

    def make(self, kind, **options):
        return kind([p for p in self.module.parameters() if p.requires_grad], **options)

    def refused(self, text, function, *arguments, kind=sluice.UsageError, **options):
        before = {name: tensor.clone() for name, tensor in self.module.state_dict().items()}
        with self.assertRaisesRegex(kind, text):
            function(*arguments, **options)
        for name, tensor in self.module.state_dict().items():
            self.assertTrue(torch.equal(before[name], tensor), name)
        self.assertFalse((self.directory / 'back').exists())

    def save(self, *arguments, **options):
        return sluice.save_checkpoint(self.directory / 'back', self.job, self.module, *arguments, **options)

    def file(self, name, content):
        path = self.directory / name
        torch.save(content, path)
        return path

    @needs_torch_2
    def test_a_checkpoint_of_torch_save_is_read_and_written(self):
        path = self.file('last.pt', {'epoch': 3, 'model': self.module.state_dict(),
                                     'optimizer': self.optimizer.state_dict()})
        weight = self.module.hidden.weight.detach().clone()
        moment = self.optimizer.state[self.module.hidden.weight]['exp_avg'].clone()
        self.module = round_trip_worker.Net('tied')
        with torch.no_grad():
            self.module.hidden.weight.zero_()
        optimizer = self.make(torch.optim.AdamW)
        sluice.load_pytorch(path, self.module, optimizer)
        self.assertTrue(torch.equal(self.module.hidden.weight, weight))
        self.assertTrue(torch.equal(optimizer.state[self.module.hidden.weight]['exp_avg'], moment))
        written = self.save(optimizer)
        self.assertTrue(written.endswith('step-000000000002'))
        again = sluice.load(self.directory / 'back', torch=True)
        self.assertTrue(torch.equal(again['hidden.weight'], weight))
        shown = self.sluice('inspect', written)
        self.assertIn('all intact', shown.stdout)
        # A second one would be beside the first.
        with self.assertRaisesRegex(sluice.UsageError, 'has checkpoints already'):
            self.save(optimizer)

    def test_options_that_differ_are_said_and_the_manifest_wins(self):
        self.job = self.manifest('back', {**self.SPEC, 'learningRate': 0.5, 'betas': [0.9, 0.95]})
        with self.assertWarnsRegex(UserWarning, r'lr 0.5, was 0.01 in optimizer.safetensors: 6 parameters \('):
            self.save(self.optimizer, step=7)
        self.assertTrue((self.directory / 'back' / 'attempt-0001-step-000000000007').is_dir())

    def test_without_an_optimizer_its_state_starts_afresh(self):
        with self.assertWarnsRegex(UserWarning, 'starts afresh'):
            written = self.save()
        self.assertTrue(written.endswith('step-000000000000'))

    @needs_torch_2
    def test_another_class_is_refused(self):
        self.refused("the state of 'tokens.weight' is Adam's, and the job's optimizer for it is AdamW", self.save,
                     self.make(torch.optim.Adam), step=1)
        self.refused('SGD counts none', self.save, self.make(torch.optim.SGD, lr=0.1))
        self.refused('is not an optimizer of a job', self.save, self.make(torch.optim.LBFGS), step=1)
        state = self.file('optimizer.pt', self.optimizer.state_dict())
        model = self.file('model.pt', self.module.state_dict())
        if 'decoupled_weight_decay' in self.optimizer.param_groups[0]:
            self.refused('decoupled_weight_decay=True.*the optimizer given is Adam$', sluice.load_pytorch, model,
                         self.module, self.make(torch.optim.Adam), optimizer_path=state)
        self.refused('this state has step|this state has exp_avg, which SGD', sluice.load_pytorch, model,
                     self.module, self.make(torch.optim.SGD, lr=0.1), optimizer_path=state)

    @needs_torch_2
    def test_state_that_does_not_fit_is_refused(self):
        state = self.optimizer.state[self.module.hidden.weight]
        state['exp_avg_sq'][1, 2] = float('nan')
        self.refused("element 10 of 'hidden.weight/exp_avg_sq' is nan", self.save, self.optimizer)
        state['exp_avg_sq'] = torch.zeros(3)
        self.refused(r"exp_avg_sq of 'hidden.weight' has shape \[3\], and the parameter \[8, 8\]", self.save,
                     self.optimizer)
        path = self.file('all.pt', {'model': self.module.state_dict(), 'optim': self.optimizer.state_dict()})
        self.refused(r"exp_avg_sq of 'hidden.weight' has shape \[3\]", sluice.load_pytorch, path, self.module,
                     self.make(torch.optim.AdamW))
        del state['exp_avg_sq']
        self.refused("'hidden.weight/exp_avg_sq' is missing", self.save, self.optimizer)
        self.refused("'head.bias' requires a gradient.*no optimizer has it", self.save,
                     torch.optim.AdamW([self.module.tokens.weight, *self.module.hidden.parameters(),
                                        *self.module.norm.parameters()]), step=1)
        with torch.no_grad():
            self.module.hidden.bias[3] = float('inf')
        self.refused("element 3 of 'hidden.bias' is inf", self.save)

    def test_files_that_are_no_checkpoint_are_refused(self):
        model = self.module.state_dict()
        code = self.file('code.pt', {'model': self.module})
        self.refused('code.pt has more than tensors.*weights_only=False', sluice.load_pytorch, code, self.module)
        whole = self.file('whole.pt', model).read_bytes()
        (self.directory / 'half.pt').write_bytes(whole[:len(whole) // 2])
        self.refused('half.pt is not a whole file|half.pt has more than tensors', sluice.load_pytorch,
                     self.directory / 'half.pt', self.module, kind=sluice.SluiceError)
        self.refused('missing: head.bias; not in the model: other', sluice.load_pytorch,
                     self.file('other.pt', {**{k: v for k, v in model.items() if k != 'head.bias'},
                                            'other': torch.zeros(1)}), self.module)
        self.refused(r"'head.bias' has shape \[7\], and in the model \[50\]", sluice.load_pytorch,
                     self.file('shape.pt', {**model, 'head.bias': torch.zeros(7)}), self.module)
        self.refused("no state_dict of a model.*It has 'weights'", sluice.load_pytorch,
                     self.file('keys.pt', {'weights': model}), self.module)
        self.refused('without .metadata', sluice.load_pytorch, self.directory, self.module)
        (self.directory / 'cut.safetensors').write_bytes(b'\x10\0\0\0\0\0\0\0{')
        self.refused('cut.safetensors is not a whole safetensors file', sluice.load_pytorch,
                     self.directory / 'cut.safetensors', self.module, kind=sluice.SluiceError)

    @unittest.skipIf(not torch.__version__.startswith('1.'), 'PyTorch 2 reads them')
    def test_floating_point_numbers_that_an_old_pytorch_does_not_read_are_named(self):
        path = self.file('optimizer.pt', self.optimizer.state_dict())
        self.refused('has floating-point numbers beside tensors.*PyTorch 2 can', sluice.load_pytorch,
                     self.file('model.pt', self.module.state_dict()), self.module, self.optimizer,
                     optimizer_path=path)

    def test_names_of_wrapped_modules_are_understood(self):
        wrapped = {f'module.{name}': tensor + 1 if tensor.is_floating_point() else tensor
                   for name, tensor in self.module.state_dict().items()}
        before = self.module.hidden.bias.detach().clone()
        sluice.load_pytorch(self.file('ddp.pt', wrapped), self.module)
        self.assertTrue(torch.equal(self.module.hidden.bias, before + 1))

    def test_tied_tensors_may_be_in_a_file_once(self):
        state = {name: tensor + 1 for name, tensor in self.module.state_dict().items()}
        del state['tokens.weight']
        sluice.load_pytorch(self.file('once.pt', state), self.module)
        self.assertIs(self.module.head.weight, self.module.tokens.weight)
        self.assertTrue(torch.equal(self.module.tokens.weight, state['head.weight']))

    def test_a_state_in_bfloat16_becomes_float32(self):
        self.module = round_trip_worker.Net('bfloat16')
        optimizer = self.make(torch.optim.AdamW, lr=0.01, weight_decay=0.1)
        train(None, self.module, optimizer, 0, 2)
        moment = optimizer.state[self.module.hidden.weight]['exp_avg']
        self.assertEqual(moment.dtype, torch.bfloat16)
        written = pathlib.Path(self.save(optimizer))
        self.assertEqual(sluice.load(written, torch=True)['hidden.weight'].dtype, torch.bfloat16)
        arrays = {array.name: array for path in written.glob('partition-*')
                  for array in safetensors.read(path, path.read_bytes())[1]}
        array = arrays['hidden.weight[0:64]/exp_avg']
        self.assertEqual(array.kind, 'F32')
        np.testing.assert_array_equal(np.frombuffer(array.data, '<f4'), moment.float().numpy().reshape(-1))

    def test_a_distributed_checkpoint_is_read(self):
        try:
            from torch.distributed import checkpoint as distributed
            from torch.distributed.checkpoint import format_utils as _
            from torch.distributed.checkpoint import state_dict as states
        except ImportError:
            self.skipTest(f'PyTorch {torch.__version__} has no reader of whole distributed checkpoints')
        model, optimizer = states.get_state_dict(self.module, self.optimizer)
        distributed.save({'model': model, 'optimizer': optimizer}, checkpoint_id=str(self.directory / 'dcp'),
                         no_dist=True)
        weight = self.module.hidden.weight.detach().clone()
        moment = self.optimizer.state[self.module.hidden.weight]['exp_avg'].clone()
        self.module = round_trip_worker.Net('tied')
        optimizer = torch.optim.AdamW([p for p in self.module.parameters() if p.requires_grad][::-1])
        sluice.load_pytorch(self.directory / 'dcp', self.module, optimizer)
        self.assertTrue(torch.equal(self.module.hidden.weight, weight))
        self.assertTrue(torch.equal(optimizer.state[self.module.hidden.weight]['exp_avg'], moment))
        self.assertEqual(optimizer.param_groups[0]['lr'], 0.01)


class BuiltIn(WithJobs):
    """A job of C++ workers and the command line alone."""

    def manifest(self, name, steps, mode='Synchronous', checkpoint=''):
        path = self.directory / f'{name}.yaml'
        path.write_text(f'''
apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {{name: {name}}}
spec:
  model: {{name: mlp, dimensions: {{hidden: 16}}}}
  data: {{format: Synthetic, synthetic: {{samples: 200, shape: [4], classes: 3}}}}
  optimizer: {{name: Adam, learningRate: 0.01}}
  training: {{steps: {steps}, globalBatchSize: 20, mode: {mode}}}
  worker: {{replicas: 1}}
  checkpoint: {{{checkpoint}}}
''')
        return path

    def tensors(self, *arguments, **options):
        return sluice.run(self.manifest(*arguments, **options), display=False,
                          state_directory=self.directory / 'state').load()

    def test_exported_files_are_imported_in_every_mode(self):
        whole = self.tensors('whole', 24)
        self.tensors('first', 12)
        model, optimizer = self.export('first')
        back = self.directory / 'back'
        done = self.sluice('import', self.manifest('second', 24), '--model', model, '--optimizer', optimizer, '-o',
                           back)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertNotIn('Note', done.stdout)
        second = self.tensors('second', 24, checkpoint=f'restoreFrom: {back}')
        for name, value in whole.items():
            np.testing.assert_allclose(value, second[name], rtol=0, atol=1e-6, err_msg=name)
        self.tensors('third', 24, mode='Asynchronous', checkpoint=f'restoreFrom: {back}')
        _, path = self.export('third')
        metadata, _ = safetensors.read(path, path.read_bytes())
        (group,) = json.loads(metadata['optimizer'])['groups']
        self.assertEqual(group['updates'], [24] * 4)

        (self.directory / 'other.safetensors').write_bytes(safetensors.write(
            [safetensors.Array('fc1.bias', 'F32', [3], bytes(12))], {}))
        done = self.sluice('import', self.manifest('second', 24), '--model', self.directory / 'other.safetensors',
                           '-o', self.directory / 'none')
        self.assertEqual(done.returncode, 2)
        self.assertIn("'fc1.bias' is float32[3], and in the job's model float32[16]", done.stdout)
        self.assertFalse((self.directory / 'none').exists())


class Exported(WithJobs):

    SPEC = {'name': 'AdamW', 'learningRate': 0.01, 'weightDecay': 0.1, 'schedule': {'type': 'Step', 'stepSize': 5}}

    def test_load_optimizer_matches_names_and_refuses_what_does_not_fit(self):
        self.run_job('there', self.SPEC, steps=8, variant='bfloat16')
        model, path = self.export('there')
        shown = self.sluice('inspect', path)
        self.assertIn('AdamW, 7 parameters (head.bias', shown.stdout)
        self.assertIn('hidden.weight/exp_avg_sq', shown.stdout)
        self.assertIn('bfloat16', self.sluice('inspect', model).stdout)

        module = round_trip_worker.Net('bfloat16')
        trained = [p for p in module.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=0.01, weight_decay=0.3, foreach=False)
        with self.assertWarnsRegex(UserWarning, 'weight_decay 0.1 of .* replaces 0.3'):
            state = sluice.load_optimizer(path, optimizer, module)
        (group,) = state['param_groups']
        self.assertEqual((group['initial_lr'], group['weight_decay'], group['foreach'], group['maximize']),
                         (0.01, 0.1, False, False))
        self.assertAlmostEqual(group['lr'], 0.001, places=12)  # step 8, after one reduction
        self.assertEqual(group['param_names'][0], 'tokens.weight')
        self.assertEqual(float(state['state'][0]['step']), 8)
        self.assertEqual(optimizer.param_groups[0]['weight_decay'], 0.3)  # unchanged
        optimizer.load_state_dict(state)
        self.assertEqual(optimizer.state[trained[0]]['exp_avg'].dtype, torch.bfloat16)

        for wrong, text in [
                (torch.optim.Adam(trained), "state of 'tokens.weight' is AdamW's; the optimizer given is Adam"),
                (torch.optim.AdamW(trained[:-1]), "has the parameter 'head.bias', which the optimizer given does not"),
                (torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))]), r'shape \[2\] that is not in the model'),
                (torch.optim.AdamW(trained, maximize=True), 'maximize=True')]:
            with self.assertRaisesRegex(sluice.UsageError, text):
                sluice.load_optimizer(path, wrong, module)
        with self.assertRaisesRegex(sluice.UsageError, "has no optimizer's state"):
            sluice.load_optimizer(model, optimizer, module)
        with self.assertRaisesRegex(sluice.UsageError, 'give the model too'):
            sluice.load_optimizer(path, torch.optim.AdamW(trained))

        metadata, arrays = safetensors.read(path, path.read_bytes())
        other = round_trip_worker.Net('bfloat16')
        other.head = torch.nn.Linear(8, 3)
        with self.assertRaisesRegex(sluice.UsageError, r"exp_avg of 'head.weight' has shape \[50, 8\]"):
            sluice.load_optimizer(path, torch.optim.AdamW([p for p in other.parameters() if p.requires_grad]), other)
        # The file that is written is that which is read.
        (self.directory / 'again.safetensors').write_bytes(safetensors.write(arrays, metadata))
        self.assertEqual(list(sluice.load(self.directory / 'again.safetensors')), [array.name for array in arrays])


if __name__ == '__main__':
    unittest_main.main()
