"""The actions that a WorkerCore asks its shell to do, in order.

services/worker/core/worker_actions.h describes each in more detail.
"""

import dataclasses
import enum


class Buffer(enum.Enum):
    __hash__ = object.__hash__  # Enum's own hash is computed in Python, from the name

    CURRENT = 'current'
    INCOMING = 'incoming'
    EVALUATION = 'evaluation'


@dataclasses.dataclass
class ConnectShard:
    """`on_shard_connected` or `on_shard_broken` follows."""
    shard: int  # incarnation
    address: str


@dataclasses.dataclass
class DisconnectShard:
    """Nothing of the stream is reported afterwards."""
    shard: int
    reason: str


@dataclasses.dataclass
class SendFrame:
    """`pieces` are bytes-like and refer to gradients' memory; dropped silently if the stream
    broke."""
    shard: int
    header: object
    pieces: list


@dataclasses.dataclass
class SendToCoordinator:
    message: object


@dataclasses.dataclass
class OpenModel:
    """`on_model_ready` or `on_failed` follows. At most once in an instance."""
    job: object


@dataclasses.dataclass
class ReadInitialTensor:
    """`on_initial_tensor` follows, with a flat array."""
    init_id: object
    tensor: int


@dataclasses.dataclass
class StoreBlock:
    """Decode into elements [offset, offset + count) of a tensor of a buffer, before the next
    action.

    One block, or several that are adjacent both in the tensor and in a frame.
    """
    buffer: Buffer
    tensor: int
    offset: int
    count: int
    codec: int
    payload: memoryview


@dataclasses.dataclass
class AdoptVersion:
    """Make the incoming buffer current, before the next action. Only given while no computation
    runs."""
    version: int


@dataclasses.dataclass
class Compute:
    """Gradients of positions [begin, end) over the current buffer, as one batch.

    `on_tensor` for each tensor, and one `on_computed` at the end, in any case.
    """
    id: int
    step: int
    first_microbatch: int
    microbatch_size: int
    begin: int
    end: int


@dataclasses.dataclass
class CancelCompute:
    """The result is no longer needed; `on_computed` must follow in any case."""
    id: int


@dataclasses.dataclass
class EvaluateSamples:
    """Samples [begin, end) of the held-out data; `on_evaluated` follows."""
    id: int
    buffer: Buffer
    begin: int
    end: int


class ExitReason(enum.Enum):
    FINISHED = 'finished'  # the job succeeded
    LEFT = 'left'          # it was asked to leave
    EXPELLED = 'expelled'  # come back as a new incarnation
    REFUSED = 'refused'    # coming back would not help
    FAILED = 'failed'      # the job, or this worker's model or data, failed


@dataclasses.dataclass
class Exit:
    """The last action. `code` is the Refusal's, if there was one."""
    reason: ExitReason
    message: str
    code: int = 0
