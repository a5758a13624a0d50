"""Tests of shared memory between two ends, and of releasing it in any order."""

from python.testing import requirements
requirements.need('numpy', 'google.protobuf')

import gc
import mmap
import os
import random
import unittest
from unittest import mock

import numpy as np

from sluice import memory
from sluice import shared_memory
from sluice.protocol import frame
from sluice.protocol import wire
from tools import unittest_main

GRANULE = shared_memory.GRANULE


def both_ends(granules):
    """Returns (client's end, server's end), opened like a shard does."""
    client = shared_memory.SharedMemory.create(granules * GRANULE)
    offer = client.offer()
    size = client.file_bytes(offer.half_bytes)
    with open(f'/proc/{offer.pid}/fd/{offer.file}', 'r+b') as file:
        memory = mmap.mmap(file.fileno(), size)
    client.close_descriptor()
    return client, shared_memory.SharedMemory(memory, offer.half_bytes, client=False)


def open_files():
    return [os.readlink(f'/proc/self/fd/{name}') for name in os.listdir('/proc/self/fd')
            if os.path.islink(f'/proc/self/fd/{name}')]


def in_use():
    """The descriptors and mappings of such memory in this process."""
    gc.collect()
    with open('/proc/self/maps', encoding='utf-8') as file:
        return (sum('sluice-stream' in name for name in open_files()) +
                sum('sluice-stream' in line for line in file))


def place(offset, size):
    return wire.SharedPayload(offset=offset, bytes=size)


@unittest.skipUnless(hasattr(os, 'memfd_create'), 'this system has no memfd')
class Ends(unittest.TestCase):

    def setUp(self):
        self.assertEqual(in_use(), 0)
        self.addCleanup(lambda: self.assertEqual(in_use(), 0))

    def test_one_end_takes_what_the_other_puts(self):
        client, server = both_ends(8)
        there = client.put([b'in several ', memoryview(b'pieces')], 17)
        back = server.put([b'b' * 5000], 5000)
        self.assertEqual(bytes(server.take(there)), b'in several pieces')
        self.assertEqual(bytes(client.take(back)), b'b' * 5000)

    def test_file_has_the_layout_of_the_protocol(self):
        client = shared_memory.SharedMemory.create(3 * GRANULE)
        offer = client.offer()
        client.put([b'x' * 5000], 5000)
        client.put([b'y'], 1)
        with open(f'/proc/{offer.pid}/fd/{offer.file}', 'rb') as file:
            content = file.read()
        client.close_descriptor()
        self.assertEqual(len(content), 3 * GRANULE + 2 * 3 * GRANULE)
        self.assertEqual(int.from_bytes(content[:8], 'little'), offer.token)
        self.assertEqual(np.frombuffer(content, '<u4', 3, GRANULE).tolist(), [1, 0, 1])
        self.assertEqual(content[3 * GRANULE:3 * GRANULE + 5000], b'x' * 5000)
        self.assertEqual(content[5 * GRANULE:5 * GRANULE + 2], b'y\0')

    def test_last_reference_frees_room(self):
        client, server = both_ends(4)
        taken = server.take(client.put([b'a' * (3 * GRANULE)], 3 * GRANULE))
        array = np.frombuffer(taken[GRANULE:GRANULE + 1000], np.uint8)
        del taken
        self.assertEqual(client.used_granules(), 3)
        self.assertIsNone(client.put([b'b' * (2 * GRANULE)], 2 * GRANULE))
        self.assertEqual(array.tobytes(), b'a' * 1000)
        del array
        self.assertEqual(client.used_granules(), 0)
        self.assertIsNotNone(client.put([b'b' * (4 * GRANULE)], 4 * GRANULE))

    def test_overwrites_nothing_without_room(self):
        client, server = both_ends(4)
        held = [server.take(client.put([letter * GRANULE], GRANULE))
                for letter in (b'a', b'b', b'c', b'd')]
        self.assertIsNone(client.put([b'e'], 1))
        held[1] = None  # room is freed in order, and the first piece is still held
        self.assertIsNone(client.put([b'e'], 1))
        held[0] = None
        self.assertIsNotNone(client.put([b'e' * (2 * GRANULE)], 2 * GRANULE))
        self.assertIsNone(client.put([b'f'], 1))
        self.assertEqual([bytes(one) for one in held[2:]], [b'c' * GRANULE, b'd' * GRANULE])

    def test_wraps_at_the_end(self):
        client, server = both_ends(7)
        chance = random.Random(1)
        held = []
        refused = 0
        for number in range(2000):
            size = chance.randint(1, 3 * GRANULE)
            content = bytes([number % 251]) * size
            where = client.put([content[:size // 2], content[size // 2:]], size)
            if where is None:
                refused += 1
            else:
                held.append((server.take(where), content))
            self.assertTrue(held, 'there is room if nothing is held')
            if where is None or chance.random() < 0.5:
                taken, wanted = held.pop(0)
                self.assertEqual(bytes(taken), wanted)
                del taken
        self.assertGreater(refused, 50)
        self.assertLess(refused, 1000)
        held.clear()
        self.assertEqual(client.used_granules(), 0)

    def test_rejects_place_outside_of_the_memory(self):
        client, _ = both_ends(4)
        for offset, size in ((0, 4 * GRANULE + 1), (4 * GRANULE, 1), (1 << 62, 1), (GRANULE + 1, 1),
                             (GRANULE, 1 << 63), (0, 0), (3 * GRANULE, GRANULE + 1)):
            with self.assertRaisesRegex(shared_memory.NotAPlace,
                                        f'{size} bytes at {offset} of {4 * GRANULE} bytes'):
                client.take(place(offset, size))
        self.assertEqual(len(client.take(place(3 * GRANULE, GRANULE))), GRANULE)

    def test_taken_payload_outlives_both_ends(self):
        client, server = both_ends(2)
        taken = client.take(server.put([b's' * 5000], 5000))
        del client, server
        gc.collect()
        self.assertEqual(bytes(taken), b's' * 5000)
        del taken

    def test_forked_process_frees_nothing(self):
        client, server = both_ends(4)
        where = server.put([b'a' * 5000], 5000)
        taken = client.take(where)
        child = os.fork()
        if child == 0:
            del taken  # the last reference in this process
            os._exit(0)
        os.waitpid(child, 0)
        self.assertEqual(server.used_granules(), 2)
        del taken
        self.assertEqual(server.used_granules(), 0)

    def test_file_cannot_be_resized(self):
        client = shared_memory.SharedMemory.create(GRANULE)
        path = f'/proc/self/fd/{client.offer().file}'
        for size in (0, 1 << 20):
            with self.assertRaises(PermissionError):
                os.truncate(path, size)
        client.close_descriptor()
        self.assertIsNone(client.offer())

    def test_no_memory_and_no_file_without_system_support(self):
        for function in ('memfd_create', 'ftruncate'):
            with mock.patch.object(os, function, side_effect=OSError(28, 'no space')):
                self.assertIsNone(shared_memory.SharedMemory.create())
        with mock.patch.object(mmap, 'mmap', side_effect=OSError(12, 'no memory')):
            self.assertIsNone(shared_memory.SharedMemory.create())
        self.assertEqual(in_use(), 0)

    def test_rejects_unreasonable_sizes(self):
        for size in (0, -1, 2 << 30):
            with self.assertRaisesRegex(ValueError, 'shared memory of'):
                shared_memory.SharedMemory.create(size)


@unittest.skipUnless(hasattr(os, 'memfd_create'), 'this system has no memfd')
class Sharing(unittest.TestCase):

    def test_offers_memory_only_to_this_machine(self):
        for address, offered in (('127.0.0.1:80', True), ('localhost:80', True), ('[::1]:80', True),
                                 ('ipv4:127.0.0.1:80', True), ('10.0.0.1:80', False),
                                 ('job-ps-0.job.ns.svc:80', False), ('localhost.evil:80', False)):
            hello = wire.Hello()
            sharing = shared_memory.PayloadSharing(address)
            sharing.greet(hello)
            self.assertEqual(hello.HasField('shared_memory'), offered, address)
            sharing.close()
        self.assertEqual(in_use(), 0)

    def test_offers_nothing_if_disabled(self):
        hello = wire.Hello()
        shared_memory.PayloadSharing('127.0.0.1:80', wanted=False).greet(hello)
        self.assertFalse(hello.HasField('shared_memory'))

    def test_declined_offer_closes_the_file_and_uses_the_socket(self):
        sharing = shared_memory.PayloadSharing('127.0.0.1:80')
        self.assertGreater(in_use(), 0)
        sharing.on_hello_reply(wire.HelloReply())
        self.assertIsNone(sharing.put([bytes(10000)], 10000))
        sharing.close()
        self.assertEqual(in_use(), 0)

    def test_small_payloads_are_sent_in_their_frames(self):
        sharing = shared_memory.PayloadSharing('127.0.0.1:80')
        sharing.on_hello_reply(wire.HelloReply(shared_memory_taken=True))
        self.assertIsNone(sharing.put([bytes(4096)], 4096))
        self.assertEqual(sharing.put([bytes(4097)], 4097), place(0, 4097))
        sharing.close()
        self.assertIsNone(sharing.put([bytes(5000)], 5000))
        with self.assertRaisesRegex(shared_memory.NotAPlace, 'none was agreed on'):
            sharing.take(place(0, 5000))
        self.assertEqual(in_use(), 0)


class Frames(unittest.TestCase):

    def frame_of(self, codec):
        header = wire.Header(data=wire.Data(version=1))
        header.data.blocks.add(payload_bytes=5000, codec=codec)
        return b''.join(frame.shared_parts(header, place(4096, 5000))[0])

    def test_reads_arrays_in_place_and_copies_other_payloads(self):
        for codec, lies_there in ((wire.CODEC_RAW, True), (wire.CODEC_BFLOAT16, True),
                                  (wire.CODEC_TOP_K, False), (wire.CODEC_INT8, False)):
            memory = bytearray(5000)
            _, payload = frame.decode(self.frame_of(codec), lambda _: memoryview(memory))
            memory[0] = 1  # as the peer may do
            self.assertEqual(payload[0] == 1, lies_there, codec)

    def test_rejects_payload_that_does_not_match_its_blocks(self):
        with self.assertRaisesRegex(frame.MalformedFrame, 'a payload of 4999 bytes, and blocks'):
            frame.decode(self.frame_of(wire.CODEC_RAW), lambda _: memoryview(bytes(4999)))

    def test_error_names_invalid_place(self):
        def take(where):
            raise shared_memory.NotAPlace(f'a payload at {where.offset}')
        with self.assertRaisesRegex(frame.MalformedFrame, 'malformed frame: a payload at 4096'):
            frame.decode(self.frame_of(wire.CODEC_RAW), take)

    def test_decoder_only_raises_its_own_error(self):
        chance = random.Random(2)
        memory = shared_memory.SharedMemory(
            bytearray(shared_memory.SharedMemory.file_bytes(2 * GRANULE)), 2 * GRANULE, client=True)
        good = self.frame_of(wire.CODEC_RAW)
        refused = 0
        for _ in range(3000):
            bad = bytearray(good)
            for _ in range(chance.randint(1, 3)):
                bad[chance.randrange(len(bad))] = chance.randrange(256)
            try:
                frame.decode_all(bytes(bad[:chance.randint(1, len(bad))]), memory.take)
            except frame.MalformedFrame:
                refused += 1
        self.assertGreater(refused, 1000)


class Pool(unittest.TestCase):

    def test_memory_is_reused_only_after_the_last_reference(self):
        pool = memory.Pool()
        first = pool.take(1000, np.dtype('<f4'))
        address = first.ctypes.data
        part = memoryview(first)[10:20]
        del first
        second = pool.take(1000, np.dtype('<f4'))
        self.assertNotEqual(second.ctypes.data, address)
        del part
        self.assertEqual(pool.take(1000, np.dtype('<f4')).ctypes.data, address)
        self.assertEqual(pool.take(1000, np.dtype('<f8')).size, 1000)
        self.assertEqual(pool.take(0, np.dtype('<f8')).size, 0)


if __name__ == '__main__':
    unittest_main.main()
