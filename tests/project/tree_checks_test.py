"""The tree obeys its rules, and each check sees a fault planted in a copy of the tree."""

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

    def plant(self, name, line):
        """Adds a line to a file of the copy, or makes the file of that line alone."""
        path = self.copy / name
        text = path.read_text() if path.exists() else ""
        path.write_text(f"{text}\n{line}\n")

    def assert_holds(self, check):
        self.assertEqual(check(ROOT), [])
        self.assertEqual(check(self.copy), [])

    def assert_sees(self, check, where):
        violations = check(self.copy)
        self.assertEqual(len(violations), 1, violations)
        self.assertIn(where, violations[0])


class IncludesTest(TreeTest):
    def test_tree_holds(self):
        self.assert_holds(tree_checks.check_includes)
        self.assertGreater(len(tree_checks.sources(ROOT, "include", "src")), 30)

    def test_upward_include_of_each_room_is_seen(self):
        for room, above in zip(tree_checks.ROOMS[1:], tree_checks.ROOMS[2:]):
            with self.subTest(room=room):
                name = f"src/{room}/planted.h"
                self.plant(name, f'#include "{above}/planted.h"')
                self.assert_sees(tree_checks.check_includes, name)
                (self.copy / name).unlink()

    def test_public_header_that_includes_a_room_is_seen(self):
        self.plant("include/millipede/planted.h", '  #  include "base/error.h"')
        self.assert_sees(tree_checks.check_includes, "include/millipede/planted.h")

    def test_formula_and_golden_in_the_library_are_seen(self):
        for room in tree_checks.SIDE_ROOMS:
            with self.subTest(room=room):
                name = "src/layers/planted.cc"
                self.plant(name, f'#include "{room}/planted.h"')
                self.assert_sees(tree_checks.check_includes, name)
                (self.copy / name).unlink()

    def test_side_room_that_includes_the_library_or_its_neighbour_is_seen(self):
        for room, other in (("fixtures", "base"), ("reference", "fixtures"), ("fixtures", "src")):
            with self.subTest(room=room, other=other):
                name = f"{room}/planted.cc"
                self.plant(name, f'#include "{other}/planted.h"')
                self.assert_sees(tree_checks.check_includes, name)
                (self.copy / name).unlink()

    def test_include_by_relative_path_is_seen(self):
        self.plant("src/base/planted.cc", '#include "../layers/planted.h"')
        self.assert_sees(tree_checks.check_includes, "src/base/planted.cc")

    def test_room_outside_the_order_is_seen(self):
        (self.copy / "src" / "planted").mkdir()
        self.plant("src/planted/planted.h", "")
        self.assert_sees(tree_checks.check_includes, "src/planted/planted.h")


class LinkOrderTest(TreeTest):
    def test_tree_holds(self):
        self.assert_holds(tree_checks.check_link_order)

    def test_upward_link_is_seen(self):
        (self.copy / "src/pages/CMakeLists.txt").write_text("millipede_room(pages ROOMS base plan)\n")
        self.assert_sees(tree_checks.check_link_order, "src/pages/CMakeLists.txt: links 'plan'")

    def test_link_beside_the_room_is_seen(self):
        self.plant(
            "src/pages/CMakeLists.txt",
            "target_link_libraries(${room} PUBLIC millipede_layers)",
        )
        self.assert_sees(tree_checks.check_link_order, "src/pages/CMakeLists.txt")


class ConstantsTest(TreeTest):
    def test_tree_holds(self):
        self.assert_holds(tree_checks.check_constants)

    def test_second_ceiling_is_seen(self):
        for spelling in ("1048576", "1'048'576LL", "0x10'0000", "1048576.0"):
            with self.subTest(spelling=spelling):
                name = "src/base/planted.h"
                self.plant(name, f"constexpr long kLimit = {spelling};")
                self.assert_sees(tree_checks.check_constants, name)
                (self.copy / name).unlink()

    def test_ceiling_in_a_comment_is_no_literal(self):
        self.plant("src/base/planted.h", "// up to 1'048'576 tokens /* 1048576 */")
        self.assertEqual(tree_checks.check_constants(self.copy), [])

    def test_second_page_size_is_seen(self):
        for spelling in ("page * 32 + slot", "row % 32", "(row / 32)", "position >> 5", "row & 31"):
            with self.subTest(spelling=spelling):
                name = "src/base/planted.h"
                self.plant(name, f"int f(int page, int row, int slot) {{ return {spelling}; }}")
                self.assert_sees(tree_checks.check_constants, name)
                (self.copy / name).unlink()

    def test_missing_constant_is_seen(self):
        path = self.copy / "include/millipede/pages.h"
        path.write_text(path.read_text().replace("kPageRows = 32;", "kPageRows = 64;"))
        self.assert_sees(tree_checks.check_constants, "defined 0 times")


class SizesTest(TreeTest):
    def test_tree_holds(self):
        self.assert_holds(tree_checks.check_sizes)

    def test_long_files_are_seen(self):
        self.plant("include/millipede/planted.h", "//\n" * 300)
        self.assert_sees(tree_checks.check_sizes, "include/millipede/planted.h")
        (self.copy / "include/millipede/planted.h").unlink()
        self.plant("src/base/planted.cc", "//\n" * 600)
        self.assert_sees(tree_checks.check_sizes, "src/base/planted.cc")


class ReadmeTest(TreeTest):
    def test_tree_holds(self):
        self.assert_holds(tree_checks.check_readme)

    def test_snippet_that_is_not_compiled_is_seen(self):
        self.plant("README.md", "```cpp\nint planted = 1;\n```")
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
        self.plant("docs/map.md", "[planted](planted.md)")
        self.assertIn("docs/map.md: no such file: planted.md", tree_checks.check_links(self.copy))


if __name__ == "__main__":
    unittest.main()
