"""`keep_freed_memory`, in processes of their own: it holds until the process ends."""

import os
import subprocess
import sys

import pytest
from optnoise import cli, cli_audit, cli_finetune

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


class Begun(Exception):
    """The training began."""


@pytest.mark.parametrize("command", ["finetune", "finetune --check", "demo", "audit"])
def test_the_commands_that_train_keep_memory_before_they_begin(command, monkeypatch, tmp_path):
    calls = []

    def begin(*_, **__):
        raise Begun

    monkeypatch.setattr("optnoise.finetune.memory.keep_freed_memory", lambda: calls.append(command))
    monkeypatch.setattr("optnoise.finetune.runs.run_recipe", begin)
    monkeypatch.setattr("optnoise.cli_finetune._print_check", begin)
    monkeypatch.setattr("optnoise.demo.run_demo", begin)
    monkeypatch.setattr("optnoise.finetune.audit.rerun.audit_rerun", begin)
    run = {
        "finetune": lambda: cli_finetune.finetune("demo", output_dir=tmp_path),
        "finetune --check": lambda: cli_finetune.finetune("demo", check=True),
        "demo": lambda: cli.demo(tmp_path),
        "audit": lambda: cli_audit._reruns(None, 1, 1, 0.95, 0, False),
    }[command]
    with pytest.raises(Begun):
        run()
    assert calls == ([] if command.endswith("check") else [command])
