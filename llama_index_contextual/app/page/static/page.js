"use strict";
// The page asks its own server and nobody else. What is HTML comes rendered from there, without any HTML of a document.
const $ = id => document.getElementById(id);
const FILTERS = ["folder", "tag", "since", "until"];
const address = new URLSearchParams(location.hash.slice(1)), token = address.get("token") || "";
let state = {}, running = null, timer = 0, poll = 0, open = "", asked = "", lost = false;

async function call(path, body, signal) {
  const headers = { Authorization: `Bearer ${token}`, "Content-Type": "application/json" };
  const answer = await fetch(path, { method: body ? "POST" : "GET", headers, signal, body: body && JSON.stringify(body) });
  if (answer.ok) return answer;
  if (answer.status === 401) throw new Error("This address has no token of the server that runs. Open the one that its terminal shows.");
  throw new Error((await answer.json().catch(() => ({}))).error || `The server says ${answer.status}.`);
}
const data = async (...given) => (await call(...given)).json();

function say(error) {
  if (error && error.name === "AbortError") return;
  const gone = error instanceof TypeError ? "The server does not answer. Start it again, and open the address that it shows." : error && error.message;
  $("problem").textContent = gone || ""; $("problem").hidden = !error;
}
function element(name, text = "", kind = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

// Search

function question() {
  const found = { q: $("question").value.trim() };
  for (const name of FILTERS) if ($(name).value) found[name] = $(name).value;
  return found;
}
function remember() {
  history.replaceState(null, "", `#${new URLSearchParams({ token, ...question() })}`);
  document.title = $("question").value.trim() || state.name || "Notes";
}
async function search() {
  clearTimeout(timer);
  if (running) running.abort();
  const wanted = question();
  remember();
  $("answer").hidden = true;
  if (!wanted.q) { asked = ""; say(); return welcome(); }
  running = new AbortController();
  const mine = running;
  $("left").classList.add("stale");
  try {
    const found = await data(`/api/search?${new URLSearchParams(wanted)}`, null, mine.signal);
    show(found.html, wanted.q);
    $("count").textContent = count(found.count, "hit");
  } catch (error) { say(error); } finally { if (mine === running) $("left").classList.remove("stale"); }
}
function show(html, text) {
  say();
  asked = text;
  $("hits").innerHTML = html;
  $("left").scrollTop = 0;
}
function welcome() {
  const start = element("div", "", "start");
  start.append(element("h1", state.name || "Notes"), element("p", state.documents ? `${count(state.documents, "document")}, ${count(state.chunks, "chunk")}. Type to search.` : ""));
  $("hits").replaceChildren(start);
}
const count = (number, thing) => `${number.toLocaleString("en")} ${thing}${number === 1 ? "" : "s"}`;

// Hits

const hits = () => [...document.querySelectorAll("#hits .hit")];
const current = () => document.activeElement.closest && document.activeElement.closest("#hits .hit");
function step(by) {
  const all = hits(), at = all.indexOf(current());
  const next = all[at < 0 ? 0 : Math.max(0, Math.min(all.length - 1, at + by))];
  if (at === 0 && by < 0) return $("question").focus();
  if (!next) return;
  next.focus();
  next.scrollIntoView({ block: "nearest" });
  if (open && matchMedia("(min-width: 56.26rem)").matches) read(next.dataset, next);
}

// The document beside

const bandOf = id => [...document.querySelectorAll("#text .band")].find(band => band.dataset.id === id);
async function read(place, hit) {
  let named = place;
  try {
    if (open !== place.path || (place.id && !bandOf(place.id))) {
      const found = await data(`/api/document?${new URLSearchParams({ path: place.path, id: place.id || "" })}`);
      $("text").innerHTML = found.html;
      $("path").textContent = found.path;
      open = found.path;
      if (found.first) named = found;
    }
  } catch (error) { return say(error); }
  $("document").hidden = false;
  document.body.classList.add("reading");
  for (const one of hits()) one.classList.toggle("here", one === hit);
  const first = +named.first, last = +named.last || first, bands = [...document.querySelectorAll("#text .band")];
  for (const band of bands) band.classList.toggle("here", place.id ? band.dataset.id === place.id : first > 0 && +band.dataset.first <= last && first <= +band.dataset.last);
  const here = bands.find(band => band.classList.contains("here"));
  if (here) here.scrollIntoView({ block: "start" }); else $("document").scrollTop = 0;
  if (hit) hit.scrollIntoView({ block: "nearest" });
}
function close() {
  const was = document.querySelector("#hits .hit.here");
  $("document").hidden = true; open = "";
  document.body.classList.remove("reading");
  if (was) { was.classList.remove("here"); was.focus(); } else $("question").focus();
}

// Answers

async function ask() {
  clearTimeout(timer);
  if (running) running.abort();
  const wanted = question(), box = $("answer"), text = element("p"), waiting = element("span", "Reading …", "waiting");
  if (!wanted.q || !state.llm) return;
  running = new AbortController();
  const mine = running;
  remember();
  box.replaceChildren(text); text.append(waiting); box.hidden = false; say();
  try {
    const reader = (await call("/api/ask", wanted, mine.signal)).body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      const lines = (rest + (value || "")).split("\n");
      rest = lines.pop();
      for (const line of lines.filter(Boolean)) {
        const part = JSON.parse(line);
        if (part.html !== undefined) show(part.html, wanted.q);
        if (part.sentence) text.insertBefore(drawn(part.sentence), waiting);
        if (part.error) text.insertBefore(element("span", part.error, "bad"), waiting);
      }
      if (done) break;
    }
  } catch (error) { say(error); } finally { waiting.remove(); }
}
function drawn(sentence) {
  const made = element("span"), text = sentence.text, body = text.trimEnd();
  for (const piece of body.split(/(\[\d{1,3}\])/)) {
    const number = /^\[(\d+)\]$/.exec(piece);
    if (!number || !sentence.sources.includes(+number[1])) { made.append(piece); continue; }
    const button = element("button", piece, "cite");
    button.addEventListener("click", () => { const hit = document.querySelector(`#hits .hit[data-number="${number[1]}"]`); if (hit) { hit.focus(); hit.scrollIntoView({ block: "nearest" }); read(hit.dataset, hit); } });
    made.append(button);
  }
  if (sentence.problems.length) made.append(element("span", ` (⚠ ${sentence.problems.join("; ")})`, "bad"));
  made.append(text.slice(body.length));
  return made;
}

// How the index is

function tell() {
  $("known").textContent = [`${count(state.documents, "document")}, ${count(state.chunks, "chunk")}`, state.note].filter(Boolean).join(" · ");
  $("share").hidden = state.share === null; $("share").value = state.share || 0;
  $("ask").hidden = !state.llm; $("ask").title = state.llm ? `${state.llm} answers (Ctrl Enter)` : "";
}
function choices(id, names) {
  const box = $(id), chosen = box.value || address.get(id) || "";
  box.replaceChildren(box.options[0], ...names.map(name => { const one = element("option", name); one.value = name; return one; }));
  box.value = names.includes(chosen) ? chosen : "";
  address.delete(id);
}
async function look() {
  clearTimeout(poll);
  try {
    const before = state.documents;
    state = await data("/api/state");
    if (lost) say();
    lost = false;
    for (const [id, names] of [["folder", state.folders], ["tag", state.tags]]) { choices(id, names); $(id).hidden = !names.length; }
    for (const id of ["since", "until"]) { $(id).min = state.days[0] || ""; $(id).max = state.days[1] || ""; $(id).parentElement.hidden = !state.days.length; }
    tell();
    if (!$("question").value.trim()) welcome();
    else if (before !== undefined && before !== state.documents && !current() && !open) search();
  } catch (error) { lost = true; say(error); }
  const busy = state.share !== null;
  poll = setTimeout(look, document.hidden ? 60000 : busy ? 1500 : 20000);
}
// What people do

$("question").addEventListener("input", () => {
  clearTimeout(timer);
  if (state.instant !== false || !$("question").value.trim()) timer = setTimeout(search, 120);
});
$("form").addEventListener("submit", event => { event.preventDefault(); search(); });
$("ask").addEventListener("click", ask);
$("clear").addEventListener("click", () => { for (const name of FILTERS) $(name).value = ""; filtered(); });
function filtered() {
  for (const name of FILTERS) $(name).classList.toggle("set", !!$(name).value);
  $("clear").hidden = !FILTERS.some(name => $(name).value);
  search();
}
for (const name of FILTERS) $(name).addEventListener("change", filtered);
document.addEventListener("click", event => {
  const link = event.target.closest('a[href^="#path="]'), hit = event.target.closest("#hits .hit");
  if (link) { event.preventDefault(); const path = decodeURIComponent(link.getAttribute("href").slice(6)); read(hit && link.classList.contains("source") ? hit.dataset : { path }, hit); }
  else if (event.target.closest("[data-close]")) event.target.closest("dialog").close();
});
$("close").addEventListener("click", close);
$("help").addEventListener("click", () => $("keys").showModal());
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
document.addEventListener("keydown", event => {
  if (document.querySelector("dialog[open]")) return;
  const key = event.key, here = event.target, hit = current();
  if (key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); return ask(); }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (key === "Escape") { if (open) { event.preventDefault(); close(); } else if (here !== $("question")) $("question").focus(); return; }
  if (here === $("question")) { if (key === "ArrowDown") { event.preventDefault(); step(1); } return; }
  if (here.matches("input, select, textarea")) return;
  const inText = here.closest("#document");
  const keys = { "/": () => { $("question").focus(); $("question").select(); }, "?": () => $("keys").showModal(), j: () => step(1), k: () => step(-1) };
  if (!inText) Object.assign(keys, { ArrowDown: keys.j, ArrowUp: keys.k });
  if (hit) Object.assign(keys, { e: () => { const why = hit.querySelector(".why"); why.open = !why.open; } }, here === hit ? { Enter: () => read(hit.dataset, hit) } : {});
  if (keys[key]) { event.preventDefault(); keys[key](); }
});

(async () => {
  $("question").value = address.get("q") || "";
  for (const name of ["since", "until"]) $(name).value = address.get(name) || "";
  await look();
  if ($("question").value) filtered();
})();
