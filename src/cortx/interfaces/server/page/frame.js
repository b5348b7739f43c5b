// What stands around a model: tabs and colours.

import { byId } from "./dom.js";

const TABS = ["explain", "quality"];

/** Tabs as the ARIA practices have them: arrows move, one tab is in the order of Tab. */
export function setUpTabs(selected) {
  const select = (name, focus) => {
    for (const each of TABS) {
      const tab = byId(`tab-${each}`);
      tab.setAttribute("aria-selected", String(each === name));
      tab.tabIndex = each === name ? 0 : -1;
      byId(`panel-${each}`).hidden = each !== name;
      if (each === name && focus) tab.focus();
    }
    selected(name);
  };
  for (const [i, name] of TABS.entries()) {
    byId(`tab-${name}`).addEventListener("click", () => select(name, false));
    byId(`tab-${name}`).addEventListener("keydown", (event) => {
      const steps = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: TABS.length - 1 };
      if (!(event.key in steps)) return;
      event.preventDefault();
      select(TABS.at(steps[event.key] % TABS.length), true);
    });
  }
}

/** The switch of colours; the choice outlives the visit. */
export function setUpColours() {
  const chosen = document.documentElement.dataset.theme ?? "auto";
  for (const choice of document.querySelectorAll("#theme input")) {
    choice.checked = choice.value === chosen;
    choice.addEventListener("change", () => {
      if (choice.value === "auto") delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = choice.value;
      try {
        localStorage.setItem("cortx-theme", choice.value);
      } catch {
        // Storage is switched off: the choice then lasts until the page is left.
      }
    });
  }
}
