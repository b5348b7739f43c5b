"""Engines and file formats are extras: nothing needs them before they are asked for, and a missing one is named."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from tests.guard import HANG

from cortx.distributed.engines import ENGINES, make_engine
from cortx.distributed.local import LocalEngine
from cortx.errors import InputError

WITHOUT = """
    import sys

    class Missing:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in {missing!r}:
                raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

    sys.meta_path.insert(0, Missing())
    from cortx.errors import MissingDependencyError
    try:
        {statement}
    except MissingDependencyError as error:
        print(error)
    print([name for name in {absent!r} if name in sys.modules])
"""


def without(missing: list[str], statement: str, absent: tuple[str, ...] = ()) -> list[str]:
    """Runs a statement where some libraries are not installed: what it says, and what it imports of `absent`."""
    script = textwrap.dedent(WITHOUT).format(missing=missing, statement=statement, absent=absent)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=HANG)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "statement",
    [
        "import cortx, cortx.distributed",
        "import cortx.distributed.local, cortx.distributed.engines; cortx.distributed.engines.make_engine('local', 2)",
        "import cortx.interfaces.cli",
    ],
)
def test_nothing_is_needed_before_it_is_asked_for(statement: str) -> None:
    missing = ["ray", "pyspark", "pyarrow", "pandas", "polars"]
    assert without(missing, statement, ("torch", "ray", "pyspark", "pyarrow")) == ["[]"]


@pytest.mark.parametrize(
    ("missing", "statement", "extra"),
    [
        ("ray", "import cortx; cortx.ray.RayEngine()", "ray"),
        ("ray", "import cortx; cortx.ray.explain(None, 'some.cortx')", "ray"),
        ("ray", "import cortx; cortx.ray.label(None, 'module:model', 'labels', budget=10)", "ray"),
        ("ray", "from cortx.distributed.engines import make_engine; make_engine('ray')", "ray"),
        ("pyspark", "import cortx; list(cortx.spark.SparkEngine().run(None, [None]))", "spark"),
        ("pyspark", "import cortx; cortx.spark.explain(None, 'some.cortx')", "spark"),
        ("pyspark", "from cortx.distributed.engines import make_engine; make_engine('spark')", "spark"),
        ("pyarrow", "import cortx; cortx.distributed.label('module:model', 'rows/', 'labels', budget=10)", "tables"),
        ("pyarrow", "import cortx; cortx.distributed.ParquetRows('rows/')", "tables"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(missing: str, statement: str, extra: str) -> None:
    said = without([missing], statement)[0]
    assert missing in said
    assert f"pip install 'cortx-explain[{extra}]'" in said


def test_engines_by_name() -> None:
    engine = make_engine("local", workers=2)
    assert isinstance(engine, LocalEngine)
    assert (engine.name, engine.workers) == ("local", 2)
    for name in ENGINES:
        assert make_engine(name, workers=2).name == name
    with pytest.raises(InputError, match="unknown engine 'dask'; expected one of 'local', 'ray', 'spark'"):
        make_engine("dask")
    with pytest.raises(InputError, match="no address"):
        make_engine("local", address="auto")
    for name in ("local", "spark"):
        with pytest.raises(InputError, match="GPUs"):
            make_engine(name, gpus_per_worker=1)
