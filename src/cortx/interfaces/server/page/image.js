// A model of pictures: where one is chosen, what the model says, and the heat map.

import { boundsNote, card, Command, confidenceChoice, details, Reasons, scrolling } from "./cards.js";
import { h } from "./dom.js";
import { number } from "./format.js";
import { HeatMap } from "./heatmap.js";
import { PictureInput } from "./picture.js";
import { numbersTable } from "./waterfall.js";

const SHOWN = 5; // classes
const UNPLACED = "The server does not say where the parts of the picture lie; their attributions are in the table.";

export class ImageView {
  /** `page` has `change(valid)`, `setConfidence(level)` and `choose(output)`. */
  constructor(info, page) {
    Object.assign(this, { info, page });
    this.picture = new PictureInput(info.image, info.examples ?? [], page.change);
    this.heat = info.image.grid || info.image.parts ? new HeatMap(info.image) : null;
    this.reasons = new Reasons("The strongest parts");
    this.command = new Command();
    this.classes = h("ol", { class: "classes" });
    this.note = h("p", { class: "quiet small" });
    this.numbers = h("div");
    this.input = [h("h2", { id: "input-title" }, "The picture"), this.picture.element];
    const options = h("div", { class: "options" }, confidenceChoice(info, page.setConfidence));
    const hint = h("p", { class: "quiet small" }, "Choose a class to see what speaks for it and against it.");
    this.output = [
      card("classes-title", "What the model says", this.classes, hint),
      card(
        "why-title",
        null,
        h("div", { class: "card-head" }, h("h2", { id: "why-title" }, "Where it looks"), options),
        this.heat?.element ?? h("p", {}, UNPLACED),
        this.note,
        details("All numbers", this.numbers),
      ),
      this.reasons.element,
      this.command.element,
    ];
  }

  /** Shows the first example, where there is one. */
  start() {
    this.picture.start?.();
  }

  question() {
    return this.picture.numbers && { images: [this.picture.numbers] };
  }

  draw(view, answer, confidence) {
    this.heat?.draw(this.picture.canvas, view);
    this.#drawClasses(view, answer.explanation.prediction ?? {});
    this.note.textContent = boundsNote(this.info, view, confidence);
    this.numbers.replaceChildren(scrolling("All numbers", numbersTable(view)));
    this.reasons.draw(view);
  }

  #drawClasses(view, prediction) {
    const best = Object.entries(prediction).sort((a, b) => b[1] - a[1]).slice(0, SHOWN);
    const lines = best.map(([name, value]) => {
      const bar = h("span", { class: "class-bar" });
      bar.style.width = `${100 * Math.max(0, Math.min(1, value))}%`;
      const button = h(
        "button",
        { type: "button", "aria-pressed": String(name === view.output), onclick: () => this.page.choose(name) },
        h("span", { class: "class-name" }, name),
        h("span", { class: "class-track" }, bar),
        h("data", { value }, number(value, 3)),
      );
      return h("li", {}, button);
    });
    const focused = [...this.classes.querySelectorAll("button")].indexOf(document.activeElement);
    this.classes.replaceChildren(...lines);
    if (focused >= 0) this.classes.querySelectorAll("button")[focused]?.focus();
  }
}
