"""Reproduce Figures 7 to 10 and 12 of the paper in simulation, and write them into docs/results.md.

    python benchmarks/paper_figures.py [--batches 3] [--docs docs]

Nothing runs on a device: policies are replayed by the contract's simulator, other systems estimated by the cost models
of ``infinipipe_planner.baselines``, all under the same analytic profiles of the paper's cluster (4 nodes of 8 A800).
The paper's batches are not public; these are drawn from log-normal fits to its length distributions. Tables replace
what stands between the markers ``<!-- NAME -->`` and ``<!-- end -->``; pictures go to ``docs/images``. Takes about five
minutes on two cores.
"""

import argparse
import dataclasses
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from infinipipe_contract.model_memory import DecoderShape
from infinipipe_contract.profile import Profile, derive_node_links
from infinipipe_planner.analytic.profile import Hardware, build_profile
from infinipipe_planner.baselines.breakdown import Breakdown
from infinipipe_planner.baselines.comparison import Outcome, run_method
from infinipipe_planner.baselines.errors import BaselineDoesNotFitError
from infinipipe_planner.baselines.megatron import estimate_megatron
from infinipipe_planner.baselines.ulysses import estimate_ulysses
from infinipipe_planner.cli.plot import draw_breakdowns
from infinipipe_planner.options import PlanOptions
from infinipipe_planner.solve import solve_plan

VOCAB = 128_256
SHAPES = {
    "7B": DecoderShape(layers=32, hidden=4096, heads=32, kv_heads=32, head_dim=128, ffn=11008, vocab=VOCAB),
    "13B": DecoderShape(layers=40, hidden=5120, heads=40, kv_heads=40, head_dim=128, ffn=13824, vocab=VOCAB),
    # LLaMA's 52 heads of 128 do not divide among 8 devices.
    "30B": DecoderShape(layers=60, hidden=6656, heads=64, kv_heads=64, head_dim=104, ffn=17920, vocab=VOCAB),
}
FITS = {"commoncrawl": (6.59, 1.28), "github": (6.60, 1.75)}
"""Log-normal fits to the lengths in tokens: mean and deviation of the logarithm."""

K = 1024
# What the paper fixes for its baselines (V-A).
DEEPSPEED_SP = {"7B": 16, "13B": 32, "30B": 32}
MEGATRON_CP = {"7B": 2, "13B": 4, "30B": 4}
MEGATRON_RECOMPUTE = {"7B": 10, "13B": 20, "30B": 55}
METHODS = ("search", "paper", "seq1f1b", "flexsp", "ulysses", "megatron", "megatron, tuned")
CLAIMS = {
    "paper": "-",
    "seq1f1b": "up to 1.27x at 48K, 1.40x at 96K",
    "flexsp": "1.31x to 1.69x on CommonCrawl at 48K, up to 1.69x",
    "ulysses": "up to 2.07x",
    "megatron": "up to 2.60x",
    "megatron, tuned": "-",
}
"""What the paper reports (V-B), by method."""
ABLATIONS = ("search", "paper", "no-balance", "no-recompute", "full-recompute")


def paper_profile(model: str, pp_size: int = 4, memory_bytes: float | None = None) -> Profile:
    """Build the profile of a model on nodes of eight A800, one stage a node."""
    profile = build_profile(SHAPES[model], Hardware("a800", pp_size, 8), pp_size, 8, model_name=model)
    if memory_bytes is None:
        return profile
    cluster = dataclasses.replace(profile.cluster, device_memory_bytes=memory_bytes)
    return dataclasses.replace(profile, cluster=cluster)


def draw_lengths(dataset: str, context_tokens: int, count: int, seed: int) -> list[int]:
    """Draw a batch, cut at the context, one sequence of full context among it; equal arguments give equal lengths."""
    generator = random.Random(f"{dataset}-{count}-{seed}")
    mu, sigma = FITS[dataset]
    drawn = [max(1, min(context_tokens, round(generator.lognormvariate(mu, sigma)))) for _ in range(count - 1)]
    return [context_tokens, *drawn]


def run(method: str, lengths: Sequence[int], profile: Profile, model: str) -> Outcome:
    """Run a method with the paper's settings for it."""
    try:
        if method == "ulysses":
            return Outcome(method, estimate_ulysses(lengths, profile, DEEPSPEED_SP[model]))
        if method == "megatron":
            cp_size, layers = MEGATRON_CP[model], MEGATRON_RECOMPUTE[model]
            return Outcome(method, estimate_megatron(lengths, profile, cp_size, layers))
    except BaselineDoesNotFitError as error:
        return Outcome(method, shortage=str(error))
    return run_method(method.partition(",")[0], lengths, profile)


def mean_breakdown(method: str, model: str, profile: Profile, batches: Sequence[Sequence[int]]) -> Breakdown | None:
    """Average a method over batches; None if one does not fit."""
    parts = [run(method, lengths, profile, model).breakdown for lengths in batches]
    fitting = [one for one in parts if one is not None]
    if len(fitting) < len(parts):
        return None
    numbers = {
        field.name: statistics.fmean(getattr(one, field.name) for one in fitting)
        for field in dataclasses.fields(Breakdown)
        if field.name != "configuration"
    }
    return Breakdown(**numbers, configuration=fitting[0].configuration)


def compare(
    methods: Sequence[str], model: str, dataset: str, context: int, batch_count: int, sequences: int = 512
) -> dict[str, Breakdown | None]:
    """Average every method over the batches of one setting."""
    profile = paper_profile(model)
    batches = [draw_lengths(dataset, context, sequences, seed) for seed in range(batch_count)]
    return {method: mean_breakdown(method, model, profile, batches) for method in methods}


def ratio(other: Breakdown | None, ours: Breakdown | None) -> str:
    """Write how many times longer another method takes."""
    return f"{other.total_s / ours.total_s:.2f}x" if other and ours else "does not fit"


def expose(parts: Breakdown | None) -> Breakdown | None:
    """Make a method wait for all of ZeRO-3's communication."""
    if parts is None:
        return None
    return dataclasses.replace(parts, zero_s=parts.zero_s + parts.hidden_zero_s, hidden_zero_s=0.0)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table; the first column stands left."""
    lines = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def figure_7(batch_count: int, images: Path) -> str:
    """Time of an iteration by model, context and dataset."""
    rows, speedups = [], dict[str, list[float]]()
    for dataset in FITS:
        for context in (48 * K, 96 * K):
            for model in SHAPES:
                found = compare(METHODS, model, dataset, context, batch_count)
                ours = found["search"]
                others = [found[method] for method in METHODS[1:]]
                name = f"{model} {dataset} {context // K}K"
                # In brackets: if nothing of ZeRO-3 were hidden, on either side.
                exposed = {m: f" ({ratio(expose(found[m]), expose(ours))})" for m in ("flexsp", "ulysses")}
                cells = (ratio(found[method], ours) + exposed.get(method, "") for method in METHODS[1:])
                rows.append((name, f"{ours.total_s:.2f}" if ours else "-", *cells))
                speedups[name] = [o.total_s / ours.total_s if o and ours else 0.0 for o in others]
                print("\t".join(rows[-1]), flush=True)
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.add_subplot()
    for index, method in enumerate(METHODS[1:]):
        places = [place + 0.13 * index for place in range(len(speedups))]
        axes.bar(places, [of_setting[index] for of_setting in speedups.values()], width=0.13, label=method)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(
        [place + 0.33 for place in range(len(speedups))], list(speedups), rotation=30, ha="right", fontsize=8
    )
    axes.set_ylabel("times as long as search")
    figure.legend(fontsize="small", ncols=6, loc="outside upper center")
    figure.savefig(images / "figure-7.png", dpi=80)
    claims = []
    for index, (method, claim) in enumerate(CLAIMS.items()):
        of_method = [ratios[index] for ratios in speedups.values() if ratios[index] > 0]
        claims.append((method, claim, f"{min(of_method):.2f}x to {max(of_method):.2f}x" if of_method else "-"))
    summary = table(("speed-up over", "the paper's InfiniPipe", "search, all settings"), claims)
    return f"{summary}\n\n{table(('setting', 'search s', *METHODS[1:]), rows)}"


def figure_8(batch_count: int, images: Path) -> str:
    """Where the time goes for the 13B model."""
    found = compare(METHODS, "13B", "github", 96 * K, batch_count)
    fitting = {method: parts for method, parts in found.items() if parts is not None}
    draw_breakdowns(list(fitting.items()), "13B, GitHub, 96K, 512 sequences", images / "figure-8.png")
    rows = [
        (
            method,
            f"{parts.total_s:.2f}",
            f"{parts.work_s + parts.fixed_s + parts.recompute_s:.2f}",
            f"{parts.exchange_s:.2f}",
            f"{parts.zero_s:.2f}",
            f"{parts.hidden_zero_s:.2f}",
            f"{parts.idle_s:.2f}",
            f"{parts.idle_s / parts.total_s:.1%}",
            parts.configuration,
        )
        for method, parts in fitting.items()
    ]
    header = ("method", "total s", "compute s", "exchange s", "ZeRO s", "ZeRO hidden s", "idle s", "idle", "chose")
    return table(header, rows)


def links(batch_count: int, images: Path) -> str:
    """Speed-ups for the 13B model if nodes had more than the one network link that the paper states."""
    del images
    batches = [draw_lengths("github", 96 * K, 512, seed) for seed in range(batch_count)]
    rows = []
    for link_count in (1, 2, 4, 8):
        profile = paper_profile("13B")
        nodes = derive_node_links(profile)
        nodes = dataclasses.replace(nodes, inter_node_bytes_per_s=link_count * nodes.inter_node_bytes_per_s)
        p2p = dataclasses.replace(profile.p2p, bandwidth_bytes_per_s=link_count * profile.p2p.bandwidth_bytes_per_s)
        profile = dataclasses.replace(profile, nodes=nodes, p2p=p2p)
        ours, *others = (mean_breakdown(method, "13B", profile, batches) for method in METHODS)
        rows.append(
            (str(link_count), f"{ours.total_s:.2f}" if ours else "-", *(ratio(other, ours) for other in others))
        )
        print("\t".join(rows[-1]), flush=True)
    return table(("links a node", "search s", *METHODS[1:]), rows)


def figure_9(batch_count: int, images: Path) -> str:
    """Throughput of the 13B model over context length and batch size."""
    methods = METHODS[:-1]
    settings = [(context * K, 512) for context in (64, 128, 192)] + [(64 * K, count) for count in (128, 256)]
    rows, points = [], dict[tuple[int, int], dict[str, float]]()
    for context, count in settings:
        found = compare(methods, "13B", "github", context, batch_count, count)
        tokens = statistics.fmean(sum(draw_lengths("github", context, count, seed)) for seed in range(batch_count))
        points[context, count] = {m: tokens / parts.total_s / 1e3 if parts else 0.0 for m, parts in found.items()}
        cells = (f"{value:.1f}" if value else "does not fit" for value in points[context, count].values())
        rows.append((f"{context // K}K, {count} sequences", *cells))
        print("\t".join(rows[-1]), flush=True)
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    by_context, by_count = figure.subplots(1, 2, sharey=True)
    for method in methods:
        contexts = [key for key in points if key[1] == 512]
        counts = sorted(key for key in points if key[0] == 64 * K)
        by_context.plot([c // K for c, _ in contexts], [points[key][method] for key in contexts], "o-", label=method)
        by_count.plot([n for _, n in counts], [points[key][method] for key in counts], "o-", label=method)
    by_context.set_xlabel("context, thousand tokens (512 sequences)")
    by_context.set_ylabel("thousand tokens a second")
    by_count.set_xlabel("sequences a batch (context 64K)")
    by_context.set_ylim(bottom=0)
    by_count.legend(fontsize="small", ncols=2)
    figure.savefig(images / "figure-9.png", dpi=80)
    return table(("thousand tokens/s", *methods), rows)


def figure_10(batch_count: int, images: Path) -> str:
    """Ablations of the 13B model at a context of 64K, relative to FlexSP."""
    rows, bars = [], dict[int, list[tuple[float, float]]]()
    for count in (128, 256, 512):
        found = compare((*ABLATIONS, "flexsp"), "13B", "github", 64 * K, batch_count, count)
        flexsp = found["flexsp"]
        cells, bars[count] = [], []
        for method in ABLATIONS:
            parts = found[method]
            if parts is None or flexsp is None:
                cells.append("does not fit")
                bars[count].append((0.0, 0.0))
                continue
            idle_ratio = parts.idle_s / parts.total_s
            cells.append(f"{parts.total_s / flexsp.total_s:.2f} ({idle_ratio:.1%})")
            bars[count].append((parts.total_s / flexsp.total_s, idle_ratio))
        rows.append((str(count), *cells))
        print("\t".join(rows[-1]), flush=True)
    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.add_subplot()
    for index, method in enumerate(ABLATIONS):
        places = [place + 0.16 * index for place in range(len(bars))]
        times = [of_count[index][0] for of_count in bars.values()]
        idle = [of_count[index][0] * of_count[index][1] for of_count in bars.values()]
        drawn = axes.bar(places, times, width=0.15, label=method)
        axes.bar(places, idle, width=0.15, bottom=[t - i for t, i in zip(times, idle, strict=True)], color="white",
                 hatch="///", edgecolor=drawn.patches[0].get_facecolor())  # fmt: skip
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks([place + 0.32 for place in range(len(bars))], [f"{count} sequences" for count in bars])
    axes.set_ylabel("time relative to flexsp\n(hatched: idle)")
    figure.legend(fontsize="small", ncols=5, loc="outside upper center")
    figure.savefig(images / "figure-10.png", dpi=80)
    return table(("sequences", *ABLATIONS), rows)


def figure_12(batch_count: int, images: Path) -> str:
    """Time to plan beside the time of an iteration, over cluster size, memory and stages."""
    del batch_count  # one batch: times to plan vary with the machine more than with the batch
    rows, bars = [], dict[str, tuple[float, float]]()
    for pp_size, memory_bytes in ((4, 80e9), (4, 40e9), (8, 80e9), (8, 40e9), (20, 80e9)):
        profile = paper_profile("13B", pp_size, memory_bytes)
        lengths = draw_lengths("github", 64 * K, 128 * pp_size, 0)
        cells = []
        for policy in ("search", "paper"):
            started_s = time.perf_counter()
            plan = solve_plan(lengths, profile, PlanOptions(policy=policy))
            solve_s = time.perf_counter() - started_s
            cells += [f"{plan.estimate.makespan_s:.1f}", f"{solve_s:.1f}", f"{solve_s / pp_size:.2f}"]
            if policy == "search":
                bars[f"{8 * pp_size} devices\n{memory_bytes / 1e9:.0f} GB"] = plan.estimate.makespan_s, solve_s
        rows.append((f"{8 * pp_size} devices, pp {pp_size}, {memory_bytes / 1e9:.0f} GB", str(len(lengths)), *cells))
        print("\t".join(rows[-1]), flush=True)
    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.add_subplot()
    axes.bar([x - 0.2 for x in range(len(bars))], [step_s for step_s, _ in bars.values()], 0.4, label="iteration")
    axes.bar([x + 0.2 for x in range(len(bars))], [solve_s for _, solve_s in bars.values()], 0.4, label="planning")
    axes.set_xticks(range(len(bars)), list(bars), fontsize="small")
    axes.set_ylabel("seconds (search)")
    axes.legend()
    figure.savefig(images / "figure-12.png", dpi=80)
    each = ("iteration s", "plan s", "a node")
    return table(("cluster", "sequences", *(f"{p}: {what}" for p in ("search", "paper") for what in each)), rows)


FIGURES: Mapping[str, Callable[[int, Path], str]] = {
    "figure 7": figure_7,
    "figure 8": figure_8,
    "links": links,
    "figure 9": figure_9,
    "figure 10": figure_10,
    "figure 12": figure_12,
}


def main() -> None:
    """Compute all figures and write them into the page."""
    parser = argparse.ArgumentParser(description="Reproduce the paper's figures in simulation.")
    parser.add_argument("--batches", type=int, default=3, help="batches to average over")
    parser.add_argument("--docs", type=Path, default=Path(__file__).parents[1] / "docs", help="folder of results.md")
    arguments = parser.parse_args()
    page, images = arguments.docs / "results.md", arguments.docs / "images"
    images.mkdir(exist_ok=True)
    for name, build in FIGURES.items():
        started_s = time.perf_counter()
        text = build(arguments.batches, images)
        print(f"{name}: {time.perf_counter() - started_s:.0f} s\n{text}\n", flush=True)
        page.write_text(replace_table(page.read_text(), name, text))


def replace_table(page: str, name: str, text: str) -> str:
    """Put a table between its markers; ValueError where they do not stand in the page exactly once."""
    begin, end = f"<!-- {name} -->\n", "<!-- end -->"
    if page.count(begin) != 1:
        raise ValueError(f"the page has {page.count(begin)} places for {name}, it needs 1")
    before, _, rest = page.partition(begin)
    return f"{before}{begin}{text}\n{end}{rest.partition(end)[2]}"


if __name__ == "__main__":
    main()
