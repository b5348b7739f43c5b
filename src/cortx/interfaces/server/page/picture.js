// A picture from the person's device: shrunk to the model's size here, and sent as numbers.

import { freshId, h, say } from "./dom.js";

const MOST_BYTES = 40_000_000;
const FITS = [["fill", "fill, cut the edges"], ["whole", "whole, add a border"], ["stretch", "stretch"]];
const FINE = 16; // pixels that are averaged for one, along each side

/** Where a picture is chosen or dropped; `change` is called with new `numbers`, (height, width[, channels]). */
export class PictureInput {
  numbers = null;
  #source = null;
  #fit = "fill";
  #swap = false;
  #names = new WeakMap();

  constructor(image, examples, change) {
    Object.assign(this, { image, change });
    const id = freshId("picture");
    const { width, height, channels } = image;
    this.canvas = h("canvas", { width, height, class: "pixels", role: "img", "aria-label": "No picture yet" });
    this.context = this.canvas.getContext("2d", { willReadFrequently: true });
    this.file = h("input", { id, type: "file", accept: "image/*", "aria-describedby": `${id}-error` });
    this.file.addEventListener("change", () => this.file.files[0] && this.open(this.file.files[0]));
    this.error = h("p", { class: "error", id: `${id}-error`, role: "alert", hidden: true });
    const grey = channels === 1 ? ", in grey" : "";
    this.drop = h(
      "div",
      { class: "drop" },
      h("label", { for: id }, "Choose a picture"),
      this.file,
      h("p", { class: "quiet small" }, `or drop one here. It is drawn at ${width} × ${height} pixels${grey}.`),
    );
    this.#listen();
    const samples = examples.filter((example) => example.image);
    this.element = h(
      "div",
      { class: "picture-input" },
      samples.length ? this.#samples(samples) : null,
      this.drop,
      this.error,
      this.#options(id),
      h("figure", {}, this.canvas, h("figcaption", { class: "quiet small" }, "What the model sees")),
    );
  }

  #options(id) {
    const fit = h("select", { id: `${id}-fit` }, FITS.map(([value, label]) => h("option", { value }, label)));
    fit.addEventListener("change", () => {
      this.#fit = fit.value;
      this.#read();
    });
    const swap = h("input", { type: "checkbox" });
    swap.addEventListener("change", () => {
      this.#swap = swap.checked;
      this.#read();
    });
    return h(
      "div",
      { class: "options" },
      h("label", { for: `${id}-fit` }, "Fit "),
      fit,
      this.image.channels === 1 ? h("label", { class: "missing" }, swap, "swap black and white") : null,
    );
  }

  #samples(samples) {
    const list = h("select", { id: freshId("sample") }, samples.map((example) => h("option", {}, example.name)));
    const choose = () => this.show(samples[list.selectedIndex].image);
    list.addEventListener("change", choose);
    this.start = choose;
    return h("div", { class: "options" }, h("label", { for: list.id }, "Start from "), list);
  }

  #listen() {
    const over = (event, inside) => {
      event.preventDefault();
      this.drop.classList.toggle("over", inside);
    };
    this.drop.addEventListener("dragover", (event) => over(event, true));
    this.drop.addEventListener("dragleave", (event) => over(event, false));
    this.drop.addEventListener("drop", (event) => {
      over(event, false);
      const [file] = event.dataTransfer.files;
      if (file) this.open(file);
    });
  }

  /** Reads a file; what is no picture is said so. */
  async open(file) {
    say(this.error, "");
    if (file.size > MOST_BYTES) {
      say(this.error, `“${file.name}” is larger than ${MOST_BYTES / 1e6} MB; choose a smaller one.`);
      return;
    }
    try {
      this.#source = await createImageBitmap(file);
      this.name = file.name;
    } catch {
      say(this.error, `“${file.name}” could not be read as a picture; choose a PNG, JPEG, GIF or WebP file.`);
      return;
    }
    this.#read();
  }

  /** Shows numbers that need no shrinking: (height, width) or (height, width, channels), 0 to 255. */
  show(numbers, name = "the example") {
    this.#source = null;
    this.name = name;
    say(this.error, "");
    this.context.putImageData(pixelsOf(this.image, numbers), 0, 0);
    this.#take();
  }

  /** What the picture was called that had these `numbers`. */
  nameOf(numbers) {
    return this.#names.get(numbers);
  }

  #read() {
    if (!this.#source) return;
    const { height, width, channels } = this.image;
    const pixels = this.context.createImageData(width, height);
    pixels.data.set(shrunk(this.#source, width, height, this.#fit));
    if (this.#swap && channels === 1) pixels.data.forEach((value, i) => i % 4 < 3 && (pixels.data[i] = 255 - value));
    this.context.putImageData(pixels, 0, 0);
    this.#take();
  }

  #take() {
    const { height, width, channels } = this.image;
    const { data } = this.context.getImageData(0, 0, width, height);
    const pixel = (i) => {
      const [red, green, blue, alpha] = data.subarray(4 * i, 4 * i + 4);
      // Brightness as the eye has it (Rec. 601).
      if (channels === 1) return Math.round(0.299 * red + 0.587 * green + 0.114 * blue);
      return [red, green, blue, alpha].slice(0, channels);
    };
    const row = (y) => Array.from({ length: width }, (_, x) => pixel(y * width + x));
    this.numbers = Array.from({ length: height }, (_, y) => row(y));
    this.#names.set(this.numbers, this.name);
    this.canvas.setAttribute("aria-label", `The picture, ${width} by ${height} pixels: ${this.name}`);
    this.change(true);
  }
}

/** The colours of numbers: (height, width) or (height, width, channels), 0 to 255. */
export function pixelsOf({ height, width }, numbers) {
  const pixels = new ImageData(width, height);
  numbers.flat().forEach((pixel, i) => {
    const colour = Array.isArray(pixel) ? pixel : [pixel];
    pixels.data.set([0, 1, 2].map((c) => colour[c] ?? colour[0]), 4 * i);
    pixels.data[4 * i + 3] = colour[3] ?? 255;
  });
  return pixels;
}

/** The picture at another size, (height, width, 4): each new pixel is the mean of the area that it covers. */
function shrunk(source, width, height, fit) {
  const [x, y] = [source.width / width, source.height / height];
  const scale = fit === "fill" ? Math.min(x, y) : Math.max(x, y);
  const [wide, tall] = fit === "stretch" ? [source.width, source.height] : [width * scale, height * scale];
  // A part of the source, or all of it within a border, with enough pixels for an exact mean and not too many.
  const many = (wanted, from) => Math.max(1, Math.min(Math.round(from), wanted * FINE));
  const [columns, rows] = [many(width, wide), many(height, tall)];
  const canvas = new OffscreenCanvas(columns, rows);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "white";
  context.fillRect(0, 0, columns, rows);
  context.imageSmoothingQuality = "high";
  const [u, v] = [columns / wide, rows / tall];
  const [left, top] = [((wide - source.width) / 2) * u, ((tall - source.height) / 2) * v];
  context.drawImage(source, left, top, source.width * u, source.height * v);
  const { data } = context.getImageData(0, 0, columns, rows);
  const [across, down] = [covered(columns, width), covered(rows, height)];
  const result = new Uint8ClampedArray(4 * width * height);
  for (let i = 0; i < width * height; i += 1) {
    const total = [0, 0, 0, 0];
    let weight = 0;
    for (const [row, a] of down[Math.floor(i / width)]) {
      for (const [column, b] of across[i % width]) {
        const place = 4 * (row * columns + column);
        for (let c = 0; c < 4; c += 1) total[c] += a * b * data[place + c];
        weight += a * b;
      }
    }
    result.set(total.map((sum) => Math.round(sum / weight)), 4 * i);
  }
  return result;
}

/** For each of `n` new places the old ones that it covers, and how much of each. */
function covered(many, n) {
  return Array.from({ length: n }, (_, i) => {
    const [from, to] = [(i * many) / n, ((i + 1) * many) / n];
    const places = Array.from({ length: Math.ceil(to - 1e-9) - Math.floor(from) }, (_, k) => Math.floor(from) + k);
    return places.map((place) => [place, Math.min(to, place + 1) - Math.max(from, place)]);
  });
}
