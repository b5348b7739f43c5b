"""Promises about the package as a whole."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import cortx
from cortx.estimators import ESTIMATORS
from cortx.training.heads import HEADS

SOURCE = Path(cortx.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))


def test_the_public_names_are_pinned() -> None:
    assert sorted(cortx.__all__) == [
        "CoRTX",
        "CortxError",
        "Explanation",
        "Game",
        "__version__",
        "estimators",
        "load",
        "metrics",
        "plots",
        "shapley",
    ]
    for name in cortx.__all__:
        assert getattr(cortx, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'shap'"):
        _ = cortx.shap  # type: ignore[attr-defined]


def test_every_registered_name_loads() -> None:
    assert sorted(ESTIMATORS) == ["amortized", "banzhaf", "exact", "kernel", "permutation"]
    assert all(ESTIMATORS[name].name == name for name in ESTIMATORS)
    assert sorted(HEADS) == ["attribution", "ranking"]
    assert all(HEADS[name] for name in HEADS)


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import cortx", ["torch", "numpy", "pandas", "typer"]),
        ("import cortx.interfaces.cli", ["torch", "numpy", "pandas", "matplotlib"]),
        ("import cortx; cortx.Game, cortx.CoRTX", ["pandas", "polars", "sklearn", "shap", "matplotlib", "onnxruntime"]),
    ],
)
def test_heavy_libraries_wait_until_they_are_needed(statement: str, absent: list[str]) -> None:
    script = f"import sys; {statement}; print([name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_nothing_is_unpickled_or_evaluated() -> None:
    forbidden = re.compile(r"\bpickle\b(?! )|torch\.load\(|\beval\(|\bexec\(|allow_pickle=True|joblib")
    found = [
        f"{path.name}: {line}" for path in FILES for line in path.read_text().splitlines() if forbidden.search(line)
    ]
    assert [
        line for line in found if ".eval()" not in line and "never pickle" not in line and "No pickle" not in line
    ] == []


@pytest.mark.parametrize("equation", [1, 2, 4, 5])
def test_every_equation_has_one_home(equation: int) -> None:
    homes = {path.relative_to(SOURCE) for path in FILES if f"(paper Eq. {equation})" in path.read_text()}
    assert len(homes - {Path("estimators/shapley.py"), Path("explainer/explainer.py")}) == 1


def test_global_generators_are_never_used() -> None:
    forbidden = re.compile(
        r"np\.random\.(seed|rand|randn|choice|permutation|shuffle)\(|torch\.manual_seed\(|torch\.seed\("
    )
    # shap's KernelExplainer draws from NumPy's global generator; the adapter seeds it and puts its state back.
    found = [path.relative_to(SOURCE) for path in FILES if forbidden.search(path.read_text())]
    assert found == [Path("rivals/peers.py")]
