#!/usr/bin/env bash
# DuckDB 2.0.1: .torch() turns NULL into 0, in columns of every type and without a message.
#
# fetchnumpy() returns a masked array. torch.from_numpy() takes the memory below the mask, which DuckDB has filled with
# zeros. So a missing id becomes id 0 and trains its row, and a missing label becomes class 0. df() of the same relation
# shows the values as missing.
#
# Seen (DuckDB 2.0.1, numpy 2.4.6, PyTorch 2.15.0):
#   BIGINT   torch [7, 0, 9]               df [7, <NA>, 9]
#   DOUBLE   torch [7.0, 0.0, 9.0]         df [7.0, nan, 9.0]
#   BOOLEAN  torch [True, False, True]     df [True, <NA>, True]
# shellcheck source=findings/common.sh
source "$(dirname "$0")/common.sh"
run_python duckdb==2.0.1 numpy==2.4.6 pandas==3.1.1 torch==2.15.0 <<'END'
import duckdb

EXPECTED = {'BIGINT': [7, 0, 9], 'DOUBLE': [7.0, 0.0, 9.0], 'BOOLEAN': [True, False, True]}
connection = duckdb.connect()
for kind, expected in EXPECTED.items():
    relation = connection.sql(f'SELECT * FROM (VALUES (7::{kind}), (NULL), (9::{kind})) AS t(a)')
    tensor = relation.torch()['a'].tolist()
    frame = relation.df().a
    print(f'{kind:8} torch {str(tensor):24} df {frame.tolist()}')
    assert tensor == expected, 'NULL is no longer 0'
    assert frame.isna().tolist() == [False, True, False]
END
