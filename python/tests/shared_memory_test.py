"""Memory that two ends share, and what of it must come back, in whatever order."""

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
    """(the client's, the server's), as a shard opens it."""
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
    """Descriptors and mappings of such memory that this process has."""
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

    def test_what_one_end_puts_the_other_takes(self):
        client, server = both_ends(8)
        there = client.put([b'in several ', memoryview(b'pieces')], 17)
        back = server.put([b'b' * 5000], 5000)
        self.assertEqual(bytes(server.take(there)), b'in several pieces')
        self.assertEqual(bytes(client.take(back)), b'b' * 5000)

    def test_the_file_has_the_layout_of_the_protocol(self):
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

    def test_room_comes_back_with_the_last_reference(self):
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

    def test_without_room_nothing_is_overwritten(self):
        client, server = both_ends(4)
        held = [server.take(client.put([letter * GRANULE], GRANULE))
                for letter in (b'a', b'b', b'c', b'd')]
        self.assertIsNone(client.put([b'e'], 1))
        held[1] = None  # room comes back in order: the first is still held
        self.assertIsNone(client.put([b'e'], 1))
        held[0] = None
        self.assertIsNotNone(client.put([b'e' * (2 * GRANULE)], 2 * GRANULE))
        self.assertIsNone(client.put([b'f'], 1))
        self.assertEqual([bytes(one) for one in held[2:]], [b'c' * GRANULE, b'd' * GRANULE])

    def test_goes_round_the_end(self):
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
            self.assertTrue(held, 'without anything held there is room')
            if where is None or chance.random() < 0.5:
                taken, wanted = held.pop(0)
                self.assertEqual(bytes(taken), wanted)
                del taken
        self.assertGreater(refused, 50)
        self.assertLess(refused, 1000)
        held.clear()
        self.assertEqual(client.used_granules(), 0)

    def test_a_place_outside_is_refused_by_name(self):
        client, _ = both_ends(4)
        for offset, size in ((0, 4 * GRANULE + 1), (4 * GRANULE, 1), (1 << 62, 1), (GRANULE + 1, 1),
                             (GRANULE, 1 << 63), (0, 0), (3 * GRANULE, GRANULE + 1)):
            with self.assertRaisesRegex(shared_memory.NotAPlace,
                                        f'{size} bytes at {offset} of {4 * GRANULE} bytes'):
                client.take(place(offset, size))
        self.assertEqual(len(client.take(place(3 * GRANULE, GRANULE))), GRANULE)

    def test_what_was_taken_outlives_both_ends(self):
        client, server = both_ends(2)
        taken = client.take(server.put([b's' * 5000], 5000))
        del client, server
        gc.collect()
        self.assertEqual(bytes(taken), b's' * 5000)
        del taken

    def test_a_fork_gives_nothing_back(self):
        client, server = both_ends(4)
        where = server.put([b'a' * 5000], 5000)
        taken = client.take(where)
        child = os.fork()
        if child == 0:
            del taken  # of this process it is the last reference
            os._exit(0)
        os.waitpid(child, 0)
        self.assertEqual(server.used_granules(), 2)
        del taken
        self.assertEqual(server.used_granules(), 0)

    def test_the_file_can_be_made_neither_shorter_nor_longer(self):
        client = shared_memory.SharedMemory.create(GRANULE)
        path = f'/proc/self/fd/{client.offer().file}'
        for size in (0, 1 << 20):
            with self.assertRaises(PermissionError):
                os.truncate(path, size)
        client.close_descriptor()
        self.assertIsNone(client.offer())

    def test_where_the_system_gives_no_memory_there_is_none_and_no_file(self):
        for function in ('memfd_create', 'ftruncate'):
            with mock.patch.object(os, function, side_effect=OSError(28, 'no space')):
                self.assertIsNone(shared_memory.SharedMemory.create())
        with mock.patch.object(mmap, 'mmap', side_effect=OSError(12, 'no memory')):
            self.assertIsNone(shared_memory.SharedMemory.create())
        self.assertEqual(in_use(), 0)

    def test_sizes_beyond_reason_are_refused(self):
        for size in (0, -1, 2 << 30):
            with self.assertRaisesRegex(ValueError, 'shared memory of'):
                shared_memory.SharedMemory.create(size)


@unittest.skipUnless(hasattr(os, 'memfd_create'), 'this system has no memfd')
class Sharing(unittest.TestCase):

    def test_memory_is_offered_to_this_machine_only(self):
        for address, offered in (('127.0.0.1:80', True), ('localhost:80', True), ('[::1]:80', True),
                                 ('ipv4:127.0.0.1:80', True), ('10.0.0.1:80', False),
                                 ('job-ps-0.job.ns.svc:80', False), ('localhost.evil:80', False)):
            hello = wire.Hello()
            sharing = shared_memory.PayloadSharing(address)
            sharing.greet(hello)
            self.assertEqual(hello.HasField('shared_memory'), offered, address)
            sharing.close()
        self.assertEqual(in_use(), 0)

    def test_nothing_is_offered_that_is_not_wanted(self):
        hello = wire.Hello()
        shared_memory.PayloadSharing('127.0.0.1:80', wanted=False).greet(hello)
        self.assertFalse(hello.HasField('shared_memory'))

    def test_an_offer_that_is_not_taken_leaves_no_file_and_payloads_to_the_socket(self):
        sharing = shared_memory.PayloadSharing('127.0.0.1:80')
        self.assertGreater(in_use(), 0)
        sharing.on_hello_reply(wire.HelloReply())
        self.assertIsNone(sharing.put([bytes(10000)], 10000))
        sharing.close()
        self.assertEqual(in_use(), 0)

    def test_small_payloads_travel_with_their_frames(self):
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

    def test_arrays_of_numbers_are_read_where_they_lie_and_all_else_is_copied_first(self):
        for codec, lies_there in ((wire.CODEC_RAW, True), (wire.CODEC_BFLOAT16, True),
                                  (wire.CODEC_TOP_K, False), (wire.CODEC_INT8, False)):
            memory = bytearray(5000)
            _, payload = frame.decode(self.frame_of(codec), lambda _: memoryview(memory))
            memory[0] = 1  # the peer may
            self.assertEqual(payload[0] == 1, lies_there, codec)

    def test_a_payload_of_another_size_than_the_blocks_is_refused(self):
        with self.assertRaisesRegex(frame.MalformedFrame, 'a payload of 4999 bytes, and blocks'):
            frame.decode(self.frame_of(wire.CODEC_RAW), lambda _: memoryview(bytes(4999)))

    def test_a_place_that_is_none_is_named(self):
        def take(where):
            raise shared_memory.NotAPlace(f'a payload at {where.offset}')
        with self.assertRaisesRegex(frame.MalformedFrame, 'malformed frame: a payload at 4096'):
            frame.decode(self.frame_of(wire.CODEC_RAW), take)

    def test_no_bytes_make_the_decoder_fail_otherwise_than_by_its_error(self):
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

    def test_memory_comes_back_with_the_last_reference_and_not_before(self):
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
