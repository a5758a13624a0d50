"""The programs, started one by one as on several machines: MASTER_ADDR and MASTER_PORT name the coordinator, and each process has an
index."""

import json
import os
import pathlib
import secrets
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from tools import unittest_main

PROGRAMS = os.path.abspath('.')
SLUICE = os.path.join(PROGRAMS, 'cli', 'sluice')
COORDINATOR = os.path.join(PROGRAMS, 'services', 'coordinator', 'sluice-coordinator')
SHARD = os.path.join(PROGRAMS, 'services', 'execution', 'shard', 'sluice-ps-torch')
WORKER = os.path.join(PROGRAMS, 'services', 'worker', 'sluice-worker')
PATIENCE_S = 120
JOB = 'default/by-hand/'


def manifest(steps, **training):
    """The shards compute the layers, one each; every trainer goes through all of the data."""
    return {
        'apiVersion': 'sluice.dev/v1alpha1',
        'kind': 'TrainingJob',
        'metadata': {'name': 'by-hand'},
        'spec': {
            'model': {'name': 'mlp', 'dimensions': {'hidden': 16}, 'stages': [{'layers': ['fc1']}, {'layers': ['fc2']}]},
            'data': {'format': 'Synthetic', 'synthetic': {'samples': 128, 'shape': [20], 'classes': 10},
                     'partitioning': 'PerWorker', 'evaluation': {'maxSamples': 64}},
            'optimizer': {'name': 'SGD', 'learningRate': 0.03},
            'training': {'execution': 'Server', 'mode': 'Asynchronous', 'steps': steps, 'globalBatchSize': 8, 'threads': 1,
                         **training},
            'debug': {'stepDelaySeconds': 0.02},
            'parameterServer': {'replicas': 2},
            'worker': {'replicas': 2},
        },
    }


class ByHand(unittest.TestCase):

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(dir=os.environ['TEST_TMPDIR']))
        secret = self.directory / 'secret'
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_hex(32) + '\n')
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith('MASTER_')}
        self.environment['SLUICE_SECRET_FILE'] = str(secret)
        self.running = []

    def tearDown(self):
        for process in self.running:
            process.kill()
            process.wait()

    def reserve_port(self):
        """A port of 127.0.0.1 where no process listens, and which the system gives to no other process: a server that asks for it
        gets it."""
        one = socket.socket()
        self.addCleanup(one.close)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(('127.0.0.1', 0))
        return one.getsockname()[1]

    def render(self, job):
        (self.directory / 'job.yaml').write_text(json.dumps(job))
        rendered = subprocess.run([SLUICE, 'render', str(self.directory / 'job.yaml')], capture_output=True, text=True, check=True)
        (self.directory / 'job.json').write_text(rendered.stdout)

    def start(self, name, *command):
        log = open(self.directory / f'{name}.log', 'w')
        process = subprocess.Popen([str(part) for part in command], env=self.environment, stdout=log, stderr=subprocess.STDOUT)
        log.close()
        self.running.append(process)
        return process

    def log(self, name):
        return (self.directory / f'{name}.log').read_text()

    def until_log(self, name, text):
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.log(name):
            self.assertLess(time.monotonic(), deadline, f'{name} has not logged "{text}":\n{self.log(name)[-3000:]}')
            time.sleep(0.05)

    def use(self, address, port):
        self.environment.update(MASTER_ADDR=address, MASTER_PORT=str(port))

    def start_servers(self):
        self.start('coordinator', COORDINATOR, '--job', self.directory / 'job.json', '--storage', self.directory / 'checkpoints',
                   '--status-file', self.directory / 'status.json')
        return [self.start(f'ps-{i}', SHARD, '--job', JOB, '--index', i) for i in range(2)]

    def start_worker(self, index, *flags):
        return self.start(f'worker-{index}', WORKER, '--job', JOB, '--index', index, *flags)

    def start_all_but_the_worker_of_a_table(self, data):
        job = manifest(steps=20)
        job['spec'].update(
            model={'name': 'mlp', 'dimensions': {'hidden': 16}},
            data={'format': 'CSV', 'source': {'path': str(data)}, 'csv': {'labelColumn': 'label'}},
            training={'steps': 20, 'globalBatchSize': 8, 'threads': 1},
            worker={'replicas': 1}, parameterServer={'replicas': 1})
        self.render(job)
        self.use('127.0.0.1', self.reserve_port())
        self.start('coordinator', COORDINATOR, '--job', self.directory / 'job.json', '--storage', self.directory / 'checkpoints',
                   '--status-file', self.directory / 'status.json')
        self.start('ps-0', SHARD, '--job', JOB, '--index', 0)

    def test_programs_find_each_other_by_environment_and_train(self):
        self.render(manifest(steps=200))
        self.use('127.0.0.1', self.reserve_port())
        # In any order: the process that starts first waits.
        workers = [self.start_worker(0)]
        shards = self.start_servers()
        workers.append(self.start_worker(1))
        self.until_log('worker-1', 'Stage opened')

        # A trainer that leaves ends no server: the servers wait for the trainers that still train.
        workers[1].send_signal(signal.SIGTERM)
        self.assertEqual(workers[1].wait(PATIENCE_S), 0, self.log('worker-1')[-3000:])
        self.assertEqual([shard.poll() for shard in shards], [None, None])
        for process in self.running:
            self.assertEqual(process.wait(PATIENCE_S), 0, self.log('coordinator')[-3000:])

        status = json.loads((self.directory / 'status.json').read_text())
        self.assertEqual(status['phase'], 'SUCCEEDED')
        self.assertEqual(int(status['samples']), 200 * 8)
        self.assertTrue(status['lastEvaluation']['hasAccuracy'])

    def test_worker_without_data_exits_and_may_be_restarted(self):
        data = self.directory / 'later.csv'
        self.start_all_but_the_worker_of_a_table(data)
        for instance in range(2):
            self.assertEqual(self.start_worker(0).wait(PATIENCE_S), 13, self.log('worker-0')[-3000:])
            self.assertIn(f'{data}: ', self.log('worker-0'))
        data.write_text('x,y,label\n' + ''.join(f'{i},{-i},{i % 2}\n' for i in range(64)))
        self.start_worker(0)
        self.assertEqual(self.running[-1].wait(PATIENCE_S), 0, self.log('worker-0')[-3000:])
        self.assertEqual(self.running[0].wait(PATIENCE_S), 0, self.log('coordinator')[-3000:])
        self.assertEqual(json.loads((self.directory / 'status.json').read_text())['phase'], 'SUCCEEDED')

    def test_invalid_data_fails_job(self):
        data = self.directory / 'broken.csv'
        data.write_text('x,y,label\n1,2,0\n1,2\n')
        self.start_all_but_the_worker_of_a_table(data)
        self.assertEqual(self.start_worker(0).wait(PATIENCE_S), 1, self.log('worker-0')[-3000:])
        self.assertEqual(self.running[0].wait(PATIENCE_S), 1, self.log('coordinator')[-3000:])
        self.assertIn(f'{data}:3: has 2 columns', json.loads((self.directory / 'status.json').read_text())['reason'])

    def test_missing_data_ends_sluice_run_at_once(self):
        # The directory of images exists; only a worker finds that the images for evaluation are missing.
        directory = self.directory / 'images'
        directory.mkdir()
        (directory / 'train-images-idx3-ubyte').write_bytes(bytes([0, 0, 8, 3, 0, 0, 0, 8, 0, 0, 0, 2, 0, 0, 0, 2]) + bytes(32))
        (directory / 'train-labels-idx1-ubyte').write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 8]) + bytes(8))

        job = manifest(steps=20)
        job['spec'].update(
            model={'name': 'mlp', 'dimensions': {'hidden': 16}},
            data={'format': 'IDX', 'source': {'path': str(directory)}, 'evaluation': {'intervalSteps': 5}},
            training={'steps': 20, 'globalBatchSize': 8, 'threads': 1})
        (self.directory / 'job.yaml').write_text(json.dumps(job))
        (self.directory / 'bin').mkdir()
        for program in (COORDINATOR, SHARD, WORKER, os.path.join(PROGRAMS, 'services', 'ps', 'sluice-ps')):
            if os.path.exists(program):
                (self.directory / 'bin' / os.path.basename(program)).symlink_to(program)

        run = subprocess.run([SLUICE, 'run', str(self.directory / 'job.yaml'), '--bin-dir', str(self.directory / 'bin'), '--state-dir',
                              str(self.directory / 'state')], env=self.environment, capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        self.assertRegex(run.stderr, 'job by-hand failed: worker-[01]: .*/images/t10k-images-idx3-ubyte')

    def refused(self, *command):
        done = subprocess.run([str(part) for part in command], env=self.environment, capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertNotEqual(done.returncode, 0, done.stderr)
        return done.stderr + done.stdout

    def test_missing_and_invalid_settings_are_named(self):
        worker = (WORKER, '--job', JOB)
        self.assertIn('set MASTER_ADDR (and MASTER_PORT)', self.refused(*worker, '--index', 0))
        self.assertIn('set MASTER_ADDR (and MASTER_PORT)', self.refused(SHARD, '--job', JOB, '--index', 0))
        self.use('127.0.0.1', 'http')
        self.assertIn("MASTER_PORT: 'http' is not a port from 1 to 65535", self.refused(*worker, '--index', 0))

        self.render(manifest(steps=1))
        coordinator = (COORDINATOR, '--job', self.directory / 'job.json', '--storage', self.directory / 'checkpoints')
        self.assertIn("MASTER_PORT: 'http' is not a port from 1 to 65535", self.refused(*coordinator))
        self.use('127.0.0.1:29500', 29500)
        self.assertIn("MASTER_ADDR is '127.0.0.1:29500'", self.refused(*worker, '--index', 0))
        self.use('127.0.0.1', self.reserve_port())
        self.assertIn('--index is required', self.refused(*worker))
        self.assertIn('--index', self.refused(*worker, '--index', 'first'))
        self.assertIn('--job is required', self.refused(WORKER, '--index', 0))
        self.use('192.0.2.1', self.reserve_port())  # not of this machine
        self.assertIn('192.0.2.1', self.refused(*coordinator))

    def test_program_without_credentials_does_not_start(self):
        del self.environment['SLUICE_SECRET_FILE']
        self.use('127.0.0.1', self.reserve_port())
        self.render(manifest(steps=1))
        for command in ((COORDINATOR, '--job', self.directory / 'job.json', '--storage', self.directory / 'checkpoints'),
                        (SHARD, '--job', JOB, '--index', 0), (WORKER, '--job', JOB, '--index', 0)):
            done = subprocess.run([str(part) for part in command], env=self.environment, capture_output=True, text=True,
                                  timeout=PATIENCE_S)
            self.assertEqual(done.returncode, 2, done.stderr)
            for flag in ('--tls-directory', '--secret-file', '--insecure'):
                self.assertIn(flag, done.stderr)
        (self.directory / 'open').write_text(secrets.token_hex(32))
        (self.directory / 'open').chmod(0o644)
        self.assertIn('chmod 600', self.refused(SHARD, '--job', JOB, '--index', 0, '--secret-file', self.directory / 'open'))
        self.assertIn('more than one', self.refused(SHARD, '--job', JOB, '--index', 0, '--insecure', '--secret-file', 'x'))

    def test_process_with_wrong_secret_reports_the_right_file(self):
        self.use('127.0.0.1', self.reserve_port())
        self.render(manifest(steps=100000))
        self.start_servers()
        self.until_log('coordinator', 'Listening')
        wanted = self.environment['SLUICE_SECRET_FILE']
        other = self.directory / 'other'
        other.touch(mode=0o600)
        other.write_text(secrets.token_hex(32))
        self.environment['SLUICE_SECRET_FILE'] = str(other)
        self.start_worker(0)
        self.until_log('worker-0', 'UNAUTHENTICATED')
        self.assertIn(f'a wrong secret; the processes of this job require the secret in {wanted}', self.log('worker-0'))
        self.until_log('coordinator', 'Calls refused')

    def test_only_one_of_several_jobs_gets_a_checkpoint_directory(self):
        self.use('127.0.0.1', 0)
        jobs = ['first', 'second', 'third']
        for name in jobs:
            self.render({**manifest(steps=100000), 'metadata': {'name': name}})
            (self.directory / 'job.json').rename(self.directory / f'{name}.json')
        coordinators = {name: self.start(name, COORDINATOR, '--job', self.directory / f'{name}.json', '--listen', '127.0.0.1:0',
                                         '--storage', self.directory / 'checkpoints', '--linger', 0) for name in jobs}

        owner = self.directory / 'checkpoints' / 'owner'
        deadline = time.monotonic() + PATIENCE_S
        while sum(coordinator.poll() is None for coordinator in coordinators.values()) > 1:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)

        [winner] = [name for name, coordinator in coordinators.items() if coordinator.poll() is None]
        self.assertEqual(owner.read_text().splitlines()[0], f'default/{winner}/')
        for name in set(jobs) - {winner}:
            self.assertEqual(coordinators[name].returncode, 1, self.log(name))
            self.assertIn(f"checkpoints is job default/{winner}/'s, and this is job default/{name}/: give each job a directory of its own",
                          self.log(name))

    def test_unwritable_checkpoint_directory_fails_job_by_name(self):
        self.render(manifest(steps=1))
        (self.directory / 'file').write_text('')
        self.assertRegex(self.refused(COORDINATOR, '--job', self.directory / 'job.json', '--listen', '127.0.0.1:0',
                                      '--storage', self.directory / 'file', '--linger', 0),
                         'the checkpoint storage cannot be written: .*/file')

    def test_worker_without_coordinator_exits_with_reason(self):
        port = self.reserve_port()
        self.use('127.0.0.1', port)
        worker = self.start_worker(0, '--connect-timeout', 2)
        self.assertEqual(worker.wait(PATIENCE_S), 12, self.log('worker-0')[-3000:])
        log = self.log('worker-0')
        self.assertIn(f'no coordinator has answered at 127.0.0.1:{port} within 2s: the job has ended', log)
        self.assertEqual(log.count('Control stream closed'), 1, log)

    def test_unreachable_address_and_other_job_are_named(self):
        port = self.reserve_port()
        self.use('127.0.0.1', port)
        self.start_worker(0)
        self.until_log('worker-0', f'127.0.0.1:{port}')
        self.render(manifest(steps=100000))
        self.start_servers()
        self.until_log('coordinator', 'Listening')
        self.assertIn('by-hand', self.refused(WORKER, '--job', 'default/another/', '--index', 1))


if __name__ == '__main__':
    unittest_main.main()
