#!/usr/bin/env bash
# XGBoost 3.2.0: a missing value ("nan") in a LibSVM file is read as 0, or as the next feature's id; ids wrap at 2^32.
#
# scikit-learn's and CatBoost's readers take "nan" and "inf" as values. XGBoost's reader does not know the words: at the end
# of a line the value becomes 0; in front of another such feature it becomes that feature's id, and that feature is gone; in
# front of a feature with a number the file is refused. Hashed 64-bit ids from 2^32 on are taken modulo 2^32. Only the
# refusal prints a message. (XGBoost has called text files deprecated since 3.1.)
#
# Seen (XGBoost 3.2.0, scikit-learn 1.9.1):
#   1 4:1 5:nan            scikit-learn {4: 1.0, 5: nan}    XGBoost {4: 1.0, 5: 0.0}
#   1 4:nan 5:nan          scikit-learn {4: nan, 5: nan}    XGBoost {4: 5.0}
#   1 2:1 4294967299:3     XGBoost {2: 1.0, 3: 3.0} (the id is 2^32 + 3)
# shellcheck source=findings/common.sh
source "$(dirname "$0")/common.sh"
run_python xgboost==3.2.0 scikit-learn==1.9.1 numpy==2.4.6 <<'END'
import os
import tempfile

import xgboost
from sklearn.datasets import load_svmlight_file

path = os.path.join(tempfile.mkdtemp(), 'rows.svm')


def pairs(rows):
    return str(dict(zip(rows.indices.tolist(), rows.data.tolist())))


def read(line, by_sklearn=True):
    with open(path, 'w', encoding='ascii') as file:
        file.write(line + '\n')
    theirs = pairs(load_svmlight_file(path, zero_based=True)[0]) if by_sklearn else '-'
    ours = pairs(xgboost.DMatrix(f'{path}?format=libsvm').get_data())
    print(f'{line:22} scikit-learn {theirs:22} XGBoost {ours}')
    return theirs, ours


assert read('1 4:1 5:nan') == ('{4: 1.0, 5: nan}', '{4: 1.0, 5: 0.0}')
assert read('1 4:nan 5:nan') == ('{4: nan, 5: nan}', '{4: 5.0}')
assert read(f'1 2:1 {2**32 + 3}:3', by_sklearn=False)[1] == '{2: 1.0, 3: 3.0}'
END
