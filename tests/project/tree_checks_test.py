"""The tree obeys its rules, and each check sees a fault planted in a copy of the tree."""

import contextlib
import os
import pathlib
import shutil
import tempfile
import unittest

import tree_checks

ROOT = pathlib.Path(os.environ["MILLIPEDE_SOURCE_DIR"])
CHECKED = ["include", "src", "fixtures", "reference", "tools", "examples", "docs", "README.md"]


class TreeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.copy = pathlib.Path(folder.name)
        for name in CHECKED:
            source = ROOT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, self.copy / name)

    @contextlib.contextmanager
    def planted(self, name, line):
        """Adds a line to a file of the copy, or makes the file of that line alone, for a while."""
        path = self.copy / name
        before = path.read_text() if path.exists() else None
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{before or ''}\n{line}\n")
        try:
            yield
        finally:
            if before is None:
                path.unlink()
            else:
                path.write_text(before)

    def assert_holds(self, check):
        self.assertEqual(check(ROOT), [])
        self.assertEqual(check(self.copy), [])

    def assert_sees(self, check, where):
        violations = check(self.copy)
        self.assertEqual(len(violations), 1, violations)
        self.assertIn(where, violations[0])


class IncludesTest(TreeTest):
    def assert_include_is_seen(self, name, included):
        with self.subTest(name=name, included=included):
            with self.planted(name, f'#include "{included}"'):
                self.assert_sees(tree_checks.check_includes, name)

    def test_tree_holds(self):
        self.assert_holds(tree_checks.check_includes)
        self.assertGreater(len(tree_checks.sources(ROOT, "include", "src")), 30)

    def test_upward_include_of_each_room_is_seen(self):
        for room, above in zip(tree_checks.ROOMS[1:], tree_checks.ROOMS[2:]):
            self.assert_include_is_seen(f"src/{room}/planted.h", f"{above}/planted.h")

    def test_public_header_that_includes_a_room_is_seen(self):
        self.assert_include_is_seen("include/millipede/planted.h", "base/error.h")

    def test_formula_and_golden_in_the_library_are_seen(self):
        for room in tree_checks.SIDE_ROOMS:
            self.assert_include_is_seen("src/layers/planted.cc", f"{room}/planted.h")

    def test_side_room_that_includes_the_library_or_its_neighbour_is_seen(self):
        for room, other in (("fixtures", "base"), ("reference", "fixtures"), ("fixtures", "src")):
            self.assert_include_is_seen(f"{room}/planted.cc", f"{other}/planted.h")

    def test_include_by_relative_path_is_seen(self):
        self.assert_include_is_seen("src/base/planted.cc", "../layers/planted.h")

    def test_room_outside_the_order_is_seen(self):
        with self.planted("src/planted/planted.h", ""):
            self.assert_sees(tree_checks.check_includes, "src/planted/planted.h")


class LinkOrderTest(TreeTest):
    def test_tree_holds(self):
        self.assert_holds(tree_checks.check_link_order)

    def test_upward_link_is_seen(self):
        (self.copy / "src/pages/CMakeLists.txt").write_text("millipede_room(pages ROOMS base plan)\n")
        self.assert_sees(tree_checks.check_link_order, "src/pages/CMakeLists.txt: links 'plan'")

    def test_link_past_the_function_is_seen(self):
        link = "target_link_libraries(millipede_pages PUBLIC millipede_layers)"
        with self.planted("src/pages/CMakeLists.txt", link):
            self.assert_sees(tree_checks.check_link_order, "src/pages/CMakeLists.txt")


class ConstantsTest(TreeTest):
    def test_tree_holds(self):
        self.assert_holds(tree_checks.check_constants)

    def test_second_ceiling_is_seen(self):
        for spelling in ("1048576", "1'048'576LL", "0x10'0000", "1048576.0"):
            with self.subTest(spelling=spelling):
                with self.planted("src/base/planted.h", f"constexpr long kLimit = {spelling};"):
                    self.assert_sees(tree_checks.check_constants, "src/base/planted.h")

    def test_ceiling_in_a_comment_is_no_literal(self):
        with self.planted("src/base/planted.h", "// up to 1'048'576 tokens /* 1048576 */"):
            self.assertEqual(tree_checks.check_constants(self.copy), [])

    def test_second_page_size_is_seen(self):
        for spelling in ("page * 32 + slot", "row % 32", "(row / 32)", "position >> 5", "row & 31"):
            with self.subTest(spelling=spelling):
                with self.planted("src/base/planted.h", f"int f(int x) {{ return {spelling}; }}"):
                    self.assert_sees(tree_checks.check_constants, "src/base/planted.h")

    def test_missing_constant_is_seen(self):
        path = self.copy / "include/millipede/pages.h"
        path.write_text(path.read_text().replace("kPageRows = 32;", "kPageRows = 64;"))
        self.assert_sees(tree_checks.check_constants, "defined 0 times")


class SizesTest(TreeTest):
    def test_tree_holds(self):
        self.assert_holds(tree_checks.check_sizes)

    def test_long_files_are_seen(self):
        for name, lines in (("include/millipede/planted.h", 300), ("src/base/planted.cc", 600)):
            with self.planted(name, "//\n" * lines):
                self.assert_sees(tree_checks.check_sizes, name)


class ReadmeTest(TreeTest):
    def test_tree_holds(self):
        self.assert_holds(tree_checks.check_readme)

    def test_snippet_that_is_not_compiled_is_seen(self):
        with self.planted("README.md", "```cpp\nint planted = 1;\n```"):
            self.assert_sees(tree_checks.check_readme, "int planted = 1;")

    def test_changed_example_is_seen(self):
        path = self.copy / "examples/quickstart.cc"
        text = path.read_text()
        path.write_text(text.replace("Plan::Create", "Plan::Make"))
        self.assertNotEqual(path.read_text(), text)
        self.assert_sees(tree_checks.check_readme, "not in examples/quickstart.cc")


class LinksTest(TreeTest):
    def test_tree_holds(self):
        self.assertEqual(tree_checks.check_links(ROOT), [])

    def test_dead_link_is_seen(self):
        with self.planted("docs/map.md", "[planted](planted.md)"):
            self.assertIn("docs/map.md: no such file: planted.md", tree_checks.check_links(self.copy))


if __name__ == "__main__":
    unittest.main()
