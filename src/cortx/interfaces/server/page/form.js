// A form made from a model's description: one field for each column, its attribution beside it.

import { freshId, h, say } from "./dom.js";
import { direction, signed, sliderStep, valueText } from "./format.js";

const MANY = 14; // columns from which on a search field helps

/** One column's label, slider or list, number, and switch for a missing value. */
class Field {
  constructor(column, change) {
    Object.assign(this, { column, change, problem: "" });
    const id = freshId("field");
    this.note = h("p", { class: "field-note quiet", id: `${id}-note` });
    this.error = h("p", { class: "error", id: `${id}-error`, hidden: true });
    this.chip = h("span", { class: "chip", "aria-hidden": "true" });
    this.label = h("label", { for: id }, column.name);
    this.controls = column.kind === "category" ? this.#list(id) : this.#number(id);
    for (const control of this.controls) control.setAttribute("aria-describedby", `${id}-note ${id}-error`);
    this.missing = column.missing ? h("input", { type: "checkbox", onchange: () => this.#toggled() }) : null;
    this.element = h(
      "div",
      { class: `field field-${column.kind}` },
      h("div", { class: "field-head" }, this.label, this.chip),
      h(
        "div",
        { class: "field-controls" },
        this.controls,
        this.missing && missingLabel(this.missing, column.name),
      ),
      this.error,
      this.note,
    );
    this.#describe();
  }

  #number(id) {
    const { name, low, high, whole } = this.column;
    this.input = h("input", { id, type: "number", step: whole ? 1 : "any", inputmode: "decimal", autocomplete: "off" });
    this.input.addEventListener("input", () => this.#typed());
    if (!(high > low)) return [this.input];
    const step = sliderStep(low, high, whole);
    // The ends of a slider must be steps, or the highest value could not be reached.
    const [from, to] = whole ? [low, high] : [Math.floor(low / step) * step, Math.ceil(high / step) * step];
    this.decimals = whole ? 0 : Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    this.slider = h("input", { type: "range", min: from, max: to, step, "aria-label": `${name}, slider` });
    this.slider.addEventListener("input", () => {
      this.input.value = String(Number(Number(this.slider.value).toFixed(this.decimals)));
      this.#typed();
    });
    return [this.slider, this.input];
  }

  #list(id) {
    this.categories = [...this.column.categories];
    this.input = h("select", { id, onchange: () => this.#typed() }, this.categories.map(option));
    return [this.input];
  }

  #describe() {
    const { kind, reference, low, high } = this.column;
    const parts = [];
    if (reference !== null && reference !== undefined) parts.push(`reference ${valueText(reference)}`);
    if (kind === "number" && high > low) parts.push(`usual ${valueText(low)} to ${valueText(high)}`);
    this.usual = parts.join(" · ");
    say(this.note, this.usual);
  }

  #typed() {
    if (this.missing) this.missing.checked = false;
    this.#edited();
  }

  /** A value that is no longer missing starts from the reference, or the middle. */
  #toggled() {
    const { kind, low, high, whole, reference, categories } = this.column;
    if (!this.missing.checked && this.value === null) {
      const middle = (low + high) / 2;
      this.value = reference ?? (kind === "category" ? categories[0] : whole ? Math.round(middle) : middle);
    }
    this.#edited();
  }

  #edited() {
    this.check();
    this.change();
  }

  /** The value as JSON has it: a number, a category, or null where it is missing. */
  get value() {
    if (this.missing?.checked) return null;
    if (this.column.kind === "category") return this.categories[this.input.selectedIndex] ?? null;
    return this.input.value.trim() === "" ? null : Number(this.input.value);
  }

  set value(value) {
    const gone = value === null || value === undefined;
    if (this.missing) this.missing.checked = gone;
    if (this.column.kind === "category") {
      if (!gone && !this.categories.includes(value)) {
        this.categories.push(value);
        this.input.append(option(value));
      }
      this.input.selectedIndex = gone ? -1 : this.categories.indexOf(value);
    } else {
      this.input.value = gone ? "" : String(value);
    }
    this.check();
  }

  /** Says what is wrong with what was typed; true when nothing is. */
  check() {
    const { kind, low, high, whole, reference } = this.column;
    const gone = Boolean(this.missing?.checked);
    const value = this.value;
    this.element.classList.toggle("is-missing", gone);
    let problem = "";
    if (!gone && value === null) {
      const other = this.missing ? ", or tick “missing”" : "";
      problem = kind === "category" ? `Choose a category${other}.` : `Enter a number${other}.`;
    } else if (!gone && kind === "number" && !Number.isFinite(value)) {
      problem = "This is not a number.";
    } else if (!gone && kind === "number" && whole && !Number.isInteger(value)) {
      problem = "Enter a whole number.";
    }
    if (this.slider && !problem && !gone) this.slider.value = String(value);
    const outside = kind === "number" && !problem && !gone && high > low && (value < low || value > high);
    const far = `Outside ${valueText(low)} to ${valueText(high)}, where the explainer learned.`;
    say(this.note, outside ? far : this.usual);
    this.note.classList.toggle("warn", outside);
    this.element.classList.toggle("differs", !problem && !same(value, reference));
    this.complain(problem);
    return !problem;
  }

  complain(text) {
    this.problem = text;
    say(this.error, text);
    this.input.setAttribute("aria-invalid", text ? "true" : "false");
  }
}

function missingLabel(box, name) {
  return h("label", { class: "missing" }, box, "missing", h("span", { class: "hidden" }, ` ${name}`));
}

function option(value) {
  return h("option", {}, valueText(value));
}

export const same = (a, b) => (a ?? null) === (b ?? null);

/** All fields of a table's model, groups of columns in frames of their own. */
export class Form {
  constructor(info, change) {
    this.info = info;
    this.fields = new Map(info.columns.map((column) => [column.name, new Field(column, () => this.#changed(change))]));
    this.frames = new Map();
    this.element = h("form", { class: "fields", autocomplete: "off", onsubmit: (event) => event.preventDefault() });
    const grouped = new Map();
    for (const [player, names] of Object.entries(info.groups ?? {})) {
      if (names.length > 1 || names[0] !== player) for (const name of names) grouped.set(name, player);
    }
    for (const [name, field] of this.fields) {
      const player = grouped.get(name);
      if (player === undefined) {
        this.element.append(field.element);
        continue;
      }
      if (!this.frames.has(player)) {
        const chip = h("span", { class: "chip", "aria-hidden": "true" });
        const frame = h("fieldset", { class: "group" }, h("legend", {}, player, " ", chip));
        this.frames.set(player, { frame, chip });
        this.element.append(frame);
      }
      this.frames.get(player).frame.append(field.element);
    }
    if (this.fields.size > MANY) this.element.prepend(this.#search());
  }

  #search() {
    const label = "Find a column";
    const search = h("input", { type: "search", class: "search", placeholder: label, "aria-label": label });
    search.addEventListener("input", () => {
      const wanted = search.value.trim().toLowerCase();
      for (const [name, field] of this.fields) field.element.hidden = !name.toLowerCase().includes(wanted);
      for (const { frame } of this.frames.values()) frame.hidden = !frame.querySelector(".field:not([hidden])");
    });
    return search;
  }

  #changed(change) {
    change(this.valid);
  }

  get valid() {
    return [...this.fields.values()].every((field) => !field.problem);
  }

  get record() {
    return Object.fromEntries([...this.fields].map(([name, field]) => [name, field.value]));
  }

  set record(record) {
    for (const [name, field] of this.fields) field.value = record[name];
  }

  /** Each player's attribution beside its field; `decimals` as elsewhere on the page. */
  showAttributions(amounts, decimals) {
    for (const [player, value] of amounts) {
      const chip = this.frames.get(player)?.chip ?? this.fields.get(player)?.chip;
      if (!chip) continue;
      const text = signed(value, decimals);
      chip.textContent = text;
      chip.className = `chip ${direction(text)}`;
    }
  }

  /** Puts the server's complaint beside the field that it names; false when it names none. */
  complain(text, column) {
    const quoted = (name) => text.includes(`'${name}'`) || text.includes(`"${name}"`);
    const field = this.fields.get(column ?? [...this.fields.keys()].find(quoted));
    // The page sends one record: its position says nothing.
    field?.complain(text.replace(/^records\[0\]:? /, ""));
    return field !== undefined;
  }

  forgive() {
    for (const field of this.fields.values()) field.check();
  }
}
