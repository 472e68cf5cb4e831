"""Small values go from workers to the driver."""

from __future__ import annotations

import pytest
import ray

from rltune.compat.ray_store import delete_value, read_values, write_value


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.replacement
def test_a_workers_value_is_read_by_the_driver():
    ray.get(ray.remote(write_value).remote("steps:/a/b", "17"))
    assert read_values(["steps:/a/b", "steps:/a/c"]) == {"steps:/a/b": "17"}
    delete_value("steps:/a/b")
    assert read_values(["steps:/a/b"]) == {}
