"""Sluice: train PyTorch models with a parameter server. See docs/python.md.

    job = sluice.join()
    with sluice.Worker(job, module, loss_fn) as worker:
        for batch in worker.batches(dataset):
            worker.step(batch)
"""

from sluice.checkpoint import load
from sluice.connection import Connection
from sluice.connection import connect
from sluice.data import ArrayDataset
from sluice.data import RowGradient
from sluice.data import TextDataset
from sluice.errors import DuplicateWorker
from sluice.errors import JobEnded
from sluice.errors import JobFailed
from sluice.errors import JobNotFound
from sluice.errors import ModelMismatch
from sluice.errors import NonFiniteGradient
from sluice.errors import SluiceError
from sluice.errors import UsageError
from sluice.errors import VersionMismatch
from sluice.metrics import Mean
from sluice.progress import Progress
from sluice.pytorch import load_optimizer
from sluice.pytorch import load_pytorch
from sluice.pytorch import save_checkpoint
from sluice.running import Result
from sluice.running import run
from sluice.worker import Batch
from sluice.worker import Job
from sluice.worker import Worker
from sluice.worker import join

__version__ = '0.1.0'
