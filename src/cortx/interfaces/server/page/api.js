// Talking to the server, and to this server alone.

const PATIENCE = 20_000; // milliseconds until an answer is given up
const KEY = "cortx-token";

export class ServerError extends Error {
  constructor(message, { status = 0, column = null, wait = null } = {}) {
    super(message);
    Object.assign(this, { status, column, wait });
  }
}

let token = stored();

function stored() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null;
  }
}

/** Kept until the browser's tab is closed; null forgets it. */
export function setToken(text) {
  token = text;
  try {
    if (text === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, text);
  } catch {
    // Storage is switched off: the token then lasts until the page is left.
  }
}

export const hasToken = () => token !== null;

/** GET, or POST with a body; the answer's JSON, or a ServerError in plain words. */
export async function ask(path, body) {
  const headers = { "X-Audit": "no" }; // rows that people try out are not the traffic that the audit judges
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (token !== null) headers.Authorization = `Bearer ${token}`;
  let answer;
  try {
    answer = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      signal: AbortSignal.timeout(PATIENCE),
    });
  } catch (error) {
    const late = error.name === "TimeoutError";
    throw new ServerError(late ? "The server did not answer in time." : "The server cannot be reached; is it running?");
  }
  let content = null;
  try {
    content = await answer.json();
  } catch {
    if (answer.ok) throw new ServerError("The server's answer could not be read.", { status: answer.status });
  }
  if (answer.ok) return content;
  const wait = Number(answer.headers.get("Retry-After"));
  throw new ServerError(content?.error ?? `The server answered with status ${answer.status}.`, {
    status: answer.status,
    column: content?.column ?? null,
    wait: Number.isFinite(wait) && wait > 0 ? wait : null,
  });
}

export const modelPath = (name) => `models/${encodeURIComponent(name)}`;

/**
 * Asks again whenever something changed: at most once for each frame, one question at a time, and always the newest.
 * While an answer is on its way, changes wait; what they overtook is never asked.
 */
export class Newest {
  #wanted = null;
  #scheduled = false;
  #busy = false;
  #round = 0;

  /** `path`, and what to do with an answer, an error, and the news that one is awaited or not. */
  constructor(path, { show, fail, waiting }) {
    Object.assign(this, { path, show, fail, waiting });
  }

  /** `make` gives the body when it is sent, or null when there is nothing to ask. */
  request(make) {
    this.#wanted = make;
    this.waiting(true);
    this.#schedule();
  }

  /** Forgets what is on its way: its answer would belong to another model. */
  drop() {
    this.#wanted = null;
    this.#round += 1;
    this.waiting(false);
  }

  #schedule() {
    if (this.#scheduled || this.#busy || this.#wanted === null) return;
    this.#scheduled = true;
    requestAnimationFrame(() => {
      this.#scheduled = false;
      if (!this.#busy) this.#send();
    });
  }

  async #send() {
    const body = this.#wanted?.() ?? null;
    this.#wanted = null;
    if (body === null) {
      this.waiting(false);
      return;
    }
    const round = this.#round;
    this.#busy = true;
    let retry = 0;
    try {
      const answer = await ask(this.path, body);
      if (round === this.#round) this.show(answer, body);
    } catch (error) {
      if (!(error instanceof ServerError)) throw error;
      if (round === this.#round) {
        if (error.status === 429) retry = 1000 * (error.wait ?? 1);
        this.fail(error, body);
        if (retry) this.#wanted ??= () => body;
      }
    } finally {
      if (retry) await new Promise((done) => setTimeout(done, retry));
      this.#busy = false;
      this.waiting(this.#wanted !== null);
      this.#schedule();
    }
  }
}
