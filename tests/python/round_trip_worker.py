"""A model and data that PyTorch alone can train too. As a program: a worker that appends each loss to a file.

The arguments are the file and the variant: 'tied' (the head has the embedding's weight), 'sparse' (the
embedding's gradient has rows) or 'bfloat16'. A layer is frozen.
"""

import sys

import numpy as np
import torch

import sluice

SAMPLES, BATCH, TOKENS = 256, 32, 50
_random = np.random.default_rng(0)
X = _random.integers(0, TOKENS, (SAMPLES, 5))
Y = _random.integers(0, TOKENS, SAMPLES)


class Net(torch.nn.Module):

    def __init__(self, variant):
        super().__init__()
        torch.manual_seed(1)
        self.tokens = torch.nn.Embedding(TOKENS, 8, sparse=variant == 'sparse')
        self.mix = torch.nn.Linear(40, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.hidden = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, TOKENS)
        self.mix.requires_grad_(False)
        if variant == 'tied':
            self.head.weight = self.tokens.weight
        if variant == 'bfloat16':
            self.to(torch.bfloat16)

    def forward(self, x):
        x = self.norm(self.mix(self.tokens(x).flatten(1)))
        return self.head(torch.tanh(self.hidden(x)))


def loss_of(module, x, y):
    return torch.nn.functional.cross_entropy(module(torch.as_tensor(x)).float(), torch.as_tensor(y))


def main():
    torch.set_num_threads(1)
    with open(sys.argv[1], 'a') as losses:

        def objective(module, batch):
            loss = loss_of(module, *batch)
            if module.training:
                print(loss.item(), file=losses, flush=True)
            return loss

        with sluice.Worker(sluice.join(), Net(sys.argv[2]), objective=objective) as worker:
            for batch in worker.batches(sluice.ArrayDataset(X, Y)):
                worker.step(batch)


if __name__ == '__main__':
    main()
