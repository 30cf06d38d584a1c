"use strict";
// Zooms the timeline and shows other ranks in it. Without this script the page shows the whole step of distinct ranks.
(() => {
  const data = JSON.parse(document.getElementById("timeline-data").textContent);
  const chart = document.getElementById("timeline");
  const readout = document.getElementById("timeline-readout");
  const { seconds, gutter, plot, letter } = data;
  if (!(seconds > 0)) return;
  let shown = data.shown;
  let from = 0, to = seconds;
  let chosen = null;
  let boxes = [];

  const make = (name, attributes, text) => {
    const node = document.createElementNS(chart.namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const round = (value) => Math.round(value * 100) / 100;
  const place = (time) => (plot * (time - from)) / (to - from);

  function unit() {
    const units = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
    return units.find(([size]) => to - from >= size) || units[3];
  }

  function ticks() {
    const rough = (to - from) / 8, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
    const found = [];
    for (let n = Math.ceil(from / step - 1e-9); n * step <= to + step * 1e-6; n++) found.push(n * step);
    return found;
  }

  function axis(bottom) {
    const group = make("g", {}), [size, sign] = unit();
    for (const tick of ticks()) {
      const x = round(gutter + place(tick));
      group.append(make("line", { x1: x, x2: x, y1: 0, y2: bottom, class: "grid" }));
      const label = String(Number((tick / size).toPrecision(9)));
      group.append(make("text", { x, y: bottom + 14, class: "tick", "text-anchor": "middle" }, label));
    }
    const title = { x: gutter + plot / 2, y: bottom + 30, class: "axis-title", "text-anchor": "middle" };
    group.append(make("text", title, `time (${sign})`));
    return group;
  }

  // Neighbours too short to be seen, together, as the page does it without a script.
  function together(group) {
    if (group.length === 1) return group[0];
    const times = new Map();
    for (const [begin, end, look, , , cover] of group) times.set(look, (times.get(look) || 0) + (end - begin) * cover);
    const [look] = [...times].reduce((most, each) => (each[1] > most[1] ? each : most));
    const begin = group[0][0], end = group.at(-1)[1];
    const busy = [...times.values()].reduce((sum, time) => sum + time, 0);
    const first = group.find((bar) => bar[2] === look);
    const bar = [begin, end, look, "", `${group.length} parts; the first: ${first[4]}`, Math.min(1, busy / (end - begin))];
    bar.parts = group;
    return bar;
  }

  function condensed(bars) {
    const least = (to - from) / plot, made = [];
    let group = [];
    const flush = () => { if (group.length) made.push(together(group)); group = []; };
    for (const bar of bars) {
      const [begin, end] = bar;
      if (end < from || begin > to) continue;
      if (end - begin >= least || (group.length && begin - group.at(-1)[1] > least)) flush();
      if (end - begin >= least) { made.push(bar); continue; }
      group.push(bar);
      if (end - group[0][0] >= least) flush();
    }
    flush();
    return made;
  }

  function fill(lane, height) {
    const inner = document.createDocumentFragment(), drawn = condensed(lane.bars);
    drawn.forEach((bar, number) => {
      const [begin, end, look, label, text, cover] = bar;
      const left = Math.max(place(begin), -2), right = Math.min(place(end), plot + 2);
      const width = Math.max(0.4, right - left), high = height * Math.max(data.least_cover, cover);
      const marked = bar === chosen || (bar.parts && bar.parts.includes(chosen));
      const rect = make("rect", {
        x: round(left), y: round(height - high), width: round(width > 3 ? width - 0.6 : width), height: round(high),
        class: `bar ${look}${marked ? " chosen" : ""}`,
      });
      rect.append(make("title", {}, text));
      rect.dataset.bar = number;
      inner.append(rect);
      if (label && width >= letter * label.length + 6) {
        inner.append(make("text", { x: round(Math.max(left, 0) + 4), y: height / 2 + 4, class: "bar-label" }, label));
      }
    });
    return [inner, drawn];
  }

  function draw() {
    const parts = [];
    boxes = [];
    let y = 4;
    for (const number of shown) {
      const row = data.rows[number];
      parts.push(make("text", { x: 4, y: y + 12, class: "row-title" }, `${row.title} · ${row.source}`));
      y += data.title_height;
      row.lanes.forEach((lane, position) => {
        const height = position ? data.lane_height : data.compute_height;
        const name = { x: gutter - 8, y: y + height / 2 + 4, class: "lane-name", "text-anchor": "end" };
        parts.push(make("text", name, lane.name));
        parts.push(make("rect", { x: gutter, y, width: plot, height, class: "lane-back" }));
        const inner = make("svg", { x: gutter, y, width: plot, height, class: "lane" });
        const [bars, drawn] = fill(lane, height);
        inner.append(bars);
        boxes.push([inner, lane, drawn]);
        parts.push(inner);
        y += height + data.lane_gap;
      });
      y += data.row_gap;
    }
    const bottom = y - data.row_gap + 2;
    chart.setAttribute("viewBox", `0 0 ${data.width} ${bottom - 2 + data.axis_height}`);
    chart.replaceChildren(make("title", {}, chart.getAttribute("aria-label")), axis(bottom), ...parts);
  }

  let planned = false;
  function redraw() {
    if (planned) return;
    planned = true;
    requestAnimationFrame(() => { planned = false; draw(); });
  }

  function look(first, last) {
    const span = Math.min(seconds, Math.max(last - first, seconds * 1e-6));
    from = Math.min(Math.max(0, first), seconds - span);
    to = from + span;
    redraw();
  }
  const zoom = (factor, around) => look(around - (around - from) * factor, around + (to - around) * factor);
  const middle = () => (from + to) / 2;
  const pan = (part) => look(from + (to - from) * part, to + (to - from) * part);

  function choose(bar) {
    chosen = bar;
    readout.textContent = bar ? bar[4] : "";
    redraw();
  }

  function step(direction) {
    const bars = boxes.length ? boxes[0][1].bars : [];
    const at = bars.indexOf(chosen);
    const next = at < 0 ? bars.findIndex((bar) => bar[1] > from) : at + direction;
    if (!bars[next]) return;
    const [begin, end] = bars[next];
    if (begin < from || end > to) look(begin - (to - from) / 2, begin + (to - from) / 2);
    choose(bars[next]);
  }

  const time = (event) => {
    const box = chart.getBoundingClientRect();
    const x = ((event.clientX - box.left) * data.width) / box.width - gutter;
    return from + ((to - from) * Math.min(Math.max(x, 0), plot)) / plot;
  };
  chart.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.altKey && document.activeElement !== chart) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, time(event));
  }, { passive: false });
  let grabbed = null;
  chart.addEventListener("pointerdown", (event) => {
    grabbed = { x: event.clientX, from, to, moved: false };
    chart.setPointerCapture(event.pointerId);
  });
  chart.addEventListener("pointermove", (event) => {
    if (!grabbed) {
      const bar = barOf(event.target);
      if (bar) readout.textContent = bar[4];
      return;
    }
    if (Math.abs(event.clientX - grabbed.x) > 3) grabbed.moved = true;
    if (!grabbed.moved) return;
    chart.classList.add("dragging");
    const scale = data.width / chart.getBoundingClientRect().width;
    const shift = (((event.clientX - grabbed.x) * scale) / plot) * (grabbed.to - grabbed.from);
    look(grabbed.from - shift, grabbed.to - shift);
  });
  chart.addEventListener("pointerup", (event) => {
    chart.classList.remove("dragging");
    const moved = grabbed && grabbed.moved;
    grabbed = null;
    chart.releasePointerCapture(event.pointerId);
    const under = document.elementFromPoint(event.clientX, event.clientY);
    if (!moved) choose(under ? barOf(under) : null);
  });
  function barOf(node) {
    const lane = node.closest ? node.closest("svg.lane") : null;
    const box = boxes.find(([inner]) => inner === lane);
    return box && node.dataset.bar !== undefined ? box[2][Number(node.dataset.bar)] : null;
  }
  chart.addEventListener("dblclick", (event) => zoom(0.4, time(event)));

  const keys = {
    "+": () => zoom(0.6, middle()), "=": () => zoom(0.6, middle()), "-": () => zoom(1 / 0.6, middle()),
    ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), 0: () => look(0, seconds), Home: () => look(0, seconds),
    n: () => step(1), p: () => step(-1), Escape: () => choose(null),
  };
  chart.addEventListener("keydown", (event) => {
    const act = event.ctrlKey || event.metaKey ? undefined : keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });

  const on = (id, act) => document.getElementById(id).addEventListener("click", act);
  on("zoom-in", () => zoom(0.6, middle()));
  on("zoom-out", () => zoom(1 / 0.6, middle()));
  on("zoom-all", () => look(0, seconds));
  on("show-distinct", () => { shown = data.shown; choose(null); draw(); });
  const has = (row, rank) => row.ranks.some(([first, last, by]) => rank >= first && rank <= last && (rank - first) % by === 0);
  document.getElementById("show-rank").addEventListener("change", (event) => {
    const rank = Number(event.target.value);
    const found = data.rows.map((row, number) => (has(row, rank) ? number : -1)).filter((number) => number >= 0);
    readout.textContent = found.length ? "" : `There is no rank ${event.target.value}.`;
    if (!found.length) return;
    shown = found;
    chosen = null;
    draw();
  });

  chart.classList.add("live");
  document.getElementById("timeline-controls").hidden = false;
  draw();
})();
