"""Settings for every test: no hub, no per-example deadline (the machine may be busy), reproducible examples."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run in one process per core already

from hypothesis import settings

settings.register_profile("default", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("default")
