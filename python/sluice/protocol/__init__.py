"""The worker's part of the protocol (docs/protocol.md), without threads, sockets, clocks or files.

It is the same state machine as services/worker/core in C++; tests/vectors checks both. Time is
seconds as a float; gradients are flat numpy arrays.
"""
