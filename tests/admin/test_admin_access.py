"""The admin API over TCP: who is let in, and that nobody else changes anything."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

from admin_harness import CacheEngine, prompts_over, resolved_settings
from mlxceld.admin.access import TcpAccess
from mlxceld.admin.app import PREFIX, create_admin_app
from mlxceld.admin.tokens import AdminTokens, TokenFileError, create_token_file
from mlxceld.telemetry.audit import AuditLog
from mlxceld.web.hosts import HostGuard

ONE, TWO = "first-token-abcdef", "second-token-ghijk"


class Tcp:
    def __init__(self, engine: CacheEngine, client: TestClient, tokens: AdminTokens) -> None:
        self.engine = engine
        self.client = client
        self.tokens = tokens

    async def drain(self, **headers: str) -> tuple[int, str]:
        """Try a change; the status and the error's code."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        response = await self.client.post(f"{PREFIX}/drain", json={}, headers=named)
        answer = await response.json()
        return response.status, answer.get("error", {}).get("code", "")


@pytest.fixture
async def tcp(tmp_path: Path):
    file = tmp_path / "tokens"
    file.touch(0o600)
    file.write_text(f"# two of them\n{ONE}\n\n{TWO}\n")
    tokens = AdminTokens(file)
    engine = CacheEngine()
    app = create_admin_app(
        engine,
        prompts_over(engine, resolved_settings()),
        resolved_settings(),
        drain=engine.drain,
        access=TcpAccess(tokens, HostGuard("127.0.0.1", (), ())),
        audit=AuditLog(logging.getLogger("audit-over-tcp")),
    )
    async with TestClient(TestServer(app)) as client:
        yield Tcp(engine, client, tokens)


@pytest.mark.parametrize("token", [ONE, TWO])
async def test_each_token_opens_and_is_on_record_by_its_digest(tcp, token, caplog):
    caplog.set_level(logging.INFO)
    assert await tcp.drain(Authorization=f"Bearer {token}") == (200, "")
    assert tcp.engine.drained
    (record,) = [r for r in caplog.records if r.name == "audit-over-tcp"]
    assert record.fields["actor"] == f"token:{tcp.tokens.fingerprint(token.encode())}"
    assert token not in caplog.text


@pytest.mark.parametrize(
    "given",
    [None, "", "Bearer", "Bearer wrong-token-abcdef", f"Basic {ONE}", f"Bearer {ONE}x", "Bearer é"],
)
async def test_without_a_valid_token_nothing_is_changed(tcp, given):
    headers = {} if given is None else {"Authorization": given}
    assert await tcp.drain(**headers) == (401, "not_authorised")
    assert not tcp.engine.drained
    response = await tcp.client.get(f"{PREFIX}/status", headers=headers)
    assert response.status == 401
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert "X-Request-Id" in response.headers


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Host": "evil.example"}, "host_not_allowed"),
        ({"Host": "127.0.0.1.evil.example:80"}, "host_not_allowed"),
        ({"Origin": "https://evil.example"}, "origin_not_allowed"),
        ({"Origin": "null"}, "origin_not_allowed"),
        ({"Sec_Fetch_Site": "cross-site"}, "origin_not_allowed"),
    ],
)
async def test_pages_are_refused_whatever_token_they_show(tcp, headers, code):
    assert await tcp.drain(Authorization=f"Bearer {ONE}", **headers) == (403, code)
    assert not tcp.engine.drained


async def test_tokens_can_be_replaced_while_it_runs(tcp):
    tcp.tokens.file.write_text("a-third-token-lmnop\n")
    assert tcp.tokens.take(AdminTokens(tcp.tokens.file))
    assert (await tcp.drain(Authorization=f"Bearer {ONE}"))[0] == 401
    assert (await tcp.drain(Authorization="Bearer a-third-token-lmnop"))[0] == 200


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        (ONE, 0o640, "mode 0640"),
        (ONE, 0o602, "mode 0602"),
        ("short", 0o600, ":1: expected a token of at least 16"),
        (f"{ONE}\ntökens-are-ascii-only", 0o600, ":2: "),
        ("a token with some spaces", 0o600, ":1: "),
        ("\n# none\n", 0o600, "holds no token"),
    ],
)
def test_a_token_file_that_is_not_safe_is_refused(tmp_path: Path, text, mode, says):
    file = tmp_path / "tokens"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(TokenFileError) as caught:
        AdminTokens(file)
    assert says in str(caught.value)
    assert text not in str(caught.value)


def test_a_new_token_file_is_closed_to_others_and_never_written_over(tmp_path: Path):
    file = tmp_path / "tokens"
    create_token_file(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(AdminTokens(file)) == 1
    with pytest.raises(FileExistsError):
        create_token_file(file)
    with pytest.raises(TokenFileError, match="cannot be read"):
        AdminTokens(tmp_path / "absent")
