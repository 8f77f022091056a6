"""A bucket of an S3-compatible store, through obstore: each call is one request, or a few where it is tried again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PreconditionError
from obstore.store import S3Store

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config

RETRIES = 2


class BucketError(Exception):
    """The object store refused, or did not answer; the text is its first line, without credentials."""


@dataclass(frozen=True)
class BucketOptions:
    """Where a bucket is, and how it is asked. What is None comes from the environment (AWS_ACCESS_KEY_ID, …) or, on
    AWS, from the machine's role."""

    bucket: str
    endpoint: str | None = None
    region: str | None = None
    prefix: str = ""
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    timeout_s: float = 10.0
    """A request ends after this."""
    conditional: bool = True
    """The server knows `If-None-Match: *` for PUT."""


@dataclass(frozen=True)
class Found:
    """An object as it is listed."""

    path: str
    nbytes: int
    modified: datetime


class Bucket:
    def __init__(self, options: BucketOptions) -> None:
        config: S3Config = {}
        if options.endpoint is not None:
            config["endpoint"] = options.endpoint
        if options.region is not None:
            config["region"] = options.region
        if options.access_key is not None:
            config["access_key_id"] = options.access_key
        if options.secret_key is not None:
            config["secret_access_key"] = options.secret_key
        timeout = timedelta(seconds=options.timeout_s)
        client: ClientConfig = {
            "allow_http": urlsplit(options.endpoint or "").scheme == "http",
            "timeout": timeout,
            "connect_timeout": min(timeout, timedelta(seconds=5)),
        }
        self._conditional = options.conditional
        self._store = S3Store(
            options.bucket,
            prefix=options.prefix or None,
            config=config,
            client_options=client,
            retry_config={"max_retries": RETRIES, "retry_timeout": timeout},
        )

    async def size(self, path: str) -> int | None:
        """Bytes of an object; None where it is not there. Raises BucketError."""
        try:
            return (await obstore.head_async(self._store, path))["size"]
        except (NotFoundError, FileNotFoundError):
            return None
        except BaseError as error:
            raise _told(error) from None

    async def get(self, path: str) -> tuple[memoryview, str | None] | None:
        """An object's bytes and its tag; None where it is not there. Raises BucketError."""
        try:
            result = await obstore.get_async(self._store, path)
            return memoryview(await result.bytes_async()), result.meta["e_tag"]
        except (NotFoundError, FileNotFoundError):
            return None
        except BaseError as error:
            raise _told(error) from None

    async def create(self, path: str, data: bytes) -> bool:
        """Put an object unless it is there: False then. Raises BucketError."""
        try:
            if not self._conditional:
                if await self.size(path) is not None:
                    return False
                await obstore.put_async(self._store, path, data, use_multipart=False)
            else:
                await obstore.put_async(self._store, path, data, mode="create", use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return False
        except BaseError as error:
            raise _told(error) from None
        return True

    async def move(self, path: str, to: str, tag: str | None) -> None:
        """Move an object, if it is still that with the tag. Raises BucketError."""
        try:
            if (await obstore.head_async(self._store, path))["e_tag"] == tag:
                await obstore.copy_async(self._store, path, to)
                await obstore.delete_async(self._store, path)
        except (NotFoundError, FileNotFoundError):
            return
        except BaseError as error:
            raise _told(error) from None

    async def list(self, prefix: str) -> AsyncIterator[Found]:
        """All objects below a prefix. Raises BucketError."""
        try:
            async for chunk in obstore.list(self._store, prefix=prefix or None):
                for meta in chunk:
                    yield Found(meta["path"], meta["size"], meta["last_modified"])
        except BaseError as error:
            raise _told(error) from None

    async def delete(self, paths: Sequence[str]) -> None:
        """Raises BucketError."""
        try:
            await obstore.delete_async(self._store, paths)
        except (NotFoundError, FileNotFoundError):
            return
        except BaseError as error:
            raise _told(error) from None


def _told(error: BaseError) -> BucketError:
    """Its first line: what follows is the library's own."""
    return BucketError(str(error).strip().split("\n", 1)[0][:500])
