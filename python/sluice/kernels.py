"""The kernels that a job fixes for its workers (training.kernels), and those of this process.

Each library chooses the kernels of the newest instructions that the processor has, and kernels of
different instructions round differently. The libraries read variables of the environment when they
are loaded or first compute: `sluice run` and the operator set them for the programs that they
start, and a program that is started otherwise must be given them.
"""

import ctypes
import os
import re
import shlex
import sys
import typing

import numpy as np

from sluice import errors

_NAMES = {2: 'x86-64-v3', 3: 'x86-64-v4'}  # TrainingSpec.Kernels

# services/protocol/kernels.cc has the same.
_BLAS, _TORCH, _MKL = 'OPENBLAS_CORETYPE', 'ATEN_CPU_CAPABILITY', 'MKL_CBWR'
_NUMPY = 'NPY_DISABLE_CPU_FEATURES'
_VARIABLES = {
    'x86-64-v3': {
        _BLAS: 'Haswell',
        _TORCH: 'avx2',
        _MKL: 'AVX2,STRICT',
        _NUMPY: 'X86_V4 AVX512_ICL AVX512_SPR AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL',
    },
    'x86-64-v4': {
        _BLAS: 'SkylakeX',
        _TORCH: 'avx512',
        _MKL: 'AVX512,STRICT',
        _NUMPY: 'AVX512_ICL AVX512_SPR AVX512_CLX AVX512_CNL',
    },
}
_INSTRUCTIONS = {'x86-64-v3': ['avx2', 'fma', 'bmi1', 'bmi2']}
_INSTRUCTIONS['x86-64-v4'] = _INSTRUCTIONS['x86-64-v3'] + ['avx512f', 'avx512bw', 'avx512cd',
                                                           'avx512dq', 'avx512vl']


def level(spec: typing.Any) -> str:
    """The level that the job (a JobSpec) fixes: 'x86-64-v3'; empty: none."""
    if spec.training.kernels:
        return _NAMES.get(spec.training.kernels, '')
    return 'x86-64-v3' if spec.training.bit_exact else ''


def variables(spec: typing.Any) -> typing.Dict[str, str]:
    """The variables that a program must be started with to be a worker of the job."""
    return dict(_VARIABLES.get(level(spec), {}))


def check(spec: typing.Any) -> None:
    """Raises UsageError if this process cannot compute with the job's kernels, or does not. The
    variables of libraries that are not loaded yet are set."""
    wanted = level(spec)
    if not wanted:
        return
    missing = [name for name in _INSTRUCTIONS[wanted] if name not in _instructions()]
    if missing:
        other = 'x86-64-v3 or Native' if wanted == 'x86-64-v4' else 'Native'
        raise errors.UsageError(
            f'training.kernels is {wanted}, and the processor of this machine has no '
            f'{", ".join(missing)}: it should be a processor that has, or the job should have '
            f'`training.kernels: {other}`')

    values = _VARIABLES[wanted]
    wrong = _wrong_numpy(values)
    if 'torch' in sys.modules:
        wrong += _wrong_torch(values)
    else:
        os.environ.update({name: value for name, value in values.items()
                           if name not in (_BLAS, _NUMPY)})
    if not wrong:
        return
    settings = ' '.join(f'{name}={shlex.quote(value)}' for name, value in values.items())
    raise errors.UsageError(
        f'the job fixes the kernels of its workers at {wanted} (training.kernels), and this process '
        f'computes with others: {"; ".join(wrong)}. The libraries choose when they are loaded, by '
        'variables of the environment, which `sluice run` and the operator set. Start this program '
        'with\n'
        f'  {settings} {shlex.join(["python3", *sys.argv])}\n'
        'or set them in os.environ before numpy, torch and sluice are imported; or give the job '
        '`training.kernels: Native`, with which equal bits need processors of one kind')


def fix_torch(spec: typing.Any) -> None:
    """Switches oneDNN off if the job fixes its kernels: it divides its work by the sizes of the
    processor's caches as well, which no level fixes."""
    if level(spec):
        import torch
        torch.backends.mkldnn.enabled = False


def environment(spec: typing.Any, uses_torch: bool) -> typing.Dict[str, typing.Any]:
    """What the bits of this worker's results depend on, for library.Handle.describe."""
    # numpy's and torch's may be two libraries.
    libraries = sorted(_openblas(), key=lambda library: ('numpy' in library._name) == uses_torch)
    names = [_text(library, 'get_corename') for library in libraries]
    versions = [' '.join(_text(library, 'get_config').split()[:2]) for library in libraries]
    if uses_torch:
        import torch
        config = torch.__config__.show()
        mkl = re.search(r'Math Kernel Library Version (\S+)', config)
        if mkl:  # numpy's OpenBLAS is another library
            names, versions = [], [f'MKL {mkl[1]}']
        natively = [f'OpenBLAS {name}' for name in names[:1]] + [f'ATen {_capability(config)}']
        library = [f'PyTorch {libtorch(torch.__version__)}', *versions[:1]]
        threads = torch.get_num_threads()
    else:
        natively = [f'OpenBLAS {name}' for name in names[:1]]
        library = [f'NumPy {np.__version__}', *versions[:1]]
        threads = (_call(libraries[0], 'get_num_threads', ctypes.c_int) or 0) if libraries else 0
    return {'kernels': level(spec) or ', '.join(natively), 'library': ', '.join(library),
            'threads': threads}


def libtorch(version: str) -> str:
    """The version of LibTorch in a PyTorch, as C++ programs that link it state it: 1.13.0 of Debian's 1.13.0a0."""
    return version.partition('+')[0].removesuffix('a0')


def set_threads(threads: int) -> None:
    """Of OpenBLAS, which torch.set_num_threads does not reach; 0: as they are."""
    for library in _openblas() if threads else []:
        _call(library, 'set_num_threads', None, threads)


def _wrong_numpy(values):
    wrong = []
    for library in _openblas():
        core = _text(library, 'get_corename')
        if core.lower() != values[_BLAS].lower():
            wrong.append(f'OpenBLAS with kernels for {core}')
    used = [name for name in values[_NUMPY].split() if name in _numpy_kernels()]
    if used:
        wrong.append(f'NumPy with {", ".join(used)}')
    return wrong


def _wrong_torch(values):
    wrong = []
    import torch
    capability = _capability(torch.__config__.show())
    if capability.lower() != values[_TORCH]:
        wrong.append(f'PyTorch with {capability}')
    # What MKL has chosen cannot be asked.
    if torch.backends.mkl.is_available() and os.environ.get(_MKL) != values[_MKL]:
        wrong.append(f'{_MKL} is {os.environ.get(_MKL, "not set")}')
    return wrong


def _capability(config):
    found = re.search(r'CPU capability usage: (.+)', config)
    return found[1].strip() if found else 'unknown kernels'


def _numpy_kernels():
    """The instructions for which numpy has kernels of its own, and uses them."""
    try:
        from numpy._core import _multiarray_umath  # since NumPy 2
    except ImportError:
        from numpy.core import _multiarray_umath
    features = getattr(_multiarray_umath, '__cpu_features__', {})
    return {name for name in getattr(_multiarray_umath, '__cpu_dispatch__', []) if features.get(name)}


def _instructions():
    with open('/proc/cpuinfo', encoding='utf-8', errors='replace') as file:
        for line in file:
            if line.startswith('flags'):
                return set(line.split())
    return set()


def _openblas():
    """Every OpenBLAS that this process has loaded: each package may bring its own."""
    try:
        with open('/proc/self/maps', encoding='utf-8', errors='replace') as file:
            paths = {line.split(maxsplit=5)[5].strip() for line in file if 'openblas' in line}
    except OSError:
        return []
    libraries = []
    for path in sorted(paths):
        if 'openblas' not in os.path.basename(path):
            continue
        library = ctypes.CDLL(path)
        if _function(library, 'get_corename') is not None:
            libraries.append(library)
    return libraries


def _function(library, name):
    for prefix in ('', 'scipy_'):
        for suffix in ('', '64_', '_64'):
            function = getattr(library, f'{prefix}openblas_{name}{suffix}', None)
            if function is not None:
                return function
    return None


def _call(library, name, result, *arguments):
    function = _function(library, name)
    if function is None:
        return None
    function.restype = result
    return function(*arguments)


def _text(library, name):
    return (_call(library, name, ctypes.c_char_p) or b'').decode()
