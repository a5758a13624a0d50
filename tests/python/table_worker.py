"""A worker of plain numpy whose samples read rows of a table: factors of a made-up matrix."""

import sys

import numpy as np

import sluice

ROWS, WIDTH = 500, 4


def make_data():
    generator = np.random.default_rng(5)
    pairs = generator.integers(0, ROWS, (2000, 2))
    return pairs, generator.standard_normal(2000)


def loss_fn(parameters, data):
    pairs, target = data
    table = parameters['table']
    left, right = table[pairs[:, 0]], table[pairs[:, 1]]
    error = (left * right).sum(1) + parameters['bias'] - target
    scale = 2 * error[:, None] / len(target)
    rows, places = np.unique(pairs, return_inverse=True)
    values = np.zeros((rows.size, WIDTH))
    np.add.at(values, places.reshape(pairs.shape)[:, 0], scale * right)
    np.add.at(values, places.reshape(pairs.shape)[:, 1], scale * left)
    return float(error @ error) / len(target), {'table': sluice.RowGradient(rows, values),
                                                'bias': scale.sum(keepdims=True)[0]}


def main():
    asked = []

    def rows_of(data):
        asked.append(len(data[1]))
        return data[0]

    rows = {'table': rows_of} if 'rows' in sys.argv[1:] else None
    model = {'table': np.random.default_rng(1).standard_normal((ROWS, WIDTH)), 'bias': np.zeros(1)}
    with sluice.Worker(sluice.join(), model, loss_fn, rows=rows) as worker:
        for batch in worker.batches(sluice.ArrayDataset(*make_data())):
            worker.step(batch)
    print(f'asked {len(asked)} times')


if __name__ == '__main__':
    main()
