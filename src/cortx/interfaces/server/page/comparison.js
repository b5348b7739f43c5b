// A picture that was kept, beside the one of now: two heat maps on one scale.

import { card, details } from "./cards.js";
import { againstKeptParts } from "./compare.js";
import { freshId, h, say, segments } from "./dom.js";
import { signed } from "./format.js";
import { explained, HeatKey, HeatPanel, meant } from "./heatmap.js";
import { viewOf } from "./view.js";

const PARTS = [["all", "All parts"], ["certain", "Certain sign only"]];
const NOTHING = "\u00a0"; // keeps the line's height

export class Comparison {
  #parts = "all";
  #views = null;

  /** `actions` has `redraw()`, `goBack()` and `forget()`; `look` is that of the heat map above, or null without one. */
  constructor(info, look, actions) {
    Object.assign(this, { info, look });
    const button = (text, onclick) => h("button", { type: "button", class: "button", onclick }, text);
    this.choice = segments("Which parts are drawn", PARTS, this.#parts, (value) => {
      this.#parts = value;
      actions.redraw();
    });
    this.numbers = h("div");
    this.content = h(
      "div",
      { class: "heat-place" },
      look ? this.#panels() : null,
      this.#classOfKept(actions.redraw),
      details("All numbers of both", this.numbers),
      h(
        "div",
        { class: "together" },
        button("Go back to the kept picture", actions.goBack),
        button("Forget it", actions.forget),
      ),
    );
    this.hint = h("p", { class: "quiet small" }, "Keep a picture to compare another picture, or another class, with it.");
    const head = h("div", { class: "card-head" }, h("h2", { id: "compare-title" }, "What differs"), this.choice);
    this.element = card("compare-title", null, head, this.hint, this.content);
    this.draw(null);
  }

  #panels() {
    const pointed = (part) => (this.reading.textContent = part === null ? NOTHING : this.#words(part));
    this.panels = [0, 1].map(() => new HeatPanel(this.info.image, pointed));
    this.key = new HeatKey();
    this.reading = h("p", { class: "quiet small reading" }, NOTHING);
    const both = this.panels.map((panel) => panel.element);
    return [h("div", { class: "heat-panels" }, both), this.key.element, this.reading];
  }

  #classOfKept(redraw) {
    const names = this.info.output_names;
    this.output = h("select", { id: freshId("kept") }, names.map((name) => h("option", { value: name }, name)));
    this.output.addEventListener("change", () => {
      this.kept.output = this.output.value;
      redraw();
    });
    const label = h("label", { for: this.output.id }, "The kept picture is explained for ");
    return names.length < 2 ? null : h("div", { class: "options" }, label, this.output);
  }

  /** `kept` and `now` have `explanation`, `output`, `pixels` and `name`; without a kept one a hint is shown. */
  draw(kept, now) {
    this.kept = kept;
    this.hint.hidden = kept !== null;
    this.content.hidden = kept === null;
    this.choice.hidden = true;
    if (kept === null) return;
    this.output.value = kept.output;
    const both = [kept, now];
    const views = both.map(({ explanation, output }) => viewOf(this.info, { explanation }, output));
    const decimals = Math.max(...views.map((view) => view.decimals));
    for (const view of views) view.decimals = decimals;
    this.#views = views;
    this.numbers.replaceChildren(againstKeptParts(views[1], views[0]));
    if (this.look) this.#drawPanels(both, views, decimals);
  }

  #drawPanels(both, views, decimals) {
    const bounded = views.every((view) => view.bounded);
    this.choice.hidden = !bounded;
    const certain = bounded && this.#parts === "certain";
    const reach = (view, i) => this.panels[i].heat.reach(view.steps.map((step) => step.amount), this.look.smooth);
    const most = Math.max(...views.map(reach));
    const places = ["Kept", "Now"];
    views.forEach((view, i) => {
      const { heat, title } = this.panels[i];
      const { pixels, name } = both[i];
      if (certain) heat.drawCertain(pixels, view, { ...this.look, most });
      else heat.draw(pixels, view, { ...this.look, most });
      say(title, `${places[i]}: ${name}. ${explained(view)}`);
    });
    this.key.draw(most, decimals, meant(this.info, ...views), certain ? views.map((view) => view.confidence) : []);
  }

  #words(part) {
    if (!this.#views?.[0].steps[part]) return NOTHING;
    const [kept, now] = this.#views.map(({ steps, decimals }) => signed(steps[part].amount, decimals));
    return `${this.#views[0].steps[part].player}: kept ${kept}, now ${now}`;
  }
}
