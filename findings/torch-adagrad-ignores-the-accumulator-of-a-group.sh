#!/usr/bin/env bash
# PyTorch 2.15.0: torch.optim.Adagrad ignores initial_accumulator_value of a parameter group.
#
# The constructor fills the sums of all parameters with its own argument. A group may set every other option, and keeps this
# one too: param_groups and state_dict() show a value that no parameter began with. There is no message.
#
# Seen (PyTorch 2.15.0), group 0 with 0.5, constructor without: group 0.5, sum 0.0; the first step of a gradient of 1 and
# lr 0.1 is 0.1 instead of 0.1 / sqrt(1.5) = 0.0816, which the constructor's argument gives.
# shellcheck source=findings/common.sh
source "$(dirname "$0")/common.sh"
run_python torch==2.15.0 numpy==2.4.6 <<'END'
import torch


def first_step(group, **options):
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adagrad([{'params': [parameter], **group}], lr=0.1, **options)
    begun = optimizer.state[parameter]['sum'].item()
    parameter.grad = torch.ones(1)
    optimizer.step()
    return optimizer.state_dict()['param_groups'][0]['initial_accumulator_value'], begun, round(-parameter.item(), 4)


of_group = first_step({'initial_accumulator_value': 0.5})
of_constructor = first_step({}, initial_accumulator_value=0.5)
print('value in state_dict, sum before the first step, first step')
print('group      ', of_group)
print('constructor', of_constructor)
assert of_group == (0.5, 0.0, 0.1), of_group
assert of_constructor == (0.5, 0.5, 0.0816), of_constructor
END
