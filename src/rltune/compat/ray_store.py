"""Send small values from workers to the driver through the key-value store of Ray's head.

What: the functions of ``ray.experimental.internal_kv``.
Why: a worker that trains answers no call of its actor, a second process would cost CPU time to start, and a file would
need a shared folder.
Gains: the progress of a trial is known between two reports. With the switch off it is known at each report.
Tested with Ray 2.60.
"""

from __future__ import annotations

from collections.abc import Collection

import ray

from rltune.compat.patching import switched

NAMESPACE = b"rltune"


@switched(lambda: None)
def write_value(key: str, value: str) -> None:
    """Set a value in the key-value store; does nothing if Ray is not running, as in unit tests of a trial."""
    if ray.is_initialized():
        from ray.experimental import internal_kv

        internal_kv._internal_kv_put(key, value, namespace=NAMESPACE)


@switched(dict)
def read_values(keys: Collection[str]) -> dict[str, str]:
    """Read several values from the key-value store in one request; keys without a value are left out."""
    if not keys or not ray.is_initialized():
        return {}
    from ray.experimental import internal_kv

    client = internal_kv.internal_kv_get_gcs_client()
    values = client.internal_kv_multi_get([key.encode() for key in keys], namespace=NAMESPACE)
    return {key.decode(): value.decode() for key, value in values.items()}


@switched(lambda: None)
def delete_value(key: str) -> None:
    """Delete a value from the key-value store, if there is one."""
    if ray.is_initialized():
        from ray.experimental import internal_kv

        internal_kv._internal_kv_del(key, namespace=NAMESPACE)
