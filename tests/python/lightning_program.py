"""A LightningModule that a job trains; writes what its callbacks and logger have seen to the directory of the first argument."""

import json
import pathlib
import sys
import time

import lightning.pytorch as pl
import torch
from lightning.pytorch import callbacks
from lightning.pytorch import loggers

SAMPLES, BATCH, EPOCHS, HOLD = 320, 32, 4, 15


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, 8, generator=generator)
    return x, (x * torch.arange(8)).sum(1, keepdim=True)


class Net(pl.LightningModule):

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

    def loss(self, batch):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def training_step(self, batch, index):
        loss = self.loss(batch)
        self.log('train_loss', loss)
        return loss

    def validation_step(self, batch, index):
        self.log('val_loss', self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def hold(directory, index, step):
    """The first worker waits at this step until the second one has started again."""
    starts = directory / 'starts-1'
    if index == 0 and step == HOLD and starts.exists() and '--kill' in sys.argv:
        while len(starts.read_text()) < 2:
            time.sleep(0.1)


def note_start(directory, index):
    with open(directory / f'starts-{index}', 'a') as file:
        file.write('x')


class Seen(pl.Callback):
    """Counts its calls."""

    def __init__(self, directory, index):
        self.calls, self.validations, self.steps, self.directory, self.index = {}, [], [], directory, index

    def __getattribute__(self, name):
        if not name.startswith('on_'):
            return super().__getattribute__(name)

        def call(trainer, *arguments, **unused):
            self.calls[name] = self.calls.get(name, 0) + 1
            if name == 'on_train_batch_start':
                self.steps.append(trainer.global_step)
                hold(self.directory, self.index, trainer.global_step)
            if name == 'on_validation_end':
                self.validations.append((trainer.global_step, float(trainer.callback_metrics['val_loss'])))
        return call


def main():
    import sluice
    import sluice.lightning
    directory = pathlib.Path(sys.argv[1])
    job = sluice.join()
    note_start(directory, job.index)
    dataset = torch.utils.data.TensorDataset(*data())
    loader = torch.utils.data.DataLoader(dataset, batch_size=7, shuffle=True)
    seen = Seen(directory, job.index)
    best = callbacks.ModelCheckpoint(directory / 'best', monitor='val_loss')
    trainer = pl.Trainer(
        strategy=sluice.lightning.Strategy(job), accelerator='cpu', max_epochs=1, enable_progress_bar=False,
        enable_model_summary=False, logger=loggers.CSVLogger(directory / f'logs-{job.index}'), log_every_n_steps=1,
        callbacks=[seen, best, callbacks.EarlyStopping('val_loss', patience=100)])
    trainer.fit(Net(), loader, torch.utils.data.DataLoader(dataset, batch_size=5))
    (directory / f'seen-{job.index}.json').write_text(json.dumps({
        'calls': seen.calls, 'validations': seen.validations, 'steps': seen.steps, 'step': trainer.global_step, 'epoch': trainer.current_epoch,
        'best': best.best_model_path}))


if __name__ == '__main__':
    main()
