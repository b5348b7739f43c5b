// Parts that tables and pictures share.

import { freshId, h } from "./dom.js";
import { number, percent } from "./format.js";

const LEVELS = [0.8, 0.9, 0.95, 0.99];

export function card(id, title, ...children) {
  return h("section", { class: "card", "aria-labelledby": id }, title && h("h2", { id }, title), children);
}

export const details = (title, ...children) => h("details", {}, h("summary", {}, title), children);

/** A region that can be scrolled sideways, with the keyboard too. */
export const scrolling = (label, child) =>
  h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, child);

/** How sure the bounds shall be; null where the explainer has none. */
export function confidenceChoice({ confidence }, change) {
  if (!confidence) return null;
  const levels = LEVELS.filter((level) => level <= confidence.highest && level !== confidence.default);
  const options = [...levels, confidence.default].sort((a, b) => a - b);
  const list = h("select", { id: freshId("confidence") }, options.map((level) => h("option", {}, percent(level))));
  list.append(h("option", {}, "none"));
  list.selectedIndex = options.indexOf(confidence.default);
  list.addEventListener("change", () => change(options[list.selectedIndex] ?? null));
  return h("span", {}, h("label", { for: list.id }, "Bounds "), list);
}

/** What bounds promise, in words. */
export function boundsNote(info, view, confidence) {
  if (!info.confidence) return "This explainer is not calibrated, so it has no bounds.";
  if (!view.bounded || confidence === null) return "";
  const bound = number(view.errorBound, view.decimals + 1);
  const whole = view.errorBound === null ? "" : ` The whole explanation is off by at most ${bound} (l2 distance).`;
  const [what, rows] = info.kind === "image" ? ["Bounds", "pictures"] : ["Whiskers", "rows"];
  const where = `in at least ${percent(confidence)} of ${rows} like those of the calibration`;
  return `${what} hold for all attributions at once, ${where}.${whole}`;
}

/** The strongest reasons as sentences. */
export class Reasons {
  constructor(title) {
    this.list = h("ol", { class: "reasons" });
    this.element = card("reasons-title", title, this.list);
  }

  draw({ reasons }) {
    const side = (reason) => (reason.contribution >= 0 ? "up" : "down");
    const lines = reasons.map((reason) => h("li", { class: side(reason) }, reason.text));
    const none = h("li", { class: "none" }, "Nothing moves the output from its base value.");
    this.list.replaceChildren(...(lines.length ? lines : [none]));
  }
}

/** The same question as a command, for people who write programs. */
export class Command {
  constructor() {
    this.code = h("code");
    this.copy = h("button", { type: "button", class: "button", onclick: () => this.#copy() }, "Copy");
    const text = h("pre", { tabindex: "0", "aria-label": "Command" }, this.code);
    this.element = h("section", { class: "card plain" }, details("Ask for this from a program", text, this.copy));
  }

  draw(body, withToken) {
    const short = body.images ? { ...body, images: ["…"] } : body;
    const content = JSON.stringify(short).replaceAll("'", "'\\''");
    const lines = [`curl -s ${new URL("explain", document.baseURI).href}`, '-H "Content-Type: application/json"'];
    if (withToken) lines.push('-H "Authorization: Bearer $TOKEN"');
    this.code.textContent = [...lines, `-d '${content}'`].join(" \\\n  ");
  }

  async #copy() {
    let said = "Copied";
    try {
      await navigator.clipboard.writeText(this.code.textContent);
    } catch {
      said = "Select the text to copy it"; // browsers allow it only on safe addresses
    }
    this.copy.textContent = said;
    setTimeout(() => (this.copy.textContent = "Copy"), 1_500);
  }
}
