"""docs/command.md names every option that the command's help lists and every key of its JSON."""

import json
import os
import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(os.environ["MILLIPEDE_SOURCE_DIR"])
COMMAND = os.environ["MILLIPEDE_COMMAND"]
STEP = ["--preset", "tiny", "--start-pos", "5", "--threads", "1"]


def run(*arguments):
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def keys_of(value):
    """Every key of every object in a JSON value."""
    if isinstance(value, dict):
        return set(value).union(*(keys_of(inner) for inner in value.values()))
    if isinstance(value, list):
        return set().union(*(keys_of(inner) for inner in value))
    return set()


class CommandDocTest(unittest.TestCase):
    def setUp(self):
        # Words in code quotes; options may have their value's name behind them.
        text = (ROOT / "docs" / "command.md").read_text()
        self.documented = {quoted.split()[0] for quoted in re.findall(r"`([^`\n]+)`", text)}

    def test_options_are_those_of_the_help(self):
        listed = set(re.findall(r"--[a-z][a-z-]*", run("--help")))
        for subcommand in ("decode", "stack", "plan", "verify"):
            listed |= set(re.findall(r"--[a-z][a-z-]*", run(subcommand, "--help")))
        documented = {word for word in self.documented if word.startswith("--")}
        self.assertEqual(listed, documented)

    def assert_documented(self, *arguments):
        keys = keys_of(json.loads(run(*arguments, "--json", "-")))
        self.assertGreater(len(keys), 10)
        self.assertEqual(keys - self.documented, set())

    def test_keys_of_decode(self):
        self.assert_documented("decode", *STEP, "--check")

    def test_keys_of_stack(self):
        self.assert_documented("stack", *STEP)

    def test_keys_of_plan(self):
        self.assert_documented("plan", *STEP)

    def test_keys_of_verify(self):
        self.assert_documented("verify", str(ROOT / "tests/vectors/swa_tail.safetensors"))


if __name__ == "__main__":
    unittest.main()
