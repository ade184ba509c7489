"""The project itself: layout, one-way imports, the wheel, fast starts, exported names."""

import ast
import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = {
    "mechanisms": set(),
    "accounting": {"mechanisms"},
    "search": {"mechanisms", "accounting"},
    "finetune": {"mechanisms", "accounting"},
}


def imported_rooms(file: Path) -> set[str]:
    """The sibling packages that a module imports, by relative or absolute name."""
    rooms = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            absolute = node.level == 0 and (node.module or "").startswith("optnoise")
            parts = (node.module or "").split(".")
            if node.level == len(file.relative_to(ROOT).parts):  # up to the root
                rooms.update([parts[0]] if parts[0] else [alias.name for alias in node.names])
            elif absolute:
                rooms.update(parts[1:2] or [alias.name for alias in node.names])
        elif isinstance(node, ast.Import):
            rooms.update(alias.name.split(".")[1] for alias in node.names if alias.name.startswith("optnoise."))
    return rooms - {"__version__"}


@pytest.mark.parametrize("room", ALLOWED)
def test_imports_between_the_folders_run_one_way(room):
    files = sorted((ROOT / room).rglob("*.py"))
    assert files
    for file in files:
        assert imported_rooms(file) <= ALLOWED[room], file


@pytest.mark.parametrize(
    "module", ["optnoise", "optnoise.mechanisms", "optnoise.accounting", "optnoise.search", "optnoise.cli"]
)
def test_importing_starts_no_torch(module):
    script = f"import sys, {module}; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize("module", [f"optnoise.{room}" for room in ALLOWED])
def test_exported_names_exist_and_are_sorted_once(module):
    package = importlib.import_module(module)
    assert len(set(package.__all__)) == len(package.__all__)
    for name in package.__all__:
        assert hasattr(package, name)


def test_every_python_folder_of_the_package_is_listed_for_the_wheel():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {file.parent.relative_to(ROOT) for room in ALLOWED for file in (ROOT / room).rglob("*.py")}
    assert set(settings["packages"]) == {"optnoise", *(".".join(("optnoise", *folder.parts)) for folder in folders)}


def test_the_wheel_installs_and_imports_outside_the_checkout(tmp_path):
    """Built, installed without its dependencies into an empty folder, and run from elsewhere."""
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path / "dist", ROOT]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target, wheel]
    subprocess.run(pip, check=True)
    script = (
        "import sys\n"
        "from importlib.resources import files\n"
        f"sys.path.insert(0, {str(target)!r})\n"
        "import optnoise\n"
        f"assert optnoise.__file__.startswith({str(target)!r}), optnoise.__file__\n"
        "from optnoise.accounting import epsilon\n"
        "from optnoise.mechanisms import parse\n"
        "import optnoise.search, optnoise.finetune, optnoise.cli, optnoise.demo\n"
        "assert (files('optnoise.finetune') / 'recipes' / 'demo.toml').is_file()\n"
        "print(round(epsilon(parse('gaussian:noise_multiplier=1'), delta=1e-5).upper, 4))\n"
    )
    # -P keeps the working folder, -I the user's settings, out of the path; the target stands first.
    run = subprocess.run(
        [sys.executable, "-I", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "4.3772"


def test_version_is_one_number():
    import optnoise

    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == optnoise.__version__
