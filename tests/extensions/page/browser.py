"""A headless Chromium for tests, and what a page in it does that it must not."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


@contextmanager
def chromium() -> Iterator[Any]:
    """Start Chromium and yield it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@dataclass
class Visit:
    """A page that is open, its requests, and its errors: of scripts, of the console, and dialogs."""

    page: Any
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listeners: dict[str, Callable[[Any], object]] = {
            "request": lambda request: self.requests.append(request.url),
            "console": lambda message: self.errors.append(message.text),
            "pageerror": lambda error: self.errors.append(str(error)),
            "dialog": lambda dialog: (self.errors.append(dialog.message), dialog.dismiss()),
        }
        for event, listener in self._listeners.items():
            self.page.on(event, listener)

    def close(self) -> None:
        """Stop listening."""
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)

    def texts(self, selector: str) -> list[str]:
        return list(self.page.locator(selector).all_inner_texts())

    def violations(self) -> list[str]:
        """Return the findings of axe-core that are serious or critical."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page).response["violations"]
        return [f"{one['id']}: {one['nodes'][0]['html']}" for one in found if one["impact"] in ("serious", "critical")]
