"use strict";
// What the server says: the sections of its status, and its instances by ID. All text goes
// into the page as text: names come from people.
const sections = {}, instances = new Map();
const $ = id => document.getElementById(id);
let filter = decodeURIComponent(location.hash.replace(/^#q=/, "").replace(/^#.*/, ""));
let clockLead = 0; // the server's clock against this browser's, in milliseconds

const serverNow = () => Date.now() + clockLead;
const at = t => t ? Date.parse(t) : NaN;
const seconds = ms => Math.round(ms / 1000);
function span(ms) {
  const s = seconds(Math.max(0, ms));
  return s < 90 ? s + " s" : s < 5400 ? Math.round(s / 60) + " min" : s < 129600 ? Math.round(s / 3600) + " h" : Math.round(s / 86400) + " d";
}
const clock = t => new Date(at(t)).toLocaleTimeString([], { hourCycle: "h23" });
const since = t => t ? span(serverNow() - at(t)) : "–";
const short = ms => span(ms).replace(" ", "").replace("min", "m");

// element makes one, with its classes and what is in it.
function element(tag, cls, ...inside) {
  const e = document.createElement(tag);
  if (cls) e.className = cls;
  e.append(...inside);
  return e;
}
function text(e, s) { if (e.textContent !== s) e.textContent = s; }
function attribute(e, name, s) { if (e.getAttribute(name) !== s) e.setAttribute(name, s); }

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

const words = i => [i.id, i.tenant + "/" + i.group, i.state, i.market, i.instance_type, i.zone, i.provider_id].join(" ").toLowerCase();
const terms = () => filter.toLowerCase().split(/\s+/).filter(Boolean);
const matches = (haystack, all) => all.every(t => haystack.includes(t));

function render() {
  const s = sections, detail = !s.summary, all = terms();
  text($("where"), s.cluster ? s.cluster + " / " + s.shard : "");
  document.title = s.cluster ? s.shard + " · Nstance" : "Nstance";
  renderServers(s);
  keep($("attention"), (s.attention || []).map(a => a.kind), () => element("li"), (li, kind) => {
    const a = s.attention.find(a => a.kind === kind);
    text(li, "needs attention: " + kind.replaceAll("_", " ") + (a.count > 1 ? ", " + a.count + " times" : "") + (a.since ? ", for " + since(a.since) : "") +
      (a.why ? " · " + a.why + (a.remedy ? " · " + a.remedy : "") : " · nstance-admin status says what and why"));
  });
  $("summary").hidden = detail;
  $("detail").hidden = !detail;
  if (!detail) return;
  const shown = [...instances.values()].filter(i => matches(i.words, all)).sort((a, b) => order(a) - order(b) || (a.id < b.id ? -1 : 1));
  renderInterruptions((s.interruptions || []).filter(i => matches([i.instance, i.replacement, i.tenant + "/" + i.group, i.kind, i.event].join(" ").toLowerCase(), all)));
  renderGroups(shown, all);
  renderInstances(shown);
  renderEvents((s.events || []).filter(e => matches([e.event, e.instance, e.tenant + "/" + e.group, e.reason].join(" ").toLowerCase(), all)));
}
const order = i => ["draining", "deleting", "failed", "pending", "provisioning", "booting", "parking", "waking"].includes(i.state) ? 0 : 1;

function renderServers(s) {
  const leads = s.leader ? "leading, term " + s.epoch : "standing by";
  const where = !s.leader_address ? (s.leader ? "" : " · who leads is not known") : s.leader ? " at " + s.leader_address : " · " + s.leader_address + " leads";
  const standbys = !s.leader ? "" : " · standing by: " + ((s.standbys || []).map(b =>
    (b.address || "a server") + (b.version && b.version !== s.version ? ", version " + b.version : "") + (b.address_failed ? ", could not take the shard's address" : "")).join(" · ") || "no other server");
  text($("servers"), leads + where + standbys + " · version " + s.version);
}

const bars = 30; // shown at most
function renderInterruptions(list) {
  const over = i => i.deleted_at || i.withdrawn || i.ignored;
  const running = list.filter(i => !over(i)).sort((a, b) => (at(a.deadline) || Infinity) - (at(b.deadline) || Infinity)), recent = list.filter(over).slice(0, 20);
  const id = i => [i.instance, i.event, i.noticed_at].join(" "); // an event may return
  const byID = new Map(list.map(i => [id(i), i]));
  text($("running-count"), running.length ? running.length + " running" + (running.length > bars ? ", the " + bars + " with the earliest deadline are shown" : "") : recent.length ? "none running" : "none known");
  keep($("running"), running.slice(0, bars).map(id), makeRun, (row, key) => updateRun(row, byID.get(key)));
  $("recent-table").hidden = !recent.length;
  keep($("recent"), recent.map(id), () => row(7), (tr, key) => updateRecent(tr, byID.get(key)));
}

function makeRun() {
  const run = element("div", "run"), name = element("div"), track = element("div", "track"), left = element("div", "left");
  track.setAttribute("role", "img");
  name.append(element("code"), element("div", "dim"));
  for (const cls of ["bar drain", "bar replacement", "mark now", "mark deadline", "mark deleted"]) track.append(element("div", cls));
  for (const top of [".15rem", "1.15rem"]) { const tag = element("div", "tag"); tag.style.top = top; track.append(tag); }
  run.append(name, track, left);
  return run;
}

// updateRun draws one interruption to scale: the track goes from the notice to the deadline,
// or further if the interruption does.
function updateRun(run, i) {
  const [name, track, left] = run.children, now = serverNow();
  const [drain, replacement, mark, deadline, deleted, drainTag, replacementTag] = track.children;
  text(name.firstChild, i.instance);
  text(name.lastChild, i.tenant + "/" + i.group + " · " + i.kind + (i.rehearsal ? " (rehearsal)" : "") + (i.source ? " · " + i.source : ""));
  const start = at(i.noticed_at), moments = [i.deadline, i.drained_at, i.replacement_ready_at, i.deleted_at].map(at).filter(t => !isNaN(t));
  const end = Math.max(start + 10000, now, ...moments), x = t => 100 * Math.min(1, Math.max(0, (t - start) / (end - start)));
  const bar = (e, from, to, done) => {
    e.hidden = isNaN(from);
    if (e.hidden) return;
    e.style.left = x(from) + "%";
    e.style.width = Math.max(0, x(isNaN(to) ? now : to) - x(from)) + "%";
    e.classList.toggle("done", done);
  };
  const line = (e, t) => { e.hidden = isNaN(t); if (!e.hidden) e.style.left = x(t) + "%"; };
  bar(drain, at(i.drain_started_at), at(i.drained_at), i.drain_outcome === "drained");
  bar(replacement, at(i.replacement_requested_at), at(i.replacement_ready_at), !!i.replacement_ready_at);
  line(mark, now); line(deadline, at(i.deadline)); line(deleted, at(i.deleted_at));
  const drainText = i.drained_at ? i.drain_outcome + " after " + span(at(i.drained_at) - start) : i.drain_started_at ? "draining" : "not draining yet";
  const replacementText = i.replacement_ready_at ? "replacement ready after " + span(at(i.replacement_ready_at) - start) : i.replacement ? "replacement requested after " + span(at(i.replacement_requested_at) - start) : "no replacement yet";
  text(drainTag, drainText); text(replacementTag, replacementText);
  drainTag.style.left = (i.drain_started_at ? x(at(i.drain_started_at)) : 0) + "%";
  replacementTag.style.left = (i.replacement_requested_at ? x(at(i.replacement_requested_at)) : 0) + "%";
  const late = at(i.deadline) - now;
  text(left, isNaN(late) ? "no deadline" : late < 0 ? "deadline passed " + span(-late) + " ago" : span(late) + " until the deadline");
  left.classList.toggle("bad", late < 0);
  attribute(track, "aria-label", drainText + ", " + replacementText + ", " + left.textContent);
}

// updateRecent says how one went. The time left is from the end of its drain, or else of its machine, to the deadline.
function updateRecent(tr, i) {
  const how = i.ignored ? "ignored: " + i.ignored : i.withdrawn ? "withdrawn" : i.drain_outcome || "not drained";
  const left = i.ignored || i.withdrawn ? NaN : at(i.deadline) - at(i.drained_at || i.deleted_at);
  cells(tr, [clock(i.noticed_at), i.instance, i.tenant + "/" + i.group, i.kind + (i.rehearsal ? " (rehearsal)" : ""), how,
    isNaN(left) ? "–" : left < 0 ? "missed by " + span(-left) : span(left),
    i.replacement_ready_at ? "after " + span(at(i.replacement_ready_at) - at(i.noticed_at)) : i.replacement ? "not yet" : "–"]);
  const [, , wide, , , n, last] = tr.children;
  wide.className = last.className = "wide";
  n.className = "n " + (left < 0 ? "bad" : isNaN(left) ? "" : "good");
}

function row(columns) {
  const tr = element("tr");
  for (let i = 0; i < columns; i++) tr.append(element("td"));
  return tr;
}
function cells(tr, texts) { texts.forEach((s, i) => text(tr.children[i], s)); }

function renderGroups(shown, all) {
  const of = new Map();
  for (const i of shown) { const key = i.tenant + "/" + i.group; of.has(key) ? of.get(key).push(i) : of.set(key, [i]); }
  const groups = (sections.groups || []).filter(g => !all.length || of.has(g.tenant + "/" + g.group) || matches((g.tenant + "/" + g.group).toLowerCase(), all));
  const counts = {};
  for (const i of shown) counts[i.state] = (counts[i.state] || 0) + 1;
  text($("legend"), Object.keys(counts).sort().map(k => counts[k] + " " + k).join(" · "));
  keep($("groups"), groups.map(g => g.tenant + "/" + g.group), makeGroup, (e, key) => {
    const g = groups.find(g => g.tenant + "/" + g.group === key), [head, members] = e.children;
    text(head.children[0], key);
    text(head.children[1], g.ready + " of " + g.size + " ready" + (g.booting ? ", " + g.booting + " booting" : "") + (g.leaving ? ", " + g.leaving + " leaving" : "") + (g.stale ? ", " + g.stale + " stale" : "") + (g.standby ? ", " + g.standby + " stand-by, " + (g.parked || 0) + " asleep" : ""));
    text(head.children[2], (g.holds || []).map(h => h.kind.replaceAll("_", " ") + (h.reason ? ": " + h.reason : "") + (h.until ? ", ends in " + span(at(h.until) - serverNow()) : "")).join("; "));
    keep(members, (of.get(key) || []).map(i => i.id).sort(), makeMember, (b, id) => updateMember(b, instances.get(id)));
  });
}
function makeGroup() {
  const head = element("div", "", element("strong"), element("div", "dim"), element("div", "holds"));
  return element("div", "group", head, element("div", "members"));
}
function makeMember(id) {
  const b = element("button", "member");
  b.type = "button";
  b.id = "member-" + id;
  return b;
}
// updateMember shows the age of a member; of one that drains, how long it may yet.
function updateMember(b, i) {
  const cls = "member " + i.state;
  if (b.className !== cls) b.className = cls;
  text(b, i.deadline ? "-" + short(at(i.deadline) - serverNow()) : short(serverNow() - at(i.created_at)));
  const label = i.id + " " + i.state;
  attribute(b, "aria-label", label);
  attribute(b, "title", label + (i.instance_type ? " · " + i.instance_type : "") + (i.zone ? " · " + i.zone : "") + (i.market ? " · " + i.market : ""));
}

function renderInstances(shown) {
  const left = (sections.instances_total || 0) - instances.size;
  text($("cut"), left > 0 ? instances.size + " of " + sections.instances_total + " are known here, those that are not ready first; nstance-admin instance list shows all" : shown.length === instances.size ? "" : shown.length + " of " + instances.size);
  keep($("instances"), shown.map(i => i.id), makeInstance, (tr, id) => updateInstance(tr, instances.get(id)));
}
function makeInstance(id) {
  const tr = row(11);
  tr.id = "instance-" + id;
  tr.children[0].append(element("code"));
  tr.children[2].append(element("span"));
  tr.children[5].append(element("code"));
  [3, 4, 5, 7, 8, 9].forEach(i => tr.children[i].classList.add("wide"));
  [6, 7, 8, 9].forEach(i => tr.children[i].classList.add("n"));
  return tr;
}
function updateInstance(tr, i) {
  const c = tr.children, state = c[2].firstChild;
  text(c[0].firstChild, i.id);
  text(c[1], i.tenant + "/" + i.group);
  text(state, i.state);
  if (state.className !== "state " + i.state) state.className = "state " + i.state;
  text(c[3], i.market);
  text(c[4], [i.instance_type, i.zone].filter(Boolean).join(", "));
  text(c[5].firstChild, i.provider_id);
  text(c[6], since(i.created_at));
  text(c[7], serverNow() - at(i.reported_at) < 30000 ? "now" : since(i.reported_at)); // else a thousand rows change each second
  text(c[8], i.reported_at ? i.cpu.toFixed(0) + " %" : "–");
  text(c[9], i.reported_at ? i.memory.toFixed(0) + " %" : "–");
  text(c[10], i.deadline ? "deleted in " + Math.max(0, seconds(at(i.deadline) - serverNow())) + " s at the latest" : i.note || (i.connected ? "" : "not connected"));
}

function renderEvents(list) {
  const bySeq = new Map(list.map(e => [e.seq, e]));
  keep($("events"), list.map(e => e.seq).reverse(), () => row(4), (tr, seq) => {
    const e = bySeq.get(seq);
    cells(tr, [clock(e.time), e.event, e.instance || e.group || "", [e.replaces ? "replaces " + e.replaces : "", e.reason, e.error].filter(Boolean).join(" · ")]);
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
$("tools").addEventListener("submit", e => e.preventDefault());
$("help").addEventListener("click", () => $("keys").showModal());

function showInstance(id) {
  document.querySelectorAll("tr.target").forEach(tr => tr.classList.remove("target"));
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
  const section = { 1: "h-running", 2: "h-groups", 3: "h-instances", 4: "h-events" }[e.key];
  if (section) { $(section).scrollIntoView(); $(section).focus({ preventScroll: true }); return; }
  if (e.key === "/") { e.preventDefault(); $("filter").focus(); }
  if (e.key === "?") $("keys").showModal();
  if (e.key === "ArrowRight" || e.key === "ArrowLeft") {
    const members = [...document.querySelectorAll(".member")], here = members.indexOf(document.activeElement);
    if (here >= 0) { e.preventDefault(); members[here + (e.key === "ArrowRight" ? 1 : -1)]?.focus(); }
  }
});
connect();
