"""Models by name: the working directory is searched last, and under Python's safe path not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import cortx
from cortx.errors import InputError
from cortx.named import load_model_from

SCRIPT = """
import sys
sys.path = [path for path in sys.path if path]  # a script elsewhere is started as the command `cortx` is
from cortx.named import load_model
print(load_model("scoring:model"))
"""
WORKERS = """
from cortx.distributed import LocalEngine
from cortx.distributed.work import Done, NamedModel

class Job:
    def __init__(self, model): self.model = model
    def open(self, device):
        found = self.model.load()
        return lambda task: Done(task.name, task.rows, result=found)

if __name__ == "__main__":
    from cortx.distributed.work import Task
    for done in LocalEngine(1).run(Job(NamedModel.of("scoring:model")), [Task("one", 1)]):
        print(done.result)
"""
PLANTED = ("json", "socket", "pickle", "selectors", "numpy", "torch", "narwhals", "onnxruntime", "colorsys")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A working directory with a model, and with files that are named as modules of Python and of others."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "scoring.py").write_text("import colorsys, socket\nmodel = colorsys.__file__\n")
    for name in PLANTED:
        (work / f"{name}.py").write_text(f"open('taken', 'a').write('{name} ')\n")
    return work


def run(place: Path, script: str, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    file = place.parent / "script.py"
    file.write_text(script)
    source = str(Path(cortx.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, *flags, str(file)]
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("script", [SCRIPT, WORKERS], ids=["here", "in a worker"])
def test_files_in_the_working_directory_do_not_take_the_place_of_libraries(place: Path, script: str) -> None:
    done = run(place, script)
    assert done.returncode == 0, done.stderr
    assert not (place / "taken").exists(), (place / "taken").read_text()
    assert str(place) not in done.stdout
    assert done.stdout.strip().endswith("colorsys.py")


@pytest.mark.parametrize("script", [SCRIPT, WORKERS], ids=["here", "in a worker"])
@pytest.mark.parametrize("safe", ["flag", "variable"])
def test_under_a_safe_path_the_working_directory_is_not_searched(place: Path, script: str, safe: str) -> None:
    done = run(place, script, "-P") if safe == "flag" else run(place, script, PYTHONSAFEPATH="1")
    assert done.returncode != 0
    assert "no module 'scoring'" in done.stderr
    assert "PYTHONSAFEPATH" in done.stderr
    assert not (place / "taken").exists()


def test_what_is_missing_is_said_with_where_it_was_looked_for(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(InputError, match=f"no module 'nowhere'.*or in {place}"):
        load_model_from(str(place), "nowhere:model")
    assert sys.path[-1] == str(place)
    with pytest.raises(InputError, match=r"there is no 'model' in .*colorsys\.py; there is .*rgb_to_hls"):
        load_model_from(str(place), "colorsys:model")
