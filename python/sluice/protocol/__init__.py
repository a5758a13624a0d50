"""The worker's part of the protocol (docs/protocol.md), without threads, sockets, clocks or files.

It is the same machine as services/worker/core in C++, and both are held to the vectors in
tests/vectors. Time is seconds as a float; gradients are flat numpy arrays.
"""
