// One question and its answer, as they stand on the page.
import { copyButton, button, element } from "./parts.js";
import { Rendering } from "./markdown.js";
import { say } from "./words.js";

const SHARE_OF_TIME = 4; // at least so many times as long as a drawing took lies before the next

export class Turn {
  // `actions`: {retry(), giveKey(), spoken(text), drawn()}
  constructor(question, actions) {
    this.question = question;
    this.text = ""; // of the answer, as it came
    this.state = { name: "waiting" };
    this.actions = actions;
    this.#build();
    this.rendering = new Rendering(this.answer, codeBlock);
    this.frame = 0;
    this.timer = 0;
    this.drawn = { at: 0, took: 0 };
  }

  #build() {
    this.node = element("article", "turn");
    const asked = element("div", "question");
    asked.dir = "auto";
    asked.textContent = this.question;
    this.answer = element("div", "answer");
    this.answer.dir = "auto";
    this.note = element("p", "note");
    this.more = element("p", "more");
    this.copy = copyButton("copy", () => this.text, this.actions.spoken);
    const retry = button("retry", "retry", this.actions.retry);
    const giveKey = button("giveKey", "give-key", this.actions.giveKey);
    const buttons = element("div", "actions");
    buttons.append(this.copy, retry, giveKey);
    const foot = element("div", "foot");
    foot.append(this.note, this.more, buttons);
    this.node.append(speaker("you"), asked, speaker("model"), this.answer, foot);
    this.show(this.state);
  }

  // More of the answer has come.
  add(text) {
    this.text += text;
    this.rendering.append(text);
    if (this.frame || this.timer) return;
    // Once a frame at most, and never for more than a part of the time.
    const wait = this.drawn.at + SHARE_OF_TIME * this.drawn.took - performance.now();
    const onFrame = () => {
      this.timer = 0;
      this.frame = requestAnimationFrame(() => this.#draw());
    };
    if (wait > 16) this.timer = setTimeout(onFrame, wait);
    else onFrame();
  }

  #draw(last = false) {
    this.frame = 0;
    const began = performance.now();
    if (last) this.rendering.finish();
    else this.rendering.draw();
    const now = performance.now();
    this.drawn = { at: now, took: now - began };
    this.actions.drawn();
  }

  // No more text will come.
  finish() {
    cancelAnimationFrame(this.frame);
    clearTimeout(this.timer);
    this.#draw(true);
  }

  // `state`: {name: "waiting"|"queue"|"engine"|"prompt"|"writing"|"stopped"}, a queue's with
  // {place}, {name: "done", event, empty} or {name: "failed", failure, until}, `until` in the clock of
  // performance.now() or null.
  show(state) {
    this.state = state;
    this.node.dataset.state = state.name;
    this.node.classList.toggle("has-answer", this.text !== "");
    this.node.classList.toggle("needs-key", state.failure?.status === 401);
    this.translate();
  }

  translate() {
    const [note, more] = described(this.state);
    if (this.note.textContent !== note) this.note.textContent = note;
    if (this.more.textContent !== more) this.more.textContent = more;
  }
}

// An answer as it is read out: block by block, without the buttons in it.
export function readable(answer) {
  const blocks = [...answer.children].map((one) => one.querySelector(":scope > pre") ?? one);
  return blocks.map((one) => one.innerText).join("\n");
}

// What a state is in words: the note, and what else there is to say.
export function described(state) {
  const { words } = say;
  if (state.name === "queue") return [words.queue(say.number(state.place, 0)), ""];
  if (state.name === "done") return finished(state);
  if (state.name === "failed") return [failed(state.failure), countdown(state.until)];
  return [words[state.name], ""];
}

function finished({ event, empty }) {
  const { usage, timings, finish_reason: reason, dropped_messages: dropped } = event;
  const { words } = say;
  const facts = [];
  if (timings.first_token_s !== null) facts.push(words.first(say.number(timings.first_token_s, 2)));
  if (timings.tokens_per_s !== null) facts.push(words.speed(say.number(timings.tokens_per_s, 1)));
  if (usage.completion_tokens !== null) facts.push(words.tokens(usage.completion_tokens));
  const more = [];
  if (empty) more.push(words.empty);
  if (reason === "length") more.push(words.cut);
  if (dropped > 0) more.push(words.dropped(dropped));
  const whole = facts.map((fact) => fact.replaceAll(" ", "\u00a0")); // lines break between them
  return [whole.join(" · "), more.join(" ")];
}

function failed({ kind, status, message }) {
  const { failures } = say.words;
  const known = status === 413 || kind === "context_length_exceeded" ? failures.too_long : failures[kind] ?? failures.unknown;
  return typeof known === "function" ? known(message || status) : known;
}

function countdown(until) {
  if (until === null) return "";
  const left = Math.ceil((until - performance.now()) / 1000);
  return left > 0 ? say.words.again(left) : say.words.againNow;
}

function speaker(name) {
  const heading = element("h2", "unseen");
  heading.dataset.say = name;
  heading.textContent = say.words[name];
  return heading;
}

function codeBlock(text, language) {
  const node = element("div", "code");
  const bar = element("div", "code-bar");
  const name = element("span", "language");
  name.textContent = language;
  const code = element("code");
  code.textContent = text;
  bar.append(name, copyButton("copyCode", () => code.textContent));
  const frame = element("pre");
  frame.tabIndex = 0; // so that it can be scrolled by keyboard
  frame.dir = "ltr";
  frame.translate = false;
  frame.append(code);
  node.append(bar, frame);
  return { node, code };
}
