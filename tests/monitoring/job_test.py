"""Every query of rules, dashboards and the console page finds data while a real job trains."""

import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

from helm.sluice import queries
from tests.monitoring import prometheus
from tools import unittest_main

# Slow on purpose: the test ends it when it has seen everything.
MANIFEST = '''
apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: watched}
spec:
  model: {name: mlp}
  data:
    format: Synthetic
    synthetic: {samples: 2000, shape: [1, 28, 28], classes: 10}
    evaluation: {intervalSteps: 5, maxSamples: 64}
  optimizer: {name: Adam}
  training: {steps: 100000, globalBatchSize: 16}
  debug: {stepDelaySeconds: 0.05}
  parameterServer: {replicas: 2, partitions: 8}
  worker: {replicas: 2}
  checkpoint: {intervalSteps: 20}
'''


def find(program):
    return str(next(path for folder in ('cli', 'services') for path in pathlib.Path(folder).rglob(program)).absolute())


@unittest.skipIf(prometheus.program() is None, 'Debian\'s package prometheus is not there')
class JobTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.directory = pathlib.Path(directory.name)
        (cls.directory / 'bin').mkdir()
        for program in ('sluice-coordinator', 'sluice-ps', 'sluice-worker'):
            (cls.directory / 'bin' / program).symlink_to(find(program))
        (cls.directory / 'job.yaml').write_text(MANIFEST)
        cls.log = open(cls.directory / 'run.log', 'wb')
        cls.addClassCleanup(cls.log.close)
        cls.job = subprocess.Popen(
            [find('sluice'), 'run', str(cls.directory / 'job.yaml'), '--state-dir', str(cls.directory / 'state'),
             '--bin-dir', str(cls.directory / 'bin')], stdout=cls.log, stderr=cls.log, stdin=subprocess.DEVNULL)
        cls.addClassCleanup(cls.end_job)
        cls.prometheus = cls.enterClassContext(prometheus.Prometheus(cls.directory / 'prometheus'))
        cls.prometheus.wait_for('all processes serve metrics', cls.find_targets, 120)
        cls.prometheus.wait_for('a checkpoint and an evaluation are there', lambda: cls.prometheus.query(
            'max(sluice_checkpoint_step) > 0 and on () max(sluice_evaluation_loss) > 0'), 120)
        # A rate needs two scrapes, and a rule on top of it an evaluation.
        cls.prometheus.wait_for('rates are recorded', lambda: len(cls.prometheus.query('sluice:worker_time:ratio_rate5m')) == 5)

    @classmethod
    def end_job(cls):
        cls.job.send_signal(signal.SIGTERM)
        try:
            cls.job.wait(30)
        except subprocess.TimeoutExpired:
            cls.job.kill()
            cls.job.wait()

    @classmethod
    def find_targets(cls):
        if cls.job.poll() is not None:
            raise AssertionError('the job has ended: ' + (cls.directory / 'run.log').read_text()[-2000:])
        return cls.prometheus.scrape(cls.directory / 'state/watched/run', 5)

    def test_every_query_about_jobs_finds_data(self):
        wanted = [query for query in queries.all_queries(prometheus.CHART) if not queries.is_operators(query)]
        self.assertGreater(len(wanted), 60)
        deadline = time.monotonic() + 30
        while (empty := self.prometheus.empty_queries(wanted)) and time.monotonic() < deadline:
            time.sleep(1)
        self.assertEqual(empty, [])

    def test_the_console_page_shows_jobs_shards_and_workers(self):
        page = jobs = self.prometheus.get('/consoles/sluice.html')
        self.assertIn('<a href="?training_job=watched&amp;namespace=default">default/watched</a>', page)
        self.assertIn('none is scraped', page)  # no operator here
        page = self.prometheus.get('/consoles/sluice.html?training_job=watched&namespace=default')
        for text in ('ps-0', 'ps-1', 'worker-0', 'worker-1', 'compute', 'None fires.'):
            self.assertIn(text, page)
        keep = os.environ.get('TEST_UNDECLARED_OUTPUTS_DIR')
        if keep:
            (pathlib.Path(keep) / 'console-jobs.html').write_text(jobs)
            (pathlib.Path(keep) / 'console-job.html').write_text(page)

    def test_no_alert_fires_for_a_healthy_job(self):
        self.assertEqual(self.prometheus.query('ALERTS{alertstate="firing"}'), [])


if __name__ == '__main__':
    unittest_main.main()
