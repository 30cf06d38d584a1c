"""The arithmetic of meshes and shards."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from hpir.errors import PlanError
from hpir.mesh import Mesh, local_shape, padded_shard_size, shard_spans

MESH = Mesh(("pp", "dp", "tp"), (2, 3, 2))


def test_ranks_are_row_major_coordinates() -> None:
    assert MESH.size == 12
    coordinates = [MESH.coordinate(rank) for rank in range(MESH.size)]
    expected = [
        dict(zip(MESH.axis_names, index, strict=True)) for index in itertools.product(range(2), range(3), range(2))
    ]
    assert coordinates == expected
    assert [MESH.rank(coordinate) for coordinate in coordinates] == list(range(12))
    assert list(MESH.coordinate(7)) == ["pp", "dp", "tp"]
    assert MESH.rank({"dp": 1}) == 2


def test_groups_are_ordered_first_axis_major() -> None:
    assert MESH.group(0, ("dp",)) == (0, 2, 4)
    assert MESH.group(9, ("dp",)) == (7, 9, 11)
    assert MESH.group(0, ("dp", "tp")) == (0, 1, 2, 3, 4, 5)
    assert MESH.group(0, ("tp", "dp")) == (0, 2, 4, 1, 3, 5)
    assert MESH.group(5, ()) == (5,)


@pytest.mark.parametrize("axes", [(), ("dp",), ("tp", "pp"), ("pp", "dp", "tp"), ("tp", "dp", "pp")])
def test_groups_part_the_ranks(axes: tuple[str, ...]) -> None:
    groups = list(MESH.groups(axes))
    assert sorted(rank for group in groups for rank in group) == list(range(12))
    assert {len(group) for group in groups} == {MESH.count(axes)}
    for group in groups:
        assert [MESH.position(rank, axes) for rank in group] == list(range(len(group)))
        assert all(MESH.group(rank, axes) == group for rank in group)


def test_orders_and_sizes() -> None:
    assert MESH.in_mesh_order(("tp", "pp", "tp")) == ("pp", "tp")
    assert MESH.sizes(("tp", "dp")) == (2, 3)
    assert MESH.count(()) == 1
    assert str(MESH) == "pp:2,dp:3,tp:2"
    assert Mesh.of({"pp": 2, "dp": 3, "tp": 2}) == MESH


@pytest.mark.parametrize(
    ("names", "sizes", "message"),
    [
        (("dp",), (1, 2), "mesh has 1 axis names but 2 axis sizes"),
        ((), (), "mesh has no axes"),
        (("",), (1,), "mesh has an axis without a name"),
        (("dp", "dp"), (1, 1), "mesh axis 'dp' is named twice"),
        (("dp",), (0,), "mesh axis 'dp' has size 0, expected at least 1"),
    ],
)
def test_malformed_meshes(names: tuple[str, ...], sizes: tuple[int, ...], message: str) -> None:
    with pytest.raises(PlanError) as caught:
        Mesh(names, sizes)
    assert str(caught.value) == message


def test_questions_it_cannot_answer() -> None:
    with pytest.raises(PlanError, match=r"^mesh has no axis 'dq', did you mean 'dp'"):
        MESH.count(("dq",))
    with pytest.raises(PlanError, match=r"^mesh has no axis 'xyz'$"):
        MESH.in_mesh_order(("xyz",))
    with pytest.raises(PlanError, match=r"^mesh has ranks 0 to 11, got: 12$"):
        MESH.coordinate(12)


@pytest.mark.parametrize(
    ("rows", "counts", "expected"),
    [
        (8, (2,), [(0, 4), (4, 4)]),
        (10, (2, 2), [(0, 3), (3, 2), (5, 3), (8, 2)]),
        (10, (4,), [(0, 3), (3, 3), (6, 3), (9, 1)]),
        (5, (4,), [(0, 2), (2, 2), (4, 1), (5, 0)]),
        (1, (3,), [(0, 1), (1, 0), (1, 0)]),
        (0, (2,), [(0, 0), (0, 0)]),
        (3, (), [(0, 3)]),
        (7, (1, 2, 1), [(0, 4), (4, 3)]),
    ],
)
def test_spans(rows: int, counts: Sequence[int], expected: list[tuple[int, int]]) -> None:
    assert shard_spans(rows, counts) == expected


@pytest.mark.parametrize("counts", [(1,), (2,), (3,), (2, 2), (3, 2), (2, 1, 3)])
def test_spans_cover_the_rows_once_and_fit_the_padded_size(counts: tuple[int, ...]) -> None:
    for rows in range(20):
        spans = shard_spans(rows, counts)
        covered = [row for offset, size in spans for row in range(offset, offset + size)]
        assert covered == list(range(rows))
        assert padded_shard_size(rows, counts) == max(size for _, size in spans)


def test_local_shapes() -> None:
    assert local_shape((10, 8, 5), (("pp", "tp"), (), ("dp",)), MESH) == (3, 8, 2)
    assert local_shape((), (), MESH) == ()
    with pytest.raises(PlanError, match="mesh has no axis 'ep'"):
        local_shape((4,), (("ep",),), MESH)
