// How the page talks to the service: JSON over HTTP, and a stream of forecasts.
//
// EventSource cannot send a token, so that the stream is read with fetch.

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
  const response = await fetch(path, { headers: headers(), cache: "no-store", signal: AbortSignal.timeout(ANSWERS_WITHIN) });
  if (!response.ok && !also.includes(response.status)) throw await refusal(response);
  return response.json();
}

// The answer, or null if there is no such route: not every service has all of them.
export async function askIfThere(path) {
  try {
    return await ask(path);
  } catch (problem) {
    if (problem.status === 404) return null;
    throw problem;
  }
}

// Forecasts as they are made, until the connection is lost; `opened` is called once it is there.
export async function* forecasts(opened) {
  const control = new AbortController();
  let timer = setTimeout(() => control.abort(), ANSWERS_WITHIN);
  try {
    const response = await fetch("/events", { headers: headers(), cache: "no-store", signal: control.signal });
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
        const data = block.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6));
        if (data.length) yield JSON.parse(data.join("\n"));
      }
    }
  } finally {
    clearTimeout(timer);
    control.abort();
  }
}
