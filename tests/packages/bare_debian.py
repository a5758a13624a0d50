"""A bare Debian 12, in which packages are installed and programs run.

    with BareDebian('python3') as debian:
        debian.run('python3', '--version')

debootstrap makes it from the mirror that apt of this machine uses, and the wanted packages of Debian are added to it. Both
are kept in ~/.cache/sluice/debian; what a test changes is in an overlay of its own, which ends with it. Each command has
its own mounts and processes, which end with the command.
"""

import fcntl
import os
import pathlib
import pwd
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

RELEASE = 'bookworm'
CACHE = pathlib.Path(os.environ.get('XDG_CACHE_HOME') or pathlib.Path(pwd.getpwuid(os.getuid()).pw_dir) / '.cache') / 'sluice/debian'
# No service starts, nothing is asked, and dpkg does not wait for the disk.
APT = ['env', 'DEBIAN_FRONTEND=noninteractive', 'apt-get', '-y', '-qq', '-o', 'DPkg::Options::=--force-unsafe-io', '-o', 'Dpkg::Use-Pty=0']
# The mounts of a command: the overlay, and what programs expect of a system.
ENTER = '''
set -e
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/changes,workdir=$2/work" "$2/root"
mount -t proc proc "$2/root/proc"
mount --rbind /dev "$2/root/dev"
mount -t tmpfs tmpfs "$2/root/dev/shm"
cp -L /etc/resolv.conf "$2/root/etc/resolv.conf"
if [ "$3" = loopback ]; then ip link set lo up; fi
root=$2/root && shift 3
exec chroot "$root" "$@"
'''


class Failed(Exception):
    """A command failed; the message has its output."""


def _output(command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace', check=False,
                          stdin=subprocess.DEVNULL, **more)
    if done.returncode != 0:
        raise Failed(f'{shlex.join(map(str, command))} returned {done.returncode}:\n{done.stdout[-4000:]}')
    return done.stdout


def mirror():
    """The mirror from which apt of this machine takes Debian 12; None without one."""
    lines = subprocess.run(['apt-get', 'indextargets', '--format', '$(SITE) $(RELEASE)'], capture_output=True, text=True, check=False)
    return next((line.split()[0] for line in lines.stdout.splitlines() if line.split()[1:] == [RELEASE]), None)


def need():
    """Skips the test if this machine cannot make a bare Debian: the reason is what it lacks."""
    if os.getuid() != 0:
        raise unittest.SkipTest('a chroot needs root')
    if shutil.which('debootstrap', path='/usr/sbin:/usr/bin') is None:
        raise unittest.SkipTest('there is no debootstrap (tools/install_dependencies.sh installs it)')
    if mirror() is None:
        raise unittest.SkipTest(f'apt of this machine has no source of Debian {RELEASE}')
    try:
        _output(['unshare', '--mount', '--pid', '--fork', '--net', 'true'])
    except Failed:
        raise unittest.SkipTest('cannot make mount, process and network namespaces') from None
    with tempfile.TemporaryDirectory() as directory:
        try:
            _output(['/usr/lib/apt/apt-helper', 'download-file', f'{mirror()}/dists/{RELEASE}/Release', f'{directory}/Release'])
        except Failed:
            raise unittest.SkipTest(f'{mirror()} is not reachable') from None


def _base():
    """The directory of the system that debootstrap made, which is made if it is missing."""
    base = CACHE / 'base'
    if not base.exists():
        new = CACHE / 'base.new'
        shutil.rmtree(new, ignore_errors=True)
        _output(['debootstrap', '--variant=minbase', RELEASE, new, mirror()], env={**os.environ, 'PATH': '/usr/sbin:/usr/bin:/sbin:/bin'})
        for archive in (new / 'var/cache/apt/archives').glob('*.deb'):
            archive.unlink()
        new.rename(base)
    return base


def _with_packages(packages):
    """The directories of a system with these packages, uppermost first."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / 'lock', 'w', encoding='ascii') as lock:
        # If two tests start together, one makes them and the other waits.
        fcntl.flock(lock, fcntl.LOCK_EX)
        layers = [_base()]
        if packages:
            layer = CACHE / re.sub(r'[^\w.+-]', '_', '_'.join(packages))
            if not layer.exists():
                with BareDebian.over(layers) as debian:
                    debian.run(*APT, 'update', network=True)
                    debian.run(*APT, 'install', '--no-install-recommends', *packages, network=True)
                    debian.run('apt-get', 'clean')
                    (debian.directory / 'changes').rename(layer)
                    (debian.directory / 'changes').mkdir()
            layers.insert(0, layer)
    return layers


class BareDebian:
    """A Debian 12 with these packages of Debian and what they depend on. A context manager."""

    def __init__(self, *packages):
        self._layers = _with_packages(packages)

    @classmethod
    def over(cls, layers):
        """A system of these directories."""
        debian = cls.__new__(cls)
        debian._layers = layers
        return debian

    def __enter__(self):
        # Beside the layers, because an overlay's own directories must be on a file system that is no overlay.
        self.directory = pathlib.Path(tempfile.mkdtemp(dir=CACHE))
        for name in ('changes', 'work', 'root'):
            (self.directory / name).mkdir()
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.directory)

    def run(self, *command, network=False):
        """Runs a command in the system, and returns its output. Without `network` it has only a loopback interface."""
        unshare = ['unshare', '--mount', '--pid', '--fork', '--kill-child'] + ([] if network else ['--net'])
        return _output([*unshare, 'sh', '-c', ENTER, 'enter', ':'.join(map(str, self._layers)), self.directory,
                        'network' if network else 'loopback', *command],
                       env={'PATH': '/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin', 'LC_ALL': 'C.UTF-8', 'HOME': '/root'}, cwd='/')

    def write(self, path, content):
        """Writes a file into the system."""
        file = self.directory / 'changes' / path.lstrip('/')
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

    def install(self, *files, network=True):
        """Installs Debian packages from files, and what they depend on from the mirror."""
        for file in files:
            self.write(f'/packages/{file.name}', file.read_bytes())
        self.run(*APT, 'update', network=network)
        self.run(*APT, 'install', '--no-install-recommends', *(f'/packages/{file.name}' for file in files), network=network)
