"""Jobs of real processes under attack by a client made from proto/: each must end as it would without the attack.

cases.py lists the attacks; attacker.py carries them out.
"""

from python.testing import requirements
requirements.need('numpy', 'grpc', 'google.protobuf')

import json
import os
import pathlib
import tempfile
import unittest

from tests.integration.hostile import cases
from tests.python import job_processes
from tools import unittest_main

_SLUICE = str(pathlib.Path(job_processes.program('ps')).parents[2] / 'cli/sluice')


class _Attacked(unittest.TestCase):
    tls = None

    @classmethod
    def setUpClass(cls):
        cls.directory = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get('TEST_TMPDIR')))
        if cls is TlsTest:
            cls.tls = cases.certify(_SLUICE, cls.directory / 'tls')
        cls.arena = cases.Arena(cls.directory, cls.tls)

    @classmethod
    def tearDownClass(cls):
        cls.arena.close()

    def attack(self, case):
        outcome = self.arena.run(case)
        outputs = os.environ.get('TEST_UNDECLARED_OUTPUTS_DIR')
        if outputs:
            with open(pathlib.Path(outputs) / 'outcomes.jsonl', 'a') as file:
                file.write(json.dumps(outcome.record()) + '\n')
        if outcome.problems:
            self.fail('\n'.join(outcome.problems))

    def end(self):
        problems = self.arena.close()
        if problems:
            self.fail('\n'.join(problems))


class PlainTextTest(_Attacked):
    """The attacker has the secret and knows what a worker of the job knows."""


class TlsTest(_Attacked):
    """Every process has its own certificate, also the attacker."""


def _add(name, test, tls=(False, True)):
    for cls, its in ((PlainTextTest, False), (TlsTest, True)):
        if its in tls:
            setattr(cls, f'test_{name}', test)


for _case in cases.CASES:
    _add(_case.name, lambda self, case=_case: self.attack(case), _case.tls)
# Runs last because of its name.
_add('z_attacked_jobs_end_normally', _Attacked.end)


if __name__ == '__main__':
    unittest_main.main()
