"use strict";
// The page requests data from its own server only. HTML comes rendered from there, and never from a document.
const $ = id => document.getElementById(id);
const FILTERS = ["folder", "tag", "since", "until"];
const PLACE = ["path", "id", "first", "last"];
const address = () => new URLSearchParams(location.hash.slice(1));
const token = address().get("token") || "";
let state = {},
  running = null,
  timer = 0,
  poll = 0,
  openPath = "",
  isServerLost = false,
  shownQuestion = "";

async function call(path, signal) {
  const answer = await fetch(path, { headers: { Authorization: `Bearer ${token}` }, signal });
  if (answer.ok) return answer;
  if (answer.status === 401)
    throw new Error(
      "The address has no valid token. Open the address that the server shows in its terminal.",
    );
  throw new Error(
    (await answer.json().catch(() => ({}))).error || `The server says ${answer.status}.`,
  );
}
const data = async (...request) => (await call(...request)).json();

function say(error) {
  if (error && error.name === "AbortError") return;
  const away =
    error instanceof TypeError
      ? "The server does not answer. Start it again, and open the address that it shows."
      : error && error.message;
  $("problem").textContent = away || "";
  $("problem").hidden = !error;
}
function element(name, text = "", kind = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}
const count = (number, thing) =>
  `${number.toLocaleString("en")} ${thing}${number === 1 ? "" : "s"}`;

// The address holds the question, its filters and the document, so that back, reload and a bookmark work.

function question() {
  const fields = { q: $("question").value.trim() };
  for (const name of FILTERS) if ($(name).value) fields[name] = $(name).value;
  return fields;
}
function remember(place, push) {
  const parts = { token, ...question() };
  for (const name of PLACE) if (place && place[name]) parts[name] = place[name];
  const hash = `#${new URLSearchParams(parts)}`;
  if (hash !== location.hash) history[push ? "pushState" : "replaceState"](null, "", hash);
  document.title = $("question").value.trim() || state.name || "Notes";
}
async function restore() {
  const parts = address(),
    before = JSON.stringify(question());
  $("question").value = parts.get("q") || "";
  for (const name of FILTERS) $(name).value = parts.get(name) || "";
  chips();
  if (JSON.stringify(question()) !== before || !$("hits").children.length) await search(true);
  const place = Object.fromEntries(PLACE.map(name => [name, parts.get(name) || ""]));
  if (place.path) await read(place, cardOf(place), false);
  else if (openPath) close(false);
}

// Search

async function search(keep) {
  clearTimeout(timer);
  if (running) running.abort();
  const fields = question();
  if (!keep) remember();
  $("answer").hidden = true;
  if (!fields.q) {
    say();
    shownQuestion = "";
    return welcome();
  }
  running = new AbortController();
  const request = running;
  $("left").classList.add("stale");
  try {
    const answer = await data(`/api/search?${new URLSearchParams(fields)}`, request.signal);
    show(answer.html);
    shownQuestion = fields.q;
    $("count").textContent = count(answer.count, "note");
    if (!answer.count && openPath) close(false);
  } catch (error) {
    say(error);
  } finally {
    if (request === running) $("left").classList.remove("stale");
  }
}
function show(html) {
  say();
  $("hits").innerHTML = html;
  $("left").scrollTop = 0;
}
function welcome() {
  const start = element("div", "", "start");
  start.append(element("h1", state.name || "Notes"));
  const list = (title, rows) => {
    if (rows.length) {
      const box = element("ul");
      box.append(...rows);
      start.append(element("h2", title), box);
    }
  };
  const row = (text, more, act) => {
    const item = element("li"),
      button = element("button", text, "plain");
    button.addEventListener("click", act);
    item.append(button, element("small", more));
    return item;
  };
  list(
    "Ask for",
    (state.examples || []).map(text =>
      row(text, "", () => {
        $("question").value = text;
        search();
        $("question").focus();
      }),
    ),
  );
  list(
    "Recent",
    (state.recent || []).map(note =>
      row(note.name, note.folder, () => read({ path: note.path }, null, true)),
    ),
  );
  if (state.llm)
    start.append(element("p", `${state.llm} can answer in words: Ask, or Ctrl Enter.`, "dim"));
  $("hits").replaceChildren(start);
}

// Hits

const hits = () => [...document.querySelectorAll("#hits .hit")].filter(hit => hit.offsetParent);
const current = () =>
  document.activeElement.closest && document.activeElement.closest("#hits .hit");
const cardOf = place =>
  hits().find(
    hit => hit.dataset.id === place.id || (!place.id && hit.dataset.path === place.path),
  ) || null;
function step(by) {
  const all = hits(),
    position = all.indexOf(current());
  const next = all[position < 0 ? 0 : Math.max(0, Math.min(all.length - 1, position + by))];
  if (position === 0 && by < 0) return $("question").focus();
  if (!next) return;
  next.focus();
  next.scrollIntoView({ block: "nearest" });
  if (openPath && matchMedia("(min-width: 56.26rem)").matches) read(next.dataset, next, false);
}
async function first() {
  if (shownQuestion !== $("question").value.trim()) await search();
  const [hit] = hits();
  if (hit && $("question").value.trim()) {
    hit.focus();
    read(hit.dataset, hit, true);
  }
}

// The document beside

const bandOf = id =>
  [...document.querySelectorAll("#text .band")].find(band => band.dataset.id === id);
async function read(place, hit, push) {
  let lines = place;
  try {
    if (openPath !== place.path || (place.id && !bandOf(place.id))) {
      const answer = await data(
        `/api/document?${new URLSearchParams({ path: place.path, id: place.id || "", q: $("question").value })}`,
      );
      $("text").innerHTML = answer.html;
      for (const place of $("text").querySelectorAll("[data-picture]")) picture(place);
      $("name").textContent = answer.name;
      $("path").textContent = answer.path;
      openPath = answer.path;
      if (answer.first) lines = { path: answer.path, first: answer.first, last: answer.last };
    }
  } catch (error) {
    return say(error);
  }
  remember({ path: openPath, id: place.id, first: lines.first, last: lines.last }, push);
  $("document").hidden = false;
  document.body.classList.add("reading");
  for (const card of hits()) card.classList.toggle("here", card === hit);
  const from = +lines.first,
    to = +lines.last || from,
    bands = [...document.querySelectorAll("#text .band")];
  for (const band of bands)
    band.classList.toggle(
      "here",
      place.id
        ? band.dataset.id === place.id
        : from > 0 && +band.dataset.first <= to && from <= +band.dataset.last,
    );
  const here = bands.find(band => band.classList.contains("here"));
  if (here) here.scrollIntoView({ block: "start" });
  else $("document").scrollTop = 0;
  if (hit) hit.scrollIntoView({ block: "nearest" });
}
async function picture(place) {
  const answer = await fetch(
    `/api/picture?${new URLSearchParams({ path: place.dataset.picture })}`,
    { headers: { Authorization: `Bearer ${token}` } },
  ).catch(() => null);
  if (!answer || !answer.ok) return;
  const image = element("img");
  image.alt = place.textContent;
  image.src = URL.createObjectURL(await answer.blob());
  image.addEventListener("load", () => URL.revokeObjectURL(image.src));
  place.replaceChildren(image);
}
function close(push) {
  const card = document.querySelector("#hits .hit.here");
  $("document").hidden = true;
  openPath = "";
  document.body.classList.remove("reading");
  if (push) remember(null, true);
  if (card) {
    card.classList.remove("here");
    card.focus();
  } else $("question").focus();
}

// Answers

async function ask() {
  clearTimeout(timer);
  if (running) running.abort();
  const fields = question(),
    box = $("answer"),
    text = element("p"),
    waiting = element("span", "Reading …", "waiting");
  if (!fields.q) return $("question").focus();
  if (!state.llm) {
    box.replaceChildren(element("p", state.no_model));
    box.hidden = false;
    return;
  }
  running = new AbortController();
  const request = running;
  remember();
  box.replaceChildren(text);
  text.append(waiting);
  box.hidden = false;
  say();
  try {
    const reader = (await call(`/api/ask?${new URLSearchParams(fields)}`, request.signal)).body
      .pipeThrough(new TextDecoderStream())
      .getReader();
    let remainder = "";
    for (;;) {
      const { done, value } = await reader.read();
      const lines = (remainder + (value || "")).split("\n");
      remainder = lines.pop();
      for (const line of lines.filter(Boolean)) {
        const part = JSON.parse(line);
        if (part.html !== undefined) {
          show(part.html);
          shownQuestion = fields.q;
        }
        if (part.sentence) text.insertBefore(drawn(part.sentence), waiting);
        if (part.error) text.insertBefore(element("span", part.error, "bad"), waiting);
      }
      if (done) break;
    }
  } catch (error) {
    say(error);
  } finally {
    waiting.remove();
  }
}
function drawn(sentence) {
  const made = element("span"),
    text = sentence.text,
    body = text.trimEnd();
  for (const piece of body.split(/(\[\d{1,3}\])/)) {
    const number = /^\[(\d+)\]$/.exec(piece);
    if (!number || !sentence.sources.includes(+number[1])) {
      made.append(piece);
      continue;
    }
    const button = element("button", piece, "cite");
    button.addEventListener("click", () => {
      const hit = document.querySelector(`#hits .hit[data-number="${number[1]}"]`);
      if (hit) {
        hit.focus();
        read(hit.dataset, hit, true);
      }
    });
    made.append(button);
  }
  if (sentence.problems.length)
    made.append(element("span", ` (⚠ ${sentence.problems.join("; ")})`, "bad"));
  made.append(text.slice(body.length));
  return made;
}

// The state of the index, and the filters

function tell() {
  $("known").textContent = [count(state.documents, "document"), state.note]
    .filter(Boolean)
    .join(" · ");
  $("ask").title = state.llm ? `${state.llm} answers (Ctrl Enter)` : state.no_model;
}
function choices(id, names) {
  const box = $(id),
    chosen = box.value || address().get(id) || "";
  box.replaceChildren(
    box.options[0],
    ...names.map(name => {
      const option = element("option", name);
      option.value = name;
      return option;
    }),
  );
  box.value = names.includes(chosen) ? chosen : "";
  box.hidden = names.length < 2;
}
function chips() {
  const active = FILTERS.filter(name => $(name).value);
  $("chips").replaceChildren(
    ...active.map(name => {
      const chip = element("button", `${name} ${$(name).value} ×`, "chip");
      chip.type = "button";
      chip.dataset.filter = name;
      chip.setAttribute("aria-label", `Without the filter ${name} ${$(name).value}`);
      chip.addEventListener("click", () => {
        $(name).value = "";
        filtered();
      });
      return chip;
    }),
  );
}
async function look() {
  clearTimeout(poll);
  try {
    const before = state.documents;
    state = await data("/api/state");
    if (isServerLost) say();
    isServerLost = false;
    choices("folder", state.folders);
    choices("tag", state.tags);
    for (const id of ["since", "until"]) {
      $(id).min = state.days[0] || "";
      $(id).max = state.days[1] || "";
      $(id).parentElement.hidden = !state.days.length;
    }
    tell();
    if (!$("question").value.trim() && !openPath) welcome();
    else if (before !== undefined && before !== state.documents && !current() && !openPath)
      search();
  } catch (error) {
    isServerLost = true;
    say(error);
  }
  poll = setTimeout(look, document.hidden ? 60000 : 20000);
}
function filtered() {
  chips();
  search();
}

// Keys and clicks

$("question").addEventListener("input", () => {
  clearTimeout(timer);
  if (state.instant !== false || !$("question").value.trim()) timer = setTimeout(search, 120);
});
$("form").addEventListener("submit", event => {
  event.preventDefault();
  first();
});
$("ask").addEventListener("click", ask);
for (const name of FILTERS) $(name).addEventListener("change", filtered);
document.addEventListener("click", event => {
  const link = event.target.closest('a[href^="#path="]'),
    further = event.target.closest(".further"),
    hit = event.target.closest("#hits .hit");
  const suggestion = event.target.closest(".suggestion");
  if (suggestion) {
    $("question").value = suggestion.textContent;
    search();
    $("question").focus();
  } else if (link) {
    event.preventDefault();
    read({ path: decodeURIComponent(link.getAttribute("href").slice(6)) }, null, true);
  } else if (further) read(further.dataset, hit, true);
  else if (hit && !event.target.closest("summary, a") && !String(getSelection()))
    read(hit.dataset, hit, true);
});
$("close").addEventListener("click", () => close(true));
addEventListener("popstate", restore);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) look();
});
document.addEventListener("keydown", event => {
  const key = event.key,
    here = event.target,
    hit = current();
  if (key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    return ask();
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (key === "Escape") {
    if (openPath) {
      event.preventDefault();
      close(true);
    } else if (here !== $("question")) $("question").focus();
    return;
  }
  if (here === $("question")) {
    if (key === "ArrowDown") {
      event.preventDefault();
      step(1);
    }
    return;
  }
  if (here.matches("input, select, textarea")) return;
  const keys = {
    "/": () => {
      $("question").focus();
      $("question").select();
    },
  };
  if (!here.closest("#document"))
    Object.assign(keys, { ArrowDown: () => step(1), ArrowUp: () => step(-1) });
  if (hit && here === hit) keys.Enter = () => read(hit.dataset, hit, true);
  if (keys[key]) {
    event.preventDefault();
    keys[key]();
  }
});

(async () => {
  $("question").value = address().get("q") || "";
  await look();
  await restore();
})();
