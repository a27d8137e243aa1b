// The page's live parts: theme, hints of the daemon (server-sent events), keyed swaps, keys, local times.
"use strict";
(() => {
  const root = document.documentElement;

  // --- theme -----------------------------------------------------------------------------------------------------
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const themed = () => document.dispatchEvent(new CustomEvent("farm:theme"));
  const button = document.getElementById("theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("farm-theme", root.dataset.theme); } catch { /* only for this page then */ }
    themed();
  });
  dark.addEventListener("change", themed);

  // --- times by the reader's own clock ---------------------------------------------------------------------------
  const two = (n) => String(n).padStart(2, "0");
  function localTimes(within) {
    for (const time of within.querySelectorAll("time[datetime]:not([data-local])")) {
      const at = new Date(time.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      const clock = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
      const today = at.toDateString() === new Date().toDateString();
      time.title = time.textContent;
      if ("brief" in time.dataset) { // of an axis
        time.textContent = `${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}`;
        time.dataset.local = "";
        continue;
      }
      time.textContent = today ? clock : `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock}`;
      time.dataset.local = "";
    }
  }
  // Elapsed times go on from the seconds that the server wrote, in the words of format_duration.
  const begun = new WeakMap();
  function count() {
    for (const each of document.querySelectorAll("[data-elapsed]")) {
      if (!begun.has(each)) begun.set(each, Date.now() - each.dataset.elapsed * 1000);
      let left = Math.round((Date.now() - begun.get(each)) / 1000);
      const parts = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]].map(([unit, size]) => { const n = Math.floor(left / size); left -= n * size; return [n, unit]; });
      const first = parts.findIndex(([n]) => n);
      each.textContent = first < 0 ? "0s" : parts.slice(first, first + 2).filter(([n]) => n).map((part) => part.join("")).join(" ");
    }
  }
  setInterval(() => { if (!document.hidden) count(); }, 1000);
  document.body.addEventListener("htmx:afterSwap", () => localTimes(document)); // of an outerHTML swap the target is gone

  // --- swaps that touch only what changed: hx-ext="keyed" hx-swap="keyed" ------------------------------------------
  // Children with data-key are compared by it; focus, selection and scrolling in the others are left alone.
  const sources = new WeakMap(); // element -> the server's text of it
  const source = (element) => sources.get(element) ?? element.outerHTML;
  // What the reader did in an element that is exchanged goes on: opened details and what they asked for, scrolled lists, typed text.
  function carry(old, next) {
    for (const [what, ...names] of [["details", "open"], [".why", "innerHTML"], [".log, .scroll, pre", "scrollTop", "scrollLeft"], ["input:not([type=hidden])", "value", "checked"]]) {
      const from = old.querySelectorAll(what), to = next.querySelectorAll(what);
      if (from.length !== to.length) continue;
      from.forEach((each, i) => names.forEach((name) => { if (to[i][name] !== each[name]) to[i][name] = each[name]; }));
    }
  }
  function patch(old, fresh) {
    const known = new Map([...old.children].filter((e) => e.dataset.key).map((e) => [e.dataset.key, e]));
    let place = old.firstElementChild;
    for (const next of [...fresh.children]) {
      const key = next.dataset.key;
      let now = key && known.get(key);
      if (now) {
        known.delete(key);
        if (now.hasAttribute("data-keyed") && next.hasAttribute("data-keyed")) {
          patch(now, next);
        } else if (source(now) !== next.outerHTML) {
          const text = next.outerHTML;
          if (place === now) place = next;
          now.before(next);
          carry(now, next);
          now.remove();
          sources.set(next, text);
          htmx.process(next);
          now = next;
        }
      } else {
        now = next;
        sources.set(next, next.outerHTML);
        old.insertBefore(next, place);
        htmx.process(next);
      }
      if (now === place) place = place.nextElementSibling;
      else old.insertBefore(now, place);
    }
    for (const gone of known.values()) gone.remove();
    for (const stray of [...old.children]) if (!stray.dataset.key && !fresh.contains(stray)) stray.remove();
  }
  function remember(within) {
    for (const each of within.querySelectorAll("[data-key]:not([data-keyed])")) sources.set(each, each.outerHTML);
  }
  htmx.defineExtension("keyed", {
    isInlineSwap: (style) => style === "keyed",
    handleSwap: (style, target, fragment) => {
      if (style !== "keyed") return false;
      const focused = target.contains(document.activeElement) ? document.activeElement.id : "";
      patch(target, fragment);
      const again = focused && document.getElementById(focused); // an element that is moved or exchanged loses it
      if (again && again !== document.activeElement) again.focus({ preventScroll: true });
      localTimes(target);
      const titled = target.querySelector("[data-title]");
      if (titled) document.title = titled.dataset.title;
      return [];
    },
  });

  // --- actions: what a form asks for happens once -----------------------------------------------------------------
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.method !== "post") return;
    if (form.dataset.sent) { event.preventDefault(); return; }
    form.dataset.sent = "yes";
    setTimeout(() => delete form.dataset.sent, 5000);
  });
  // macros.html `copy`: a page over plain HTTP under a name has no clipboard API, but the old command.
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
    } catch {
      const text = document.createElement("textarea");
      text.value = button.dataset.copy;
      button.after(text);
      text.select();
      document.execCommand("copy");
      text.remove();
      button.focus();
    }
    button.textContent = "Copied";
    news.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  document.addEventListener("change", (event) => { // the box in a table's head
    const all = event.target.closest("[data-all]");
    if (all) for (const each of all.closest("table").querySelectorAll(`input[name="${all.dataset.all}"]`)) each.checked = all.checked;
  });
  document.body.addEventListener("htmx:configRequest", (event) => {
    const csrf = document.querySelector("input[name=csrf]");
    if (csrf && event.detail.verb !== "get") event.detail.headers["X-CSRF-Token"] = csrf.value;
  });
  // A session that is over: the page asks for a sign-in.
  document.body.addEventListener("htmx:responseError", (event) => { if (event.detail.xhr.status === 401) location.reload(); });
  const filter = document.getElementById("filter");
  if (filter) {
    document.body.addEventListener("htmx:afterRequest", (event) => {
      if (event.detail.elt !== filter) return;
      const asked = new URLSearchParams([...new FormData(filter)].filter(([, value]) => value));
      history.replaceState(null, "", asked.size ? `?${asked}` : location.pathname);
    });
  }

  // --- keys: / searches, arrows go through rows and cards, Escape leaves the search --------------------------------
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const at = document.activeElement;
    const typing = at && /^(INPUT|SELECT|TEXTAREA)$/.test(at.tagName);
    const search = document.querySelector("[data-search]");
    if (event.key === "/" && !typing && search) { event.preventDefault(); search.focus(); return; }
    if (event.key === "Escape" && at === search) { event.preventDefault(); search.blur(); return; } // Chromium would empty it
    if (typing) return;
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const links = [...document.querySelectorAll("ul.wall .phone > a, table[data-nav] tbody a.row")];
    const here = links.indexOf(at);
    const sideways = event.key === "ArrowRight" || event.key === "ArrowLeft";
    if (!step || (here < 0 && (event.key.startsWith("Arrow") || !links.length))) return;
    const wall = at && at.closest && at.closest("ul.wall");
    if (sideways && !wall) return;
    const columns = wall && !sideways ? getComputedStyle(wall).gridTemplateColumns.split(" ").length : 1;
    const to = links[here < 0 ? 0 : here + step * columns];
    if (to) { event.preventDefault(); to.focus(); }
  });

  // --- hints: what happened, so that parts of the page ask again ---------------------------------------------------
  // An element asks again by hx-trigger="farm:device from:body" (the first word of an event's kind), or
  // "farm:about:NAME from:body" (its subject), or "farm:mine from:body" (the one of body[data-about]). A burst of hints is one trigger.
  const live = document.getElementById("live");
  const news = document.getElementById("news");
  const word = live.querySelector(".word");
  // A signed-in user may ask for a notification when a job of theirs ends; then a hidden page stays connected.
  const me = document.body.dataset.user;
  const ask = document.getElementById("notify");
  const notifies = () => Boolean(me) && "Notification" in window && Notification.permission === "granted";
  ask.hidden = !me || !("Notification" in window) || Notification.permission !== "default";
  ask.addEventListener("click", async () => { ask.hidden = (await Notification.requestPermission()) !== "default"; });
  const BURST_MS = 1000;
  let since = document.body.dataset.seq, stream = null, flush = 0;
  let topics = new Set(), changes = [];
  function show(state, text) { live.hidden = false; live.dataset.live = state; word.textContent = text; }
  function publish() {
    flush = 0;
    const now = topics;
    topics = new Set();
    for (const topic of now) htmx.trigger(document.body, topic);
    if (changes.length) {
      news.textContent = changes.length > 3 ? `${changes.length} devices changed their state` : changes.join(", ");
      changes = [];
    }
  }
  function onHint(event) {
    const hint = JSON.parse(event.data);
    since = hint.seq;
    const [topic, what] = hint.kind.split(".");
    topics.add(`farm:${topic}`);
    topics.add(`farm:about:${hint.subject}`);
    if (hint.device) topics.add(`farm:about:${hint.device}`);
    const mine = document.body.dataset.about;
    if (mine && (mine === hint.subject || mine === hint.device)) topics.add("farm:mine");
    if (["device.ready", "device.quarantined", "device.recovering", "device.gone"].includes(hint.kind)) {
      changes.push(`${hint.subject} is ${what}`);
    }
    document.body.dispatchEvent(new CustomEvent("farm:hint", { detail: hint }));
    if (topic === "job" && ["done", "failed", "cancelled"].includes(what) && hint.user === me && notifies()) {
      new Notification(`${hint.subject} is ${what}`, { tag: hint.subject });
    }
    if (!document.hidden) flush ||= setTimeout(publish, BURST_MS);
  }
  function open() {
    if (stream || (document.hidden && !notifies()) || since === undefined) return; // undefined: the page asks for a sign-in
    stream = new EventSource(`/events?since=${since}`);
    stream.addEventListener("open", () => show("on", "live"));
    stream.addEventListener("error", () => {
      show("off", "not connected");
      if (stream && stream.readyState === EventSource.CLOSED) { close(); setTimeout(open, 5000); }
    });
    stream.addEventListener("hint", onHint);
    stream.addEventListener("reset", () => location.reload());
  }
  function close() { if (stream) stream.close(); stream = null; }
  // A hidden page gives its connection back: browsers have six for each host.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden && !notifies()) close();
    else open();
    if (!document.hidden && topics.size) publish();
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  remember(document); // as the server wrote it, before times are put into words
  localTimes(document);
  open();
})();
