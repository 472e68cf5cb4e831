// The token of the printed link stays in the browser: what follows # is never sent.
const login = document.getElementById("login");
if (login && location.hash.length > 1) {
  document.getElementById("token").value = location.hash.slice(1);
  history.replaceState(null, "", location.pathname);
  login.requestSubmit();
}

// Fetch the part of the page that changes; who is in the middle of it keeps their place.
const live = document.getElementById("live");
let shown = "";
// The end of a log is its news: it stays in sight unless one has scrolled up.
const regions = () => [...document.querySelectorAll("#live [role=region]")];
const label = one => one.getAttribute("aria-label");
const isAtEnd = one => one.scrollHeight - one.scrollTop - one.clientHeight < 4;
// A button that is replaced between press and release is not clicked.
let isHeld = false;
addEventListener("pointerdown", event => { isHeld = event.button === 0 && !!event.target.closest?.("a,button,summary"); });
for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => { isHeld = false; });
document.querySelectorAll(".log").forEach(one => { one.scrollTop = one.scrollHeight; });
async function renew() {
  try {
    const answer = await fetch(live.dataset.path + "?part=true");
    if (!answer.ok || answer.redirected) return;
    const text = await answer.text();
    if (text === shown || isHeld || !getSelection().isCollapsed) return;
    const focused = live.contains(document.activeElement) ? document.activeElement.id : "";
    const open = [...live.querySelectorAll("details[open]")].map(one => one.id);
    const places = new Map(regions().map(one => [label(one), [one.scrollLeft, isAtEnd(one) ? 1e9 : one.scrollTop]]));
    shown = text;
    live.innerHTML = text;
    for (const id of open) if (document.getElementById(id)) document.getElementById(id).open = true;
    for (const one of regions()) [one.scrollLeft, one.scrollTop] = places.get(label(one)) || [0, 0];
    if (focused) document.getElementById(focused)?.focus();
  } catch (error) { /* the service is away: the next try may find it */ }
}
if (live) setInterval(renew, 1000 * live.dataset.every);

// Other files have other defaults, so the form is shown anew when a file is chosen; what was typed stays.
document.getElementById("settings")?.addEventListener("change", event => {
  if (event.target.tagName !== "SELECT") return;
  const filled = [...new FormData(event.currentTarget)].filter(([, text]) => text);
  location.assign("/submit?" + new URLSearchParams(filled));
});
document.documentElement.dataset.ready = "yes";
