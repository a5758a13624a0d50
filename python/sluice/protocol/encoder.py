"""Encodes blocks of gradients for pushing, with error feedback.

Intuition: services/worker/core/gradient_encoder.h, which this follows. What a lossy codec leaves
out of a block, its residual, is added to the block's next gradient before that is encoded. Until
the fate of a step (or update) is known, its encodings are kept: `commit` makes its residuals
permanent, `rollback` restores the residuals of before the step, `reset` drops everything.
"""

import numpy as np

from sluice.protocol import codec as codec_lib
from sluice.protocol import elements
from sluice.protocol import wire


class GradientEncoder:

    def __init__(self, training):
        self._codec = wire.CODEC_RAW if training.bit_exact else training.push_codec
        self._feedback = training.compression.error_feedback
        defaults = codec_lib.Options()
        self._options = codec_lib.Options(
            fraction=training.compression.fraction or defaults.fraction,
            threshold=training.compression.threshold or defaults.threshold)
        self._residuals = {}  # of blocks
        # Of the step in progress.
        self._next_residuals = {}
        self._encoded = {}  # (partial sum, block) -> payload

    def codec_of(self, tensor):
        """The codec of this tensor's gradient; changes of buffers are sent raw."""
        if tensor.kind != wire.PARAMETER or not codec_lib.supports(self._codec, tensor.dtype):
            return wire.CODEC_RAW
        return self._codec

    def by_pieces(self, codec):
        """Whether adjacent blocks may be encoded as one piece by codec.encode."""
        if codec == wire.CODEC_RAW:
            return True
        return codec_lib.is_elementwise(codec) and not self._feedback

    def encode(self, partial_sum, block, dtype, values):
        """The payload of a block of a partial sum's gradient; the same in repeated calls."""
        key = (partial_sum, block)
        payload = self._encoded.get(key)
        if payload is None:
            payload = self._encode(block, dtype, values)
            if self._feedback:
                self._encoded[key] = payload
        return payload

    def _encode(self, block, dtype, values):
        if not self._feedback:
            return self._bytes(dtype, values)
        residual = self._next_residuals.get(block, self._residuals.get(block))
        with np.errstate(over='ignore', invalid='ignore'):
            if residual is not None:
                values = values + residual.astype(elements.STORAGE[dtype])
            payload = self._bytes(dtype, values)
            decoded = np.empty_like(values)
            codec_lib.decode_into(self._codec, dtype, payload, decoded)
            error = (values - decoded).astype('<f4')
        # An infinity that made the job skip a step must not spread to later steps.
        self._next_residuals[block] = np.where(np.isfinite(error), error, np.float32(0))
        return payload

    def _bytes(self, dtype, values):
        return memoryview(codec_lib.encode(self._codec, dtype, values, self._options)).cast('B')

    def commit(self):
        self._residuals.update(self._next_residuals)
        self.rollback()

    def rollback(self):
        self._next_residuals = {}
        self._encoded = {}

    def reset(self):
        self.rollback()
        self._residuals = {}
