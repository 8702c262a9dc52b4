"""docs/work.md says what docs/work.json holds, that obeys the rules of scripts/evidence, and the code
still does the same work. Each check sees a planted fault."""

import copy
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import unittest

ROOT = pathlib.Path(os.environ["MILLIPEDE_SOURCE_DIR"])
COMMAND = os.environ["MILLIPEDE_COMMAND"]


def load_script():
    path = str(ROOT / "scripts" / "evidence")
    loader = importlib.machinery.SourceFileLoader("evidence", path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("evidence", loader))
    loader.exec_module(module)
    return module


evidence = load_script()


class WorkDocTest(unittest.TestCase):
    def setUp(self):
        self.work = json.loads((ROOT / "docs" / "work.json").read_text())
        self.page = (ROOT / "docs" / "work.md").read_text()

    def test_page_is_that_of_the_json(self):
        self.assertEqual(self.page, evidence.markdown(self.work))
        self.assertIn("docs/work.md", (ROOT / "README.md").read_text())

    def test_rules_hold(self):
        self.assertEqual(evidence.violations(self.work), [])
        self.assertEqual(self.work["preset"], "flash")

    def test_other_numbers_give_another_page(self):
        for kind in evidence.KINDS:
            self.work["kinds"][kind]["1M"]["tasks"]["window"]["rows"] += 1
            self.assertNotEqual(self.page, evidence.markdown(self.work))

    def assert_seen(self, what, change):
        bad = copy.deepcopy(self.work)
        change(bad["kinds"])
        with self.subTest(what):
            self.assertNotEqual(evidence.violations(bad), [])

    def test_every_rule_sees_a_fault(self):
        def more(*path):
            def change(kinds):
                inner = kinds
                for key in path[:-1]:
                    inner = inner[key]
                inner[path[-1]] += 1
            return change

        self.assert_seen("swa grows", more("swa", "1M", "tasks", "product", "count"))
        self.assert_seen("a shard more", more("hca", "16K", "requests", 0, "shards"))
        self.assert_seen("a leaf more", more("csa", "1M", "requests", 0, "leaves"))
        self.assert_seen("a merge more", more("csa", "16K", "requests", 0, "merges"))
        self.assert_seen("a total more", more("csa", "mixed", "total", "candidates"))
        self.assert_seen("rows read twice", more("hca", "mixed", "tasks", "widen", "bytes"))
        for kind, task in (("swa", "window"), ("hca", "shard"), ("csa", "leaf"), ("csa", "merge"),
                           ("csa", "event"), ("csa", "tile"), ("swa", "commit")):
            key = "rows" if task == "tile" else "count"
            for case in evidence.CASES:
                if task in self.work["kinds"][kind][case]["tasks"]:
                    self.assert_seen(task, more(kind, case, "tasks", task, key))

        def drop_shards(kinds):
            for case in evidence.CASES:
                del kinds["hca"][case]["tasks"]["shard"]

        self.assert_seen("no shards at all", drop_shards)
        self.assert_seen("a case less", lambda kinds: kinds["swa"].pop("16K"))
        self.assert_seen("a kind less", lambda kinds: kinds.pop("csa"))

    def test_the_code_does_this_work(self):
        # The rows of caches have the same shapes in every preset.
        now = evidence.measure(COMMAND, "tiny")
        self.assertEqual(evidence.violations(now), [])
        for kind in evidence.KINDS:
            for case in evidence.CASES:
                with self.subTest(kind=kind, case=case):
                    then = self.work["kinds"][kind][case]
                    self.assertEqual(evidence.own_work(now["kinds"][kind][case]),
                                     evidence.own_work(then))
                    self.assertEqual(now["kinds"][kind][case]["requests"], then["requests"])


if __name__ == "__main__":
    unittest.main()
