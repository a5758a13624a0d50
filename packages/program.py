#!/usr/bin/env python3
"""Replaces itself by the program of its name in the package sluice, without loading the package."""

import importlib.util
import os
import sys

program = os.path.join(os.path.dirname(importlib.util.find_spec('sluice').origin), 'bin', os.path.basename(sys.argv[0]))
# For workers that are programs in Python: `python3` is the interpreter that has the package.
os.environ['PATH'] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get('PATH', os.defpath)])
os.execv(program, [program] + sys.argv[1:])
