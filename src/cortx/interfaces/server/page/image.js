// A model of pictures: where one is chosen, what the model says, the heat map, and a kept picture beside it.

import { boundsNote, card, Command, confidenceChoice, details, Reasons, scrolling } from "./cards.js";
import { Comparison } from "./comparison.js";
import { h } from "./dom.js";
import { number } from "./format.js";
import { HeatMap } from "./heatmap.js";
import { PictureInput, pixelsOf } from "./picture.js";
import { numbersTable } from "./waterfall.js";

const SHOWN = 5; // classes
const UNPLACED = "The server does not say where the parts of the picture lie; their attributions are in the table.";

export class ImageView {
  #kept = null;
  #drawn = null;

  /** `page` has `change(valid)`, `setConfidence(level)`, `choose(output)`, `announce(text)` and `redraw()`. */
  constructor(info, page) {
    Object.assign(this, { info, page });
    this.picture = new PictureInput(info.image, info.examples ?? [], page.change);
    this.heat = info.image.grid || info.image.parts ? new HeatMap(info, page.redraw) : null;
    this.reasons = new Reasons("The strongest parts");
    this.command = new Command();
    this.classes = h("ol", { class: "classes" });
    this.note = h("p", { class: "quiet small" });
    this.numbers = h("div");
    const keep = { type: "button", class: "button", disabled: true, onclick: () => this.#keep() };
    this.keepButton = h("button", keep, "Keep this picture");
    const tools = h("div", { class: "together" }, this.keepButton);
    this.input = [h("h2", { id: "input-title" }, "The picture"), this.picture.element, tools];
    this.compare = new Comparison(info, this.heat?.look ?? null, {
      redraw: page.redraw,
      goBack: () => this.#goBack(),
      forget: () => this.#forget(),
    });
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
      this.compare.element,
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
    const { explanation, image } = answer;
    const pixels = pixelsOf(this.info.image, image);
    this.#drawn = { explanation, output: view.output, image, pixels, name: this.picture.nameOf(image) };
    this.keepButton.disabled = false;
    this.heat?.draw(pixels, view);
    this.compare.draw(this.#kept, this.#drawn);
    this.#drawClasses(view, explanation.prediction ?? {});
    this.note.textContent = boundsNote(this.info, view, confidence);
    this.numbers.replaceChildren(scrolling("All numbers", numbersTable(view)));
    this.reasons.draw(view);
  }

  #keep() {
    this.#kept = this.#drawn;
    this.page.redraw();
    this.page.announce("This picture is kept. Other pictures and classes are now compared with it.");
  }

  #goBack() {
    const { image, name, output } = this.#kept;
    this.picture.show(image, name);
    this.page.choose(output);
  }

  #forget() {
    this.#kept = null;
    this.page.redraw();
    this.keepButton.focus();
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
