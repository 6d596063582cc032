// POST /chat and its events.

// Why there is no answer. `kind` is the server's word for it, or one of: offline, unreachable,
// lost, unavailable, unreadable, key_refused. `retryAfter` is in seconds, or null.
export class Failure extends Error {
  constructor(kind, { status = 0, message = "", retryAfter = null } = {}) {
    super(message);
    this.kind = kind;
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

// Yields {waiting: {phase, place}}, {text} and at last {done: true, …} as they come.
// Throws Failure, or what `signal` was aborted with, an AbortError.
export async function* ask(messages, key, signal) {
  const headers = { "Content-Type": "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  const reply = await reach({
    method: "POST", signal, headers, body: JSON.stringify({ messages }),
    cache: "no-store", redirect: "error", referrerPolicy: "no-referrer",
  });
  if (!reply.ok) {
    const problem = await refusal(reply);
    if (problem.status === 401 && key) problem.kind = "key_refused";
    throw problem;
  }
  for await (const { comment, data } of events(reply.body, signal)) {
    if (comment !== undefined) {
      const [phase, place] = comment.split(" ");
      yield { waiting: { phase, place: Number(place) } };
      continue;
    }
    const event = parsed(data);
    if (event.error) throw failure(event.error, event.error.code);
    yield event;
    if (event.done) return;
  }
  throw new Failure("lost");
}

async function reach(request) {
  try {
    return await fetch("chat", request);
  } catch (error) {
    request.signal.throwIfAborted();
    throw new Failure(navigator.onLine ? "unreachable" : "offline", { message: error.message });
  }
}

async function refusal(reply) {
  const said = await reply.json().catch(() => null); // a balancer in between may answer with HTML
  if (typeof said?.error === "object" && said.error !== null) {
    return failure(said.error, reply.status);
  }
  const wait = Number.parseInt(reply.headers.get("retry-after"), 10);
  return new Failure(reply.status >= 502 && reply.status <= 504 ? "unavailable" : "unreadable", {
    status: reply.status,
    retryAfter: Number.isNaN(wait) ? null : wait,
  });
}

function failure(error, status) {
  return new Failure(String(error.type), {
    status,
    message: String(error.message),
    retryAfter: error.retry_after ?? null,
  });
}

function parsed(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new Failure("unreadable");
  }
}

// The blocks of an event stream: {comment} or {data}.
async function* events(body, signal) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await read(reader, signal);
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      if (block.startsWith(":")) yield { comment: block.slice(1).trim() };
      const line = block.split("\n").find((one) => one.startsWith("data:"));
      if (line) yield { data: line.slice(5) };
    }
  }
}

async function read(reader, signal) {
  try {
    return await reader.read();
  } catch (error) {
    signal.throwIfAborted();
    throw new Failure("lost", { message: error.message });
  }
}
