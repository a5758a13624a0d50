#!/usr/bin/env bash
# PyTorch 2.15.0: infinity converted to float8_e4m3fn is 448, the largest number of the type.
#
# The type has no infinity, only NaN. ml_dtypes, and JAX with it, convert infinity and numbers above 464 to NaN, so a
# diverged value stays visible. PyTorch saturates them in .to(), copy_() and torch.tensor(), for every source type, while
# fill_() of several elements with such a number is an error; NaN stays NaN. PyTorch's four other float8 types do not saturate: infinity stays
# infinity in float8_e5m2, and is NaN in the others. A check for finite values after the conversion finds nothing.
#
# Seen (PyTorch 2.15.0, ml_dtypes 0.6.0, JAX 0.10.2):
#   float8_e4m3fn    torch [448.0, 448.0, 448.0, nan]    ml_dtypes [448.0, nan, nan, nan]    jax as ml_dtypes
#   float8_e5m2      torch [448.0, 512.0, inf, nan]      ml_dtypes the same
#   float8_e4m3fnuz  torch [nan, nan, nan, nan]          ml_dtypes the same
# shellcheck source=findings/common.sh
source "$(dirname "$0")/common.sh"
run_python torch==2.15.0 ml_dtypes==0.6.0 jax==0.10.2 numpy==2.4.6 <<'END'
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch

source = np.array([448, 500, np.inf, np.nan], np.float32)
seen = {}
for name in 'float8_e4m3fn', 'float8_e5m2', 'float8_e4m3fnuz':
    seen[name] = (torch.from_numpy(source).to(getattr(torch, name)).float().tolist(),
                  source.astype(getattr(ml_dtypes, name)).astype(np.float32).tolist())
    print(f'{name:16} torch {seen[name][0]} ml_dtypes {seen[name][1]}')
in_jax = jnp.asarray(source).astype(jnp.float8_e4m3fn).astype(jnp.float32).tolist()
print('float8_e4m3fn    jax  ', in_jax)

assert str(seen['float8_e4m3fn']) == '([448.0, 448.0, 448.0, nan], [448.0, nan, nan, nan])'
assert str(in_jax) == str(seen['float8_e4m3fn'][1])
assert str(seen['float8_e5m2'][0]) == str(seen['float8_e5m2'][1]) == '[448.0, 512.0, inf, nan]'
assert str(seen['float8_e4m3fnuz'][0]) == str(seen['float8_e4m3fnuz'][1]) == '[nan, nan, nan, nan]'
try:
    torch.zeros(2, dtype=torch.float8_e4m3fn).fill_(1e4)
    raise AssertionError('fill_() saturates as well')
except RuntimeError as error:
    print('fill_(1e4):', error)
END
