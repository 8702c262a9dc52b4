#!/usr/bin/env python3
"""Tables from the figures that scripts/bench measured; with --write also docs/performance.md.

usage: bench_table.py FOLDER [--quick | --write]
"""

import json
import math
import pathlib
import platform
import re
import subprocess
import sys

KINDS = ["swa", "hca", "csa"]
CONTEXTS = [2**i for i in range(10, 21)]

# What is asked of a row, and what the best public CPU engine reached on two Zen 3 cores (best of
# many runs, some of them inexact: sinks dropped, V summed in half precision, 99.2 % of a selection).
ROWS = [
    # (title, benchmark, target, best public engine)
    ("HCA attention, 8,192 + 128 rows, 1 token", "attention/hca_8192/tokens:1", 0.80, "14.2 ms"),
    ("the same, 8 tokens of a request", "attention/hca_8192/tokens:8", 0.80, "75 ms"),
    ("CSA attention, 640 of 262,144 rows, 1 token", "attention/csa_640_of_262144/tokens:1", 0.70, "1.0 ms"),
    ("the same, 8 tokens", "attention/csa_640_of_262144/tokens:8", 0.70, "9.3 ms"),
    ("SWA attention, 128 rows, 1 token", "attention/swa_128/tokens:1", 0.70, "0.16 ms"),
    ("the same, 8 tokens", "attention/swa_128/tokens:8", 0.70, "1.15 ms"),
    ("indexer, 262,144 candidates, 1 query", "index/select/candidates:262144/queries:1", 0.75, "42 ms"),
    ("the same, 8 queries", "index/select/candidates:262144/queries:8", 0.75, "180 ms"),
    ("indexer, 32,768 candidates, 1 query", "index/select/candidates:32768/queries:1", 0.65, "5.0 ms"),
    ("indexer, 4,096 candidates, 1 query", "index/select/candidates:4096/queries:1", 0.65, "0.60 ms"),
]
PRODUCTS = [
    ("bf16", "4096to1024", 0.80, "0.50–0.64"),
    ("bf16", "4096to4096", 0.80, "0.50–0.64"),
    ("int8", "1024to32768", 0.75, "0.35–0.55"),
    ("int8", "8192to4096", 0.75, "0.35–0.55"),
]
for kind, shape, target, best in PRODUCTS:
    title = f"{kind} product {shape.replace('to', ' → ')}"
    for rows, wanted, other in ((1, 0.85, "0.6–0.9"), (8, 0.80, "1/3–1/2"), (64, target, best), (512, target, best)):
        ROWS.append((f"{title}, {rows} row{'s' if rows > 1 else ''}", f"matmul/{kind}/{shape}/rows:{rows}", wanted, other))


def load(path):
    document = json.loads(path.read_text())
    benches = {}
    for bench in document["benchmarks"]:
        benches[re.sub(r"/(min_time|manual_time|iterations|real_time).*", "", bench["name"])] = bench
    return document["context"], benches


def microseconds(value):
    if value >= 1000:
        return f"{value / 1000:,.2f} ms"
    return f"{value:,.1f} µs"


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def fractions(benches):
    rows = []
    for title, name, target, best in ROWS:
        if name not in benches:
            continue
        bench = benches[name]
        rows.append([title, microseconds(bench["median_us"]), bench.get("label", ""),
                     f"{bench['of_limit']:.2f}", f"{bench['of_limit_cpu']:.2f}", f"{target:.2f}", best])
    return table(["path", "median", "limit", "of limit", "by processor time", "target", "best public engine"], rows)


def other_rows(benches, threads):
    rows = []
    for tokens in (1, 8, 64):
        for title, name in (("hc_pre, weights cached", "hc/pre"), ("hc_pre, weights from memory", "hc/pre_cold"),
                            ("hc_post", "hc/post")):
            bench = benches[f"{name}/tokens:{tokens}"]
            value = bench.get("median_us", bench["real_time"])
            share = f"{bench['of_limit_cpu']:.2f} of {bench['label']}" if "of_limit_cpu" in bench else ""
            wanted = {"hc/pre_cold": "0.85"}.get(name, "15 µs") if tokens == 1 else ""
            rows.append([f"{title}, {tokens} token{'s' if tokens > 1 else ''}", microseconds(value), share, wanted])
    leaf = benches["index/leaf/k:512"]["real_time"]
    scored = benches["index/select/candidates:262144/queries:1"]["median_us"] * threads / 128
    rows.append(["Top-512 of a leaf of 2,048 scores, and its merge", microseconds(leaf),
                 f"{100 * leaf / scored:.1f} % of the indexer", "10 %"])
    for kind in KINDS:
        for step, title, wanted in (("64_of_16K_x8", "64 × 8 at 16K", "2 ms"), ("64_of_1M_x8", "64 × 8 at 1M", "15 ms"),
                                    ("64_of_1M_x8_shuffled", "the same, pages in random order", "15 ms")):
            value = benches[f"plan/{kind}/{step}"]["median_us"]
            layer = benches.get(f"layer/{kind}/{step}")
            share = f"{100 * value / layer['median_us']:.2f} % of one layer's step" if layer else ""
            rows.append([f"plan, {kind}, {title}", microseconds(value), share, wanted + (", 1 %" if layer else "")])
    return table(["what", "median", "share", "at most"], rows)


def emptied(benches):
    rows = []
    for title, name, _, _ in ROWS:
        if name.startswith("attention/"):
            bench = benches[name]
            rows.append([title, microseconds(bench["median_us"]), microseconds(bench["emptied_us"])])
    return table(["path", "median", "with empty caches"], rows)


def layers(benches):
    rows = []
    for kind in KINDS:
        for step in ("mixed_x8", "million_x1", "64_of_1K_x8", "64_of_16K_x8", "64_of_128K_x8"):
            name = f"layer/{kind}/{step}"
            if name not in benches:
                continue
            bench = benches[name]
            regions = sorted(((bench[key], key[3:]) for key in bench if key.startswith("us ")), reverse=True)
            total = sum(value for value, _ in regions)
            parts = ", ".join(f"{region} {100 * value / total:.0f} %" for value, region in regions[:6])
            rows.append([name[6:], microseconds(bench["median_us"]), f"{bench['tokens/s']:,.0f}",
                         f"{bench['resident_MiB']:,.0f} MiB", f"{100 * bench['outside']:.1f} %", parts])
    return table(["layer and step", "median", "tokens/s", "resident", "outside its regions", "largest regions"], rows)


def contexts(benches, one):
    header = ["context"]
    for kind in KINDS:
        header += [f"{kind}", "1 thread", "resident"]
    rows, times = [], {kind: [] for kind in KINDS}
    for context in CONTEXTS:
        row = [f"{context:,}"]
        for kind in KINDS:
            name = f"layer/{kind}/context_{context}"
            times[kind].append(benches[name]["median_us"])
            row += [microseconds(benches[name]["median_us"]), microseconds(one[name]["median_us"]),
                    f"{benches[name]['resident_MiB']:,.1f} MiB"]
        rows.append(row)
    return table(header, rows), times


def plot(times):
    """A log-log plot as SVG: context across, microseconds up."""
    width, height, left, bottom, right, top = 760, 420, 70, 50, 90, 20
    low = math.floor(math.log10(min(min(t) for t in times.values())))
    high = math.ceil(math.log10(max(max(t) for t in times.values())))
    def x(context):
        return left + (math.log2(context) - 10) / 10 * (width - left - right)
    def y(value):
        return height - bottom - (math.log10(value) - low) / (high - low) * (height - bottom - top)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/>']
    for context in CONTEXTS:
        name = f"{context // 1024}K" if context < 2**20 else "1M"
        parts.append(f'<line x1="{x(context):.1f}" y1="{top}" x2="{x(context):.1f}" y2="{height - bottom}" stroke="#ddd"/>')
        parts.append(f'<text x="{x(context):.1f}" y="{height - bottom + 18}" text-anchor="middle">{name}</text>')
    for power in range(low, high + 1):
        name = {3: "1 ms", 4: "10 ms", 5: "100 ms", 6: "1 s"}.get(power, f"{10**power} µs")
        parts.append(f'<line x1="{left}" y1="{y(10**power):.1f}" x2="{width - right}" y2="{y(10**power):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y(10**power) + 4:.1f}" text-anchor="end">{name}</text>')
    for kind, color in zip(KINDS, ("#1b6ca8", "#c2571a", "#2a7f3f")):
        points = " ".join(f"{x(c):.1f},{y(t):.1f}" for c, t in zip(CONTEXTS, times[kind]))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<text x="{width - right + 8}" y="{y(times[kind][-1]) + 4:.1f}" fill="{color}">{kind.upper()}</text>')
    parts.append(f'<text x="{(left + width - right) / 2}" y="{height - 12}" text-anchor="middle">context, tokens</text></svg>')
    return "\n".join(parts) + "\n"


def fits(times):
    """Least-squares time = fixed + slope * pieces, and how far the points lie off at most."""
    rows = []
    for kind, piece_tokens, name in (("hca", 128 * 128, "shard"), ("csa", 4 * 2048, "leaf")):
        pieces = [context / piece_tokens for context in CONTEXTS]
        n, sx, sy = len(pieces), sum(pieces), sum(times[kind])
        sxx = sum(p * p for p in pieces)
        sxy = sum(p * t for p, t in zip(pieces, times[kind]))
        slope = (n * sxy - sx * sy) / (n * sxx - sx * sx)
        fixed = (sy - slope * sx) / n
        worst = max(abs(t - fixed - slope * p) / t for p, t in zip(pieces, times[kind]))
        rows.append([kind.upper(), microseconds(fixed), f"{microseconds(slope)} a {name}", f"{100 * worst:.0f} %"])
    spread = max(times["swa"]) / min(times["swa"]) - 1
    rows.insert(0, ["SWA", microseconds(sum(times["swa"]) / len(CONTEXTS)), "none", f"{100 * spread:.0f} %"])
    return table(["kind", "fixed part", "grows by", "points off by at most"], rows)


def stacks(folder):
    rows = []
    for path in sorted(folder.glob("stack-*.json")):
        stack = json.loads(path.read_text())
        kinds = ", ".join(f"{k['kind']} {k['run_ms'] + k['commit_ms']:,.0f} ms in {k['num_layers']} layers" for k in stack["kinds"])
        rows.append([str(stack["threads"]), f"{stack['tokens_per_second']:.2f}", kinds,
                     f"{stack['cache_bytes'] / 2**30:.2f} GiB", f"{stack['peak_memory_bytes'] / 2**30:.2f} GiB", stack["checksum"]])
    return table(["threads", "tokens/s", "time by kind", "caches", "peak memory", "checksum"], rows)


def machine(context):
    cpu = ""
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    memory = int(re.search(r"MemTotal:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text()).group(1)) / 2**20
    caches = ", ".join(f"L{c['level']} {c['type'].lower()} {c['size'] // 1024} KiB" for c in context["caches"])
    compiler = subprocess.run(["c++", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    return (f"{cpu or platform.machine()}, {context['num_cpus']} logical cores; {caches}; {memory:.0f} GiB of memory; "
            f"SIMD target {context['simd_target']}; {compiler}; measured {context['date'][:10]}")


def main():
    folder, mode = pathlib.Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
    context, benches = load(folder / "all.json")
    threads = int(context["threads"])
    print(machine(context), fractions(benches), emptied(benches), other_rows(benches, threads), layers(benches), sep="\n\n")
    if mode == "--quick":
        return
    _, one = load(folder / "one.json")
    context_table, times = contexts(benches, one)
    print("", fractions(one), layers(one), context_table, fits(times), stacks(folder), sep="\n\n")
    if mode != "--write":
        return
    notes = pathlib.Path("docs/performance_notes.md").read_text()
    text = f"""# Performance

Written by `scripts/bench --write`; the notes at its end are `performance_notes.md`.

Machine: {machine(context)}.

Every row is a median. The limits (multiply-adds in registers, 16-bit multiply-adds, bandwidth of reads
from memory) are measured next to the kernel, in pairs, with as many threads; `of limit` is the median
of the pairs' ratios by the clock, and `by processor time` the same by what the threads were given of
their cores, which is what remains comparable while other programs run. Data is random and larger than
the caches where real data is. The last column was reached on another machine of two cores.

## Hot paths, {threads} threads

{fractions(benches)}

Measuring the limits empties the caches. Attention is called once before it is timed, so that its
scratch and queries are where the stages before it leave them; its rows come from memory either way.
That first call's median:

{emptied(benches)}

## Hot paths, 1 thread

{fractions(one)}

## Small parts, and plans

{other_rows(benches, threads)}

## Layers

`mixed_x8` is four requests of 16K, 16K, 128K and 512K tokens with 8 new ones each, `million_x1` one
request with the last token of a million, `64_of_1K_x8` 64 requests of 1K tokens with 8 new ones each.
Resident is what the step adds to the process: pages, plan, workspace, overlay, input and output, all
but the weights.

{threads} threads:

{layers(benches)}

1 thread:

{layers(one)}

## Time and memory by context

One layer, one request, one token; {threads} threads and 1.

![Time of a layer by context](performance.svg)

{context_table}

Of the times on {threads} threads:

{fits(times)}

## All 43 layers, one token behind 1,048,568

{stacks(folder)}

{notes}"""
    pathlib.Path("docs/performance.md").write_text(text)
    pathlib.Path("docs/performance.svg").write_text(plot(times))


if __name__ == "__main__":
    main()
