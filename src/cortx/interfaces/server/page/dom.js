// Elements without a library. Text always arrives as text nodes: nothing that a server or person wrote becomes markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element with properties (`class`, `on...`, `aria-...`, `data-...` or any attribute) and children. */
export function h(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** The same for a part of a drawing. */
export function s(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** Shows an element with this text, or hides it. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
  element.hidden = !text;
}

let count = 0;

/** A fresh id, for labels and descriptions. */
export const freshId = (name) => `${name}-${(count += 1)}`;

/** A group of radio buttons that looks like one switch; `choices` are pairs of value and label. */
export function segments(legend, choices, chosen, change) {
  const name = freshId("choice");
  const inputs = choices.map(([value, label]) => {
    const input = h("input", { type: "radio", name, value, onchange: () => change(value) });
    input.checked = value === chosen;
    return h("label", {}, input, h("span", {}, label));
  });
  return h("fieldset", { class: "segments" }, h("legend", { class: "hidden" }, legend), inputs);
}
