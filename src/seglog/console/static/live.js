// The work, live: what is wrong and what to do, throughput, lag, groups, brokers, partitions, and what changed when.

import { get, post } from "./api.js";
import { lineChart } from "./chart.js";
import { partitionName, problem } from "./disk.js";
import { h, number, plural, replace, size, time, toast } from "./dom.js";
import { List } from "./list.js";

const EVERY = 2000;
const DRAWN_GROUPS = 6;
const KINDS = { election: "Election", shrink: "ISR shrank", expand: "ISR grew", left: "Broker left", came: "Broker came", group: "Rebalance", problem: "Problem" };

export function liveView(context, parameters) {
  const findings = h("div", { class: "findings", "aria-live": "polite" });
  const throughput = lineChart({ label: "Records per second", format: compact });
  const lag = lineChart({ label: "Lag of groups", format: compact });
  const lagLegend = h("p", { class: "legend" });
  const brokers = h("div", { class: "scroll" });
  const groups = h("div", { class: "scroll" });
  const detail = h("div", {});
  const events = h("ol", { class: "events" });
  const headline = h("p", { class: "facts-row" });
  const samples = [];
  const happened = [];
  let since = 0;
  let timer = 0;
  let closed = false;
  let text = "";
  let group = parameters.get("group");
  const total = h("span", { class: "mute" });
  const list = new List({
    label: "Partitions of the cluster", height: 30,
    load: async (first, count) => {
      const found = await get("cluster", { filter: text, first, count });
      total.textContent = plural(found.total, "partition");
      return { total: found.total, rows: found.partitions };
    },
    row: (one) => h("span", { class: "cluster-row" },
      partitionName(one),
      h("span", { class: one.leader === null ? "warn" : "" }, one.leader === null ? "no leader" : `leader ${one.leader}`),
      h("span", {}, `epoch ${one.leaderEpoch ?? "–"}`),
      h("span", { class: one.isr.length < one.replicas.length ? "warn" : "" }, `ISR ${one.isr.join(",") || "none"} of ${one.replicas.join(",")}`),
      h("span", {}, `end ${number(one.ends[String(one.leader)])}`)),
    same: (a, b) => a.topic === b.topic && a.partition === b.partition,
    open: (one) => context.go("records", { topic: one.topic, partition: one.partition }),
  });
  const filter = h("input", { type: "search", placeholder: "Filter partitions", "aria-label": "Filter partitions", oninput: () => { text = filter.value; list.refresh().catch(() => {}); } });

  async function turn() {
    if (!document.hidden) {
      try {
        const [history, status] = await Promise.all([get("history", { since }), get("cluster", { count: 1 })]);
        if (closed) return;
        take(history);
        drawStatus(status);
      } catch (error) {
        if (!closed) replace(findings, problem(error));
      }
    }
    if (!closed) timer = setTimeout(turn, EVERY);
  }

  function take(history) {
    samples.push(...history.samples);
    happened.push(...history.events);
    since = Math.max(since, ...history.samples.map((one) => one.at), ...history.events.map((one) => one.at));
    samples.splice(0, samples.length - 900);
    const span = Math.min(Math.max(history.now - (samples[0]?.at ?? history.now), 60000), 900000);
    throughput.set({ now: history.now, span, series: [{ name: "records/s", kind: "ink-0", points: samples.map((one) => [one.at, one.records]) }] });
    drawGroups(history, span);
    replace(events, happened.slice(-60).reverse().map((one) => h("li", { class: `event ${one.kind}` },
      h("time", {}, time(one.at).slice(11, 19)), h("b", {}, KINDS[one.kind] ?? one.kind), h("span", {}, one.text))),
      happened.length ? null : h("li", { class: "mute" }, "Nothing has changed since the console started to look."));
  }

  function drawGroups(history, span) {
    const last = samples.at(-1);
    const names = Object.keys(last?.groups ?? {}).sort((a, b) => (last.groups[b].lag ?? -1) - (last.groups[a].lag ?? -1));
    const drawn = names.filter((name) => last.groups[name].lag !== null).slice(0, DRAWN_GROUPS);
    const points = (name, value) => samples.map((one) => [one.at, one.groups[name]?.[value] ?? null]);
    lag.set({
      now: history.now, span,
      series: drawn.flatMap((name, at) => [
        { name, kind: `ink-${at}`, points: points(name, "lag") },
        { name: `${name}, readable`, kind: `ink-${at}`, dashed: true, points: points(name, "readable") },
      ]),
    });
    replace(lagLegend, drawn.map((name, at) => h("span", {}, h("i", { class: `chip ink-${at}`, "aria-hidden": "true" }), h("bdi", {}, name))),
      drawn.length ? h("span", { class: "mute" }, "dashed: readable under read_committed") : h("span", { class: "mute" }, "No group has committed offsets."));
    replace(groups, h("table", { class: "plain-table" },
      h("thead", {}, h("tr", {}, ["group", "state", "members", "lag", "readable lag"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, names.map((name) => {
        const one = last.groups[name];
        return h("tr", { class: name === group ? "chosen" : "" },
          h("td", {}, h("button", { type: "button", class: "plain", onclick: () => openGroup(name) }, h("bdi", {}, name))),
          h("td", { class: one.state === "Stable" || one.state === "Empty" ? "" : "warn" }, one.state || "–"), h("td", { class: "num" }, number(one.members)),
          h("td", { class: "num" }, number(one.lag)), h("td", { class: "num" }, number(one.readable)));
      }))));
  }

  async function openGroup(name) {
    group = name;
    context.keep("live", { group: name });
    try {
      const found = await get("group", { group: name });
      if (!closed && group === name) drawGroup(found);
    } catch (error) {
      replace(detail, problem(error));
    }
  }

  function drawGroup(found) {
    replace(detail, h("section", { class: "panel", "aria-label": `Group ${found.group}` },
      h("div", { class: "panel-head" }, h("h2", {}, "Group ", h("bdi", {}, found.group)),
        h("span", { class: "mute" }, `${found.state}, lag ${number(found.lag)}${found.groupEpoch === undefined ? "" : `, epoch ${found.groupEpoch}, target ${found.targetEpoch}`}`),
        h("button", { type: "button", onclick: () => { group = null; replace(detail); context.keep("live"); } }, "Close")),
      h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Partitions of the group" }, h("table", { class: "plain-table" },
        h("thead", {}, h("tr", {}, ["partition", "committed", "end", "lag", "readable", "member", "host"].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, found.partitions.slice(0, 1000).map((one) => h("tr", {},
          h("td", {}, `${one.topic}-${one.partition}`), h("td", { class: "num" }, number(one.offset)), h("td", { class: "num" }, number(one.end)),
          h("td", { class: "num" }, number(one.lag)), h("td", { class: "num" }, number(one.readableLag)), h("td", {}, one.client ?? "–"), h("td", {}, one.host ?? "–")))))),
      context.about.writes ? resetForm(found) : h("p", { class: "says" }, "To reset offsets here, start the console with --write.")));
  }

  function resetForm(found) {
    const topics = [...new Set(found.partitions.map((one) => one.topic))];
    const topic = h("select", { "aria-label": "Topic" }, topics.map((name) => h("option", { value: name }, name)));
    const mode = h("select", { "aria-label": "Where to" }, [["earliest", "to the beginning"], ["latest", "to the end"], ["offset", "to offset"], ["shift", "by records"], ["time", "to time"]].map(([value, name]) => h("option", { value }, name)));
    const value = h("input", { "aria-label": "Offset, records or time", size: 14 });
    const preview = h("div", {});
    const ask = async (execute) => {
      try {
        const plan = await post("reset", { group: found.group, topic: topic.value, mode: mode.value, value: value.value, execute });
        replace(preview, h("table", { class: "plain-table preview" },
          h("thead", {}, h("tr", {}, ["partition", "committed", "new"].map((name) => h("th", { scope: "col" }, name)))),
          h("tbody", {}, plan.partitions.map((one) => h("tr", {}, h("td", {}, `${one.topic}-${one.partition}`), h("td", { class: "num" }, number(one.offset)), h("td", { class: "num" }, h("b", {}, number(one.newOffset))))))),
        plan.done ? h("p", { class: "banner good" }, "The group continues there.") : h("button", { type: "button", class: "primary", onclick: () => ask(true) }, "Commit these offsets"));
        if (plan.done) toast("Offsets committed");
      } catch (error) {
        replace(preview, problem(error));
      }
    };
    return h("form", { class: "filters reset", onsubmit: (event) => { event.preventDefault(); ask(false); } },
      h("b", {}, "Reset offsets"), topic, mode, value, h("button", { type: "submit" }, "Preview"), preview);
  }

  function drawStatus(status) {
    replace(findings,
      status.problem ? h("p", { class: "banner bad", role: "alert" }, status.problem) : null,
      status.findings.map((one) => h("div", { class: "banner bad" }, h("b", {}, one.what), h("span", { class: "finding" }, one.advice))),
      status.findings.length || status.problem ? null : h("p", { class: "banner good" }, "Healthy: every partition has a leader and all its replicas are in sync."));
    const last = samples.at(-1);
    replace(headline, [["brokers", number(status.brokers.length)], ["partitions", number(status.total)], ["records/s", compact(last?.records ?? null)], ["bytes/s", last?.bytes === null || last === undefined ? "–" : size(Math.round(last.bytes))], ["controller", number(status.controller)]]
      .map(([name, value]) => h("span", {}, h("small", {}, name), h("b", {}, value))));
    replace(brokers, h("table", { class: "plain-table" },
      h("thead", {}, h("tr", {}, ["broker", "address", "rack", "leads", "replicas", "in sync", "size", "state"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, status.brokers.map((one) => h("tr", {},
        h("td", { class: "num" }, one.node), h("td", {}, Object.values(one.listeners).join(", ")), h("td", {}, one.rack ?? "–"),
        h("td", { class: "num" }, number(one.leads)), h("td", { class: "num" }, number(one.replicas)),
        h("td", { class: `num ${one.inSync < one.replicas ? "warn" : ""}` }, number(one.inSync)), h("td", { class: "num" }, size(one.size)),
        h("td", { class: one.answers === false ? "warn" : "" }, one.answers === false ? "silent" : one.stopping ? "stopping" : "up"))))));
  }

  const element = h(
    "div", { class: "content live" },
    h("h1", { class: "unseen" }, "The cluster, live"), headline, findings,
    h("div", { class: "halves" },
      h("section", { class: "panel" }, h("h2", {}, "Records per second"), throughput.element),
      h("section", { class: "panel" }, h("h2", {}, "Lag of groups"), lag.element, lagLegend)),
    h("section", { class: "panel" }, h("h2", {}, "Groups"), groups), detail,
    h("section", { class: "panel" }, h("h2", {}, "Brokers"), brokers),
    h("div", { class: "halves" },
      h("section", { class: "panel" }, h("div", { class: "panel-head" }, h("h2", {}, "Partitions"), filter, total), list.element),
      h("section", { class: "panel" }, h("h2", {}, "What changed"), events)),
  );
  turn().then(() => { if (group) openGroup(group); });
  list.refresh().catch(() => {});
  const again = setInterval(() => list.refresh(true).catch(() => {}), 5000);
  return {
    element,
    close() {
      closed = true;
      clearTimeout(timer);
      clearInterval(again);
      throughput.close();
      lag.close();
      list.close();
    },
  };
}

function compact(value) {
  if (value === null || value === undefined) return "–";
  if (Math.abs(value) < 10 && value % 1) return value.toFixed(1);
  return Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value);
}
