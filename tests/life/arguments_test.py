"""What random_life says of arguments that it does not take, and how it ends."""

import os
import subprocess
import unittest

COMMAND = os.environ["RANDOM_LIFE"]


def run(*arguments):
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=300)


class ArgumentsTest(unittest.TestCase):
    def test_bad_ones_are_one_line_and_exit_code_2(self):
        for arguments in (
            ["--unknown"],
            ["extra"],
            ["--steps", "-5"],
            ["--steps", "0"],
            ["--steps", "many"],
            ["--steps", "99999999999999999999"],
            ["--seed", "18446744073709551615"],
            ["--history", "-1"],
            ["--seed", "-1"],
            ["--seed"],
            ["--kinds", "swa,mla"],
            ["--plant", "bit"],
        ):
            with self.subTest(arguments):
                done = run(*arguments)
                self.assertEqual(done.returncode, 2)
                self.assertEqual(done.stdout, "")
                self.assertRegex(done.stderr, r"\Arandom_life: [^\n]{5,120}\n\Z")

    def test_a_difference_is_exit_code_1_and_none_is_0(self):
        life = ["--steps", "40", "--kinds", "swa", "--seed", "4"]
        self.assertEqual(run(*life).returncode, 0)
        found = run("--steps", "1000", "--seed", "4", "--plant", "byte")
        self.assertEqual(found.returncode, 1)
        self.assertEqual(run("--help").returncode, 0)


if __name__ == "__main__":
    unittest.main()
