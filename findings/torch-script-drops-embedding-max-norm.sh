#!/usr/bin/env bash
# PyTorch 2.15.0: torch.jit.script() drops max_norm of nn.Embedding and nn.EmbeddingBag; trace, compile and export keep it.
#
# The scripted module computes with rows longer than max_norm and never renormalizes the table. There is no message, and the
# file that torch.jit.save() writes has no trace of the option.
#
# Seen (PyTorch 2.15.0), rows of norm 1.73, max_norm 0.5, norm of the output's rows:
#   eager 0.5    trace 0.5    compile 0.5    export 0.5    script 1.73 (the same for EmbeddingBag)
# shellcheck source=findings/common.sh
source "$(dirname "$0")/common.sh"
run_python torch==2.15.0 numpy==2.4.6 <<'END'
import torch
from torch import nn

IDS = torch.tensor([[0], [1]])


def norm(layer, convert):
    module = layer(4, 3, max_norm=0.5)
    with torch.no_grad():
        module.weight.fill_(1)
    return round(convert(module)(IDS).norm(dim=-1).max().item(), 2)


WAYS = {'eager': lambda module: module, 'trace': lambda module: torch.jit.trace(module, IDS, check_trace=False),
        'compile': lambda module: torch.compile(module, backend='eager'),
        'export': lambda module: torch.export.export(module, (IDS,)).module(), 'script': torch.jit.script}
seen = {name: norm(nn.Embedding, convert) for name, convert in WAYS.items()}
bag = norm(lambda *sizes, **options: nn.EmbeddingBag(*sizes, mode='sum', **options), torch.jit.script)
print('Embedding', seen)
print('EmbeddingBag, script', bag)
assert seen == {'eager': 0.5, 'trace': 0.5, 'compile': 0.5, 'export': 0.5, 'script': 1.73}, seen
assert bag == 1.73
END
