#!/usr/bin/env python3
"""Trains a job in each mode on this machine, one mode after the other, and compares the modes.

    bazel run //bench:modes -- job.yaml
    bazel run //bench:modes -- job.yaml --samples 60000 --target 90 --plot modes.svg

Each mode trains on the same number of samples, in batches of the same size per worker. The trained
models are not kept. docs/modes.md describes the comparison and the columns of the table. Only
--plot needs matplotlib.
"""
import argparse
import copy
import datetime
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

import yaml

try:
    from matplotlib import figure
except ImportError:
    figure = None

ROOT = pathlib.Path(__file__).absolute().parent.parent
MODES = ('Synchronous', 'BoundedStaleness', 'Asynchronous')
COLORS = ('#0072b2', '#e69f00', '#009e73')  # distinguishable with colour blindness (Okabe and Ito)
INTERRUPTED = 130  # exit code of `sluice run` after Ctrl-C


class Failure(Exception):
    """Ends the program: (message, exit code)."""


def read(text):
    """Reads a manifest; unlike PyYAML, it reads 1e-3 as a number."""
    loader = type('Loader', (yaml.SafeLoader,), {})
    loader.add_implicit_resolver('tag:yaml.org,2002:float', re.compile(r'[-+]?\d+(\.\d*)?[eE][-+]?\d+$'),
                                 list('-+0123456789'))
    return yaml.load(text, loader)


def manifest_for(mode, job, samples=None, max_staleness=4):
    """The manifest `job` (with all defaults) for one of MODES.

    An update of one worker has its share of a synchronous step's samples; intervals of evaluations
    cover the same number of samples, too. Fields that only apply to other modes are removed.
    """
    manifest = copy.deepcopy(job)
    manifest['metadata'].pop('uid', None)
    manifest['spec'].get('checkpoint', {}).get('storage', {}).pop('path', None)  # in the run's own directory
    training = manifest['spec']['training']
    workers = max(1, manifest['spec']['worker']['replicas'])
    batch_was = training['globalBatchSize']
    per_worker = -(-batch_was // workers) if training['mode'] == 'Synchronous' else batch_was
    batch = per_worker * workers if mode == 'Synchronous' else per_worker
    training.update(mode=mode, globalBatchSize=batch)
    # A microbatchSize that equals the default is dropped, so that the new batch's default applies.
    if training.get('microbatchSize') == (batch_was + 15) // 16:
        del training['microbatchSize']
    elif training.get('microbatchSize', 0) > batch:
        training['microbatchSize'] = batch

    def scaled(count):
        return max(1, int(count * batch_was / batch + 0.5))

    if samples:
        training.pop('epochs', None)
        training['steps'] = -(-samples // batch)
    elif 'steps' in training:
        training['steps'] = scaled(training['steps'])
    for field in ('stalenessRule',) if mode == 'Synchronous' else ('stragglers', 'determinism'):
        training.pop(field, None)
    if mode == 'BoundedStaleness':
        training.setdefault('boundedStaleness', {'maxStaleness': max_staleness})
    else:
        training.pop('boundedStaleness', None)
    evaluation = manifest['spec']['data'].get('evaluation', {})
    if 'intervalSteps' in evaluation:
        evaluation['intervalSteps'] = scaled(evaluation['intervalSteps'])
    return manifest


def metric_of(record):
    """(name, value) of an evaluation or a summary: accuracy if it has one, else perplexity, else loss."""
    for name in ('accuracy', 'perplexity', 'loss'):
        if isinstance(record.get(name), (int, float)):
            return name, record[name]
    return None, None


def parse_run(mode, lines):
    """The result of a mode, as --output json prints it, from the output of `sluice run --output json`."""
    records = [json.loads(line) for line in lines.splitlines() if line.startswith('{')]
    summary = next((record for record in reversed(records) if record['type'] == 'summary'), None)
    if summary is None:
        raise Failure(f'{mode}: it ended before it began', 1)
    if summary['outcome'] != 'Succeeded':
        raise Failure(f'{mode}: {summary.get("reason", "it did not succeed")}', 1)

    steps, samples, seconds = summary['step'], summary['samples'], summary['trainingSeconds']
    run = {'mode': mode, 'steps': steps, 'samples': samples, 'trainingSeconds': seconds,
           'samplesPerSecond': samples / seconds if seconds > 0 else 0,
           'metric': '', 'secondsToTarget': None, 'final': None, 'evaluations': []}
    if 'staleness' in summary:
        run['staleness'] = {name: summary['staleness'][name] for name in ('mean', 'median', 'percentile95', 'largest')}

    def time_of(event):
        return datetime.datetime.fromisoformat(event.get('at', event['time']))

    events = [record for record in records if record['type'] == 'event']
    views = [event for event in events if event['kind'] == 'view']
    begin = time_of(views[0]) if views else None  # training begins with the first view
    for event in events:
        name, value = metric_of(event.get('evaluation', {}))
        if name is None or begin is None:
            continue
        run['metric'] = name
        step = event['evaluation'].get('step', 0)
        run['evaluations'].append({'seconds': max(0.0, (time_of(event) - begin).total_seconds()), 'step': step,
                                   'samples': samples * step / steps if steps else 0, 'value': value})
    name, value = metric_of(summary.get('evaluation', summary))
    if name is not None:
        run.update(metric=name, final=value)
    return run


def is_reached(metric, value, target):
    """For accuracies higher is better; for perplexities and losses, lower."""
    return value >= target if metric == 'accuracy' else value <= target


def common_target(runs):
    """The worst final value, which every mode reaches; None if a mode has no evaluations."""
    if not runs or any(not run['evaluations'] or run['final'] is None for run in runs):
        return None
    return (min if runs[0]['metric'] == 'accuracy' else max)(run['final'] for run in runs)


def compare(runs, target=None):
    """The comparison, as --output json prints it."""
    target = common_target(runs) if target is None else target
    for run in runs:
        if target is not None:
            run['secondsToTarget'] = next((evaluation['seconds'] for evaluation in run['evaluations']
                                           if is_reached(run['metric'], evaluation['value'], target)), None)
    return {'modes': runs, 'target': target}


def table(comparison):
    """The lines of the table."""
    def number(value):
        return '-' if value is None else f'{value:.3g}' if abs(value) < 10 else f'{value:.1f}'

    runs, target = comparison['modes'], comparison['target']
    metric = (runs[0]['metric'] if runs else '') or 'metric'
    rows = [['mode', 'steps', 'samples/s', 'staleness (mean, median, 95 %, largest)',
             'time to target' if target is None else f'time to {metric} {number(target)}', f'final {metric}']]
    for run in runs:
        staleness, seconds = run.get('staleness'), run['secondsToTarget']
        rows.append([run['mode'], str(run['steps']), f'{run["samplesPerSecond"]:.0f}',
                     '{mean:.2f}, {median}, {percentile95}, {largest}'.format(**staleness) if staleness else '-',
                     '-' if seconds is None else f'{seconds:.1f} s', number(run['final'])])
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ['  '.join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def draw(runs, path):
    """Draws the metric over the training time and over the samples, a line for each mode."""
    drawing = figure.Figure(figsize=(9, 3.6), layout='constrained')
    axes = drawing.subplots(1, 2)
    metric = runs[0]['metric']
    for axis, field, name in zip(axes, ('seconds', 'samples'), ('seconds of training', 'samples trained on')):
        for run, color in zip(runs, COLORS):
            axis.plot([point[field] for point in run['evaluations']], [point['value'] for point in run['evaluations']],
                      color=color, label=f'{run["mode"]}: {run["samplesPerSecond"]:.0f} samples/s')
        axis.set(xlabel=name, ylabel='accuracy, %' if metric == 'accuracy' else metric)
        axis.grid(True)
    axes[0].legend()
    drawing.savefig(path)


def run_mode(mode, job, options, quiet):
    """Trains the job in one mode; the run's notes and errors go to standard error."""
    # Beside the job's manifest: relative paths and the search for data begin there.
    with tempfile.NamedTemporaryFile('w', dir=options.manifest.parent, prefix='.modes-', suffix='.json') as manifest, \
            tempfile.TemporaryDirectory(prefix='sluice-modes') as state:
        json.dump(manifest_for(mode, job, options.samples, options.max_staleness), manifest)
        manifest.flush()
        command = [options.sluice, 'run', manifest.name, '--output', 'json', '--state-dir', state, *options.programs]
        with subprocess.Popen(command + ['--quiet'] * quiet, stdout=subprocess.PIPE, text=True) as process:
            try:
                output, _ = process.communicate()
            except KeyboardInterrupt:
                process.terminate()
                raise Failure('interrupted', INTERRUPTED) from None
    if process.returncode == INTERRUPTED:
        raise Failure('interrupted', INTERRUPTED)
    if not output:
        raise Failure(f'{mode}: the job did not start', process.returncode)
    return parse_run(mode, output)


def find_sluice():
    built = ROOT / 'cli' / 'sluice'  # in the directory of `bazel run`
    return built if built.exists() else ROOT / 'bazel-bin' / 'cli' / 'sluice'


def parse_flags(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('manifest', type=pathlib.Path, help='the manifest')
    parser.add_argument('--samples', type=int,
                        help="number of samples to train on in each mode (default: the manifest's)")
    parser.add_argument('--max-staleness', type=int, default=4,
                        help='maximum staleness of BoundedStaleness, if the manifest sets none (default: 4)')
    parser.add_argument('--target', type=float,
                        help='target value of the metric for the time measurement '
                             '(default: the worst final value of the modes)')
    parser.add_argument('--output', choices=('text', 'json'), default='text',
                        help='text: a table (default), or json: one object')
    parser.add_argument('--plot', type=pathlib.Path, help='file to draw the metric into, such as modes.svg')
    parser.add_argument('--sluice', type=pathlib.Path, default=find_sluice(), help='the program sluice')
    parser.add_argument('--bin-dir', type=pathlib.Path, help='directory of the other programs (default: beside sluice)')
    options = parser.parse_args(arguments)
    if options.samples is not None and options.samples < 1:
        parser.error('--samples must be positive')
    if options.max_staleness < 0:
        parser.error('--max-staleness must not be negative')
    options.programs = ['--bin-dir', str(options.bin_dir.absolute())] if options.bin_dir else []
    return options


def main(arguments=None):
    # `bazel run` starts programs in a directory of its own.
    os.chdir(os.environ.get('BUILD_WORKING_DIRECTORY', '.'))
    options = parse_flags(arguments)
    if options.plot and figure is None:
        print('Note: matplotlib is not installed, so nothing is drawn (Debian: python3-matplotlib)', file=sys.stderr)
    rendered = subprocess.run([options.sluice, 'render', '--yaml', options.manifest], stdout=subprocess.PIPE, text=True)
    if rendered.returncode != 0:
        return rendered.returncode
    job = read(rendered.stdout)

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    runs = []
    try:
        for mode in MODES:
            print(f'{mode} trains', file=sys.stderr, flush=True)
            runs.append(run_mode(mode, job, options, quiet=bool(runs)))
        comparison = compare(runs, options.target)
        print(json.dumps(comparison, indent=2) if options.output == 'json' else '\n'.join(table(comparison)))
        if options.plot and figure is not None:
            draw(runs, options.plot)
    except (Failure, OSError) as error:
        message, code = error.args if isinstance(error, Failure) else (error, 1)
        print(f'modes: {message}', file=sys.stderr)
        return code
    return 0


if __name__ == '__main__':
    sys.exit(main())
