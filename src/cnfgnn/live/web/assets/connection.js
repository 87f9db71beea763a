// The connection of a page to its service: if it is lost, begin again; if a token is needed, ask for it.
//
// The page has a dialog with a form for the token, and a button to try at once.

import { at } from "./format.js";
import { hasToken, keepToken } from "./service.js";

const LONGEST_WAIT = 15_000; // milliseconds before another try to connect

// Do `work` again and again: it ends when the connection does, and calls what it is given whenever it has heard
// something. `tell` is told in which state the connection is.
export async function follow(work, tell) {
  for (let failures = 0; ; ) {
    try {
      await work(() => { failures = 0; });
      throw new Error("it has ended");
    } catch (problem) {
      if (problem.status === 401) await tokenGiven(tell);
      else await pause(problem, Math.min(LONGEST_WAIT, 500 * 2 ** failures++), tell);
    }
  }
}

// Wait before the next try; the user or the network coming back end the wait.
async function pause(problem, milliseconds, tell) {
  tell({ state: "lost", why: problem.status ? problem.message : reason(problem) });
  await new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      at("retry").removeEventListener("click", done);
      removeEventListener("online", done);
      resolve();
    };
    const timer = setTimeout(done, milliseconds);
    at("retry").addEventListener("click", done);
    addEventListener("online", done);
  });
}

function reason(problem) {
  if (problem.name === "AbortError" || problem.name === "TimeoutError") return "it does not answer";
  return problem.name === "TypeError" ? "it cannot be reached" : problem.message;
}

async function tokenGiven(tell) {
  tell({ state: "token" });
  const dialog = at("token-dialog"), form = at("token-form"), wrong = at("token-wrong");
  wrong.hidden = !hasToken();
  wrong.textContent = "That is not the token of this service.";
  at("token").value = "";
  if (!dialog.open) dialog.showModal();
  at("token").focus();
  await new Promise((resolve) => form.addEventListener("submit", (event) => {
    event.preventDefault();
    keepToken(at("token").value.trim());
    resolve();
  }, { once: true }));
  dialog.close();
}
at("token-dialog").addEventListener("cancel", (event) => event.preventDefault()); // there is nothing to show without
