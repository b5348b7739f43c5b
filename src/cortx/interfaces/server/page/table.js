// A model of rows: the form, the waterfall, the reasons, and what differs from other rows.

import { boundsNote, card, Command, confidenceChoice, details, Reasons, scrolling } from "./cards.js";
import { againstKept, againstReference } from "./compare.js";
import { freshId, h, segments } from "./dom.js";
import { Form } from "./form.js";
import { viewOf } from "./view.js";
import { numbersTable, Waterfall } from "./waterfall.js";

const ORDERS = [["strength", "Strongest first"], ["columns", "As in the form"]];
const OTHERS = [["reference", "The reference"], ["kept", "The kept row"]];
const SAMPLE = "Absent features are replaced by a sample of rows, so there is no single reference row to compare with.";

/** The reference as far as a row can hold it: the mean of whole numbers is seldom one. */
function nearest({ whole, reference }) {
  return whole && typeof reference === "number" ? Math.round(reference) : (reference ?? null);
}

export class TableView {
  #kept = null;
  #against = "reference";
  #shown = null;

  /** `page` has `change(valid)`, `setConfidence(level)`, `announce(text)` and `redraw()`. */
  constructor(info, page) {
    Object.assign(this, { info, page });
    this.form = new Form(info, page.change);
    this.waterfall = new Waterfall();
    this.reasons = new Reasons("The strongest reasons");
    this.command = new Command();
    this.note = h("p", { class: "quiet small" });
    this.numbers = h("div");
    this.all = h("button", { type: "button", class: "button", hidden: true, onclick: () => this.#toggleAll() });
    this.compare = card("compare-title", null);
    this.input = this.#input();
    this.output = [this.#why(), this.reasons.element, this.compare, this.command.element];
  }

  #input() {
    const { columns, examples = [] } = this.info;
    const reference = Object.fromEntries(columns.map((column) => [column.name, nearest(column)]));
    const starts = examples.filter((example) => example.record);
    if (Object.values(reference).some((value) => value !== null)) {
      starts.push({ name: "the reference row", record: reference });
    }
    const list = h("select", { id: freshId("start") }, starts.map(({ name }) => h("option", {}, name)));
    const load = () => {
      this.form.record = starts[list.selectedIndex]?.record ?? reference;
      this.page.change(this.form.valid);
    };
    list.addEventListener("change", load);
    this.form.record = starts[0]?.record ?? reference;
    this.keepButton = h("button", { type: "button", class: "button", onclick: () => this.#keep() }, "Keep this row");
    const undo = h("button", { type: "button", class: "button", onclick: load }, "Undo changes");
    return [
      h("h2", { id: "input-title" }, "The row"),
      h(
        "div",
        { class: "row-tools" },
        h("div", { class: "start" }, h("label", { for: list.id }, "Start from"), list),
        h("div", { class: "start" }, this.keepButton, undo),
      ),
      this.form.element,
    ];
  }

  #why() {
    const order = segments("Order of the features", ORDERS, "strength", (value) => {
      this.waterfall.order = value;
      this.page.redraw();
    });
    const options = h("div", { class: "options" }, order, confidenceChoice(this.info, this.page.setConfidence));
    const title = h("h2", { id: "why-title" }, "From the base value to the prediction");
    return card(
      "why-title",
      null,
      h("div", { class: "card-head" }, title, options),
      this.waterfall.element,
      h("div", { class: "together" }, this.all),
      this.note,
      details("All numbers", this.numbers),
    );
  }

  #toggleAll() {
    this.waterfall.all = !this.waterfall.all;
    this.page.redraw();
  }

  /** What is asked of the server; null while something typed is wrong. */
  question() {
    return this.form.valid ? { records: [this.form.record] } : null;
  }

  complain(text, column) {
    return this.form.complain(text, column);
  }

  forgive() {
    this.form.forgive();
  }

  get state() {
    return this.form.record;
  }

  /** Values of columns that are still there. */
  set state(record) {
    this.form.record = { ...this.form.record, ...record };
  }

  draw(view, answer, confidence) {
    if (this.#kept) {
      const kept = (this.#kept.view = viewOf(this.info, this.#kept, view.output));
      for (const step of view.steps) step.kept = kept.amounts.get(step.player) ?? null;
      view.keptPrediction = kept.prediction;
    }
    this.waterfall.draw(view);
    const hides = this.waterfall.arranged(view).length < view.steps.length;
    this.all.hidden = !hides && !this.waterfall.all;
    this.all.textContent = hides ? `Show all ${view.steps.length} features` : "Show the strongest only";
    this.form.showAttributions(view.amounts, view.decimals);
    this.note.textContent = boundsNote(this.info, view, confidence);
    this.numbers.replaceChildren(scrolling("All numbers", numbersTable(view)));
    this.reasons.draw(view);
    this.#drawComparison(view, answer);
  }

  // What differs ------------------------------------------------------------------------------------------------

  #drawComparison(view, answer) {
    const kept = this.#kept;
    // Buttons stay as they are while values change, or they would lose the focus.
    if (this.#shown !== kept || !this.body) this.#frameComparison();
    const other = kept && this.#against === "kept";
    const content = other
      ? againstKept(this.info, answer.record, view, kept)
      : againstReference(this.info, answer.record, view);
    this.body.replaceChildren(content ?? h("p", {}, SAMPLE));
  }

  #frameComparison() {
    this.#shown = this.#kept;
    this.body = h("div");
    const choice = segments("Compare with", OTHERS, this.#against, (value) => {
      this.#against = value;
      this.page.redraw();
    });
    const button = (text, onclick) => h("button", { type: "button", class: "button", onclick }, text);
    const back = button("Go back to the kept row", () => this.#goBack());
    const forget = button("Forget it", () => this.#forget());
    this.compare.replaceChildren(
      h("div", { class: "card-head" }, h("h2", { id: "compare-title" }, "What differs"), this.#kept ? choice : ""),
      this.body,
      this.#kept
        ? h("div", { class: "together" }, back, forget)
        : h("p", { class: "quiet small" }, "Keep a row to compare this one with it."),
    );
  }

  #keep() {
    const answer = this.page.answer();
    if (!answer || !this.form.valid) return;
    this.#kept = { ...answer };
    this.#against = "kept";
    this.page.redraw();
    this.page.announce("This row is kept. Changes are now compared with it.");
  }

  #goBack() {
    this.form.record = this.#kept.record;
    this.page.change(this.form.valid);
  }

  #forget() {
    this.#kept = null;
    this.#against = "reference";
    this.page.redraw();
    this.keepButton.focus();
  }
}
