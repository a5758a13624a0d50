"""What the adapters for Lightning and the HuggingFace Trainer refuse, say and count, with stand-ins for the packages."""

from python.testing import requirements
requirements.need('numpy', 'google.protobuf')

import contextlib
import io
import types
import unittest

from sluice import adapter_checks as checks
from sluice import adapters
from sluice import errors
from sluice import wire
from tools import unittest_main

try:
    import torch
except ImportError:
    torch = None


def job(index=0, **training):
    spec = wire.JobSpec()
    spec.training.mode = wire.SYNCHRONOUS
    spec.training.global_batch_size = 32
    for name, value in training.items():
        setattr(spec.training, name, value)
    spec.optimizer.name = wire.OptimizerSpec_ADAM_W
    spec.optimizer.learning_rate = 0.001
    spec.optimizer.weight_decay = 0.01
    spec.optimizer.beta1, spec.optimizer.beta2, spec.optimizer.eps = 0.9, 0.999, 1e-8
    return types.SimpleNamespace(spec=spec, index=index)


class Module:
    """With the parameters `names`."""

    def __init__(self, *names):
        self.values = {name: object() for name in names}

    def named_parameters(self):
        return self.values.items()


def optimizer(kind, *groups):
    return type(kind, (), {'param_groups': [dict(group) for group in groups]})()


ADAM_W = {'lr': 0.001, 'weight_decay': 0.01, 'betas': (0.9, 0.999), 'eps': 1e-8, 'amsgrad': False}


class Checks(unittest.TestCase):

    def setUp(self):
        self.module = Module('a.weight', 'a.bias', 'norm.weight')
        self.all = list(self.module.values.values())

    def check(self, job, *groups, kind='AdamW', schedule=None):
        printed = io.StringIO()
        with contextlib.redirect_stderr(printed):
            checks.check_optimizer(job, self.module, optimizer(kind, *groups), schedule, 'configure_optimizers')
        return printed.getvalue()

    def test_the_manifests_optimizer_is_accepted(self):
        self.assertEqual(self.check(job(), {**ADAM_W, 'params': self.all}), '')

    def test_a_scheduler_has_set_the_rate_already(self):
        self.check(job(), {**ADAM_W, 'lr': 0.0, 'initial_lr': 0.001, 'params': self.all})

    def test_another_optimizer_is_refused_with_the_lines_to_write(self):
        with self.assertRaises(errors.UsageError) as caught:
            self.check(job(), {'lr': 0.1, 'weight_decay': 0, 'momentum': 0.9, 'dampening': 0, 'nesterov': True, 'params': self.all},
                       kind='SGD')
        text = str(caught.exception)
        self.assertIn('SGD, and the manifest has AdamW', text)
        self.assertTrue(text.endswith('  optimizer:\n    name: SGD\n    learningRate: 0.1\n    weightDecay: 0.0\n    momentum: 0.9\n'
                                      '    dampening: 0.0\n    nesterov: true'), text)

    def test_an_optimizer_that_no_manifest_has_is_refused(self):
        with self.assertRaisesRegex(errors.UsageError, 'gives the optimizer LBFGS, and a manifest has SGD, '):
            self.check(job(), {'params': self.all}, kind='LBFGS')

    def test_groups_are_compared_parameter_by_parameter(self):
        weight, bias, norm = self.all
        groups = [{**ADAM_W, 'params': [weight]}, {**ADAM_W, 'weight_decay': 0.0, 'params': [bias, norm]}]
        with self.assertRaises(errors.UsageError) as caught:
            self.check(job(), *groups)
        self.assertIn("weight_decay of 'a.bias' is 0.0, and 0.01 in the manifest", str(caught.exception))
        self.assertIn('    groups:\n    - {patterns: ["*.bias", "norm.weight"], weightDecay: 0.0}', str(caught.exception))
        with_groups = job()
        with_groups.spec.optimizer.groups.add(patterns=['*.bias', 'norm.weight'], weight_decay=0)
        self.check(with_groups, *groups)

    def test_a_schedule_needs_the_manifests(self):
        group = {**ADAM_W, 'params': self.all}
        with self.assertRaisesRegex(errors.UsageError, 'the schedule StepLR, and the manifest has a constant learning rate'):
            self.check(job(), group, schedule='StepLR')
        scheduled = job()
        scheduled.spec.optimizer.schedule.type = wire.Schedule_STEP
        self.assertIn('the StepLR of configure_optimizers does not run', self.check(scheduled, group, schedule='StepLR'))

    def test_clipping_must_be_the_manifests(self):
        with self.assertRaisesRegex(errors.UsageError, 'max_grad_norm is 1.0, .* not set.* write `clipNorm: 1.0`'):
            checks.check_clipping(job(), 1.0, 'max_grad_norm')
        checks.check_clipping(job(), 0, 'max_grad_norm')
        clipped = job()
        clipped.spec.optimizer.clip_norm = 1
        checks.check_clipping(clipped, 1.0, 'max_grad_norm')

    def lightning(self, module=True, **changes):
        trainer = types.SimpleNamespace(
            callbacks=[], accumulate_grad_batches=1, gradient_clip_val=None, gradient_clip_algorithm=None, precision='32-true',
            ckpt_path=None, limit_train_batches=1.0, overfit_batches=0, reload_dataloaders_every_n_epochs=0)
        vars(trainer).update(changes)
        checks.check_lightning(job(index=1), trainer, types.SimpleNamespace(automatic_optimization=module))

    def test_what_lightning_asks_for_and_a_job_does_not_do_is_refused(self):
        self.lightning()
        swa = type('StochasticWeightAveraging', (), {})()
        for changes, text in (
                ({'module': False}, 'manual optimization'), ({'accumulate_grad_batches': 4}, 'training.globalBatchSize'),
                ({'gradient_clip_val': 2.0}, 'gradient_clip_val is 2.0'), ({'precision': '16-mixed'}, 'precision 16-mixed'),
                ({'gradient_clip_val': 2.0, 'gradient_clip_algorithm': 'value'}, 'gradient_clip_algorithm=value'),
                ({'ckpt_path': 'x.ckpt'}, 'ckpt_path'), ({'limit_train_batches': 0.5}, 'limit_train_batches'),
                ({'callbacks': [swa]}, 'StochasticWeightAveraging changes gradients or weights')):
            with self.subTest(text), self.assertRaisesRegex(errors.UsageError, text):
                self.lightning(**changes)

    def test_schedulers_that_lightning_does_not_count_in_steps_are_refused(self):
        every = types.SimpleNamespace(interval='step', frequency=10, scheduler=object())
        with self.assertRaisesRegex(errors.UsageError, 'interval step and frequency 10'):
            checks.check_lightning_optimizers(job(), self.module, [optimizer('AdamW', ADAM_W)], [every])
        with self.assertRaisesRegex(errors.UsageError, 'configure_optimizers gives 2 optimizers'):
            checks.check_lightning_optimizers(job(), self.module, [1, 2], [])

    def test_what_a_trainer_asks_for_and_a_job_does_not_do_is_refused(self):
        def check(compute_metrics=None, eval_dataset=None, **changes):
            arguments = types.SimpleNamespace(gradient_accumulation_steps=1, world_size=1, fp16=False, deepspeed=None, fsdp=[],
                                              neftune_noise_alpha=None, max_grad_norm=0, include_for_metrics=[],
                                              batch_eval_metrics=False)
            vars(arguments).update(changes)
            checks.check_trainer(job(index=1), types.SimpleNamespace(args=arguments, compute_metrics=compute_metrics,
                                                                     eval_dataset=eval_dataset))

        check()
        check(compute_metrics=len, eval_dataset=[1])
        check(batch_eval_metrics=True)
        for changes, text in (({'gradient_accumulation_steps': 2}, 'training.globalBatchSize'), ({'world_size': 2}, 'torchrun'),
                              ({'fp16': True}, 'fp16'), ({'deepspeed': 'x'}, 'deepspeed'), ({'max_grad_norm': 1.0}, 'max_grad_norm'),
                              ({'compute_metrics': len, 'include_for_metrics': ['inputs']}, 'include_for_metrics'),
                              ({'compute_metrics': len, 'batch_eval_metrics': True}, 'batch_eval_metrics'),
                              ({'eval_dataset': {'a': [1], 'b': [2]}}, '2 eval_datasets')):
            with self.subTest(text), self.assertRaisesRegex(errors.UsageError, text):
                check(**changes)

    def test_data_without_numbers_are_refused(self):
        checks.check_data([1, 2])
        with self.assertRaisesRegex(errors.UsageError, 'the training data are a generator'):
            checks.check_data(each for each in [1])
        with self.assertRaisesRegex(errors.UsageError, '2 val_dataloaders'):
            checks.held_out([1, 2])


class Length(unittest.TestCase):

    def test_steps_of_an_epoch_and_of_the_job(self):
        self.assertEqual(adapters.length(job(epochs=3), 100, 'x'), (4, 12))
        self.assertEqual(adapters.length(job(epochs=3, last_batch=wire.TrainingSpec_DROP), 100, 'x'), (3, 9))
        self.assertEqual(adapters.length(job(steps=7), 100, 'x'), (4, 7))
        with self.assertRaisesRegex(errors.UsageError, 'Synchronous'):
            adapters.length(job(mode=wire.ASYNCHRONOUS), 100, 'x')


@unittest.skipUnless(torch, 'PyTorch is missing')
class HeldOutLoss(unittest.TestCase):

    def test_its_weight_is_what_the_mean_was_divided_by(self):
        logits = torch.zeros(4, 3, requires_grad=True)
        target = torch.tensor([0, -100, 2, -100])
        with torch.no_grad():
            loss, weight = adapters.held_out_loss(lambda: torch.nn.functional.cross_entropy(logits, target), {'x': logits})
        self.assertEqual((loss.requires_grad, float(weight)), (False, 2.0))
        self.assertAlmostEqual(float(loss), 1.0986, places=4)

    def test_a_weight_that_is_given_is_used(self):
        loss, weight = adapters.held_out_loss(lambda: (torch.tensor(0.5), 7.0), {'x': torch.zeros(2)})
        self.assertEqual((float(loss), weight), (0.5, 7.0))

    def test_a_mean_over_samples_has_no_weight(self):
        logits = torch.ones(4, requires_grad=True)
        self.assertEqual(float(adapters.held_out_loss(lambda: logits.mean(), {'x': logits})), 1.0)


class Several(unittest.TestCase):
    """Metrics that one function computes."""

    def setUp(self):
        self.calls, self.found = [], {'f1': 0.5, 'recall': 0.25}
        self.metrics = adapters.several('compute_metrics', self.compute, {'f1': 0, 'recall': 0}, padding=-100)

    def compute(self, outputs, targets):
        self.calls.append((outputs, targets))
        return self.found

    def test_the_function_is_called_once_for_an_evaluation(self):
        self.assertEqual({name: metric.padding for name, metric in self.metrics.items()}, {'f1': -100, 'recall': -100})
        for value in (0.5, 0.75):
            self.found = {'f1': value, 'recall': 0.25}
            self.assertEqual((self.metrics['f1'](1, 2), self.metrics['recall'](1, 2)), (value, 0.25))
        self.assertEqual(self.calls, [(1, 2), (1, 2)])

    def test_other_names_than_at_the_start_are_refused(self):
        self.found = {'f1': 0.5, 'f1_of_c': 1}
        with self.assertRaisesRegex(errors.UsageError, 'compute_metrics gives f1, f1_of_c, and gave f1, recall'):
            self.metrics['f1'](1, 2)


class Evaluations(unittest.TestCase):

    def test_each_evaluation_is_returned_once_and_asked_for_at_most_once_a_second(self):
        progress = wire.JobProgress()
        asked = []
        evaluations = adapters.Evaluations(types.SimpleNamespace(progress=lambda: asked.append(1) or progress))
        self.assertIsNone(evaluations.new(0.0))
        progress.last_evaluation.step = 20
        progress.last_evaluation.loss = 0.5
        progress.last_evaluation.accuracy, progress.last_evaluation.has_accuracy = 75, True
        progress.last_evaluation.metrics.add(name='auc', value=0.9)
        self.assertIsNone(evaluations.new(0.9))
        self.assertEqual(len(asked), 1)
        self.assertEqual(evaluations.new(1.0), {'loss': 0.5, 'accuracy': 0.75, 'auc': 0.9, 'step': 20})
        self.assertIsNone(evaluations.new(2.0))
        self.assertIsNone(evaluations.new(2.1, at_once=True))
        progress.last_evaluation.step = 40
        self.assertEqual(evaluations.new(2.2, at_once=True)['step'], 40)

    def test_a_coordinator_that_has_ended_has_none(self):
        def gone():
            raise errors.JobNotFound('x')
        self.assertIsNone(adapters.Evaluations(types.SimpleNamespace(progress=gone)).new(0.0))


if __name__ == '__main__':
    unittest_main.main()
