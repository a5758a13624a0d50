"""A small transformer language model over the bytes of a text file.

    sluice run transformer.yaml          TEXT=my.txt sluice run transformer.yaml

The text is the file $TEXT (.gz is unpacked); without it, a text that is made up.
Needs PyTorch 2.
"""

import gzip
import os
import random

import sluice
import torch
from torch import nn

LENGTH = 32  # bytes of one sample


class Block(nn.Module):

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.before_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(),
                                 nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.query_key_value(self.before_attention(x)).chunk(3, dim=-1)
        query, key, value = (part.view(batch, length, self.heads, -1).transpose(1, 2)
                             for part in parts)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        attended = attended.transpose(1, 2).reshape(batch, length, width)
        x = x + self.dropout(self.projection(attended))
        return x + self.dropout(self.mlp(self.before_mlp(x)))


class Transformer(nn.Module):

    def __init__(self, width=64, heads=4, layers=2):
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.positions = nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        self.head.weight = self.tokens.weight  # tied
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, text):
        positions = torch.arange(text.shape[1], device=text.device)
        return self.head(self.norm(self.blocks(self.tokens(text) + self.positions(positions))))


def loss_fn(logits, target):
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def read_text():
    path = os.environ.get('TEXT')
    if path is None:
        words = random.Random(1)
        return ' '.join(words.choice(('to', 'be', 'or', 'not', 'that', 'is', 'the', 'question'))
                        for _ in range(8000))
    with (gzip.open if path.endswith('.gz') else open)(path, 'rb') as file:
        return file.read()


def main():
    job = sluice.join()
    torch.manual_seed(job.seed)  # every worker can provide the same initial values
    model = Transformer(width=int(os.environ.get('WIDTH', '64')))
    text = read_text()
    split = len(text) * 9 // 10
    with sluice.Worker(job, model, loss_fn) as worker:
        for batch in worker.batches(sluice.TextDataset(text[:split], LENGTH),
                                    evaluation=sluice.TextDataset(text[split:], LENGTH)):
            loss = worker.step(batch)
            if batch.step % 50 == 0:
                print(f'step {batch.step}: loss {loss:.3f}')


if __name__ == '__main__':
    main()
