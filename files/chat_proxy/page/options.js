// The settings' dialog: language, memory, key.
import { KEY, MOST_ROUNDS, save, settings } from "./store.js";
import { say } from "./words.js";

const dialog = document.getElementById("options");
const form = document.getElementById("options-form");
const reason = document.getElementById("options-reason");
const problem = document.getElementById("options-problem");
const language = document.getElementById("language");
const rounds = document.getElementById("rounds");
const key = document.getElementById("key");
const show = document.getElementById("show-key");

let changed = () => {};
let afterKey = null; // what to do when a key that was asked for has been entered

// `then` is called after each change.
export function onChange(then) {
  changed = then;
}

// Opens the settings.
export function open() {
  afterKey = null;
  begin("");
  language.focus();
}

// Opens the settings at the key, because the server wants one; `then` follows when it is saved.
export function wantKey(then) {
  afterKey = then;
  begin(settings().key ? say.words.keyRefused : say.words.keyWanted);
  key.focus();
  key.select();
}

function begin(why) {
  const now = settings();
  language.value = now.language;
  rounds.value = now.rounds;
  key.value = now.key;
  reveal(false);
  reason.textContent = why;
  complain("");
  if (!dialog.open) dialog.showModal();
}

function reveal(shown) {
  key.type = shown ? "text" : "password";
  show.dataset.say = shown ? "hide" : "show";
  show.textContent = say.words[show.dataset.say];
  show.setAttribute("aria-pressed", String(shown));
}

function complain(what, field = null) {
  problem.textContent = what;
  for (const one of [rounds, key]) {
    if (one === field) one.setAttribute("aria-invalid", "true");
    else one.removeAttribute("aria-invalid");
  }
  field?.focus();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const count = Number(rounds.value);
  if (rounds.value === "" || !Number.isInteger(count) || count < 0 || count > MOST_ROUNDS) {
    complain(say.words.roundsBad, rounds);
    return;
  }
  const entered = key.value.trim();
  if (!KEY.test(entered)) {
    complain(say.words.keyBad, key);
    return;
  }
  save({ language: language.value, rounds: count, key: entered });
  const then = entered ? afterKey : null;
  dialog.close();
  changed();
  then?.();
});
show.addEventListener("click", () => reveal(key.type === "password"));
document.getElementById("cancel").addEventListener("click", () => dialog.close());
dialog.addEventListener("close", () => {
  afterKey = null;
  key.value = "";
  reveal(false);
});
