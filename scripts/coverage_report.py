#!/usr/bin/env python3
"""Line coverage of rooms from gcov's counts: prints each file, fails below the share asked for.

usage: coverage_report.py BUILD_DIR TITLE PERCENT ROOM...
"""

import collections
import gzip
import json
import pathlib
import subprocess
import sys
import tempfile


def count_lines(build, rooms):
    """{file: {line: times it ran}} of the rooms' sources and headers, over all that gcov knows."""
    root = pathlib.Path.cwd()
    counts = collections.defaultdict(lambda: collections.defaultdict(int))
    with tempfile.TemporaryDirectory() as folder:
        for data in sorted(build.rglob("*.gcda")):
            subprocess.run(
                ["gcov", "--json-format", str(data)], cwd=folder, check=True, stdout=subprocess.DEVNULL
            )
            for report in pathlib.Path(folder).glob("*.gcov.json.gz"):
                with gzip.open(report) as stream:
                    document = json.load(stream)
                report.unlink()
                for entry in document["files"]:
                    path = pathlib.Path(document["current_working_directory"], entry["file"])
                    path = path.resolve()
                    if not path.is_relative_to(root):
                        continue
                    name = str(path.relative_to(root))
                    if not any(name.startswith(room + "/") for room in rooms):
                        continue
                    for line in entry["lines"]:
                        counts[name][line["line_number"]] += line["count"]
    return counts


def main():
    build, title, percent = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2], float(sys.argv[3])
    rooms = sys.argv[4:]
    counts = count_lines(build, rooms)
    bad = False
    for room in rooms:
        total = ran = 0
        for name in sorted(counts):
            if not name.startswith(room + "/"):
                continue
            lines = counts[name]
            missed = [number for number in sorted(lines) if lines[number] == 0]
            total += len(lines)
            ran += len(lines) - len(missed)
            if missed:
                print(f"  {name}: {len(lines) - len(missed)} of {len(lines)} lines; not", *missed)
        if total == 0:
            sys.exit(f"coverage: no line of {room} was counted")
        share = 100 * ran / total
        print(f"{title}: {share:.1f} % of {total} lines of {room}; at least {percent:.0f} % asked for")
        bad = bad or share < percent
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
