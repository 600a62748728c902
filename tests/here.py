"""In the place of worker processes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class Here:
    """In the place of `Workers`: whatever is submitted is done at once, in this process."""

    submitted = 0
    """Pieces of work, by all of them."""

    def __init__(self, count: int) -> None:
        self.count = count

    def submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        Here.submitted += 1
        future: Future[Any] = Future()
        try:
            future.set_result(work(*given))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        pass

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *failure: object) -> None:
        pass
