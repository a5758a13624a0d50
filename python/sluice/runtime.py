"""The threads around WorkerCore: a worker process without its model.

One lock guards the core. The thread that has an event (a stream's, the timer's, or the user's)
passes it to the core and carries out the resulting actions under the lock, in order. Work for the
user's thread is queued, and `next_work` takes it.
"""

import collections
import os
import secrets
import socket
import threading
import time

from sluice import errors
from sluice import memory as memory_lib
from sluice import transport
from sluice.protocol import actions
from sluice.protocol import codec
from sluice.protocol import core as core_lib
from sluice.protocol import elements
from sluice.protocol import wire

_LEAVE_SECONDS = 10.0
# For so long, a DUPLICATE is taken for a predecessor that has not fully ended.
_DUPLICATE_SECONDS = 5.0


class _Copy:
    """A copy of a model's tensors."""

    def __init__(self, arrays):
        self.arrays = arrays
        # For each tensor: its memory, and the bytes per element.
        self.memory = [(memory_lib.Bytes(array), array.itemsize) for array in arrays]


class TensorBuffers:
    """Up to three copies of the model's tensors, as flat arrays."""

    def __init__(self, table, allocate):
        self._table = table
        self._allocate = allocate
        self._buffers = {buffer: self._make() for buffer in
                         (actions.Buffer.CURRENT, actions.Buffer.INCOMING)}

    def _make(self):
        return _Copy([self._allocate(elements.element_count(spec), elements.STORAGE[spec.dtype])
                      for spec in self._table.tensors])

    def _copy(self, buffer):
        copy = self._buffers.get(buffer)
        if copy is None:
            copy = self._buffers[buffer] = self._make()
        return copy

    def get(self, buffer):
        return self._copy(buffer).arrays

    def store(self, block):
        """Raises ValueError, with nothing stored, for an invalid payload."""
        copy = self._copy(block.buffer)
        if block.codec == wire.CODEC_RAW:
            memory, size = copy.memory[block.tensor]
            if len(block.payload) == block.count * size:  # else `decode_into` reports the error
                memory.copy(block.offset * size, block.payload)
                return
        to = copy.arrays[block.tensor][block.offset:block.offset + block.count]
        codec.decode_into(block.codec, self._table.tensors[block.tensor].dtype, block.payload, to)

    def swap(self):
        current, incoming = actions.Buffer.CURRENT, actions.Buffer.INCOMING
        buffers = self._buffers
        buffers[current], buffers[incoming] = buffers[incoming], buffers[current]


class Work:
    """A Compute or EvaluateSamples of one instance of the process."""

    def __init__(self, instance, request):
        self.instance = instance
        self.request = request
        self.cancelled = False


class Runtime:

    def __init__(self, address, job_name, index, tls=None, shared_memory=True):
        self.tls = tls  # None: plain text
        self._shared_memory = shared_memory  # whether to share memory with shards of this machine
        self.address = address
        self.job_name = job_name
        self.index = index

        self.job = None       # JobSpec, once registered
        self._known = False   # the waiting thread was notified
        self.last_error = ''  # why the coordinator's stream broke last

        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)  # there is work, or the worker has ended
        self._timer = threading.Condition(self._lock)
        self._timer_until = 0.0  # when the timer wakes up

        self._instance = 0
        self._core = None
        self._events = collections.deque()
        self._running = False

        self._streams = {}  # shard -> FrameStream
        self._frames = {}   # shard -> frames that the current event sends to it
        self._work = collections.deque()
        self._given = {}    # id -> Work that is not answered yet
        self._busy = True   # the user's thread is not in next_work
        self._model = None  # (table, training samples, evaluation samples, read initial tensor)

        self.buffers = None
        self._ended = None  # actions.Exit
        self._leaving = False
        self._duplicate_since = None

        self._coordinator = transport.CoordinatorStream(
            address, self._on_connected, self._on_message, self._on_broken, tls)
        self._begin_instance()

    def start(self):
        self._coordinator.start()
        threading.Thread(target=self._tick, name='sluice-timer', daemon=True).start()

    # ---- for the user's thread

    def wait_for_job(self, timeout):
        """Raises JobNotFound if there is no answer in time, or the refusal as an exception."""
        deadline = time.monotonic() + timeout
        with self._lock:
            while self.job is None and self._ended is None:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            if self._ended is not None:
                self.raise_end()
            if self.job is not None:
                return self.job
        self.close()
        raise errors.JobNotFound(
            f'no job answers at {self.address} within {timeout:g} s '
            f'({self.last_error or "no response"}). It has ended, has not started (increase '
            'timeout=), or its coordinator has another address. '
            '`sluice status` lists the jobs of this machine.')

    def open_model(self, table, training_samples, evaluation_samples, read_initial, allocate):
        with self._lock:
            self.buffers = TensorBuffers(table, allocate)
            self._model = (table, training_samples, evaluation_samples, read_initial)
        self._event('on_model_ready', table, training_samples, evaluation_samples)

    def next_work(self):
        """The next Work; None when the job has finished or this worker has left.

        While it waits, versions may be adopted, which changes the buffers. Raises the job's
        failure.
        """
        self._set_busy(False)
        try:
            with self._lock:
                while True:
                    if self._ended is not None:
                        if self._ended.reason in (actions.ExitReason.FINISHED,
                                                  actions.ExitReason.LEFT):
                            return None
                        self.raise_end()
                    if self._work:
                        work = self._work.popleft()
                        if not work.cancelled:
                            return work
                        self._answer_cancelled(work)
                        continue
                    self._changed.wait()
        finally:
            self._set_busy(True)

    def give_tensors(self, work, tensors):
        """`tensors`: (index, flat array or None) in any order. Any thread."""
        if tensors:
            self._event('on_tensors', work.request.id, tensors, instance=work.instance)

    def finish_compute(self, work, result):
        self._finish('on_computed', work, result)

    def finish_evaluation(self, work, result):
        self._finish('on_evaluated', work, result)

    def _finish(self, event, work, result):
        with self._lock:
            if work.instance == self._instance:
                self._given.pop(work.request.id, None)
        self._event(event, work.request.id, result, instance=work.instance)

    def fail(self, reason):
        self._event('on_failed', reason)

    def leave(self, reason, grace=_LEAVE_SECONDS):
        """Continues until the other workers have taken over, at most `grace` seconds."""
        self._leaving = True
        self._event('on_leave', reason, grace)

    def close(self):
        """Ends without a message to the job if the core has not ended by itself."""
        with self._lock:
            if self._ended is None:
                self._ended = actions.Exit(actions.ExitReason.LEFT, 'closed')
            self._close_streams()
            self._changed.notify_all()
            self._timer.notify()
        self._coordinator.finish(2)

    @property
    def ended(self):
        return self._ended

    @property
    def core(self):
        return self._core

    def raise_end(self):
        """The core's end as an exception."""
        end = self._ended
        if end.reason in (actions.ExitReason.FINISHED, actions.ExitReason.LEFT):
            raise errors.JobEnded(
                f'the job has ended{": " + end.message if end.message else ""}. Leave the loop '
                'over worker.batches() when it ends; to train more, start a new job.')
        if end.code == wire.Refusal_WIRE_VERSION:
            raise errors.VersionMismatch(
                f'the job at {self.address} uses another version of the protocol: {end.message}. '
                'Install the package from the same release as the `sluice` that runs the job.')
        if end.code == wire.Refusal_WRONG_JOB:
            raise errors.JobNotFound(
                f'{end.message}, not of {self.job_name}. Check the job name or the address '
                f'({self.address}).')
        if end.code == wire.Refusal_MODEL_DIFFERS:
            raise errors.ModelMismatch(
                f'worker {self.index}: {end.message}. Every worker of a job must build the same '
                'model (names, shapes, types) and open the same data; a job that continues from a '
                'checkpoint must have its model.')
        if end.code == wire.Refusal_DUPLICATE:
            raise errors.DuplicateWorker(
                f'worker {self.index} of the job is already running: {end.message}. Give each '
                'process its own index.')
        if 'not finite' in end.message:
            raise errors.NonFiniteGradient(end.message)
        raise errors.JobFailed(end.message)

    # ---- the core and its instances

    def _begin_instance(self):
        """A new incarnation: the first, or after an expulsion (R7)."""
        self._instance += 1
        process = wire.ProcessId(role=wire.WORKER, index=self.index,
                                 incarnation=secrets.randbits(64) or 1)
        self._core = core_lib.WorkerCore(core_lib.Options(
            process=process, job=self.job_name, host=socket.gethostname(), pid=os.getpid()))
        self._work.clear()
        self._given.clear()
        if self._busy:
            self._core.on_adoptable(False, time.monotonic())

    def _event(self, name, *arguments, instance=None):
        """Any thread. An event of an older instance is dropped."""
        with self._lock:
            self._events.append((name, arguments, instance))
            if self._running:
                return  # the thread that is running actions carries them out, in order
            self._running = True
            try:
                while self._events:
                    name, arguments, instance = self._events.popleft()
                    if self._ended is None and instance in (None, self._instance):
                        event = getattr(self._core, name)
                        for action in event(*arguments, time.monotonic()):
                            self._perform(action)
                        self._send_frames()
            finally:
                self._running = False
                self._wake()

    def _wake(self):
        # Only notify if needed: with many small frames, waking threads dominates the cost.
        if self._work or self._ended is not None or not self._known:
            self._known = self.job is not None
            self._changed.notify_all()
        if self._ended is not None or self._core.next_deadline() < self._timer_until:
            self._timer.notify()

    def _set_busy(self, busy):
        with self._lock:
            self._busy = busy
        self._event('on_adoptable', not busy)

    def _tick(self):
        while True:
            with self._lock:
                if self._ended is not None:
                    return
                now = time.monotonic()
                self._timer_until = min(self._core.next_deadline(), now + 1.0)
                if self._timer_until > now:
                    self._timer.wait(self._timer_until - now)
                    continue
            self._event('on_tick')

    # ---- streams

    def _on_connected(self):
        self._event('on_coordinator_connected')

    def _on_message(self, message):
        self._event('on_coordinator_message', message)

    def _on_broken(self, why):
        self.last_error = why
        self._event('on_coordinator_broken')

    def _connect(self, shard, address):
        instance = self._instance
        stream = None

        def is_present():
            return self._streams.get(shard) is stream

        def on_frames(frames):
            with self._lock:
                if is_present():
                    self._core.on_sent(max(each.sent_at for each in self._streams.values()))
                    self._event('on_shard_frames', shard, frames, instance=instance)

        def on_broken(why):
            del why
            with self._lock:
                if is_present():
                    del self._streams[shard]
                    self._event('on_shard_broken', shard, instance=instance)

        stream = transport.FrameStream(address, on_frames, on_broken, self.tls,
                                       self._shared_memory)
        self._streams[shard] = stream
        self._event('on_shard_connected', shard, instance=instance)

    def _close_streams(self):
        for stream in self._streams.values():
            stream.close()
        self._streams = {}

    # ---- actions that follow from events; under the lock

    def _perform(self, action):
        self._PERFORM[type(action)](self, action)

    def _perform_ConnectShard(self, action):
        self._connect(action.shard, action.address)

    def _perform_DisconnectShard(self, action):
        self._frames.pop(action.shard, None)  # frames of this stream
        stream = self._streams.pop(action.shard, None)
        if stream is not None:
            stream.close()

    def _perform_SendFrame(self, action):
        self._frames.setdefault(action.shard, []).append((action.header, action.pieces))

    def _send_frames(self):
        """Sends the frames of one event together."""
        for shard, frames in self._frames.items():
            stream = self._streams.get(shard)
            if stream is not None:
                stream.send(frames)
        self._frames.clear()

    def _perform_SendToCoordinator(self, action):
        self._coordinator.send(action.message)

    def _perform_OpenModel(self, action):
        self.job = action.job
        self._duplicate_since = None
        if self._model is not None:
            table, training, evaluation, _ = self._model
            self._event('on_model_ready', table, training, evaluation, instance=self._instance)

    def _perform_ReadInitialTensor(self, action):
        content = self._model[3](action.tensor)
        self._event('on_initial_tensor', action.init_id, action.tensor, content,
                    instance=self._instance)

    def _perform_StoreBlock(self, action):
        try:
            self.buffers.store(action)
        except ValueError as error:
            self._event('on_failed', f'a received block cannot be stored: {error}',
                        instance=self._instance)

    def _perform_AdoptVersion(self, action):
        del action
        self.buffers.swap()

    def _perform_Compute(self, action):
        work = Work(self._instance, action)
        self._given[action.id] = work
        self._work.append(work)

    _perform_EvaluateSamples = _perform_Compute

    def _perform_CancelCompute(self, action):
        work = self._given.get(action.id)
        if work is not None:
            work.cancelled = True
            if work in self._work:
                self._work.remove(work)
                self._answer_cancelled(work)

    def _answer_cancelled(self, work):
        self._given.pop(work.request.id, None)
        self._event('on_computed', work.request.id, core_lib.ComputeResult(cancelled=True),
                    instance=work.instance)

    def _perform_Exit(self, action):
        self._close_streams()
        if action.reason is actions.ExitReason.EXPELLED and not self._leaving:
            if self._may_come_back(action):
                self._begin_instance()
                self._coordinator.reconnect()
                return
        self._ended = action
        self._work.clear()
        threading.Thread(target=self._coordinator.finish, args=(2,), daemon=True).start()

    def _may_come_back(self, action):
        if action.code != wire.Refusal_DUPLICATE:
            return True
        if self._duplicate_since is None:
            self._duplicate_since = time.monotonic()
        return time.monotonic() - self._duplicate_since < _DUPLICATE_SECONDS

    _PERFORM = {getattr(actions, name[len('_perform_'):]): perform
                for name, perform in list(locals().items()) if name.startswith('_perform_')}
