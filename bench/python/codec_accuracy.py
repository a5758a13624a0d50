#!/usr/bin/env python3
"""Accuracy on MNIST with each codec in one process, which isolates the codecs' effect on training.

    PYTHONPATH=python python3 bench/python/codec_accuracy.py --data data/mnist --model convnet

Two workers' halves of each batch are differentiated by PyTorch, encoded and decoded by the codecs of the
package `sluice` (whose bytes are those of C++: tests/vectors), block by block as in a real job, each
worker with its own residuals, then added and applied by SGD with momentum. `bench/codec_accuracy.py`
measures the same with real processes.
"""
import argparse
import gzip
import pathlib
import time

import numpy as np
import torch

from sluice.protocol import codec as codec_lib
from sluice.protocol import encoder as encoder_lib
from sluice.protocol import layout as layout_lib
from sluice.protocol import wire

CODECS = {
    'None': (wire.CODEC_RAW, {}),
    'Float16': (wire.CODEC_FLOAT16, {}),
    'BFloat16': (wire.CODEC_BFLOAT16, {}),
    'Int8': (wire.CODEC_INT8, {'error_feedback': True}),
    'OneBit': (wire.CODEC_ONE_BIT, {'error_feedback': True}),
    'TopK 0.01': (wire.CODEC_TOP_K, {'error_feedback': True, 'fraction': 0.01}),
    'OneBit, no feedback': (wire.CODEC_ONE_BIT, {}),
    'TopK 0.01, no feedback': (wire.CODEC_TOP_K, {'fraction': 0.01}),
    'SignThreshold 1': (wire.CODEC_SIGN_THRESHOLD, {'threshold': 1}),
    'SignThreshold 1, feedback': (wire.CODEC_SIGN_THRESHOLD, {'threshold': 1, 'error_feedback': True}),
}


def idx(path):
    content = gzip.decompress(path.read_bytes())
    extents = np.frombuffer(content, '>u4', content[3], 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(extents)


def load(directory, part):
    images = torch.from_numpy(idx(directory / f'{part}-images-idx3-ubyte.gz').astype(np.float32) / 255)
    labels = torch.from_numpy(idx(directory / f'{part}-labels-idx1-ubyte.gz').astype(np.int64))
    return (images.unsqueeze(1) - 0.1307) / 0.3081, labels


def make_model(name):
    if name == 'convnet':
        return torch.nn.Sequential(torch.nn.Conv2d(1, 3, 3), torch.nn.MaxPool2d(3), torch.nn.ReLU(),
                                   torch.nn.Flatten(), torch.nn.Linear(192, 10))
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 256), torch.nn.ReLU(),
                               torch.nn.Linear(256, 10))


def make_index(model):
    table = wire.TensorTable()
    for name, value in model.named_parameters():
        table.tensors.add(name=name, shape=list(value.shape), dtype=wire.FLOAT32, kind=wire.PARAMETER)
    return layout_lib.LayoutIndex(table, layout_lib.make_layout(table, 64))


class Push:
    """A worker's pushes: the decoded gradients, and their size in bytes."""

    def __init__(self, codec, options, index):
        training = wire.TrainingSpec(push_codec=codec)
        for field, value in options.items():
            setattr(training.compression, field, value)
        self.codec, self.index = codec, index
        self.encoder = encoder_lib.GradientEncoder(training)
        self.bytes = 0

    def __call__(self, gradients):
        arrived = [np.empty_like(gradient) for gradient in gradients]
        for number, (tensor, offset, count, _) in enumerate(self.index.blocks):
            part = slice(offset, offset + count)
            payload = self.encoder.encode((0, 1), number, wire.FLOAT32, gradients[tensor][part])
            self.bytes += len(payload)
            codec_lib.decode_into(self.codec, wire.FLOAT32, payload, arrived[tensor][part])
        self.encoder.commit()
        return arrived


def train(options, codec, settings, data):
    images, labels = data
    torch.manual_seed(options.seed)
    model = make_model(options.model)
    parameters = list(model.parameters())
    sgd = torch.optim.SGD(parameters, lr=options.learning_rate, momentum=options.momentum)
    index = make_index(model)
    workers = [Push(codec, settings, index) for _ in range(2)]
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(options.seed))
    raw = 0
    for step in range(options.steps):
        begin = step * options.batch % (len(labels) - options.batch)
        total = [np.zeros(value.numel(), np.float32) for value in parameters]
        for worker, rows in zip(workers, order[begin:begin + options.batch].chunk(2)):
            sgd.zero_grad()
            torch.nn.functional.cross_entropy(model(images[rows]), labels[rows], reduction='sum').backward()
            for sums, part in zip(total, worker([value.grad.numpy().reshape(-1) for value in parameters])):
                sums += part
        for value, sums in zip(parameters, total):
            value.grad = torch.from_numpy(sums / options.batch).reshape(value.shape)
            raw += 2 * 4 * value.numel()
        sgd.step()
    return model, sum(worker.bytes for worker in workers), raw


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--data', type=pathlib.Path, required=True, help='directory of the four files of MNIST, .gz')
    parser.add_argument('--model', choices=('convnet', 'mlp'), default='convnet')
    parser.add_argument('--steps', type=int, default=1876)
    parser.add_argument('--batch', type=int, default=64)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--learning-rate', type=float, default=0.05)
    parser.add_argument('--momentum', type=float, default=0.0)
    parser.add_argument('--only', nargs='+', metavar='CODEC', help=f'of: {"; ".join(CODECS)}')
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = load(options.data, 'train')
    images, labels = load(options.data, 't10k')
    print('| push | accuracy | of raw bytes | seconds |\n|---|---|---|---|', flush=True)
    for name, (codec, settings) in CODECS.items():
        if options.only and name not in options.only:
            continue
        begin = time.monotonic()
        model, pushed, raw = train(options, codec, settings, data)
        with torch.no_grad():
            accuracy = (model(images).argmax(1) == labels).float().mean().item()
        print(f'| {name} | {100 * accuracy:.2f} % | {100 * pushed / raw:.2f} % '
              f'| {time.monotonic() - begin:.0f} |', flush=True)


if __name__ == '__main__':
    main()
