// What the page remembers, in this browser only.

const NAME = "edge-llm";
const LANGUAGES = ["auto", "en", "zh"];
export const MOST_ROUNDS = 20;
export const KEY = /^[\x21-\x7e]*$/; // what a header can hold
const DEFAULTS = { language: "auto", rounds: 3, key: "" };

let kept = load();

// {language: "auto"|"en"|"zh", rounds: 0…20, key: "" or the key}
export function settings() {
  return kept;
}

export function save(changes) {
  kept = checked({ ...kept, ...changes });
  try {
    localStorage.setItem(NAME, JSON.stringify(kept));
  } catch {
    // storage is switched off or full: they hold until the page is closed
  }
}

// Calls `changed` when another tab has saved.
export function watch(changed) {
  addEventListener("storage", (event) => {
    if (event.key !== NAME && event.key !== null) return;
    kept = load();
    changed();
  });
}

function load() {
  try {
    return checked(JSON.parse(localStorage.getItem(NAME)) ?? {});
  } catch {
    return DEFAULTS;
  }
}

function checked({ language, rounds, key }) {
  return {
    language: LANGUAGES.includes(language) ? language : DEFAULTS.language,
    rounds: Number.isInteger(rounds) && rounds >= 0 && rounds <= MOST_ROUNDS
      ? rounds : DEFAULTS.rounds,
    key: typeof key === "string" && KEY.test(key) ? key : DEFAULTS.key,
  };
}
