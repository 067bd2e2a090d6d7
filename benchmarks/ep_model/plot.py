#!/usr/bin/env python3
"""Plots what ep_model computes, as PNG and SVG. Needs matplotlib, which nothing else here needs.

  plot.py --ep-model build/host/bin/ep_model --to DIR [--residuals FILE.csv]

Four plots come from `ep_model sweep` and `ep_model simulate`; the fifth, residuals, from the CSV of
`ep_model calibrate --csv`.
"""

import argparse
import csv
import io
import json
import pathlib
import subprocess
import sys

try:
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
except ImportError:
    sys.exit("plot.py needs matplotlib: apt-get install python3-matplotlib, or pip")

STAGES = ("pack", "command", "poll", "issue", "transfer", "wire", "arrive", "relay", "wake",
          "unpack")
PUBLISHED = "EP16 on two nodes, Qwen3-30B-A3B (hidden 2048, FP8, top-8 of 128)"


def run(program, *arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join([program, *arguments])}: {done.stderr.strip()}")
    return done.stdout


def sweep(program, *arguments):
    """Rows of `ep_model sweep` with numbers as numbers."""
    rows = list(csv.DictReader(io.StringIO(run(program, "sweep", *arguments))))
    words = ("wire", "shape", "mode", "call")
    return [{k: v if k in words else float(v) for k, v in row.items()} for row in rows]


def save(figure, folder, name):
    for kind in ("png", "svg"):
        figure.savefig(folder / f"{name}.{kind}", dpi=140, bbox_inches="tight")
    plt.close(figure)


def roofline(program, folder):
    """Time against tokens: the rooflines of issue and bytes, and where calls lie."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.4), sharey=True)
    for axis, wire in zip(axes, ("efa-proxy", "efa-gpu")):
        tokens = "1,2,4,8,16,32,64,128,256,512,1024,2048,4096"
        rows = [r for r in sweep(program, "--wire", wire, "--token-list", tokens, "--free-copies",
                                 "--shape", "all") if r["call"] == "dispatch"]
        for shape, color in (("per_row", "C0"), ("per_peer", "C1"), ("per_node", "C2"),
                             ("all_gather", "C3")):
            own = [r for r in rows if r["shape"] == shape]
            tokens = [r["tokens"] for r in own]
            axis.plot(tokens, [r["issue_roof_ns"] / 1e3 for r in own], ":", color=color, lw=1)
            axis.plot(tokens, [r["bytes_roof_ns"] / 1e3 for r in own], "--", color=color, lw=1)
            axis.plot(tokens, [r["total_ns"] / 1e3 for r in own], "o-", color=color, ms=3.5,
                      label=shape)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel("tokens per rank")
        axis.set_title(wire)
        axis.grid(alpha=0.3)
    axes[0].axvline(2, color="grey", lw=0.8)
    axes[0].annotate("published:\nT = 2", (2, 1.2e4), fontsize=8, color="grey")
    axes[0].set_ylabel("us per dispatch")
    axes[0].plot([], [], "k:", lw=1, label="messages x issue")
    axes[0].plot([], [], "k--", lw=1, label="bytes / rate")
    axes[0].legend(fontsize=8, loc="lower right")
    figure.suptitle(f"Two rooflines and the calls: {PUBLISHED}", fontsize=10)
    save(figure, folder, "roofline")


def budget(program, folder):
    """Where a dispatch's time goes."""
    rows = [r for r in sweep(program, "--wire", "all", "--token-list", "2", "--shape", "all")
            if r["call"] == "dispatch" and r["wire"] in
            ("ib-gpu", "efa-gpu", "efa-proxy", "shm-proxy")]
    names = [f"{r['wire']}, {r['shape']}" for r in rows]
    figure, axis = plt.subplots(figsize=(10, 5.6))
    left = [0.0] * len(rows)
    for i, stage in enumerate(STAGES):
        values = [r[f"{stage}_ns"] / 1e3 for r in rows]
        if max(values) == 0:
            continue
        axis.barh(names, values, left=left, label=stage, color=plt.cm.tab10(i))
        left = [a + b for a, b in zip(left, values)]
    axis.invert_yaxis()
    axis.set_xlabel("us of one dispatch, two tokens per rank, one comm")
    axis.legend(ncol=2, fontsize=8)
    axis.grid(axis="x", alpha=0.3)
    axis.set_title(f"Latency budget: {PUBLISHED}", fontsize=10)
    save(figure, folder, "budget")


def throughput(program, folder):
    """The two flat lines: tokens per second of a user, with and without the proxy's tax."""
    tokens = "1,2,3,4,6,8,12,16,24,32,48,64"
    figure, axis = plt.subplots(figsize=(8, 4.4))
    axis.axhline(1e3 / 36.3, color="C2", label="C alone: 36.3 ms a step")
    for wire, color in (("ib-gpu", "C0"), ("efa-gpu", "C4"), ("efa-proxy", "C3")):
        rows = [r for r in sweep(program, "--wire", wire, "--token-list", tokens, "--shape",
                                 "per_peer") if r["call"] == "dispatch"]
        axis.plot([r["tokens"] for r in rows], [r["tokens_per_s"] for r in rows], "o-", ms=3.5,
                  color=color, label=f"model: {wire}, per peer")
    axis.axhline(1e3 / 51.0, color="black", lw=1, label="published: C + tau = 51.0 ms")
    axis.axhspan(0.65e3 / 36.3, 0.72e3 / 36.3, color="grey", alpha=0.2,
                 label="published: measured 0.65 to 0.72 of C alone")
    axis.set_xscale("log", base=2)
    axis.set_ylim(0, 30)
    axis.set_xlabel("tokens per rank and step")
    axis.set_ylabel("tokens/s of a user")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, loc="lower left")
    axis.set_title(f"Throughput: {PUBLISHED}", fontsize=10)
    save(figure, folder, "throughput")


def scaling(program, folder):
    """A pair of calls from 8 to 1024 ranks: closed forms as lines, the simulation as points."""
    ranks = (8, 16, 32, 64, 128, 256, 512, 1024)
    common = ("--experts", "1024", "--hidden", "7168")
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.4), sharey=True)
    for axis, wire in zip(axes, ("efa-proxy", "efa-gpu")):
        rows = sweep(program, "--wire", wire, "--rank-list", ",".join(map(str, ranks)),
                     "--token-list", "16", "--shape", "all", "--free-copies", *common)
        for shape, color in (("per_row", "C0"), ("per_peer", "C1"), ("per_node", "C2"),
                             ("all_gather", "C3")):
            totals = {}
            for r in rows:
                if r["shape"] == shape:
                    totals[r["ranks"]] = totals.get(r["ranks"], 0) + r["total_ns"] / 1e3
            axis.plot(list(totals), list(totals.values()), "-", color=color, label=shape)
            points = []
            for r in ranks:
                played = json.loads(run(program, "simulate", "--json", "-", "--wire", wire,
                                        "--shape", shape, "--ranks", str(r), "--nodes",
                                        str(max(1, r // 8)), "--tokens", "16", "--free-copies",
                                        *common))
                points.append(played["total_ns"] / 1e3)
            axis.plot(ranks, points, "o", color=color, ms=4, mfc="none")
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel("ranks, eight per node")
        axis.set_title(wire)
        axis.grid(alpha=0.3)
    axes[0].plot([], [], "ko", mfc="none", ms=4, label="event simulation")
    axes[0].set_ylabel("us of a dispatch and a combine")
    axes[0].legend(fontsize=8)
    figure.suptitle("Scaling: 16 tokens per rank, hidden 7168, FP8 and bf16 back, top-8 of 1024",
                    fontsize=10)
    save(figure, folder, "scaling")


def residuals(path, folder):
    """Predicted over measured, of the sizes that were fitted and of those held out."""
    with open(path, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    figure, axis = plt.subplots(figsize=(9, 4.6))
    groups = sorted({(r["wire"], r["shape"], r["call"], r["clock"]) for r in rows})
    for i, group in enumerate(groups):
        for held, marker in (("0", "o"), ("1", "^")):
            own = [r for r in rows if (r["wire"], r["shape"], r["call"], r["clock"]) == group
                   and r["held_out"] == held]
            if not own:
                continue
            axis.plot([float(r["bytes"]) for r in own],
                      [100 * float(r["predicted_ns"]) / float(r["measured_ns"]) - 100
                       for r in own],
                      marker, color=plt.cm.tab20(i % 20), ms=5, mfc="none" if held == "0" else None,
                      label=f"{', '.join(group)}" if held == "1" else None)
    axis.axhspan(-15, 15, color="grey", alpha=0.15)
    axis.axhline(0, color="black", lw=0.8)
    axis.set_xscale("log")
    axis.set_xlabel("bytes a rank sends in the call (circles: fitted, triangles: held out)")
    axis.set_ylabel("predicted / measured - 1, per cent")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=6, ncol=2)
    axis.set_title(f"Residuals of {pathlib.Path(path).name}", fontsize=10)
    save(figure, folder, "residuals_" + pathlib.Path(path).stem)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ep-model", default="build/host/bin/ep_model", help="the program")
    parser.add_argument("--to", type=pathlib.Path, required=True, help="folder for the pictures")
    parser.add_argument("--residuals", nargs="*", default=[], help="CSV of ep_model calibrate")
    arguments = parser.parse_args()
    arguments.to.mkdir(parents=True, exist_ok=True)
    for plot in (roofline, budget, throughput, scaling):
        plot(arguments.ep_model, arguments.to)
    for path in arguments.residuals:
        residuals(path, arguments.to)
    return 0


if __name__ == "__main__":
    sys.exit(main())
