"""The code of docs/mechanisms.md runs, in the order in which it stands there."""

import subprocess
import sys

import pages

PAGE = "docs/mechanisms.md"


def test_the_page_runs_from_top_to_bottom(tmp_path):
    code = pages.snippets(PAGE)
    assert len(code) == 4
    assert "0 of 23 checks failed" in pages.run_python("\n".join(code), tmp_path)


def test_the_file_of_a_noise_becomes_the_command_line(tmp_path):
    file = tmp_path / "two_scales.py"
    end = 'if __name__ == "__main__":\n    optnoise.cli.main()\n'
    file.write_text("\n".join(["import optnoise.cli", pages.snippets(PAGE)[0], end]))
    command = [sys.executable, str(file), "account", "two_scales:near=1,far=3,weight=0.2", "--delta", "1e-3"]
    found = subprocess.run([*command, "--dimension", "5"], capture_output=True, text=True, check=True)
    assert "two_scales:near=1.0,far=3.0,weight=0.2" in found.stdout
    assert "the guarantee is the upper end" in found.stdout


def test_every_family_stands_on_the_page():
    from optnoise.mechanisms import FAMILIES

    text = pages.text_of(PAGE)
    assert all(f"`{name}`" in text for name in FAMILIES)
