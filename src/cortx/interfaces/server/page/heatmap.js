// Attributions of a picture's parts as colours over it.

import { freshId, h, segments } from "./dom.js";
import { signed } from "./format.js";

// From weak to strong; red and blue stay apart for colour-blind people.
const LOWERS = [[0x3d, 0x8f, 0xd6], [0x0a, 0x4a, 0x94]];
const RAISES = [[0xef, 0x5a, 0x4c], [0xa8, 0x0f, 0x20]];
const LOOKS = [["smooth", "Smoothed"], ["raw", "Raw"]];
const SHARP = 400; // pixels of the drawing's longer side, about
const COARSE = 8; // parts along a side, below which smoothing would hide more than it shows
const MARKED = 3; // strongest parts with a frame and their place

export class HeatMap {
  #last = null;
  #smooth;
  #opacity = 0.85;

  constructor(image) {
    this.image = image;
    this.#smooth = !image.grid || Math.min(...image.grid) >= COARSE;
    this.times = Math.max(1, Math.round(SHARP / Math.max(image.height, image.width)));
    const size = { width: image.width * this.times, height: image.height * this.times };
    this.canvas = h("canvas", { ...size, class: "heat", role: "img", "aria-label": "Heat map" });
    const id = freshId("opacity");
    const opacity = h("input", { id, type: "range", min: 0, max: 1, step: 0.05, value: this.#opacity });
    opacity.addEventListener("input", () => {
      this.#opacity = Number(opacity.value);
      this.#redraw();
    });
    this.reading = h("p", { class: "quiet small reading" }, "\u00a0");
    this.scaleText = [h("span"), h("span")];
    this.canvas.addEventListener("pointermove", (event) => this.#read(event));
    this.canvas.addEventListener("pointerleave", () => (this.reading.textContent = "\u00a0"));
    const drawn = segments("How the heat map is drawn", LOOKS, this.#smooth ? "smooth" : "raw", (value) => {
      this.#smooth = value === "smooth";
      this.#redraw();
    });
    const ramp = h("span", { class: "heat-ramp", "aria-hidden": "true" });
    const key = h("figcaption", { class: "heat-key" }, this.scaleText[0], ramp, this.scaleText[1]);
    this.element = h(
      "div",
      { class: "heat-place" },
      h("div", { class: "options" }, drawn, h("label", { for: id }, "Opacity"), opacity),
      h("figure", {}, this.canvas, key),
      this.reading,
    );
  }

  /** `picture` is a canvas of the model's size, `steps` the players in their order. */
  draw(picture, view) {
    this.#last = { picture, view };
    this.#redraw();
  }

  #redraw() {
    if (!this.#last) return;
    const { picture, view } = this.#last;
    const field = this.#field(view.steps.map((step) => step.amount));
    const sizes = field.values.map(Math.abs).sort((a, b) => a - b);
    // The few beyond the 99th of a hundred share the last colour, or one part would leave the others pale.
    const most = sizes[Math.max(0, Math.ceil(sizes.length * 0.99) - 1)] || 1;
    this.scaleText[0].textContent = `lowers (${signed(-most, view.decimals)})`;
    this.scaleText[1].textContent = `raises (${signed(most, view.decimals)})`;
    const context = this.canvas.getContext("2d");
    const { width, height } = this.canvas;
    context.imageSmoothingEnabled = false;
    context.drawImage(greyed(picture), 0, 0, width, height);
    const heat = new ImageData(width, height);
    for (let y = 0; y < height; y += 1) {
      for (let x = 0; x < width; x += 1) {
        const strength = Math.max(-1, Math.min(1, field.at((x + 0.5) / width, (y + 0.5) / height) / most));
        const [weak, strong] = strength > 0 ? RAISES : LOWERS;
        const share = Math.abs(strength);
        const place = 4 * (y * width + x);
        for (let c = 0; c < 3; c += 1) heat.data[place + c] = weak[c] + (strong[c] - weak[c]) * share;
        heat.data[place + 3] = 255 * this.#opacity * share ** 0.8;
      }
    }
    const layer = new OffscreenCanvas(width, height);
    layer.getContext("2d").putImageData(heat, 0, 0);
    context.drawImage(layer, 0, 0);
    this.#mark(context, view);
    const named = ({ feature, contribution }) => `${feature} ${signed(contribution, view.decimals)}`;
    const strongest = view.reasons.slice(0, MARKED).map(named).join(", ");
    const label = `Heat map of ${view.output}; strongest: ${strongest}. All numbers are in the table below.`;
    this.canvas.setAttribute("aria-label", label);
  }

  /** The values that are drawn, and `at(x, y)`, the value at a place, both 0 to 1. */
  #field(amounts) {
    const { cells, rows, columns } = this.#cells();
    const raw = cells.map((player) => amounts[player]);
    const values = this.#smooth ? raw.map((_, place) => blurred(raw, rows, columns, place)) : raw;
    const cell = (y, x) => values[Math.max(0, Math.min(rows - 1, y)) * columns + Math.max(0, Math.min(columns - 1, x))];
    if (!this.#smooth) return { values, at: (x, y) => cell(Math.floor(y * rows), Math.floor(x * columns)) };
    const between = (x, y) => {
      const [u, v] = [x * columns - 0.5, y * rows - 0.5];
      const [left, top] = [Math.floor(u), Math.floor(v)];
      const [a, b] = [u - left, v - top];
      const upper = (1 - a) * cell(top, left) + a * cell(top, left + 1);
      const lower = (1 - a) * cell(top + 1, left) + a * cell(top + 1, left + 1);
      return (1 - b) * upper + b * lower;
    };
    return { values, at: between };
  }

  /** The player of each cell: of a grid, or of each pixel where parts have any shape. */
  #cells() {
    const { grid, parts, height, width } = this.image;
    if (grid) return { cells: Array.from({ length: grid[0] * grid[1] }, (_, i) => i), rows: grid[0], columns: grid[1] };
    return { cells: parts.flat(), rows: height, columns: width };
  }

  #mark(context, view) {
    const { grid } = this.image;
    if (!grid) return;
    const [tall, wide] = [this.canvas.height / grid[0], this.canvas.width / grid[1]];
    const positions = new Map(view.steps.map((step, i) => [step.player, i]));
    context.font = `600 ${Math.max(11, Math.min(18, tall / 3))}px system-ui, sans-serif`;
    context.textBaseline = "top";
    view.reasons.slice(0, MARKED).forEach((reason, i) => {
      const place = positions.get(reason.feature);
      if (place === undefined) return;
      const [x, y] = [(place % grid[1]) * wide, Math.floor(place / grid[1]) * tall];
      for (const [colour, thick] of [["rgb(255 255 255 / 90%)", 4], ["#17202b", 1.5]]) {
        context.strokeStyle = colour;
        context.lineWidth = thick;
        context.strokeRect(x + 2, y + 2, wide - 4, tall - 4);
      }
      context.lineWidth = 4;
      context.strokeStyle = "white";
      context.strokeText(String(i + 1), x + 7, y + 6);
      context.fillStyle = "#17202b";
      context.fillText(String(i + 1), x + 7, y + 6);
    });
  }

  #read(event) {
    if (!this.#last) return;
    const box = this.canvas.getBoundingClientRect();
    const { cells, rows, columns } = this.#cells();
    const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    const { steps, decimals } = this.#last.view;
    const place = Math.min(rows - 1, Math.floor(y * rows)) * columns + Math.min(columns - 1, Math.floor(x * columns));
    const step = steps[cells[place]];
    if (step) this.reading.textContent = `${step.player}: ${signed(step.amount, decimals)}`;
  }
}

/** The mean of a cell and its neighbours, itself and the nearest weighing most. */
function blurred(values, rows, columns, place) {
  const [y, x] = [Math.floor(place / columns), place % columns];
  let [total, weight] = [0, 0];
  for (let v = Math.max(0, y - 1); v <= Math.min(rows - 1, y + 1); v += 1) {
    for (let u = Math.max(0, x - 1); u <= Math.min(columns - 1, x + 1); u += 1) {
      const share = (2 - Math.abs(v - y)) * (2 - Math.abs(u - x));
      total += share * values[v * columns + u];
      weight += share;
    }
  }
  return total / weight;
}

/** The picture in pale grey, so that colours are not lost in its dark parts. */
function greyed(picture) {
  const { width, height } = picture;
  const pixels = picture.getContext("2d").getImageData(0, 0, width, height);
  for (let i = 0; i < pixels.data.length; i += 4) {
    const [red, green, blue] = pixels.data.subarray(i, i + 3);
    pixels.data.fill(180 + 0.29 * (0.299 * red + 0.587 * green + 0.114 * blue), i, i + 3);
    pixels.data[i + 3] = 255;
  }
  const canvas = new OffscreenCanvas(width, height);
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}
