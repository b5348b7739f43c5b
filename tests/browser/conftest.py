"""What the browser's tests share: two artifacts, a server, a browser, a page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.browser.driving import Opened, Served, open_page, serve

import cortx


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two artifacts, fitted in seconds, and some example rows."""
    folder = tmp_path_factory.mktemp("served")
    from tests.browser import page_models as models

    rows = models.wine_rows()
    typical = pd.DataFrame({name: [rows[name].median()] for name in models.NAMES})
    typical["magnesium"] = typical["magnesium"].astype(int)
    game = cortx.Game(models.wine, reference=typical.assign(hue="middle"), output="probability")
    truth = cortx.shapley(game, rows, "exact", views=0)
    learned, fresh = np.arange(0, len(rows), 2), np.arange(1, len(rows), 2)
    explainer = cortx.CoRTX("quick").fit(game, rows, labels=(learned, truth.values[learned]))
    explainer.calibrate(truth[fresh])
    explainer.save(folder / "wine.cortx")
    rows.iloc[[0, 75, 150, 20]].to_csv(folder / "wine.csv", index=False)

    images = models.digit_images()
    budget = 900_000 if "CORTX_SCREENSHOTS" in os.environ else 90_000  # a picture worth looking at costs more
    game = cortx.Game(models.digits, reference="zero", players=cortx.Patches(2), output="probability")
    explainer = cortx.CoRTX("quick").fit(game, images[:1_200], budget=budget)
    # Precise labels, so that some parts have a certain sign.
    explainer.calibrate(cortx.shapley(game, images[1_200:1_300], row_budget=4_096, views=0))
    explainer.save(folder / "digits.cortx")
    return folder


@pytest.fixture(scope="module")
def served(artifacts: Path) -> Iterator[Served]:
    yield from serve(artifacts)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=shutil.which("chromium"))
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser: Any, served: Served) -> Iterator[Opened]:
    yield from open_page(browser, served)
