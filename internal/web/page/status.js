"use strict";
// What the server says: the sections of its status, and its instances by ID. Counts come from
// the server, over everything; lists may be cut. All text goes into the page as text: names
// come from people.
const sections = {}, instances = new Map();
const $ = id => document.getElementById(id);
const filterOf = hash => { try { return decodeURIComponent(hash.replace(/^#q=/, "").replace(/^#.*/, "")); } catch { return ""; } };
let filter = filterOf(location.hash);
let clockLead = 0; // the server's clock against this browser's, in milliseconds

const serverNow = () => Date.now() + clockLead;
const at = t => typeof t === "number" ? t : t ? Date.parse(t) : NaN; // of a time in text, or of milliseconds
const seconds = ms => Math.round(ms / 1000);
const number = n => n.toLocaleString("en-US");
const plural = (n, one, many = one + "s") => number(n) + " " + (n === 1 ? one : many);

// span says a duration roughly.
function span(ms) {
  const s = seconds(Math.max(0, ms));
  return s < 90 ? s + " s" : s < 5400 ? Math.round(s / 60) + " min" : s < 129600 ? Math.round(s / 3600) + " h" : Math.round(s / 86400) + " d";
}
// countdown says a duration to the second below ten minutes, as m:ss.
function countdown(ms) {
  const s = Math.max(0, Math.ceil(ms / 1000));
  if (s < 600) return Math.floor(s / 60) + ":" + String(s % 60).padStart(2, "0");
  const m = Math.round(s / 60);
  if (m < 60) return m + " min";
  return m < 48 * 60 ? Math.floor(m / 60) + " h " + m % 60 + " min" : Math.floor(m / 1440) + " d " + Math.floor(m % 1440 / 60) + " h";
}
const until = t => at(t) > serverNow() ? "in " + countdown(at(t) - serverNow()) : "now";
const since = t => t ? span(serverNow() - at(t)) : "–";
const clock = t => new Date(at(t)).toLocaleTimeString("en-GB");
// moment says a time, with its date unless that is today.
function moment(t) {
  const d = new Date(at(t)), today = new Date(serverNow());
  const day = d.toDateString() === today.toDateString() ? "" : d.toLocaleDateString("en-GB", { day: "numeric", month: "short", year: d.getFullYear() === today.getFullYear() ? undefined : "numeric" }) + " ";
  return day + clock(t);
}
const money = n => n >= 100 ? number(Math.round(n)) : n >= 1 ? n.toFixed(2) : n.toFixed(n >= .01 ? 3 : 4);

// element makes one, with its classes and what is in it.
function element(tag, cls, ...inside) {
  const e = document.createElement(tag);
  if (cls) e.className = cls;
  e.append(...inside);
  return e;
}
function text(e, s) { if (e.textContent !== s) e.textContent = s; }
function attribute(e, name, s) { if (e.getAttribute(name) !== s) e.setAttribute(name, s); }
function classes(e, s) { if (e.className !== s) e.className = s; }
function time(e, t) {
  text(e, t ? moment(t) : "");
  if (t) attribute(e, "title", new Date(at(t)).toString());
}

// link makes an instance's name one that filters the page by it.
function link(a, id) {
  text(a, id || "");
  if (id) attribute(a, "href", "#q=" + encodeURIComponent(id)); else a.removeAttribute("href");
}

// keep makes the children of a parent those of the keys, in their order. It reuses those that
// are there, so that a change of one of a thousand touches one.
function keep(parent, keys, make, update) {
  const there = parent.kept ??= new Map();
  const wanted = new Set(keys);
  for (const [key, e] of there) if (!wanted.has(key)) { e.remove(); there.delete(key); }
  let before = parent.firstChild;
  for (const key of keys) {
    let e = there.get(key);
    if (!e) { e = make(key); e.key = key; there.set(key, e); }
    if (e === before) before = before.nextSibling; else parent.insertBefore(e, before);
    update(e, key);
  }
}

// Lists grow by a click.
const limits = { pools: [10, 40], recent: [12, 50], events: [15, 50], instances: [25, 200] };
const shownOf = Object.fromEntries(Object.keys(limits).map(k => [k, limits[k][0]]));
function cut(name, list, total = list.length) {
  const button = $(name + "-more"), more = list.length - shownOf[name];
  button.hidden = more <= 0;
  text(button, "show " + number(Math.min(Math.max(more, 0), limits[name][1])) + " more of " + number(total));
  return list.slice(0, shownOf[name]);
}
for (const name of Object.keys(limits)) $(name + "-more").addEventListener("click", () => { shownOf[name] += limits[name][1]; render(); });

const words = i => [i.id, i.tenant + "/" + i.group, i.state, i.market, i.instance_type, i.zone, i.provider_id].join(" ").toLowerCase();
const terms = () => filter.toLowerCase().split(/\s+/).filter(Boolean);
const matches = (haystack, all) => all.every(t => haystack.includes(t));
const interruptionWords = i => [i.instance, i.replacement, i.tenant + "/" + i.group, i.kind, i.event, i.result, i.instance_type, i.zone, i.market].join(" ").toLowerCase();
const eventWords = e => [e.event, e.instance, e.replaces, e.tenant + "/" + e.group, e.reason, e.notice?.event_id].join(" ").toLowerCase();

// What kinds of holds and attention mean.
const meanings = {
  avoided: "everything that is permitted is in avoided pools", backoff: "creations failed, the next one waits", breaker: "many members fell silent at once, none is replaced for it",
  budget: "the create rate is used up", capacity: "the provider is sold out", clock: "the clock is wrong, nothing is deleted by time", create_refused: "the provider refuses to create",
  definition: "the definition cannot be read", drain: "a drain without deadline is blocked", frozen: "frozen, nothing is changed", halted: "the rollout is halted",
  paused: "the rollout is paused", pending: "the new definition is not in effect yet", rolled_back: "rolled back to the last good definition", settling: "a new leader waits for reports of the members",
  unhealthy_cap: "as many unhealthy members as permitted are being replaced", unreadable: "records cannot be read, only losses are replaced",
  short: "fewer ready members than its size", orphan: "a machine without a record", market: "another market than requested", stuck: "members boot for long", obstacle: "a step is refused, or not carried out",
  agent_version: "agents are too old or too new", metadata: "agents cannot read the metadata service", load_balancer: "load balancers are not up to date", journal: "the journal is not whole",
  config_held: "a configuration waits for confirmation", config_refused: "a configuration is invalid", config: "the configuration is not durable", not_leading: "this server cannot lead",
};
const meaning = kind => Object.hasOwn(meanings, kind) ? meanings[kind] : kind.replaceAll("_", " ");
const grave = new Set(["alarm", "breaker", "clock", "create_refused", "halted", "journal", "keys", "not_leading", "obstacle", "record", "unreadable"]);

function render() {
  const s = sections, detail = !s.summary && s.leader, all = terms();
  text($("where"), s.cluster ? s.cluster + " / " + s.shard : "");
  document.title = s.cluster ? s.shard + " · Nstance" : "Nstance";
  renderServers(s);
  renderAttention(s);
  renderVerdict(s);
  $("summary").hidden = !s.summary;
  $("detail").hidden = !detail;
  if (!detail) return;
  const list = (s.interruptions || []).filter(i => matches(interruptionWords(i), all));
  const shown = [...instances.values()].filter(i => matches(i.words, all)).sort((a, b) => order(a) - order(b) || (a.id < b.id ? -1 : 1));
  text($("filtered"), all.length ? plural(shown.length, "instance") + ", " + plural(list.length, "interruption") : "");
  renderNow(s, list, all);
  renderGroups(shown, all);
  renderDay(s.day);
  renderPools(s, all);
  renderEnded(s, list, all);
  renderEvents((s.events || []).filter(e => matches(eventWords(e), all)));
  renderInstances(shown, all);
}
const leaving = new Set(["draining", "drained", "deleting", "failed"]), coming = new Set(["pending", "provisioning", "booting", "parking", "waking"]);
const order = i => leaving.has(i.state) ? 0 : coming.has(i.state) ? 1 : i.connected ? 3 : 2;

function renderServers(s) {
  const leads = s.leader ? "leads, term " + s.epoch + (s.since ? ", for " + since(s.since) : "") : "stands by";
  const where = !s.leader_address ? (s.leader ? "" : " · the leader is not known") : s.leader ? " at " + s.leader_address : " · " + s.leader_address + " leads";
  const standbys = !s.leader ? "" : " · standing by: " + ((s.standbys || []).map(b =>
    (b.address || "a server") + (b.version && b.version !== s.version ? ", version " + b.version : "") + (b.address_failed ? ", could not take the shard’s address" : "")).join(" · ") || "no other server");
  text($("servers"), "This server " + leads + where + standbys + " · version " + s.version);
  text($("clock"), s.time ? new Date(at(s.time)).toLocaleString("en-GB", { weekday: "short", day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" }) : "");
}

// Attention, what is acknowledged last, the gravest and oldest first.
const byUrgency = (a, b) => !!a.acknowledged - !!b.acknowledged || grave.has(b.kind) - grave.has(a.kind) || (at(a.since) || Infinity) - (at(b.since) || Infinity) || (a.kind < b.kind ? -1 : 1);
const attentionKey = a => [a.kind, a.subject, a.why, !!a.acknowledged].join("\n");
function renderAttention(s) {
  const list = [...(s.attention || [])].sort(byUrgency);
  const byKey = new Map(list.map(a => [attentionKey(a), a]));
  const omitted = s.attention_omitted || 0, known = s.attention_acknowledged || 0, total = list.reduce((sum, a) => sum + a.count, omitted);
  $("attention-section").hidden = !list.length;
  text($("attention-count"), number(total) + (known ? ", " + number(known) + " of them acknowledged" : "") + (omitted ? ", " + number(omitted) + " of them not shown" : ""));
  keep($("attention"), [...byKey.keys()], makeAttention, (li, key) => updateAttention(li, byKey.get(key)));
}
function makeAttention() {
  return element("li", "", element("div", "head", element("strong"), element("span", "subject"), element("span", "dim")), element("div"), element("div", "dim"), element("div", "known"));
}
const acknowledged = a => !a ? "" : "Acknowledged" + (a.by ? " by " + a.by : "") + " until " + moment(a.until) + (a.reason ? ": " + a.reason : "");
function updateAttention(li, a) {
  const [head, why, remedy, known] = li.children;
  classes(li, a.acknowledged ? "acknowledged" : grave.has(a.kind) ? "bad" : "warn");
  text(known, acknowledged(a.acknowledged));
  text(head.children[0], a.kind.replaceAll("_", " ") + (a.count > 1 ? " × " + a.count : ""));
  text(head.children[1], a.subject || "");
  text(head.children[2], [a.since ? "since " + moment(a.since) + ", for " + since(a.since) : "", a.until ? "ends, or is tried again, " + until(a.until) : ""].filter(Boolean).join(" · "));
  text(why, a.why || meaning(a.kind));
  text(remedy, a.remedy ? "What to do: " + a.remedy : a.subject ? "" : "What and why: nstance-admin status");
}

// The verdict: is everything all right?
function verdict(s) {
  if (!s.version) return ["", "Loading", ""];
  const open = (s.attention || []).filter(a => !a.acknowledged).sort(byUrgency), first = open[0], known = s.attention_acknowledged || 0;
  const others = known ? plural(known, "thing is", "things are") + " acknowledged" : "";
  const t = s.totals || {}, n = s.interruptions_running || 0, due = (s.interruptions || []).find(i => !over(i) && i.deadline);
  const late = due && at(due.deadline) < serverNow();
  const running = n ? plural(n, "machine") + (n === 1 ? " is" : " are") + " being taken, " + (late ? "a deadline has passed" : due ? "next deadline " + until(due.deadline) : "without a deadline") : "";
  if (open.length) {
    const oldest = open.map(a => at(a.since)).filter(x => !isNaN(x)).sort((a, b) => a - b)[0];
    const count = (s.attention || []).reduce((sum, a) => sum + a.count, s.attention_omitted || 0) - known, why = (first.subject ? first.subject + ": " : "") + (first.why || meaning(first.kind));
    return [open.some(a => grave.has(a.kind)) ? "bad" : "warn", plural(count, "thing needs", "things need") + " attention" + (oldest ? ", since " + moment(oldest) : ""), [why, others, running].filter(Boolean).join(" · ")];
  }
  if (!s.leader) return ["info", "This server stands by", s.leader_address ? s.leader_address + " leads: its page shows the shard" : "the leader is not known"];
  if (s.summary) return known ? ["info", "Nothing in the shard as a whole needs attention but what is acknowledged", others] : ["good", "Nothing needs attention in the shard as a whole", ""];
  const note = why => [why, others].filter(Boolean).join(" · ");
  if (n) return [late || t.ready < t.size ? "warn" : "info", late || t.ready < t.size ? running : "All right: " + running, note(plural(t.ready, "member") + " ready of " + number(t.size))];
  if (t.ready < t.size) return ["info", "On the way: " + number(t.ready) + " of " + plural(t.size, "member") + " ready", note(plural(t.booting, "member") + " on the way")];
  if (t.stale) return ["info", "All right: a rollout is under way", note(plural(t.stale, "member") + " of " + number(t.size) + " still to be replaced")];
  if (known) return ["info", "Nothing needs attention but what is acknowledged", others];
  const last = (s.interruptions || []).find(i => over(i) && i.result !== "ignored");
  return ["good", "Everything is all right", last ? "the last interruption was noticed " + moment(last.noticed_at) + ", " + since(last.noticed_at) + " ago" : "no interruption is known"];
}
let announced = "";
function renderVerdict(s) {
  const [level, title, why] = verdict(s);
  classes($("verdict"), level);
  text($("h-verdict"), title);
  text($("verdict-why"), why);
  if (level !== announced) { announced = level; text($("announce"), title); } // not at every countdown
  renderTiles(s);
}
function renderTiles(s) {
  const t = s.totals, tiles = [];
  if (t && s.leader && !s.summary) {
    const known = t.spot + t.on_demand, day = s.day.total, lost = day.incomplete, all = day.running + day.drained + lost;
    tiles.push(["Members ready", number(t.ready), "of " + number(t.size), t.ready < t.size ? "warn" : "good", [t.booting && number(t.booting) + " on the way", t.leaving && number(t.leaving) + " leaving", t.stale && number(t.stale) + " outdated"].filter(Boolean).join(", ")]);
    tiles.push(["Spot share", known ? Math.round(100 * t.spot / known) + " %" : "–", "", "", known ? number(t.spot) + " spot, " + number(t.on_demand) + " on demand" : ""]);
    tiles.push(["Cost an hour", t.cost_per_hour || !t.unpriced ? money(t.cost_per_hour) : "not known", "", "", t.unpriced ? "without " + plural(t.unpriced, "machine") + " of unknown price" : "by the prices at launch"]);
    const due = (s.interruptions || []).find(i => !over(i) && i.deadline);
    tiles.push(["Being taken", number(s.interruptions_running), "", s.interruptions_running ? "warn" : "", !s.interruptions_running ? "no machine" : !due ? "no deadline" : at(due.deadline) < serverNow() ? "past a deadline" : "next deadline " + until(due.deadline)]);
    tiles.push(["Taken in 24 h", number(all), "", "", all ? number(day.drained) + " drained in time, " + number(lost) + " not" : "none", lost ? "bad" : ""]);
  }
  keep($("tiles"), tiles.map(x => x[0]), () => element("div", "tile", element("dt"), element("dd", "value", element("span"), " ", element("small")), element("dd", "dim")), (e, key) => {
    const [, value, of, cls, more, noteClass] = tiles.find(x => x[0] === key), [dt, dd, note] = e.children;
    text(dt, key);
    text(dd.firstChild, value); classes(dd.firstChild, cls);
    text(dd.lastChild, of);
    text(note, more); classes(note, noteClass || "dim");
  });
}

// What happens now.
const over = i => !!(i.deleted_at || i.withdrawn || i.ignored);
const incomplete = i => ["late", "cut short", "failed", "lost"].includes(i.result);
const interruptionID = i => [i.instance, i.event, i.noticed_at].join(" "); // an event may return
function renderNow(s, list, all) {
  const waves = (s.waves || []).filter(w => w.running && (!all.length || list.some(i => i.wave === w.id) || matches((w.groups || []).join(" ").toLowerCase(), all)));
  const rollouts = (s.groups || []).filter(g => g.stale && matches((g.tenant + "/" + g.group).toLowerCase(), all));
  const n = s.interruptions_running || 0, hidden = (s.waves_total || 0) > (s.waves || []).length && (s.waves || []).every(w => w.running) ? ", the " + s.waves.length + " waves with the earliest deadlines are shown" : "";
  text($("running-count"), [n ? plural(n, "interruption") + " running" + hidden : "", rollouts.length ? plural(rollouts.length, "rollout") : ""].filter(Boolean).join(", "));
  $("quiet").hidden = n > 0 || rollouts.length > 0;
  text($("quiet"), "No machine is being taken, and no rollout is under way.");
  keep($("rollouts"), rollouts.map(g => g.tenant + "/" + g.group), makeRollout, (e, key) => updateRollout(e, rollouts.find(g => g.tenant + "/" + g.group === key)));
  keep($("waves"), waves.map(w => w.id), makeWave, (e, id) => updateWave(e, waves.find(w => w.id === id), list, all));
}

function makeRollout() {
  return element("div", "card", element("h3"), gauge("replaced"), element("div", "dim"));
}
function updateRollout(e, g) {
  const [title, bar, note] = e.children, done = Math.max(0, g.size - g.stale);
  text(title, "Rollout of " + g.tenant + "/" + g.group);
  updateGauge(bar, g.size, [["drained", done]], done + " of " + g.size);
  text(note, holdTexts(g).join(" · ") || plural(g.stale, "member") + " still of an older definition, " + g.booting + " on the way, " + g.leaving + " leaving");
}

function gauge(name) { return element("div", "gauge", element("span", "dim", name), element("div", "stack"), element("span")); }
// updateGauge draws parts of a whole, to scale.
function updateGauge(e, total, parts, label) {
  const [name, stack, n] = e.children;
  stack.setAttribute("role", "img");
  attribute(stack, "aria-label", name.textContent + ": " + label);
  keep(stack, parts.map(p => p[0]), cls => element("i", cls), (i, cls) => {
    const width = total ? 100 * parts.find(p => p[0] === cls)[1] / total + "%" : "0";
    if (i.style.width !== width) i.style.width = width;
  });
  text(n, label);
}

function makeWave() {
  const head = element("div", "wave-head", element("div", "", element("h3"), element("div", "dim")), element("div", "countdown", element("b"), element("span", "dim")));
  const pools = element("table", "wave-pools", element("thead", "", element("tr", "", ...["Pool", "Reclaimed", "Replaced", "Drained", "Incomplete"].map((t, i) => { const th = element("th", i ? "n" : "", t); th.scope = "col"; return th; }))), element("tbody"));
  const details = element("details", "", element("summary"), element("div", "rows"), element("p", "dim"));
  details.addEventListener("toggle", () => render());
  return element("article", "card wave", head, element("div", "sum"), gauge("drained"), gauge("replaced"), pools, details);
}
const poolName = p => [p.instance_type || "unknown type", p.zone || "unknown zone", p.market || "unknown market"].join(" · ");

// updateWave draws a wave. One of a single machine is its row alone.
function updateWave(e, w, list, all) {
  const [head, sum, drained, replaced, pools, details] = e.children, [title, left] = head.children;
  const single = w.machines === 1, kinds = [...new Set(list.filter(i => i.wave === w.id).map(i => i.kind))].join(", ") || "reclaim";
  classes(e, "card wave" + (single ? " single" : ""));
  for (const part of [head, sum, drained, replaced, pools]) part.hidden = single;
  details.firstChild.hidden = single;
  text(title.children[0], (w.rehearsal ? "Rehearsal" : "Wave") + " of " + plural(w.machines, "machine") + " · " + kinds);
  text(title.children[1], (w.groups || []).slice(0, 3).join(", ") + (w.groups?.length > 3 ? " and others" : "") + " · began " + moment(w.began) + ", " + since(w.began) + " ago");
  renderCountdown(left, w.deadline, "to the first deadline");
  text(sum, wordsOfWave(w));
  updateGauge(drained, w.machines, [["drained", w.drained], ["incomplete", w.incomplete], ["drain", Math.max(0, w.machines - w.drained - w.incomplete)]], number(w.drained) + " of " + number(w.machines));
  updateGauge(replaced, w.machines, [["drained", w.replaced], ["coming", Math.max(0, w.requested - w.replaced)]], number(w.replaced) + " of " + number(w.machines));
  keep(pools.lastChild, (w.pools || []).map(poolName), () => row(5, [1, 2, 3, 4]), (tr, key) => {
    const p = w.pools.find(p => poolName(p) === key);
    cells(tr, [key, number(p.machines), number(p.replaced), number(p.drained), number(p.incomplete)]);
    tr.lastChild.classList.toggle("bad", p.incomplete > 0);
  });
  const rows = list.filter(i => i.wave === w.id && !over(i));
  if (single || all.length) details.open = true;
  text(details.firstChild, plural(w.running, "machine") + " still there, by deadline" + (w.pools_omitted ? "; " + plural(w.pools_omitted, "more pool") : ""));
  const byID = new Map(rows.map(i => [interruptionID(i), i])), drawn = details.open ? rows.slice(0, rowsOfWave) : [];
  keep(details.children[1], drawn.map(interruptionID), makeRun, (r, key) => updateRun(r, byID.get(key)));
  text(details.children[2], details.open && w.running > drawn.length && !all.length ? "and " + number(w.running - drawn.length) + " more with later deadlines: nstance-admin interruption list shows all" : "");
}
const rowsOfWave = 30; // drawn at most
const wordsOfWave = w => [number(w.machines) + " reclaimed", number(w.replaced) + " replaced", number(w.drained) + " drained", w.incomplete ? number(w.incomplete) + " incomplete" : "", w.tightest_seconds === undefined ? "" : "tightest " + tightest(w)].filter(Boolean).join(" · ");
const tightest = w => w.tightest_seconds === undefined ? "–" : w.tightest_seconds < 0 ? "missed by " + Math.ceil(-w.tightest_seconds) + " s" : Math.floor(w.tightest_seconds) + " s";

function renderCountdown(e, deadline, what) {
  const late = at(deadline) - serverNow(), [value, note] = e.children;
  text(value, isNaN(late) ? "–" : late < 0 ? "+" + countdown(-late) : countdown(late));
  classes(value, late < 0 ? "bad" : late < 30000 ? "warn" : "");
  text(note, isNaN(late) ? "no deadline" : late < 0 ? "past the deadline" : what);
}

function makeRun() {
  const name = element("div", "", element("a", "id"), element("div", "dim"));
  const track = element("div", "track"), labels = element("div", "labels", element("div"), element("div"), element("a", "id")), left = element("div", "left", element("b"), element("div", "dim"), element("div"));
  track.setAttribute("role", "img");
  for (const cls of ["bar drain", "bar replacement", "mark now", "mark drain-deadline", "mark deadline", "mark deleted"]) track.append(element("div", cls));
  return element("div", "run", name, track, labels, left);
}

// updateRun draws one interruption to scale: the track goes from the notice to the deadline,
// or further if the interruption does.
function updateRun(run, i) {
  const [name, track, labels, left] = run.children, now = serverNow();
  const [drain, replacement, mark, drainDeadline, deadline, deleted] = track.children;
  link(name.firstChild, i.instance);
  text(name.lastChild, [i.tenant + "/" + i.group, i.kind + (i.rehearsal ? " (rehearsal)" : ""), i.source, clock(i.noticed_at)].filter(Boolean).join(" · "));
  const start = at(i.noticed_at), moments = [i.deadline, i.drain_deadline, i.drained_at, i.replacement_ready_at, i.deleted_at].map(at).filter(t => !isNaN(t));
  const end = Math.max(start + 10000, now, ...moments), x = t => 100 * Math.min(1, Math.max(0, (t - start) / (end - start)));
  const bar = (e, from, to, cls) => {
    e.hidden = isNaN(from);
    if (e.hidden) return;
    e.style.left = x(from) + "%";
    e.style.width = Math.max(0, x(isNaN(to) ? now : to) - x(from)) + "%";
    classes(e, cls);
  };
  const line = (e, t) => { e.hidden = isNaN(t); if (!e.hidden) e.style.left = x(t) + "%"; };
  bar(drain, at(i.drain_started_at), at(i.drained_at), "bar drain" + (i.result === "drained" ? " done" : incomplete(i) ? " incomplete" : ""));
  bar(replacement, at(i.replacement_requested_at), at(i.replacement_ready_at), "bar replacement" + (i.replacement_ready_at ? " done" : ""));
  line(mark, now); line(drainDeadline, at(i.drain_deadline)); line(deadline, at(i.deadline)); line(deleted, at(i.deleted_at));
  const drainText = i.drained_at ? i.result + " after " + span(at(i.drained_at) - start) : i.drain_started_at ? "draining for " + span(now - at(i.drain_started_at)) : "not draining yet";
  const replacementText = i.replacement_ready_at ? "replacement ready after " + span(at(i.replacement_ready_at) - start) : i.replacement ? "replacement requested after " + span(at(i.replacement_requested_at) - start) : "no replacement yet";
  text(labels.children[0], drainText); classes(labels.children[0], i.result === "drained" ? "good" : incomplete(i) ? "bad" : "");
  text(labels.children[1], replacementText); classes(labels.children[1], i.replacement_ready_at ? "good" : "");
  link(labels.children[2], i.replacement);
  renderCountdown(left, i.deadline, "to the cloud’s deadline");
  const drainLeft = at(i.drain_deadline) - now;
  text(left.children[2], isNaN(drainLeft) ? "" : drainLeft < 0 ? "drain is being cut short" : "drain is cut in " + countdown(drainLeft));
  classes(left.children[2], drainLeft < 15000 ? "warn" : "dim");
  attribute(track, "aria-label", [drainText, replacementText, left.children[0].textContent + " " + left.children[1].textContent, left.children[2].textContent].filter(Boolean).join(", "));
}

// What happened. The time left is from the end of the drain, or else of the machine, to the cloud's deadline.
function renderEnded(s, list, all) {
  const waves = (s.waves || []).filter(w => !w.running && w.machines > 1 && (!all.length || list.some(i => i.wave === w.id) || matches((w.groups || []).join(" ").toLowerCase(), all)));
  const ended = list.filter(over), known = (s.interruptions_total || 0) - (s.interruptions_running || 0);
  text($("ended-count"), known ? plural(known, "interruption") + " known to this server" : "no interruption is known");
  $("ended-waves-table").hidden = !waves.length;
  keep($("ended-waves"), waves.map(w => w.id), () => row(8, [2, 3, 4, 5, 6, 7], [7]), (tr, id) => {
    const w = waves.find(w => w.id === id), c = tr.children;
    cells(tr, ["", (w.groups || []).slice(0, 3).join(", ") + (w.groups?.length > 3 ? " …" : "") + (w.rehearsal ? " (rehearsal)" : ""), number(w.machines), number(w.replaced), number(w.drained), number(w.incomplete), tightest(w), w.ended ? span(at(w.ended) - at(w.began)) : "–"]);
    time(c[0], w.began); c[0].classList.add("when");
    c[5].classList.toggle("bad", w.incomplete > 0);
    c[6].classList.toggle("bad", w.tightest_seconds < 0);
  });
  $("recent-table").hidden = !ended.length;
  const byID = new Map(ended.map(i => [interruptionID(i), i]));
  keep($("recent"), cut("recent", ended, all.length ? ended.length : known).map(interruptionID), makeRecent, (tr, key) => updateRecent(tr, byID.get(key)));
}
function makeRecent() {
  const tr = row(7, [5], [2, 3, 6]), c = tr.children;
  c[0].classList.add("when");
  c[1].append(element("a", "id"));
  c[6].append(element("div"), element("a", "id"));
  return tr;
}
function updateRecent(tr, i) {
  const c = tr.children, left = i.ignored || i.withdrawn ? NaN : at(i.deadline) - at(i.drained_at || i.deleted_at);
  time(c[0], i.noticed_at);
  link(c[1].firstChild, i.instance);
  text(c[2], i.tenant + "/" + i.group);
  text(c[3], i.kind + (i.rehearsal ? " (rehearsal)" : ""));
  text(c[4], (i.result === "drained" ? "✓ " : incomplete(i) ? "✗ " : "") + i.result + (i.ignored ? ": " + i.ignored : ""));
  classes(c[4], i.result === "drained" ? "good" : incomplete(i) ? "bad" : "");
  text(c[5], isNaN(left) ? "–" : left < 0 ? "missed by " + countdown(-left) : countdown(left));
  classes(c[5], "n" + (left < 0 ? " bad" : ""));
  text(c[6].firstChild, i.replacement_ready_at ? "ready after " + span(at(i.replacement_ready_at) - at(i.noticed_at)) : i.replacement ? "not ready yet" : "–");
  link(c[6].lastChild, i.replacement);
}

function row(columns, numbers = [], wide = []) {
  const tr = element("tr");
  for (let i = 0; i < columns; i++) tr.append(element("td", [numbers.includes(i) ? "n" : "", wide.includes(i) ? "wide" : ""].filter(Boolean).join(" ")));
  return tr;
}
function cells(tr, texts) { texts.forEach((s, i) => { if (s !== "" || !tr.children[i].firstElementChild) text(tr.children[i], s); }); }

const holdTexts = g => (g.holds || []).map(h => meaning(h.kind) + (h.reason ? " (" + h.reason + ")" : "") + (h.until ? ", ends " + until(h.until) + " at " + moment(h.until) : h.since ? ", since " + moment(h.since) + ", until something changes" : ""));

// Groups: those with the most missing first.
const cards = 60, squares = 300; // drawn at most, of a group
function renderGroups(shown, all) {
  const of = new Map();
  for (const i of shown) { const key = i.tenant + "/" + i.group; of.has(key) ? of.get(key).push(i) : of.set(key, [i]); }
  const name = g => g.tenant + "/" + g.group, groups = (sections.groups || []).filter(g => !all.length || of.has(name(g)) || matches(name(g).toLowerCase(), all));
  const byName = new Map(groups.map(g => [name(g), g])), first = g => (g.ready < g.size ? 0 : (g.holds || []).length || g.leaving || g.stale ? 1 : 2);
  const drawn = groups.length > cards ? [...groups].sort((a, b) => first(a) - first(b)).slice(0, cards) : groups;
  text($("groups-count"), number(groups.length));
  text($("groups-more"), groups.length > drawn.length ? "and " + number(groups.length - drawn.length) + " more, with fewer members missing: filter by name, or nstance-admin group list" : "");
  keep($("groups"), drawn.map(name), makeGroup, (e, key) => updateGroup(e, byName.get(key), of.get(key) || [], all));
}
function makeGroup() {
  const facts = element("dl", "facts", ...["Ready", "Spot", "Cost/h"].map(t => element("div", "", element("dt", "", t), element("dd", "", element("b"), " ", element("span", "dim")))));
  const stack = element("div", "stack");
  stack.setAttribute("role", "img");
  return element("article", "card group", element("h3"), facts, stack, element("div", "dim"), element("ul", "holds"), element("div", "members"), element("div", "dim"));
}
function updateGroup(e, g, members, all) {
  const [title, facts, stack, states, holds, squaresOf, more] = e.children, [ready, spot, cost] = [...facts.children].map(d => d.lastChild);
  const known = g.spot + g.on_demand, n = state => g.states?.[state] || 0;
  const parts = [["drained", n("ready")], ["coming", n("pending") + n("provisioning") + n("booting") + n("waking")], ["drain", n("draining") + n("drained")], ["incomplete", n("deleting") + n("failed")], ["asleep", n("parked") + n("parking")]];
  text(title, g.tenant + "/" + g.group);
  text(ready.firstChild, number(g.ready)); classes(ready.firstChild, g.ready < g.size ? "warn" : "");
  text(ready.lastChild, "of " + number(g.size));
  text(spot.firstChild, known ? Math.round(100 * g.spot / known) + " %" : "–");
  text(cost.firstChild, g.cost_per_hour ? money(g.cost_per_hour) : "–");
  text(cost.lastChild, g.cost_per_hour && g.unpriced ? "+ " + number(g.unpriced) + " unknown" : "");
  const total = Math.max(g.size, parts.reduce((sum, p) => sum + p[1], 0));
  const label = Object.keys(g.states || {}).sort().map(k => number(g.states[k]) + " " + k).join(" · ") || "no members";
  keep(stack, parts.map(p => p[0]), cls => element("i", cls), (i, cls) => { const width = total ? 100 * parts.find(p => p[0] === cls)[1] / total + "%" : "0%"; if (i.style.width !== width) i.style.width = width; });
  attribute(stack, "aria-label", label);
  text(states, label + (g.stale ? " · " + number(g.stale) + " outdated" : "") + (g.standby ? " · " + number(g.standby) + " stand-by, " + number(g.parked || 0) + " asleep" : ""));
  const why = holdTexts(g);
  keep(holds, why.map((_, k) => k), () => element("li"), (li, k) => text(li, why[k]));
  const drawn = members.slice(0, squares);
  keep(squaresOf, drawn.map(i => i.id).sort(), makeMember, (b, id) => updateMember(b, instances.get(id)));
  const existing = Object.values(g.states || {}).reduce((sum, k) => sum + k, 0);
  text(more, !all.length && existing > drawn.length ? "and " + number(existing - drawn.length) + " more" : all.length && members.length > drawn.length ? "and " + number(members.length - drawn.length) + " more" : "");
}
function makeMember(id) {
  const b = element("button", "member");
  b.type = "button";
  b.id = "member-" + id;
  b.tabIndex = -1;
  return b;
}
function updateMember(b, i) {
  const first = !b.previousSibling;
  if (b.tabIndex !== (first ? 0 : -1)) b.tabIndex = first ? 0 : -1;
  classes(b, "member m " + i.state);
  const label = i.id + " " + i.state;
  attribute(b, "aria-label", label);
  attribute(b, "title", [label, i.instance_type, i.zone, i.market, i.deadline ? "drain is cut at " + clock(i.deadline) : "since " + moment(i.created_at), i.stale ? "outdated" : ""].filter(Boolean).join(" · "));
}

function renderPools(s, all) {
  const list = (s.pools || []).filter(p => matches(poolName(p).toLowerCase(), all) || !all.length), total = all.length ? list.length : s.pools_total || 0;
  text($("pools-count"), number(total) + ", type × zone × market");
  const byName = new Map(list.map(p => [poolName(p), p])), most = Math.max(0, ...list.map(p => p.members));
  keep($("pools"), cut("pools", list, total).map(poolName), makePool, (tr, key) => {
    const p = byName.get(key), [n, share] = tr.children[3].children, width = most ? 100 * p.members / most + "%" : "0%";
    text(n, number(p.members));
    if (share.firstChild.style.width !== width) share.firstChild.style.width = width;
    cells(tr, [p.instance_type || "unknown", p.zone || "unknown", p.market || "unknown", "", p.machine_hours ? p.reclaims_per_100_hours.toFixed(p.reclaims_per_100_hours < 10 ? 2 : 0) : "–", p.last_reclaim ? moment(p.last_reclaim) : "–", p.price_per_hour ? money(p.price_per_hour) : "–"]);
    attribute(tr.children[4], "title", plural(p.reclaims, "reclaim") + " in " + number(Math.round(p.machine_hours)) + " machine hours of the last 30 days");
  });
}

function makePool() {
  const tr = row(7, [3, 4, 5, 6], [5]);
  tr.children[3].append(element("span"), element("div", "stack share", element("i", "drained")));
  return tr;
}

// The last day, in quarters of an hour.
function renderDay(day) {
  if (!day) return;
  const from = at(day.from), byStart = new Map((day.slots || []).map(k => [at(k.at), k])), total = k => k.running + k.drained + k.incomplete;
  const top = Math.max(1, ...[...byStart.values()].map(total)), keys = Array.from({ length: 96 }, (_, n) => n);
  const label = total(day.total) ? plural(total(day.total), "machine") + " taken, " + number(day.total.drained) + " drained in time, " + number(day.total.incomplete) + " not, at most " + number(top) + " in a quarter of an hour" : "no machine was taken";
  text($("day-count"), label + (day.known ? "; earlier than " + moment(day.known) + " is not counted here" : ""));
  attribute($("day"), "aria-label", "Last 24 hours: " + label);
  keep($("day"), keys, () => element("div", "slot", element("i", "drained"), element("i", "incomplete"), element("i", "running")), (e, n) => {
    const k = byStart.get(from + n * 900000);
    ["drained", "incomplete", "running"].forEach((part, i) => { const h = k ? Math.max(k[part] ? 4 : 0, 100 * k[part] / top) + "%" : "0%"; if (e.children[i].style.height !== h) e.children[i].style.height = h; });
    const title = k ? moment(k.at) + ": " + number(total(k)) + " taken, " + number(k.drained) + " drained in time, " + number(k.incomplete) + " not" : "";
    if (title) attribute(e, "title", title); else e.removeAttribute("title");
  });
  const ticks = [0, 6, 12, 18, 24].map(h => clock(from + h * 3600000).slice(0, 5));
  keep($("axis"), [0, 1, 2, 3, 4], () => element("span"), (e, n) => text(e, ticks[n]));
  const marks = (day.marks || []).slice(-8).reverse(), id = m => [m.time, m.event, m.group, m.reason].join(" "), byID = new Map(marks.map(m => [id(m), m]));
  keep($("marks"), [...byID.keys()], () => element("li", "", element("span", "when dim"), element("span")), (li, key) => {
    const m = byID.get(key);
    time(li.firstChild, m.time);
    text(li.lastChild, [m.event.replaceAll("_", " "), m.group ? m.tenant + "/" + m.group : "", m.reason].filter(Boolean).join(" · "));
  });
}

function renderInstances(shown, all) {
  const left = (sections.instances_total || 0) - instances.size;
  text($("cut"), left > 0 ? number(instances.size) + " of " + number(sections.instances_total) + " are known here, those that are not ready first; nstance-admin instance list shows all" : all.length ? shown.length + " of " + instances.size : number(instances.size) + ", those that are not ready first");
  keep($("instances"), cut("instances", shown, all.length ? shown.length : sections.instances_total || 0).map(i => i.id), makeInstance, (tr, id) => updateInstance(tr, instances.get(id)));
}
function makeInstance(id) {
  const tr = row(11, [6, 7, 8, 9], [3, 4, 5, 7, 8, 9, 10]);
  tr.id = "instance-" + id;
  tr.tabIndex = -1;
  tr.children[0].append(element("a", "id"));
  tr.children[2].append(element("span", "state", element("i"), element("span")));
  tr.children[5].append(element("code"));
  return tr;
}
function updateInstance(tr, i) {
  const c = tr.children, state = c[2].firstChild;
  link(c[0].firstChild, i.id);
  text(c[1], i.tenant + "/" + i.group);
  classes(state.firstChild, "m " + i.state);
  text(state.lastChild, i.state);
  text(c[3], i.market);
  text(c[4], [i.instance_type, i.zone].filter(Boolean).join(", "));
  text(c[5].firstChild, i.provider_id);
  text(c[6], since(i.created_at)); attribute(c[6], "title", new Date(at(i.created_at)).toString());
  text(c[7], serverNow() - at(i.reported_at) < 30000 ? "now" : since(i.reported_at)); // else a thousand rows change each second
  text(c[8], i.reported_at ? i.cpu.toFixed(0) + " %" : "–");
  text(c[9], i.reported_at ? i.memory.toFixed(0) + " %" : "–");
  text(c[10], [i.deadline ? at(i.deadline) > serverNow() ? "drain is cut in " + countdown(at(i.deadline) - serverNow()) : "drain is being cut short" : "", i.stale ? "outdated" : "", i.note, i.connected ? "" : "not connected"].filter(Boolean).join(" · "));
}

function renderEvents(list) {
  const bySeq = new Map(list.map(e => [e.seq, e]));
  keep($("events"), cut("events", list.map(e => e.seq).reverse()), () => {
    const tr = row(4);
    tr.children[0].classList.add("when");
    tr.children[2].append(element("a", "id"), element("span"));
    tr.children[3].append(element("a", "id"), element("span"));
    return tr;
  }, (tr, seq) => {
    const e = bySeq.get(seq), [when, what, about, why] = tr.children;
    time(when, e.time);
    text(what, e.event.replaceAll("_", " "));
    link(about.firstChild, e.instance);
    text(about.lastChild, e.instance ? "" : e.group ? e.tenant + "/" + e.group : "");
    link(why.firstChild, e.replaces);
    text(why.lastChild, [e.replaces ? " is replaced" : "", e.reason, e.error].filter(Boolean).join(" · "));
  });
}

// The stream ends after a while, and the browser opens the next one: only a server that stays
// away is worth a word.
let lostAt = 0;
function connect() {
  const stream = new EventSource("stream");
  stream.onmessage = m => {
    const f = JSON.parse(m.data);
    if (f.first) { instances.clear(); for (const k of Object.keys(sections)) delete sections[k]; }
    Object.assign(sections, f.sections);
    for (const i of f.rows || []) { i.words = words(i); instances.set(i.id, i); }
    for (const id of f.gone || []) instances.delete(id);
    clockLead = at(sections.time) - Date.now();
    lostAt = 0;
    text($("lost"), "");
    render();
  };
  stream.onerror = () => {
    lostAt ||= Date.now();
    if (stream.readyState === EventSource.CLOSED) { stream.close(); setTimeout(connect, 5000); }
  };
}
setInterval(() => {
  if (lostAt && Date.now() - lostAt > 4000) text($("lost"), "The server has not answered for " + span(Date.now() - lostAt) + ": what you see is as old.");
}, 1000);

$("filter").value = filter;
$("filter").addEventListener("input", e => {
  filter = e.target.value;
  history.replaceState(null, "", filter ? "#q=" + encodeURIComponent(filter) : location.pathname);
  render();
});
addEventListener("hashchange", () => {
  $("filter").value = filter = filterOf(location.hash);
  render();
});
$("tools").addEventListener("submit", e => e.preventDefault());
$("help").addEventListener("click", () => $("keys").showModal());

function showInstance(id) {
  document.querySelectorAll("tr.target").forEach(tr => tr.classList.remove("target"));
  if (!$("instance-" + id)) { shownOf.instances = Math.max(shownOf.instances, instances.size); render(); }
  const tr = $("instance-" + id);
  if (!tr) return;
  tr.classList.add("target");
  tr.scrollIntoView({ block: "center" });
}
document.addEventListener("click", e => { const b = e.target.closest(".member"); if (b) showInstance(b.key); });
document.addEventListener("keydown", e => {
  if (e.ctrlKey || e.metaKey || e.altKey || $("keys").open) return;
  if (e.key === "Escape") { $("filter").value = ""; $("filter").dispatchEvent(new Event("input")); $("filter").blur(); return; }
  if (e.target === $("filter")) return;
  const section = { 1: "h-running", 2: "h-groups", 3: "h-day", 4: "h-pools", 5: "h-ended", 6: "h-instances" }[e.key];
  if (section) { $(section).scrollIntoView(); $(section).focus({ preventScroll: true }); return; }
  if (e.key === "/") { e.preventDefault(); $("filter").focus(); }
  if (e.key === "?") $("keys").showModal();
  if (e.key === "ArrowRight" || e.key === "ArrowLeft") {
    const members = [...document.querySelectorAll(".member")], here = members.indexOf(document.activeElement);
    if (here >= 0) { e.preventDefault(); members[here + (e.key === "ArrowRight" ? 1 : -1)]?.focus(); }
  }
});
connect();
