"""An MCP server that wants a login, and its authorization server, in one process.

It prints its port. `/authorize` sends the browser back at once, as if the person had agreed; `/log` lists the requests
to the authorization server; `/set?NAME=VALUE` changes what it does: `seconds` a token is valid, `says` (whether the
token's end is stated), `refuse` (the person refuses), `slow` seconds a token takes, `fails`
(the authorization server is down), `calls` of a tool after which all tokens end, `revoke` (all access tokens end).
"""

import base64
import hashlib
import json
import secrets
import socket
import sys
from urllib.parse import parse_qsl, urlencode

import anyio
import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse
from starlette.routing import Mount, Route

settings = {"seconds": "3600", "says": "1", "refuse": "", "slow": "0", "fails": "", "calls": ""}
log: list[dict] = []
clients: dict[str, dict] = {"known": {"client_secret": "known-secret-value", "redirect_uris": []}}
codes: dict[str, dict] = {}
access: dict[str, set] = {}  # token → its scopes
refresh: dict[str, dict] = {}
base = ""

mcp = MCPServer("guarded")


@mcp.tool(annotations=ToolAnnotations(read_only_hint=True))
def read(name: str) -> str:
    """Read a file."""
    return f"text of {name}"


@mcp.tool(annotations=ToolAnnotations(read_only_hint=True))
def write(name: str) -> str:
    """Write a file."""
    return f"wrote {name}"


@mcp.tool()
def append(name: str) -> str:
    """Append to a file."""
    return f"appended to {name}"


async def resource(request):
    return JSONResponse({"resource": f"{base}/mcp", "authorization_servers": [base], "scopes_supported": ["read"]})


async def metadata(request):
    endpoints = {f"{name}_endpoint": f"{base}/{path}" for name, path in
                 (("authorization", "authorize"), ("token", "token"), ("registration", "register"),
                  ("revocation", "revoke"))}  # fmt: skip
    return JSONResponse({
        "issuer": base, **endpoints, "response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"],
        "grant_types_supported": ["authorization_code", "refresh_token", "client_credentials"],
        "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
        "authorization_response_iss_parameter_supported": True,
    })  # fmt: skip


async def register(request):
    asked = await request.json()
    log.append({"at": "register", **asked})
    client = {**asked, "client_id": f"client-{len(clients)}", "token_endpoint_auth_method": "none"}
    clients[client["client_id"]] = client
    return JSONResponse(client, 201)


async def authorize(request):
    asked = dict(request.query_params)
    log.append({"at": "authorize", **asked})
    known = clients.get(asked["client_id"])
    if known is None or (known["redirect_uris"] and asked["redirect_uri"] not in known["redirect_uris"]):
        return PlainTextResponse("unknown client or address", 400)
    answer = {"state": asked["state"], "iss": base}
    if settings["refuse"]:
        answer |= {"error": "access_denied", "error_description": "The person said no"}
    else:
        answer["code"] = secrets.token_hex(8)
        codes[answer["code"]] = asked
    return RedirectResponse(f"{asked['redirect_uri']}?{urlencode(answer)}", 302)


def issue(scopes, client):
    token, again = secrets.token_hex(16), secrets.token_hex(16)
    access[token] = set(scopes)
    refresh[again] = {"client": client, "scopes": scopes}
    body = {"access_token": token, "token_type": "bearer", "refresh_token": again, "scope": " ".join(sorted(scopes))}
    return JSONResponse(body | ({"expires_in": int(settings["seconds"])} if settings["says"] else {}))


async def token(request):
    asked = dict(parse_qsl((await request.body()).decode()))
    log.append({"at": "token", **asked})
    if settings["fails"]:
        return PlainTextResponse("", 503)
    await anyio.sleep(float(settings["slow"]))
    refused = JSONResponse({"error": "invalid_grant"}, 400)
    if asked.get("resource") != f"{base}/mcp":
        return refused
    if asked["grant_type"] == "client_credentials":
        pair = base64.b64encode(b"known:known-secret-value").decode()
        if request.headers.get("authorization") != f"Basic {pair}":
            return JSONResponse({"error": "invalid_client"}, 401)
        return issue(set(asked.get("scope", "read").split()), "known")
    if asked["grant_type"] == "refresh_token":
        kept = refresh.pop(asked["refresh_token"], None)  # it is valid once
        return (
            refused if kept is None or kept["client"] != asked["client_id"] else issue(kept["scopes"], kept["client"])
        )
    code = codes.pop(asked["code"], None)
    digest = hashlib.sha256(asked["code_verifier"].encode()).digest()
    challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
    if code is None or code["code_challenge"] != challenge or code["redirect_uri"] != asked["redirect_uri"]:
        return refused
    return issue(set(code.get("scope", "").split()), asked["client_id"])


async def revoke(request):
    asked = dict(parse_qsl((await request.body()).decode()))
    log.append({"at": "revoke", **asked})
    access.pop(asked["token"], None)
    refresh.pop(asked["token"], None)
    return PlainTextResponse("", 503 if settings["fails"] else 200)


async def change(request):
    settings.update(request.query_params)
    if "revoke" in request.query_params:
        access.clear()
    if "forget" in request.query_params:
        refresh.clear()
    return JSONResponse(settings)


class Guard:
    """Let only requests with a token pass; `write` needs the scope of its name."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        held = access.get(headers.get("authorization", "").removeprefix("Bearer "))
        where = f'resource_metadata="{base}/.well-known/oauth-protected-resource/mcp"'
        called = json.loads(body or b"{}") if scope["method"] == "POST" else {}
        wants_write = called.get("method") == "tools/call" and called["params"]["name"] == "write"
        if held is None:
            answer = PlainTextResponse("", 401, {"WWW-Authenticate": f'Bearer {where}, scope="read"'})
        elif wants_write and "write" not in held:
            challenge = f'Bearer error="insufficient_scope", scope="write", {where}'
            answer = PlainTextResponse("", 403, {"WWW-Authenticate": challenge})
        else:
            if called.get("method") == "tools/call":
                log.append({"at": "call", "name": called["params"]["name"]})
                if settings["calls"]:
                    settings["calls"] = ""
                    access.clear()
                    refresh.clear()
            given = iter([{"type": "http.request", "body": body, "more_body": False}])

            async def again():
                return next(given, None) or await receive()

            return await self.app(scope, again, send)
        return await answer(scope, receive, send)


inner = mcp.streamable_http_app()
app = Starlette(
    routes=[
        Route("/.well-known/oauth-protected-resource/mcp", resource),
        Route("/.well-known/oauth-authorization-server", metadata),
        Route("/register", register, methods=["POST"]),
        Route("/authorize", authorize),
        Route("/token", token, methods=["POST"]),
        Route("/revoke", revoke, methods=["POST"]),
        Route("/log", lambda request: JSONResponse(log)),
        Route("/set", change),
        Mount("/", Guard(inner)),
    ],
    lifespan=lambda _: inner.router.lifespan_context(inner),
)


async def main():
    global base
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    config = server.config
    config.load()
    listener = socket.create_server(("127.0.0.1", 0))
    base = f"http://127.0.0.1:{listener.getsockname()[1]}"
    print(listener.getsockname()[1], flush=True)
    await server.serve(sockets=[listener])


if __name__ == "__main__":
    sys.exit(anyio.run(main))
