"""A real Prometheus with the chart's rules, for tests that every query of rules and dashboards finds data."""

import json
import pathlib
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

from helm.sluice import queries

CHART = pathlib.Path('helm/sluice')


def program():
    """The program's path; None if Debian's package prometheus is not installed."""
    return shutil.which('prometheus')


class Prometheus:
    """`with Prometheus(directory) as prometheus:`; targets may change while it runs."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        with socket.socket() as free:
            free.bind(('127.0.0.1', 0))
            self.address = f'127.0.0.1:{free.getsockname()[1]}'
        self._process = None

    def __enter__(self):
        (self.directory / 'rules').mkdir(parents=True)
        for path in (CHART / 'files/rules').glob('*.yaml'):
            # A test must not wait for half a minute.
            text = path.read_text().replace('interval: 30s', 'interval: 1s')
            (self.directory / 'rules' / path.name).write_text(text)
        self.set_targets({})
        (self.directory / 'prometheus.yml').write_text(json.dumps({
            'global': {'scrape_interval': '1s', 'evaluation_interval': '1s'},
            'rule_files': [str(self.directory / 'rules/*.yaml')],
            'scrape_configs': [{'job_name': 'sluice', 'file_sd_configs': [
                {'files': [str(self.directory / 'targets.json')], 'refresh_interval': '1s'}]}],
        }))
        with open(self.directory / 'prometheus.log', 'wb') as log:
            self._process = subprocess.Popen(
                [program(), f'--config.file={self.directory}/prometheus.yml', f'--storage.tsdb.path={self.directory}/data',
                 f'--web.listen-address={self.address}', f'--web.console.templates={(CHART / "files/consoles").absolute()}',
                 '--log.level=warn'], stdout=log, stderr=log)
        self.wait_for('Prometheus is ready', lambda: self.get('/-/ready') is not None)
        return self

    def __exit__(self, *_):
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def set_targets(self, targets):
        """Sets the targets, from the label `job` to addresses."""
        text = json.dumps([{'targets': sorted(addresses), 'labels': {'job': job, 'namespace': 'default'}}
                           for job, addresses in targets.items()])
        (self.directory / 'targets.new').write_text(text)
        (self.directory / 'targets.new').rename(self.directory / 'targets.json')

    def scrape(self, run_directory, processes):
        """Makes the processes of a job of `sluice run` the targets. Whether there are so many, all of them scraped."""
        targets = {}
        for path in pathlib.Path(run_directory).glob('*.metrics-port'):
            if port := path.read_text().strip():
                targets.setdefault(f'sluice-{path.name.split("-")[0].split(".")[0]}', []).append(f'127.0.0.1:{port}')
        self.set_targets(targets)
        return len(self.query('up == 1')) == sum(map(len, targets.values())) == processes

    def get(self, path):
        """The answer's text; None if there is none."""
        try:
            with urllib.request.urlopen(f'http://{self.address}{path}', timeout=10) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return None
            raise AssertionError(f'{path}: {error.code}: {error.read().decode(errors="replace")}') from error
        except OSError:
            return None

    def query(self, expression):
        """Series with their current values."""
        answer = self.get('/api/v1/query?' + urllib.parse.urlencode({'query': expression}))
        return json.loads(answer)['data']['result'] if answer else []

    def wait_for(self, what, look, seconds=60):
        deadline = time.monotonic() + seconds
        while not look():
            if self._process.poll() is not None:
                raise AssertionError('Prometheus has ended: ' + (self.directory / 'prometheus.log').read_text()[-2000:])
            if time.monotonic() > deadline:
                raise AssertionError(f'after {seconds} s still not: {what}')
            time.sleep(0.2)

    def empty_queries(self, wanted):
        """Those of the queries that find nothing. For an alert it queries each series in its expression."""
        empty = []
        for query in wanted:
            expression = queries.filled_in(query.expression)
            for asked in queries.selectors(expression) if query.alert else [expression]:
                if not self.query(asked):
                    empty.append(f'{query.place}: {re.sub(" +", " ", asked.strip())}')
        return empty
