// Filters without a reload, keys, and what a token's probability was. Every page works without it.
"use strict";

const form = document.querySelector("#filters");
const rows = document.querySelector("#rows");
const WAIT = 90; // milliseconds after a letter, so that a word typed fast is one question
let waiting, asking;

function address() {
  const query = new URLSearchParams();
  for (const [name, value] of new FormData(form)) if (value !== "") query.append(name, value);
  const text = query.toString();
  return text ? form.getAttribute("action") + "?" + text : form.getAttribute("action");
}

async function filter() {
  const target = address();
  asking?.abort();
  asking = new AbortController();
  rows.classList.add("busy");
  try {
    const part = target + (target.includes("?") ? "&" : "?") + "part=rows";
    const answer = await fetch(part, { signal: asking.signal });
    rows.innerHTML = await answer.text(); // the server escapes whatever the agent said
    rows.classList.remove("busy");
    history.replaceState(null, "", target);
  } catch (problem) {
    if (problem.name !== "AbortError") rows.textContent = "The server does not answer: is it still running?";
  }
}

if (form) {
  form.addEventListener("input", (event) => {
    clearTimeout(waiting);
    waiting = setTimeout(filter, ["search", "number"].includes(event.target.type) ? WAIT : 0);
  });
  form.addEventListener("submit", (event) => { event.preventDefault(); clearTimeout(waiting); filter(); });
}

for (const jump of document.querySelectorAll("form.jump")) jump.addEventListener("change", () => jump.submit());

// A run that has begun shows by itself; not while a person chooses another one.
if (document.querySelector("#waiting")) setInterval(() => {
  if (!document.activeElement.closest("select")) location.reload();
}, 3000);

function step(by) {
  const link = document.querySelector(by > 0 ? "a[rel=next]" : "a[rel=prev]");
  if (link) return link.click();
  const lines = [...document.querySelectorAll(".list tbody tr")];
  if (!lines.length) return;
  const now = lines.findIndex((line) => line.classList.contains("here"));
  const next = Math.min(Math.max(now + by, 0), lines.length - 1);
  lines[now]?.classList.remove("here");
  lines[next].classList.add("here");
  lines[next].scrollIntoView({ block: "nearest" });
}

// Escape empties a search box and drops its filter, in every browser alike.
function leave(box) {
  if (box.type === "search" && box.value !== "") {
    box.value = "";
    clearTimeout(waiting);
    if (form && box.form === form) filter();
  }
  box.blur();
}

const KEYS = {
  j: () => step(1),
  k: () => step(-1),
  u: () => document.querySelector("a[rel=up]")?.click(),
  Enter: () => document.querySelector(".list .here a.open")?.click(),
  "/": () => document.querySelector("input[type=search]")?.focus(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, select, textarea")) {
    if (event.key === "Escape") leave(event.target);
    return;
  }
  if (event.key === "Enter" && event.target.closest("a, button, summary")) return;
  if (Object.hasOwn(KEYS, event.key)) { event.preventDefault(); KEYS[event.key](); }
});

// A title appears after a second; reading a text token by token wants it at once.
const about = document.createElement("div");
about.id = "about";
about.hidden = true;
document.body.append(about);
document.addEventListener("mouseover", (event) => {
  const token = event.target.closest?.(".tokens .t");
  about.hidden = !token;
  if (token) about.textContent = token.title;
});

// No further than needed: the question above stays in sight where there is room.
document.querySelector(".attempt.chosen")?.scrollIntoView({ block: "nearest" });
