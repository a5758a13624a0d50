"""Tiny models of transformers that a job trains; writes what the callbacks have seen to the directory of the second argument."""

import json
import pathlib
import sys
import time

import numpy as np
import torch
import transformers

SAMPLES, BATCH, EPOCHS, HOLD = 96, 16, 4, 11
STANDING = 1e-12  # a learning rate with which every evaluation is of the same model
_SIZES = {'vocab_size': 40, 'hidden_size': 16, 'num_hidden_layers': 1, 'num_attention_heads': 2, 'intermediate_size': 32,
          'max_position_embeddings': 16}
_NO_DROPOUT = {'hidden_dropout_prob': 0.0, 'attention_probs_dropout_prob': 0.0}


def model(kind):
    torch.manual_seed(0)
    if kind == 'bert':
        return transformers.BertForSequenceClassification(transformers.BertConfig(**_SIZES, **_NO_DROPOUT, num_labels=2))
    if kind == 'llama':
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_SIZES, num_key_value_heads=2))
    return transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=40, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0.0, decoder_start_token_id=0))


def data(kind):
    """Texts; the labels of the token models are of various lengths, and some have none."""
    rows = []
    for i, tokens in enumerate(torch.randint(1, 40, (SAMPLES, 8), generator=torch.Generator().manual_seed(0))):
        labels = tokens.clone()
        labels[8 - i % 7:] = -100
        if i % 11 == 5:
            labels[:] = -100
        rows.append({'input_ids': tokens, 'labels': int(tokens[0] % 2) if kind == 'bert' else labels})
    return rows


def held_out(kind):
    """Those of the token models have various lengths."""
    rows = data(kind)[:40]
    if kind == 'llama' and '--metrics' in sys.argv:
        rows = [{name: value[:4 + i % 5] for name, value in row.items()} for i, row in enumerate(rows)]
    return rows


def collate(rows):
    """Batches as long as their longest text."""
    def tensor(name, padding):
        values = [torch.as_tensor(row[name]) for row in rows]
        return torch.nn.utils.rnn.pad_sequence(values, True, padding) if values[0].dim() else torch.stack(values)
    return {'input_ids': tensor('input_ids', 0), 'labels': tensor('labels', -100)}


def smaller(logits, labels):
    return logits.argmax(-1)


def compute_metrics(prediction):
    """Means over all samples, and what only their order, or all of them together, can give."""
    counted = prediction.label_ids != -100
    right = (prediction.predictions % 2 == prediction.label_ids % 2) & counted
    order = np.arange(1, 1 + len(right)) @ right.reshape(len(right), -1).sum(1)
    return {'accuracy': right.sum() / counted.sum(), 'eval_order': order, 'samples': len(right)}


def arguments(directory, **changes):
    return transformers.TrainingArguments(str(directory), **{
        'learning_rate': 1e-3, 'lr_scheduler_type': 'constant', 'weight_decay': 0.01, 'logging_steps': 5, 'report_to': [],
        'use_cpu': True, 'disable_tqdm': True, **changes})


def hold(directory, index, step):
    """The first worker waits at this step until the second one has started again."""
    starts = directory / 'starts-1'
    if index == 0 and step == HOLD and starts.exists() and '--kill' in sys.argv:
        while len(starts.read_text()) < 2:
            time.sleep(0.1)


def note_start(directory, index):
    with open(directory / f'starts-{index}', 'a') as file:
        file.write('x')


class Seen(transformers.TrainerCallback):
    """Counts its calls."""

    def __init__(self, directory, index):
        self.calls, self.evaluations, self.directory, self.index = {}, [], directory, index

    def __getattribute__(self, name):
        if not name.startswith('on_'):
            return super().__getattribute__(name)

        def call(arguments, state, control, metrics=None, **unused):
            self.calls[name] = self.calls.get(name, 0) + 1
            if name == 'on_step_begin':
                hold(self.directory, self.index, state.global_step)
            if metrics:
                self.evaluations.append({name: metrics[name] for name in metrics if name.startswith('eval_')})
        return call


def main():
    import sluice
    import sluice.huggingface
    kind, directory = sys.argv[1], pathlib.Path(sys.argv[2])
    job = sluice.join()
    note_start(directory, job.index)
    seen = Seen(directory, job.index)
    metrics, rate = {}, 1e-3
    if '--metrics' in sys.argv:
        metrics, rate = {'compute_metrics': compute_metrics, 'preprocess_logits_for_metrics': smaller}, STANDING
    trainer = transformers.Trainer(model(kind), arguments(directory, learning_rate=rate), train_dataset=data(kind),
                                   eval_dataset=held_out(kind), data_collator=collate if metrics else None, callbacks=[seen], **metrics)
    result = sluice.huggingface.train(trainer, job)
    (directory / f'seen-{job.index}.json').write_text(json.dumps({
        'calls': seen.calls, 'evaluations': seen.evaluations, 'step': result.global_step,
        'logged': [entry['step'] for entry in trainer.state.log_history if 'loss' in entry]}))


if __name__ == '__main__':
    main()
