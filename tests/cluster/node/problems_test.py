"""Problems that only show on real nodes: they are reported with a remedy, and most jobs recover once the problem is fixed."""

from tests.cluster.node.node_case import SAMPLES
from tests.cluster.node.training_case import TrainingCase, bit_exact_job
from tests.cluster.testing import images, volumes
from tests.cluster.testing.cluster import say, wait_for
from tools import unittest_main

STEPS = 200
NO_EVALUATION = ('    evaluation:\n      intervalSteps: 300\n', '')


class ProblemsTest(TrainingCase):

    def condition(self, job, kind):
        return next((one for one in self.status(job).get('conditions', []) if one['type'] == kind), {})

    def wait_for_problem(self, job, reason, *words):
        """Waits until the condition Degraded has the reason, with these words; an event has the first of them too."""
        condition = wait_for(f'{reason} is reported', lambda: self.condition(job, 'Degraded').get('reason') == reason and
                             self.condition(job, 'Degraded'), 120)
        say(f'{reason}: {condition["message"]}')
        self.assertEqual(condition['status'], 'True')
        for word in words:
            self.assertIn(word, condition['message'])
        wait_for('an event reports it', lambda: any(
            one['regarding']['name'] == job and one['type'] == 'Warning' and words[0] in one.get('note', '')
            for one in self.api.list('events', self.namespace)))
        self.assertNotEqual(self.condition(job, 'Failed').get('status'), 'True')

    def assert_recovers(self, job):
        self.wait_until_succeeded(job)
        wait_for('nothing is amiss any more', lambda: self.condition(job, 'Degraded').get('status') == 'False')

    def test_a_missing_image(self):
        job = bit_exact_job('image', STEPS)
        job['spec']['image'] = 'localhost/sluice-worker:not-there'
        self.apply(job)
        self.wait_for_problem('image', 'ImagePullFailed', 'localhost/sluice-worker:not-there', 'correct spec.image')
        self.api.merge('trainingjobs', self.namespace, 'image', {'spec': {'image': images.reference('sluice-worker')}})
        self.assert_recovers('image')

    def test_a_missing_volume(self):
        job = bit_exact_job('volume', STEPS)
        job['spec']['checkpoint']['storage']['claimName'] = 'later'
        self.apply(job)
        self.wait_for_problem('volume', 'Unschedulable', '"later" not found', 'create the claim')
        volumes.provide(self.cluster, self.namespace, 'later')
        self.addCleanup(volumes.remove, self.cluster, self.namespace, 'later')
        claim = self.api.get('persistentvolumeclaims', self.namespace, 'checkpoints')
        self.api.create('persistentvolumeclaims', {'metadata': {'name': 'later'}, 'spec': {
            name: claim['spec'][name] for name in ('accessModes', 'resources')}}, self.namespace)
        self.assert_recovers('volume')

    def test_missing_data(self):
        self.kubectl('apply', '-f', '-', stdin=self.edited('mnist.yaml', ('epochs: 3', 'steps: 10'), NO_EVALUATION))
        self.wait_for_problem('mnist', 'DataMissing', '/data/mnist: no such file or directory', 'put the data there')
        self.assertEqual(self.status('mnist')['summary'], 'DataMissing')
        self.assertEqual(self.status('mnist')['lastFailures'][0]['exitCode'], 13)
        self.assertFalse(self.status('mnist')['lastFailures'][0]['counted'])
        directory = self.directories['datasets'] / 'mnist'
        volumes.copy_images(volumes.FASHION, directory.with_name('being-copied'))
        directory.with_name('being-copied').rename(directory)
        self.assert_recovers('mnist')
        self.assertEqual(self.status('mnist')['training']['step'], 10)

    def test_bad_data_fails_the_job_and_is_named(self):
        # The coordinator reports a worker's error in reading its data, as on one machine, and the
        # job ends.
        directory = self.directories['datasets'] / 'mnist'
        volumes.copy_images(volumes.FASHION, directory)
        labels = next(directory.glob('train-labels*'))
        labels.write_bytes(labels.read_bytes()[:1000])
        self.kubectl('apply', '-f', '-', stdin=self.edited('mnist.yaml', ('epochs: 3', 'steps: 10'), NO_EVALUATION))
        self.kubectl('wait', 'stj/mnist', '--for=condition=Failed', '--timeout=120s', timeout=130)
        failed = self.condition('mnist', 'Failed')
        say(f'{failed["reason"]}: {failed["message"]}')
        self.assertEqual(failed['reason'], 'TrainingFailed')
        self.assertIn(f'/data/mnist/{labels.name}: ', failed['message'])

    def test_a_missing_secret_named_by_a_template(self):
        job = bit_exact_job('secret', STEPS)
        job['spec']['worker']['template']['spec']['containers'][0]['env'] = [
            {'name': 'TOKEN', 'valueFrom': {'secretKeyRef': {'name': 'token', 'key': 'token'}}}]
        self.apply(job)
        self.wait_for_problem('secret', 'ContainerConfigError', '"token" not found', 'create what the template names')
        self.kubectl('create', 'secret', 'generic', 'token', '--from-literal=token=x')
        self.assert_recovers('secret')

    def test_a_missing_secret_needed_by_a_volume_of_a_template(self):
        job = bit_exact_job('mount', STEPS)
        spec = job['spec']['worker']['template']['spec']
        spec['volumes'] = [{'name': 'token', 'secret': {'secretName': 'token'}}]
        spec['containers'][0]['volumeMounts'] = [{'name': 'token', 'mountPath': '/token'}]
        self.apply(job)
        self.wait_for_problem('mount', 'VolumeNotMounted', 'secret token', 'kubectl describe pod mount-worker-')
        self.assertEqual(self.status('mount')['summary'], 'VolumeNotMounted')
        self.kubectl('create', 'secret', 'generic', 'token', '--from-literal=token=x')
        self.assert_recovers('mount')

    def edited(self, sample, *changes):
        manifest = (SAMPLES / sample).read_text()
        for before, after in changes:
            self.assertIn(before, manifest)
            manifest = manifest.replace(before, after)
        return manifest

    def test_a_job_starts_from_the_result_of_another(self):
        volumes.copy_images(volumes.FASHION, self.directories['datasets'] / 'mnist')
        self.kubectl('apply', '-f', '-', stdin=self.edited('mnist.yaml', ('epochs: 3', 'steps: 10'), NO_EVALUATION))
        self.wait_until_succeeded('mnist')
        self.kubectl('apply', '-f', '-', stdin=self.edited('restored.yaml', ('epochs: 5', 'steps: 15'), NO_EVALUATION))
        self.wait_until_succeeded('mnist-tuned')
        status = self.status('mnist-tuned')
        self.assertEqual(status['training']['step'], 15)
        self.assertEqual(status['checkpoint']['restoredFromStep'], 10)
        self.assertEqual(status.get('restarts', {}).get('total', 0), 0)


if __name__ == '__main__':
    unittest_main.main()
