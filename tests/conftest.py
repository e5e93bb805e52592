"""One thread per process, as the suite runs in as many as there are cores; and checked types."""

import os

import typechecker

os.environ.setdefault("OMP_NUM_THREADS", "1")
typechecker.install()
