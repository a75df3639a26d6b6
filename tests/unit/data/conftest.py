import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest


@pytest.fixture
def no_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user without data: no $SECUREVFL_DATA, and an empty cache folder, which is returned."""
    cache = tmp_path / "user-cache"
    monkeypatch.delenv("SECUREVFL_DATA", raising=False)
    monkeypatch.setattr("platformdirs.user_cache_path", lambda _name: cache)
    return cache


@pytest.fixture
def real_file() -> Callable[[str], Path]:
    """A file below $SECUREVFL_DATA, skipping the test where it is not there."""

    def find(relative: str) -> Path:
        path = Path(os.environ.get("SECUREVFL_DATA", "/nowhere")) / relative
        if not path.is_file():
            pytest.skip(f"real data not found: {relative}")
        return path

    return find


@dataclass
class Publisher:
    """A real HTTP server: what it serves, what it cuts short, and what it was asked for."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    state = Publisher()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # noqa: N802
            name = self.path.lstrip("/")
            state.asked.append(name)
            if name not in state.files:
                self.send_error(404)
                return
            body = state.files[name]
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if name in state.cut else body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            del format, args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        state.url = f"http://127.0.0.1:{server.server_port}"
        yield state
        server.shutdown()
        thread.join()
