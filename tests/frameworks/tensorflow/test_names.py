from __future__ import annotations

from ckptfmt.frameworks.tensorflow.graph import Attribute, Graph, Node, Slot
from ckptfmt.frameworks.tensorflow.names import names_of


def key(path: str) -> str:
    return f"{path}/.ATTRIBUTES/VARIABLE_VALUE"


def variable(path: str, full_name: str = "") -> Node:
    return Node(attributes=(Attribute("VARIABLE_VALUE", full_name, key(path)),))


def places(graph: Graph, *more: str) -> dict[str, tuple[str, ...]]:
    keys = {one.key for node in graph for one in node.attributes} | set(more)
    return {one.key: one.place for one in names_of(graph, keys).named}


def root(*nodes: Node) -> Graph:
    return (Node(children=tuple((f"c{at}", at + 1) for at in range(len(nodes)))), *nodes)


def test_a_variable_goes_by_its_full_name_where_no_other_has_it() -> None:
    graph = root(variable("a", "x"), variable("b", "w"), variable("c", "w"), variable("d"))
    assert places(graph) == {
        key("a"): ("model", "x"),
        key("b"): ("model", "b"),
        key("c"): ("model", "c"),
        key("d"): ("model", "d"),
    }


def test_a_full_name_that_is_another_variables_path_or_key_is_not_used() -> None:
    graph = root(variable("a", "b"), variable("b"), variable("c", "raw"), variable("e", "e"))
    found = places(graph, "raw")
    assert found[key("a")] == ("model", "a")
    assert found[key("b")] == ("model", "b")
    assert found[key("c")] == ("model", "c")
    assert found["raw"] == ("model", "raw")
    assert found[key("e")] == ("model", "e")
    assert len(set(found.values())) == len(found)


def test_what_only_an_optimizer_reaches_is_its_own_and_what_it_trains_is_not() -> None:
    graph = (
        Node(children=(("opt", 1), ("net", 6))),
        Node(children=(("_iterations", 2), ("_variables", 3), ("_trainable_variables", 4), ("net", 6))),
        variable("opt/_iterations", "adam/iteration"),
        Node(children=(("0", 2), ("1", 5))),
        Node(children=(("0", 7),)),
        variable("opt/_variables/1", "adam/w_momentum"),
        Node(children=(("w", 8), ("opt", 1))),
        variable("opt/_trainable_variables/0", "trained"),
        variable("net/w", "w"),
    )
    assert {place for place in places(graph).values() if place[0] == "optimizer"} == {
        ("optimizer", "adam/iteration"),
        ("optimizer", "adam/w_momentum"),
    }


def test_slot_variables_are_the_optimizers_and_go_with_their_parameter() -> None:
    slot = "w/.OPTIMIZER_SLOT/o/m"
    graph = (
        Node(children=(("w", 1), ("o", 2))),
        variable("w", "w"),
        Node(slots=(Slot(1, "m", 3),)),
        variable(slot),
    )
    names = names_of(graph, {key("w"), key(slot)})
    assert [one.place for one in names.named] == [("model", "w"), ("optimizer", slot)]
    assert names.slots == (("w", "m", key(slot)),)


def test_a_list_that_optimizers_share_is_looked_at_once() -> None:
    optimizers = 2000
    graph = (
        Node(children=tuple((f"o{at}", at + 2) for at in range(optimizers))),
        Node(children=tuple((str(at), optimizers + 2) for at in range(optimizers))),
        *[
            Node(children=(("_iterations", 1), ("_variables", 1), ("_trainable_variables", 1), ("_m", 1)))
            for _ in range(optimizers)
        ],
        variable("v"),
    )
    assert len(names_of(graph, {key("v")}).named) == 1  # four million steps if it were not


def test_the_counter_of_saves_has_a_place_of_its_own_at_the_root_only() -> None:
    graph = (
        Node(children=(("save_counter", 1), ("below", 2))),
        variable("save_counter", "save_counter"),
        Node(children=(("save_counter", 3),)),
        variable("below/save_counter"),
    )
    assert places(graph) == {
        key("save_counter"): ("save_counter",),
        key("below/save_counter"): ("model", "below/save_counter"),
    }


def test_a_counter_that_is_no_variable_or_has_two_values_loses_none() -> None:
    table = Node(attributes=(Attribute("table", "", "t/.ATTRIBUTES/table"),))
    graph = (Node(children=(("save_counter", 1),)), table)
    keys = {"t/.ATTRIBUTES/table-keys", "t/.ATTRIBUTES/table-values"}
    assert {one.place for one in names_of(graph, keys).named} == {("model", key) for key in keys}
    two = Node(attributes=(*variable("a").attributes, *variable("b").attributes))
    found = places((Node(children=(("save_counter", 1),)), two))
    assert found == {key("a"): ("save_counter",), key("b"): ("model", "b")}


def test_tables_have_two_values_and_what_is_not_there_is_told() -> None:
    table = Node(attributes=(Attribute("table", "", "t/.ATTRIBUTES/table"),))
    graph = root(table, variable("gone", "gone"))
    keys = {"t/.ATTRIBUTES/table-keys", "t/.ATTRIBUTES/table-values"}
    names = names_of(graph, keys)
    assert {one.key for one in names.named} == keys
    assert [one.full_name for one in names.missing] == ["gone"]
