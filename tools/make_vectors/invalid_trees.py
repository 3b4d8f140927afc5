"""Invalid cases: the tree, its limits, and the digests of the whole."""

from __future__ import annotations

from .cases import Files, broken, invalid
from .parts import changed, double, f32, mapping, members, other_tree, text_of, tree_files, two
from .trees import JSON, TreeDigests, encoded_key
from .writer import Draft, draft

__all__: list[str] = []

NAN = ["float", "010000000000f87f"]
ZERO, MINUS_ZERO = double(0.0), double(-0.0)


def register_form(name: str, title: str, form: object, rule: str = "R-020") -> None:
    """Register a tree that has no digest, since it is no tree."""
    broken(f"forms/{name}", rule, title, other_tree, form)


FORMS: list[tuple[str, str, object]] = [
    ("object", "An object is no node.", {"map": []}),
    ("empty-list", "An empty list is no node.", []),
    ("unknown-kind", "An unknown kind.", ["dict", []]),
    ("kind-number", "A number as kind.", [1, 2]),
    ("map-object", "A map of an object.", ["map", {"a": 1}]),
    ("map-short-entry", "A map with an entry of one value.", ["map", [["a"]]]),
    ("map-long-entry", "A map with an entry of three values.", ["map", [["a", 1, 2]]]),
    ("list-no-items", "A list without its items.", ["list"]),
    ("list-two-items", "A list with its items outside.", ["list", 1, 2]),
    ("list-further", "A list with something behind its items.", ["list", [], None]),
    ("tuple-text", "A tuple of a string.", ["tuple", "ab"]),
    ("float-number", "A float of a number.", ["float", 1]),
    ("float-short", "A float of 7 bytes.", ["float", "00" * 7]),
    ("float-upper-case", "A float in upper-case digits.", ["float", "00000000000000F0"]),
    ("float-space", "A float with a space among its digits.", ["float", "00 0000000000000"]),
    ("complex-short", "A complex number of 8 bytes.", ["complex", "00" * 8]),
    ("bytes-odd", "Half a byte.", ["bytes", "000"]),
    ("bytes-other-digits", "Bytes in digits of another script.", ["bytes", "\u0661\u0662"]),
    ("bytes-list", "Bytes as numbers.", ["bytes", [1]]),
    ("int-decimal-point", "An integer with a point.", ["int", "1.8"]),
    ("int-empty", "An integer without digits.", ["int", ""]),
    ("int-number", "An integer of a number.", ["int", 5]),
    ("tensor-boolean", "A boolean as ordinal.", ["tensor", True]),
    ("tensor-text", "Text as ordinal.", ["tensor", "0"]),
    ("tensor-no-ordinal", "A tensor without an ordinal.", ["tensor"]),
    ("strings-count", "Three strings of shape (2,).", ["strings", [2], "str", ["a", "b", "c"]]),
    ("strings-negative", "Strings of a negative dimension.", ["strings", [-1, -1], "str", ["a"]]),
    ("strings-huge", "Strings of a huge shape.", ["strings", [2**53, 2**53], "str", ["a"]]),
    ("strings-boolean", "Strings of a boolean dimension.", ["strings", [True], "str", ["a"]]),
    ("strings-dimensions", "Strings of 65 dimensions.", ["strings", [1] * 65, "str", ["a"]]),
    ("strings-kind", "Strings of an unknown kind.", ["strings", [1], "utf8", ["a"]]),
    ("strings-number", "A number among strings.", ["strings", [1], "str", [1]]),
    ("strings-hexadecimal", "Bytes that are not hexadecimal.", ["strings", [1], "bytes", ["xy"]]),
    ("composite-short", "A composite without parts.", ["composite", "a", []]),
    ("composite-name", "A composite with a number as name.", ["composite", 1, [], []]),
    ("composite-part-name", "A part whose name is a number.", ["composite", "a", [], [[1, 2]]]),
    ("opaque-part-name", "A part whose name is none.", ["opaque", "a.B", [[None, 2]]]),
    ("shared-text", "A reference in text.", ["shared", "0"]),
    ("tag-short", "A tag without a node.", ["tagged", "a.B", []]),
    ("tag-name", "A tag whose class is a number.", ["tagged", 1, [], ["list", []]]),
    ("tag-attribute-name", "An attribute whose name is a number.", ["tagged", "a", [[1, 2]], ["list", []]]),
    ("tag-on-number", "A tag on a number.", ["tagged", "a.B", [], 1]),
    ("tag-on-text", "A tag on a string.", ["tagged", "a.B", [], "text"]),
    ("tag-on-float", "A tag on a float.", ["tagged", "a.B", [], ["float", "00" * 8]]),
    ("tag-on-tag", "A tag on a tag.", ["tagged", "a.B", [], ["tagged", "a.C", [], ["list", []]]]),
    ("tag-on-frozenset", "A tag on a frozenset.", ["tagged", "a.B", [], ["frozenset", []]]),
    ("tag-on-opaque", "A tag on an opaque node.", ["tagged", "a.B", [], ["opaque", "c.D", []]]),
    ("tag-on-composite", "A tag on a composite.", ["tagged", "a.B", [], ["composite", "c", [], []]]),
    (
        "tag-on-reference",
        "A tag on a reference.",
        ["list", [["list", []], ["tagged", "a", [], ["shared", 1]]]],
    ),
    ("key-list", "A list as key.", ["map", [[["list", []], 1]]]),
    ("key-complex", "A complex number as key.", ["map", [[["complex", "00" * 16], 1]]]),
    ("key-strings", "Strings as key.", ["map", [[["strings", [1], "str", ["a"]], 1]]]),
    ("key-tensor", "A tensor as key.", ["map", [[["tensor", 0], 1]]]),
    ("key-object", "An object as key.", ["map", [[{}, 1]]]),
    ("key-in-tuple", "A list in a tuple as key.", ["map", [[["tuple", [["list", []]]], 1]]]),
]
for _name, _title, _form in FORMS:
    register_form(_name, _title, _form)

REFERENCES: list[tuple[str, str, object]] = [
    ("shared-later", "A reference to a container that comes later.", ["list", [["shared", 1], ["list", []]]]),
    ("shared-itself", "A reference to the container around it.", ["list", [["shared", 0]]]),
    (
        "shared-unfinished",
        "A reference to a container that is not complete.",
        ["list", [["map", [["a", ["shared", 1]]]]]],
    ),
    ("shared-negative", "A negative reference.", ["list", [["list", []], ["shared", -1]]]),
    ("shared-beyond", "A reference beyond all containers.", ["list", [["list", []], ["shared", 2]]]),
    ("shared-tuple", "Tuples are not numbered.", ["list", [["tuple", []], ["shared", 1]]]),
    ("shared-frozenset", "Frozensets are not numbered.", ["list", [["frozenset", []], ["shared", 1]]]),
]
for _name, _title, _form in REFERENCES:
    register_form(_name, _title, _form, "R-022")


def register_tree(name: str, rule: str, title: str, tree: object, topic: str = "trees") -> None:
    """Register a tree that has a digest and yet is refused."""
    broken(f"{topic}/{name}", rule, title, tree_files, tree)


def keyed(*keys: object) -> list[object]:
    """Return a map of the given keys."""
    return ["map", [[key, None] for key in keys]]


def up(levels: object) -> list[object]:
    """Return the form of a cycle."""
    return ["opaque", "cycle", [["up", levels]]]


EQUALS: list[tuple[str, str, object]] = [
    ("keys-alike", "A key that is there twice.", keyed("a", "b", "a")),
    ("keys-one-and-true", "The keys 1 and true are equal.", keyed(*[1, True])),
    ("keys-zero-and-false", "The keys false and 0 are equal.", keyed(*[False, 0])),
    ("keys-one-and-float", "The keys 1 and 1.0 are equal.", keyed(double(1.0), 1)),
    (
        "keys-large-and-float",
        "The keys 2^70 and 2.0^70 are equal.",
        keyed(["int", f"{2**70:x}"], double(2.0**70)),
    ),
    ("keys-zeros", "The keys 0.0 and -0.0 are equal.", keyed(ZERO, MINUS_ZERO)),
    ("keys-tuples", "The keys (1,) and (true,) are equal.", keyed(["tuple", [1]], ["tuple", [True]])),
    ("key-nan", "NaN as a key.", keyed(NAN)),
    ("key-nan-in-tuple", "NaN in a tuple as key.", keyed(["tuple", ["a", NAN]])),
    ("set-alike", "An element that is there twice.", ["set", [1, 1]]),
    ("set-one-and-true", "The elements 1 and true are equal.", ["set", [1, True]]),
    ("set-one-and-float", "The elements 1.0 and 1 are equal.", ["frozenset", [1, double(1.0)]]),
    (
        "set-complex",
        "The elements 1 and 1+0j are equal.",
        ["set", [1, ["complex", "000000000000f03f" + "00" * 8]]],
    ),
    ("set-nan-twice", "The same NaN twice.", ["set", [NAN, NAN]]),
    ("set-of-lists", "A list in a set.", ["set", [["list", []]]]),
    ("set-of-maps", "A map in a tuple in a set.", ["set", [["tuple", [["map", []]]]]]),
    ("set-of-sets", "A set in a set.", ["set", [["set", []]]]),
    ("set-of-opaque", "An opaque node in a set.", ["set", [["opaque", "a.B", []]]]),
    ("set-of-composites", "A composite in a frozenset.", ["frozenset", [["composite", "a", [], []]]]),
    ("set-of-tensors", "A tensor in a set.", ["set", [f32(1)]]),
    ("set-of-tuples-of-tensors", "A tensor in a tuple in a set.", ["set", [["tuple", [f32(1)]]]]),
    ("parts-alike", "A part that is there twice.", ["opaque", "a.B", [["x", 1], ["x", 2]]]),
    (
        "attributes-alike",
        "An attribute of a composite that is there twice.",
        ["composite", "a", [["x", 1], ["x", 2]], []],
    ),
    (
        "tag-attributes-alike",
        "An attribute of a tag that is there twice.",
        ["tagged", "a", [["x", 1], ["x", 1]], ["list", []]],
    ),
]
for _name, _title, _tree in EQUALS:
    register_tree(_name, "R-021", _title, _tree)

OTHERWISE: list[tuple[str, str, object]] = [
    ("int-small", "A small integer in hexadecimal.", ["int", "5"]),
    ("int-limit", "2^53 in hexadecimal.", ["int", f"{2**53:x}"]),
    ("int-small-key", "A small integer in hexadecimal as key.", keyed(["int", "-1"])),
    ("set-unsorted", "A set that is not sorted.", ["set", [2, 1]]),
    (
        "frozenset-unsorted",
        "Elements are sorted by the bytes of their JSON: 10 comes before 9.",
        ["frozenset", [9, 10]],
    ),
    ("strings-none-of-bytes", "No strings, of kind bytes.", ["strings", [0], "bytes", []]),
]
for _name, _title, _tree in OTHERWISE:
    register_tree(_name, "R-024", _title, _tree)

CYCLES: list[tuple[str, str, object]] = [
    ("cycle-root", "A cycle as root.", up(1)),
    ("cycle-above-root", "A cycle that counts above the root.", ["list", [up(2)]]),
    ("cycle-zero", "A cycle of no levels.", ["list", [up(0)]]),
    ("cycle-negative", "A cycle of -1 levels.", ["list", [up(-1)]]),
    ("cycle-text", "A cycle that counts in text.", ["list", [up("1")]]),
    ("cycle-boolean", "A cycle that counts in booleans.", ["list", [["opaque", "cycle", [["up", True]]]]]),
    ("cycle-parts", "A cycle with further parts.", ["list", [["opaque", "cycle", [["up", 1], ["x", 1]]]]]),
    ("cycle-bare", "A cycle without parts.", ["list", [["opaque", "cycle", []]]]),
    (
        "cycle-in-attributes",
        "A cycle in a tag counts above the root.",
        ["tagged", "a", [["x", up(2)]], ["list", []]],
    ),
]
for _name, _title, _tree in CYCLES:
    register_tree(_name, "R-026", _title, _tree)


@invalid("trees/tensor-in-attribute", "R-020", "A tensor among the attributes of a tag.")
def _() -> Files:
    return draft(mapping(w=f32(1), x=["tagged", "a.B", [["t", ["tensor", 0]]], ["list", []]])).seal()


@invalid(
    "trees/shared-tensor-in-attribute",
    "R-020",
    "A reference to a map with a tensor, in an attribute of a tag.",
)
def _() -> Files:
    tag = ["tagged", "a.B", [["t", ["shared", 1]]], ["list", []]]
    return draft(mapping(w=mapping(x=f32(1)), x=tag)).seal()


@invalid("trees/no-row", "R-023", "A reference to a row that does not exist.")
def _() -> Files:
    return changed(two().seal(), "tree", 1, 0, 1, ["tensor", 2])


@invalid("trees/negative-row", "R-023", "A negative ordinal.")
def _() -> Files:
    return changed(two().seal(), "tree", 1, 0, 1, ["tensor", -1])


def without_last(found: Draft, node: JSON) -> Files:
    """Return a checkpoint whose last entry refers to no tensor any more."""
    tree = found.tree
    if isinstance(tree, list) and isinstance(tree[1], list) and isinstance(tree[1][-1], list):
        tree[1][-1][1] = node
    return found.seal()


@invalid("trees/row-without-reference", "R-023", "A row that the tree does not refer to.")
def _() -> Files:
    return without_last(draft(mapping(a=f32(1), b=f32(2))), None)


@invalid("trees/row-with-wrong-reference", "R-023", "Two references to one row and none to the other.")
def _() -> Files:
    return without_last(draft(mapping(a=f32(1), b=f32(2))), ["tensor", 0])


@invalid("trees/path-of-another", "R-025", "The paths of two rows are exchanged, in canonical order.")
def _() -> Files:
    found = draft(mapping(a=f32(1), b=f32(2)))
    found.tree = ["map", [["a", ["tensor", 1]], ["b", ["tensor", 0]]]]
    return found.seal()


@invalid("trees/path-not-first", "R-025", "The path of a tied row is the second that refers to it.")
def _() -> Files:
    tied = f32(1)
    found = draft(mapping(a=tied, b=tied))
    found.rows[0].form[:2] = [["b"], "b"]
    return found.seal()


@invalid("trees/path-first-through-reference", "R-025", "The first path of a row leads through a reference.")
def _() -> Files:
    found = draft(mapping(z=mapping(x=f32(1)), a=["shared", 1]))
    found.rows[0].form[:2] = [["z", "x"], "z.x"]
    return found.seal()


@invalid("trees/path-missing", "R-025", "The path of a row is not in the tree.")
def _() -> Files:
    found = draft(mapping(a=f32(1)))
    found.rows[0].form[:2] = [["b"], "b"]
    return found.seal()


@invalid("trees/path-key-kind", "R-025", "The path of a row has the number 1 where the tree has the string.")
def _() -> Files:
    found = draft(["map", [["1", f32(1)]]])
    found.rows[0].form[0] = [1]
    return found.seal()


def nested(levels: int, tree: object) -> object:
    """Return a node inside as many lists."""
    for _ in range(levels):
        tree = ["list", [tree]]
    return tree


def deep(member: bytes, levels: int) -> Files:
    """Return a checkpoint in whose manifest arrays are nested so deep."""
    arrays = b"[" * levels + b"]" * levels
    return text_of(draft(None).seal(), lambda data: data.replace(member, member[:-4] + arrays))


@invalid("limits/nested-tree", "R-015", "A tree of arrays that are nested 100,000 deep.")
def _() -> Files:
    return deep(b'"tree":null', 100_000)


@invalid("limits/nested-step", "R-015", "A step of arrays that are nested 5,000 deep.")
def _() -> Files:
    return deep(b'"step":null', 5_000)


@invalid(
    "limits/nested-extra", "R-015", "Extra that is nested one level deeper than 512, the manifest included."
)
def _() -> Files:
    found = draft(None)
    value: JSON = []
    for _ in range(510):
        value = [value]
    found.extra = {"a": value}
    return found.seal()


DEEP: list[tuple[str, str, object]] = [
    ("lists", "A path of 65 keys.", nested(65, 1)),
    ("empty", "A path of 65 keys to an empty list.", nested(66, 1)),
    ("tensor", "A path of 65 keys to a tensor.", nested(65, f32(1))),
    (
        "composites",
        "Composites have two keys for each level.",
        nested(63, ["composite", "a", [["x", 1]], []]),
    ),
    ("opaque", "An opaque node below 64 keys has a part.", nested(64, ["opaque", "a.B", [["x", 1]]])),
    (
        "attributes",
        "An attribute of a tag below 64 keys.",
        nested(64, ["tagged", "a", [["x", 1]], ["list", []]]),
    ),
    ("frozensets", "Frozensets count as all containers do.", nested(64, ["frozenset", [1]])),
    ("tuple-keys", "Tuples inside a key count.", nested(63, keyed(["tuple", [["tuple", [1]]]]))),
    (
        "reference",
        "A path of 65 keys that leads through a reference.",
        ["list", [nested(40, 1), nested(25, ["shared", 1])]],
    ),
]
for _name, _title, _tree in DEEP:
    register_tree(f"depth-{_name}", "R-015", _title, _tree, "limits")

LONG = "k" * (4096 - len(encoded_key("")))
for _name, _title, _tree in (
    ("key", "An encoded path of 4,097 bytes.", ["map", [[LONG + "k", f32(1)]]]),
    ("sum", "An encoded path of two keys of 4,116 bytes.", ["map", [[LONG, ["list", [f32(1)]]]]]),
):
    register_tree(f"path-{_name}", "R-015", _title, _tree, "limits")


def doubled(levels: int) -> JSON:
    """Return lists that each refer twice to the one before."""
    lists: list[JSON] = [["list", []]]
    lists += [["list", [["shared", level], ["shared", level]]] for level in range(1, levels + 1)]
    return ["list", lists]


@invalid("limits/expansion", "R-015", "References that expand to 2^25 nodes.")
def _() -> Files:
    return draft(doubled(24)).seal()


@invalid("limits/expansion-beyond-count", "R-015", "References that expand to 2^60 nodes.")
def _() -> Files:
    return draft(doubled(60)).seal()


@invalid("limits/manifest-size", "R-015", "A manifest of more than 1 GiB, of zeros: not to be read at all.")
def _() -> Files:
    return {"manifest.json": ("zeros", str((1 << 30) + 1))}


@invalid("limits/provenance-size", "R-015", "A provenance.json of more than 1 GiB.")
def _() -> Files:
    return {**two().seal(), "provenance.json": ("zeros", str((1 << 30) + 1))}


@invalid("digests/root", "R-060", "A root that all headers name and the tree does not have.")
def _() -> Files:
    found = two()
    found.root = "ab" * 32
    return found.seal()


@invalid("digests/root-of-another-order", "R-060", "The root of a list whose items are exchanged.")
def _() -> Files:
    found = draft(["list", [f32(1), f32(2)]])
    tensors = [bytes.fromhex(str(row.form[4])) for row in found.rows]
    found.root = TreeDigests(["list", [["tensor", 1], ["tensor", 0]]], tensors).root()
    return found.seal()


@invalid("digests/root-of-the-tag", "R-060", "A root that covers the class of a tag.")
def _() -> Files:
    found = draft(["tagged", "collections.OrderedDict", [], mapping(w=f32(1))])
    plain = mapping(w=["tensor", 0])
    tensors = [bytes.fromhex(str(row.form[4])) for row in found.rows]
    found.root = TreeDigests(["opaque", "collections.OrderedDict", plain[1]], tensors).root()  # type: ignore[list-item]
    return found.seal()


@invalid("digests/bag", "R-061", "A bag that is not that of the tensors.")
def _() -> Files:
    return changed(two().seal(), "bag", "cd" * 32)


@invalid("digests/bag-of-rows", "R-061", "A bag that counts a tied tensor once, not once for each path.")
def _() -> Files:
    tied = f32(1)
    once = members(draft(mapping(a=tied)).seal())["bag"]
    return changed(draft(mapping(a=tied, b=tied)).seal(), "bag", once)
