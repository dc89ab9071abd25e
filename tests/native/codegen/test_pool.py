"""Definitions of a C file, whatever their texts say."""

from opforge.native.codegen.pool import Pool


def test_a_text_may_have_any_character():
    pool = Pool()
    name = pool.function("void", "numbers", "int *n", ["n[0] = 1;"], "kernel, ROUTE='a@b'")
    assert pool.definitions == [
        "/* kernel, ROUTE='a@b' */\nstatic void numbers_0(int *n)\n{\n    n[0] = 1;\n}"
    ]
    assert pool.array("char *const", "labels", ['"@"']) == "labels_0"
    assert pool.definitions[1] == 'static const char *const labels_0[] = {"@"};'
    assert name == "numbers_0"


def test_equal_definitions_are_written_once():
    pool = Pool()
    assert [pool.array("int", "keys", ["1"]) for _ in range(2)] == ["keys_0", "keys_0"]
    assert pool.array("int", "keys", ["2"]) == "keys_1"
    assert len(pool.definitions) == 2
