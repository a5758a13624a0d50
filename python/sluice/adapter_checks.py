"""What the adapters for Lightning and the HuggingFace Trainer refuse before a job begins. It needs neither package."""

import fnmatch

from sluice import adapters
from sluice import errors

# Callbacks of Lightning that change what the shards have.
_SWAPS = ('GradientAccumulationScheduler', 'StochasticWeightAveraging', 'WeightAveraging')
# Options of torch.optim that a manifest has under another name than the words of theirs put together.
_MANIFEST = {'lr': 'learningRate'}
# The options of each optimizer of a manifest, beside lr and weight_decay.
_OPTIONS = {
    'SGD': ('momentum', 'dampening', 'nesterov'), 'Adagrad': ('eps', 'lr_decay', 'initial_accumulator_value'),
    'RMSprop': ('momentum', 'eps', 'alpha', 'centered'), 'Adam': ('betas', 'eps', 'amsgrad'),
    'AdamW': ('betas', 'eps', 'amsgrad'), 'NAdam': ('betas', 'eps', 'momentum_decay', 'decoupled_weight_decay'),
    'RAdam': ('betas', 'eps', 'decoupled_weight_decay'), 'Adamax': ('betas', 'eps'), 'Adadelta': ('rho', 'eps'),
}


ACCUMULATION = ('{} is not needed: training.globalBatchSize is the number of samples of a step, however many a worker '
                'computes at once')


def refuse(*cases):
    """UsageError with the text of the first (condition, text) that holds."""
    for wrong, text in cases:
        if wrong:
            raise errors.UsageError(text)


def check_optimizer(job, module, optimizer, schedule, where):
    """UsageError: the program's optimizer is not the manifest's, which the shards run; the message has the lines for
    the manifest. `schedule`: the name of the program's scheduler; None: its rate is constant. `where`: what chooses the
    program's optimizer."""
    spec = job.spec.optimizer
    kind = type(optimizer).__name__
    if kind not in _OPTIONS:
        raise errors.UsageError(f'{where} gives the optimizer {kind}, and a manifest has {", ".join(_OPTIONS)}, or the '
                                'Plugin of a library')
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    groups = [(_values(kind, group), [names[id(each)] for each in group['params'] if id(each) in names])
              for group in optimizer.param_groups]
    wrong = _difference(kind, groups, spec)
    if wrong:
        raise errors.UsageError(f'{where} gives another optimizer than the manifest, whose optimizer the shards run: '
                                f'{wrong}. Write into the manifest:\n{manifest_lines(kind, groups)}')
    if schedule is None:
        return
    if not spec.HasField('schedule') and not spec.HasField('plateau'):
        raise errors.UsageError(f'{where} gives the schedule {schedule}, and the manifest has a constant learning rate. The '
                                'shards run the schedule, which counts the steps of the job: write optimizer.schedule '
                                '(docs/manifest.md), or leave the schedule out')
    adapters.say(job, f'the learning rate follows optimizer.schedule of the manifest; the {schedule} of {where} does not run')


def _values(kind, group):
    options = {'lr': group.get('initial_lr', group['lr'])}
    options.update((name, group[name]) for name in ('weight_decay', *_OPTIONS[kind]) if name in group)
    return {name: [float(each) for each in value] if name == 'betas' else
            value if isinstance(value, bool) else float(value) for name, value in options.items()}


def _difference(kind, groups, spec):
    """The first difference in words, or None."""
    number = spec.DESCRIPTOR.fields_by_name['name'].enum_type.values_by_number
    theirs = next((each for each in _OPTIONS if each.upper() == number[spec.name].name.replace('_', '')), number[spec.name].name)
    if theirs != kind:
        return f'{kind}, and the manifest has {theirs}'
    for values, names in groups:
        for name in names:
            for option, value in values.items():
                has = _of_manifest(spec, name, option)
                if has != value:
                    return f"{option} of '{name}' is {value}, and {has} in the manifest"
    return None


def _of_manifest(spec, name, option):
    """The value for a parameter: its group's or, where the group has none, the optimizer's."""
    group = next((group for group in spec.groups
                  if any(fnmatch.fnmatchcase(name, pattern) for pattern in group.patterns)), None)

    def value(field):
        own = group is not None and group.HasField(field)
        return getattr(group if own else spec, field)

    if option == 'betas':
        return [value('beta1'), value('beta2')]
    return value('learning_rate' if option == 'lr' else option)


def manifest_lines(kind, groups):
    """The lines of a manifest for [(options, names of parameters)]."""
    def text(option, value):
        words = option.split('_')
        name = _MANIFEST.get(option) or words[0] + ''.join(word.capitalize() for word in words[1:])
        return f'{name}: {str(value).lower() if isinstance(value, bool) else value}'

    first = groups[0][0]
    lines = ['  optimizer:', f'    name: {kind}'] + [f'    {text(*each)}' for each in first.items()]
    others = [({option: value for option, value in values.items() if value != first[option]}, names)
              for values, names in groups[1:] if names]
    others = [(own, names) for own, names in others if own]
    if others:
        lines.append('    groups:')
    every = [name for _, names in groups for name in names]
    for own, names in others:
        patterns = ', '.join(f'"{pattern}"' for pattern in _patterns(names, set(every) - set(names)))
        lines.append(f'    - {{patterns: [{patterns}], {", ".join(text(*each) for each in own.items())}}}')
    return '\n'.join(lines)


def _patterns(names, others):
    """The shortest endings that match all of the names, and none of the others."""
    found = {}
    for name in names:
        words = name.split('.')
        endings = ['*.' + '.'.join(words[-count:]) for count in range(1, len(words))] + [name]
        found[next(ending for ending in endings if not fnmatch.filter(others, ending))] = None
    return list(found)


def check_data(dataset):
    """UsageError: the samples are not numbered."""
    refuse((not hasattr(dataset, '__len__') or not hasattr(dataset, '__getitem__'),
            f'the training data are a {type(dataset).__name__}, whose samples have no numbers: give a dataset with len() and '
            '[index] (in Lightning: a DataLoader of it)'))


def held_out(loaders):
    """The dataset of Lightning's val_dataloaders."""
    loaders = list(loaders) if isinstance(loaders, (list, tuple)) else [loaders]
    refuse((len(loaders) != 1, f'{len(loaders)} val_dataloaders: a job has one set of held-out samples'))
    return loaders[0].dataset


def check_clipping(job, norm, where):
    """UsageError: the program limits gradients to another norm than the job."""
    has = job.spec.optimizer.clip_norm
    if norm and float(norm) != has:
        raise errors.UsageError(f'{where} is {norm}, and optimizer.clipNorm of the manifest is {has or "not set"}. The shards '
                                f'limit the gradient of the whole step: write `clipNorm: {float(norm)}` into the manifest\'s '
                                f'optimizer, or take {where} away')


def check_lightning(job, trainer, module):
    """UsageError: the Trainer or the module asks for what a job does not do."""
    swaps = [type(each).__name__ for each in trainer.callbacks if type(each).__name__ in _SWAPS]
    refuse(
        (not module.automatic_optimization, 'manual optimization: the shards run the optimizer; training_step returns a loss'),
        (trainer.accumulate_grad_batches != 1, ACCUMULATION.format('accumulate_grad_batches')),
        (trainer.gradient_clip_val and str(trainer.gradient_clip_algorithm or 'norm').endswith('value'),
         'gradient_clip_algorithm=value: a job has optimizer.clipNorm only'),
        (trainer.precision not in ('32-true', 'bf16-mixed'), f'precision {trainer.precision}: give 32-true or bf16-mixed'),
        (trainer.ckpt_path, "ckpt_path: the job continues from its own checkpoints, by checkpoint.restoreFrom from another's"),
        (trainer.limit_train_batches != 1.0 or trainer.overfit_batches or trainer.reload_dataloaders_every_n_epochs,
         'limit_train_batches, overfit_batches, reload_dataloaders_every_n_epochs: a job trains on the whole dataset'),
        (swaps, f'{"".join(swaps[:1])} changes gradients or weights, which are the shards\''))
    check_clipping(job, trainer.gradient_clip_val, 'gradient_clip_val')
    adapters.say(job, 'the manifest has the length of the job, its batches, their order, evaluations and checkpoints: '
                 'max_epochs, max_steps, val_check_interval, and batch_size, shuffle and sampler of the DataLoaders have no '
                 'effect')


def check_lightning_optimizers(job, module, optimizers, schedulers):
    """UsageError: configure_optimizers gives what the manifest does not have."""
    refuse((len(optimizers) != 1, f'configure_optimizers gives {len(optimizers)} optimizers: give one'),
           *((each.interval == 'step' and each.frequency > 1,
              f'the lr_scheduler has interval step and frequency {each.frequency}, which Lightning counts in batches of an '
              'epoch: optimizer.schedule of the manifest counts steps of the job') for each in schedulers))
    kinds = [type(each.scheduler).__name__ for each in schedulers]
    check_optimizer(job, module, optimizers[0], kinds[0] if kinds else None, 'configure_optimizers')


def check_trainer(job, trainer):
    """UsageError: the Trainer's arguments ask for what a job does not do."""
    args = trainer.args
    refuse(
        (args.gradient_accumulation_steps != 1, ACCUMULATION.format('gradient_accumulation_steps')),
        (args.world_size > 1, 'the program was started by torchrun or accelerate: `sluice run` starts the workers'),
        (args.fp16, 'fp16: a loss that a GradScaler scales cannot be trained; bf16 can'),
        (args.deepspeed or args.fsdp, 'deepspeed and fsdp divide the model themselves: the shards have the parameters'),
        (args.neftune_noise_alpha, 'neftune_noise_alpha is not supported'),
        (isinstance(trainer.eval_dataset, dict),
         f'{len(trainer.eval_dataset or ())} eval_datasets: a job has one set of held-out samples'),
        (trainer.compute_metrics and (args.include_for_metrics or args.batch_eval_metrics),
         'include_for_metrics and batch_eval_metrics: compute_metrics gets the predictions and labels of all held-out samples'))
    check_clipping(job, args.max_grad_norm, 'max_grad_norm')
    adapters.say(job, 'the manifest has the length of the job, its batches, their order, evaluations and checkpoints: '
                 'num_train_epochs, max_steps, batch sizes, sampling, eval_strategy, save_strategy and '
                 'load_best_model_at_end have no effect')
