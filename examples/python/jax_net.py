"""A convolutional net in JAX: `sluice run jax_net.yaml`. A worker's loss function returns the loss and its gradients, as
jax.value_and_grad does, so nothing else of the program knows of Sluice."""

import jax
import jax.numpy as jnp
import numpy as np
import sluice

CLASSES, SIZE, PATTERN = 10, 16, 5


def make_data(samples, seed):
    """Images with noise, and the pattern of the image's class at a random place."""
    patterns = np.random.default_rng(0).choice((-1.0, 1.0), (CLASSES, PATTERN, PATTERN))
    random = np.random.default_rng(seed)
    images = random.normal(0, 0.5, (samples, SIZE, SIZE)).astype(np.float32)
    labels = random.integers(CLASSES, size=samples)
    places = random.integers(SIZE - PATTERN + 1, size=(samples, 2))
    for image, label, (row, column) in zip(images, labels, places):
        image[row:row + PATTERN, column:column + PATTERN] += patterns[label]
    return images, labels


def make_model(seed):
    """The parameters by name. Any dict of float arrays is a model."""
    shapes = {'conv1.kernel': (5, 5, 1, 16), 'conv1.bias': (16,), 'conv2.kernel': (3, 3, 16, 32), 'conv2.bias': (32,),
              'dense.kernel': (32, CLASSES), 'dense.bias': (CLASSES,)}
    random = np.random.default_rng(seed)
    return {name: (random.normal(0, np.sqrt(2 / np.prod(shape[:-1])), shape) if name.endswith('kernel') else np.zeros(shape))
            .astype(np.float32) for name, shape in shapes.items()}


def forward(model, images):
    x = images[..., None]
    for layer in ('conv1', 'conv2'):
        x = jax.lax.conv_general_dilated(x, model[f'{layer}.kernel'], (1, 1), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC'))
        x = jax.nn.relu(x + model[f'{layer}.bias'])
    return x.max(axis=(1, 2)) @ model['dense.kernel'] + model['dense.bias']


def loss(model, batch):
    images, labels = batch
    chosen = jnp.take_along_axis(jax.nn.log_softmax(forward(model, images)), labels[:, None], axis=1)
    return -chosen.mean()


def main():
    job = sluice.join()
    with sluice.Worker(job, make_model(job.seed), jax.jit(jax.value_and_grad(loss))) as worker:
        for batch in worker.batches(sluice.ArrayDataset(*make_data(6000, 1)), evaluation=sluice.ArrayDataset(*make_data(1000, 2))):
            mean = worker.step(batch)
            if batch.step % 50 == 0:
                print(f'step {batch.step}: loss {mean:.3f}')


if __name__ == '__main__':
    main()
