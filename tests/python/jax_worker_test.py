"""examples/python/jax_net.py: a JAX program as a job's worker, also when one of the workers is killed."""

from python.testing import requirements
requirements.need('numpy', 'grpc', 'google.protobuf', 'jax')

import os
import pathlib
import shutil
import signal
import sys
import tempfile
import unittest
from unittest import mock

import numpy as np

import sluice
from tools import unittest_main

_ROOT = pathlib.Path(os.environ['TEST_SRCDIR']).absolute() / 'sluice'


class JaxWorker(unittest.TestCase):

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(dir=os.environ['TEST_TMPDIR']))
        for name in ('jax_net.py', 'jax_net.yaml'):
            shutil.copy(_ROOT / 'examples/python' / name, self.directory)
        self.enterContext(mock.patch.dict(os.environ, {
            'SLUICE_BINARY': str(_ROOT / 'cli/sluice'), 'SLUICE_BIN_DIR': str(_ROOT), 'JAX_PLATFORMS': 'cpu',
            'PYTHONPATH': os.pathsep.join(os.path.abspath(path) for path in sys.path)}))

    def train(self, name, on_progress=None):
        self.state = self.directory / name
        return sluice.run(self.directory / 'jax_net.yaml', display=False, state_directory=self.state, on_progress=on_progress)

    def kill_once(self, entry):
        """Kills worker-1 as soon as both workers train."""
        if not self.killed and entry['type'] == 'progress' and entry.get('step', 0) >= 20:
            processes = sluice.connect('jax-net', self.state).progress().processes
            if 'worker-1' in processes:
                os.kill(processes['worker-1'], signal.SIGKILL)
                self.killed = True

    def test_a_killed_worker_does_not_change_the_bits_of_the_trained_net(self):
        undisturbed = self.train('undisturbed')
        self.assertEqual(undisturbed.metrics.get('restarts', 0), 0)
        self.killed = False
        # Slower, so that the killed worker's replacement takes part, too.
        manifest = self.directory / 'jax_net.yaml'
        manifest.write_text(manifest.read_text() + '  debug: {stepDelaySeconds: 0.05}\n')
        disturbed = self.train('disturbed', self.kill_once)
        self.assertTrue(self.killed)
        self.assertEqual(disturbed.metrics['restarts'], 1)
        one, other = undisturbed.load(), disturbed.load()
        self.assertEqual(list(one), list(other))
        for name, value in one.items():
            np.testing.assert_array_equal(value, other[name], name)
        self.check_in_jax(undisturbed)

    def check_in_jax(self, result):
        """The trained parameters are those of a net that JAX computes, and it has learned."""
        with mock.patch.object(sys, 'path', [str(self.directory)] + sys.path):
            import jax_net
        model, (images, labels) = result.load(), jax_net.make_data(1000, 2)
        self.assertEqual({name: value.shape for name, value in model.items()},
                         {name: value.shape for name, value in jax_net.make_model(1).items()})
        self.assertAlmostEqual(float(jax_net.loss(model, (images, labels))), result.evaluation_loss, places=4)
        right = float((np.asarray(jax_net.forward(model, images)).argmax(1) == labels).mean())
        self.assertGreater(right, 0.9)  # chance is 0.1


if __name__ == '__main__':
    unittest_main.main()
