"""Data that a job names by URL: the real programs and an HTTP server on the loopback device."""

import gzip
import hashlib
import http.server
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import threading
import time
import unittest

from tools import unittest_main

PROGRAMS = os.path.abspath('.')
SLUICE = os.path.join(PROGRAMS, 'cli', 'sluice')
WORKER = os.path.join(PROGRAMS, 'services', 'worker', 'sluice-worker')
PATIENCE_S = 120

ROWS = ''.join(f'{i % 7},{i % 3},{i % 2}\n' for i in range(64))
TRAINING = gzip.compress(f'a,b,label\n{ROWS}'.encode())
EVALUATION = b'a,b,label\n1,2,0\n3,1,1\n'


class Server(http.server.ThreadingHTTPServer):
    """Serves `files` and records requests; while `hold` is not set, it sends half of a file and waits."""

    def __init__(self):
        super().__init__(('127.0.0.1', 0), Handler)
        self.files = {'/train.csv.gz': TRAINING, '/test.csv': EVALUATION}
        self.requests = []
        self.failures = {}  # path -> how many requests get status 503 first
        self.hold = None  # an Event; until it is set, only the first half of a file is sent
        self.halfway = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def address(self, path, content=None):
        content = self.files[path] if content is None else content
        return f'http://127.0.0.1:{self.server_port}{path}#sha256={hashlib.sha256(content).hexdigest()}'


class Handler(http.server.BaseHTTPRequestHandler):

    def do_GET(self):
        server = self.server
        server.requests.append(self.path)
        if server.failures.get(self.path, 0) > 0:
            server.failures[self.path] -= 1
            return self.send_error(503)
        if self.path == '/moved.csv.gz':
            self.send_response(302)
            self.send_header('Location', '/train.csv.gz')
            self.end_headers()
            return None

        content = server.files.get(self.path)
        if content is None:
            return self.send_error(404)
        self.send_response(200)
        self.send_header('Content-Length', str(len(content)))
        self.end_headers()

        half = len(content) // 2
        try:
            self.wfile.write(content[:half])
            self.wfile.flush()
            if server.hold is not None:
                server.halfway.set()
                server.hold.wait(PATIENCE_S)
            self.wfile.write(content[half:])
        except OSError:
            pass  # the client went away
        return None

    def log_message(self, *_):
        pass


class DataDownload(unittest.TestCase):

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(dir=os.environ['TEST_TMPDIR']))
        self.cache = self.directory / 'cache'
        self.server = Server()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)

    def manifest(self, name='downloads', training=None):
        return {
            'apiVersion': 'sluice.dev/v1alpha1',
            'kind': 'TrainingJob',
            'metadata': {'name': name},
            'spec': {
                'model': {'name': 'mlp', 'dimensions': {'hidden': 4}},
                'data': {
                    'format': 'CSV',
                    'source': {'path': training or self.server.address('/train.csv.gz')},
                    'csv': {'labelColumn': 'label'},
                    'evaluation': {'source': {'path': self.server.address('/test.csv')}},
                },
                'optimizer': {'name': 'SGD', 'learningRate': 0.1},
                'training': {'steps': 3, 'globalBatchSize': 8, 'threads': 1},
                'worker': {'replicas': 2},
            },
        }

    def command(self, manifest):
        path = self.directory / f'{manifest["metadata"]["name"]}.json'
        path.write_text(json.dumps(manifest))
        return [SLUICE, 'run', str(path), '--output', 'json', '--bin-dir', PROGRAMS, '--state-dir', str(self.directory / 'state')]

    def start(self, command):
        environment = {**os.environ, 'SLUICE_CACHE': str(self.cache)}
        process = subprocess.Popen(command, cwd=self.directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        return process

    def finish(self, process):
        out, err = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out, err

    def run_job(self, manifest):
        return self.finish(self.start(self.command(manifest)))

    def kept(self):
        return sorted(path.name for path in self.cache.rglob('*') if path.is_file() and path.suffix != '.lock')

    def refused(self, manifest, *words):
        code, out, err = self.run_job(manifest)
        self.assertNotEqual(code, 0)
        self.assertNotIn('"started"', out, 'nothing is started')
        for word in words:
            self.assertIn(word, err)
        self.assertEqual(self.kept(), [])

    def test_concurrent_runs_download_once_and_a_third_uses_the_cache(self):
        self.server.hold = threading.Event()
        processes = [self.start(self.command(self.manifest(name))) for name in ('one', 'two')]
        self.assertTrue(self.server.halfway.wait(PATIENCE_S))
        self.server.hold.set()
        for process in processes:
            code, out, err = self.finish(process)
            self.assertEqual(code, 0, out[-2000:] + err)
        self.assertEqual(sorted(self.server.requests), ['/test.csv', '/train.csv.gz'])
        code, _, err = self.run_job(self.manifest('three'))
        self.assertEqual(code, 0, err)
        self.assertEqual(len(self.server.requests), 2)
        self.assertEqual(self.kept(), ['test.csv', 'train.csv.gz'])

    def test_follows_redirects_and_retries_failing_server(self):
        self.server.failures['/train.csv.gz'] = 1
        code, _, err = self.run_job(self.manifest(training=self.server.address('/moved.csv.gz', TRAINING)))
        self.assertEqual(code, 0, err)
        self.assertIn('answers 503', err)

    def test_file_with_wrong_checksum_is_refused(self):
        self.refused(self.manifest(training=self.server.address('/train.csv.gz', b'other')), 'spec.data.source.path', '/train.csv.gz',
                     'SHA-256', hashlib.sha256(TRAINING).hexdigest(), hashlib.sha256(b'other').hexdigest())

    def test_missing_file_is_named(self):
        self.refused(self.manifest(training=self.server.address('/nothing.csv', b'')), '/nothing.csv', '404', 'Check the address')

    def test_unreachable_server_is_named(self):
        digest = hashlib.sha256(TRAINING).hexdigest()
        self.refused(self.manifest(training=f'http://127.0.0.1:1/train.csv#sha256={digest}'), 'http://127.0.0.1:1/train.csv', 'Try again')

    def test_manifest_validation_demands_checksum(self):
        self.refused(self.manifest(training='http://127.0.0.1:1/train.csv'), 'spec.data.source.path', '#sha256=')

    def test_partial_download_of_killed_process_is_not_used(self):
        self.server.hold = threading.Event()
        process = self.start(self.command(self.manifest()))
        self.assertTrue(self.server.halfway.wait(PATIENCE_S))
        deadline = time.monotonic() + PATIENCE_S
        while self.kept() != ['train.csv.gz.part']:
            self.assertLess(time.monotonic(), deadline, self.kept())
            time.sleep(0.02)
        process.kill()
        self.finish(process)
        self.server.hold.set()
        code, out, err = self.run_job(self.manifest())
        self.assertEqual(code, 0, out[-2000:] + err)
        self.assertEqual(self.kept(), ['test.csv', 'train.csv.gz'])

    def test_interrupt_ends_download(self):
        self.server.hold = threading.Event()
        process = self.start(self.command(self.manifest()))
        self.assertTrue(self.server.halfway.wait(PATIENCE_S))
        process.send_signal(signal.SIGINT)
        code, out, _ = self.finish(process)
        self.server.hold.set()
        self.assertEqual(code, 130)
        self.assertNotIn('"started"', out)
        self.assertEqual(self.kept(), [])

    def test_worker_outside_sluice_run_downloads_its_data(self):
        path = self.directory / 'job.yaml'
        path.write_text(json.dumps(self.manifest()))
        job = self.directory / 'job.json'
        job.write_text(subprocess.run([SLUICE, 'render', str(path)], check=True, capture_output=True, text=True).stdout)
        ready = self.directory / 'ready'
        code, _, err = self.finish(self.start([WORKER, 'describe', '--job', str(job), '--output', str(ready)]))
        self.assertEqual(code, 0, err)
        self.assertTrue(ready.exists())
        self.assertEqual(self.kept(), ['test.csv', 'train.csv.gz'])


if __name__ == '__main__':
    unittest_main.main()
