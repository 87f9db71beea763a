// How the page talks to the service: JSON over HTTP, and a stream of forecasts.
//
// Every request has the token in a header: the stream is read with fetch, because EventSource cannot send it. A cookie
// would be sent to every port of this machine, and so to services of other users. Addresses are relative to the page,
// so that a proxy may put it into a folder.

const TOKEN = "cnfgnn-live-token";
const ANSWERS_WITHIN = 20_000; // milliseconds
const SILENT_FOR = 40_000; // the service writes a line at least every 15 s: a longer silence is a lost connection

export class Refused extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

export function keepToken(token) {
  sessionStorage.setItem(TOKEN, token);
}

// The link that the service prints ends in #token=..., which browsers send to nobody; it leaves the address bar at once.
function takeToken() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return false;
  keepToken(token);
  history.replaceState(null, "", location.pathname + location.search);
  return true;
}
takeToken();
addEventListener("hashchange", () => { if (takeToken()) location.reload(); });

export const hasToken = () => Boolean(sessionStorage.getItem(TOKEN));

function headers() {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

async function refusal(response) {
  let sentence = `the service answers with status ${response.status}`;
  try {
    sentence = (await response.json()).error ?? sentence;
  } catch { /* it is not a sentence */ }
  return new Refused(response.status, sentence);
}

// The answer to a request; a status in `also` is an answer like 200.
export async function ask(path, also = []) {
  const response = await fetch(`.${path}`, { headers: headers(), cache: "no-store", signal: AbortSignal.timeout(ANSWERS_WITHIN) });
  if (!response.ok && !also.includes(response.status)) throw await refusal(response);
  return response.json();
}

// The answer, or null: not every service has all routes (404), and some have nothing to tell yet (503).
export async function askIfThere(path) {
  try {
    return [200, await ask(path)];
  } catch (problem) {
    if (problem.status === 404 || problem.status === 503) return [problem.status, null];
    throw problem;
  }
}

// What the service tells of its own accord, as [kind, content], until the connection is lost; `opened` is called
// once it is there.
export async function* events(opened) {
  const control = new AbortController();
  let timer = setTimeout(() => control.abort(), ANSWERS_WITHIN);
  try {
    const response = await fetch("./events", { headers: headers(), cache: "no-store", signal: control.signal });
    if (!response.ok) throw await refusal(response);
    opened();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    while (true) {
      clearTimeout(timer);
      timer = setTimeout(() => control.abort(), SILENT_FOR);
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (text + value).split("\n\n");
      text = blocks.pop();
      for (const block of blocks) {
        const lines = block.split("\n"), field = (name) => lines.filter((line) => line.startsWith(`${name}: `)).map((line) => line.slice(name.length + 2));
        if (field("data").length) yield [field("event")[0] ?? "message", JSON.parse(field("data").join("\n"))];
      }
    }
  } finally {
    clearTimeout(timer);
    control.abort();
  }
}
