// The heat map of a picture, beside it the parts whose sign is certain, and the key to the colours.

import { freshId, h, say, segments } from "./dom.js";
import { number, percent, signed } from "./format.js";
import { certainText, HeatCanvas } from "./heat.js";

const LOOKS = [["smooth", "Smoothed"], ["raw", "Raw"]];
const COARSE = 8; // parts along a side, below which smoothing would hide more than it shows
const NOTHING = "\u00a0"; // keeps the line's height

export class HeatMap {
  #view = null;

  /** `redraw` is called when another look was chosen; others may share `look`. */
  constructor(info, redraw) {
    const { image } = info;
    this.info = info;
    this.look = { smooth: !image.grid || Math.min(...image.grid) >= COARSE, opacity: 0.85 };
    const drawn = segments("How the heat map is drawn", LOOKS, this.look.smooth ? "smooth" : "raw", (value) => {
      this.look.smooth = value === "smooth";
      redraw();
    });
    const id = freshId("opacity");
    const opacity = h("input", { id, type: "range", min: 0, max: 1, step: 0.05, value: this.look.opacity });
    opacity.addEventListener("input", () => {
      this.look.opacity = Number(opacity.value);
      redraw();
    });
    const pointed = (part) => (this.reading.textContent = part === null ? NOTHING : this.#words(part));
    this.all = new HeatPanel(image, pointed);
    this.certain = new HeatPanel(image, pointed);
    this.key = new HeatKey();
    this.reading = h("p", { class: "quiet small reading" }, NOTHING);
    this.element = h(
      "div",
      { class: "heat-place" },
      h("div", { class: "options" }, drawn, h("label", { for: id }, "Opacity"), opacity),
      h("div", { class: "heat-panels" }, this.all.element, this.certain.element),
      this.key.element,
      this.reading,
    );
  }

  draw(pixels, view) {
    this.#view = view;
    const { smooth } = this.look;
    const most = this.all.heat.reach(view.steps.map((step) => step.amount), smooth);
    this.all.heat.draw(pixels, view, { ...this.look, most });
    say(this.all.title, explained(view));
    this.certain.element.hidden = !view.bounded;
    if (view.bounded) {
      this.certain.heat.drawCertain(pixels, view, { ...this.look, most });
      say(this.certain.title, `Sign certain: ${certainText(view)}`);
    }
    this.key.draw(most, view.decimals, meant(this.info, view), view.bounded ? [view.confidence] : []);
  }

  #words(part) {
    if (!this.#view?.steps[part]) return NOTHING;
    const { steps, decimals } = this.#view;
    const { player, amount, band } = steps[part];
    const sure = band ? `, between ${signed(band[0], decimals)} and ${signed(band[1], decimals)}` : "";
    return `${player}: ${signed(amount, decimals)}${sure}`;
  }
}

/** A heat map with a title. */
export class HeatPanel {
  constructor(image, pointed) {
    this.heat = new HeatCanvas(image, pointed);
    this.title = h("figcaption", { class: "heat-title" });
    this.element = h("figure", {}, this.title, this.heat.canvas);
  }
}

/** What the colours mean, from which number to which, and of what; below it what hatching means. */
export class HeatKey {
  constructor() {
    this.ends = [h("span"), h("span")];
    const ramp = h("span", { class: "heat-ramp", "aria-hidden": "true" });
    this.what = h("p");
    this.meaning = h("span");
    this.hatched = h("p", { class: "heat-hatched" }, h("span", { "aria-hidden": "true" }), this.meaning);
    const bar = h("div", { class: "heat-bar" }, this.ends[0], ramp, this.ends[1]);
    this.element = h("div", { class: "heat-key" }, bar, this.what, this.hatched);
  }

  /** `levels` are the confidences of the bounds that are drawn. */
  draw(most, decimals, what, levels) {
    this.ends[0].textContent = `lowers (${signed(-most, decimals)})`;
    this.ends[1].textContent = `raises (${signed(most, decimals)})`;
    this.what.textContent = what;
    this.hatched.hidden = !levels.length;
    const known = [...new Set(levels.filter((level) => level !== null))].map((level) => percent(level));
    const at = known.length ? ` at ${known.join(" and ")}` : "";
    this.meaning.textContent = `may raise or lower it: bounds${at} hold zero`;
  }
}

const named = ({ output }) => output !== "output";

/** The class that is explained, and the model's output for it. */
export function explained(view) {
  const said = number(view.prediction, Math.max(3, view.decimals));
  return named(view) ? `For ${view.output}: ${said}` : `Output ${said}`;
}

/** What is raised and lowered, and its unit; `views` of several classes share it. */
export function meant(info, ...views) {
  const what = info.output === "probability" ? "the probability (0 to 1)" : "the model’s output";
  if (!named(views[0])) return what;
  const alike = views.every((view) => view.output === views[0].output);
  return `${what} of ${alike ? views[0].output : "the class above each heat map"}`;
}
