"""Complete jobs with workers of Python and numpy, some of which are killed."""

from python.testing import requirements
requirements.need('numpy', 'grpc', 'google.protobuf')

import io
import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

import numpy as np

import sluice
from sluice import data as data_lib
from sluice import numpy_model
from sluice import library
from sluice import wire
from sluice import worker as worker_lib
from tests.python import job_processes
from tests.python import quadratic_worker
from tests.python import sequence
from tests.python import table_worker
from tests.python import weighted_worker
from tools import unittest_main

_WORKER = quadratic_worker.__file__


def directory(test):
    return tempfile.mkdtemp(prefix=f'{test.id().rpartition(".")[2][:20]}-',
                            dir=os.environ.get('TEST_TMPDIR'))


def state_hashes(checkpoint):
    """The state hash of each partition: equal lists mean that all state is equal to the bit."""
    manifest = json.loads((checkpoint / 'manifest.json').read_text())
    return {int(file.get('partition', 0)): file.get('state_hash', '0')
            for file in manifest['files']}


class Environment(unittest.TestCase):

    def test_cublas_is_deterministic_in_a_bit_exact_job_and_keeps_a_setting_of_the_user(self):
        for bit_exact, before, after in ((False, None, None), (True, None, ':4096:8'),
                                         (True, ':16:8', ':16:8')):
            spec = wire.JobSpec(training=wire.TrainingSpec(bit_exact=bit_exact, kernels='NATIVE'))
            handle = mock.Mock(job=lambda: ('default/test/test', spec))
            with mock.patch.dict(os.environ):
                os.environ.pop('CUBLAS_WORKSPACE_CONFIG', None)
                if before is not None:
                    os.environ['CUBLAS_WORKSPACE_CONFIG'] = before
                worker_lib.Job(handle, 'localhost:1', 0)
                self.assertEqual(os.environ.get('CUBLAS_WORKSPACE_CONFIG'), after)


class NumpyWorkers(unittest.TestCase):

    def train(self, mode='Synchronous', workers=1, shards=1, steps=120, disturb=None, **training):
        """The newest checkpoint of a job that was slow until `disturb` returned."""
        job = job_processes.base_job(
            training={'mode': mode, 'steps': steps, **training},
            parameterServer={'replicas': shards}, worker={'replicas': workers},
            optimizer={'name': 'SGD', 'learningRate': 0.05},
            data={'evaluation': {'intervalSteps': steps // 2}})
        with job_processes.JobProcesses(job, directory(self)) as processes:
            processes.start()
            slow = processes.directory / 'slow'
            if disturb is not None:
                slow.touch()
            for index in range(workers):
                processes.start_python_worker(index, _WORKER, '0.2', str(slow))
            if disturb is not None:
                disturb(processes)
                slow.unlink()
            for index in range(workers):
                code = processes.wait_for_exit(f'worker-{index}', 120)
                self.assertEqual(code, 0, processes.log(f'worker-{index}'))
            self.assertEqual(processes.wait_for_exit('coordinator'), 0)
            return processes.newest_checkpoint()

    def kill_the_second_worker(self, processes):
        processes.wait_for_members(2)
        for _ in range(2):
            processes.wait_for_step(processes.progress().step + 3)
            killed = processes.incarnations()[1]
            processes.kill('worker-1')
            processes.start_python_worker(1, _WORKER, '0.2', str(processes.directory / 'slow'))
            processes.wait_until(lambda: processes.incarnations().get(1, killed) != killed, 60,
                                 'the killed worker is replaced')

    def test_the_model_learns(self):
        checkpoint = self.train(workers=2, shards=2)
        manifest = json.loads((checkpoint / 'manifest.json').read_text())
        loss, _ = quadratic_worker.loss_fn(sluice.load(checkpoint), quadratic_worker.make_data(1000, 5))
        self.assertLess(loss, 1e-2)
        self.assertTrue(manifest['has_metric'])  # evaluated during training
        self.assertEqual(int(manifest['samples']), 1000 * (120 // 16) + (120 % 16) * 64)

    def test_bit_exact_is_the_same_with_two_workers_one_of_which_is_killed_twice(self):
        alone = self.train(determinism='BitExact')
        disturbed = self.train(determinism='BitExact', workers=2, shards=2,
                               disturb=self.kill_the_second_worker)
        self.assertEqual(state_hashes(alone), state_hashes(disturbed))

    def restart_a_shard_in_order(self, processes):
        processes.wait_for_members(2)
        processes.wait_for_step(processes.progress().step + 5)
        processes.signal('ps-0', signal.SIGTERM)
        self.assertEqual(processes.wait_for_exit('ps-0'), 0, processes.log('ps-0'))
        self.assertGreater(processes.progress().checkpoint.last.step, 0)
        processes.start_shard(0)
        processes.wait_until(lambda: processes.progress().attempt == 2, 60,
                             'the job continues with the new shard')

    def drain_a_shard(self, processes):
        processes.wait_for_members(2)
        processes.wait_for_step(processes.progress().step + 5)
        processes.signal('ps-0', signal.SIGTERM)
        self.assertEqual(processes.wait_for_exit('ps-0'), 0, processes.log('ps-0'))
        processes.start_shard(0)
        processes.wait_until(lambda: len(processes.progress().view.shards) == 2, 60, 'the new shard is in the view')
        self.assertEqual(processes.progress().attempt, 1)

    def test_a_leaving_shard_is_saved_first_and_workers_continue_with_another(self):
        alone = self.train(determinism='BitExact')
        # The only shard, and one whose partitions move to the other.
        for shards, disturb in ((1, self.restart_a_shard_in_order), (2, self.drain_a_shard)):
            with self.subTest(shards=shards):
                disturbed = self.train(determinism='BitExact', workers=2, shards=shards, disturb=disturb)
                self.assertEqual(state_hashes(alone), state_hashes(disturbed))

    def test_a_frozen_and_expelled_worker_returns_as_a_new_incarnation(self):
        job = job_processes.base_job(
            training={'steps': 100000}, worker={'replicas': 2},
            timeouts={'heartbeatSeconds': 0.1, 'suspectSeconds': 0.5, 'heartbeatTimeoutSeconds': 1, 'pauseSeconds': 2})
        with job_processes.JobProcesses(job, directory(self)) as processes:
            processes.start()
            for index in range(2):
                processes.start_python_worker(index, _WORKER, '0.01')
            processes.wait_for_members(2)
            first = processes.incarnations()
            processes.signal('worker-1', signal.SIGSTOP)
            processes.wait_for_members(1)
            processes.signal('worker-1', signal.SIGCONT)
            processes.wait_for_members(2)
            second = processes.incarnations()
            self.assertEqual(first[0], second[0])
            self.assertNotEqual(first[1], second[1])

    def test_sigterm_hands_over_the_work_and_exits_with_success(self):
        job = job_processes.base_job(training={'steps': 100000}, worker={'replicas': 2})
        with job_processes.JobProcesses(job, directory(self)) as processes:
            processes.start()
            for index in range(2):
                processes.start_python_worker(index, _WORKER, '0.01')
            processes.wait_for_members(2)
            processes.signal('worker-1', signal.SIGTERM)
            self.assertEqual(processes.wait_for_exit('worker-1'), 0,
                             processes.log('worker-1'))
            processes.wait_for_members(1)
            step = processes.progress().step
            processes.wait_for_step(step + 10)

    def test_aggregation_sum_adds_the_means_of_microbatches(self):
        mean = self.train(steps=3)
        total = self.train(steps=3, aggregation='Sum')
        # The gradient of the first step is 8 times as large; so is the change.
        self.assertNotEqual(state_hashes(mean), state_hashes(total))

    def test_asynchronous_workers_train_every_sample_once_despite_a_kill(self):
        for mode in ('Asynchronous', 'BoundedStaleness'):
            checkpoint = self.train(mode, workers=2, shards=2, steps=0, epochs=6,
                                    globalBatchSize=20, boundedStaleness={'maxStaleness': 3},
                                    disturb=self.kill_the_second_worker)
            manifest = json.loads((checkpoint / 'manifest.json').read_text())
            applied = manifest['ledger']['applied']
            self.assertEqual([(r.get('begin', '0'), r['end']) for r in applied], [('0', '6000')])

    def test_a_nan_fails_the_job_and_names_the_tensor_and_a_remedy(self):
        job = job_processes.base_job(training={'steps': 10})
        with job_processes.JobProcesses(job, directory(self)) as processes:
            processes.start()
            joined = sluice.join(processes.address, index=0)
            self.assertEqual(joined.name, processes.name)
            data = sluice.ArrayDataset(np.ones((100, 1)))
            with self.assertRaisesRegex(sluice.NonFiniteGradient,
                                        'w.*not finite.*nonFinite: Skip'):
                with sluice.Worker(joined, {'w': np.zeros(3)}) as worker:
                    for batch in worker.batches(data):
                        worker.step(batch, gradients={'w': np.full(3, np.nan)}, loss=1.0)


class Rows(unittest.TestCase):

    def train(self, *arguments, workers=2, disturb=False):
        job = job_processes.base_job(
            training={'steps': 60, 'determinism': 'BitExact'}, worker={'replicas': workers},
            parameterServer={'replicas': 2}, optimizer={'name': 'SGD', 'learningRate': 0.05},
            debug={'stepDelaySeconds': 0.2 if disturb else 0})
        with job_processes.JobProcesses(job, directory(self)) as processes:
            processes.start()
            for index in range(workers):
                processes.start_python_worker(index, table_worker.__file__, *arguments)
            if disturb:
                processes.wait_for_members(2)
                processes.kill('worker-1')
                processes.start_python_worker(1, table_worker.__file__, *arguments)
                processes.wait_for_members(2)
            for index in range(workers):
                self.assertEqual(processes.wait_for_exit(f'worker-{index}', 100), 0,
                                 processes.log(f'worker-{index}'))
            self.assertEqual(processes.wait_for_exit('coordinator'), 0)
            said = re.search(r'asked (\d+) times', processes.log('worker-0'))
            return state_hashes(processes.newest_checkpoint()), int(said[1])

    def test_rows_give_the_same_bits_as_whole_tables_despite_a_kill(self):
        whole, never = self.train(workers=1)
        rows, asked = self.train('rows', disturb=True)
        self.assertEqual(whole, rows)
        self.assertEqual(never, 0)
        self.assertGreater(asked, 10)


class Weights(unittest.TestCase):
    """A loss whose mean is not over samples gives the same result for any number of workers."""

    def train(self, kind, workers, learning_rate=0.1, **training):
        job = job_processes.base_job(
            model={'type': 'Custom'}, worker={'replicas': workers}, parameterServer={'replicas': 2},
            data={'evaluation': {'intervalSteps': 15}}, optimizer={'learningRate': learning_rate},
            training={'steps': 30, 'globalBatchSize': 40, 'microbatchSize': 4, **training})
        with job_processes.JobProcesses(job, directory(self)) as processes:
            processes.start()
            for index in range(workers):
                processes.start_python_worker(index, weighted_worker.__file__, kind,
                                              SLUICE_ADVERTISED_HOST='127.0.0.1')
            for index in range(workers):
                self.assertEqual(processes.wait_for_exit(f'worker-{index}', 100), 0,
                                 processes.log(f'worker-{index}'))
            self.assertEqual(processes.wait_for_exit('coordinator'), 0)
            checkpoint = processes.newest_checkpoint()
            self.evaluated = json.loads((checkpoint / 'manifest.json').read_text()).get('metric')
            self.trained = processes.outcome()['loss']
            return sluice.load(processes.checkpoints), state_hashes(checkpoint)

    def test_every_number_of_workers_trains_as_one_loop(self):
        x, y, weight = weighted_worker.make_data()
        order = sequence.SampleOrder(len(y), 1)
        plan = sequence.StepSchedule(len(y), 40, 4)
        w = np.zeros(weighted_worker.WIDTH)
        losses = []
        for step in range(30):
            rows = order.indices_of(*plan.positions_of_step(step))
            w -= 0.1 * weighted_worker.loss_fn({'w': w}, (x[rows], y[rows], weight[rows]))[1]['w']
            if step in (14, 29):  # evaluated; the last checkpoint has one of the two
                losses.append(weighted_worker.loss_fn({'w': w}, (x, y, weight))[0])
        for workers, training in ((1, {}), (3, {}), (2, {'dense': {'aggregation': 'AllReduce'}})):
            with self.subTest(workers=workers, **training):
                found, _ = self.train('numpy', workers, **training)
                np.testing.assert_allclose(found['w'], w, rtol=1e-9)
                self.assertTrue(np.isclose(self.evaluated, losses, rtol=1e-9, atol=0).any(),
                                (self.evaluated, losses))

    def test_bit_exact_is_the_same_for_every_number_of_workers(self):
        self.assertEqual(self.train('numpy', 1, determinism='BitExact')[1],
                         self.train('numpy', 3, determinism='BitExact')[1])

    def test_training_loss_is_weighed_for_every_number_of_workers(self):
        # All samples in each step, and nearly constant parameters: each step has this loss. Weighed by
        # samples, the microbatches have 3.8 times as much. Reports of a worker's last steps may be missing.
        data = weighted_worker.make_data()
        expected = weighted_worker.loss_fn({'w': np.zeros(weighted_worker.WIDTH)}, data)[0]
        for workers in (1, 2, 3):
            with self.subTest(workers=workers):
                self.train('numpy', workers, learning_rate=1e-12, determinism='BitExact', globalBatchSize=len(data[1]))
                self.assertAlmostEqual(self.trained / expected, 1, delta=0.4)


class AllReduce(unittest.TestCase):

    def train(self, aggregation):
        job = job_processes.base_job(
            training={'steps': 100, 'dense': {'aggregation': aggregation}},
            worker={'replicas': 2}, parameterServer={'replicas': 2},
            optimizer={'name': 'SGD', 'learningRate': 0.05})
        with job_processes.JobProcesses(job, directory(self)) as processes:
            processes.start()
            for index in range(2):
                processes.start_python_worker(index, _WORKER, SLUICE_ADVERTISED_HOST='127.0.0.1')
            for index in range(2):
                self.assertEqual(processes.wait_for_exit(f'worker-{index}', 100), 0,
                                 processes.log(f'worker-{index}'))
            return sluice.load(processes.checkpoints)

    def test_workers_sum_gradients_among_themselves(self):
        one, other = (self.train(name) for name in ('ParameterServer', 'AllReduce'))
        for name, value in one.items():
            np.testing.assert_allclose(other[name], value, rtol=1e-9)


class Gradients(unittest.TestCase):

    def setUp(self):
        self.model = numpy_model.NumpyModel(
            {'a': np.zeros((2, 2), np.float32), 'b': np.zeros(3)}, None)
        self.given = {'a': np.ones((2, 2)), 'b': np.arange(3.0)}

    def test_gradients_are_scaled_flattened_and_copied(self):
        self.model.run(None, 2.0, gradients=self.given)
        self.given['b'][:] = 77
        (a, first), (b, second) = self.model.end(1)
        self.assertEqual((a, first.dtype, first.tolist()), (0, np.float32, [2, 2, 2, 2]))
        self.assertEqual((b, second.dtype, second.tolist()), (1, np.float64, [0, 2, 4]))
        self.assertEqual(self.model.end(1), [(0, None), (1, None)])

    def test_gradients_of_several_batches_are_added(self):
        for _ in range(3):
            self.model.run(None, 2.0, gradients=self.given)
        self.assertEqual(self.model.end(1)[1][1].tolist(), [0, 6, 12])

    def test_gradients_of_the_last_batch_are_delivered_one_by_one_and_missing_ones_at_the_end(self):
        delivered = []
        self.model.run(None, 1.0, gradients=self.given)
        self.model.run(None, 1.0, gradients={'b': np.ones(3)},
                       deliver=lambda *each: delivered.append(each))
        self.assertEqual([(place, g.tolist()) for place, g in delivered], [(1, [1, 2, 3])])
        self.assertEqual([(place, g.tolist()) for place, g in self.model.end(1)],
                         [(0, [1, 1, 1, 1])])

    def test_memory_that_the_library_has_released_is_reused(self):
        addresses = set()
        for _ in range(5):
            self.model.run(None, 2.0, gradients=self.given)
            given = self.model.end(1)[1][1]
            addresses.add(given.ctypes.data)
            self.model.recycle(given)
        self.model.recycle(np.zeros(3))  # of the program
        self.assertEqual(len(addresses), 1)

    def test_a_read_only_array_is_not_copied(self):
        writable = np.ones(3)
        view = writable.view()
        frozen = np.ones(3)
        for array in (view, frozen):
            array.flags.writeable = False
        for array, same in ((writable, False), (view, False), (frozen, True)):
            self.model.run(None, 1.0, gradients={'b': array})
            self.assertEqual(np.shares_memory(self.model.end(1)[1][1], array), same)

    def test_gradients_of_rows_are_scaled_and_added_to_whole_ones(self):
        rows = sluice.RowGradient(np.array([1]), np.array([[1.0, 2.0]]))
        self.model.run(None, 2.0, gradients={'a': rows})
        given = self.model.end(1)[0][1]
        self.assertEqual((given.rows.tolist(), given.values.tolist()), ([1], [2, 4]))
        self.assertEqual((given.rows.dtype, given.values.dtype), (np.uint64, np.float32))
        self.model.run(None, 2.0, gradients={'a': rows})
        self.model.run(None, 1.0, gradients=self.given)
        self.assertEqual(self.model.end(1)[0][1].tolist(), [1, 1, 3, 5])
        with self.assertRaisesRegex(sluice.ModelMismatch, '1 rows and 3 values'):
            self.model.run(None, 1.0, gradients={'a': sluice.RowGradient(np.array([1]), np.ones(3))})

    def test_a_weight_takes_the_place_of_the_number_of_samples(self):
        given = []
        self.assertEqual(self.model.run(None, 4, 3, self.given, weight=2.0, weigh=given.append), 3)
        self.assertEqual(self.model.end(1)[1][1].tolist(), [0, 2, 4])
        nothing = {'a': np.full((2, 2), np.nan), 'b': np.full(3, np.nan)}
        self.model.run(None, 4, gradients=nothing, weight=0.0, weigh=given.append)
        self.assertEqual(self.model.end(1), [(0, None), (1, None)])
        # With aggregation: Sum the means of microbatches are added.
        self.model.run(None, None, gradients=self.given, weight=2.0, weigh=given.append)
        self.assertEqual(self.model.end(1)[1][1].tolist(), [0, 1, 2])
        self.assertEqual(given, [2, 0])

        for returned, weights in (((1.0, self.given, 2), [2]), ((1.0, self.given), []),
                                  (((1.0, 2), self.given), [2])):
            model = numpy_model.NumpyModel({'a': np.zeros((2, 2)), 'b': np.zeros(3)},
                                           lambda parameters, data: returned)
            given.clear()
            model.run(None, 4, weigh=given.append)
            self.assertEqual(given, weights)
            self.assertEqual(model.evaluate(None)[:3], (1, None, weights[0] if weights else None))
        dictionary = {'loss': 1, 'gradients': self.given, 'outputs': np.eye(3), 'targets': np.array([0, 1, 1])}
        model = numpy_model.NumpyModel({'w': np.zeros(2)}, lambda parameters, data: dictionary)
        self.assertEqual(model.evaluate(None).correct, 2)
        del dictionary['gradients']
        with self.assertRaisesRegex(sluice.UsageError, "it must have 'loss' and 'gradients', and may have 'weight'"):
            model.evaluate(None)
        for wrong in (-1, np.nan, np.inf):
            with self.assertRaisesRegex(sluice.UsageError, 'the weight of the loss is'):
                data_lib.checked_weight(wrong)

    def test_parameters_can_neither_be_changed_nor_replaced(self):
        def replace(parameters, data):
            parameters['b'] = parameters['b'].clip(-1, 1)
            return 0.0, self.given

        model = numpy_model.NumpyModel({'b': np.zeros(3), 'a': np.zeros((2, 2))}, replace)
        model.bind(model.view([np.zeros(3), np.zeros(4)]))
        with self.assertRaisesRegex(sluice.UsageError, "'b' was replaced in the loss_fn"):
            model.run(None, 4)
        model.parameters()['b'] = None
        self.assertIsNotNone(model.parameters()['b'])
        with self.assertRaises(ValueError):
            model.parameters()['b'][0] = 1

    def test_a_step_without_any_gradient_is_refused(self):
        with self.assertRaisesRegex(sluice.UsageError, 'no gradient of any parameter'):
            self.model.run(None, 4, gradients={})

    def test_a_row_below_zero_is_refused(self):
        with self.assertRaisesRegex(sluice.UsageError, "the gradient of 'a' names row -1"):
            self.model.run(None, 4, gradients={'a': sluice.RowGradient(np.array([-1]), np.ones((1, 2)))})

    def test_rows_are_integers_from_zero_on(self):
        self.assertEqual(data_lib.row_numbers('a', [[3, 1], [1, 0]]).tolist(), [0, 1, 3])
        self.assertEqual(data_lib.row_numbers('a', []).dtype, np.uint64)
        with self.assertRaisesRegex(sluice.UsageError, r"rows\['a'\] names row -1: rows are integers from 0"):
            data_lib.row_numbers('a', np.array([4, -1]))
        with self.assertRaisesRegex(sluice.UsageError, 'names float64: rows are integers'):
            data_lib.row_numbers('a', np.array([1.5]))

    def test_nothing_is_delivered_if_one_gradient_is_wrong(self):
        delivered = []
        with self.assertRaises(sluice.ModelMismatch):
            self.model.run(None, 1.0, gradients={**self.given, 'b': np.ones(4)},
                           deliver=lambda *each: delivered.append(each))
        self.assertEqual(delivered, [])


class Errors(unittest.TestCase):

    def test_another_version_of_the_protocol_names_both_and_the_remedy(self):
        error = library.error_of(library.WIRE_VERSION, 'wire version 99; this coordinator speaks 1 to 1')
        self.assertIsInstance(error, sluice.VersionMismatch)
        self.assertRegex(str(error), 'wire version 99.*speaks 1 to 1.*same release')

    def start(self, **changes):
        job = job_processes.base_job(**changes)
        processes = job_processes.JobProcesses(job, directory(self)).start()
        self.addCleanup(processes.__exit__)
        return processes

    def test_environment_without_a_job(self):
        for name in ('SLUICE_COORDINATOR', 'MASTER_ADDR'):
            os.environ.pop(name, None)
        with self.assertRaisesRegex(sluice.JobNotFound, 'SLUICE_COORDINATOR.*sluice run'):
            sluice.join()

    def test_the_exception_of_a_worker_is_reported_once_if_it_is_the_reason_of_the_job(self):
        raised = str(sluice.NonFiniteGradient('gradient of w is not finite'))
        message = str(sluice.NonFiniteGradient(f'worker-0: {raised}'))
        for part in ('the job failed', 'gradient of w is not finite', 'Lower the learning rate'):
            self.assertEqual(message.count(part), 1, message)

    def test_an_invalid_index_is_named(self):
        with mock.patch.dict(os.environ, {'SLUICE_WORKER_INDEX': 'two'}):
            with self.assertRaisesRegex(sluice.UsageError, "SLUICE_WORKER_INDEX is 'two'.*index="):
                sluice.join('127.0.0.1:9', job='a/b/c')

    def test_an_object_that_is_not_a_batch_of_the_job(self):
        processes = self.start(training={'steps': 3})
        job = sluice.join(processes.address)
        with sluice.Worker(job, {'w': np.zeros(3)}) as worker:
            next(worker.batches(sluice.ArrayDataset(np.ones((100, 2)))))
            with self.assertRaisesRegex(sluice.UsageError, 'given a ndarray.*worker.batches'):
                worker.step(np.ones(2), gradients={})

    def test_no_coordinator_at_the_address(self):
        with self.assertRaisesRegex(sluice.JobNotFound, '127.0.0.1:9.*The job has ended'):
            sluice.join('127.0.0.1:9', job='a/b/c', timeout=0.5)
        with self.assertRaisesRegex(sluice.JobNotFound, '127.0.0.1:9.*The job has ended'):
            sluice.join('127.0.0.1:9', timeout=0.5)

    def test_a_worker_that_the_job_started_waits_for_its_coordinator(self):
        processes = self.start()
        reached = {'SLUICE_COORDINATOR': processes.address, 'SLUICE_JOB': processes.name}
        processes.signal('coordinator', signal.SIGSTOP)
        joined = []
        with mock.patch.dict(os.environ, reached), mock.patch.object(worker_lib, '_JOIN_SECONDS', 0.1), \
                mock.patch('sys.stderr', new_callable=io.StringIO) as notice:
            waiting = threading.Thread(target=lambda: joined.append(sluice.join()))
            waiting.start()
            deadline = time.monotonic() + 60
            while 'waiting' not in notice.getvalue() and time.monotonic() < deadline:
                time.sleep(0.01)
            with self.assertRaisesRegex(sluice.JobNotFound, 'within 0.1 s'):
                sluice.join(processes.address, job=processes.name)
            processes.signal('coordinator', signal.SIGCONT)
            waiting.join(60)
        self.assertEqual([job.name for job in joined], [processes.name])
        self.assertIn(f'no coordinator has answered at {processes.address} yet; waiting', notice.getvalue())

    def test_another_job_at_the_address(self):
        processes = self.start()
        with self.assertRaisesRegex(sluice.JobNotFound, 'default/test/test, not a/b/c'):
            sluice.join(processes.address, job='a/b/c')

    def test_a_model_that_differs_from_the_model_of_the_job(self):
        # Two of three workers have the same model.
        processes = self.start(training={'steps': 1000}, worker={'replicas': 3})
        for index in range(2):
            processes.start_python_worker(index, _WORKER, '0.01')
        processes.wait_for_members(2)
        processes.wait_for_step(2)
        job = sluice.join(processes.address, index=2)
        with self.assertRaisesRegex(sluice.ModelMismatch, "(?s)w.*same model"):
            with sluice.Worker(job, {'w': np.zeros(6), 'b': np.zeros(1)}) as worker:
                for batch in worker.batches(sluice.ArrayDataset(np.ones((1000, 5)))):
                    worker.step(batch, gradients={})

    def test_samples_that_differ_from_those_of_the_job(self):
        processes = self.start(training={'steps': 1000}, worker={'replicas': 3})
        for index in range(2):
            processes.start_python_worker(index, _WORKER, '0.01')
        processes.wait_for_members(2)
        processes.wait_for_step(2)
        job = sluice.join(processes.address, index=2)
        x, y = quadratic_worker.make_data(1000, 5)
        x[0, 0] += 1
        data = sluice.ArrayDataset(x, y)
        with self.assertRaisesRegex(sluice.ModelMismatch, 'the content of the samples differs'):
            with sluice.Worker(job, {'w': np.zeros(5), 'b': np.zeros(1)}) as worker:
                for batch in worker.batches(data, evaluation=data):
                    worker.step(batch, gradients={})

    def test_shapes_of_gradients_and_names_of_parameters(self):
        processes = self.start(training={'steps': 1000})
        job = sluice.join(processes.address)
        data = sluice.ArrayDataset(np.ones((100, 2)))
        with sluice.Worker(job, {'w': np.zeros(3)}) as worker:
            batch = next(iter(worker.batches(data)))
            with self.assertRaisesRegex(sluice.ModelMismatch,
                                        r"'w' has shape \[2\].*\[3\].*whole parameter"):
                worker.step(batch, gradients={'w': np.zeros(2)})
            with self.assertRaisesRegex(sluice.UsageError, "no parameter 'v'; there are w"):
                worker.step(batch, gradients={'v': np.zeros(2)})

    def test_a_repeated_step_a_skipped_step_and_a_step_after_the_end(self):
        processes = self.start(training={'steps': 3})
        job = sluice.join(processes.address)
        data = sluice.ArrayDataset(np.ones((100, 2)))
        gradients = {'w': np.ones(3)}
        with sluice.Worker(job, {'w': np.zeros(3)}) as worker:
            for batch in worker.batches(data):
                worker.step(batch, gradients=gradients)
                with self.assertRaisesRegex(sluice.UsageError, 'already given to .*: each counts once'):
                    worker.step(batch, gradients=gradients)
            for late in (batch, None):
                with self.assertRaisesRegex(sluice.JobEnded, 'the job has ended.*new job'):
                    worker.step(late, gradients=gradients)

        processes = self.start(training={'steps': 3})
        job = sluice.join(processes.address)
        with self.assertRaisesRegex(sluice.UsageError, 'was not given to worker.step'):
            with sluice.Worker(job, {'w': np.zeros(3)}) as worker:
                for batch in worker.batches(data):
                    pass

    def test_an_exception_in_the_loop_fails_the_job_with_its_text(self):
        processes = self.start(training={'steps': 1000})
        job = sluice.join(processes.address)
        with self.assertRaises(ZeroDivisionError):
            with sluice.Worker(job, {'w': np.zeros(3)}) as worker:
                for batch in worker.batches(sluice.ArrayDataset(np.ones((100, 2)))):
                    worker.step(batch, gradients={}, loss=1 / 0)
        self.assertEqual(processes.wait_for_exit('coordinator', 20), 1)
        self.assertIn('ZeroDivisionError in worker 0', processes.log('coordinator'))

    def test_an_exception_between_join_and_worker_fails_the_job_with_its_text(self):
        processes = self.start(training={'steps': 1000})
        processes.start_program(0, [sys.executable, '-c', 'import sluice\njob = sluice.join()\n1 / 0'])
        self.assertEqual(processes.wait_for_exit('coordinator', 20), 1)
        self.assertIn('ZeroDivisionError in worker 0', processes.log('coordinator'))
        self.assertEqual(processes.wait_for_exit('worker-0'), 1)
        self.assertIn('ZeroDivisionError', processes.log('worker-0'))

    def test_a_worker_that_is_ready_after_the_jobs_end_has_no_batches(self):
        processes = self.start(training={'steps': 3}, worker={'replicas': 2})
        job = sluice.join(processes.address, index=1)
        processes.start_python_worker(0, _WORKER)
        self.assertEqual(processes.wait_for_exit('worker-0'), 0, processes.log('worker-0'))
        self.assertEqual(processes.wait_for_exit('coordinator'), 0)
        with sluice.Worker(job, {'w': np.zeros(5), 'b': np.zeros(1)}) as worker:
            self.assertEqual(list(worker.batches(sluice.ArrayDataset(np.ones((1000, 5))))), [])
            with self.assertRaises(sluice.JobEnded):
                worker.step(None)

    def test_leaving_the_loop_leaves_the_job_to_the_others(self):
        processes = self.start(training={'steps': 60}, worker={'replicas': 2})
        processes.start_python_worker(0, _WORKER, '0.01')
        job = sluice.join(processes.address, index=1)
        x, y = quadratic_worker.make_data(1000, 5)
        with sluice.Worker(job, {'w': np.zeros(5), 'b': np.zeros(1)},
                           quadratic_worker.loss_fn) as worker:
            for number, batch in enumerate(worker.batches(sluice.ArrayDataset(x, y),
                                                          sluice.ArrayDataset(x, y))):
                worker.step(batch)
                if number == 3:
                    break
        self.assertEqual(processes.wait_for_exit('worker-0', 60), 0, processes.log('worker-0'))

    def test_two_processes_with_the_same_index(self):
        processes = self.start(training={'steps': 1000})
        first = sluice.join(processes.address, index=0)
        with self.assertRaisesRegex(sluice.DuplicateWorker, 'its own index'):
            sluice.join(processes.address, index=0, timeout=20)
        self.assertEqual(first.index, 0)

    def test_an_object_that_is_not_a_dataset(self):
        processes = self.start()
        job = sluice.join(processes.address)
        with self.assertRaisesRegex(sluice.UsageError, 'numbered samples'):
            with sluice.Worker(job, {'w': np.zeros(3)}) as worker:
                next(worker.batches(iter([1, 2])))
        with self.assertRaisesRegex(sluice.UsageError, r'is a dict.*ArrayDataset\(\*values\)'):
            data_lib.check_dataset({'x': np.ones(3), 'y': np.ones(3)}, 'the dataset')

    def test_rows_that_are_not_numbers_of_rows(self):
        for rows, message in ((np.array([3, -1]), r"rows\['w'\] names row -1.*padding"),
                              (np.array([0.5]), r"rows\['w'\] names float64")):
            processes = self.start(training={'steps': 3})
            job = sluice.join(processes.address)
            with self.assertRaisesRegex(sluice.UsageError, message):
                with sluice.Worker(job, {'w': np.zeros((5, 2))}, rows={'w': lambda data: rows}) as worker:
                    next(worker.batches(sluice.ArrayDataset(np.ones(100))))


if __name__ == '__main__':
    unittest_main.main()
