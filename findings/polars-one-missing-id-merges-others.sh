#!/usr/bin/env bash
# Polars 2.1.0: one missing value makes to_torch() return a column of 64-bit ids as float64, in which ids above 2^53 merge.
#
# The conversion goes through numpy, whose integers have no missing value. The same happens to a whole frame that has a
# float column beside the ids: to_torch() makes one matrix, of float64, even if the float column is float32. Ids near 2^60 merge
# 256 at a time. to_torch("dict") keeps the types of columns without missing
# values, and to_jax() refuses.
#
# Seen (Polars 2.1.0, PyTorch 2.15.0), ids 2^60 and 2^60 + 1:
#   no missing value    torch.int64     2 different ids
#   one missing value   torch.float64   1 different id, and NaN
#   with a float32      torch.float64   1 different id
# shellcheck source=findings/common.sh
source "$(dirname "$0")/common.sh"
run_python polars==2.1.0 numpy==2.4.6 torch==2.15.0 <<'END'
import polars
import torch

ids = [2**60, 2**60 + 1]
whole = polars.Series('id', ids).to_torch()
missing = polars.Series('id', [*ids, None]).to_torch()
price = polars.Series('price', [1.5, 2.5], dtype=polars.Float32)
mixed = polars.DataFrame({'id': ids}).with_columns(price)
matrix = mixed.to_torch()
columns = mixed.to_torch('dict')

print('no missing value ', whole.dtype, len(set(whole.tolist())), 'different ids')
print('one missing value', missing.dtype, len(set(missing[:2].tolist())), 'different id')
print('with a float32   ', matrix.dtype, len(set(matrix[:, 0].tolist())), 'different id')
print('dict             ', columns['id'].dtype, len(set(columns['id'].tolist())), 'different ids')
assert whole.dtype == torch.int64 and whole[0] != whole[1]
assert missing.dtype == torch.float64 and missing[0] == missing[1]
assert matrix.dtype == torch.float64 and matrix[0, 0] == matrix[1, 0]
assert columns['id'].dtype == torch.int64 and columns['id'][0] != columns['id'][1]
END
