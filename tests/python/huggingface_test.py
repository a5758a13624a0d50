"""Tiny models of transformers are trained by two workers as by one loop in plain PyTorch over whole batches: whether or not their
loss uses num_items_in_batch, with labels that are ignored, and though a worker is killed."""

from python.testing import requirements
requirements.need('numpy', 'grpc', 'google.protobuf', 'torch', 'transformers', 'accelerate')

import json
import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

import torch
import transformers

import sluice
from tests.python import huggingface_program as program
from tests.python import job_processes
from tools import unittest_main

_STEPS = program.SAMPLES // program.BATCH * program.EPOCHS


def job(**optimizer):
    return job_processes.base_job(
        model={'type': 'Custom'}, data={'format': 'Custom', 'shuffle': False, 'evaluation': {'intervalSteps': 6}},
        optimizer={'name': 'AdamW', 'learningRate': 1e-3, 'weightDecay': 0.01, 'betas': [0.9, 0.999], 'eps': 1e-8,
                   'clipNorm': 1, 'groups': [{'patterns': ['*.bias', '*norm.weight', '*Norm.weight', '*relative_attention_bias.weight'], 'weightDecay': 0}], **optimizer},
        training={'epochs': program.EPOCHS, 'globalBatchSize': program.BATCH, 'microbatchSize': 8},
        parameterServer={'replicas': 2}, worker={'replicas': 2}, debug={'stepDelaySeconds': 0.2})


def plain(kind):
    """The parameters after the same steps in one process."""
    model = program.model(kind)
    endings = ('.bias', 'norm.weight', 'Norm.weight', 'relative_attention_bias.weight')
    decay = [value for name, value in model.named_parameters() if not name.endswith(endings)]
    rest = [value for name, value in model.named_parameters() if name.endswith(endings)]
    optimizer = torch.optim.AdamW([{'params': decay}, {'params': rest, 'weight_decay': 0.0}], lr=1e-3, weight_decay=0.01)
    rows = program.data(kind)
    for _ in range(program.EPOCHS):
        for begin in range(0, len(rows), program.BATCH):
            some = rows[begin:begin + program.BATCH]
            optimizer.zero_grad()
            model(input_ids=torch.stack([row['input_ids'] for row in some]),
                  labels=torch.stack([torch.as_tensor(row['labels']) for row in some])).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return model.state_dict()


class HuggingFace(unittest.TestCase):

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get('TEST_TMPDIR')))

    def start(self, processes, index, kind, *flags):
        processes.start_python_worker(index, 'tests/python/huggingface_program.py', kind, str(self.directory), *flags)

    def train(self, kind, kill=False, metrics=False):
        rate = {'learningRate': program.STANDING} if metrics else {}
        with job_processes.JobProcesses(job(**rate), self.directory / 'job') as processes:
            processes.start()
            flags = ['--kill'] * kill + ['--metrics'] * metrics
            for index in (0, 1):
                self.start(processes, index, kind, *flags)
            if kill:
                processes.wait_until(lambda: processes.progress().step >= 5, 300, 'the job trains')
                processes.kill('worker-1')
                self.start(processes, 1, kind, *flags)
            for name in ('worker-0', 'worker-1'):
                self.assertEqual(processes.wait_for_exit(name, 200), 0, processes.log(name))
            trained = sluice.load(processes.checkpoints, torch=True)
            text = processes.log('worker-0')
        for name, expected in (program.model(kind).state_dict() if metrics else plain(kind)).items():
            torch.testing.assert_close(trained[name], expected, atol=2e-5, rtol=1e-4, msg=lambda text: f'{name}: {text}')
        return text, json.loads((self.directory / 'seen-0.json').read_text())

    def test_sequence_model_with_a_kill_and_its_callbacks(self):
        text, seen = self.train('bert', kill=True)
        self.assertIn('a mean that num_items_in_batch does not change, so accepts_loss_kwargs is False', text)
        calls = seen['calls']
        self.assertEqual(seen['step'], _STEPS)
        self.assertGreaterEqual(calls['on_step_end'], _STEPS - program.HOLD)  # the other worker may have begun alone
        self.assertEqual(calls['on_epoch_begin'], calls['on_epoch_end'])
        self.assertEqual((calls['on_train_begin'], calls['on_train_end']), (1, 1))
        self.assertLessEqual({15, 20}, set(seen['logged']))
        self.assertGreaterEqual(len(seen['evaluations']), 2)
        losses = [evaluation['eval_loss'] for evaluation in seen['evaluations']]
        self.assertLess(losses[-1], losses[0])

    def test_compute_metrics_gets_each_held_out_sample_once_in_order(self):
        for kind in ('bert', 'llama'):
            with self.subTest(kind), mock.patch.object(sys, 'argv', ['--metrics']):
                self.directory = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get('TEST_TMPDIR')))
                _, seen = self.train(kind, kill=kind == 'bert', metrics=True)
                trainer = transformers.Trainer(
                    program.model(kind), program.arguments(self.directory / 'plain', per_device_eval_batch_size=7),
                    eval_dataset=program.held_out(kind), data_collator=program.collate, compute_metrics=program.compute_metrics,
                    preprocess_logits_for_metrics=program.smaller)
                expected = trainer.evaluate()
                found = seen['evaluations'][-1]
                self.assertEqual(found['eval_samples'], 40)
                self.assertGreater(expected['eval_order'], 0)
                # The Trainer's loss of texts of various lengths depends on its batches.
                for name in ('eval_accuracy', 'eval_order', *(['eval_loss'] if kind == 'bert' else [])):
                    self.assertAlmostEqual(found[name], expected[name], delta=1e-4 * max(1, abs(expected[name])), msg=name)

    def test_causal_model_with_ignored_labels(self):
        text, _ = self.train('llama')
        self.assertIn('the loss of LlamaForCausalLM is the sum over num_items_in_batch', text)

    def test_encoder_and_decoder_with_ignored_labels(self):
        text, _ = self.train('t5')
        self.assertIn('a mean that num_items_in_batch does not change', text)

    def test_another_clipping_than_the_manifests_is_refused(self):
        with job_processes.JobProcesses(job(clipNorm=0.5), self.directory / 'job') as processes:
            processes.start()
            self.start(processes, 0, 'bert')
            self.assertNotEqual(processes.wait_for_exit('worker-0', 300), 0)
            self.assertIn('max_grad_norm is 1.0, and optimizer.clipNorm of the manifest is 0.5', processes.log('worker-0'))


if __name__ == '__main__':
    unittest_main.main()
