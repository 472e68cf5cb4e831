// The token of the printed link stays in the browser, because the part of an address after # is never sent.
const login = document.getElementById("login");
function logIn() {
  if (!login || location.hash.length < 2) return;
  document.getElementById("token").value = location.hash.slice(1);
  history.replaceState(null, "", location.pathname);
  login.requestSubmit();
}
addEventListener("hashchange", logIn); // The link was pasted into a tab that shows this page already.
logIn();

// Show the rows that have all words of the search, and the chosen state and group; the address keeps what was chosen.
const filter = document.getElementById("filter");
const chosen = () => Object.fromEntries(new FormData(filter));
function filterRows() {
  const {search, state, group} = chosen(), words = search.toLowerCase().split(/\s+/), rows = document.querySelectorAll("#sweeps tbody tr");
  let count = 0;
  for (const row of rows) {
    const isMeant = (!state || row.dataset.state === state) && (!group || row.dataset.group === group);
    row.hidden = !isMeant || !words.every(word => row.textContent.toLowerCase().includes(word));
    count += !row.hidden;
  }
  document.getElementById("matches").textContent = count === rows.length ? `${count} sweeps` : `${count} of ${rows.length} sweeps`;
  const compare = document.getElementById("compare");
  compare.hidden = !group;
  compare.href = `/compare?group=${encodeURIComponent(group)}`;
}
if (filter) {
  for (const [name, value] of new URLSearchParams(location.search)) if (filter.elements[name]) filter.elements[name].value = value;
  filter.addEventListener("input", () => {
    const given = Object.entries(chosen()).filter(([, value]) => value);
    history.replaceState(null, "", given.length ? `?${new URLSearchParams(given)}` : location.pathname);
    filterRows();
  });
  filter.addEventListener("submit", event => event.preventDefault());
}

// A heading of a sortable table sorts it, then the other way round, then restores the order of the service.
const orders = {};  // Heading and direction by the table's id.
const UNITS = {k: 1e3, M: 1e6, G: 1e9};
function readCell(row, column) {
  const text = row.cells[column].dataset.sort ?? row.cells[column].textContent.trim();
  const number = /^(-?[\d,]*\.?\d+(?:e[+-]?\d+)?)([kMG]?)(?:\s|$)/.exec(text);
  return number ? parseFloat(number[1].replaceAll(",", "")) * (UNITS[number[2]] || 1) : text === "-" ? "" : text;
}
function compareCells(a, b, sign) {
  if (a === "" || b === "") return (a === "") - (b === "");  // What is missing comes last.
  return sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(b));
}
function sortRows(table) {
  const [heading, sign] = orders[table.id] || [], heads = [...table.tHead.rows[0].cells];
  const column = heads.findIndex(head => head.textContent === heading), rows = [...table.tBodies[0].rows];
  heads.forEach((head, index) => index === column ? head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending") : head.removeAttribute("aria-sort"));
  const keys = new Map(rows.map((row, place) => [row, [column < 0 ? "" : readCell(row, column), row.dataset.place ??= place]]));
  rows.sort((a, b) => compareCells(keys.get(a)[0], keys.get(b)[0], sign) || keys.get(a)[1] - keys.get(b)[1]);
  table.tBodies[0].append(...rows);
}
function makeSortable(table) {
  for (const head of table.querySelectorAll("thead th:not(:has(.sort))")) {
    const button = document.createElement("button"), heading = head.textContent;
    button.className = "sort";
    button.id = `sort-${table.id}-${heading}`;
    button.append(...head.childNodes);
    button.addEventListener("click", () => {
      const [before, sign] = orders[table.id] || [];
      // Numbers begin with the greatest.
      const first = [...table.tBodies[0].rows].some(row => typeof readCell(row, head.cellIndex) === "number") ? -1 : 1;
      orders[table.id] = before !== heading ? [heading, first] : sign === first ? [heading, -first] : undefined;
      sortRows(table);
    });
    head.append(button);
  }
  if (orders[table.id]) sortRows(table);
}

// Times are those of the reader's clock, without what goes without saying. To make a format takes longer than to use it.
const [clock, day, dayOfYear, whole] = [
  {hour: "2-digit", minute: "2-digit"}, {day: "numeric", month: "short"},
  {day: "numeric", month: "short", year: "numeric"}, {dateStyle: "full", timeStyle: "long"},
].map(options => new Intl.DateTimeFormat(undefined, options));
function showTimes() {
  const now = new Date();
  for (const element of document.querySelectorAll("time")) {
    const time = new Date(element.dateTime), minutes = Math.round((now - time) / 6e4);
    const isToday = time.toDateString() === now.toDateString();
    const date = time.getFullYear() === now.getFullYear() ? day : dayOfYear;
    const ago = minutes < 1 ? "just now" : minutes < 60 ? `${minutes} min ago` : `${Math.round(minutes / 60)} h ago`;
    const parts = [isToday ? "" : date.format(time), clock.format(time), minutes < 1440 ? ago : ""];
    element.textContent = parts.filter(part => part).join(", ");
    element.title = whole.format(time);
  }
}

// A trial is marked in all figures and in the table while it is pointed at, and a clicked one until it is clicked again.
const picked = new Set();
const trialOf = event => event.target.closest?.("[data-trial]")?.dataset.trial;
function markTrials(pointed) {
  for (const element of document.querySelectorAll("[data-trial]")) {
    element.classList.toggle("marked", element.dataset.trial === pointed);
    element.classList.toggle("picked", picked.has(element.dataset.trial));
  }
}
addEventListener("pointerover", event => markTrials(trialOf(event)));
addEventListener("click", event => {
  const trial = trialOf(event);
  if (trial === undefined || !getSelection().isCollapsed) return;
  picked.delete(trial) || picked.add(trial);
  markTrials(trial);
});

// Beside the button the form shows what the sweep costs at most, and the command that submits it.
const form = document.getElementById("form");
let timer = 0, numAsked = 0;
async function showCost() {
  const number = ++numAsked;
  try {
    const response = await fetch("/submit/cost", {method: "POST", body: new URLSearchParams(new FormData(form))});
    if (response.ok && !response.redirected && number === numAsked) document.getElementById("cost").innerHTML = await response.text();
  } catch (error) { /* The service does not respond; it is asked again after the next change. */ }
}
form?.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(showCost, 400); });
if (form) showCost();

// What the script adds to the parts of the page, also after they were fetched again.
function prepare() {
  showTimes();
  document.querySelectorAll("table.sortable").forEach(makeSortable);
  if (filter) filterRows();
  markTrials();
}

// Fetch the part of the page that changes, and keep the focus, the open sections and the scroll positions in it.
const live = document.getElementById("live");
let lastText = "";
// The end of a log stays visible unless the reader has scrolled up.
const regions = () => [...document.querySelectorAll("#live [role=region]")];
const label = region => region.getAttribute("aria-label");
const isAtEnd = region => region.scrollHeight - region.scrollTop - region.clientHeight < 4;
// A button that is replaced between press and release would not be clicked.
let isHeld = false;
addEventListener("pointerdown", event => { isHeld = event.button === 0 && !!event.target.closest?.("a,button,summary"); });
for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => { isHeld = false; });
document.querySelectorAll(".log").forEach(log => { log.scrollTop = log.scrollHeight; });
async function refresh() {
  try {
    const response = await fetch(live.dataset.path + "?part=true");
    if (!response.ok || response.redirected) return;
    const text = await response.text();
    if (text === lastText || isHeld || !getSelection().isCollapsed) return;
    const focused = live.contains(document.activeElement) ? document.activeElement.id : "";
    const open = [...live.querySelectorAll("details[open]")].map(details => details.id);
    const scrolled = regions().map(region => [label(region), [region.scrollLeft, isAtEnd(region) ? 1e9 : region.scrollTop]]);
    const positions = new Map(scrolled);
    lastText = text;
    live.innerHTML = text;
    prepare();
    for (const id of open) if (document.getElementById(id)) document.getElementById(id).open = true;
    for (const region of regions()) [region.scrollLeft, region.scrollTop] = positions.get(label(region)) || [0, 0];
    if (focused) document.getElementById(focused)?.focus();
  } catch (error) { /* The service does not respond; the next attempt may succeed. */ }
}
prepare();
if (live) setInterval(refresh, 1000 * live.dataset.every);

document.documentElement.dataset.ready = "yes";
