// The page: asks, shows, remembers the rounds of this conversation.
import { ask, Failure } from "./stream.js";
import { onChange, open as openOptions, wantKey } from "./options.js";
import { settings, watch } from "./store.js";
import { described, readable, Turn } from "./turn.js";
import { say, translate } from "./words.js";

const NEAR_END_PX = 64;
const SPOKEN_MS = 4000; // then it is gone from the page again, where it would be found twice

const log = document.getElementById("log");
const welcome = document.getElementById("welcome");
const examples = document.getElementById("examples");
const form = document.getElementById("ask-form");
const question = document.getElementById("ask");
const send = document.getElementById("send");
const newest = document.getElementById("newest");
const spoken = document.getElementById("spoken");
const model = document.getElementById("model");

let turns = [];
let running = null; // the AbortController of the answer that is on its way
let following = true; // the reader is at the end and wants to stay there
let silence = 0;

function speak(text) {
  clearTimeout(silence);
  spoken.textContent = text;
  silence = setTimeout(() => spoken.replaceChildren(), SPOKEN_MS);
}

// The messages for a question after `earlier` turns: the last rounds that have an answer.
function messagesFor(text, earlier) {
  const answered = earlier.filter((turn) => turn.text);
  const { rounds } = settings();
  const remembered = rounds ? answered.slice(-rounds) : [];
  return [
    ...remembered.flatMap((turn) => [
      { role: "user", content: turn.question },
      { role: "assistant", content: turn.text },
    ]),
    { role: "user", content: text },
  ];
}

async function answer(text) {
  const messages = messagesFor(text, turns);
  const turn = new Turn(text, {
    retry: () => retry(turn),
    giveKey: () => wantKey(() => retry(turn)),
    spoken: speak,
    drawn: follow,
  });
  turns.push(turn);
  log.append(turn.node);
  welcome.hidden = true;
  following = true;
  const control = new AbortController();
  setRunning(control);
  enter(turn, { name: "waiting" });
  try {
    for await (const event of ask(messages, settings().key, control.signal)) take(turn, event);
  } catch (error) {
    end(turn, error);
  } finally {
    if (running === control) setRunning(null);
  }
}

function take(turn, event) {
  if (event.waiting) {
    const { phase, place } = event.waiting;
    if (["queue", "engine", "prompt"].includes(phase)) enter(turn, { name: phase, place });
  } else if (event.text) {
    turn.add(event.text);
    if (turn.state.name !== "writing") enter(turn, { name: "writing" });
  } else if (event.done) {
    turn.finish();
    turn.show({ name: "done", event, empty: turn.text.trim() === "" });
    model.textContent = event.model ?? "";
    speak(`${say.words.finished(readable(turn.answer))}\n${described(turn.state)[1]}`.trim());
    follow();
  }
}

function end(turn, error) {
  turn.finish();
  if (error.name === "AbortError") {
    enter(turn, { name: "stopped" });
    return;
  }
  const failure = error instanceof Failure ? error : new Failure("unknown", { message: error.message });
  const wait = failure.retryAfter;
  enter(turn, { name: "failed", failure, until: wait ? performance.now() + wait * 1000 : null });
  if (failure.status === 401) wantKey(() => retry(turn));
}

// A new state is shown, and told once.
function enter(turn, state) {
  turn.show(state);
  tell(turn, described(state).join(" ").trim());
  follow();
}

function tell(turn, text) {
  if (turn.told === text) return;
  turn.told = text;
  speak(text);
}

// A failure that says when to try again is counted down.
function count() {
  const turn = turns.at(-1);
  if (!turn?.state.until) return;
  turn.translate();
  if (performance.now() >= turn.state.until) tell(turn, say.words.againNow);
}

function retry(turn) {
  if (running || turn !== turns.at(-1)) return;
  turns.pop();
  turn.node.remove();
  toQuestion();
  answer(turn.question);
}

// What had the focus is gone. On a touch screen the keyboard would come up with it.
function toQuestion() {
  if (!matchMedia("(pointer: coarse)").matches) question.focus({ preventScroll: true });
}

function setRunning(control) {
  running = control;
  document.body.classList.toggle("running", control !== null);
  send.dataset.sayLabel = control ? "stop" : "send";
  translate(form);
  follow(); // the newest answer's buttons come and go with it
}

function stop() {
  running?.abort();
}

function submit(text) {
  const asked = text.trim();
  if (!asked || running) return;
  answer(asked);
}

function grow() {
  if (CSS.supports("field-sizing", "content")) return;
  question.style.height = "auto";
  question.style.height = `${question.scrollHeight + 2}px`;
}

const page = document.documentElement;

function follow() {
  if (following) scrollTo(0, page.scrollHeight);
  else seen();
}

function seen() {
  following = page.scrollHeight - innerHeight - scrollY < NEAR_END_PX;
  newest.hidden = following;
}

function speakLanguage() {
  say.to(settings().language);
  page.lang = say.tag;
  document.title = say.words.title;
  translate(document);
  for (const turn of turns) turn.translate();
  const offered = say.words.examples.map((text) => {
    const one = document.createElement("button");
    one.type = "button";
    one.className = "example";
    one.textContent = text;
    one.addEventListener("click", () => {
      toQuestion();
      submit(text);
    });
    return one;
  });
  examples.replaceChildren(...offered);
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) {
    stop();
    return;
  }
  const text = question.value;
  question.value = "";
  grow();
  submit(text);
});
question.addEventListener("input", grow);
question.addEventListener("keydown", (event) => {
  // 229: the key belongs to an input method, also where isComposing comes too late (Safari)
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
  event.preventDefault();
  if (!running) form.requestSubmit();
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !event.isComposing && !document.querySelector("dialog[open]")) stop();
});
document.getElementById("fresh").addEventListener("click", () => {
  stop();
  turns = [];
  log.replaceChildren();
  welcome.hidden = false;
  newest.hidden = true;
  question.focus();
});
document.getElementById("open-options").addEventListener("click", openOptions);
newest.addEventListener("click", () => {
  following = true;
  newest.hidden = true;
  follow();
  toQuestion();
});
addEventListener("scroll", seen, { passive: true });
addEventListener("resize", follow);
onChange(speakLanguage);
watch(speakLanguage);
addEventListener("languagechange", speakLanguage);
setInterval(count, 1000);

speakLanguage();
question.focus();
