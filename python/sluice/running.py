"""Starts a job on this machine with `sluice run`, follows it, and returns its result."""

import dataclasses
import json
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import typing

from sluice import checkpoint
from sluice import errors
from sluice import progress as progress_lib
from sluice import types
from sluice import wire

_INTERRUPTED = 130
# In wheels that contain the programs.
_BUNDLED = pathlib.Path(__file__).parent / 'bin' / 'sluice'


@dataclasses.dataclass
class Result:
    """How a job ended. `metrics` is the summary of `sluice run --output json`."""
    job: str
    outcome: str
    step: int
    loss: typing.Optional[float]
    accuracy: typing.Optional[float]        # percent, from the last evaluation
    evaluation_loss: typing.Optional[float]
    seconds: float
    checkpoint: str                          # directory of the newest checkpoint
    metrics: dict

    def load(self, *, torch: bool = False) -> typing.Dict[str, typing.Any]:
        """The trained tensors (sluice.load)."""
        return checkpoint.load(self.checkpoint, torch=torch)


def run(manifest: types.Path, *, workers: typing.Optional[int] = None,
        shards: typing.Optional[int] = None, fresh: bool = False,
        state_directory: typing.Optional[types.Path] = None,
        binary: typing.Optional[types.Path] = None, display: bool = True,
        on_progress: typing.Optional[typing.Callable[[dict], typing.Any]] = None) -> Result:
    """Runs a job and returns its Result; `result.load()` returns the trained tensors.

    `manifest` is a file for `sluice run`. An interrupted job is resumed; with `fresh` it starts
    over. Progress is shown in notebooks and terminals (`display`) and passed to `on_progress`, a
    function of a dict. Raises JobFailed with the job's reason, UsageError for an invalid manifest
    (with every problem), FileNotFoundError if there is no `sluice`: `binary`, $SLUICE_BINARY, the
    package's own, or the one on the PATH. On KeyboardInterrupt the job saves a checkpoint.
    """
    command = [find_binary(binary), 'run', os.fspath(manifest), '--output', 'json']
    command += ['--workers', str(workers)] if workers is not None else []
    command += ['--shards', str(shards)] if shards is not None else []
    command += ['--fresh', '--yes'] if fresh else []
    command += ['--state-dir', os.fspath(state_directory)] if state_directory is not None else []

    stream = sys.stderr if display and sys.stderr.isatty() else None
    shown = progress_lib.Display(stream) if display else None
    summary, notes, errors_text, code = _follow(command, shown, on_progress)

    if code == 2 or (summary is None and code != 0):
        raise errors.UsageError(errors_text.strip() or '\n'.join(notes) or
                                f'sluice run ended with code {code}')
    if code == _INTERRUPTED:
        raise KeyboardInterrupt

    if code != 0:
        reason = summary.get('reason', '')
        if 'not finite' in reason:
            raise errors.NonFiniteGradient(reason)
        logs = ''.join(f'\n  {line}' for line in summary.get('logLines', []))
        raise errors.JobFailed(reason + logs, f'Logs are in {summary.get("logs")}')
    return _result(summary)


def find_binary(binary: typing.Optional[types.Path]) -> str:
    """The path of `sluice`, as `run` finds it."""
    binary = binary or os.environ.get('SLUICE_BINARY') or (_BUNDLED if _BUNDLED.exists() else 'sluice')
    found = shutil.which(os.fspath(binary))
    if found is None:
        raise FileNotFoundError(
            f'there is no program {binary}: install the wheel that contains it, or build it (bazel build //cli:sluice) and '
            'put it on the PATH, or set $SLUICE_BINARY')
    return found


def _follow(command, shown, on_progress):
    notes = []
    text = {'encoding': 'utf-8', 'errors': 'replace'}
    with tempfile.TemporaryFile('w+', **text) as errors_file:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors_file,
                                   env=_environment(), **text)
        try:
            summary = _read(process, notes, shown, on_progress)
            code = process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
            process.stdout.close()
            if shown is not None:
                shown.close()
        errors_file.seek(0)
        return summary, notes, errors_file.read(), code


def _read(process, notes, shown, on_progress):
    """Reads the program's output until it ends; returns the summary."""
    summary = None
    while True:
        try:
            for line in process.stdout:
                entry = json.loads(line)
                if entry['type'] == 'summary':
                    summary = entry
                elif entry['type'] == 'note':
                    notes.append(entry['message'])
                if entry['type'] in ('progress', 'summary'):
                    if shown is not None:
                        shown.show(_progress_of(entry))
                    if on_progress is not None:
                        on_progress(entry)
            return summary
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)


def _environment():
    """An environment in which `python3` is the calling interpreter: a notebook's is rarely the
    first on the PATH."""
    directory = os.path.dirname(sys.executable or '')
    path = os.environ.get('PATH', os.defpath)
    return {**os.environ, 'PATH': os.pathsep.join([directory, path]) if directory else path}


def _progress_of(entry):
    message = wire.JobProgress(
        step=int(entry.get('step', 0)), total_steps=int(entry.get('totalSteps', 0)),
        epoch=entry.get('epoch', 0.0), loss=entry.get('loss', 0.0), has_loss='loss' in entry,
        samples_per_second=entry.get('samplesPerSecond', 0.0),
        phase=getattr(wire, f'JobProgress_{entry.get("phase", "STARTING")}', 0),
        reason=entry.get('reason', '') if entry.get('exitCode') else '')
    if 'evaluatingStep' in entry:
        message.evaluating_step = int(entry['evaluatingStep'])
    if 'evaluation' in entry:
        evaluation = entry['evaluation']
        message.last_evaluation.loss = evaluation['loss']
        message.last_evaluation.has_accuracy = 'accuracy' in evaluation
        message.last_evaluation.accuracy = evaluation.get('accuracy', 0.0)
        for name, value in evaluation.get('metrics', {}).items():
            message.last_evaluation.metrics.add(name=name, value=math.nan if value is None else value)
    return progress_lib.Progress(message)


def _result(summary):
    evaluation = summary.get('evaluation', {})
    return Result(
        job=summary['job'], outcome=summary['outcome'], step=int(summary.get('step', 0)),
        loss=summary.get('loss'), accuracy=evaluation.get('accuracy'),
        evaluation_loss=evaluation.get('loss'), seconds=summary.get('seconds', 0.0),
        checkpoint=summary.get('checkpoint', ''), metrics=summary)
