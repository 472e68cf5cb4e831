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

// Show the rows that have all words of the search.
const search = document.getElementById("search");
function filterRows() {
  const words = search.value.toLowerCase().split(/\s+/);
  for (const row of document.querySelectorAll("#live tbody tr")) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every(word => text.includes(word));
  }
}
search?.addEventListener("input", filterRows);

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
    if (search) filterRows();
    for (const id of open) if (document.getElementById(id)) document.getElementById(id).open = true;
    for (const region of regions()) [region.scrollLeft, region.scrollTop] = positions.get(label(region)) || [0, 0];
    if (focused) document.getElementById(focused)?.focus();
  } catch (error) { /* The service does not respond; the next attempt may succeed. */ }
}
if (live) setInterval(refresh, 1000 * live.dataset.every);

document.documentElement.dataset.ready = "yes";
