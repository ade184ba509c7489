"""`keep_freed_memory`, in processes of their own: it holds until the process ends."""

import os
import subprocess
import sys

import pytest

STEPS = """
import resource, sys
import torch
from optnoise.finetune.memory import keep_freed_memory

def step():
    kept = [torch.full((10 * 2**20,), 1.0) for _ in range(3)]  # 40 MiB each: glibc maps above 32 MiB anew
    del kept

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if sys.argv[1] == "keep":
    assert keep_freed_memory()
for _ in range(4):
    step()
before = faults()
for _ in range(2):
    step()
print(faults() - before)
"""


def faults_of(how: str) -> int:
    """Page faults of two steps of 120 MiB each, after four others; default malloc."""
    plain = {
        name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_", "LD_PRELOAD"))
    }
    run = subprocess.run([sys.executable, "-c", STEPS, how], capture_output=True, text=True, check=True, env=plain)
    return int(run.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="malloc of glibc")
def test_steps_that_allocate_the_same_again_meet_no_page_faults():
    pages = 2 * 120 * 2**20 // 4096
    assert faults_of("leave") > pages / 4
    assert faults_of("keep") < pages / 10


def test_another_c_library_is_left_alone(monkeypatch):
    from optnoise.finetune import memory

    class Musl:
        def __init__(self, name):
            assert name is None

    monkeypatch.setattr(memory.ctypes, "CDLL", Musl)
    assert memory.keep_freed_memory() is False
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    assert memory.keep_freed_memory() is False
