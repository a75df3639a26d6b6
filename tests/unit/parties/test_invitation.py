"""Invitations: who knows the code comes to an agreement, and nobody else does."""

import asyncio
import hashlib
import secrets
import socket
import tomllib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace

import pytest

from securevfl.errors import (
    ConfigError,
    PeerError,
    PeerNotTrusted,
    PeerUnreachable,
    PeerViolation,
    SecureVFLError,
)
from securevfl.parties import invitation, relay
from securevfl.parties.agreement import Agreement, require_signature
from securevfl.parties.door import Stream, meet_by_nameplate, serve_nameplates
from securevfl.parties.identity import Identity, public_text
from securevfl.parties.invitation import (
    Joined,
    Number,
    Proposed,
    Signatures,
    completed,
    invite,
    join,
    words_over,
)
from securevfl.parties.talk import Code, Talk, shake_hands
from tests.link_parties import free_address, run
from tests.organizations import toml

Kept = dict[str, tuple[Agreement, Mapping[str, bytes]]]


def draft(*names: str) -> str:
    parties = [{"name": name, "role": "feature"} for name in names]
    parties[0]["role"] = "label"
    return toml(job={"name": "loans"}, links={"relay": "ws://relay.example:7"}, party=parties)


@dataclass
class Scene:
    """A bank that invites others; what each has seen and kept."""

    names: tuple[str, ...] = ("bank", "shop")
    listen: str = field(default_factory=free_address)
    said: list[str] = field(default_factory=list)
    words: dict[str, str] = field(default_factory=dict)
    kept: Kept = field(default_factory=dict)
    declines: str = ""

    def __post_init__(self) -> None:
        self.keys = {name: Identity.generate() for name in self.names}
        self.codes = {name: Code.new(self.listen) for name in self.names[1:]}

    def agree(self, name: str) -> invitation.Agree:
        async def agree(agreement: Agreement, words: Mapping[str, str]) -> bool:
            del agreement
            self.words |= {f"{name} with {peer}": each for peer, each in words.items()}
            return name != self.declines

        return agree

    async def invites(
        self, *, at_relay: bool = False, opened: Callable[[], None] = lambda: None
    ) -> None:
        self.kept["bank"] = await invite(
            draft(*self.names),
            ("bank", None),
            self.keys["bank"],
            self.codes,
            self.agree("bank"),
            listen=None if at_relay else self.listen,
            proxy=None,
            say=self.said.append,
            opened=opened,
        )

    async def joins(self, name: str = "shop", code: Code | None = None, own: str = "") -> None:
        """Join; whoever is there first tries until somebody listens."""

        def keep(agreement: Agreement, signatures: Mapping[str, bytes]) -> None:
            self.kept[name] = agreement, dict(signatures)

        while True:
            try:
                await join(
                    code or self.codes[name],
                    (own or name, f"ws://{name}.example:7"),
                    self.keys[name],
                    self.agree(name),
                    keep,
                    proxy=None,
                )
            except PeerUnreachable as error:
                if "nobody listens" not in str(error):
                    raise
                await asyncio.sleep(0.01)
            else:
                return

    def wrong(self, name: str = "shop") -> Code:
        return replace(self.codes[name], words="wrong-" + self.codes[name].words)


async def visit(scene: Scene) -> Stream:
    """Come in with the code's nameplate, and say nothing."""
    code = scene.codes["shop"]
    while True:
        try:
            return await meet_by_nameplate(code.url, code.salt, inviter=False)
        except PeerUnreachable:
            await asyncio.sleep(0.01)


async def outcomes(*waits: Awaitable[object]) -> list[BaseException | None]:
    done = await asyncio.gather(*waits, return_exceptions=True)
    return [each if isinstance(each, BaseException) else None for each in done]


def test_all_who_know_their_codes_keep_the_same_signed_agreement() -> None:
    scene = Scene(("bank", "shop", "club"))
    assert run(outcomes(scene.invites(), scene.joins("shop"), scene.joins("club"))) == [None] * 3
    agreement = scene.kept["bank"][0]
    assert agreement.identities == {name: key.public for name, key in scene.keys.items()}
    assert agreement.addresses == {n: f"ws://{n}.example:7" for n in ("shop", "club")}
    for theirs, signatures in scene.kept.values():
        assert theirs.text == agreement.text
        assert signatures.keys() == scene.keys.keys()
        for name, signature in signatures.items():
            require_signature(agreement, name, signature)
    for name in ("shop", "club"):
        assert scene.words[f"bank with {name}"] == scene.words[f"{name} with bank"]
    assert scene.words["bank with shop"] != scene.words["bank with club"]


def test_parties_that_nobody_can_reach_meet_at_a_relay() -> None:
    scene = Scene()

    async def meet() -> list[BaseException | None]:
        async with relay.serve(scene.listen, scene.said.append):
            return await outcomes(
                scene.invites(at_relay=True), scene.joins("shop", scene.wrong()), again()
            )

    async def again() -> None:
        while not any("the code is wrong" in line for line in scene.said):
            await asyncio.sleep(0.01)
        await scene.joins()

    invited, wrong, right = run(meet())
    assert (invited, right) == (None, None)
    assert isinstance(wrong, PeerNotTrusted)
    assert scene.kept.keys() == scene.keys.keys()


def test_an_inviter_says_once_that_the_relay_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invitation, "INVITED_SECONDS", 0.5)
    monkeypatch.setattr(invitation, "AGAIN_SECONDS", 0.01)
    scene = Scene()
    (ended,) = run(outcomes(scene.invites(at_relay=True)))
    assert "invite again" in str(ended)
    assert scene.said == [f"waits for shop: nobody listens at ws://{scene.listen}"]


def test_a_code_has_five_tries() -> None:
    async def tries(scene: Scene, wrong: int) -> list[BaseException | None]:
        async def guesser() -> list[BaseException | None]:
            guesses = [(await outcomes(scene.joins(code=scene.wrong())))[0] for _ in range(wrong)]
            return [*guesses, (await outcomes(scene.joins()))[0] if wrong < 5 else None]

        inviting = asyncio.ensure_future(outcomes(scene.invites()))
        guesses = await guesser()
        return [*(await inviting), *guesses]

    scene = Scene()
    inviter, *guesses, last = run(tries(scene, 4))
    assert [str(each) for each in guesses] == ["the inviter: the code is wrong"] * 4
    assert (inviter, last) == (None, None)
    scene = Scene()
    inviter, *guesses, _ = run(tries(scene, 5))
    assert isinstance(inviter, PeerNotTrusted)
    assert str(inviter) == "5 tries of the code for shop: the invitation ends, invite again"
    assert all(isinstance(each, PeerNotTrusted) for each in guesses)
    assert not scene.kept


def test_a_code_is_good_once() -> None:
    scene = Scene(("bank", "shop", "club"))

    async def meet() -> list[BaseException | None]:
        first = [asyncio.ensure_future(outcomes(each)) for each in (scene.invites(), scene.joins())]
        while "shop has joined" not in scene.said:
            await asyncio.sleep(0.01)
        replayed = await outcomes(scene.joins())
        await scene.joins("club")
        return replayed + [each for task in first for each in await task]

    replayed, *others = run(meet())
    assert isinstance(replayed, PeerUnreachable)
    assert "the code has expired, has been used, or is mistyped" in str(replayed)
    assert others == [None, None]


def test_a_joiner_waits_for_an_inviter_that_is_busy() -> None:
    scene = Scene()

    async def meet() -> list[BaseException | None]:
        inviting = asyncio.ensure_future(outcomes(scene.invites()))
        before = await visit(scene)
        joining = asyncio.ensure_future(outcomes(scene.joins()))
        while not any("not awaited here" in line for line in scene.said):
            await asyncio.sleep(0.01)
        await before.close()
        assert await joining == [None]
        return await inviting

    assert run(meet()) == [None]
    assert [line for line in scene.said if "try" in line] == [
        "shop closed the connection (try 1 of 5)"
    ]


def test_whoever_hears_of_a_code_at_once_finds_the_inviter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invitation, "INVITED_SECONDS", 0.05)
    scene, told = Scene(), list[int]()

    def hears() -> None:
        host, port = scene.listen.split(":")
        with socket.create_connection((host, int(port))):
            told.append(1)

    (late,) = run(outcomes(scene.invites(opened=hears)))
    assert isinstance(late, ConfigError)
    assert told == [1]


def test_a_joiner_calls_a_place_where_no_door_is_once() -> None:
    scene, callers = Scene(), list[int]()

    async def hangs_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        callers.append(1)
        writer.close()

    async def meet() -> list[BaseException | None]:
        host, port = scene.listen.split(":")
        async with await asyncio.start_server(hangs_up, host, int(port)):
            return await outcomes(scene.joins())

    (error,) = run(meet())
    assert f"no securevfl at ws://{scene.listen}" in str(error)
    assert len(callers) == 1


def test_an_invitation_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invitation, "INVITED_SECONDS", 0.05)
    (late,) = run(outcomes(Scene().invites()))
    assert isinstance(late, ConfigError)
    assert str(late) == "not all have joined in ten minutes: invite again"
    monkeypatch.setattr(invitation, "JOIN_SECONDS", 0.05)
    scene = Scene()

    async def alone() -> list[BaseException | None]:
        async with relay.serve(scene.listen, scene.said.append):
            return await outcomes(scene.joins())

    (nobody,) = run(alone())
    assert "nobody waits" in str(nobody)


@pytest.mark.parametrize("who", ["bank", "shop"])
def test_nobody_keeps_what_one_does_not_accept(who: str) -> None:
    scene = Scene(("bank", "shop", "club"), declines=who)
    ended = run(outcomes(scene.invites(), scene.joins("shop"), scene.joins("club")))
    assert all(isinstance(each, SecureVFLError) for each in ended)
    assert not scene.kept
    assert "not accepted here" in str(ended[scene.names.index(who)])


def test_a_joiner_of_another_name_is_told_so() -> None:
    scene = Scene()

    async def meet() -> list[BaseException | None]:
        inviting = asyncio.ensure_future(outcomes(scene.invites()))
        (named,) = await outcomes(scene.joins(own="club"))
        await scene.joins()
        return [named, *await inviting]

    named, inviter = run(meet())
    assert str(named) == "the inviter invites a party of another name with this code"
    assert inviter is None


class Between:
    """Somebody on the way between two ends, who sees and may change what passes."""

    def __init__(self, scene: Scene, stands: Callable[[Stream, Stream], Awaitable[object]]) -> None:
        self.scene, self._stands = scene, stands
        self.place = free_address()
        self.code = replace(scene.codes["shop"], place=self.place)

    async def run(self) -> list[BaseException | None]:
        """What becomes of the inviter, of the joiner, and of whoever is between."""
        to_shop = serve_nameplates(self.place, [self.code.salt], self.scene.said.append)
        return await outcomes(
            self.scene.invites(), self.scene.joins(code=self.code), self._between(to_shop)
        )

    async def _between(
        self, door: AbstractAsyncContextManager[Callable[[bytes], Awaitable[Stream]]]
    ) -> None:
        code = self.scene.codes["shop"]
        async with door as visitors:
            shop = await visitors(code.salt)
            bank = await meet_by_nameplate(code.url, code.salt, inviter=False)
            try:
                await self._stands(bank, shop)
            finally:
                await bank.close()
                await shop.close()


async def pass_on(
    bank: Stream, shop: Stream, change: Callable[[int, bytes], bytes] = lambda number, data: data
) -> None:
    """Copy both ways; `change` gets the number of each frame from the bank."""

    async def copy(source: Stream, to: Stream, *, changed: bool) -> None:
        for number in range(100):
            data = await source.receive()
            await to.send(change(number, data) if changed else data)

    ways = [copy(bank, shop, changed=True), copy(shop, bank, changed=False)]
    tasks = [asyncio.ensure_future(each) for each in ways]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_who_only_passes_frames_on_changes_nothing() -> None:
    scene = Scene()
    inviter, joiner, _ = run(Between(scene, pass_on).run())
    assert (inviter, joiner) == (None, None)
    assert scene.words["bank with shop"] == scene.words["shop with bank"]


@pytest.mark.parametrize("number", [2, 3, 4])
def test_a_frame_that_is_changed_ends_the_invitation(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invitation, "TRIES", 1)

    def change(now: int, data: bytes) -> bytes:
        return data[:-1] + bytes([data[-1] ^ 1]) if now == number else data

    scene = Scene()
    inviter, joiner, _ = run(Between(scene, lambda b, s: pass_on(b, s, change)).run())
    assert isinstance(joiner, PeerViolation)
    assert "changed on the way" in str(joiner)
    assert "shop" not in scene.kept
    assert isinstance(inviter, PeerError)


def test_a_frame_that_comes_twice_ends_the_invitation() -> None:
    scene, before = Scene(), list[bytes]()

    def repeat(number: int, data: bytes) -> bytes:
        before.append(data)
        return before[2] if number == 3 else data  # the proposal again, instead of the number

    _, joiner, _ = run(Between(scene, lambda bank, shop: pass_on(bank, shop, repeat)).run())
    assert str(joiner) == "the inviter: a frame was changed on the way"
    assert not scene.kept


def test_another_key_under_the_same_exchange_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who does not know the code cannot put its own identity into the handshake of who does."""
    monkeypatch.setattr(invitation, "TRIES", 1)
    own = Identity.generate().public

    def change(number: int, data: bytes) -> bytes:
        return data.replace(scene.keys["bank"].public, own) if number == 0 else data

    scene = Scene()
    inviter, joiner, _ = run(Between(scene, lambda b, s: pass_on(b, s, change)).run())
    assert isinstance(joiner, PeerNotTrusted)
    assert isinstance(inviter, PeerNotTrusted)
    assert not scene.kept


def test_who_knows_the_code_and_is_between_shows_other_words() -> None:
    """It takes part in both talks under identities of its own: only the words tell."""
    scene = Scene()
    mallory = {name: Identity.generate() for name in scene.names}

    async def stand_between(bank: Stream, shop: Stream) -> None:
        code = scene.codes["shop"]
        to_bank = await shake_hands(bank, mallory["shop"], code, "bank", inviter=False)
        to_shop = await shake_hands(shop, mallory["bank"], code, "shop", inviter=True)
        joined = await to_shop.receive(Joined)
        proof = to_bank.prove(mallory["shop"])
        await to_bank.send(Joined(name=joined.name, address=joined.address, proof=proof))
        proposed = await to_bank.receive(Proposed)
        text = proposed.text
        for name, other in (("bank", mallory["bank"].public), ("shop", scene.keys["shop"].public)):
            was = scene.keys["bank"].public if name == "bank" else mallory["shop"].public
            text = text.replace(public_text(was), public_text(other))
        number = secrets.token_hex(32)
        commitment = hashlib.sha256(number.encode()).hexdigest()
        proof = to_shop.prove(mallory["bank"])
        await to_shop.send(Proposed(text=text, commitment=commitment, proof=proof))
        await to_bank.send(await to_shop.receive(Number))
        await to_bank.receive(Number)
        await to_shop.send(Number(number=number))
        await to_shop.receive(Signatures)

    run(Between(scene, stand_between).run())
    assert len(scene.words) == 2
    assert scene.words["bank with shop"] != scene.words["shop with bank"]


def test_who_changes_its_number_after_the_others_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a free choice of its number, whoever is between could try until the words are equal."""
    monkeypatch.setattr(invitation, "TRIES", 1)
    scene = Scene()

    async def inviter(_: Stream, shop: Stream) -> None:
        talk = await shake_hands(
            shop, scene.keys["bank"], scene.codes["shop"], "shop", inviter=True
        )
        await talk.receive(Joined)
        given = {"bank": (talk.own, None), "shop": (talk.other, None)}
        text = completed(draft(*scene.names), given)
        proof = talk.prove(scene.keys["bank"])
        await talk.send(Proposed(text=text, commitment="0" * 64, proof=proof))
        await talk.receive(Number)
        await talk.send(Number(number=secrets.token_hex(32)))
        await talk.receive(Signatures)

    _, joiner, _ = run(Between(scene, inviter).run())
    assert str(joiner) == "the inviter changed its number for the six words"


def test_words_follow_from_keys_agreement_and_numbers() -> None:
    agreement = Agreement(b"a", None, {}, {}, None)  # type: ignore[arg-type]
    own, other = bytes(32), bytes(31) + b"1"

    def talk(own: bytes, other: bytes) -> Talk:
        return Talk(None, "", (own, other), b"", (bytes(32), bytes(32)))  # type: ignore[arg-type]

    one, two = "00" * 32, "01" * 32
    words = words_over(talk(own, other), agreement, one, two)
    assert words == words_over(talk(other, own), agreement, one, two)
    for changed in (
        words_over(talk(own, own), agreement, one, two),
        words_over(talk(own, other), replace(agreement, text=b"b"), one, two),
        words_over(talk(own, other), agreement, two, two),
        words_over(talk(own, other), agreement, one, one),
    ):
        assert changed != words


@pytest.mark.parametrize(
    "text", ["", "12345", "12345-a-b-c-d", "1234-a-b-c-d@h:1", "12345-a-B@h:1", "12345-a@h 1"]
)
def test_what_is_no_code_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no code of an invitation"):
        Code.parse(text)


def test_codes_are_random_and_say_where_to_meet() -> None:
    codes = {Code.new("host:1") for _ in range(100)}
    assert len({code.words for code in codes}) == 100
    assert all(Code.parse(str(code)) == code for code in codes)
    assert {len(code.words.split("-")) for code in codes if "-t-" not in code.words} <= {4, 5}
    assert {code.url for code in codes} == {"ws://host:1"}
    assert Code.new("wss://relay.example").url == "wss://relay.example"
    assert Code.new("ws://host:1").url == "ws://host:1"


PUBLIC = Identity.generate().public


def test_a_draft_is_completed_and_not_otherwise_changed() -> None:
    text = """# a comment
[job]
name = "bank"  # no party's
[[party]]
role = "label"
name = "bank"\t# ours
[[ party ]]
  name = 'shop'
role = "feature"
address = "ws://shop:1"
[exchange]
# name = "shop"
scheme = "bfv\""""
    given = {"bank": (PUBLIC, "ws://bank:1"), "shop": (PUBLIC, "ws://other:1")}
    found = completed(text, given)
    line = f'identity = "{public_text(PUBLIC)}"\n'
    assert found == text.replace("# ours\n", f'# ours\n{line}address = "ws://bank:1"\n').replace(
        "'shop'\n", f"'shop'\n{line}"
    )
    assert completed(text.replace("\n", "\r\n"), given) == found.replace("\n", "\r\n")
    assert completed(text, {}) == text
    tables = tomllib.loads(completed(text.replace('name = "bank"\t# ours', 'name = "x"'), given))
    assert "identity" not in tables["party"][0]


@pytest.mark.parametrize(
    "text",
    [
        'party = [{ name = "bank" }]',
        '[[party]]\n"name" = "bank"',
        '[[party]]\nrole = """\nname = "x"\n"""\nname = "bank"',
    ],
)
def test_a_draft_of_another_layout_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="cannot be written into the draft"):
        completed(text, {"bank": (PUBLIC, None)})
