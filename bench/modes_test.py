"""The comparison of modes: manifests, results of runs, table and drawing. Trains nothing."""

import json
import os
import pathlib
import unittest
import unittest.mock

from bench import modes
from tools import unittest_main


def job(training, workers=2):
    return {'metadata': {'name': 'example'},
            'spec': {'training': training, 'worker': {'replicas': workers}, 'checkpoint': {'storage': {'type': 'Local', 'path': '/kept'}},
                     'data': {'evaluation': {'intervalSteps': 10}}}}


def training_for(mode, training, workers=2, **options):
    return modes.manifest_for(mode, job(training, workers), **options)['spec']['training']


class Manifests(unittest.TestCase):

    def test_modes_train_on_equal_samples_and_batches_per_worker(self):
        training = {'mode': 'Synchronous', 'globalBatchSize': 256, 'steps': 100}
        same = modes.manifest_for('Synchronous', job(training))['spec']
        self.assertEqual((same['training']['globalBatchSize'], same['training']['steps']), (256, 100))
        other = modes.manifest_for('Asynchronous', job(training))['spec']
        self.assertEqual((other['training']['globalBatchSize'], other['training']['steps']), (128, 200))
        self.assertEqual(other['training']['mode'], 'Asynchronous')
        self.assertEqual(other['data']['evaluation']['intervalSteps'], 20)

    def test_asynchronous_batch_is_per_worker(self):
        training = training_for('Synchronous', {'mode': 'Asynchronous', 'globalBatchSize': 32, 'epochs': 2}, workers=4)
        self.assertEqual((training['globalBatchSize'], training['epochs']), (128, 2))
        self.assertNotIn('steps', training)

    def test_shortened_run_has_the_requested_samples(self):
        training = training_for('Asynchronous', {'mode': 'Synchronous', 'globalBatchSize': 64, 'epochs': 5}, samples=1000)
        self.assertEqual(training['steps'], 32)  # 32 steps of 32 samples
        self.assertNotIn('epochs', training)

    def test_fields_of_other_modes_are_removed(self):
        synchronous = {'mode': 'Synchronous', 'globalBatchSize': 64, 'microbatchSize': 4, 'determinism': 'BitExact',
                       'stragglers': {'policy': 'Drop'}, 'steps': 1}
        bounded = training_for('BoundedStaleness', synchronous)
        self.assertEqual(bounded['boundedStaleness'], {'maxStaleness': 4})
        self.assertFalse({'stragglers', 'determinism', 'microbatchSize'} & set(bounded))  # 4 was the default of 64
        own = {'mode': 'BoundedStaleness', 'globalBatchSize': 64, 'boundedStaleness': {'maxStaleness': 1}, 'steps': 1}
        self.assertEqual(training_for('BoundedStaleness', own)['boundedStaleness'], {'maxStaleness': 1})
        self.assertNotIn('boundedStaleness', training_for('Asynchronous', own))

    def test_checkpoints_of_the_manifest_are_left_alone(self):
        given = job({'mode': 'Synchronous', 'globalBatchSize': 64, 'steps': 1})
        self.assertEqual(modes.manifest_for('Synchronous', given)['spec']['checkpoint'], {'storage': {'type': 'Local'}})
        self.assertEqual(given['spec']['checkpoint']['storage']['path'], '/kept')

    def test_small_numbers_are_numbers(self):
        self.assertEqual(modes.read('{eps: 1e-08, mode: Synchronous}'), {'eps': 1e-08, 'mode': 'Synchronous'})


RUN = '''
{"type":"process","name":"worker-0","state":"started","time":"2026-01-01T00:00:00+00:00"}
{"type":"event","kind":"view","message":"begins","time":"2026-01-01T00:00:10+00:00"}
{"type":"event","kind":"evaluation","evaluation":{"accuracy":50,"loss":2,"step":10},"time":"2026-01-01T00:00:12+00:00"}
{"type":"event","kind":"view","message":"begins again","time":"2026-01-01T00:00:13+00:00"}
not json
{"type":"event","kind":"evaluation","evaluation":{"accuracy":80,"loss":1,"step":20},"at":"2026-01-01T00:00:14.500123+00:00","time":"2026-01-01T00:00:15+00:00"}
{"type":"summary","outcome":"Succeeded","step":20,"samples":640,"trainingSeconds":4,"evaluation":{"accuracy":80,"loss":1},"staleness":{"mean":1.256,"median":1,"percentile95":2,"largest":7,"updates":20}}
'''


class Runs(unittest.TestCase):

    def test_time_begins_with_the_first_view(self):
        run = modes.parse_run('Asynchronous', RUN)
        self.assertEqual((run['metric'], run['final'], run['samplesPerSecond']), ('accuracy', 80, 160))
        self.assertEqual([point['samples'] for point in run['evaluations']], [320, 640])
        self.assertAlmostEqual(run['evaluations'][0]['seconds'], 2)
        self.assertAlmostEqual(run['evaluations'][1]['seconds'], 4.500123)
        self.assertEqual(run['staleness'], {'mean': 1.256, 'median': 1, 'percentile95': 2, 'largest': 7})
        self.assertAlmostEqual(modes.compare([run], 60)['modes'][0]['secondsToTarget'], 4.500123)
        self.assertIsNone(modes.compare([modes.parse_run('Asynchronous', RUN)], 81)['modes'][0]['secondsToTarget'])

    def test_failed_run_is_an_error_with_its_reason(self):
        with self.assertRaisesRegex(modes.Failure, 'Synchronous: no data'):
            modes.parse_run('Synchronous', '{"type":"summary","outcome":"Failed","reason":"no data"}')
        with self.assertRaisesRegex(modes.Failure, 'it ended before it began'):
            modes.parse_run('Synchronous', '')


def trained(metric, last, mode='Synchronous', evaluations=2):
    points = [{'seconds': 1, 'step': 1, 'samples': 10, 'value': last / 2}, {'seconds': 2, 'step': 3, 'samples': 30, 'value': last}]
    return {'mode': mode, 'steps': 3, 'samples': 30, 'trainingSeconds': 2, 'samplesPerSecond': 15, 'metric': metric,
            'secondsToTarget': None, 'final': last, 'evaluations': points[:evaluations]}


class Comparison(unittest.TestCase):

    def test_target_is_the_worst_final_value(self):
        self.assertEqual(modes.common_target([trained('accuracy', 90), trained('accuracy', 85)]), 85)
        self.assertEqual(modes.common_target([trained('perplexity', 90), trained('perplexity', 85)]), 90)
        self.assertIsNone(modes.common_target([trained('loss', 1), trained('loss', 1, evaluations=0)]))

    def test_table_has_a_line_for_each_mode(self):
        lines = modes.table(modes.compare([trained('accuracy', 90), modes.parse_run('Asynchronous', RUN)], 80))
        self.assertEqual(len(lines), 3)
        self.assertIn('staleness (mean, median, 95 %, largest)', lines[0])
        self.assertIn('time to accuracy 80.0', lines[0])
        self.assertEqual(lines[1].split(), ['Synchronous', '3', '15', '-', '2.0', 's', '90.0'])
        self.assertIn('1.26, 1, 2, 7', lines[2])

    def test_json_has_the_table_and_every_evaluation(self):
        found = json.loads(json.dumps(modes.compare([trained('loss', 4)], 4)))
        self.assertEqual((found['target'], found['modes'][0]['secondsToTarget']), (4, 1))
        self.assertEqual(len(found['modes'][0]['evaluations']), 2)
        self.assertIsNone(modes.compare([])['target'])
        self.assertEqual(len(modes.table(modes.compare([]))), 1)


class Drawing(unittest.TestCase):

    def setUp(self):
        self.path = pathlib.Path(os.environ['TEST_TMPDIR']) / 'modes.svg'
        self.runs = [trained('accuracy', 90, mode) for mode in modes.MODES]

    def test_has_a_line_for_each_mode_by_time_and_by_samples(self):
        axes = [unittest.mock.Mock(), unittest.mock.Mock()]
        with unittest.mock.patch.object(modes, 'figure') as figure:
            figure.Figure.return_value.subplots.return_value = axes
            modes.draw(self.runs, self.path)
        self.assertEqual([call.args for call in axes[0].plot.call_args_list], [([1, 2], [45, 90])] * 3)
        self.assertEqual([call.args for call in axes[1].plot.call_args_list], [([10, 30], [45, 90])] * 3)
        figure.Figure.return_value.savefig.assert_called_once_with(self.path)

    @unittest.skipIf(modes.figure is None, 'matplotlib is not installed')
    def test_is_written_as_svg(self):
        modes.draw(self.runs, self.path)
        self.assertIn('Asynchronous: 15 samples/s', self.path.read_text().replace('<!-- ', ''))


if __name__ == '__main__':
    unittest_main.main()
