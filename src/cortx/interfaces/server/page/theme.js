// Read before anything is drawn, so that a dark page does not flash white; hence a plain script in the head.
"use strict";
(() => {
  try {
    const chosen = localStorage.getItem("cortx-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Storage is switched off: the system's colours then.
  }
})();
