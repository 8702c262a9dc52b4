"""Rules of the source tree that no compiler checks. Each check takes the tree's root and returns a
list of violations, one line each, empty if the rule holds."""

import pathlib
import re

# Data flows one way: a room includes only its own headers and those of rooms before it.
ROOMS = ["millipede", "base", "geometry", "pages", "plan", "kernels", "runtime", "layers", "distributed"]
# These stand beside src/ and see only the public headers and their own.
SIDE_ROOMS = ["fixtures", "reference"]

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def sources(root, *folders):
    """Every .h and .cc file under the folders, sorted."""
    return sorted(
        path
        for folder in folders
        for path in (root / folder).rglob("*")
        if path.suffix in (".h", ".cc")
    )


def code_of(path):
    """A file's text without comments; line breaks stay, so lines keep their numbers."""
    text = path.read_text()
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), text, flags=re.DOTALL)
    return re.sub(r"//[^\n]*", "", text)


def room_of(path, root):
    parts = path.relative_to(root).parts
    return parts[1] if parts[0] in ("src", "include") else parts[0]


def allowed_rooms(room):
    if room in SIDE_ROOMS:
        return {"millipede", room}
    return set(ROOMS[: ROOMS.index(room) + 1])


def check_includes(root):
    """No upward include between rooms, and none of fixtures/ or reference/ from src/ or include/."""
    violations = []
    for path in sources(root, "include", "src", *SIDE_ROOMS):
        where = path.relative_to(root)
        room = room_of(path, root)
        if room not in ROOMS + SIDE_ROOMS:
            violations.append(f"{where}: room '{room}' is not in the order of rooms")
            continue
        for name in INCLUDE.findall(path.read_text()):
            target = name.split("/")[0]
            if target == "hwy":  # Highway's own headers, included with quotes as its guide does
                continue
            if "/" not in name or target not in allowed_rooms(room):
                violations.append(f'{where}: "{name}" is not of a room that {room} may include')
    return violations


def check_link_order(root):
    """A room's target links only targets of rooms before it."""
    violations = []
    for room in ROOMS[1:]:
        text = (root / "src" / room / "CMakeLists.txt").read_text()
        call = re.search(r"millipede_room\(\s*(\w+)([^)]*)\)", text)
        if not call or call.group(1) != room:
            violations.append(f"src/{room}/CMakeLists.txt: no millipede_room({room} ...)")
            continue
        words = call.group(2).split()
        linked = words[words.index("ROOMS") + 1 :] if "ROOMS" in words else []
        linked = linked[: linked.index("LINK")] if "LINK" in linked else linked
        for other in linked:
            if other not in ROOMS[1 : ROOMS.index(room)]:
                violations.append(f"src/{room}/CMakeLists.txt: links '{other}', not above it")
        if re.search(r"\bmillipede_(?!room\b)\w+", text):
            violations.append(f"src/{room}/CMakeLists.txt: names a target past millipede_room()")
    return violations


def find_lines(root, pattern, folders):
    """'path:line' of every line of code that matches."""
    found = []
    for path in sources(root, *folders):
        for number, line in enumerate(code_of(path).splitlines(), 1):
            if re.search(pattern, line):
                found.append(f"{path.relative_to(root)}:{number}")
    return found


CEILING = r"(?i)\b1'?048'?576(?!\d)|\b0x10'?0000(?![\da-f])"


def check_constants(root):
    """The context ceiling and the page size are one named constant each."""
    violations = []
    folders = ("include", "src", "tools")

    defined = find_lines(root, r"\bkMaxContextTokens\s*=\s*1'048'576\s*;", folders)
    if len(defined) != 1:
        violations.append(f"kMaxContextTokens = 1'048'576 is defined {len(defined)} times: {defined}")
    for place in find_lines(root, CEILING, folders):
        if place not in defined:
            violations.append(f"{place}: the context ceiling as a literal")

    defined = find_lines(root, r"\bkPageRows\s*=\s*32\s*;", folders)
    if len(defined) != 1:
        violations.append(f"kPageRows = 32 is defined {len(defined)} times: {defined}")
    # Rows of a page written as a number: page * 32, row / 32, row % 32, row & 31, row >> 5.
    literal = r"(?i)(page|row|slot|pos)\w*[)\]]?\s*([*/%]\s*32|&\s*31|(<<|>>)\s*5)\b"
    for place in find_lines(root, literal, folders):
        violations.append(f"{place}: the page size as a literal")
    if find_lines(root, r"\bk(Rows(Per)?Page|PageSize)\w*\s*=\s*32\b", folders):
        violations.append("a second constant for the page size")
    return violations


MAX_HEADER_LINES = 300
MAX_SOURCE_LINES = 600


def check_sizes(root):
    """Public headers stay short, and every other source file readable in one sitting."""
    violations = []
    for path in sources(root, "include", "src", "tools", *SIDE_ROOMS):
        limit = MAX_HEADER_LINES if path.is_relative_to(root / "include") else MAX_SOURCE_LINES
        lines = len(path.read_text().splitlines())
        if lines > limit:
            violations.append(f"{path.relative_to(root)}: {lines} lines, at most {limit}")
    return violations


def snippets(readme):
    """The C++ code blocks of a Markdown file."""
    return re.findall(r"^```cpp\n(.*?)^```$", readme.read_text(), re.MULTILINE | re.DOTALL)


def check_readme(root):
    """The README's C++ stands in examples/quickstart.cc, which the tests compile and run."""
    blocks = snippets(root / "README.md")
    if not blocks:
        return ["README.md: no C++ example"]
    lines = [line.strip() for line in (root / "examples" / "quickstart.cc").read_text().splitlines()]
    violations = []
    for block in blocks:
        wanted = [line.strip() for line in block.splitlines()]
        if not any(lines[i : i + len(wanted)] == wanted for i in range(len(lines))):
            violations.append(f"README.md: not in examples/quickstart.cc: {wanted[0]} ...")
    return violations


def check_links(root):
    """Files and folders that the pages link to exist."""
    violations = []
    for page in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                violations.append(f"{page.relative_to(root)}: no such file: {target}")
    return violations
