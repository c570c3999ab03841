"use strict";
// Draws what /live says (web/README.md has its frames). It asks for nothing else, and sends nothing.

const KEPT = 8192; // bubbles of a lane
const KEPT_ITERATIONS = 1024;
const DELAY_US = 400e3; // behind now, so that what is drawn has arrived
const SPANS_S = [0.2, 0.5, 1, 2, 5, 10, 20, 60];
const ROWS = 200; // of a table
const BUBBLE = 9, ITERATION = 4; // numbers of each in a frame

const byId = (id) => document.getElementById(id);
const known = { ranks: new Map(), tasks: new Map(), workers: new Map(), jobs: new Map(), batches: new Map(), faults: new Map(), phases: new Map(), manager: new Map() };
const taskNames = new Map(), phaseNames = new Map(); // number: name
const lanes = new Map(); // number: Lane
let notices = [];
let order = []; // lanes from top to bottom
// Figures of the page itself, for benchmarks and tests.
const figures = { bubbles: 0, drawn: 0, first_bubble_ms: null, frames: 0, intervals_ms: [], draw_ms: [] };
window.freeride = figures;

function element(tag, text = "", name = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (name) made.className = name;
  return made;
}

// ---- figures for people
const number = (value) => (value >= 1e6 ? (value / 1e6).toFixed(1) + " M" : value >= 1e4 ? (value / 1e3).toFixed(1) + " k" : String(Math.round(value)));
const percent = (value) => value.toFixed(value < 10 ? 2 : 1) + " %";
function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return (at === 0 ? value : value.toFixed(value < 10 ? 1 : 0)) + " " + units[at];
}
function duration(us) {
  if (us < 1000) return Math.round(us) + " µs";
  if (us < 1e6) return (us / 1000).toFixed(us < 1e4 ? 2 : 1) + " ms";
  return (us / 1e6).toFixed(2) + " s";
}
// By number, so that it stays; never near the red of overruns.
const taskColour = (id) => (id === 0 ? colours.side : `hsl(${100 + (id * 47) % 200} ${dark ? "55% 55%" : "60% 36%"})`);

let colours = {}, dark = false;
function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["compute", "bubble", "phase", "holdout", "lease", "side", "overrun", "tick", "text", "soft", "panel", "line", "bad"])
    colours[name] = style.getPropertyValue("--" + name).trim();
  dark = matchMedia("(prefers-color-scheme: dark)").matches;
}

// ---- what has been heard
class Lane {
  constructor() {
    this.begin = new Float64Array(KEPT);
    this.values = [0, 1, 2, 3].map(() => new Float32Array(KEPT)); // length, side begin, side length, overrun
    this.flags = new Uint8Array(KEPT);
    this.task = new Uint32Array(KEPT);
    this.phase = new Uint32Array(KEPT);
    this.open = null; // the idle phase that is under way: name, begin
    this.phaseEndUs = -Infinity; // of the last one that is over
    this.count = 0;
    this.iterationBegin = new Float64Array(KEPT_ITERATIONS);
    this.iterationCount = 0;
    this.dirtyFrom = Infinity;
    // Before its first event, and in its gaps, nothing is known of a rank; else it computes where it does not wait.
    this.firstUs = Infinity;
    this.lastUs = -Infinity;
    this.gone = this.ended = false;
    this.gaps = [];
  }
  hears(begin, end) {
    if (this.ended) {
      this.dirtyFrom = Math.min(this.dirtyFrom, this.lastUs);
      if (begin > this.lastUs) this.gaps = this.gaps.concat([[this.lastUs, begin]]).slice(-100);
      this.ended = this.gone;
    }
    this.firstUs = Math.min(this.firstUs, begin);
    this.dirtyFrom = Math.min(this.dirtyFrom, begin);
    this.lastUs = Math.max(this.lastUs, end);
  }
  // Whether its rank is gone, or nothing of it can be heard: it ends with its last event, until there is another one.
  setGone(gone) {
    if (gone && !this.ended) {
      this.ended = true;
      this.dirtyFrom = Math.min(this.dirtyFrom, this.lastUs);
    }
    this.gone = gone;
  }
  knows(us) {
    return us >= this.firstUs && !(this.ended && us > this.lastUs) && !this.gaps.some(([from, to]) => us > from && us < to);
  }
  addBubble(list, at, base) {
    const i = this.count++ % KEPT;
    this.begin[i] = base + list[at + 1];
    for (let k = 0; k < 4; k++) this.values[k][i] = list[at + 2 + k];
    this.flags[i] = list[at + 6];
    this.task[i] = list[at + 7];
    this.phase[i] = list[at + 8];
    if (this.phase[i] !== 0) {
      this.phaseEndUs = this.begin[i] + list[at + 2];
      if (this.open && !this.isAfter(this.open.begin)) this.open = null;
    }
    this.hears(this.begin[i], this.begin[i] + list[at + 2] + list[at + 5]);
  }
  // A rank's state may be older than the bubbles that were heard, and tells of phases that last a second.
  isAfter(begin) {
    return begin > this.phaseEndUs - 5e5;
  }
  setOpen(name, begin) {
    const open = name !== "" && begin !== 0 && this.isAfter(begin) ? { name, begin } : null;
    if ((open && open.begin) === (this.open && this.open.begin)) return;
    for (const phase of [open, this.open]) if (phase) this.dirtyFrom = Math.min(this.dirtyFrom, phase.begin);
    this.open = open;
    if (open) this.firstUs = Math.min(this.firstUs, open.begin);
  }
  addIteration(list, at, base) {
    const begin = base + list[at + 1];
    this.iterationBegin[this.iterationCount++ % KEPT_ITERATIONS] = begin;
    this.hears(begin, begin + list[at + 2]);
  }
}

let clockUs = -Infinity; // the server's time at performance.now() = 0
let speed = 1; // of its clock: another one in a recording
const pageUs = () => performance.now() * 1000 * speed;
const serverNow = () => clockUs + pageUs();
const delayUs = () => DELAY_US * Math.max(1, speed);

function merge(section, changes) {
  const map = known[section];
  for (const [key, fields] of Object.entries(changes)) {
    if (fields === null) map.delete(key);
    else map.set(key, Object.assign(map.get(key) || {}, fields));
  }
}

function hear(frame) {
  const said = ((frame.manager || {}).manager || {}).speed;
  if (said !== undefined && said !== speed) { speed = said; clockUs = -Infinity; }
  const offset = frame.now - pageUs();
  // The fastest frame tells the distance best; a slow fall follows clocks that drift apart.
  if (offset > clockUs || frame.whole) clockUs = offset;
  else clockUs -= Math.min(20, clockUs - offset);
  if (frame.whole) {
    for (const map of Object.values(known)) map.clear();
    notices = [];
  }
  for (const section of Object.keys(known)) if (frame[section]) merge(section, frame[section]);
  if (frame.notices) notices = notices.concat(frame.notices).slice(-200);
  if (frame.tasks) for (const [name, task] of known.tasks) taskNames.set(task.id, name);
  if (frame.phases) for (const [name, phase] of known.phases) phaseNames.set(phase.id, name);
  if (frame.ranks || frame.manager || frame.whole) arrange();
  for (const [name, step] of [["bubbles", BUBBLE], ["iterations", ITERATION]]) {
    const list = frame[name] || [];
    for (let at = 0; at + step <= list.length; at += step) {
      const lane = lanes.get(list[at]);
      if (!lane) continue;
      if (name === "bubbles") { lane.addBubble(list, at, frame.now); figures.bubbles += 1; }
      else lane.addIteration(list, at, frame.now);
    }
  }
  if (frame.ranks || frame.tasks || frame.workers || frame.jobs || frame.batches || frame.faults || frame.manager || frame.notices || frame.whole) stale = true;
}

function arrange() {
  const sorted = [...known.ranks].sort(([, a], [, b]) => (a.job < b.job ? -1 : a.job > b.job ? 1 : a.replica - b.replica || a.stage - b.stage || a.rank - b.rank));
  const ids = sorted.map(([, rank]) => rank.id);
  for (const id of ids) if (!lanes.has(id)) lanes.set(id, new Lane());
  for (const id of lanes.keys()) if (!ids.includes(id)) lanes.delete(id);
  const changed = ids.length !== order.length || ids.some((id, i) => id !== order[i].id);
  order = sorted.map(([, rank]) => rank);
  for (const rank of order) lanes.get(rank.id).setOpen(rank.phase, rank.phase_since);
  if (changed) layOut();
}

// ---- the picture
const canvas = byId("picture"), context = canvas.getContext("2d", { alpha: false });
let spanAt = SPANS_S.indexOf(5), pausedAt = null, stale = true, whole = true, laneHeight = 30, scale = 1, drawnTo = 0;
const summed = () => (known.manager.get("manager") || {}).lanes === false;

let laidOutAt = 0;
const above = () => byId("lanes").getBoundingClientRect().top + window.scrollY;
function layOut() {
  const count = Math.max(1, order.length);
  laidOutAt = above();
  const room = Math.max(320, window.innerHeight * 0.6, window.innerHeight - laidOutAt - 16);
  laneHeight = summed() ? 14 : Math.max(8, Math.min(44, Math.floor(room / count)));
  const box = byId("lanes");
  box.style.setProperty("--lane", laneHeight + "px");
  box.style.setProperty("--size", Math.min(12, laneHeight - 1) + "px");
  box.hidden = order.length === 0;
  byId("nolanes").hidden = order.length !== 0;
  for (const part of document.querySelectorAll(".legend, .tools")) part.hidden = summed();
  scale = window.devicePixelRatio || 1;
  const width = Math.max(50, canvas.clientWidth);
  const height = summed() ? Math.ceil(count / Math.floor(width / laneHeight)) * laneHeight : count * laneHeight;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.height = height + "px";
  whole = stale = true;
}

const spanUs = () => SPANS_S[spanAt] * 1e6;
const viewEnd = () => (pausedAt === null ? serverNow() - delayUs() : pausedAt);

function drawLane(lane, y, h, from, to, perUs, leftUs) {
  const xOf = (us) => (us - leftUs) * perUs;
  const x0 = Math.max(0, Math.floor(xOf(from))), x1 = xOf(to);
  context.fillStyle = colours.panel;
  context.fillRect(x0, y, x1 - x0, h);
  const known0 = Math.max(x0, xOf(lane.firstUs)), known1 = lane.ended ? Math.min(x1, xOf(lane.lastUs)) : x1;
  context.fillStyle = colours.compute;
  if (known1 > known0) context.fillRect(known0, y, known1 - known0, h);
  const fromUs = leftUs + x0 / perUs;
  const box = (begin, length, top, height, colour) => {
    const left = Math.max(x0, xOf(begin)), right = Math.min(x1, xOf(begin + length));
    if (right <= left) return;
    context.fillStyle = colour;
    context.fillRect(left, top, right - left, height);
  };
  for (const [begin, end] of lane.gaps) if (end > fromUs && begin < to) box(begin, end - begin, y, h, colours.panel);
  const tags = [];
  if (lane.open && !lane.ended) {
    box(lane.open.begin, to - lane.open.begin, y, h, colours.phase);
    tags.push([lane.open.name, lane.open.begin, Infinity]);
  }
  const [lengths, sideBegins, sideLengths, overruns] = lane.values;
  const oldest = Math.max(0, lane.count - KEPT);
  for (let n = lane.count - 1; n >= oldest; n--) {
    const i = n % KEPT, begin = lane.begin[i];
    if (begin >= to) continue;
    // Bubbles come in the order of their ends.
    if (begin + lengths[i] + overruns[i] < fromUs - 1e6) break;
    if (begin + lengths[i] + overruns[i] < fromUs) continue;
    figures.drawn += 1;
    box(begin, lengths[i], y, h, (lane.flags[i] & 2) !== 0 ? colours.holdout : lane.phase[i] !== 0 ? colours.phase : colours.bubble);
    if (lane.phase[i] !== 0) tags.push([phaseNames.get(lane.phase[i]) || "", begin, begin + lengths[i]]);
    if ((lane.flags[i] & 1) !== 0) box(begin, lengths[i], y, Math.max(1, h * 0.12), colours.lease);
    if (sideLengths[i] > 0) box(begin + sideBegins[i], sideLengths[i], y + h * 0.24, h * 0.62, taskColour(lane.task[i]));
    if (overruns[i] > 0) box(begin + lengths[i], overruns[i], y + h * 0.24, h * 0.62, colours.overrun);
  }
  if (h >= 16 * scale) drawTags(tags, y, h, x0, x1, xOf);
  const first = Math.max(0, lane.iterationCount - KEPT_ITERATIONS);
  for (let n = lane.iterationCount - 1; n >= first; n--) {
    const begin = lane.iterationBegin[n % KEPT_ITERATIONS];
    if (begin < fromUs) break;
    if (begin < to) { context.fillStyle = colours.tick; context.fillRect(Math.floor(xOf(begin)), y, scale, h); }
  }
}

// Names of idle phases, where they have room. In a long one there is one on every picture.
function drawTags(tags, y, h, x0, x1, xOf) {
  if (tags.length === 0) return;
  context.save();
  context.beginPath();
  context.rect(x0, y, x1 - x0, h);
  context.clip();
  context.font = `${11 * scale}px system-ui, "DejaVu Sans", sans-serif`;
  context.textBaseline = "middle";
  const apart = canvas.width / 2, height = 14 * scale, middle = y + h / 2;
  for (const [name, begin, end] of tags) {
    const left = xOf(begin), right = Math.min(x1 + apart, xOf(end)), width = context.measureText(name).width + 8 * scale;
    for (let x = left + 4 * scale + Math.max(0, Math.ceil((x0 - left - width) / apart)) * apart; x + width + 4 * scale <= right; x += apart) {
      context.fillStyle = colours.phase;
      context.fillRect(x, middle - height / 2, width, height);
      context.fillStyle = colours.text;
      context.fillText(name, x + 4 * scale, middle);
    }
  }
  context.restore();
}

const attached = (rank) => rank.state === "active" || rank.state === "";
function drawLanes() {
  const manager = known.manager.get("manager") || {}, deaf = !connected || (manager.up === false && !manager.replay);
  const perUs = canvas.width / spanUs(), h = Math.round(laneHeight * scale), gap = laneHeight > 14 ? 2 * scale : 1;
  const end = Math.floor(viewEnd() * perUs) / perUs, left = end - spanUs(); // whole pixels, so that lanes only shift
  const shift = Math.round((end - drawnTo) * perUs);
  if (whole || shift < 0 || shift >= canvas.width) {
    context.fillStyle = colours.panel;
    context.fillRect(0, 0, canvas.width, canvas.height);
    drawnTo = left;
    for (const lane of lanes.values()) lane.dirtyFrom = left;
  } else if (shift > 0) {
    context.drawImage(canvas, -shift, 0);
  }
  order.forEach((rank, row) => {
    const lane = lanes.get(rank.id);
    lane.setGone(deaf || !attached(rank));
    // What arrives late is drawn over what was there.
    const from = Math.max(left, Math.min(drawnTo, lane.dirtyFrom));
    if (from < end) drawLane(lane, row * h, h - gap, from, end, perUs, left);
    lane.dirtyFrom = Infinity;
  });
  drawnTo = end;
  whole = false;
}

// Very many ranks: a tile each, the brighter the more of its bubbles is harvested.
function drawTiles() {
  if (!whole && !stale) return;
  const size = laneHeight * scale, columns = Math.max(1, Math.floor(canvas.width / size));
  context.fillStyle = colours.panel;
  context.fillRect(0, 0, canvas.width, canvas.height);
  order.forEach((rank, at) => {
    const x = (at % columns) * size, y = Math.floor(at / columns) * size;
    context.fillStyle = attached(rank) ? colours.compute : colours.bad;
    context.fillRect(x, y, size - scale, size - scale);
    const share = Math.min(1, (rank.harvested_pct || 0) / 100);
    context.fillStyle = colours.side;
    context.fillRect(x, y + (size - scale) * (1 - share), size - scale, (size - scale) * share);
  });
  whole = false;
}

let lastFrame = 0;
function draw(now) {
  requestAnimationFrame(draw);
  if (lastFrame) remember(figures.intervals_ms, now - lastFrame);
  lastFrame = now;
  const began = performance.now(), before = figures.drawn;
  if (order.length !== 0) {
    if (summed()) drawTiles();
    else if (pausedAt === null || whole) drawLanes();
    if (figures.first_bubble_ms === null && figures.drawn > before) figures.first_bubble_ms = performance.now();
  }
  if (now - lastTables > 1000 && order.some((rank) => rank.phase)) stale = true; // how long it has been is shown
  if (stale && now - lastTables > 400) { lastTables = now; stale = false; fillTables(); }
  figures.frames += 1;
  remember(figures.draw_ms, performance.now() - began);
}
function remember(list, value) {
  list.push(value);
  if (list.length > 1200) list.shift();
}

// ---- tables, twice a second at most
let lastTables = -Infinity;
const rowsOf = new WeakMap(); // table body: rows by key

// Rows keep their elements, so that focus and selection stay.
function fillRows(body, items, cellsOf, columns) {
  const rows = rowsOf.get(body) || new Map();
  rowsOf.set(body, rows);
  const shown = items.slice(0, ROWS), keys = new Set(shown.map(([key]) => key));
  for (const [key, row] of rows) if (!keys.has(key)) { row.remove(); rows.delete(key); }
  shown.forEach(([key, item], at) => {
    let row = rows.get(key);
    if (!row) {
      row = element("tr");
      for (const [name, style] of columns) {
        const cell = element("td", "", style);
        if (name) cell.dataset.name = name;
        row.append(cell);
      }
      rows.set(key, row);
    }
    if (body.children[at] !== row) body.insertBefore(row, body.children[at] || null);
    cellsOf(row, key, item);
  });
  return items.length - shown.length;
}
function put(cell, text, style) {
  if (cell.textContent !== text) cell.textContent = text;
  if (style !== undefined && cell.className !== style) cell.className = style;
}

function fillTables() {
  fillLink();
  fillJobs();
  fillLabels();
  fillTasks();
  fillBatches();
  fillDevices();
  fillEvents();
}

function fillLink() {
  const manager = known.manager.get("manager") || {};
  const link = byId("link");
  if (!connected) put(link, "no connection to freeride-web; trying again", "bad");
  else if (manager.replay) put(link, `recording of ${new Date(serverNow() / 1000).toLocaleString()}${speed === 0 ? ", its end" : speed === 1 ? "" : `, ${speed} times as fast`}`, "");
  else if (manager.up === false) put(link, "the manager is not heard: " + manager.why, "bad");
  else put(link, `live · manager ${manager.version || ""}`, "");
}

function fillJobs() {
  const box = byId("jobs"), made = [];
  for (const [name, job] of [...known.jobs].sort()) {
    const card = element("div", "", "card"), list = element("dl");
    const add = (term, value, small, style = "") => {
      const item = element("div"), text = element("dd", value, style);
      if (small) text.append(element("small", small));
      item.append(element("dt", term), text);
      list.append(item);
    };
    const over = job.measured && job.budget_pct >= 0 && job.i_low_pct > job.budget_pct;
    add("Slowdown", job.measured ? percent(job.i_pct) : "not measured yet",
      job.measured ? `${job.i_low_pct.toFixed(2)} to ${job.i_high_pct.toFixed(2)} % (95 %)` : "three blocks of each kind are needed", over ? "over" : "");
    add("Budget", job.budget_pct < 0 ? "as much as they are worth" : percent(job.budget_pct), `side tasks in ${job.duty_pct.toFixed(0)} % of iterations`);
    add("Bubbles", percent(job.bubble_pct), "of iteration time");
    add("Harvested", percent(job.harvested_pct), "of bubble time");
    add("Overrun", duration(job.overrun_p50_us), `p99 ${duration(job.overrun_p99_us)}`);
    add("Iterations", number(job.iterations), `${number(job.holdout_iterations)} baseline, ${duration(job.iteration_ms * 1000)} each`);
    for (const phase of job.phases)
      add(`Phase ${phase.name}`, percent(phase.harvested_pct), `harvested of ${span(phase.idle_s)}, ${number(phase.count)} times; give-back p99 ${duration(phase.give_back_p99_us)}`);
    card.append(element("h3", `${name}: ${job.stages} ${job.stages === 1 ? "stage" : "stages"}`), list);
    made.push(card);
  }
  if (made.length === 0) made.push(element("p", "No training has been measured yet.", "empty"));
  box.replaceChildren(...made);
  if (order.length !== 0 && Math.abs(above() - laidOutAt) > 4) layOut(); // there is more or less room for lanes
}

function fillLabels() {
  const labels = byId("labels");
  if (summed()) {
    const sums = new Map();
    for (const rank of order) {
      const sum = sums.get(`${rank.job} stage ${rank.stage}`) || { count: 0, harvested: 0 };
      sum.count += 1;
      sum.harvested += rank.harvested_pct || 0;
      sums.set(`${rank.job} stage ${rank.stage}`, sum);
    }
    const lines = [...sums].slice(0, 60).map(([name, sum]) => {
      const line = element("div", `${name}, ${sum.count} ranks`);
      line.append(element("span", `harvested ${(sum.harvested / sum.count).toFixed(0)} %`));
      return line;
    });
    labels.replaceChildren(...lines);
    return;
  }
  const jobs = new Set(order.map((rank) => rank.job)).size > 1, replicas = order.some((rank) => rank.replica > 0);
  while (labels.children.length > order.length) labels.lastChild.remove();
  order.forEach((rank, at) => {
    let line = labels.children[at];
    if (!line) {
      line = element("div");
      line.append(element("b"), element("span"));
      labels.append(line);
    }
    put(line.children[0], (jobs ? rank.job + " " : "") + (replicas ? `r${rank.replica} ` : "") + `stage ${rank.stage}${rank.guessed ? "?" : ""}`);
    const share = rank.harvested_pct === null ? "baseline" : `${rank.harvested_pct.toFixed(0)} % harvested`;
    const used = rank.why === "harvesting" || rank.why === "unknown" || !rank.why;
    const phase = !rank.phase ? "" : rank.phase_since === 0 ? rank.phase : `${rank.phase} ${span(Math.max(0, serverNow() - rank.phase_since) / 1e6)}`;
    put(line.children[1], !attached(rank) ? rank.state : phase || (used ? share : rank.why.replaceAll("_", " ")));
    line.title = `${rank.job} rank ${rank.rank} on ${rank.device}, ${rank.state} [${rank.why}]${rank.phase ? `, in the phase ${rank.phase}` : ""}: ${rank.bubble_pct.toFixed(1)} % bubbles, iteration ${rank.iteration}`;
  });
}

const LEVEL = { finished: "good", stopped: "good", "": "" };
function fillTasks() {
  const running = (task) => (task.verdict === "" ? 0 : 1);
  const tasks = [...known.tasks].sort(([a, x], [b, y]) => running(x) - running(y) || (running(x) === 0 ? (a < b ? -1 : 1) : y.id - x.id));
  const more = fillRows(byId("task-table").tBodies[0], tasks, (row, name, task) => {
    const cells = row.cells;
    if (!cells[0].firstChild) {
      cells[0].append(element("span", "", "chip"), element("span", name));
      const button = element("button", "Commands");
      button.type = "button";
      button.setAttribute("aria-label", "Commands for " + name);
      button.addEventListener("click", () => showCommands(name));
      cells[9].append(button);
    }
    cells[0].firstChild.style.background = taskColour(task.id);
    put(cells[1], task.verdict || task.state, task.verdict ? LEVEL[task.verdict] ?? "bad" : "");
    put(cells[2], task.stage < 0 ? "any" : String(task.stage));
    put(cells[3], task.verdict ? task.verdict_reason : task.reason || (task.why === "" ? "" : task.why));
    put(cells[4], number(task.steps));
    put(cells[5], task.verdict ? "" : task.steps_per_s.toFixed(1));
    put(cells[6], task.harvested_s.toFixed(1) + " s");
    put(cells[7], task.verdict ? "" : bytes(task.memory_bytes));
    put(cells[8], Object.entries(task.metrics).slice(0, 3).map(([key, value]) => `${key} ${+value.toPrecision(5)}`).join(", "));
  }, [["", ""], ["", ""], ["stage", ""], ["", "wide"], ["steps", "n"], ["per s", "n"], ["harvested", "n"], ["memory", "n"], ["", "wide"], ["", "n"]]);
  byId("notasks").hidden = tasks.length !== 0;
  byId("task-table").hidden = tasks.length === 0;
  put(byId("moretasks"), more > 0 ? `and ${more} more: freeride-ctl tasks` : "");
}

function span(seconds) {
  if (seconds < 10) return seconds.toFixed(1) + " s";
  if (seconds < 60) return Math.round(seconds) + " s";
  if (seconds < 3600) return Math.round(seconds / 60) + " min";
  return (seconds / 3600).toFixed(1) + " h";
}
function fillBatches() {
  const batches = [...known.batches].sort(([a, x], [b, y]) => (x.ended === 0 ? 0 : 1) - (y.ended === 0 ? 0 : 1) || y.ended - x.ended || (a < b ? -1 : 1));
  const more = fillRows(byId("batch-table").tBodies[0], batches, (row, name, batch) => {
    const cells = row.cells;
    if (!cells[2].firstChild) {
      cells[2].append(element("progress"));
      cells[2].firstChild.setAttribute("aria-label", "Items of " + name);
    }
    put(cells[0], name);
    put(cells[1], batch.state + (batch.reason ? ": " + batch.reason : ""), batch.state === "failed" ? "bad" : batch.state === "finished" ? "good" : "");
    cells[2].firstChild.max = Math.max(1, batch.items);
    cells[2].firstChild.value = Math.min(batch.items, batch.done + batch.failed);
    put(cells[3], `${number(batch.done)} of ${number(batch.items)}`);
    put(cells[4], number(batch.failed));
    put(cells[5], String(batch.members));
    put(cells[6], batch.ended === 0 && batch.per_s > 0 ? batch.per_s.toFixed(batch.per_s < 10 ? 1 : 0) : "");
    put(cells[7], batch.ended === 0 && batch.left_s > 0 ? span(batch.left_s) : "");
  }, [["", ""], ["", ""], ["", "wide"], ["done", "n"], ["failed", "n"], ["members", "n"], ["per s", "n"], ["left", "n"]]);
  byId("batches").hidden = batches.length === 0;
  put(byId("morebatches"), more > 0 ? `and ${more} more: freeride-ctl batch ls` : "");
}

function fillDevices() {
  const workers = [...known.workers].sort(([, a], [, b]) => (a.host < b.host ? -1 : a.host > b.host ? 1 : a.device < b.device ? -1 : 1));
  const more = fillRows(byId("device-table").tBodies[0], workers, (row, name, worker) => {
    const cells = row.cells;
    put(cells[0], worker.host || name);
    put(cells[1], worker.device);
    put(cells[2], worker.model);
    put(cells[3], worker.state, worker.state === "up" ? "good" : "bad");
    put(cells[4], worker.stage < 0 ? "none" : `${worker.job} stage ${worker.stage}`);
    put(cells[5], String(worker.tasks));
    put(cells[6], bytes(worker.usable_bytes));
  }, [["", ""], ["", ""], ["", "wide"], ["", ""], ["", ""], ["tasks", "n"], ["free", "n"]]);
  put(byId("moredevices"), more > 0 ? `and ${more} more: freeride-ctl workers` : workers.length === 0 ? "No workers." : "");
  byId("faults").replaceChildren(...[...known.faults].map(([, fault]) =>
    element("p", `${fault.scope} ${fault.name}: ${fault.faults} GPU faults within an hour${fault.blocked ? ", blocked: freeride-ctl faults" : ""}`, fault.blocked ? "bad" : "warn")));
}

let shownNotice = -1;
function fillEvents() {
  const last = notices.length === 0 ? 0 : notices[notices.length - 1].id;
  if (last === shownNotice) return;
  shownNotice = last;
  byId("noevents").hidden = notices.length !== 0;
  byId("events").replaceChildren(...notices.slice().reverse().map((notice) => {
    const line = element("li", "", notice.level), at = new Date(notice.t), time = element("time", at.toLocaleTimeString());
    time.dateTime = at.toISOString();
    line.append(time, element("b", notice.subject), " " + notice.text);
    return line;
  }));
}

// ---- commands to copy: the page itself has no rights
const quoted = (text) => (/^[\w.\/-]+$/.test(text) && !text.startsWith("-") ? text : "'" + text.replaceAll("'", "'\\''") + "'");
function showCommands(name) {
  const task = known.tasks.get(name);
  if (!task) return;
  const verbs = task.verdict ? ["task"] : ["task", "pause", "resume", "stop"];
  const box = byId("commands");
  byId("commands-title").textContent = name;
  box.querySelector("ul").replaceChildren(...verbs.map((verb) => {
    const line = element("li"), code = element("code", `freeride-ctl ${verb} ${quoted(name)}`), button = element("button", "Copy");
    button.type = "button";
    button.addEventListener("click", () => copy(code, button));
    line.append(code, button);
    return line;
  }));
  box.showModal();
}
function copy(code, button) {
  const select = () => { getSelection().selectAllChildren(code); put(button, "Selected"); };
  // Only a page from this host or by TLS may write to the clipboard.
  if (!navigator.clipboard) return select();
  navigator.clipboard.writeText(code.textContent).then(() => put(button, "Copied"), select);
}

// ---- time: pause, zoom, move
function pause(on) {
  pausedAt = on ? viewEnd() : null;
  byId("pause").setAttribute("aria-pressed", String(on));
  byId("pause").textContent = on ? "Go on" : "Pause";
  whole = true;
}
function zoom(by) {
  spanAt = Math.max(0, Math.min(SPANS_S.length - 1, spanAt + by));
  put(byId("span"), `${SPANS_S[spanAt]} s`);
  whole = true;
}
function move(share) {
  if (pausedAt === null) return;
  pausedAt = Math.min(serverNow() - delayUs(), pausedAt + share * spanUs());
  whole = true;
}
byId("pause").addEventListener("click", () => pause(pausedAt === null));
byId("closer").addEventListener("click", () => zoom(-1));
byId("wider").addEventListener("click", () => zoom(1));
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || byId("commands").open) return;
  const inControl = event.target.closest("button, a, [role=toolbar], ol");
  const acts = { "+": () => zoom(-1), "=": () => zoom(-1), "-": () => zoom(1), Home: () => pause(false), ArrowLeft: () => move(-0.25), ArrowRight: () => move(0.25) };
  if (event.key === " " && !inControl) acts[" "] = () => pause(pausedAt === null);
  if (inControl && event.key.length > 1) return;
  if (!acts[event.key]) return;
  acts[event.key]();
  event.preventDefault();
});
let dragFrom = null;
canvas.addEventListener("pointerdown", (event) => {
  dragFrom = event.clientX;
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointerup", () => { dragFrom = null; });
canvas.addEventListener("pointermove", (event) => {
  if (dragFrom !== null && Math.abs(event.clientX - dragFrom) > 3) {
    if (pausedAt === null) pause(true);
    move((dragFrom - event.clientX) / canvas.clientWidth);
    dragFrom = event.clientX;
    return;
  }
  tell(event.offsetX, event.offsetY);
});
canvas.addEventListener("wheel", (event) => {
  if (!event.ctrlKey) return;
  event.preventDefault();
  zoom(Math.sign(event.deltaY));
}, { passive: false });

// What is under the pointer, in words.
function tell(x, y) {
  const hover = byId("hover");
  if (summed()) {
    const columns = Math.max(1, Math.floor(canvas.width / (laneHeight * scale)));
    const rank = order[Math.floor(y / laneHeight) * columns + Math.floor(x / laneHeight)];
    return put(hover, rank ? `${rank.job} rank ${rank.rank}, stage ${rank.stage}, ${rank.device}: ${rank.bubble_pct.toFixed(1)} % bubbles, harvested ${(rank.harvested_pct || 0).toFixed(1)} %` : "");
  }
  const rank = order[Math.floor(y / laneHeight)], lane = rank && lanes.get(rank.id);
  if (!lane) return put(hover, "");
  const at = viewEnd() - spanUs() * (1 - x / canvas.clientWidth), near = spanUs() / canvas.clientWidth;
  for (let n = lane.count - 1; n >= Math.max(0, lane.count - KEPT); n--) {
    const i = n % KEPT, begin = lane.begin[i], [lengths, , sideLengths, overruns] = lane.values;
    if (at < begin - near || at > begin + lengths[i] + overruns[i] + near) continue;
    const what = (lane.flags[i] & 2) !== 0 ? "baseline iteration" : sideLengths[i] > 0 ? `${taskNames.get(lane.task[i]) || "side task"} for ${duration(sideLengths[i])}` : (lane.flags[i] & 1) !== 0 ? "leased, no step" : "no lease";
    const kind = lane.phase[i] !== 0 ? `phase ${phaseNames.get(lane.phase[i]) || ""}` : "bubble";
    return put(hover, `stage ${rank.stage}: ${kind} of ${duration(lengths[i])}, ${what}${overruns[i] > 0 ? `, overrun ${duration(overruns[i])}` : ""}`);
  }
  const open = lane.open && at >= lane.open.begin && !lane.ended ? lane.open : null;
  if (open) return put(hover, `stage ${rank.stage}: phase ${open.name}, ${duration(serverNow() - open.begin)} so far`);
  put(hover, `stage ${rank.stage}: ${lane.knows(at) ? "compute" : attached(rank) ? "nothing was heard" : rank.state}`);
}

// ---- the stream
let connected = false, source = null, heardAt = performance.now();
function listen() {
  if (source) source.close();
  source = new EventSource("live");
  source.onopen = () => { connected = stale = true; };
  source.onmessage = (event) => { heardAt = performance.now(); hear(JSON.parse(event.data)); };
  source.onerror = () => {
    connected = false;
    stale = true;
    // A browser gives up for good on an answer such as 503.
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 3000);
  };
}
// A page that nobody sees needs no stream.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) { source.close(); connected = false; stale = true; } else listen();
});

readColours();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); whole = stale = true; });
new ResizeObserver(() => layOut()).observe(byId("lanes").parentElement);
zoom(0);
layOut();
listen();
requestAnimationFrame(draw);
