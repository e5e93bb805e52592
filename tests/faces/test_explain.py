"""`--explain` and `--explain-page`: what they tell is what happened, and nothing gets in."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import taught_models
import tiny_models
from fakes import FakeTokenizer
from jinja2 import Environment
from rich.console import Console

import draftproof as dp
from draftproof.backends.session import CachedSession
from draftproof.cli import page as pages
from draftproof.cli import progress as cli_progress
from draftproof.cli.chart import WINDOW, chart, rolling, ticks
from draftproof.cli.explain import LONGEST, short, show_rounds
from draftproof.cli.rounds import Names, laid_out, told
from draftproof.core import Guess, Round, Token
from draftproof.engine import Generation, Speculator, Stats

PROMPT, TEXT = taught_models.PROMPT, taught_models.TEXT
SAMPLED = ["--temperature", "1.5", "--top-k", "40", "--seed", "5", "--max-tokens", "40"]
Run = Any


@pytest.fixture
def run(folder: Path, run: Run) -> Run:
    """A command with the draft at length 4."""

    def drafting(command: str, *arguments: Any) -> tuple[int, str, str]:
        draft = ["--draft", folder / "draft", "--drafter", "model", "--draft-length", "4"]
        return run(command, *draft, *arguments)  # type: ignore[no-any-return]

    return drafting


def rows(err: str) -> list[str]:
    """The table's lines under its header, up to the account."""
    lines = err.splitlines()
    start = next(i for i, line in enumerate(lines) if line.strip().startswith("round"))
    end = next(i for i, line in enumerate(lines) if " tokens/s · " in line)
    return lines[start + 1 : end]


class Read(HTMLParser):
    """A page as a browser sees it: its tags with the names of attributes, and its tokens."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, ...]] = []
        self.tokens: list[tuple[str, str, str]] = []  # classes, title, text
        self.attributes: list[tuple[str, str, str | None]] = []
        self._stack: list[str] = []
        self._in_text = False
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, *(name for name, _ in attrs)))
        self.attributes += [(tag, name, value) for name, value in attrs]
        given = dict(attrs)
        if tag == "div":
            self._in_text = given.get("class") == "text"
        if self._in_text and tag == "span":
            self.tokens.append((given["class"] or "", given["title"] or "", ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == "div":
            self._in_text = False

    def handle_data(self, data: str) -> None:
        if self._in_text:
            classes, title, text = self.tokens[-1]  # nothing stands between the tokens
            self.tokens[-1] = (classes, title, text + data)

    @property
    def text(self) -> str:
        return "".join(text for _, _, text in self.tokens)


def made(
    texts: Sequence[str], rounds: Sequence[Round] = (), reasons: tuple[str, ...] = ()
) -> Generation:
    """An output of these texts, a plain round each unless rounds are given."""
    plain = Round(0, 0, 1, 0.0, 0.001, 0.0)
    rounds = tuple(rounds) or (plain,) * len(texts)
    tokens = tuple(
        Token(id=i, position=i, round=min(i, len(rounds) - 1), origin="plain", p=0.5, text=text)
        for i, text in enumerate(texts)
    )
    return Generation(
        text="".join(texts), token_ids=tuple(range(len(texts))), tokens=tokens,
        finish_reason="length", seed=1, rule="block", prompt_tokens=1,
        stats=Stats.of(rounds, len(texts), 0.1, reasons), rounds=rounds,
    )  # fmt: skip


def page_of(generation: Generation, asked: str = "asked", account: str = "account") -> str:
    names = Names(None)
    rounds = told(generation, names)
    return pages.page([pages.section(asked, generation, account, rounds, names)])


# --- the table ------------------------------------------------------------------------------


def test_the_table_tells_every_drafted_token(run: Run, api: Speculator) -> None:
    _, plain_out, _ = run("generate", *SAMPLED, PROMPT)
    status, out, err = run("generate", *SAMPLED, "--explain", PROMPT)
    options = {"temperature": 1.5, "top_k": 40, "seed": 5, "max_tokens": 40}
    result = api.generate(PROMPT, **options)
    assert (status, out) == (0, plain_out)
    printed = rows(err)
    own = [token for token in result.tokens if token.origin != "accepted"]
    assert len(printed) == result.stats.drafted + len(own)
    assert sum(" accepted " in row for row in printed) == result.stats.accepted
    # The account stays the last line; each round has its number, its share and its milliseconds.
    assert " tokens/s · " in err.splitlines()[-1]
    numbered = [row for row in printed if re.match(r" {0,4}\d+ ", row)]
    assert len(numbered) == result.stats.rounds
    for i, (row, account) in enumerate(zip(numbered, result.rounds, strict=True), 1):
        assert row.split()[0] == str(i)
        assert f" {account.accepted} of {account.drafted} draft " in row or not account.drafted
        assert re.search(r" \d+\.\d ", row)
    first = result.rounds[0].guesses[0]
    name = Names(api.tokenizer)(first.id)
    assert name in printed[0]
    assert f"{first.p:.3f} {first.q:.3f}" in printed[0]


def test_without_the_flag_nothing_is_told(run: Run) -> None:
    _, out, err = run("generate", PROMPT)
    assert out == TEXT + "\n"
    assert len(err.splitlines()) == 1


def test_why_a_draft_stopped_is_told(run: Run) -> None:
    _, _, err = run("generate", "--explain", PROMPT)
    assert "the draft length" in err


def test_reasons_stand_at_their_rounds() -> None:
    plain = Round(0, 0, 1, 0.0, 0.001, 0.0)
    rounds = (plain, replace(plain, reasons=("switched off after round 2",)), plain)
    output = made(["a", "b", "c"], rounds, ("before all", "switched off after round 2"))
    file = io.StringIO()
    show_rounds(Console(file=file), output, Names(None))
    lines = [line.split() for line in file.getvalue().splitlines()]
    assert [line[0] for line in lines] == ["before", "round", "1", "2", "switched", "3"]
    shown = page_of(output)
    assert shown.index("before all", shown.index("<tbody>")) < shown.index('<td class="n">1</td>')
    after = shown.index("switched off after round 2", shown.index("<tbody>"))
    assert shown.index('<td class="n">2</td>') < after < shown.index('<td class="n">3</td>')


def test_the_drafts_reading_is_told_where_it_happened() -> None:
    plain = Round(0, 0, 1, 0.0, 0.001, 0.0, stopped="it would not pay")
    rounds = (plain, replace(plain, read_seconds=0.123), plain)
    output = made(["a", "b", "c"], rounds)
    file = io.StringIO()
    show_rounds(Console(file=file), output, Names(None))
    for shown in (file.getvalue(), page_of(output)):
        told_once = "it would not pay (first the draft read the text, 123 ms)"
        assert " ".join(shown.split()).count(told_once) == 1


def test_the_engine_notes_the_round_that_gave_a_reason() -> None:
    """A drafter that is hardly ever right is switched off, and the round says so."""
    model = dp.from_transformers(tiny_models.llama(2), tiny_models.llama(7), drafter="model")
    result = model.generate([5, 6, 7], max_tokens=60, eos=[])
    in_rounds = [reason for account in result.rounds for reason in account.reasons]
    before = len(result.stats.reasons) - len(in_rounds)
    assert list(result.stats.reasons[before:]) == in_rounds
    for number, account in enumerate(result.rounds, 1):
        assert all(f" after round {number}:" in reason for reason in account.reasons)
    assert all("before the first round" in reason for reason in result.stats.reasons[:before])
    assert result.stats.reasons


def guesses(*parents: int) -> tuple[Guess, ...]:
    return tuple(Guess(i, parent, "x", 1.0, None, False) for i, parent in enumerate(parents))


def test_chains_are_plain_and_branches_are_drawn() -> None:
    assert list(laid_out(guesses(-1, 0, 1))) == [("", 0), ("", 1), ("", 2)]
    # 0 and 1 begin; behind 0 stand 2 and 4, behind 2 stands 3; behind 1 stands 5.
    assert list(laid_out(guesses(-1, -1, 0, 2, 0, 1))) == [
        ("├ ", 0), ("│ ├ ", 2), ("│ │ ", 3), ("│ └ ", 4), ("└ ", 1), ("  ", 5),
    ]  # fmt: skip
    long = guesses(*range(-1, 5000))
    assert [node for _, node in laid_out(long)] == list(range(5001))


def test_tokens_are_called_by_what_they_add() -> None:
    tokenizer = FakeTokenizer()
    names = Names(tokenizer)

    def name(text: str) -> str:
        return names(tokenizer.encode(text, special=False)[0])

    assert name(" the") == "' the'"
    assert name("\n") == r"'\n'"
    assert name("é").startswith("'\N{REPLACEMENT CHARACTER}' #")
    assert names(0) == "#0"  # <bos>
    assert Names(None)(7) == "#7"

    class Stripping(FakeTokenizer):
        """As SentencePiece decodes: no space before the first word."""

        def decode(self, ids: Sequence[int]) -> str:
            return super().decode(ids).removeprefix(" ")

    assert Names(Stripping())(tokenizer.encode(" the", special=False)[0]) == "' the'"


# --- the JSON object ------------------------------------------------------------------------


def test_json_has_the_rounds_where_they_are_asked_for(run: Run, api: Speculator) -> None:
    _, out, _ = run("generate", "--json", PROMPT)
    assert "rounds" not in json.loads(out)
    _, out, err = run("generate", "--json", "--explain", PROMPT)
    result = api.generate(PROMPT)
    rounds = json.loads(out)["rounds"]
    assert err == ""
    assert len(rounds) == result.stats.rounds
    assert [t["id"] for r in rounds for t in r["tokens"]] == list(result.token_ids)
    for told_round, account in zip(rounds, result.rounds, strict=True):
        assert told_round["stopped"] == account.stopped
        for told_guess, guess in zip(told_round["guesses"], account.guesses, strict=True):
            for name in ("id", "parent", "source", "kept"):
                assert told_guess[name] == getattr(guess, name)
            assert told_guess["q"] == pytest.approx(guess.q)
    for token, expected in zip(
        (t for r in rounds for t in r["tokens"]), result.tokens, strict=True
    ):
        for name in ("text", "position", "origin", "source"):
            assert token[name] == getattr(expected, name)


# --- the page -------------------------------------------------------------------------------


def test_the_page_shows_the_text_and_every_account(
    run: Run, api: Speculator, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    status, out, err = run("generate", "--explain-page", path, PROMPT)
    result = api.generate(PROMPT)
    read = Read(path.read_text(encoding="utf-8"))
    assert (status, out) == (0, TEXT + "\n")
    assert f"explained in {path}" in err
    assert list(tmp_path.iterdir()) == [path]
    assert read.text == TEXT
    before = -1
    for (classes, title, text), token in zip(read.tokens, result.tokens, strict=True):
        assert text == token.text
        assert token.origin in classes.split()
        assert ("first" in classes.split()) == (token.round != before)
        before = token.round
        for part in (
            token.origin, f"p {token.p:.3f}", f"round {token.round + 1} ",
            f"token {token.position + 1} ", f"id {token.id}",
        ):  # fmt: skip
            assert part in title
        assert (f"drafted by {token.source}" in title) == (token.origin == "accepted")
    drawn = [tag for tag in read.tags if tag[0] == "rect"]
    assert len(drawn) == 2 * result.stats.rounds


def test_a_residual_names_what_was_rejected() -> None:
    tree = (
        Guess(10, -1, "x", 1.0, 0.9, True), Guess(11, -1, "x", 1.0, 0.05, False),
        Guess(12, 0, "x", 1.0, 0.2, False), Guess(13, 0, "x", 0.5, 0.1, False),
        Guess(14, 2, "x", 1.0, None, False),
    )  # fmt: skip
    output = made(["a", "b"], [Round(5, 1, 2, 0.0, 0.001, 0.0, guesses=tree)])
    own = replace(output.tokens[1], origin="residual")
    assert "in place of #12, #13" in pages.title(own, output, Names(None))
    assert "in place of" not in pages.title(output.tokens[0], output, Names(None))


def test_the_page_needs_nothing_and_runs_nothing(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    run("generate", "--explain-page", path, PROMPT)
    html = path.read_text(encoding="utf-8")
    read = Read(html)
    assert not {"script", "link", "img", "iframe", "base", "object"} & {t[0] for t in read.tags}
    names = {name for _, name, _ in read.attributes}
    assert not {"src", "href", "srcset"} & names
    assert not [name for name in names if name.startswith("on")]
    assert not re.search(r"url\(|@import|https?:", html)
    policy = [v for _, name, v in read.attributes if name == "content" and v and "default-src" in v]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]
    for scheme in ("light dark", "prefers-color-scheme: dark"):
        assert scheme in html
    shapes = re.findall(r"\.t\.(\w+) \{[^}]*border-bottom: 3px (\w+)", html)
    assert dict(shapes) == {"accepted": "solid", "residual": "dotted", "bonus": "double"}


def test_long_names_leave_room_for_the_way_of_drafting() -> None:
    assert short("suffix, beside") == "suffix, beside"
    assert short("qwen2.5-coder-0.5b-instruct, of the rest") == "qwen2.5-co…, of the rest"
    assert len(short("qwen2.5-coder-0.5b-instruct, next best")) == LONGEST
    assert short("qwen2.5-coder-0.5b-instruct") == "qwen2.5-coder-0.5b-instruct"  # the table cuts


HOSTILE = [
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onmouseover='alert(1)",
    "</span></div></section></body>", "<!--", "-->", "]]>", "&lt;b&gt;", "&#60;", "<", "/title>",
    "{{ 7 * 7 }}", "{% raw %}", "<style>*{display:none}</style>", "\u202e", "<svg/onload=x>",
]  # fmt: skip


def test_what_a_model_writes_cannot_become_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hostile strings in every place give the same tags as harmless ones, and read as they are."""

    def shown(texts: Sequence[str]) -> str:
        every = " ".join(texts)
        guess = Guess(3, -1, every, 0.5, 0.5, True)
        rounds = [
            Round(1, 1, 1, 0.0, 0.001, 0.0, guesses=(guess,), stopped=every, reasons=(every,))
        ] * len(texts)
        output = made(texts, rounds, (every,) * (len(texts) + 1))
        output = replace(
            output, tokens=tuple(replace(t, source=every, origin="accepted") for t in output.tokens)
        )
        names = Names(None)
        monkeypatch.setattr(Names, "__call__", lambda self, token: texts[token % len(texts)])
        section = pages.section(every[:200], output, every, told(output, names), names)
        return pages.page([section])

    harmless = shown(["x"] * len(HOSTILE))
    hostile = shown(HOSTILE)
    assert Read(hostile).tags == Read(harmless).tags
    assert Read(hostile).text == "".join(HOSTILE)
    assert [title.split(" · ")[0] for _, title, _ in Read(hostile).tokens] == HOSTILE
    # Control: a template that does not escape lets them in, and the comparison sees it.
    source = Path(pages.__file__).parents[1].joinpath("data", "explain.html").read_text()
    careless = Environment(trim_blocks=True, lstrip_blocks=True)
    careless.filters["chance"] = str
    broken = careless.from_string(source.replace("| escape", ""))
    monkeypatch.setattr(pages, "template", lambda: broken)
    assert Read(shown(["x"] * len(HOSTILE))).tags == Read(harmless).tags
    assert Read(shown(HOSTILE)).tags != Read(harmless).tags


def test_white_space_is_kept_as_it_is() -> None:
    texts = ["\n", "\n\n  indented", "\ttab\t", "  two  ", "\r\n", "\r", "", "last \n"]
    html = page_of(made(texts), asked="\nfirst\tline\r\n")
    read = Read(html)
    assert [text for _, _, text in read.tokens] == texts
    # A browser takes a bare CR for LF; the parser above does not.
    assert "\r" not in html
    assert [" line" in classes for classes, _, _ in read.tokens] == ["\n" in t for t in texts]
    assert "white-space: pre-wrap" in html


def test_what_html_cannot_hold_is_replaced() -> None:
    html = page_of(made(["a\0b", "\ud800"]), asked="\udcff")
    assert Read(html).text == "a\N{SYMBOL FOR NULL}b?"
    html.encode("utf-8")


# --- the drawing ----------------------------------------------------------------------------


def test_the_rolling_share_looks_back_over_a_window() -> None:
    counts = [(0, 0), (4, 2), (0, 0), (30, 30), (16, 0), (16, 16), (0, 0), (40, 10)]
    rounds = [Round(drafted, kept, kept + 1, 0.0, 0.0, 0.0) for drafted, kept in counts]
    expected: list[float | None] = []
    for end in range(1, len(rounds) + 1):
        start = end
        while start > 0 and sum(d for d, _ in counts[start:end]) < WINDOW:
            start -= 1
        drafted, kept = (sum(column) for column in zip(*counts[start:end], strict=True))
        expected.append(kept / drafted if drafted else None)
    assert expected[0] is None
    assert rolling(rounds) == pytest.approx(expected)


def test_the_drawing_stays_in_its_frame() -> None:
    rounds = [Round(n % 7, n % 5, n % 5 + 1, 0.0, 0.0, 0.0) for n in range(40)]
    drawn = chart(made(["x"] * sum(r.emitted for r in rounds), rounds))
    assert sum(bar.width for bar in drawn.bars) == pytest.approx(888 - 46)
    assert all(146 <= bar.top < bar.kept_top <= 236 for bar in drawn.bars)
    assert all(46 <= x <= 888 and 16 <= y <= 116 for x, y in drawn.share)
    empty = chart(made([]))
    assert (empty.bars, empty.share) == ((), ())


@pytest.mark.parametrize("end", [1, 2, 5, 9, 10, 11, 37, 100, 256, 4096, 99999])
@pytest.mark.parametrize("most", [4, 10])
def test_ticks_are_few_and_round(end: int, most: int) -> None:
    steps = ticks(end, most)
    assert 2 <= len(steps) <= most + 1
    assert steps[-1] <= end
    assert str(steps.step).rstrip("0") in ("1", "2", "5")


# --- failures -------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["generate", PROMPT], ["chat"]])
def test_a_page_that_cannot_be_written_is_refused_before_loading(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: list[str]
) -> None:
    def load(**_: Any) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr(cli_progress, "load", load)
    nowhere = tmp_path / "nowhere" / "page.html"
    status, out, err = run(command[0], "--explain-page", nowhere, *command[1:])
    assert (status, out) == (2, "")
    assert f"error: {nowhere} cannot be written" in err
    assert "give --explain-page a file" in err
    status, _, err = run(command[0], "--explain-page", tmp_path, *command[1:])
    assert status == 2
    assert "is a directory" in err
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    status, _, err = run(command[0], "--explain-page", tmp_path / "page.html", *command[1:])
    assert status == 2
    assert f"the folder {tmp_path} cannot be written" in err
    assert list(tmp_path.iterdir()) == []


def test_a_page_is_written_whole_or_not_at_all(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    path.write_text("an older page")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    status, out, err = run("generate", "--explain-page", path, PROMPT)
    assert (status, out) == (2, TEXT + "\n")
    assert "No space left" in err
    assert path.read_text() == "an older page"
    assert list(tmp_path.iterdir()) == [path]


def test_ctrl_c_keeps_what_there_is(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real, passes = CachedSession.score, 0

    def score(self: CachedSession, tokens: Any, keep: int) -> Any:
        nonlocal passes
        passes += keep > 1  # the target's, over a draft
        if passes == 4:
            raise KeyboardInterrupt
        return real(self, tokens, keep)

    monkeypatch.setattr(CachedSession, "score", score)
    path = tmp_path / "page.html"
    status, out, err = run("generate", "--explain", "--explain-page", path, PROMPT)
    assert status == 130
    assert TEXT.startswith(out.removesuffix("\n"))
    numbers = [row.split()[0] for row in rows(err) if re.match(r" {0,4}\d+ ", row)]
    assert numbers == ["1", "2", "3"]
    assert Read(path.read_text(encoding="utf-8")).text + "\n" == out
    assert "ended by interrupted" in path.read_text(encoding="utf-8")


# --- chat -----------------------------------------------------------------------------------


def test_chat_explains_each_answer_and_its_page_holds_all(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("who sold owls\nand <b>who</b> paid\n"))
    path = tmp_path / "page.html"
    status, out, err = run("chat", *SAMPLED, "--explain", "--explain-page", path)
    assert status == 0
    assert err.count("why it stopped") == 2
    read = Read(path.read_text(encoding="utf-8"))
    assert sum(tag[0] == "section" for tag in read.tags) == 2
    assert "b" not in {tag[0] for tag in read.tags}
    assert "".join(out.split("\n")) == "".join(read.text.split("\n"))
