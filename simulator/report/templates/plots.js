// Draws the plots of the page from the data beside them, and the timeline at the width of the screen.
"use strict";
(() => {
  const config = { displayModeBar: false, responsive: true, showTips: false };
  const base = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12 }, hoverlabel: { font: { size: 12 }, align: "left", namelength: -1 },
    margin: { l: 20, r: 20, t: 8, b: 24 }, legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", traceorder: "normal" },
    uniformtext: { mode: "hide", minsize: 10 },
  };
  const cell_px = 3;  // Bars that lie within so many pixels are drawn as one.
  const least_height = 0.05;  // Of a lane: what takes less of it is drawn so high where it is alone, and not at all beside others.
  const legend_px = 165, legend_row_px = 19;
  const printed_px = 680;

  function layout_of(told, div, entries) {
    const layout = { ...base, ...told.layout };
    // A narrow screen has fewer entries of the legend in a row: the rows that it has more make the plot higher.
    const rows = layout.showlegend === false ? 1 : Math.ceil(entries / Math.max(1, Math.floor(div.clientWidth / legend_px)));
    layout.height += legend_row_px * Math.max(0, rows - 1);
    div.style.minHeight = `${layout.height}px`;
    for (const [name, axis] of Object.entries(told.layout)) {
      if (/^[xy]axis/.test(name)) layout[name] = { automargin: true, ...axis };
    }
    return layout;
  }

  // Starts, ends and tasks of a lane's bars, whole again.
  function unpacked(lane, unit_s) {
    const count = lane.length.length, start = new Float64Array(count), end = new Float64Array(count);
    let at = 0;
    for (let i = 0; i < count; i++) {
      start[i] = (at + lane.gap[i]) * unit_s;
      at += lane.gap[i] + lane.length[i];
      end[i] = at * unit_s;
    }
    let several = 0;
    const shares = lane.tasks.map((tasks) => (tasks > 1 ? lane.shares[several++] : null));
    return { y: lane.y, start, end, task: lane.task, tasks: lane.tasks, shares };
  }

  function first_after(ends, moment) {
    let low = 0, high = ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ends[middle] <= moment) low = middle + 1; else high = middle;
    }
    return low;
  }

  function human(seconds) {
    for (const [factor, unit] of [[1, "s"], [1e-3, "ms"], [1e-6, "us"]]) {
      if (seconds >= factor) return `${+(seconds / factor).toPrecision(3)} ${unit}`;
    }
    return `${+(seconds / 1e-9).toPrecision(3)} ns`;
  }

  function told_of(source, bar) {
    const task = bar.task, layer = source.layer[task], batch = source.micro_batch[task], length = bar.end - bar.start;
    const where = [source.phases[source.phase[task]], layer < 0 ? "" : `layer ${layer}`, batch < 0 ? "" : `micro-batch ${batch}`];
    const name = `<b>${source.names[source.name[task]]}</b>`;
    const lines = [bar.tasks > 1 ? `${bar.tasks} tasks, the longest ${name}` : name, where.filter(Boolean).join(", ")];
    if (bar.tasks > 1) {
      const parts = [...bar.busy].sort((one, other) => other[1] - one[1]);
      for (const [group, busy] of parts) lines.push(`${source.groups[group].label} ${(100 * busy / length).toFixed(0)} %`);
    }
    lines.push(`${human(length)}, from ${bar.start.toPrecision(7)} s`);
    return lines.join("<br>");
  }

  // Adds to what a bar is busy with what entry i of a lane is.
  function take(busy, source, lane, i) {
    const length = lane.end[i] - lane.start[i], shares = lane.shares[i] ?? [source.group[lane.task[i]], 1000];
    for (let k = 0; k < shares.length; k += 2) {
      busy.set(shares[k], (busy.get(shares[k]) ?? 0) + shares[k + 1] / 1000 * length);
    }
  }

  // Bars of a lane between two moments. What lies within one cell is one bar, and the longest task stands for it.
  function visible(source, lane, from, to, cell_s) {
    const bars = [];
    let last = null;
    for (let i = first_after(lane.end, from); i < lane.end.length && lane.start[i] < to; i++) {
      const length = lane.end[i] - lane.start[i];
      if (last && lane.end[i] - last.start < cell_s) {
        last.end = lane.end[i];
        take(last.busy, source, lane, i);
        last.tasks += lane.tasks[i];
        if (length > last.longest) { last.longest = length; last.task = lane.task[i]; }
      } else {
        last = { start: lane.start[i], end: lane.end[i], task: lane.task[i], tasks: lane.tasks[i], longest: length, busy: new Map() };
        take(last.busy, source, lane, i);
        bars.push(last);
      }
    }
    return bars;
  }

  function traces(source, lanes, from, to, width_px) {
    const groups = source.groups.map((group) => ({
      type: "bar", orientation: "h", name: group.label, marker: { color: group.colour, line: { width: 0 } },
      x: [], base: [], y: [], width: [], text: [], textposition: "none",
      hovertemplate: "%{text}<extra></extra>", showlegend: true,
    }));
    for (const lane of lanes) {
      for (const bar of visible(source, lane, from, to, cell_px * (to - from) / width_px)) {
        const text = told_of(source, bar), length = bar.end - bar.start;
        // From the lane's lower edge upwards, each colour as high as its share of the bar; what stays empty is waiting.
        let floor = lane.y + source.bar_height;
        for (const [number, busy] of bar.busy) {
          const share = Math.min(1, busy / length), group = groups[number];
          if (share < least_height && bar.busy.size > 1) continue;
          const height = Math.max(share, least_height) * source.bar_height;
          group.base.push(bar.start);
          group.x.push(length);
          group.y.push(floor - height / 2);
          group.width.push(height);
          group.text.push(text);
          floor -= height;
        }
      }
    }
    return groups;
  }

  function timeline(div, told) {
    const source = told.timeline, lanes = source.lanes.map((lane) => unpacked(lane, source.unit_s));
    const layout = layout_of(told, div, source.groups.length), whole = [...layout.xaxis.range];
    let shown = [];
    const width = () => div._fullLayout?._size.w || div.clientWidth || printed_px;
    const draw = ([from, to]) => {
      shown = [from, to];
      layout.xaxis = { ...layout.xaxis, range: [from, to] };
      return Plotly.react(div, traces(source, lanes, from, to, width()), layout, config);
    };
    const go = (from, to) => {
      const length = Math.min(to - from, whole[1] - whole[0]), start = Math.min(Math.max(from, whole[0]), whole[1] - length);
      return draw([start, start + length]);
    };
    const zoom = (factor) => {
      const middle = (shown[0] + shown[1]) / 2, half = factor * (shown[1] - shown[0]) / 2;
      return go(middle - half, middle + half);
    };
    const move = (share) => go(shown[0] + share * (shown[1] - shown[0]), shown[1] + share * (shown[1] - shown[0]));
    const controls = document.querySelector(`.controls[data-for="${div.id}"]`);
    const add = (text, label, action) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = text;
      if (label) button.setAttribute("aria-label", label);
      button.addEventListener("click", action);
      controls.append(button);
    };
    add("Whole step", "", () => draw(whole));
    for (const window of told.windows) add(window.title, "", () => draw([window.from_s, window.to_s]));
    add("+", "Enlarge", () => zoom(0.5));
    add("−", "Show more", () => zoom(2));
    add("←", "Earlier", () => move(-0.5));
    add("→", "Later", () => move(0.5));
    return draw(whole).then(() => div.on("plotly_relayout", () => {
      const range = div._fullLayout.xaxis.range;
      if (range[0] !== shown[0] || range[1] !== shown[1]) draw([...range]);
    }));
  }

  const plots = [...document.querySelectorAll("script[data-plot]")].map((script) => {
    const div = document.getElementById(script.dataset.plot), told = JSON.parse(script.textContent);
    const done = told.timeline ? timeline(div, told) : Plotly.newPlot(div, told.data, layout_of(told, div, told.data.length), config);
    return { div, done };
  });
  Promise.all(plots.map((plot) => plot.done)).then(() => { document.documentElement.dataset.drawn = plots.length; });
  addEventListener("beforeprint", () => plots.forEach(({ div }) => Plotly.relayout(div, { width: printed_px })));
  addEventListener("afterprint", () => plots.forEach(({ div }) => Plotly.relayout(div, { width: null, autosize: true })));
})();
