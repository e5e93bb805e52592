"""One thread per process: the suite runs in as many processes as there are cores."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
