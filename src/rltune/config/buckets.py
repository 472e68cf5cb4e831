"""The kinds of remote storage, such as S3, in which a sweep's checkpoints and files can be stored.

A new kind is a new row of `BUCKETS`, and nothing else, if `pyarrow.fs.FileSystem.from_uri` opens its addresses and the
host in them is the bucket. Imports nothing heavy, because an address is checked before anything else happens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class BucketKind:
    """One kind of remote storage: what errors say about it, and how its client is configured.

    Attributes:
        name: The services that have it, for errors.
        example: An address, for errors.
        login: Where its client looks for credentials, for errors.
        outage: A regular expression of the words by which its client reports an outage: Arrow raises an `OSError`
            without a number for everything.
        options: Options of Arrow's client that are added to an address which does not have them. They are to let a
            request fail within seconds, because `rltune.checkpoints.clients` sends it again.
        endpoint_variables: The environment variables that may name another server; the first one that is set counts.
    """

    name: str
    example: str
    login: str
    outage: str
    options: Mapping[str, str] = field(default_factory=dict)
    endpoint_variables: tuple[str, ...] = ()


BUCKETS = {
    "s3": BucketKind(
        name="S3, MinIO",
        example="s3://bucket/prefix",
        login="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, for MinIO also AWS_ENDPOINT_URL=http://host:9000",
        outage="NETWORK_CONNECTION|INTERNAL_FAILURE|SERVICE_UNAVAILABLE|SLOW_DOWN|REQUEST_TIMEOUT|THROTTLING|curlCode",
        endpoint_variables=("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    ),
    "gs": BucketKind(
        name="Google Cloud Storage",
        example="gs://bucket/prefix",
        login="GOOGLE_APPLICATION_CREDENTIALS",
        outage="UNAVAILABLE|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED|INTERNAL:|ABORTED|CURL error",
        options={"retry_limit_seconds": "3"},
    ),
}
"""The kinds by the scheme of their addresses."""


def is_bucket(address: str) -> bool:
    """Return whether an address is that of a bucket or of a folder in one, such as ``s3://bucket/prefix``."""
    scheme, _, rest = address.partition("://")
    return scheme in BUCKETS and bool(re.match(r"[\w.-]+(/|\?|$)", rest))


def find_bucket_kind(address: str) -> BucketKind:
    """Find the kind of storage for an address; unknown schemes count as S3, whose protocol most services speak."""
    return BUCKETS.get(address.partition(":")[0], BUCKETS["s3"])
