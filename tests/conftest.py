"""One thread per process, as the suite runs in as many as there are cores; and checked types.

Costs that tests measure are not kept among the user's.
"""

import os

import typechecker

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["DRAFTPROOF_PROFILES"] = "off"
typechecker.install()
