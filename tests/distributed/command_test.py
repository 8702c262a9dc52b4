"""millipede decode --tp under mpirun: what it prints, and how it ends."""

import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(os.environ["MILLIPEDE_SOURCE_DIR"])
COMMAND = os.environ["MILLIPEDE_COMMAND"]
MPIEXEC = os.environ["MPIEXEC"]
TIMEOUT = 100  # seconds; a hang

MIXED = "16384,16384,131072,524288"


def words(arguments):
    """The decode command with these arguments, one string."""
    return [COMMAND, "decode", *arguments.split()]


def run(command):
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)


def run_ranks(ranks, arguments):
    return run([MPIEXEC, "-n", str(ranks), *words(arguments)])


def keys_of(value):
    """Every key of every object in a JSON value."""
    if isinstance(value, dict):
        return set(value).union(*(keys_of(inner) for inner in value.values()))
    if isinstance(value, list):
        return set().union(*(keys_of(inner) for inner in value))
    return set()


class DecodeTest(unittest.TestCase):
    def json_of(self, ranks, arguments):
        done = run_ranks(ranks, arguments + " --json -")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return json.loads(done.stdout)  # nothing but JSON, once

    def assert_checked(self, ranks, arguments):
        """Golden, caches, and the bits of one process."""
        result = self.json_of(ranks, f"--tp {ranks} --check --threads 1 {arguments}")
        self.assertTrue(result["check"]["ok"])
        rules = {(rule["tensor"], rule["rule"]): rule for rule in result["check"]["rules"]}
        for tensor in ("heads", "attn_out", "x_out"):
            self.assertEqual(rules[tensor, "bit-equal to TP 1"]["judged"], result["total"]["tokens"])
        pools = {"swa": ["raw rows"], "hca": ["raw rows", "main rows", "state rows"]}
        pools["csa"] = pools["hca"] + ["index rows", "index scales", "inner rows"]
        for pool in pools[result["attention"]]:
            for moment in ("run", "commit"):
                rule = rules[pool, f"bit-equal to TP 1 after {moment}"]
                self.assertGreater(rule["judged"], 0)
        return result


class TinyTest(DecodeTest):
    def test_four_ranks_with_uneven_requests(self):
        for kind in ("swa", "hca", "csa"):
            for start in ("5,300,2051,8188,127,16380", "4000"):
                result = self.assert_checked(
                    4, f"--preset tiny --attention {kind} --start-pos {start} --seq 9"
                )
                self.assertEqual(len(result["ranks"]), 4)

    def test_requests_are_dealt_by_turns(self):
        arguments = "--preset tiny --attention csa --start-pos 5,300,2051,8188,127 --seq 9"
        result = self.json_of(4, f"--tp 4 {arguments}")
        dealt = [rank["request_ids"] for rank in result["ranks"]]
        self.assertEqual(dealt, [[0, 4], [1], [2], [3]])
        self.assertEqual([rank["tokens"] for rank in result["ranks"]], [18, 9, 9, 9])
        alone = json.loads(run([*words(arguments), "--json", "-"]).stdout)
        self.assertEqual(result["requests"], alone["requests"])
        self.assertEqual(result["total"], alone["total"])
        documented = (ROOT / "docs" / "command.md").read_text()
        documented = {quoted.split()[0] for quoted in re.findall(r"`([^`\n]+)`", documented)}
        self.assertEqual(keys_of(result) - documented, set())

    def test_output_half(self):
        for batch in (1, 7):
            arguments = f"--preset tiny --output-only --batch {batch} --seq 70 --tp 4 --check"
            result = self.json_of(4, arguments)
            self.assertTrue(result["check"]["ok"])
            regions = {region["name"] for region in result["regions"]}
            self.assertLess({"exchange heads", "output product", "exchange partials"}, regions)
            self.assertNotIn("attention", regions)

    def test_trace_has_a_track_group_per_rank(self):
        for kind, per_query in (("hca", ("shards",)), ("csa", ("leaves", "merges"))):
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "trace.json"
                result = self.json_of(
                    2,
                    f"--tp 2 --preset tiny --attention {kind} --start-pos 16380,300,8190 --seq 5"
                    f" --threads 2 --trace {path}",
                )
                trace = json.loads(path.read_text())
            self.assertEqual(trace["otherData"]["dropped_events"], 0)
            events = trace["traceEvents"]
            names = {
                event["pid"]: event["args"]["name"]
                for event in events
                if event["name"] == "process_name"
            }
            ranks = {1: "millipede decode, rank 0", 2: "millipede decode, rank 1"}
            self.assertEqual(names, ranks)
            tasks = [event for event in events if event["ph"] == "X"]
            for count, task in (("shards", "shard"), ("leaves", "leaf"), ("merges", "merge")):
                if count in per_query:
                    self.assertGreater(result["total"][count], 0)
                traced = sum(event["cat"] == task for event in tasks)
                self.assertEqual(traced, result["total"][count])
            windows = [event for event in tasks if event["cat"] == "window"]
            self.assertEqual(len(windows), result["total"]["tokens"])
            for pid, requests in ((1, {0, 2}), (2, {1})):
                own = {event["args"]["request"] for event in windows if event["pid"] == pid}
                self.assertEqual(own, requests)
                regions = {e["name"] for e in tasks if e["pid"] == pid and e["cat"] == "region"}
                self.assertEqual(len([r for r in regions if "exchange" in r]), 2, regions)

    def test_text_is_printed_once(self):
        done = run_ranks(2, "--tp 2 --preset tiny --start-pos 5,6 --check")
        self.assertEqual(done.returncode, 0, done.stderr)
        for part in ("packed weight bytes", "bytes sent", "exchange heads", "every rule holds"):
            self.assertEqual(done.stdout.count(part), 1, part)

    def test_one_rank_needs_no_launcher(self):
        done = run(words("--tp 1 --preset tiny --start-pos 5 --check --json -"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(keys_of(json.loads(done.stdout)) & {"tp", "ranks"}, set())


class FlashTest(DecodeTest):
    def test_mixed_lengths(self):
        for kind in ("swa", "hca", "csa"):
            result = self.assert_checked(2, f"--attention {kind} --start-pos {MIXED} --seq 8")
            self.assertEqual([rank["request_ids"] for rank in result["ranks"]], [[0, 2], [1, 3]])

    def test_a_million(self):
        for kind in ("hca", "csa"):
            self.assert_checked(2, f"--attention {kind} --start-pos 1048575")

    def test_short(self):
        for kind in ("swa", "csa"):
            self.assert_checked(2, f"--attention {kind} --start-pos 128,16384 --seq 8")

    def test_output_half_with_half_the_weights(self):
        hidden, heads, o_rank, groups = 4096, 64, 1024, 8
        result = self.json_of(2, "--output-only --batch 3 --seq 5 --tp 2 --check")
        self.assertTrue(result["check"]["ok"])
        for rank, own, others in ((0, 10, 5), (1, 5, 10)):
            report = result["ranks"][rank]
            wo_a = groups // 2 * o_rank * heads // groups * 512 * 2
            wo_b = hidden * groups // 2 * o_rank
            self.assertEqual(report["weight_bytes"], wo_a + wo_b)
            sent = own * heads // 2 * 512 * 2 + others * groups // 2 * hidden * 4
            self.assertEqual(report["bytes_sent"], sent)


class RefusalTest(unittest.TestCase):
    def assert_refused(self, command, message):
        """The job ends with exit code 2, one line of the command's, and nothing printed."""
        done = run(command)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        lines = [line for line in done.stderr.splitlines() if line.startswith("millipede")]
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertRegex(lines[0], message)
        self.assertEqual(done.stdout, "")

    def ranks(self, *arguments):
        """One rank with each of the arguments."""
        command = [MPIEXEC]
        for one in arguments:
            command += [*([":"] if len(command) > 1 else []), "-n", "1", *words(one)]
        return command

    def test_the_same_words_on_every_rank(self):
        step = "--preset tiny --start-pos 5"
        for arguments, message in (
            (f"--tp 3 {step}", r"^millipede decode: --tp: 3; allowed: a divisor of the 4 output"),
            (f"--tp 4 {step}", "--tp: 4; allowed: 2, the ranks of this job"),
            (step, "--tp: 1; allowed: 2, the ranks of this job"),
            (f"--tp 2 {step} --bogus", "^millipede decode: argument: --bogus"),
            (f"--tp 2 {step} --json /nowhere/file", "rank 0: --json: /nowhere/file"),
        ):
            with self.subTest(arguments):
                self.assert_refused([MPIEXEC, "-n", "2", *words(arguments)], message)

    def test_too_few_ranks(self):
        arguments = words("--tp 2 --preset tiny --start-pos 5")
        self.assert_refused(arguments, "--tp: 2; allowed: 1, the ranks")
        self.assert_refused([MPIEXEC, "-n", "1", *arguments], "--tp: 2; allowed: 1, the ranks")

    def test_other_commands_run_alone(self):
        self.assert_refused(
            [MPIEXEC, "-n", "2", COMMAND, "plan", "--preset", "tiny", "--start-pos", "5"],
            "^millipede plan: command: plan; allowed: decode, in a job of several ranks$",
        )

    def test_ranks_that_disagree(self):
        step = "--tp 2 --preset tiny --attention csa --start-pos 5 --seq 2"
        for other, message in (
            (step.replace("tiny", "flash"), '--preset: "tiny" on rank 0, "flash" on rank 1'),
            (step.replace("csa", "hca"), '--attention: "csa" on rank 0, "hca" on rank 1'),
            (f"{step} --seed 9", "--seed: 1 on rank 0, 9 on rank 1; allowed: the same on every"),
            (step.replace("--tp 2", "--tp 4"), "rank 1: --tp: 4; allowed: 2"),
            (step.replace("--start-pos 5", "--start-pos x"), "rank 1: --start-pos: x; allowed"),
        ):
            with self.subTest(other):
                self.assert_refused(self.ranks(step, other), message)

    def test_a_rank_without_memory(self):
        step = "--tp 2 --preset tiny --attention csa --start-pos 5,1000000"
        limited = f"ulimit -v 400000; exec {COMMAND} decode {step}"
        self.assert_refused(
            [MPIEXEC, "-n", "1", *words(step), ":", "-n", "1", "bash", "-c", limited],
            "rank 1: .*cannot map .* bytes of address space",
        )


class KilledTest(unittest.TestCase):
    def test_a_killed_rank_ends_the_job(self):
        arguments = "--tp 2 --attention hca --start-pos 500000,500000 --seq 8 --check"
        job = subprocess.Popen(
            [MPIEXEC, "-n", "2", *words(arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        children = pathlib.Path(f"/proc/{job.pid}/task/{job.pid}/children")
        deadline = time.monotonic() + TIMEOUT
        ranks = []
        while len(ranks) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
            ranks = [int(pid) for pid in children.read_text().split()]
        time.sleep(0.5)
        os.kill(ranks[1], signal.SIGKILL)
        output, _ = job.communicate(timeout=TIMEOUT)
        self.assertNotEqual(job.returncode, 0)
        self.assertEqual(len(re.findall("exited on signal 9 ", output)), 1, output)
        self.assertNotIn("every rule holds", output)


if __name__ == "__main__":
    unittest.main()
