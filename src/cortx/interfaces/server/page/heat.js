// One canvas with a picture in pale grey and attributions of its parts as colours over it.

import { h } from "./dom.js";
import { signed } from "./format.js";

// From weak to strong; red and blue stay apart for colour-blind people.
const LOWERS = [[0x3d, 0x8f, 0xd6], [0x0a, 0x4a, 0x94]];
const RAISES = [[0xef, 0x5a, 0x4c], [0xa8, 0x0f, 0x20]];
const STRIPE = [0x4a, 0x4f, 0x55];
const STRIPES = 22; // along a side of what is hatched
const SHARP = 400; // pixels of the drawing's longer side, about
const MARKED = 3; // strongest parts with a frame and their place

export class HeatCanvas {
  #cells;

  /** `pointed` is called with the number of the part below the pointer, or null. */
  constructor(image, pointed) {
    this.image = image;
    this.#cells = cellsOf(image);
    const times = Math.max(1, Math.round(SHARP / Math.max(image.height, image.width)));
    const size = { width: image.width * times, height: image.height * times };
    this.canvas = h("canvas", { ...size, class: "heat", role: "img", "aria-label": "Heat map" });
    this.canvas.addEventListener("pointermove", (event) => pointed(this.#part(event)));
    this.canvas.addEventListener("pointerleave", () => pointed(null));
  }

  /** The largest value that a drawing of these amounts tells from others. */
  reach(amounts, smooth) {
    const sizes = this.#field(amounts, smooth).values.map(Math.abs).sort((a, b) => a - b);
    // The few beyond the 99th of a hundred share the last colour, or one part would leave the others pale.
    return sizes[Math.max(0, Math.ceil(sizes.length * 0.99) - 1)] || 1;
  }

  /** Attributions over a picture's `pixels`, of the model's size; `most` has the strongest colour. */
  draw(pixels, view, { smooth, opacity, most }) {
    this.#paint(pixels, view.steps.map((step) => step.amount), smooth, opacity, most);
    this.#mark(view);
    const named = ({ player, amount }) => `${player} ${signed(amount, view.decimals)}`;
    const listed = strongest(view).map(named).join(", ") || "none";
    this.#say(`Heat map of ${view.output}; strongest: ${listed}. All numbers are in the table below.`);
  }

  /** The same, where the sign is certain; other parts are hatched. Never smoothed: bounds hold for single parts. */
  drawCertain(pixels, view, { opacity, most }) {
    const found = view.steps.map(certainty);
    this.#paint(pixels, found.map(({ amount }) => amount), false, opacity, most);
    this.#hatch(found.map(({ open }) => open));
    this.#say(`Heat map of ${view.output}, parts whose sign is certain: ${certainText(view)}.`);
  }

  #say(label) {
    this.canvas.setAttribute("aria-label", label);
  }

  #paint(pixels, amounts, smooth, opacity, most) {
    const field = this.#field(amounts, smooth);
    const { width, height } = this.canvas;
    const context = this.canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(layerOf(greyed(pixels)), 0, 0, width, height);
    const heat = new ImageData(width, height);
    for (let y = 0; y < height; y += 1) {
      for (let x = 0; x < width; x += 1) {
        const strength = Math.max(-1, Math.min(1, field.at((x + 0.5) / width, (y + 0.5) / height) / most));
        const [weak, strong] = strength > 0 ? RAISES : LOWERS;
        const share = Math.abs(strength);
        const place = 4 * (y * width + x);
        for (let c = 0; c < 3; c += 1) heat.data[place + c] = weak[c] + (strong[c] - weak[c]) * share;
        heat.data[place + 3] = 255 * opacity * share ** 0.8;
      }
    }
    context.drawImage(layerOf(heat), 0, 0);
  }

  #hatch(open) {
    const field = this.#field(open.map(Number), false);
    const { width, height } = this.canvas;
    const stripes = new ImageData(width, height);
    const turn = (2 * Math.PI * STRIPES) / Math.max(width, height);
    for (let y = 0; y < height; y += 1) {
      for (let x = 0; x < width; x += 1) {
        if (!field.at((x + 0.5) / width, (y + 0.5) / height)) continue;
        const place = 4 * (y * width + x);
        stripes.data.set(STRIPE, place);
        stripes.data[place + 3] = 180 * Math.max(0, Math.min(1, 0.1 + 2 * Math.sin(turn * (x + y))));
      }
    }
    this.canvas.getContext("2d").drawImage(layerOf(stripes), 0, 0);
  }

  /** The values that are drawn, and `at(x, y)`, the value at a place, both 0 to 1. */
  #field(amounts, smooth) {
    const { cells, rows, columns } = this.#cells;
    const raw = cells.map((player) => amounts[player]);
    const values = smooth ? raw.map((_, place) => blurred(raw, rows, columns, place)) : raw;
    const cell = (y, x) => values[Math.max(0, Math.min(rows - 1, y)) * columns + Math.max(0, Math.min(columns - 1, x))];
    if (!smooth) return { values, at: (x, y) => cell(Math.floor(y * rows), Math.floor(x * columns)) };
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

  #mark(view) {
    const { grid } = this.image;
    if (!grid) return;
    const context = this.canvas.getContext("2d");
    const [tall, wide] = [this.canvas.height / grid[0], this.canvas.width / grid[1]];
    context.font = `600 ${Math.max(11, Math.min(18, tall / 3))}px system-ui, sans-serif`;
    context.textBaseline = "top";
    strongest(view).forEach((step, i) => {
      const place = view.steps.indexOf(step);
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

  #part(event) {
    const box = this.canvas.getBoundingClientRect();
    const { cells, rows, columns } = this.#cells;
    const along = (place, n) => Math.max(0, Math.min(n - 1, Math.floor(place * n)));
    const row = along((event.clientY - box.top) / box.height, rows);
    return cells[row * columns + along((event.clientX - box.left) / box.width, columns)];
  }
}

/** A part's amount where its bounds exclude zero, else 0; `open` where they hold zero and more. */
function certainty({ amount, band: [low, high] }) {
  const certain = low > 0 || high < 0;
  // An estimate may lie outside its bounds; a colour must not contradict them.
  return { certain, amount: certain ? Math.max(low, Math.min(high, amount)) : 0, open: !certain && low !== high };
}

/** How many parts have a certain sign, in words. */
export function certainText({ steps }) {
  return `${steps.filter((step) => certainty(step).certain).length} of ${steps.length} parts`;
}

/** The parts that are framed. The server's reasons may still be those of the class before. */
function strongest({ steps }) {
  const moving = steps.filter((step) => step.amount !== 0);
  return moving.sort((a, b) => Math.abs(b.amount) - Math.abs(a.amount)).slice(0, MARKED);
}

/** The player of each cell: of a grid, or of each pixel where parts have any shape. */
function cellsOf({ grid, parts, height, width }) {
  if (grid) return { cells: Array.from({ length: grid[0] * grid[1] }, (_, i) => i), rows: grid[0], columns: grid[1] };
  return { cells: parts.flat(), rows: height, columns: width };
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
function greyed({ data, width, height }) {
  const pixels = new ImageData(width, height);
  for (let i = 0; i < data.length; i += 4) {
    pixels.data.fill(155 + 0.38 * (0.299 * data[i] + 0.587 * data[i + 1] + 0.114 * data[i + 2]), i, i + 3);
    pixels.data[i + 3] = 255;
  }
  return pixels;
}

/** Pixels as something that can be drawn over, and at another size. */
function layerOf(pixels) {
  const layer = new OffscreenCanvas(pixels.width, pixels.height);
  layer.getContext("2d").putImageData(pixels, 0, 0);
  return layer;
}
