// Markdown to elements. No string ever becomes markup: each token that is known here becomes one
// element, everything else stays text.
import MarkdownIt from "./vendor/markdown-it.esm.min.mjs";

const md = new MarkdownIt("default", { html: false, linkify: true, breaks: true, maxNesting: 40 });
md.disable("image"); // it would be fetched from elsewhere
md.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false }); // notes.md is no address
md.validateLink = (url) => /^(https?:\/\/|mailto:)./i.test(url);

const PLAIN = new Set([
  "p", "blockquote", "ul", "ol", "li", "thead", "tbody", "tr", "th", "td", "em", "strong", "s",
]);

// One answer that grows. What is finished is built once; only its last two blocks, which more text
// may still change, are looked at again.
export class Rendering {
  // `codeBlock(text, language)` makes {node, code}: the frame, and the element that holds the text.
  constructor(place, codeBlock) {
    this.place = place;
    this.codeBlock = codeBlock;
    this.text = "";
    this.kept = 0; // characters whose elements are final
    this.defines = false; // it has definitions of links, wherever they stand
    this.open = []; // blocks after them: {type, source, start, node, code?}
  }

  append(text) {
    this.text += text.replaceAll("\r", ""); // lines are counted below
  }

  draw() {
    const rest = this.text.slice(this.kept);
    const found = {};
    const blocks = topBlocks(md.parse(rest, found), rest);
    this.defines ||= found.references !== undefined;
    blocks.forEach((block, number) => this.#place(block, this.open[number]));
    for (const gone of this.open.slice(blocks.length)) gone.node.remove();
    const final = Math.max(0, blocks.length - 2);
    if (final) this.kept += blocks[final].start;
    this.open = blocks.slice(final);
  }

  // The last drawing. Links may be defined after they are used: then all of it is drawn again.
  finish() {
    this.draw();
    if (!this.defines) return;
    this.kept = 0;
    this.open = [];
    this.place.replaceChildren();
    this.draw();
  }

  #place(block, before) {
    if (before?.type === block.type && before.source === block.source) {
      block.node = before.node;
      block.code = before.code;
      return;
    }
    const [token] = block.tokens;
    if (block.type === "fence" && before?.type === "fence" && before.info === token.info) {
      block.node = before.node;
      block.code = before.code;
      setText(block.code, withoutLastBreak(token.content)); // keeps its place when scrolled
    } else {
      const holder = document.createDocumentFragment();
      block.code = build(block.tokens, holder, this.codeBlock);
      block.node = holder.firstElementChild;
      if (before) before.node.replaceWith(block.node);
      else this.place.append(block.node);
    }
  }
}

// The tokens of each top-level block, with the source that they came from.
function topBlocks(tokens, source) {
  const lineStarts = [0];
  for (let at = source.indexOf("\n"); at >= 0; at = source.indexOf("\n", at + 1)) {
    lineStarts.push(at + 1);
  }
  const blocks = [];
  let depth = 0;
  for (const token of tokens) {
    if (depth === 0) {
      const [first, after] = token.map;
      const start = lineStarts[first];
      const end = lineStarts[after] ?? source.length;
      blocks.push({
        type: token.type, info: token.info, start, source: source.slice(start, end), tokens: [],
      });
    }
    depth += token.nesting;
    blocks.at(-1).tokens.push(token);
  }
  return blocks;
}

// Appends the tokens' elements to `parent`; returns the last code block's element, if any.
function build(tokens, parent, codeBlock) {
  const open = [parent];
  let lastCode;
  for (const token of tokens) {
    const top = open.at(-1);
    if (token.nesting < 0) {
      open.pop();
    } else if (token.nesting > 0) {
      open.push(token.hidden ? top : opened(token, top)); // hidden: paragraphs of a tight list
    } else if (token.type === "inline") {
      build(token.children, top, codeBlock);
    } else if (token.type === "fence" || token.type === "code_block") {
      const language = token.info.trim().split(/\s+/)[0].slice(0, 40);
      const { node, code } = codeBlock(withoutLastBreak(token.content), language);
      top.append(node);
      lastCode = code;
    } else if (token.type === "code_inline") {
      const code = add(top, "code");
      code.append(token.content);
      code.translate = false;
    } else if (token.type === "softbreak" || token.type === "hardbreak") {
      add(top, "br");
    } else if (token.type === "hr") {
      add(top, "hr");
    } else {
      top.append(token.content);
    }
  }
  return lastCode;
}

function opened(token, top) {
  const { tag } = token;
  if (tag === "a") return link(token.attrGet("href"), top);
  if (tag === "table") {
    const frame = add(top, "div");
    frame.className = "wide";
    frame.tabIndex = 0; // so that it can be scrolled by keyboard
    return add(frame, "table");
  }
  if (/^h[1-6]$/.test(tag)) return add(top, `h${Math.min(6, Number(tag[1]) + 2)}`); // page and turn: h1, h2
  if (!PLAIN.has(tag)) return add(top, "span");
  const element = add(top, tag);
  if (tag === "ol" && token.attrGet("start") !== null) element.start = Number(token.attrGet("start"));
  const align = /text-align:(\w+)/.exec(token.attrGet("style") ?? "");
  if (align) element.dataset.align = align[1];
  return element;
}

function link(address, top) {
  if (!md.validateLink(address)) return add(top, "span"); // [x]() is not asked about
  const element = add(top, "a");
  element.href = address;
  element.rel = "noopener noreferrer";
  element.target = "_blank";
  return element;
}

function add(parent, tag) {
  const element = document.createElement(tag);
  parent.append(element);
  return element;
}

function setText(element, text) {
  const node = element.firstChild;
  if (node && text.startsWith(node.data)) node.appendData(text.slice(node.data.length));
  else element.textContent = text;
}

function withoutLastBreak(text) {
  return text.endsWith("\n") ? text.slice(0, -1) : text;
}
