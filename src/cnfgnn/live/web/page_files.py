"""The page in a browser: a few files that hold no data, and the rules that the browser enforces for them.

The page asks for everything else as JSON, from where it came from itself:

/sensors    the sensors, where they are, and their last readings
/events     forecasts as they are made (`/forecasts` has the last one), alarms, switches of the model
/health     whether the service works
/watch      errors and alarms; the page does without if it is not there
/model      which model is in use since when; the page does without if it is not there

Whoever answers these can serve the page: add `page_routes(ASSETS)` to the routes, and let these be asked for
without a token. Another page can be made of the `SHARED` files and some of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

SCRIPT, STYLE, HTML = "text/javascript", "text/css", "text/html"
OWN, OF_REPORTS = files("cnfgnn.live.web") / "assets", files("cnfgnn.report") / "assets"
Asset = tuple[Traversable, str]  # a file, and its type


def scripts(folder: Traversable, *names: str) -> dict[str, Asset]:
    return {f"/page/{name}.js": (folder / f"{name}.js", SCRIPT) for name in names}


# The colours and the shape of cards, buttons and tables are those of `cnfgnn report`.
SHARED: dict[str, Asset] = {
    "/page/base.css": (OF_REPORTS / "page.css", STYLE),
    "/page/live.css": (OWN / "live.css", STYLE),
    **scripts(OF_REPORTS, "theme"),
    **scripts(OWN, "service", "connection", "format", "blocks"),
}
ASSETS: dict[str, Asset] = {
    "/": (OWN / "index.html", HTML),
    **SHARED,
    **scripts(OF_REPORTS, "colours", "sensor_map"),
    **scripts(OWN, "main", "state", "map", "places", "chart", "sensor", "panels"),
}
HEADERS = {
    # Nothing from elsewhere, nothing inline, nothing that is made from text; nobody may frame the page.
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def page_routes(assets: Mapping[str, Asset]) -> list[Route]:
    """A page at `/`, and its files."""
    return [Route(path, _file(source.read_bytes(), kind)) for path, (source, kind) in assets.items()]


def _file(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return Response(content, headers=HEADERS, media_type=f"{kind}; charset=utf-8")

    return answer
