"""The CPU quota of a container, which the number of processors ignores (services/common/process/processors.h)."""

import math
import os
import pathlib


def quota(membership=pathlib.Path('/proc/self/cgroup'), root=pathlib.Path('/sys/fs/cgroup')):
    """The number of processors of this process's quota, rounded up; 0 if it has none that matters."""
    smallest = 0
    for line in _text(membership).splitlines():
        parts = line.split(':', 2)
        if len(parts) < 3 or (parts[1] and 'cpu' not in parts[1].split(',')):
            continue
        mount = root / parts[1]
        # In a container, the path may be the host's, and the group is the mount itself.
        group = mount / parts[2].lstrip('/')
        for each in [group, *group.parents]:
            limit = _quota_of(each)
            smallest = min(smallest, limit) if smallest and limit else smallest or limit
            if each == mount:
                break
    return smallest if smallest < (os.cpu_count() or 1) else 0


def _quota_of(group):
    both = (_text(group / 'cpu.max').split() + ['', ''])[:2]
    if not both[0]:
        both = [_text(group / 'cpu.cfs_quota_us'), _text(group / 'cpu.cfs_period_us')]
    try:
        return max(0, math.ceil(float(both[0]) / float(both[1])))
    except (ValueError, ZeroDivisionError, OverflowError):  # "max", or no such file
        return 0


def _text(path):
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ''
