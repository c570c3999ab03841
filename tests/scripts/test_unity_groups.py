"""cmake/unity_groups.py: files whose own names would meet are never compiled together."""

import importlib.util
import pathlib

PATH = pathlib.Path(__file__).resolve().parents[2] / "cmake/unity_groups.py"
spec = importlib.util.spec_from_file_location("unity_groups", PATH)
unity = importlib.util.module_from_spec(spec)
spec.loader.exec_module(unity)


def groups(*texts, most=10):
    return unity.groups(texts, most)


def own(text):
    return "namespace freeride {\nnamespace {\n" + text + "\n}  // namespace\n}  // namespace freeride\n"


def test_files_that_share_no_name_are_together_up_to_the_most():
    assert groups(own("int a() { return 1; }"), own("int b() { return 2; }"), "int c();") == [0, 0, 0]
    assert groups("int a();", "int b();", "int c();", most=2) == [0, 0, 1]


def test_constants_functions_types_and_macros_of_one_name_are_apart():
    for text in (
        "constexpr int kBatch = 256;",
        "bool read(int fd) {\n  return fd;\n}",
        "struct Row {\n  int a;\n};",
        "int table[3] = {};",
    ):
        assert groups(own(text), own(text)) == [0, 1]
    assert groups("#define LOOK 1\n", "#define LOOK 2\n") == [0, 1]
    assert groups("static int count(int a) { return a; }\n", own("int count(int a) { return a; }")) == [0, 1]


def test_a_call_of_what_another_file_declares_for_itself_is_apart():
    mine = own("Fd open(std::string_view file) {\n  return {};\n}")
    assert groups(mine, "int f() { return open(path.c_str(), 0); }") == [0, 1]
    assert groups("int f() { return open(path.c_str(), 0); }", mine) == [0, 1]


def test_members_variables_comments_and_texts_are_no_matter():
    mine = own("int open(int a) {\n  return a;\n}")
    assert groups(mine, 'int f(int open) { file.open(1); std::open(2); say("open("); return open; }  // open(') == [
        0,
        0,
    ]


def test_a_brace_in_a_character_ends_no_namespace():
    assert groups(own("char a() { return '}'; }\nint late() { return 1; }"), own("int late() { return 2; }")) == [0, 1]


def test_files_of_other_using_directives_are_apart():
    assert groups("using namespace a;\n", "using namespace b;\n", "using namespace a;\nint f();") == [0, 1, 0]
