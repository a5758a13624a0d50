"""A job's progress, in a form that terminals and notebooks can show."""

import html
import typing

from sluice import wire

_PHASES = ('starting', 'initializing', 'training', 'evaluating', 'saving', 'suspended', 'succeeded',
           'failed')
_ROLES = {wire.SHARD: 'ps', wire.WORKER: 'worker'}


class Progress:
    """The content of a JobProgress, with a text and an HTML form."""

    def __init__(self, message: typing.Any) -> None:
        self.message = message
        self.phase = _PHASES[message.phase] if message.phase < len(_PHASES) else 'unknown'
        self.step = message.step
        self.total_steps = message.total_steps
        self.epoch = message.epoch
        self.loss = message.loss if message.has_loss else None
        self.samples_per_second = message.samples_per_second
        evaluation = message.last_evaluation if message.HasField('last_evaluation') else None
        self.evaluation_loss = evaluation.loss if evaluation else None
        self.accuracy = evaluation.accuracy if evaluation and evaluation.has_accuracy else None
        # The program's own metrics.
        self.metrics = {metric.name: metric.value for metric in evaluation.metrics} if evaluation else {}
        self.reason = message.reason
        # 'worker-0' -> its process id in its machine or container.
        self.processes = {f'{_ROLES[status.process.role]}-{status.process.index}': status.pid
                          for status in message.processes if status.process.role in _ROLES and
                          status.state < wire.ProcessStatus_LEFT}

    @property
    def fraction(self) -> float:
        """The completed fraction of the job, from 0 to 1."""
        if self.phase == 'succeeded':
            return 1.0
        return min(1.0, self.step / self.total_steps) if self.total_steps else 0.0

    def _facts(self):
        facts = [f'step {self.step:,} of {self.total_steps:,}' if self.total_steps else
                 f'step {self.step:,}']
        if self.loss is not None:
            facts.append(f'loss {self.loss:.4g}')
        if self.accuracy is not None:
            facts.append(f'accuracy {self.accuracy:.2f} %')
        elif self.evaluation_loss is not None:
            facts.append(f'evaluation loss {self.evaluation_loss:.4g}')
        facts += [f'{name} {value:.4g}' for name, value in self.metrics.items()]
        if self.samples_per_second and self.phase == 'training':
            facts.append(f'{self.samples_per_second:,.0f} samples/s')
        if self.phase == 'training' and self.message.HasField('evaluating_step'):
            facts.append(f'evaluating step {self.message.evaluating_step:,}')
        if self.reason:
            facts.append(self.reason)
        return facts

    def __repr__(self):
        width = 24
        done = int(width * self.fraction)
        return f'{self.phase} [{"#" * done}{"." * (width - done)}] {" · ".join(self._facts())}'

    def _repr_html_(self):
        color = {'failed': '#c0392b', 'succeeded': '#27ae60'}.get(self.phase, '#2980b9')
        facts = html.escape(' · '.join(self._facts()))
        return (f'<div style="font-family:sans-serif;max-width:42em"><b>{self.phase}</b>'
                f'<div style="background:#ddd;border-radius:3px;height:8px;margin:4px 0">'
                f'<div style="background:{color};border-radius:3px;height:8px;'
                f'width:{100 * self.fraction:.1f}%"></div></div>'
                f'<span style="color:#555">{facts}</span></div>')


class Display:
    """Shows each value in place of the previous one: in a notebook by its display, in a terminal on
    one line."""

    def __init__(self, stream=None):
        self._stream = stream
        self._handle = None
        self._display = None
        if stream is None:
            try:
                from IPython import get_ipython
                if get_ipython() is not None:
                    from IPython.display import display
                    self._display = display
            except ImportError:
                pass

    def show(self, value):
        if self._display is not None:
            if self._handle is None:
                self._handle = self._display(value, display_id=True)
            else:
                self._handle.update(value)
        elif self._stream is not None:
            self._stream.write(f'\r\x1b[K{value!r}')
            self._stream.flush()

    def close(self):
        if self._display is None and self._stream is not None:
            self._stream.write('\n')
