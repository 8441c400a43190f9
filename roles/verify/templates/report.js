"use strict";
// Draws the details of a host when it is opened. Whatever comes from a host enters the page as text only.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const said = document.getElementById("said");
  const rows = [...document.querySelectorAll(".fleet > tbody > tr")];

  // A mark for each character that is not seen itself: controls, bidi overrides, zero widths.
  const visible = (text) => text.replace(/[^\P{C}\n\t]|[\u2028\u2029]/gu, "\ufffd");
  const fill = (node, attrs, children) => {
    for (const [key, value] of Object.entries(attrs || {})) {
      if (value !== null && value !== undefined) node.setAttribute(key, value);
    }
    for (const child of children.flat(9)) {
      if (child !== null && child !== undefined) node.append(typeof child === "string" ? visible(child) : child);
    }
    return node;
  };
  const el = (tag, attrs, ...children) => fill(document.createElement(tag), attrs, children);
  const svg = (tag, attrs, ...children) => fill(document.createElementNS(SVG, tag), attrs, children);

  // As brief() of _verdict.py.
  const mapping = (value) => value !== null && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length > 0;
  const brief = (value) => {
    if (value === null || value === undefined) return "nothing";
    if (typeof value === "string") return value === "" ? '""' : value;
    if (Array.isArray(value) && value.every((item) => typeof item === "string")) return value.join(" ") || "nothing";
    if (Array.isArray(value) && value.every(mapping)) return value.map(brief).join("; ");
    if (mapping(value)) return Object.entries(value).map(([key, item]) => `${key}=${inner(item)}`).join(" ");
    return JSON.stringify(value);
  };
  const inner = (value) => mapping(value) ? `(${brief(value)})` : value !== null && typeof value === "object" && !Object.keys(value).length ? "none" : brief(value);
  const bytes = (number) => {
    if (number === null || number === undefined) return "memory not known";
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let size = number, unit = 0;
    while (size >= 1024 && unit < 4) { size /= 1024; unit += 1; }
    return `${size >= 100 ? size.toFixed(0) : size.toFixed(1)} ${units[unit]}`;
  };
  const cpus = (list) => {
    const out = [];
    for (const piece of String(list || "").split(",")) {
      const [first, last] = piece.split("-").map(Number);
      if (piece === "" || !Number.isInteger(first)) continue;
      const end = Number.isInteger(last) ? last : first;
      for (let cpu = first; cpu <= end && out.length < 4096; cpu += 1) out.push(cpu);
    }
    return out;
  };

  const badge = (status) => el("span", {class: `badge s-${status}`},
    el("span", {"aria-hidden": "true"}, data.marks[status]), " ", data.words[status]);
  const copyable = (text, what) => !text ? null : el("p", {class: "cmd"}, el("code", {}, text),
    el("button", {type: "button", class: "copy", "data-copy": text}, "Copy", el("span", {class: "vh"}, ` the command for ${what}`)));

  const answer = (row) => el("div", {class: `problem edge-${row.status}`},
    el("h3", {}, badge(row.status), el("span", {class: "id"}, row.id), el("span", {class: "muted layer"}, data.layers[row.layer] || row.layer)),
    el("dl", {},
      [["wanted", brief(row.expected)], ["found", brief(row.observed)], ["reason", row.reason], ["decided in", row.source]]
        .filter((pair) => pair[1]).map(([key, value]) => el("div", {}, el("dt", {}, key), el("dd", {}, el("code", {}, value))))),
    row.remedy ? el("p", {class: "remedy"}, row.remedy) : null);

  // Sockets around nodes around cores around CPUs; a core with several threads is one outlined box.
  const topology = (view) => {
    const isolated = new Set(cpus(view.cpus.isolated)), tickless = new Set(cpus(view.cpus.nohz_full));
    const core = new Map();
    view.cores.forEach((list) => { const members = cpus(list); members.forEach((cpu) => core.set(cpu, members)); });
    const total = cpus(view.cpus.online).length;
    const cell = total <= 64 ? 26 : total <= 192 ? 20 : 11, gap = 4, width = 560, pad = 12;
    const sockets = view.sockets.length ? view.sockets : [{id: null, cpus: view.cpus.online}];
    const left = new Set(view.nodes.map((_node, position) => position));
    const shapes = [];
    let y = 1;
    const drawNode = (node, mine, top) => {
      const list = cpus(node.cpus).filter((cpu) => mine === null || mine.has(cpu));
      const parts = [];
      let x = 2 * pad, row = top + 24;
      const done = new Set();
      for (const cpu of list) {
        if (done.has(cpu)) continue;
        const members = (core.get(cpu) || [cpu]).filter((other) => list.includes(other));
        const wide = members.length * (cell + 2) + 2;
        if (x + wide > width - 2 * pad) { x = 2 * pad; row += cell + 4 + gap; }
        if (members.length > 1) parts.push(svg("rect", {class: "core", x, y: row, width: wide, height: cell + 4, rx: 4}));
        members.forEach((member, position) => {
          done.add(member);
          const at = x + 2 + position * (cell + 2), on = isolated.has(member);
          const mates = members.filter((other) => other !== member);
          parts.push(svg("g", {}, svg("title", {}, `CPU ${member}: ${on ? "isolated" : "housekeeping"}${tickless.has(member) ? ", nohz_full" : ""}${mates.length ? `, shares its core with ${mates.join(", ")}` : ""}`),
            svg("rect", {class: on ? "iso" : "house", x: at, y: row + 2, width: cell, height: cell, rx: 3}),
            cell > 15 ? svg("text", {class: on ? "num on" : "num", x: at + cell / 2, y: row + 2 + cell / 2 + 3.5}, String(member)) : null));
        });
        x += wide + gap;
      }
      const height = (list.length ? row + cell + 4 : top + 24) + 8 - top;
      shapes.push(svg("rect", {class: "node", x: pad, y: top, width: width - 2 * pad, height, rx: 6}),
        svg("text", {x: pad + 8, y: top + 16}, `node ${node.id}`),
        svg("text", {class: "sub", x: pad + 66, y: top + 16}, `${bytes(node.memory_bytes)}${list.length ? `, CPUs ${node.cpus}` : ", no CPUs"}`.slice(0, 72)), parts);
      return height;
    };
    const box = (name, nodes, mine) => {
      const top = y, frame = svg("rect", {class: "socket", x: 1, y: top, width: width - 2, rx: 9});
      shapes.push(frame, svg("text", {x: pad, y: top + 18}, name));
      y += 28;
      nodes.forEach((node) => { y += drawNode(node, mine, y) + 8; });
      frame.setAttribute("height", String(y - top + 2));
      y += 12;
    };
    for (const socket of sockets) {
      const mine = new Set(cpus(socket.cpus));
      const here = view.nodes.filter((node, position) => {
        const found = cpus(node.cpus).some((cpu) => mine.has(cpu));
        if (found) left.delete(position);
        return found;
      });
      if (here.length) box(socket.id === null ? "socket not known" : `socket ${socket.id}`, here, mine);
    }
    if (left.size) box("memory beside the sockets", view.nodes.filter((_node, position) => left.has(position)), null);
    const many = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
    const label = `${view.sockets.length ? many(view.sockets.length, "socket") : "unknown number of sockets"}, ${many(view.nodes.length, "node")}, ${many(total, "CPU")}; isolated: ${view.cpus.isolated || "none"}`;
    return [svg("svg", {class: "topo", viewBox: `0 0 ${width} ${y}`, width, height: y, role: "img", "aria-label": label}, shapes),
      el("ul", {class: "key"}, el("li", {}, el("i", {class: "k-iso"}), "isolated"), el("li", {}, el("i"), "housekeeping"),
        view.cores.length ? el("li", {}, el("i", {class: "k-smt"}), "one core, several threads") : null,
        view.cpus.offline ? el("li", {}, `offline: ${view.cpus.offline}`) : null)];
  };

  const pools = (view) => {
    if (!view.pools.length) return el("p", {class: "muted"}, "No huge pages are reserved, and none are asked for.");
    const most = {};
    view.pools.forEach((row) => { most[row.size] = Math.max(most[row.size] || 1, row.asked || 0, row.got || 0); });
    const bars = view.pools.map((row) => {
      const scale = 540 / most[row.size], got = row.got || 0, free = Math.min(row.free || 0, got), used = got - free;
      const short = row.asked !== null && row.got !== null && row.got < row.asked ? row.asked - row.got : 0;
      const words = `${row.asked === null ? "not asked per node" : `asked ${row.asked}`}, got ${row.got === null ? "not known" : row.got}, free ${row.free === null ? "not known" : row.free}`;
      return el("li", {}, el("p", {}, `${row.size} on node ${row.node}: ${words}`,
          short ? el("span", {class: "short"}, `, ${short} short`) : null, row.surplus ? `, ${row.surplus} surplus` : null),
        svg("svg", {class: "pool", viewBox: "0 0 544 20", width: 544, height: 20, role: "img", "aria-label": `${row.size} on node ${row.node}: ${words}`},
          svg("rect", {class: "track", x: 0, y: 4, width: 544, height: 12, rx: 3}),
          used ? svg("rect", {class: "used", x: 0, y: 4, width: Math.max(2, used * scale), height: 12, rx: 2}) : null,
          free ? svg("rect", {class: "free", x: used * scale + 1, y: 5, width: Math.max(2, free * scale - 2), height: 10, rx: 2}) : null,
          row.asked !== null ? svg("line", {class: "asked", x1: Math.max(1.5, row.asked * scale), x2: Math.max(1.5, row.asked * scale), y1: 0, y2: 20}) : null));
    });
    return [el("ul", {class: "pools"}, bars), el("ul", {class: "key"}, el("li", {}, el("i", {class: "k-iso"}), "in use"),
      el("li", {}, el("i", {class: "k-free"}), "free"), el("li", {}, el("i", {class: "k-ask"}), "asked"))];
  };

  const distances = (view) => {
    const ids = view.nodes.map((node) => String(node.id));
    const known = view.nodes.flatMap((node) => Object.values(node.distances || {}));
    if (!known.length) return el("p", {class: "muted"}, "The host shows no distances.");
    const least = Math.min(...known), span = Math.max(...known) - least || 1;
    return el("table", {class: "dist"}, el("caption", {class: "vh"}, "Distance from node to node"),
      el("thead", {}, el("tr", {}, el("th", {scope: "col"}, "from \\ to"), ids.map((id) => el("th", {scope: "col"}, id)))),
      el("tbody", {}, view.nodes.map((node) => el("tr", {}, el("th", {scope: "row"}, String(node.id)), ids.map((id) => {
        const value = (node.distances || {})[id];
        return el("td", {class: value === undefined ? null : `d${Math.round(3 * (value - least) / span)}`}, value === undefined ? "?" : String(value));
      })))));
  };

  // Is what the kernel shows real, who says so, and what follows for the transport.
  const trust = (view) => {
    const found = view.trust;
    if (!found) return null;
    const shared = found.co_scheduling, carried = found.transport;
    return [el("h3", {}, "Does this topology exist?"),
      el("p", {}, el("strong", {}, found.verdict), `: ${found.words}.`, found.asserted_by ? ` Asserted by ${found.asserted_by}.` : null),
      shared && shared.text ? el("p", {class: shared.risk ? "short" : null}, shared.risk ? "Co-scheduling risk: " : "Co-scheduling: ", shared.text, ".") : null,
      carried ? el("p", {}, "Transport ", el("strong", {}, carried.transport), `: ${carried.words}.`, carried.warning ? ` ${carried.warning}.` : null) : null,
      el("details", {class: "all"}, el("summary", {}, `The evidence (${found.evidence.length})`),
        el("table", {class: "answers"}, el("thead", {}, el("tr", {}, ["seen", "speaks for", "source"].map((text) => el("th", {scope: "col"}, text)))),
          el("tbody", {}, found.evidence.map((row) => el("tr", {}, el("td", {}, row.seen), el("td", {}, row.points), el("td", {}, el("code", {}, row.source)))))))];
  };

  const panel = (host) => {
    const view = host.view === null ? null : data.views[host.view];
    const answers = host.answers.map((position) => data.answers[position]);
    const open = answers.filter((row) => !["pass", "not_applicable"].includes(row.status) && (row.status !== "not_evaluated" || row.intended))
      .sort((a, b) => data.order.indexOf(a.status) - data.order.indexOf(b.status));
    const facts = [["kernel", view && view.kernel], ["architecture", view && view.arch], ["hypervisor", view && (view.hypervisor || "none seen")],
      ["memory", view && bytes(view.memory_bytes)], ["plan from", data.origins[host.origin] || host.origin], ["plan", host.plan],
      ["verified", host.finished], ["took", host.finished ? `${host.seconds} s` : null]].filter((pair) => pair[1]);
    return el("div", {class: "panel"},
      el("ul", {class: "facts-line"}, facts.map(([key, value]) => el("li", {}, el("span", {}, `${key} `), String(value)))),
      host.message ? el("p", {class: "remedy"}, host.message) : null,
      !open.length && view ? el("p", {}, "Everything that the plan asks for is as planned.") : null,
      el("div", {class: open.length && view ? "split" : null},
      open.length ? el("div", {class: "group"}, open.map(answer)) : null,
      view ? el("div", {class: open.length ? "pictures" : "pair"},
          el("div", {}, el("h3", {}, "Sockets, nodes, CPUs"), topology(view), trust(view)),
          el("div", {}, el("h3", {}, "Huge pages"), pools(view), el("h3", {}, "Distances between nodes"), distances(view))) : null),
      view && view.warnings.length ? [el("h3", {}, "About the topology"), el("ul", {}, view.warnings.map((text) => el("li", {}, text)))] : null,
      host.again ? el("div", {class: "pair"},
        open.some((row) => data.bad.includes(row.status)) ? el("div", {}, el("h3", {}, "Bring it back to its plan"), copyable(host.mend, "provisioning")) : null,
        el("div", {}, el("h3", {}, "Look again"), copyable(host.again, "verifying"))) : null,
      answers.length ? el("details", {class: "all"}, el("summary", {}, `All ${answers.length} answers`),
        el("table", {class: "answers"},
          el("thead", {}, el("tr", {}, ["answer", "check", "layer", "wanted", "found", "decided in"].map((text) => el("th", {scope: "col"}, text)))),
          el("tbody", {}, answers.map((row) => el("tr", {}, el("td", {}, badge(row.status)),
            [row.id, data.layers[row.layer] || row.layer, brief(row.expected), brief(row.observed), row.source].map((text) => el("td", {}, el("code", {}, text))))))))
        : null);
  };

  const toggle = (row, wanted) => {
    const button = row.querySelector(".open"), is = button.getAttribute("aria-expanded") === "true";
    if (wanted === is) return;
    button.setAttribute("aria-expanded", String(!is));
    if (is) {
      row.removeAttribute("data-open");
      row.nextElementSibling.remove();
      return;
    }
    row.setAttribute("data-open", "");
    const cell = el("td", {colspan: String(row.cells.length)}, panel(data.hosts[Number(row.id.slice(1))]));
    row.after(el("tr", {class: "detail"}, cell));
  };

  const copy = async (button) => {
    const text = button.getAttribute("data-copy");
    let done = false;
    try {
      await navigator.clipboard.writeText(text);
      done = true;
    } catch (_refused) {
      const area = el("textarea", {class: "vh", readonly: ""});
      area.value = text;
      document.body.append(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
      button.focus();
    }
    const label = button.firstChild;
    label.textContent = done ? "Copied" : "Select it";
    said.textContent = done ? "Copied to the clipboard" : "The browser does not let the page copy";
    setTimeout(() => { label.textContent = "Copy"; said.textContent = ""; }, 2500);
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.classList.contains("open")) toggle(button.closest("tr"));
    if (button.classList.contains("copy")) copy(button);
  });

  const form = document.getElementById("filter"), name = document.getElementById("f-name"), state = document.getElementById("f-state");
  const sieve = () => {
    const wanted = name.value.trim().toLowerCase();
    let shown = 0;
    for (const row of rows) {
      const host = data.hosts[Number(row.id.slice(1))];
      const fits = (!wanted || host.name.toLowerCase().includes(wanted)) && (!state.value || row.dataset.s === state.value);
      if (!fits) toggle(row, false);
      row.hidden = !fits;
      shown += fits ? 1 : 0;
    }
    const text = shown === rows.length ? String(shown) : `${shown} of ${rows.length}`;
    document.getElementById("shown").textContent = text;
    said.textContent = `${text} hosts shown`;
  };
  form.hidden = rows.length < 5;
  form.addEventListener("submit", (event) => event.preventDefault());
  name.addEventListener("input", sieve);
  state.addEventListener("change", sieve);

  const follow = () => {
    const row = /^#h\d+$/.test(location.hash) ? document.getElementById(location.hash.slice(1)) : null;
    if (!row) return;
    row.hidden = false;
    toggle(row, true);
    row.scrollIntoView({block: "start"});
    row.querySelector(".open").focus({preventScroll: true});
  };
  window.addEventListener("hashchange", follow);
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#h"]');
    if (link && link.hash === location.hash) follow();
  });
  follow();
})();
