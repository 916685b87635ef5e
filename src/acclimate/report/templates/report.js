"use strict";
(() => {
  const chart = document.getElementById("chart");
  const { batches, series } = JSON.parse(document.getElementById("chart-data").textContent);
  const svgNamespace = "http://www.w3.org/2000/svg";
  const ends = [];
  batches.reduce((sum, batch) => (ends.push(sum + batch.images), sum + batch.images), 0);
  const total = ends[ends.length - 1];
  const middle = (i) => ends[i] - batches[i].images / 2;
  const highest = Math.max(...series.flatMap((one) => one.errors));
  const top = Math.min(100, Math.ceil((highest + 2) / 10) * 10);

  const bands = [];
  batches.forEach((batch, i) => {
    const last = bands[bands.length - 1];
    if (last && last.name === batch.domain) last.end = ends[i];
    else bands.push({ name: batch.domain, start: ends[i] - batch.images, end: ends[i] });
  });

  let shown = null; // the batch under the cursor
  let layout = null;

  const add = (parent, name, attributes, text) => {
    const node = document.createElementNS(svgNamespace, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  };

  const draw = () => {
    const width = Math.max(280, chart.clientWidth - 16);
    const left = 40, right = 10, above = 10;
    const perBand = (width - left - right) / bands.length;
    const steep = perBand < 46; // names stand upright where they would overlap
    const below = steep ? 120 : 84;
    const height = (width < 600 ? 260 : 330) + below;
    const x = (images) => left + ((width - left - right) * images) / total;
    const y = (error) => above + (height - above - below) * (1 - error / top);

    chart.querySelector("svg")?.remove();
    const svg = document.createElementNS(svgNamespace, "svg");
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    chart.prepend(svg);
    bands.forEach((band, i) => {
      const [start, end] = [x(band.start), x(band.end)];
      if (i % 2 === 0) {
        add(svg, "rect", { class: "band", x: start, y: above, width: end - start, height: y(0) - above });
      }
      const at = `${(start + end) / 2 + (steep ? 4 : 6)} ${y(0) + 12}`;
      add(svg, "text", { "text-anchor": "end", transform: `translate(${at}) rotate(${steep ? -90 : -38})` }, band.name);
    });
    for (let error = 0; error <= top; error += top > 50 ? 20 : 10) {
      add(svg, "line", { class: "grid", x1: left, x2: width - right, y1: y(error), y2: y(error) });
      add(svg, "text", { x: left - 7, y: y(error) + 4, "text-anchor": "end" }, error ? error : "0 %");
    }
    series.forEach((one, k) => {
      const points = one.errors.map((error, i) => `${x(middle(i)).toFixed(1)},${y(error).toFixed(1)}`);
      add(svg, "polyline", { class: `curve series-${k % 8}`, points: points.join(" ") });
    });
    layout = { svg, x, y, width, above };
    point();
  };

  const point = () => {
    chart.querySelectorAll(".cursor, .dot, .tip").forEach((node) => node.remove());
    if (shown === null) return;
    const { svg, x, y, width, above } = layout;
    const at = x(middle(shown));
    add(svg, "line", { class: "cursor", x1: at, x2: at, y1: above, y2: y(0) });
    const tip = document.createElement("div");
    tip.className = "tip";
    const title = document.createElement("b");
    title.textContent = batches[shown].domain;
    const range = document.createElement("small");
    range.textContent = `images ${ends[shown] - batches[shown].images + 1} to ${ends[shown]}`;
    tip.append(title, range);
    series.forEach((one, k) => {
      add(svg, "circle", { class: `dot series-${k % 8}`, cx: at, cy: y(one.errors[shown]), r: 5 });
      const row = document.createElement("span");
      row.className = `series-${k % 8}`;
      const value = document.createElement("em");
      value.style.fontStyle = "normal";
      value.textContent = `${one.errors[shown].toFixed(1)} %`;
      row.append(one.label, value);
      tip.append(row);
    });
    chart.append(tip);
    if (at < width / 2) tip.style.left = `${at + 26}px`;
    else tip.style.left = `${at - tip.offsetWidth - 8}px`;
  };

  const show = (index) => {
    shown = index === null ? null : Math.max(0, Math.min(batches.length - 1, index));
    point();
  };

  chart.addEventListener("pointermove", (event) => {
    const box = layout.svg.getBoundingClientRect();
    const position = ((event.clientX - box.left) * layout.width) / box.width;
    let nearest = 0;
    batches.forEach((_, i) => {
      const closer = Math.abs(layout.x(middle(i)) - position) < Math.abs(layout.x(middle(nearest)) - position);
      if (closer) nearest = i;
    });
    show(nearest);
  });
  chart.addEventListener("pointerleave", () => show(null));
  chart.addEventListener("blur", () => show(null));
  chart.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    show(shown === null ? 0 : shown + step);
  });
  new ResizeObserver(draw).observe(chart);
  draw();

  document.getElementById("copy").addEventListener("click", (event) => {
    // A page opened from a file may not write to the clipboard; then the command is selected.
    const command = document.getElementById("command");
    const select = () => getSelection().selectAllChildren(command);
    const done = () => { event.target.textContent = "Copied"; };
    if (navigator.clipboard) navigator.clipboard.writeText(command.textContent).then(done, select);
    else select();
  });
})();
