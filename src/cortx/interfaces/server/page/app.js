// The page: one model at a time, one row or picture, and what the server says about it.

import { ask, hasToken, modelPath, Newest, ServerError, setToken } from "./api.js";
import { byId, h, say } from "./dom.js";
import { number } from "./format.js";
import { setUpColours, setUpTabs } from "./frame.js";
import { ImageView } from "./image.js";
import { qualityView } from "./quality.js";
import { TableView } from "./table.js";
import { highestOutput, viewOf } from "./view.js";
import { drawStrip } from "./waterfall.js";

const REASONS = 4;
const AUDIT_EVERY = 4_000; // milliseconds
const SPEAK_AFTER = 700; // milliseconds of quiet, so that a moving slider is not read out at every step
const REFUSED = [400, 413, 422];

/** The model's description, its view, the newest answer; `output` is null for the highest. */
const state = { info: null, model: null, answer: null, view: null, output: null, confidence: null };

const questions = new Newest("explain", {
  waiting: (on) => byId("panel-explain").setAttribute("aria-busy", String(on)),
  show: (answer, asked) => {
    if (answer.version !== state.info.version) return reopen();
    const [record, image] = [asked.records?.[0] ?? null, asked.images?.[0] ?? null];
    state.answer = { explanation: answer.explanations[0], record, image };
    say(byId("trouble"), "");
    state.model.forgive?.();
    state.model.command.draw(asked, hasToken());
    return redraw();
  },
  fail: (error) => {
    stale(error.status !== 429);
    if (error.status === 401) askToken();
    else if (error.status === 429) say(byId("trouble"), "The server is busy; asking again in a moment.");
    else if (!REFUSED.includes(error.status) || !state.model.complain?.(error.message, error.column)) report(error);
  },
});

// Models ------------------------------------------------------------------------------------------------------

async function start() {
  try {
    const { models } = await ask("models");
    if (!models.length) throw new ServerError("The server has no model to explain.");
    const list = byId("model");
    list.replaceChildren(...models.map(({ name }) => h("option", { value: name }, name)));
    const asked = models.find(({ name }) => encodeURIComponent(name) === location.hash.slice(1));
    if (asked) list.value = asked.name;
    byId("token-form").hidden = true;
    byId("model-place").hidden = false;
    byId("main").hidden = false;
    say(byId("trouble"), "");
    await open(list.value);
  } catch (error) {
    report(error);
  }
}

async function open(name) {
  questions.drop();
  const info = await ask(modelPath(name));
  if (byId("model").value !== name) return;
  say(byId("trouble"), "");
  const confidence = info.confidence?.default ?? null;
  Object.assign(state, { info, answer: null, view: null, output: null, confidence });
  announce("");
  state.model = info.kind === "image" ? new ImageView(info, page) : new TableView(info, page);
  history.replaceState(null, "", `#${encodeURIComponent(name)}`);
  document.title = `${name}: explanations, live`;
  byId("version").textContent = info.version ? `version ${info.version.slice(0, 12)}` : "";
  byId("prediction-title").textContent = "Prediction";
  byId("prediction").textContent = "–";
  byId("prediction-base").textContent = "";
  byId("strip").replaceChildren();
  byId("input").replaceChildren(...state.model.input);
  byId("explanation").replaceChildren(...state.model.output);
  const names = info.output_names.map((output) => h("option", { value: output }, output));
  byId("output").replaceChildren(h("option", { value: "" }, "the highest"), ...names);
  byId("output-place").hidden = names.length < 2;
  showAudit(info.audit ?? null);
  stale(true);
  state.model.start?.();
  change(true);
}

/** A new version of the model took over: its columns and quality may be others; the row stays where it fits. */
async function reopen() {
  const { info, model } = state;
  try {
    await open(info.name);
    if (state.info === info || state.info.kind !== info.kind) return;
    if (model.state) state.model.state = model.state;
    announce("A new version of the model is served now.");
    change(true);
  } catch (error) {
    report(error);
  }
}

// Questions and answers ---------------------------------------------------------------------------------------

function change(valid) {
  if (valid) questions.request(question);
  else stale(true);
}

/** Made when it is sent, so that it is the newest. */
function question() {
  const content = state.model.question();
  if (!content) return null;
  const { info, confidence, output } = state;
  return { model: info.name, ...content, confidence, top: REASONS, ...(output === null ? {} : { output }) };
}

function choose(output) {
  state.output = output === "" ? null : output;
  byId("output").value = output;
  redraw();
  change(true);
}

function setConfidence(level) {
  state.confidence = level;
  change(true);
}

/** Pale when what is shown is no longer what the form says. */
function stale(on) {
  byId("panel-explain").classList.toggle("stale", on);
}

function redraw() {
  const { info, answer, model } = state;
  if (!answer) return;
  state.view = viewOf(info, answer, state.output ?? highestOutput(info, answer));
  stale(false);
  drawPrediction();
  model.draw(state.view, answer, state.confidence);
  speak();
}

function drawPrediction() {
  const { info, view } = state;
  const what = info.output === "probability" ? "Probability" : "Prediction";
  byId("prediction-title").textContent = view.output === "output" ? what : `${what}: ${view.output}`;
  byId("prediction").replaceChildren(h("data", { value: view.prediction }, predictionText()));
  const moved = view.prediction - view.base;
  const far = `${number(Math.abs(moved), view.decimals)} ${moved > 0 ? "above" : "below"}`;
  const place = Math.abs(moved) < 1e-9 ? "the base value" : `${far} the base value ${number(view.base, view.decimals)}`;
  const guess = view.guessed ? "; no model is attached, so this is the explainer’s guess" : "";
  byId("prediction-base").textContent = place + guess;
  drawStrip(byId("strip"), view);
}

function predictionText() {
  const least = state.info.output === "probability" ? 3 : 0;
  return number(state.view.prediction, Math.max(least, state.view.decimals));
}

let speaking = 0;

function speak() {
  clearTimeout(speaking);
  speaking = setTimeout(() => {
    const { output, reasons } = state.view;
    const what = output === "output" ? "Prediction" : `Prediction for ${output}`;
    byId("spoken").textContent = `${what}: ${predictionText()}. ${reasons[0]?.text ?? ""}`;
  }, SPEAK_AFTER);
}

function announce(text) {
  clearTimeout(speaking);
  byId("spoken").textContent = text;
}

const page = { change, choose, setConfidence, redraw, announce, answer: () => state.answer };

// The audit ---------------------------------------------------------------------------------------------------

function showAudit(audit) {
  const { info } = state;
  info.audit = audit;
  const alarm = audit?.state === "alarm";
  const words = audit?.message || "explanations are worse than they were measured to be.";
  say(byId("alarm"), alarm ? `Audit alarm: ${words}` : "");
  byId("audit-dot").className = `dot ${audit ? `dot-${audit.state}` : ""}`;
  byId("panel-quality").replaceChildren(...qualityView(info, audit));
}

async function pollAudit() {
  const { info } = state;
  if (!info?.audit || document.visibilityState !== "visible") return;
  try {
    const audit = await ask(`${modelPath(info.name)}/audit`);
    if (state.info === info && JSON.stringify(audit) !== JSON.stringify(info.audit)) showAudit(audit);
  } catch (error) {
    // The next question about a row says what is wrong; an audit that cannot be asked is no news.
    if (!(error instanceof ServerError)) throw error;
  }
}

// Trouble -----------------------------------------------------------------------------------------------------

function report(error) {
  if (!(error instanceof ServerError)) throw error;
  if (error.status === 401) askToken();
  else say(byId("trouble"), error.message);
}

function askToken() {
  byId("main").hidden = true;
  byId("token-form").hidden = false;
  say(byId("token-error"), hasToken() ? "This token was not accepted." : "");
  byId("token").focus();
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setToken(byId("token").value.trim());
  byId("token").value = "";
  start();
});
byId("model").addEventListener("change", (event) => open(event.target.value).catch(report));
byId("output").addEventListener("change", (event) => choose(event.target.value));
new ResizeObserver(() => state.view && drawStrip(byId("strip"), state.view)).observe(byId("strip"));
setUpColours();
setUpTabs((name) => name === "quality" && pollAudit());
document.addEventListener("visibilitychange", pollAudit);
setInterval(pollAudit, AUDIT_EVERY);
start();
