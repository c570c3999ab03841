"""The report of freeride.observe as one HTML file: no script, no font, no picture from elsewhere.

Clocks of two hosts are never compared: the ranks of one clock share a zero in the picture, those of another have their own.
"""

import html
import math
import shlex

PICTURE_ITERATIONS = 3
WIDTH = 1000  # of the lanes, in the picture's own units
LANE, GAP = 24, 10
MOST_LANES = 64
NARROWEST = 0.3  # units: what is narrower would not be seen, and there may be a great many
FOUND = ("save", "loader")  # phases that the hook may have found by itself
KINDS = {"A": "at the start and end", "B": "before the first backward", "C": "short, between", "": "not learned yet"}

STYLE = """
:root { color-scheme: light dark; --back: #fff; --ink: #1c2733; --soft: #5d6b7a; --line: #dde3ea; --work: #34557a;
  --A: #f3b56b; --B: #e98b2a; --C: #fad9ae; --none: #d8dde3; --phase: #7fb89a; --panel: #f6f8fa; }
@media (prefers-color-scheme: dark) { :root { --back: #12181f; --ink: #e6ebf0; --soft: #93a1b0; --line: #2b3642;
  --work: #5b87b8; --A: #d98f3a; --B: #b8660f; --C: #f0c084; --none: #46515d; --phase: #4f8a6b; --panel: #1a222b; } }
body { margin: 0 auto; max-width: 1080px; padding: 32px 24px 48px; background: var(--back); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0 0 2px; overflow-wrap: anywhere; } h2 { font-size: 17px; margin: 36px 0 8px; }
p { margin: 6px 0; max-width: 74ch; } .soft { color: var(--soft); }
.figures { display: flex; flex-wrap: wrap; gap: 12px; margin: 20px 0; }
.figure { background: var(--panel); border-radius: 8px; padding: 12px 18px; min-width: 130px; flex: 1; }
.figure b { display: block; font-size: 24px; line-height: 1.25; } .figure span { color: var(--soft); font-size: 13px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 5px 10px; border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--soft); font-size: 13px; } th:first-child, td:first-child { text-align: left; padding-left: 0; }
td.bar { width: 34%; } .bar div { display: flex; height: 14px; border-radius: 3px; overflow: hidden; background: var(--panel); }
.bar i { display: block; height: 100%; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--soft); font-size: 13px; font-family: system-ui, sans-serif; }
.work { fill: var(--work); } .A { fill: var(--A); } .B { fill: var(--B); } .C { fill: var(--C); } .none { fill: var(--none); } .phase { fill: var(--phase); }
.edge { stroke: var(--back); stroke-width: 2; } .tick { stroke: var(--line); }
.legend span { margin-right: 18px; white-space: nowrap; font-size: 13px; color: var(--soft); }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 2px; margin-right: 6px; vertical-align: -1px; }
pre { background: var(--panel); border-radius: 8px; padding: 12px 16px; overflow-x: auto; font-size: 13px; }
.wide { overflow-x: auto; }
"""


def clock_of(rank):
    """Whose clock a rank's times are of. A file of an earlier version does not say: then nobody else's."""
    return rank.get("clock") or f"rank {rank['rank']}"


def origins(ranks, iterations=0):
    """The zero of each rank's times: where the first of its clock begins the last so many iterations (0: all)."""
    first = {}
    for rank in ranks:
        shown = rank["iterations"][-iterations:] if iterations else rank["iterations"]
        if shown:
            clock = clock_of(rank)
            first[clock] = min(first.get(clock, shown[0][1]), shown[0][1])
    return [first.get(clock_of(rank), 0) for rank in ranks]


# ---- what would change ------------------------------------------------------------------------------------------------------------


def micro_batches(ranks, found):
    """How many micro-batches an iteration has, told by its receives; None where these are not those of GPipe or 1F1B.

    There the first and the last stage receive once for each micro-batch, the others twice."""
    counts = {}
    for rank, figures in zip(ranks, found):
        waits = sum(map(len, figures["kinds"].values())) / max(1, figures["iterations"])
        between = 0 < rank["stage"] < rank["stages"] - 1
        counts.setdefault(rank["stage"], set()).add(waits / (2 if between else 1))
    told = {count for each in counts.values() for count in each}
    if len(told) != 1 or ranks[0]["stages"] < 2 or len(counts) != ranks[0]["stages"]:
        return None
    (count,) = told
    return int(count) if count >= 1 and count == int(count) else None


def iteration_ms(found):
    """Of the training: its slowest rank's, wherever one figure is said."""
    return max(figures["iteration_ms"] for figures in found)


def what_if(ranks, found):
    """[(what, iteration ms, speed against now, share of bubbles)]: as measured first. Empty where it cannot be reckoned.

    A stage's work of an iteration is what is not bubble, a micro-batch's its even part; the slowest stage sets the pace, and what
    it waits is filling and draining."""
    count = micro_batches(ranks, found)
    if count is None:
        return []
    now = iteration_ms(found)
    chunks = [max(0.0, figures["iteration_ms"] - figures["bubble_ms"]) / count for figures in found]
    slowest = max(chunks)
    filling = max(0.0, now - count * slowest)

    def row(what, batches, long_ms):
        share = 1 - batches * sum(chunks) / len(chunks) / long_ms
        return what, long_ms, batches / long_ms / (count / now), max(0.0, share)

    if slowest <= 0:
        return []
    return [
        row(f"as it is: {count} micro-batches", count, now),
        row(f"{count + 1} micro-batches", count + 1, now + slowest),
        row(f"{2 * count} micro-batches", 2 * count, now + count * slowest),
        row("interleaved, 2 chunks a stage", count, count * slowest + filling / 2),
        row("zero bubble (ZB-H1)", count, count * slowest + filling / 3),
    ]


# ---- the page -----------------------------------------------------------------------------------------------------------------------


def escaped(text):
    return html.escape(str(text), quote=True)


def hours(value):
    return f"{value:.3g} h" if value < 100 else f"{value:,.0f} h"


def gain(speed):
    return "" if speed == 1 else f"{100 * (speed - 1):+.1f} %"


def money(value):
    return f"${value:,.2f}"


def name_of(rank):
    """What a rank is called: its stage, where that is no guess."""
    return f"stage {rank['stage']}" if rank.get("stages_known", True) else f"rank {rank['rank']}"


def label_of(rank):
    several = rank["replicas"] > 1 and rank.get("stages_known", True)
    return name_of(rank) + (f", replica {rank['replica']}" if several else "")


def kind_class(kind):
    return kind if kind in ("A", "B", "C") else "none"


def lanes(ranks):
    """The last iterations of each rank, a lane each, as SVG."""
    shown = ranks[:MOST_LANES]
    zeros = origins(shown, PICTURE_ITERATIONS)
    spans = [rank["iterations"][-PICTURE_ITERATIONS:] for rank in shown]
    end_ms = max(((each[-1][2] - zero) / 1e6 for each, zero in zip(spans, zeros) if each), default=0)
    if end_ms <= 0:
        return "<p>No iteration was finished.</p>"
    left = 14 + 8 * max(len(label_of(rank)) for rank in shown)
    scale = WIDTH / end_ms
    height = len(shown) * (LANE + GAP) + 26
    parts = [
        f'<svg viewBox="0 0 {left + WIDTH + 8} {height}" role="img" aria-label="the last iterations, a lane for each rank">'
    ]
    step = 10 ** math.floor(math.log10(end_ms / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if end_ms / (step * factor) <= 10)
    for tick in range(int(end_ms / step) + 1):
        x = left + tick * step * scale
        parts.append(f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - 22}"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{height - 6}" text-anchor="{"middle" if tick else "start"}">{tick * step:g}{" ms" if not tick else ""}</text>'
        )
    for row, (rank, zero, iterations) in enumerate(zip(shown, zeros, spans)):
        y = row * (LANE + GAP) + 4
        parts.append(f'<text x="0" y="{y + LANE * 0.7:.1f}">{escaped(label_of(rank))}</text>')

        def bar(begin, end, name, title, y=y, zero=zero):
            x, width = left + (begin - zero) / 1e6 * scale, (end - begin) / 1e6 * scale
            if width >= NARROWEST:
                parts.append(
                    f'<rect class="{name}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{LANE}"><title>{escaped(title)}</title></rect>'
                )

        for number, begin, end in iterations:
            bar(begin, end, "work", f"iteration {number}: {(end - begin) / 1e6:.2f} ms")
        if iterations:
            first, last = iterations[0][1], iterations[-1][2]
            for iteration, wait, kind, begin, end in rank["bubbles"]:
                if end > first and begin < last:
                    begin, end = max(begin, first), min(end, last)
                    title = f"iteration {iteration}, wait {wait}, type {kind or '-'}: {(end - begin) / 1e6:.2f} ms"
                    bar(begin, end, kind_class(kind), title)
            for name, begin, end in rank.get("phases", ()):
                if end > first and begin < last:
                    bar(max(begin, first), min(end, last), "phase", f"phase {name}: {(end - begin) / 1e6:.2f} ms")
        for _, begin, _ in iterations[1:]:
            x = left + (begin - zero) / 1e6 * scale
            parts.append(f'<line class="edge" x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + LANE}"/>')
    parts.append("</svg>")
    clocks = len({clock_of(rank) for rank in shown})
    note = (
        ""
        if clocks == 1
        else (
            f"<p class=soft>The lanes are of {clocks} clocks that nobody has compared. Those of one clock share a zero; against the others' they may be shifted.</p>"
        )
    )
    if len(ranks) > MOST_LANES:
        note += f"<p class=soft>The first {MOST_LANES} of {len(ranks)} ranks.</p>"
    return "".join(parts) + note


def legend(found):
    kinds = [kind for kind in KINDS if any(kind in figures["kinds"] for figures in found)]
    items = ['<span><i style="background:var(--work)"></i>training works</span>']
    items += [
        f'<span><i style="background:var(--{kind_class(kind)})"></i>bubble {escaped(kind or "-")}: {KINDS[kind]}</span>'
        for kind in kinds
    ]
    if any(figures["phases"] for figures in found):
        items.append('<span><i style="background:var(--phase)"></i>idle phase</span>')
    return f'<p class="legend">{"".join(items)}</p>'


def idle_table(rows):
    """What observe.kinds_of_idle() gives."""
    lines = "".join(
        f"<tr><td>{escaped(label_of(rank))}</td><td>{escaped(rank['device'][:16])}</td><td>{escaped(kind)}</td><td>{times}</td>"
        f"<td>{mean_ms:,.1f} ms</td><td>{100 * share:.1f} %</td><td>{24 * share:.1f} h</td></tr>"
        for rank, kind, times, mean_ms, share in rows
    )
    return (
        "<div class=wide><table><tr><th></th><th>device</th><th>idles in</th><th>times</th><th>mean</th><th>of the time</th><th>a day</th></tr>"
        f"{lines}</table></div>"
    )


def shares(ranks, found):
    memory = any(rank["usable_bytes"] for rank in ranks)
    rows = []
    for rank, figures in zip(ranks, found):
        if figures["trouble"]:
            continue
        of_ms = max(1e-9, figures["iterations"] * figures["iteration_ms"])
        bars = "".join(
            f'<i style="width:{100 * sum(lengths) / of_ms:.2f}%;background:var(--{kind_class(kind)})" title="{escaped(kind or "-")}"></i>'
            for kind, lengths in figures["kinds"].items()
        )
        rows.append(
            f"<tr><td>{escaped(label_of(rank))}</td><td>{escaped(rank['device'][:16])}</td>"
            f"<td>{sum(map(len, figures['kinds'].values())) / max(1, figures['iterations']):.1f}</td><td>{figures['bubble_ms']:.1f} ms</td>"
            f"<td>{100 * figures['share']:.1f} %</td><td class=bar><div>{bars}</div></td>"
            + (f"<td>{rank['usable_bytes'] / 2**30:.1f} GiB</td>" if memory else "")
            + "</tr>"
        )
    return (
        "<div class=wide><table><tr><th></th><th>device</th><th>bubbles an iteration</th><th>long</th><th>of the time</th><th></th>"
        + ("<th>memory free</th>" if memory else "")
        + f"</tr>{''.join(rows)}</table></div>"
    )


def changes(ranks, found):
    rows = what_if(ranks, found)
    if not rows:
        return (
            "<p>It cannot be reckoned here: that takes the waits of a GPipe or 1F1B pipeline, which receives once for each micro-batch at its "
            "ends and twice between, from every stage.</p>"
        )
    lines = [
        f"<tr><td>{escaped(what)}</td><td>{long_ms:.1f} ms</td><td>{gain(speed)}</td><td>{100 * share:.1f} %</td></tr>"
        for what, long_ms, speed, share in rows
    ]
    return (
        "<div class=wide><table><tr><th></th><th>iteration</th><th>samples a second</th><th>bubbles</th></tr>"
        + "".join(lines)
        + "</table></div><p class=soft>Reckoned, not measured. A stage's work is what of its iteration is no bubble; one micro-batch has an even part of "
        "it. The slowest stage sets the pace: another micro-batch takes what it takes there. What the slowest stage waits is filling and draining; "
        "interleaving halves that, and ZB-H1 leaves a third if forward, input and weight gradients are equally long. Left out: memory, more "
        "messages, and what waits for anything but the pipeline.</p>"
    )


def training_command(rank):
    """A comment, and how the training is started with freeride.run. One rank's own arguments are no command for all of them."""
    words, launcher = rank.get("command") or ["train.py", "…"], rank.get("launcher")
    if launcher is not None:
        line = shlex.join([*launcher, "-m", "freeride.run", *words])
        return "# the training, as it was started for this report, with freeride.run for freeride.observe", line
    script = shlex.join(words[: 2 if words[0] == "-m" else 1])
    return "# each rank of the training, by what started it for this report", f"python3 -m freeride.run {script} …"


def commands(ranks, found):
    best, bubbles = max(range(len(ranks)), key=lambda at: found[at]["share"]), any(rank["bubbles"] for rank in ranks)
    where = f" --stage {ranks[best]['stage']}" if bubbles and ranks[best].get("stages_known", True) else ""
    devices = sorted({rank["device"] for rank in ranks})
    units = " \\\n    ".join(f"freeride-worker@{device}" for device in devices[:8])
    started, training = training_command(ranks[0])
    if any(
        name in FOUND and not rank["device"].startswith("GPU-") for rank in ranks for name, *_ in rank.get("phases", ())
    ):
        training = f"FREERIDE_IDLE=all {training}"  # on a CPU device nothing is found that was not asked for
    words = [
        "# on the hosts of the devices, once (packages: freeride)",
        f"sudo systemctl enable --now freeride-manager \\\n    {units}",
        started,
        training,
        f"# a side task{', into the bubbles of the stage that has the most' if bubbles else ''}; freeride-ctl plugins lists others",
        f"freeride-ctl load pagerank.so{where}",
    ]
    return f"<pre>{escaped(chr(10).join(words))}</pre>"


def totals(ranks, found, price):
    """What all ranks come to: (figure, what it is)."""
    share = sum(figures["share"] for figures in found) / len(found)
    usable = sum(figures["usable_share"] for figures in found) / len(found)
    phases = sum(figures["phase_share"] for figures in found) / len(found)
    bubbles, day = any(rank["bubbles"] for rank in ranks) or not phases, 24 * (usable + phases) * len(ranks)
    figures = []
    if bubbles:
        figures += [
            (f"{100 * share:.1f} %", "of the devices' time are bubbles"),
            (f"{100 * usable:.1f} %", "are bubbles that side tasks can use: on a GPU, those of 3 ms or longer"),
            (f"{iteration_ms(found):.1f} ms", "an iteration"),
        ]
    if phases:
        figures.append((f"{100 * phases:.1f} %", "of the devices' time are idle phases"))
    what = " and ".join(["usable bubbles"] * bubbles + ["idle phases"] * bool(phases))
    figures.append((hours(day), f"of {what} a day, of {24 * len(ranks)} device hours"))
    if price is not None:
        figures.append((money(day * price), f"a day, at {money(price)} a device's hour"))
    return figures


def page(ranks, found, price=None, remarks=(), idle=()):
    """The HTML. `found`: measure() of each rank; `price`: dollars of one device's hour, or None; `remarks`: sentences before the figures;
    `idle`: the rows of where each device idles. Where a rank has no figure of its own there is none of all."""
    first = ranks[0]
    counted = [one for one in found if not one["trouble"]]
    figures = totals(ranks, found, price) if len(counted) == len(found) else []
    boxes = "".join(
        f'<div class="figure"><b>{escaped(value)}</b><span>{escaped(what)}</span></div>' for value, what in figures
    )
    job = escaped(first["job"])
    shape = f"{first['stages']} stages, {first['replicas']} replica{'s' * (first['replicas'] > 1)}"
    if not first.get("stages_known", True):
        shape = f"{first.get('world', len(ranks))} ranks"
    measured = f"; {counted[0]['iterations']} iterations measured" if counted else ""
    said = "".join(f"<p><b>{escaped(remark)}.</b></p>" for remark in remarks)
    each = "stage" if first.get("stages_known", True) else "rank"
    pipeline = any(rank["bubbles"] for rank in ranks) or not any(one["phases"] for one in found)
    title = "Bubbles" if pipeline else "Idle phases"
    rest = f"<h2>Where each device idles</h2>{idle_table(idle)}\n" if any(one["phases"] for one in found) else ""
    if pipeline:
        rest = f"<h2>Bubbles of each {each}</h2>{shares(ranks, found)}\n{rest}"
    if figures and pipeline:
        rest += f"<h2>What another schedule would change</h2>{changes(ranks, found)}\n"
    if figures:
        rest += f"<h2>What would use them</h2>{commands(ranks, found)}"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} of {job}</title><style>{STYLE}</style></head><body>
<h1>{title} of {job}</h1>
<p class="soft">{shape}, {escaped(first["framework"])}{measured}</p>
{said}<div class="figures">{boxes}</div>
<h2>The last iterations</h2>{legend(found)}{lanes(ranks)}
{rest}
</body></html>
"""
