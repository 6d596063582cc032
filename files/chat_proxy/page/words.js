// Which language the page speaks, and putting its words in their places.
import { en } from "./words-en.js";
import { zh } from "./words-zh.js";

export const dictionaries = { en, zh };

// The words in use. `say.to(setting)` chooses them; their tag for `lang` is `say.tag`.
export const say = {
  words: en,
  tag: "en",
  to(setting) {
    const wanted = setting === "auto" ? navigator.languages : [setting];
    const known = wanted.map((one) => one.toLowerCase().split("-")[0]).find((one) => dictionaries[one]);
    this.words = dictionaries[known ?? "en"];
    this.tag = this.words === zh ? "zh-CN" : "en";
  },
  number(value, digits) {
    return value.toLocaleString(this.tag, { maximumFractionDigits: digits, minimumFractionDigits: digits });
  },
};

// Puts the words into everything under `root` that names them: data-say (text), data-say-label
// (aria-label and tooltip), data-say-hint (placeholder).
export function translate(root) {
  const { words } = say;
  for (const one of root.querySelectorAll("[data-say]")) one.textContent = words[one.dataset.say];
  for (const one of root.querySelectorAll("[data-say-label]")) {
    one.setAttribute("aria-label", words[one.dataset.sayLabel]);
    if (one instanceof HTMLButtonElement) one.title = words[one.dataset.sayLabel];
  }
  for (const one of root.querySelectorAll("[data-say-hint]")) {
    one.placeholder = words[one.dataset.sayHint];
  }
}
