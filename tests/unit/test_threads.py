"""How many threads and workers: affinity, cgroup quotas, variables, `threads=`, and what kind of work it is."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.conftest import make_model, make_tiny_recipe

import cortx
from cortx import threads
from cortx.distributed.local import LocalEngine
from cortx.errors import InputError
from cortx.games.models import TorchModel

V2 = "30 23 0:28 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 {mounted} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
)


def system(root: Path, mountinfo: str, cgroup: str, files: Mapping[str, str]) -> Path:
    """A folder that looks like the parts of / that say what a process may use."""
    all_files = {"proc/self/mountinfo": mountinfo, "proc/self/cgroup": cgroup, **files}
    for name, text in all_files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("text", "cpus"), [("max 100000\n", None), ("150000 100000\n", 1.5), ("50000 100000\n", 0.5), ("oh dear", None)]
)
def test_quota_of_cgroup_v2(tmp_path: Path, text: str, cpus: float | None) -> None:
    assert threads.cpu_quota(system(tmp_path, V2, "0::/\n", {"sys/fs/cgroup/cpu.max": text})) == cpus


def test_the_tightest_quota_above_a_cgroup_counts(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/a/cpu.max": "200000 100000",
        "sys/fs/cgroup/a/b/cpu.max": "max 100000",
        "sys/fs/cgroup/a/b/c/cpu.max": "600000 100000",
        "sys/fs/cgroup/other/cpu.max": "1000 100000",
    }
    assert threads.cpu_quota(system(tmp_path, V2, "0::/a/b/c\n", files)) == 2


def test_a_cgroup_that_is_not_below_the_mount_is_the_mounted_one(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/cpu.max": "300000 100000"}  # a container that sees its host's path
    assert threads.cpu_quota(system(tmp_path, V2, "0::/../outside\n", files)) == 3
    mounts = V2.replace(" / /sys", " /kubepods/pod1 /sys")
    assert threads.cpu_quota(system(tmp_path, mounts, "0::/kubepods/pod1\n", files)) == 3


@pytest.mark.parametrize(("quota", "cpus"), [("-1", None), ("250000", 2.5), ("0", None)])
@pytest.mark.parametrize("mounted", ["/", "/docker/1"])
def test_quota_of_cgroup_v1(tmp_path: Path, quota: str, cpus: float | None, mounted: str) -> None:
    folder = "sys/fs/cgroup/cpu,cpuacct" + ("/docker/1" if mounted == "/" else "")
    files = {f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": "100000"}
    cgroup = "3:cpuset:/docker/1\n2:cpu,cpuacct:/docker/1\n0::/\n"
    assert threads.cpu_quota(system(tmp_path, V1.format(mounted=mounted), cgroup, files)) == cpus


def test_without_cgroups_there_is_no_quota(tmp_path: Path) -> None:
    assert threads.cpu_quota(tmp_path) is None


@pytest.mark.parametrize(("quota", "cpus"), [(None, 4), (2.0, 2), (1.2, 2), (0.3, 1), (64.0, 4)])
def test_available_cpus_are_affinity_and_quota_rounded_up(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, cpus: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(threads, "_quota_of_this_process", lambda: quota)
    assert threads.available_cpus() == cpus
    assert LocalEngine().workers == cpus


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, 8),
        ({"OMP_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "4,2"}, 4),
        ({"MKL_NUM_THREADS": "2", "OMP_NUM_THREADS": "5"}, 2),
        ({"OMP_NUM_THREADS": "64"}, 8),
        ({"OMP_NUM_THREADS": "many"}, 8),
        ({"CORTX_THREADS": "12", "OMP_NUM_THREADS": "2"}, 12),
    ],
)
def test_variables(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: int) -> None:
    monkeypatch.setattr(threads, "available_cpus", lambda: 8)
    assert threads.available_threads(environment) == expected


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "2"])
def test_wrong_numbers_of_threads_are_refused(bad: object) -> None:
    explainer = cortx.CoRTX(threads=bad)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="threads must be a whole number, 1 or more, or None"):
        explainer.fit(cortx.Game(make_model(), reference="zero"), np.zeros((20, 6)))
    with pytest.raises(InputError, match="CORTX_THREADS must be a whole number, 1 or more, got 'all'"):
        threads.asked_threads(None, {"CORTX_THREADS": "all"})


def test_in_a_process_of_its_own() -> None:
    """What a fresh process with one CPU of several, and one with CORTX_THREADS, makes of it."""
    script = textwrap.dedent(
        """
        import os, sys
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        import torch
        from cortx import threads
        torch.set_num_threads(6)
        print(threads.available_cpus(), threads.torch_threads())
        with threads.limited():
            print(torch.get_num_threads())
        os.environ["CORTX_THREADS"] = "3"
        with threads.limited():
            print(torch.get_num_threads())
            with threads.work(large=False):
                print(torch.get_num_threads())
        print(torch.get_num_threads())
        """
    )
    clean = {name: value for name, value in os.environ.items() if not name.endswith("_THREADS")}
    done = subprocess.run([sys.executable, "-c", script], env=clean, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1", "1", "3", "3", "6"]


# What torch uses -------------------------------------------------------------------------------------------------


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may use eight threads. Torch is only told so: several threads on a busy machine take minutes."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CORTX_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "available_cpus", lambda: 8)
    told = [8]
    monkeypatch.setattr(torch, "get_num_threads", lambda: told[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda count: told.__setitem__(0, count))


def test_small_work_has_one_thread_and_large_work_inside_it_has_all(eight: None) -> None:
    with threads.work(large=False):
        assert torch.get_num_threads() == 1
        with threads.work(large=True):
            assert torch.get_num_threads() == 8
        assert torch.get_num_threads() == 1
    with threads.limited(3), threads.work(large=False):
        assert torch.get_num_threads() == 3  # asked for
    assert torch.get_num_threads() == 8


def test_what_torch_is_set_to_is_a_limit(eight: None) -> None:
    torch.set_num_threads(2)
    with threads.limited():
        assert torch.get_num_threads() == 2
    torch.set_num_threads(16)
    with threads.limited():
        assert torch.get_num_threads() == 8
    assert torch.get_num_threads() == 16


def test_threads_are_put_back_after_an_error(eight: None) -> None:
    with pytest.raises(ZeroDivisionError), threads.work(large=False):
        _ = 1 / 0
    assert torch.get_num_threads() == 8


def test_work_side_by_side_in_one_process_leaves_the_number_as_it_was(eight: None) -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with threads.limited(2):
            inside.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with threads.limited(3):
        thread.start()
        inside.wait()
    leave.set()
    thread.join()
    assert torch.get_num_threads() == 8


def test_which_modules_are_large() -> None:
    def large(*layers: torch.nn.Module) -> bool:
        return TorchModel(torch.nn.Sequential(*layers), "raw").large

    assert not large(torch.nn.Linear(6, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    assert large(torch.nn.Linear(512, 512))
    assert large(torch.nn.Conv2d(3, 4, 3))
    assert not large(torch.nn.Embedding(100_000, 4))


class Watch(torch.nn.Module):
    """A model that notes the threads it is called with."""

    def __init__(self, *, large: bool) -> None:
        super().__init__()
        self.layer = make_model()
        self.unused = torch.nn.Linear(1024, 1024) if large else None
        self.seen: set[int] = set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add(torch.get_num_threads())
        result: torch.Tensor = self.layer(x)
        return result


def test_fits_train_on_one_thread_and_ask_large_models_with_all(
    eight: None, monkeypatch: pytest.MonkeyPatch, table: np.ndarray
) -> None:
    from cortx.training import step

    training: set[int] = set()
    eager = step.Step._eager

    def noting(self: step.Step, inputs: list[torch.Tensor]) -> torch.Tensor:
        training.add(torch.get_num_threads())
        return eager(self, inputs)

    monkeypatch.setattr(step.Step, "_eager", noting)
    recipe = make_tiny_recipe(steps=4)
    for large, asked, trains, asks in ((False, None, 1, 1), (True, None, 1, 8), (False, 2, 2, 2)):
        training.clear()
        model = Watch(large=large)
        explainer = cortx.CoRTX(recipe, threads=asked)
        explainer.fit(cortx.Game(model, reference="zero"), table[:60], n_labels=20, progress=False)
        explainer.explain(table[:5])
        assert (training, model.seen) == ({trains}, {asks})
        assert torch.get_num_threads() == 8


def test_threads_is_a_parameter() -> None:
    assert cortx.CoRTX(threads=2).get_params()["threads"] == 2
    assert cortx.CoRTX().set_params(threads=4).threads == 4
    assert cortx.CoRTX().get_params()["threads"] is None
