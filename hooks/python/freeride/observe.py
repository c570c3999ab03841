"""python -m freeride.observe [options] [-m] train.py|module args…: runs a training script and says where its devices idle: in which bubbles
of a pipeline, and in which idle phases, those that the script marks (freeride.idle) and those that are found by themselves.

No manager, worker or side task is needed, and none is used. In place of `python` in whatever starts each rank:

    torchrun --nproc_per_node 4 -m freeride.observe train.py …

Each rank leaves rank<N>.json in the folder; when all are there, rank 0 prints a table (per stage: how many bubbles of which type, how long, what
share of the time, what that is worth), and leaves it as one page, bubbles.html, with bubbles.png and trace.json (Perfetto). The training is
otherwise as it would be.

  --out DIR        folder of the report; default freeride-observe, or $FREERIDE_OBSERVE_DIR
  --gpu-hour-price DOLLARS
                   of one hour of one device, to say what the bubbles cost; default: hours are said. Also --price
  --skip N         iterations at the start that do not count, since they warm up; default 3
  --iterations N   makes the report after so many that count, while the training goes on; default: at its end
  --report DIR     makes the report of an earlier run, and runs nothing
"""

import atexit
import collections
import glob
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time

from ._bubble_page import PICTURE_ITERATIONS, iteration_ms, name_of, origins, page

MOST_BUBBLES = 1 << 18  # kept of each rank, the newest: what it observes does not grow without bound
MOST_ITERATIONS = 1 << 16
PATIENCE_S = 30  # of rank 0 for the other ranks' files
LEAST_SENDS = 0.01  # of a rank's time: less of waits for sends is not spoken of
GPU_LEAST_MS = 3.0  # shorter bubbles of a GPU get no side task: StreamMarks::kTwoPhaseLeastNs of the hook


# ---- in the training's process -----------------------------------------------------------------------------------------------------


def clock():
    """What tells this host's clock from others': a boot of a kernel. Nothing where it is not known."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def launcher():
    """What has started the script, as one can type it again; None where each rank was started by something that this one does not know."""
    if "RANK" not in os.environ:
        return ["python3"]  # the script starts its ranks by itself
    if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("GROUP_WORLD_SIZE") == "1":
        return ["torchrun", "--nproc_per_node", os.environ.get("LOCAL_WORLD_SIZE", "1")]
    return None


class Observer:
    """Copies what the page's rings hold at each iteration's end, before they are overwritten."""

    def __init__(self, out):
        from . import pages
        from ._hook import hook

        self._hook, self._pages, self._out = hook, pages, out
        self._bubbles = collections.deque(maxlen=MOST_BUBBLES)
        self._iterations = collections.deque(maxlen=MOST_ITERATIONS)
        self._phases = collections.deque(maxlen=MOST_BUBBLES)  # (name, begin, end)
        self._began_ns = time.monotonic_ns()
        self._bubbles_seen = self._iterations_seen = 0
        self._usable = 0
        self._about = None
        self._handle = None  # whose page was read last
        self._pid = os.getpid()
        self.command, self.price, self.skip, self.most = [], None, 0, None
        self.launcher = launcher()  # now, before the script changes the environment
        self._writer = None  # a thread, once the report is made before the training's end
        hook.at_iteration_end = self.look
        atexit.register(self.write)

    def look(self):
        page, pages = self._hook.page(), self._pages
        if page is None or self._writer is not None:
            return
        if self._hook.handle != self._handle:  # a new place, with a page of its own
            self._handle, self._bubbles_seen, self._iterations_seen = self._hook.handle, 0, 0
            self._bubbles.clear()
            self._iterations.clear()
        newest, found = page.bubbles, []
        first = max(self._bubbles_seen, newest - pages.HISTORY)
        for number in range(first, newest):
            record = page.history[number % pages.HISTORY]
            wait = pages.state_wait(record.state_word)
            span = record.begin_ns, record.end_ns
            if wait >= pages.phase_wait(0):
                name = page.phases[(wait - pages.phase_wait(0)) % pages.MAX_PHASES].name.decode(errors="replace")
                found.append((self._phases, (name, *span)))
                continue
            kind = page.learned[wait - 1].type if 0 < wait <= pages.MAX_WAITS else 0
            letter = chr(kind) if 65 <= kind <= 67 else ""
            found.append((self._bubbles, (pages.state_iteration(record.state_word), wait, letter, *span)))
        overwritten = page.bubbles - pages.HISTORY  # meanwhile
        for number, (where, one) in enumerate(found, first):
            if number > overwritten:
                where.append(one)
        self._bubbles_seen = newest
        newest = page.iteration
        for number in range(max(self._iterations_seen, newest - pages.ITERATIONS), newest):
            record = page.iterations[number % pages.ITERATIONS]
            if record.begin_ns:
                self._iterations.append((record.iteration, record.begin_ns, record.end_ns))
        self._iterations_seen = newest
        if page.usable_bytes:
            self._usable = min(self._usable or page.usable_bytes, page.usable_bytes)
        self._about = {name: getattr(page, name).decode(errors="replace") for name in ("job", "device", "framework")}
        self._about.update({name: getattr(page, name) for name in ("rank", "stage", "stages", "replica", "replicas")})
        if self.most is not None and len(self._iterations) >= self.skip + self.most:
            self._hook.at_iteration_end = None
            self._writer = threading.Thread(target=self.make_report, name="freeride-observe", daemon=True)
            self._writer.start()

    def write(self):
        """At exit."""
        if os.getpid() != self._pid:
            return
        try:
            self.look()
        except Exception as error:
            print(f"freeride.observe: {error}", file=sys.stderr)
        if self._writer is None:
            self.make_report()
        else:
            self._writer.join(2 * PATIENCE_S)

    def _known(self):
        """Of this rank, besides its bubbles and iterations; None: it is none."""
        hook = self._hook
        if hook.world is not None:
            rank, world = hook.world
        elif "RANK" in os.environ:
            rank, world = int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE") or 1)
        else:
            return None  # it has started the ranks
        nobody = {"job": "training", "device": f"cpu-{rank}", "framework": "", "rank": rank}
        about = self._about or dict(nobody, stage=rank, stages=world, replica=0, replicas=1)
        self._about = about
        _, why, reason = hook.status()
        if why == "ended":  # by the script's own detach(), or this process's end
            why = reason = ""
        return {
            **about,
            "world": world,
            "why": why,
            "reason": reason,
            "placed": hook.placed,
            "sources": sorted(hook.sources),
            "ignored": 0 if hook.pipelines.known() else hook.pipelines.passed_over,
            "steps": hook.many_steps(),
            "send_ns": getattr(hook.marker, "send_ns", 0),
        }

    def make_report(self):
        """Writes this rank's file. Rank 0 also waits for the others' and prints."""
        try:
            known = self._known()
            if known is None:
                return
            path = os.path.join(self._out, f"rank{known['rank']}.json")
            with open(path + ".new", "w") as file:
                json.dump(
                    {
                        **known,
                        "usable_bytes": self._usable,
                        "clock": clock(),
                        "command": self.command,
                        "launcher": self.launcher,
                        "bubbles": list(self._bubbles),
                        "phases": list(self._phases),
                        "observed": (self._began_ns, time.monotonic_ns()),
                        "iterations": list(self._iterations)[: None if self.most is None else self.skip + self.most],
                    },
                    file,
                )
            os.replace(path + ".new", path)
            if known["rank"] == 0:
                until = time.monotonic() + PATIENCE_S
                while missing(self._out, known["world"]) and time.monotonic() < until:
                    time.sleep(0.1)
                report(self._out, self.price, self.skip)
        except Exception as error:
            print(f"freeride.observe: no report: {error}; the ranks' files are in {self._out}", file=sys.stderr)


# ---- the report ------------------------------------------------------------------------------------------------------------------


def missing(folder, world):
    """Ranks that have left no file so far."""
    return [rank for rank in range(world) if not os.path.exists(os.path.join(folder, f"rank{rank}.json"))]


def load(folder):
    """(the ranks' files, by rank; those of another run, which are none of them). Raises ValueError that says what is wrong with them."""
    ranks, written = [], {}
    for path in glob.glob(os.path.join(glob.escape(folder), "rank*.json")):
        try:
            with open(path) as file:
                ranks.append(json.load(file))
                written[ranks[-1]["rank"]] = os.fstat(file.fileno()).st_mtime_ns
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: {type(error).__name__}: {error}") from error
    if not ranks:
        raise ValueError(
            f"there is no rank*.json in {folder}: no rank got as far as its first iteration's end under freeride.observe"
        )
    # A run with fewer ranks than one before it leaves that one's other files where they are. The newest file says which run is meant.
    newest = max(ranks, key=lambda rank: written[rank["rank"]])

    def belongs(rank):
        return rank["job"] == newest["job"] and world_of(rank) == world_of(newest) and rank["rank"] < world_of(newest)

    ranks.sort(key=lambda rank: rank["rank"])
    return [rank for rank in ranks if belongs(rank)], [rank for rank in ranks if not belongs(rank)]


def world_of(rank):
    """How many ranks the run has. An earlier version's file tells only what the stages come to."""
    return rank.get("world", rank["stages"] * rank["replicas"])


def quantile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def on_gpu(rank):
    return rank["device"].startswith("GPU-")


def trouble(rank, skip=0):
    """Why there is no figure of this rank, as a sentence without a full stop; "": there is one."""
    if phases_alone(rank):
        return ""
    why, reason = rank.get("why"), rank.get("reason")
    told = f"{reason} [{why}]" if why else ""
    ended = len(rank["iterations"])
    if not ended:
        return told or "no iteration has ended"
    if rank.get("ignored"):
        return (
            f"{rank['ignored']} of its messages are of groups that are taken for no pipeline's: if they are one, name its ranks in "
            "FREERIDE_GROUP [other_groups]"
        )
    if rank.get("steps"):
        return (
            f"the optimizer made {rank['steps']} steps in {ended} iterations: messages of the pipeline are taken for another's, or "
            "iterations end elsewhere [few_iterations]"
        )
    if ended <= skip:
        return f"only {ended} iteration{'s' * (ended > 1)} ended, and the first {skip} warm up: train for longer, or lower --skip"
    if not rank["bubbles"] and why is not None and why != "never_waits":
        return told or "no bubble was marked"
    return ""


def phases_alone(rank):
    """Has it idle phases, and no pipeline?"""
    return bool(rank.get("phases")) and not rank["bubbles"] and not rank.get("ignored")


def phases_of(rank, skip=0):
    """(lengths in ms by name, the share of the time that each name takes), behind the iterations that warm up. On a GPU without those that are
    too short for side tasks."""
    begin, end = rank.get("observed") or (0, 0)
    if 0 < skip < len(rank["iterations"]):
        begin = max(begin, rank["iterations"][skip - 1][2])
    lengths, least_ms = collections.defaultdict(list), GPU_LEAST_MS if on_gpu(rank) else 0.0
    for name, from_ns, to_ns in rank.get("phases", ()):
        length_ms = (min(to_ns, end) - max(from_ns, begin)) / 1e6
        if length_ms > 0 and length_ms >= least_ms:
            lengths[name].append(length_ms)
    return dict(lengths), {name: sum(each) * 1e6 / (end - begin) for name, each in lengths.items()}


def measure(rank, skip=0):
    """Of one rank: iterations that count, their mean length, its bubbles by type, the share of the time that they take, that those take
    which side tasks can use, that of waits for sends, which are none, and why none of these is a figure of the training ("": they are)."""
    measured = rank["iterations"][skip:]
    numbers = {iteration for iteration, _, _ in measured}
    time_ns = sum(end - begin for _, begin, end in measured)
    kinds = collections.defaultdict(list)
    for iteration, _, kind, begin, end in rank["bubbles"]:
        if iteration in numbers:
            kinds[kind].append((end - begin) / 1e6)
    bubble_ms = sum(sum(lengths) for lengths in kinds.values())
    least_ms = GPU_LEAST_MS if on_gpu(rank) else 0.0
    usable_ms = sum(length for lengths in kinds.values() for length in lengths if length >= least_ms)
    all_ns = sum(end - begin for _, begin, end in rank["iterations"])
    phases, phase_shares = phases_of(rank, skip)
    return {
        "phases": phases,
        "phase_shares": phase_shares,
        "phase_share": sum(phase_shares.values()),
        "iterations": len(measured),
        "iteration_ms": time_ns / 1e6 / max(1, len(measured)),
        "kinds": dict(sorted(kinds.items())),
        "bubble_ms": bubble_ms / max(1, len(measured)),
        "share": bubble_ms * 1e6 / time_ns if time_ns else 0.0,
        "usable_share": usable_ms * 1e6 / time_ns if time_ns else 0.0,
        "send_share": min(1.0, rank.get("send_ns", 0) / all_ns) if all_ns else 0.0,
        "trouble": trouble(rank, skip),
    }


def one_pipeline(ranks):
    """Are these ranks one pipeline, by the messages between them? Where nobody has told a rank's place, it is taken for its number's."""
    joined = {rank["rank"]: rank["rank"] for rank in ranks}

    def root(rank):
        while joined[rank] != rank:
            rank = joined[rank]
        return rank

    for rank in ranks:
        for source in rank.get("sources", ()):
            if source in joined:
                joined[root(rank["rank"])] = root(source)
    return len({root(rank) for rank in joined}) == 1


def named(ranks):
    """The same ranks, each with "stages_known": whether it may be called a stage."""
    known = all(rank.get("placed", True) for rank in ranks) or one_pipeline(ranks)
    return [dict(rank, stages_known=known) for rank in ranks]


def remarks(ranks, found, others=()):
    """What is to be known beside the figures, or in their place: sentences."""
    said = []
    expected = world_of(ranks[0])
    if len(ranks) < expected:
        said.append(f"only {len(ranks)} of {expected} ranks left a file")
    if others:
        numbers = ", ".join(str(rank["rank"]) for rank in others)
        said.append(f"files of another run are left out: rank {numbers}")
    if not ranks[0]["stages_known"] and any(rank["bubbles"] for rank in ranks):
        said.append(
            "no stage is named, since these ranks are not one pipeline by their messages: set FREERIDE_STAGES, or see docs/trainers/settings.md"
        )
    reasons = collections.defaultdict(list)
    for rank, figures in zip(ranks, found):
        if figures["trouble"]:
            reasons[figures["trouble"]].append(str(rank["rank"]))
    for reason, numbers in reasons.items():
        who = "no rank" if len(numbers) == len(ranks) else f"rank {', '.join(numbers)}"
        said.append(f"{who} has a figure: {reason}" if who == "no rank" else f"{who} has no figure: {reason}")
    sends = max((figures["send_share"] for figures in found if not figures["trouble"]), default=0.0)
    if sends >= LEAST_SENDS:
        said.append(
            f"waits for sends take up to {100 * sends:.1f} % of a rank's time: on gloo a send waits for its receiver, and such waits are no "
            "bubbles here, which may be longer than these figures say"
        )
    return said


def table(ranks, price=None, skip=0, others=()):
    """The report's lines."""
    ranks = named(ranks)
    found = [measure(rank, skip) for rank in ranks]
    first = ranks[0]
    whole = not any(figures["trouble"] for figures in found)
    if first["stages_known"]:
        shape = f"{first['stages']} stage{'s' * (first['stages'] > 1)}, {first['replicas']} replica{'s' * (first['replicas'] > 1)}"
    else:
        shape = f"{world_of(first)} rank{'s' * (world_of(first) > 1)}"
    of_pipeline = [rank["bubbles"] or not rank.get("phases") for rank in ranks]
    counted = [figures for figures, pipeline in zip(found, of_pipeline) if pipeline and not figures["trouble"]]
    iterations = f", {counted[0]['iterations']} iterations of {iteration_ms(counted):.1f} ms" if counted else ""
    lines = [f"{first['job']}: {shape}{iterations}" + (f" ({first['framework']})" if first["framework"] else "")]
    lines += [*remarks(ranks, found, others), ""]
    memory = any(rank["usable_bytes"] for rank in ranks)
    name = "stage" if first["stages_known"] else "rank"
    if counted:
        lines.append(
            f"{name:>5} {'device':<12} {'type':<5}{'an iteration':>13}{'p10':>9}{'p50':>9}{'p90 ms':>9}{'of the time':>13}"
            + ("   memory free" if memory else "")
        )
    for rank, figures, pipeline in zip(ranks, found, of_pipeline):
        if figures["trouble"] or not pipeline:
            continue
        label = f"{rank[name]:>5} {rank['device'][:12]:<12}"
        free = f"{rank['usable_bytes'] / 2**30:>10.1f} GiB" if memory else ""
        lines.append(
            f"{label} {'all':<5}{sum(map(len, figures['kinds'].values())) / max(1, figures['iterations']):>13.1f}{'':27}"
            f"{100 * figures['share']:>11.1f} %{free}"
        )
        for kind, lengths in figures["kinds"].items():
            share = sum(lengths) / max(1e-9, figures["iterations"] * figures["iteration_ms"])
            lines.append(
                f"{'':18} {kind or '-':<5}{len(lengths) / figures['iterations']:>13.1f}{quantile(lengths, 0.1):>9.1f}"
                f"{quantile(lengths, 0.5):>9.1f}{quantile(lengths, 0.9):>9.1f}{100 * share:>11.1f} %"
            )
    idle = phase_lines(ranks, found, name)
    if not counted:
        return [*lines[:-1], "", *idle, "", *totals(ranks, found, price)] if idle and whole else [*lines[:-1], *idle]
    if idle:
        lines += ["", *idle]
    if whole:
        lines += ["", *totals(ranks, found, price)]
    lines.append(
        "types: A at the start and end of an iteration, B before the first backward, C short ones between"
        + ("; - not learned yet" if any("" in figures["kinds"] for figures in counted) else "")
    )
    return lines


def kinds_of_idle(ranks, found):
    """Where each device idles: (rank, kind, how often, mean length in ms, share of the time). The pipeline's bubbles are one kind, each name of
    a phase is another."""
    rows = []
    for rank, figures in zip(ranks, found):
        if figures["trouble"]:
            continue
        bubbles = [length for lengths in figures["kinds"].values() for length in lengths]
        if bubbles:
            rows.append((rank, "pipeline", len(bubbles), statistics.mean(bubbles), figures["share"]))
        for name, lengths in sorted(figures["phases"].items(), key=lambda one: -sum(one[1])):
            rows.append((rank, name, len(lengths), statistics.mean(lengths), figures["phase_shares"][name]))
    return rows


def printable(name, most):
    """A phase's name is the training's own."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)[:most]


def phase_lines(ranks, found, label):
    """The table of where the devices idle; [] where there is no phase."""
    if not any(figures["phases"] for figures in found):
        return []
    head = (
        f"{label:>5} {'device':<12} {'idles in':<20}{'times':>7}{'mean ms':>11}{'of the time':>13}{'hours a day':>13}"
    )
    return [
        head,
        *(
            f"{rank[label]:>5} {rank['device'][:12]:<12} {printable(kind, 19):<20}{times:>7}{mean_ms:>11.1f}{100 * share:>11.1f} %"
            f"{24 * share:>13.1f}"
            for rank, kind, times, mean_ms, share in kinds_of_idle(ranks, found)
        ),
    ]


def worth(share, ranks, price):
    if price is None:
        return f"{share * 24 * len(ranks):.1f} of {24 * len(ranks)} device hours a day"
    return f"${share * price * len(ranks):.2f} of the ${price * len(ranks):.2f} that an hour of the {len(ranks)} devices costs"


def totals(ranks, found, price):
    """What all ranks come to."""
    share, lines = statistics.mean(figures["phase_share"] for figures in found), []
    if share:
        lines.append(f"idle phases take {100 * share:.1f} % of the devices' time: {worth(share, ranks, price)}")
    return lines if all(map(phases_alone, ranks)) else [*bubble_totals(ranks, found, price), *lines]


def bubble_totals(ranks, found, price):
    share = statistics.mean(figures["share"] for figures in found)
    lines = [f"bubbles take {100 * share:.1f} % of the devices' time: {worth(share, ranks, price)}"]
    if any(map(on_gpu, ranks)):
        usable = statistics.mean(figures["usable_share"] for figures in found)
        lines.append(
            f"side tasks can use those of {GPU_LEAST_MS:.0f} ms or longer, {100 * usable:.1f} % of the time: "
            + (
                f"{usable * 24 * len(ranks):.1f} device hours a day"
                if price is None
                else f"${usable * price * len(ranks):.2f} an hour"
            )
        )
    return lines


def trace(ranks):
    """A Chrome trace: a process per stage, iterations and bubbles."""
    events = []
    for rank, start_ns in zip(ranks, origins(ranks)):
        pid = rank["rank"] + 1
        names = [("process_name", f"{name_of(rank)} on {rank['device']}")]
        names += [("thread_name", "training"), ("thread_name", "bubbles")]
        for tid, (of, name) in enumerate(names):
            events.append({"ph": "M", "name": of, "pid": pid, "tid": tid, "args": {"name": name}})
        spans = [(1, f"iteration {number}", begin, end, {}) for number, begin, end in rank["iterations"]]
        spans += [
            (2, f"bubble {kind}".strip(), begin, end, {"iteration": iteration, "wait": wait})
            for iteration, wait, kind, begin, end in rank["bubbles"]
        ]
        spans += [(2, f"phase {name}", begin, end, {}) for name, begin, end in rank.get("phases", ())]
        events += [
            {
                "ph": "X",
                "name": name,
                "pid": pid,
                "tid": tid,
                "ts": (begin - start_ns) / 1000,
                "dur": (end - begin) / 1000,
                "args": details,
            }
            for tid, name, begin, end, details in spans
            if end > begin >= start_ns
        ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def draw(path, ranks):
    """A PNG: the last iterations as they were, and how long each wait is. False where there is no matplotlib."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return False
    dark, light, accent = "#34557a", "#e3e7ec", "#f08c2e"
    shown = ranks[0]["iterations"][-PICTURE_ITERATIONS:]
    if not shown:
        return False
    zeros = origins(ranks, PICTURE_ITERATIONS)  # each lane by its own clock
    width = shown[-1][2] - zeros[0]
    figure, (line, box) = pyplot.subplots(
        2, 1, figsize=(12, 2.2 + 0.9 * len(ranks)), dpi=120, gridspec_kw={"hspace": 0.75}
    )
    for row, (rank, zero) in enumerate(zip(ranks, zeros)):
        spans = [(dark, begin, end) for _, begin, end in rank["iterations"]]
        spans += [(light, begin, end) for *_, begin, end in (*rank["bubbles"], *rank.get("phases", ()))]
        for colour, begin, end in spans:
            if end > zero and begin < zero + width:
                line.barh(row, (end - begin) / 1e6, left=(begin - zero) / 1e6, height=0.7, color=colour, linewidth=0)
    line.set_xlim(0, width / 1e6)
    line.set_title(
        f"the last {len(shown)} iterations: training dark, bubbles and phases light", fontsize=10, loc="left"
    )
    line.set_xlabel("ms")
    labels = [name_of(rank) for rank in ranks]
    waits = collections.defaultdict(list)
    for row, rank in enumerate(ranks):
        for _, wait, _, begin, end in rank["bubbles"]:
            waits[row, wait].append((end - begin) / 1e6)
    for (row, wait), lengths in waits.items():
        count = max(other for same, other in waits if same == row)
        y = row + (wait - (count + 1) / 2) * 0.8 / count
        box.plot(
            [quantile(lengths, 0.1), quantile(lengths, 0.9)], [y, y], color=dark, linewidth=2, solid_capstyle="round"
        )
        box.plot([quantile(lengths, 0.5)], [y], "o", color=accent, markersize=4)
    box.set_xlim(left=0)
    box.set_title("how long each wait of an iteration is: p10 to p90, and the median", fontsize=10, loc="left")
    box.set_xlabel("ms")
    for axes in (line, box):
        axes.set_yticks(range(len(ranks)))
        axes.set_yticklabels(labels)
        axes.set_ylim(len(ranks) - 0.45, -0.55)
        axes.tick_params(axis="y", length=0)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
    figure.savefig(path, bbox_inches="tight")
    pyplot.close(figure)
    return True


def report(folder, price=None, skip=0):
    ranks, others = load(folder)
    ranks = named(ranks)
    found = [measure(rank, skip) for rank in ranks]
    print("\n".join(["", *table(ranks, price, skip, others)]))
    with open(os.path.join(folder, "trace.json"), "w") as file:
        json.dump(trace(ranks), file)
    with open(os.path.join(folder, "bubbles.html"), "w", encoding="utf-8") as file:
        file.write(page(ranks, found, price, remarks(ranks, found, others), kinds_of_idle(ranks, found)))
    drawn = draw(os.path.join(folder, "bubbles.png"), ranks)
    print(
        f"{folder}/bubbles.html shows it in a browser, {folder}/trace.json in Perfetto; "
        + (f"{folder}/bubbles.png" if drawn else "no picture: matplotlib is not installed"),
        flush=True,
    )


def begin():
    """In the process that runs the script, when the hook is armed there: observes, as FREERIDE_OBSERVE says."""
    from ._hook import hook
    from ._processes import processes

    if hook.at_iteration_end is not None or processes.rank_above() is not None:
        return
    settings = json.loads(os.environ["FREERIDE_OBSERVE"])
    # A run folder in which no worker listens: observing gives no leases.
    os.environ["FREERIDE_RUN_DIR"] = folder = tempfile.mkdtemp(prefix="freeride-observe-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    observer = Observer(settings["out"])
    observer.price, observer.skip, observer.most = settings["price"], settings["skip"], settings["most"]
    observer.command = settings["command"]


# ---- the command -----------------------------------------------------------------------------------------------------------------


def options(arguments):
    """(options, what is left: the script and its arguments). Raises ValueError."""
    chosen = {
        "--out": os.environ.get("FREERIDE_OBSERVE_DIR", "freeride-observe"),
        "--price": None,
        "--gpu-hour-price": None,
        "--skip": "3",
        "--iterations": None,
        "--report": None,
    }
    theirs = []  # DeepSpeed's launcher puts --local_rank=0 right behind what it starts
    while arguments and arguments[0].startswith("--"):
        name, equals, value = arguments[0].partition("=")
        if name not in chosen and equals:
            theirs, arguments = [*theirs, arguments[0]], arguments[1:]
            continue
        if name not in chosen:
            raise ValueError(f"unknown option {name}")
        if not equals:
            if len(arguments) < 2:
                raise ValueError(f"{name} needs a value")
            value, arguments = arguments[1], arguments[1:]
        chosen["--price" if name == "--gpu-hour-price" else name], arguments = value, arguments[1:]
    try:
        price = None if chosen["--price"] is None else float(chosen["--price"])
        skip = int(chosen["--skip"])
        most = None if chosen["--iterations"] is None else int(chosen["--iterations"])
    except ValueError as error:
        raise ValueError("--price, --skip and --iterations need a number") from error
    if skip < 0 or (price is not None and not 0 <= price < 1e9):
        raise ValueError("--price and --skip cannot be negative")
    if most is not None and not 1 <= most <= MOST_ITERATIONS - skip:
        raise ValueError(f"--iterations takes 1 to {MOST_ITERATIONS - skip}")
    return chosen["--out"], price, skip, most, chosen["--report"], (theirs + arguments if arguments else [])


def main():
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if arguments else 2
    try:
        out, price, skip, most, earlier, rest = options(arguments)
        if earlier is not None:
            report(earlier, price, skip)
            return 0
        if not rest:
            raise ValueError("which script?")
        os.makedirs(out, exist_ok=True)
        # Of an earlier run: it must not be taken for this one's.
        rank = os.environ.get("RANK", "*")  # none yet: the script starts the ranks by itself
        for name in [f"rank{rank}.json"] + (
            ["trace.json", "bubbles.png", "bubbles.html"] if rank in ("0", "*") else []
        ):
            for path in glob.glob(os.path.join(glob.escape(out), name)):
                os.remove(path)
    except (ValueError, OSError) as error:
        print(f"freeride.observe: {error}", file=sys.stderr)
        return 2
    from freeride import run

    settings = {"out": os.path.abspath(out), "price": price, "skip": skip, "most": most, "command": rest}
    return run.start(rest, FREERIDE_OBSERVE=json.dumps(settings))


if __name__ == "__main__":
    sys.exit(main())
