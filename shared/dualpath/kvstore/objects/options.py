"""Where the settings say that the bucket is."""

from __future__ import annotations

from dualpath.kvstore.objects.bucket import BucketOptions
from dualpath.settings import Settings


def bucket_options(settings: Settings) -> BucketOptions:
    """Raises ValueError where there is none."""
    if settings.store_s3_bucket is None:
        raise ValueError("store is s3, but store_s3_bucket is not set; name the bucket")
    return BucketOptions(
        bucket=settings.store_s3_bucket,
        endpoint=settings.store_s3_endpoint,
        region=settings.store_s3_region,
        prefix=settings.store_s3_prefix,
        access_key=settings.store_s3_access_key,
        secret_key=settings.store_s3_secret_key,
        timeout_s=settings.store_s3_timeout_s,
        conditional=settings.store_s3_conditional,
    )
