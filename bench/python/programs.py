"""Programs of eight kinds, each as a job of two workers and two shards and in plain PyTorch, on the same samples in the
same order.

    bench/python/figures.sh programs             all of them; SLUICE_PYTHON names a Python that has PyTorch 2
    bench/python/figures.sh programs gpt lora

A kind has a module, samples, and two ways to train it: `plain` and `job`. The table has the lines of `job` that `plain`
does not have, and the differences after the same steps: of the loss over held-out samples, and the largest one of an
element of the state_dict. The exit code is 1 if one of them is larger than the kind allows.
"""

import argparse
import difflib
import inspect
import json
import math
import os
import pathlib
import platform
import sys
import tempfile
import typing

import torch
from torch import nn
from torch.nn import functional

import sluice

STEPS, BATCH, HELD_OUT = 40, 32, 256
WORKERS, SHARDS = 2, 2


def batches(data, **options):
    return torch.utils.data.DataLoader(data, BATCH, **options)


def random(seed):
    return torch.Generator().manual_seed(seed)


def vectors(count, seed):
    """Samples of four classes."""
    generator = random(seed)
    target = torch.randint(0, 4, (count,), generator=generator)
    centers = torch.randn(4, 16, generator=random(0))
    return centers[target] + 0.7 * torch.randn(count, 16, generator=generator), target


class Kind:
    """Adam and cross entropy, where a kind has no other. `optimizer` is the manifest's; `plain` returns the trained
    module; `job` is the program of a worker."""
    optimizer: typing.Dict[str, typing.Any] = {'name': 'Adam', 'learningRate': 0.01}
    largest_loss, largest_element = 1e-6, 1e-6  # differences that are allowed
    uncertain: typing.Tuple[str, ...] = ()      # ends of names: elements that follow rounding errors alone
    samples: typing.Callable = staticmethod(vectors)

    def module(self):
        raise NotImplementedError

    def data(self):
        return torch.utils.data.TensorDataset(*self.samples(STEPS * BATCH, 1))

    def objective(self, module, batch):
        x, y = batch
        return functional.cross_entropy(module(x), y)

    def plain(self):
        module = self.module()
        optimizer = self.optimizer_of(module)
        for batch in batches(self.data()):
            optimizer.zero_grad()
            self.objective(module, batch).backward()
            optimizer.step()
        return module

    def optimizer_of(self, module):
        return torch.optim.Adam(module.parameters(), lr=0.01)

    def job(self):
        module = self.module()
        with sluice.Worker(sluice.join(), module, objective=self.objective) as worker:
            for batch in worker.batches(self.data()):
                worker.step(batch)


class Block(nn.Module):

    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        inner = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(x + self.second_norm(self.second(inner)))


class ResNet(Kind):
    """Batch norm sees a worker's part of the batch, as in DistributedDataParallel."""
    optimizer = {'name': 'SGD', 'learningRate': 0.05, 'momentum': 0.9, 'weightDecay': 5e-4}
    largest_loss, largest_element = 1e-5, 1e-5

    def module(self):
        return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), Block(8), nn.MaxPool2d(2),
                             Block(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))

    @staticmethod
    def samples(count, seed):
        x, y = vectors(count, seed)
        return functional.interpolate(x.view(-1, 1, 4, 4), 12), y

    def plain(self):
        module = self.module()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
        for x, y in batches(self.data()):
            optimizer.zero_grad()
            in_two_processes(module, x, y)
            optimizer.step()
        return module


def in_two_processes(module, x, y):
    """Forward and backward of two halves; the buffers get the mean of what both would have."""
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    after: typing.Dict[str, typing.Any] = dict.fromkeys(before, 0.0)
    for half in zip(x.chunk(2), y.chunk(2)):
        for name, buffer in module.named_buffers():
            buffer.copy_(before[name])
        (functional.cross_entropy(module(half[0]), half[1]) / 2).backward()
        after = {name: after[name] + buffer.double() / 2 for name, buffer in module.named_buffers()}
    for name, buffer in module.named_buffers():
        buffer.copy_(after[name])


class Attention(nn.Module):

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        query, key, value = (part(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
                             for part in (self.query, self.key, self.value))
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(attended.transpose(1, 2).flatten(2))


class Layer(nn.Module):

    def __init__(self, width):
        super().__init__()
        self.attention = Attention(width, 4)
        self.attention_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.mlp_norm = nn.LayerNorm(width)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class LanguageModel(nn.Module):

    def __init__(self, words=64, width=32):
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.layers = nn.Sequential(Layer(width), Layer(width))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, text):
        return self.head(self.norm(self.layers(self.tokens(text))))


class Gpt(Kind):
    """Tied weights, AdamW with two groups, warm-up and cosine, clipping, and in plain PyTorch accumulation."""
    optimizer = {'name': 'AdamW', 'learningRate': 0.003, 'weightDecay': 0.1, 'clipNorm': 1.0,
                 'schedule': {'type': 'Cosine', 'warmupSteps': 10, 'totalSteps': 40, 'minFactor': 0.1},
                 'groups': [{'patterns': ['*.bias', '*norm.weight'], 'weightDecay': 0}]}
    uncertain = ('key.bias',)  # it adds the same to all scores of a query: its gradient is 0 but for rounding

    def module(self):
        return LanguageModel()

    @staticmethod
    def samples(count, seed):
        steps = torch.randint(1, 4, (count, 17), generator=random(seed))
        text = steps.cumsum(1) % 64
        return text[:, :-1], text[:, 1:]

    def objective(self, module, batch):
        text, following = batch
        return functional.cross_entropy(module(text).transpose(1, 2), following)

    def plain(self):
        module = self.module()
        named = list(module.named_parameters())
        small = [p for name, p in named if name.endswith(('.bias', 'norm.weight'))]
        others = [p for name, p in named if not name.endswith(('.bias', 'norm.weight'))]
        optimizer = torch.optim.AdamW([{'params': small, 'weight_decay': 0.0}, {'params': others}], lr=0.003,
                                      weight_decay=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (
            (step + 1) / 10 if step < 10 else 0.1 + 0.9 * (1 + math.cos(math.pi * (step - 10) / 30)) / 2))
        for text, following in batches(self.data()):
            optimizer.zero_grad()
            for part in zip(text.chunk(2), following.chunk(2)):
                (self.objective(module, part) / 2).backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        return module


class Towers(nn.Module):

    def __init__(self):
        super().__init__()
        self.history = nn.EmbeddingBag(2000, 16, mode='mean', sparse=True)
        self.items = nn.Embedding(2000, 16, sparse=True)
        self.out = nn.Linear(16, 1)

    def forward(self, history, begins, item):
        return self.out(self.history(history, begins) * self.items(item)).squeeze(1)


class Clicks(torch.utils.data.Dataset):
    """Histories of different lengths, an item, and whether it was clicked."""

    def __init__(self, count, seed):
        generator = random(seed)
        self.lengths = torch.randint(1, 9, (count,), generator=generator).tolist()
        self.histories = torch.randint(0, 2000, (count, 9), generator=generator)
        self.items = torch.randint(0, 2000, (count,), generator=generator)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        history = self.histories[index, :self.lengths[index]]
        return history, self.items[index], ((history.sum() + self.items[index]) % 3 == 0).float()

    @staticmethod
    def collate(samples):
        histories, items, clicked = zip(*samples)
        begins = torch.tensor([0] + [len(each) for each in histories[:-1]]).cumsum(0)
        return torch.cat(histories), begins, torch.stack(items), torch.stack(clicked)


class TwoTowers(Kind):
    """Tables whose gradients are rows, a collate of its own; the workers pull only the rows of their samples."""
    optimizer = {'name': 'Adagrad', 'learningRate': 0.1, 'initialAccumulatorValue': 0.1}

    def module(self):
        return Towers()

    def data(self):
        return Clicks(STEPS * BATCH, 1)

    @staticmethod
    def samples(count, seed):
        clicks = Clicks(count, seed)
        return Clicks.collate([clicks[index] for index in range(count)])

    def objective(self, module, batch):
        *features, clicked = batch
        return functional.binary_cross_entropy_with_logits(module(*features), clicked)

    def plain(self):
        module = self.module()
        optimizer = torch.optim.Adagrad(module.parameters(), lr=0.1, initial_accumulator_value=0.1)
        for batch in batches(self.data(), collate_fn=Clicks.collate):
            optimizer.zero_grad()
            self.objective(module, batch).backward()
            optimizer.step()
        return module

    def job(self):
        module = self.module()
        rows = {'history.weight': lambda batch: batch[0], 'items.weight': lambda batch: batch[2]}
        with sluice.Worker(sluice.join(), module, objective=self.objective, rows=rows) as worker:
            for batch in worker.batches(self.data(), collate=Clicks.collate):
                worker.step(batch)


class Unfreeze(Kind):
    """The first layer is frozen for half of the steps."""

    def module(self):
        return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))

    def plain(self):
        module = self.module()
        optimizer = self.optimizer_of(module)
        for step, batch in enumerate(batches(self.data())):
            module[0].requires_grad_(step >= STEPS // 2)
            optimizer.zero_grad()
            self.objective(module, batch).backward()
            optimizer.step()
        return module

    def job(self):
        module = self.module()
        with sluice.Worker(sluice.join(), module, objective=self.objective) as worker:
            for batch in worker.batches(self.data()):
                module[0].requires_grad_(batch.step >= STEPS // 2)
                worker.step(batch)


class Gan(Kind):
    """Two networks with an optimizer each, in one module; both learn from the same version of the other one."""
    optimizer = {'name': 'Adam', 'learningRate': 0.002, 'betas': [0.5, 0.999],
                 'groups': [{'patterns': ['critic.*'], 'name': 'SGD', 'learningRate': 0.05, 'momentum': 0.9}]}

    def module(self):
        return nn.ModuleDict({
            'generator': nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 16)),
            'critic': nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))})

    @staticmethod
    def samples(count, seed):
        return vectors(count, seed)[0], torch.randn(count, 8, generator=random(seed + 100))

    def objective(self, module, batch):
        real, noise = batch
        critic = module['critic']
        fixed = {name: parameter.detach() for name, parameter in critic.named_parameters()}
        made = module['generator'](noise)
        return (functional.softplus(-critic(real)).mean() + functional.softplus(critic(made.detach())).mean() +
                functional.softplus(-torch.func.functional_call(critic, fixed, made)).mean())

    def plain(self):
        module = self.module()
        generator = torch.optim.Adam(module['generator'].parameters(), lr=0.002, betas=(0.5, 0.999))
        critic = torch.optim.SGD(module['critic'].parameters(), lr=0.05, momentum=0.9)
        for batch in batches(self.data()):
            generator.zero_grad()
            critic.zero_grad()
            self.objective(module, batch).backward()
            generator.step()
            critic.step()
        return module


class Bfloat16(Kind):
    """Autocast: a matrix product over 16 samples rounds otherwise than one over 32."""
    largest_loss, largest_element = 2.4e-3, 2.4e-3

    def module(self):
        return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))

    def objective(self, module, batch):
        x, y = batch
        with torch.autocast('cpu', torch.bfloat16):
            return functional.cross_entropy(module(x), y)


class Pairs(torch.utils.data.IterableDataset):

    def __iter__(self):
        return zip(*vectors(STEPS * BATCH, 1))


class Stream(Kind):
    """An IterableDataset."""

    def module(self):
        return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def data(self):
        return Pairs()


class Adapted(nn.Module):
    """A frozen layer, and a product of two small matrices beside it."""

    def __init__(self, layer, rank=4):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, layer.in_features) / rank)
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x):
        return self.layer(x) + x @ self.a.T @ self.b.T


class Lora(Kind):
    """Adapters of frozen layers."""
    optimizer = {'name': 'AdamW', 'learningRate': 0.01}

    def module(self):
        return nn.Sequential(Adapted(nn.Linear(16, 128)), nn.ReLU(), Adapted(nn.Linear(128, 4)))

    def optimizer_of(self, module):
        return torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=0.01)


KINDS = {'resnet': ResNet, 'gpt': Gpt, 'two-towers': TwoTowers, 'unfreeze': Unfreeze, 'gan': Gan,
         'bfloat16': Bfloat16, 'stream': Stream, 'lora': Lora}


class Difference(typing.NamedTuple):
    lines: int
    loss: float
    plain_loss: float
    element: float
    name: str          # of the element's tensor
    uncertain: float   # the largest one in Kind.uncertain


def changed_lines(kind):
    """The lines of job that plain does not have, and the import."""
    plain, job = (inspect.getsource(function).splitlines()[1:] for function in (kind.plain, kind.job))
    return 1 + sum(line.startswith('+ ') for line in difflib.ndiff(plain, job))


def run_job(name, kind, directory):
    """The tensors of the job."""
    manifest = {
        'apiVersion': 'sluice.dev/v1alpha1', 'kind': 'TrainingJob', 'metadata': {'name': name},
        'spec': {'model': {'type': 'Custom'}, 'data': {'format': 'Custom', 'shuffle': False}, 'optimizer': kind.optimizer,
                 'training': {'steps': STEPS, 'globalBatchSize': BATCH}, 'parameterServer': {'replicas': SHARDS},
                 'worker': {'replicas': WORKERS, 'command': [sys.executable, os.path.abspath(__file__), '--job', name]}}}
    path = pathlib.Path(directory) / f'{name}.yaml'
    path.write_text(json.dumps(manifest))
    return sluice.run(path, display=False, state_directory=directory).load(torch=True)


def compare(name, directory):
    kind = KINDS[name]()
    torch.manual_seed(1)
    plain = kind.plain()
    torch.manual_seed(1)
    module = kind.module()
    module.load_state_dict(run_job(name, kind, directory))
    held_out = kind.samples(HELD_OUT, 2)
    with torch.no_grad():
        losses = [float(kind.objective(each.eval(), held_out)) for each in (plain, module)]
    found = module.state_dict()
    differences = {key: float((tensor.double() - found[key].double()).abs().max())
                   for key, tensor in plain.state_dict().items()}
    uncertain = [differences.pop(key) for key in list(differences) if key.endswith(kind.uncertain or ('\n',))]
    largest = max(differences, key=lambda key: differences[key])
    return Difference(changed_lines(kind), abs(losses[0] - losses[1]), losses[0], differences[largest], largest,
                      max(uncertain, default=0.0))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('kinds', nargs='*', metavar='KIND', help=f'{", ".join(KINDS)}; default: all')
    parser.add_argument('--job', choices=KINDS, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    if flags.job:
        torch.manual_seed(1)
        KINDS[flags.job]().job()
        return 0
    for name in flags.kinds:
        if name not in KINDS:
            parser.error(f"there is no kind '{name}'; there are {', '.join(KINDS)}")

    print(f'PyTorch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}: {STEPS} steps of '
          f'{BATCH} samples, {WORKERS} workers, {SHARDS} shards\n')
    print('| program | lines | loss | difference of the loss | largest difference of an element | in |')
    print('|---|---|---|---|---|---|')
    right = True
    with tempfile.TemporaryDirectory() as directory:
        for name in flags.kinds or KINDS:
            found = compare(name, directory)
            print(f'| {name} | {found.lines} | {found.plain_loss:.4f} | {found.loss:.1e} | {found.element:.1e} | '
                  f'`{found.name}` |', flush=True)
            for end in KINDS[name].uncertain:
                print(f'{name}: {found.uncertain:.1e} in {end}', file=sys.stderr)
            kind = KINDS[name]
            if found.loss > kind.largest_loss or found.element > kind.largest_element:
                print(f'{name}: allowed are {kind.largest_loss:g} and {kind.largest_element:g}', file=sys.stderr)
                right = False
    return 0 if right else 1


if __name__ == '__main__':
    sys.exit(main())
