// Small parts that several places of the page are made of.
import { say } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const COPIED_MS = 2000;

export function element(tag, kind = "") {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  return made;
}

// A small button with the word `name`, and an icon of index.html.
export function button(name, icon, pressed) {
  const made = element("button", `small ${icon}`);
  made.type = "button";
  const word = element("span");
  word.dataset.say = name;
  word.textContent = say.words[name];
  made.append(iconOf(icon), word);
  made.addEventListener("click", pressed);
  return made;
}

// A button that copies what `text` gives, and says so. `spoken` tells those who do not see it.
export function copyButton(name, text, spoken = () => {}) {
  let timer = 0;
  const made = button(name, "copy", async () => {
    const word = made.querySelector("[data-say]");
    const result = (await copied(text())) ? "copied" : "notCopied";
    word.dataset.say = result;
    word.textContent = say.words[result];
    spoken(say.words[result]);
    clearTimeout(timer);
    timer = setTimeout(() => {
      word.dataset.say = name;
      word.textContent = say.words[name];
    }, COPIED_MS);
  });
  return made;
}

async function copied(text) {
  try {
    if (navigator.clipboard) {
      await navigator.clipboard.writeText(text);
      return true;
    }
  } catch {
    // not allowed in this frame or moment: the old way may still be
  }
  // A device in the local network is reached by plain http, where browsers have no clipboard API.
  const before = document.activeElement;
  const holder = element("textarea", "unseen");
  holder.value = text;
  holder.readOnly = true;
  document.body.append(holder);
  holder.select();
  try {
    return document.execCommand("copy");
  } finally {
    holder.remove();
    before?.focus({ preventScroll: true });
  }
}

function iconOf(name) {
  const icon = document.createElementNS(SVG, "svg");
  icon.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#icon-${name}`);
  icon.append(use);
  return icon;
}
