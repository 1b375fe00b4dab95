"""Workers: processes of this machine, or of a Dask or Ray cluster, behind joblib.

Dask and Ray find their cluster as they always do (DASK_SCHEDULER_ADDRESS, RAY_ADDRESS), or start one on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from simulator.forecast.errors import Refused

T = TypeVar("T")
R = TypeVar("R")
BACKENDS = ("local", "dask", "ray")
_PACKAGES = {"dask": "distributed", "ray": "ray"}


class WorkerLost(RuntimeError):  # noqa: N818, the name says what happened
    """A worker ended before its task did."""


class Workers:
    """Where tasks run; made by :func:`workers`."""

    def __init__(
        self, backend: str, jobs: int, arguments: dict[str, Any], lost: tuple[type[BaseException], ...]
    ) -> None:
        self._backend = backend
        self._jobs = jobs
        self._arguments = arguments
        self._lost = lost

    @property
    def at_once(self) -> int:
        """How many tasks run at once."""
        from joblib import effective_n_jobs, parallel_config

        with parallel_config(backend=self._backend, n_jobs=self._jobs, **self._arguments):
            return int(effective_n_jobs(self._jobs))

    def results(self, function: Callable[[T], R], tasks: Sequence[T]) -> Iterator[R]:
        """*function* of each of *tasks*, in the order in which they are done.

        Raise :exc:`WorkerLost` when a worker is gone and its tasks cannot be moved to another.
        """
        from joblib import Parallel, delayed, parallel_config

        with parallel_config(backend=self._backend, n_jobs=self._jobs, **self._arguments):
            # Ray's joblib backend gives nothing back before everything is done: a few tasks at a time, then.
            whole = self._backend != "ray"
            size = max(1, len(tasks) if whole else 4 * abs(self._jobs))
            for start in range(0, len(tasks), size):
                some = tasks[start : start + size]
                try:
                    run = Parallel(return_as="generator_unordered" if whole else "list")
                    yield from run(delayed(function)(task) for task in some)
                except self._lost as error:
                    raise WorkerLost(str(error)) from error


@contextmanager
def workers(backend: str, jobs: int) -> Iterator[Workers]:
    """*jobs* workers at once of *backend*, one of `BACKENDS`; -1: as many as there are cores.

    Raise :exc:`Refused` where the backend's package is missing.
    """
    from joblib.externals.loky.process_executor import BrokenProcessPool

    with ExitStack() as stack:
        arguments: dict[str, Any] = {}
        lost: tuple[type[BaseException], ...] = (BrokenProcessPool,)
        try:
            if backend == "dask":
                from distributed import Client, KilledWorker

                arguments["client"] = stack.enter_context(Client(set_as_default=False))  # type: ignore[no-untyped-call]
                lost = (KilledWorker,)
            elif backend == "ray":
                from ray.util.joblib import register_ray

                register_ray()
        except ImportError:
            package = _PACKAGES[backend]
            message = f"needs the package {package}: install rackcast[{backend}]"
            raise Refused([f"--backend {backend} {message}"]) from None
        yield Workers("loky" if backend == "local" else backend, jobs, arguments, lost)
