// Numbers and values as people read them.

const MINUS = "\u2212";

/** So many decimals that a span of numbers shows three digits. */
export function decimalsFor(span) {
  if (!(span > 0) || !Number.isFinite(span)) return 3;
  return Math.max(0, Math.min(8, 2 - Math.floor(Math.log10(span))));
}

/** A number of an explanation; very large and very small ones in powers of ten. */
export function number(value, decimals = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  const text = size >= 1e7 ? size.toExponential(2) : size.toFixed(decimals);
  return Number(text) === 0 ? text : value < 0 ? MINUS + text : text;
}

/** With its sign: what an attribution adds. */
export function signed(value, decimals = 3) {
  const text = number(value, decimals);
  return value > 0 && Number(text) !== 0 ? `+${text}` : text;
}

/** Which way a signed number goes, as it is read: "up", "down", or neither where its digits are all zero. */
export const direction = (text) => (text.startsWith("+") ? "up" : text.startsWith(MINUS) ? "down" : "");

/** A value of a column: what was typed, at most four digits of what was computed. */
export function valueText(value) {
  if (value === null || value === undefined) return "missing";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return String(value).replace("-", MINUS);
  return String(Number(value.toPrecision(4))).replace("-", MINUS);
}

export const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)}%`;

/** 1234567 as 1,234,567. */
export const count = (whole) => Math.round(whole).toLocaleString("en");

/** Round numbers that divide an interval into about `wanted` parts. */
export function ticks(low, high, wanted = 5) {
  const rough = (high - low) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough * 0.999) ?? rough;
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1) found.push(k * step);
  return { step, places: found };
}

/** A step for a slider: a round number, about a two-hundredth of its way. */
export function sliderStep(low, high, whole) {
  const span = high - low;
  if (whole || !(span > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(span / 200));
  return Number((power * (span / 200 / power >= 5 ? 5 : span / 200 / power >= 2 ? 2 : 1)).toPrecision(1));
}
