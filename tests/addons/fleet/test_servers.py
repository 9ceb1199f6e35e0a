"""Sampling on vLLM's servers, which are fakes here (tests/support/fake_vllm.py). Real ones: tests/support/swaps.py."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from addons.fleet import probe, servers
from addons.fleet.replica import PREFIX
from addons.fleet.server_sampler import ServerSampler
from steps.core.errors import UserError
from steps.core.params import Policy
from steps.policy.adapter import adapter_hash
from steps.sampling.turns import Limits, Sampled
from tests.support.fake_vllm import FakeVllm, make_adapter

BASE = Policy().base_model
PROMPTS = [[number % 7, number, 3] for number in range(30)]


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeVllm]]:
    """Two servers; `policy_of` samples on them."""
    monkeypatch.setenv("VLLM_API_KEY", "a-key")
    monkeypatch.setattr(servers, "_fleets", {})
    monkeypatch.setattr(servers, "LOOK", 0.05)
    fakes = [FakeVllm(tmp_path / f"uploads-{number}", BASE) for number in range(2)]
    yield fakes
    servers.end()
    for fake in fakes:
        if not fake.is_stopped:
            fake.stop()


def policy_of(fakes: list[FakeVllm], **more: Any) -> Policy:
    settings = {"urls": [fake.url for fake in fakes], "wait_seconds": 5.0}
    return Policy.model_validate({"kind": "server", "servers": settings | more})


def sample(policy: Policy, adapter: Path, prompts: list[list[int]] = PROMPTS, backwards: bool = False) -> list[Sampled]:
    sampler = ServerSampler(policy, adapter, 1.0, 3, 2)
    for key, ids in sorted(enumerate(prompts), reverse=backwards):
        sampler.submit(key, ids, seed=2**62 + key)
    finished: list[Sampled] = []
    while sampler.pending:
        finished += sampler.step()
    return sorted(finished)


def test_replies_are_the_same_from_one_server_and_from_two_in_any_order(two: list[FakeVllm], tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path / "adapter", "one")
    replies = sample(policy_of(two), adapter)
    assert [len(reply.completion_ids) for reply in replies] == [3] * 30
    assert all(len(fake.asked) > 10 for fake in two)  # both worked
    assert sample(policy_of(two[:1]), adapter, backwards=True) == replies
    assert sample(policy_of(two), make_adapter(tmp_path / "other", "two")) != replies


def test_a_request_is_what_the_engine_in_process_gets(two: list[FakeVllm], tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path / "adapter", "one")
    sampler = ServerSampler(policy_of(two[:1]), adapter, 0.5, 3, 2, logit_bias={7: 1.0})
    two[0].asked.clear()
    sampler.submit(4, [1, 2, 3], 2**62 + 1, Limits(2, stop=("x",), schema="{}", top_logprobs=2))
    [reply] = sampler.step()
    body = two[0].asked[1]  # the first one tried the grammar
    assert body["cache_salt"] == body["model"] == PREFIX + adapter_hash(adapter)
    assert body["token_ids"] == [1, 2, 3]
    assert body["sampling_params"] == {
        "temperature": 0.5,
        "max_tokens": 2,
        "stop_token_ids": [2],
        "ignore_eos": False,
        "logprobs": 2,
        "detokenize": True,
        "logit_bias": {"7": 1.0},
        "seed": 2**62 + 1,
        "stop": ["x"],
        "structured_outputs": {"json": "{}", "structural_tag": None},
    }
    assert (reply.key, len(reply.completion_ids), reply.finish_reason) == (4, 2, "length")
    assert [len(place) for place in reply.top] == [2, 2]
    with pytest.raises(ValueError, match="Invalid JSON grammar"):
        sampler.submit(5, [1], 1, Limits(2, schema="bad"))
    assert sampler.pending == 0


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("another service", r"what listens at .* is no server of vLLM's: see policy\.servers\.urls"),
        ("no updating", r"loads no adapters while it runs .* VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"),
        ("no lora", r"does not load the adapter .* LoRA is not enabled\.\): start it with --enable-lora"),
        (
            "rank",
            r"LoRA rank 16 is greater than max_lora_rank 8\.\): start it with a --max-lora-rank of policy\.lora\.rank",
        ),
        ("no uploads", r"takes no adapters over HTTP .* policy\.servers\.adapters"),
        ("no scale-out", r"has no /inference/v1/generate .* --enable-scale-out"),
        ("raw", r"gives logprobs of temperature 1 .* --logprobs-mode processed_logprobs"),
        ("unseeded", r"draws other tokens at the same seed"),
        ("wrong name", r"was asked for the adapter flywheel-.*, and answered as 'another'"),
    ],
)
def test_what_a_server_lacks_is_said_and_no_server_keeps_the_adapter(
    two: list[FakeVllm], tmp_path: Path, fault: str, sentence: str
) -> None:
    two[1].faults.add(fault)
    with pytest.raises(UserError, match=sentence) as raised:
        sample(policy_of(two), make_adapter(tmp_path / "adapter", "one"))
    assert two[1].url in str(raised.value)
    assert "no server keeps the adapter" in str(raised.value)
    assert "a-key" not in str(raised.value)
    assert two[0].adapters == {}
    assert fault == "no updating" or two[1].adapters == {}
    assert all(body["token_ids"] not in PROMPTS for fake in two for body in fake.asked)


def test_another_base_model_a_short_context_and_a_wrong_key(
    two: list[FakeVllm], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = make_adapter(tmp_path / "adapter", "one")
    two[0].base = "another/model"
    with pytest.raises(UserError, match=f"serves another/model, and not policy.base_model: {BASE}"):
        sample(policy_of(two), adapter)
    two[0].base, two[0].context = BASE, 1024
    with pytest.raises(UserError, match=r"takes 1024 tokens, and policy\.context is 2048: .*--max-model-len 2048"):
        sample(policy_of(two), adapter)
    two[0].context = 4096
    monkeypatch.setenv("VLLM_API_KEY", "a-wrong-key")
    servers._fleets.clear()
    with pytest.raises(UserError, match="refuses the key: set VLLM_API_KEY") as raised:
        sample(policy_of(two), adapter)
    assert "a-wrong-key" not in str(raised.value)


def test_a_server_that_serves_one_adapter_for_another_is_refused(two: list[FakeVllm], tmp_path: Path) -> None:
    """As after a load in place, or a stale cache: at the load where it shows then, otherwise when the batch has ended."""
    first, second = (make_adapter(tmp_path / name, name) for name in ("first", "second"))
    replies = sample(policy_of(two), first)
    two[1].faults.add("one adapter")
    assert sample(policy_of(two), second)  # the latest loaded
    with pytest.raises(
        UserError, match=f"{two[1].url} does not answer as the adapter .* any more.*nothing of this batch"
    ):
        sample(policy_of(two), first)
    two[1].faults.clear()
    assert sample(policy_of(two), first) == replies


def test_a_probe_that_is_not_the_trainers_is_refused(two: list[FakeVllm], tmp_path: Path) -> None:
    adapter, other = make_adapter(tmp_path / "adapter", "one"), make_adapter(tmp_path / "other", "two")
    (adapter / probe.FILE).write_text((other / probe.FILE).read_text())
    with pytest.raises(UserError, match=r"after a fixed text it expects .*, and at most 0\.001 is rounding"):
        sample(policy_of(two), adapter)


def test_servers_are_compared_with_each_other_where_the_trainer_wrote_no_probe(
    two: list[FakeVllm], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(servers, "load_tokenizer", lambda _: lambda text, **_more: {"input_ids": [1, 2, 3] * 8})
    assert sample(policy_of(two), make_adapter(tmp_path / "adapter", "one", has_probe=False))
    assert "has no probe.json of a trainer" in capsys.readouterr().out


def test_replies_that_depend_on_their_batch_are_said_and_refused_where_bytes_count(
    two: list[FakeVllm], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = make_adapter(tmp_path / "adapter", "one")
    for fake in two:
        fake.faults.add("uneven")
    policy = policy_of(two)
    sample(policy, adapter)
    assert capsys.readouterr().out.count("depends in its last bits") == 1
    with pytest.raises(UserError, match=r"policy\.deterministic: a reply .* depends on what else it computes"):
        sample(policy.model_copy(update={"deterministic": True}), adapter)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_server_that_is_killed_and_comes_back_changes_no_byte(
    two: list[FakeVllm], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = make_adapter(tmp_path / "adapter", "one")
    replies = sample(policy_of(two), adapter)
    two[0].seconds = two[1].seconds = 0.1
    begun = len(two[0].asked)
    prompts = [ids for ids in PROMPTS for _ in range(2)]
    outcome: list[Any] = []
    monkeypatch.setattr(servers, "AT_ONCE", 4)
    batch = threading.Thread(target=lambda: outcome.append(sample(policy_of(two), adapter, prompts)))
    batch.start()
    until(lambda: len(two[0].asked) > begun + 28)  # the probes, and some turns
    two[0].stop()
    two[0].start()
    again = len(two[0].asked)
    batch.join()
    assert [reply.completion_ids for reply in outcome[0]][::2] != []
    assert len(outcome[0]) == 60
    fleet = next(iter(servers._fleets.values()))
    until(lambda: all(len(replica.held) == 1 for replica in fleet.replicas))
    assert list(two[0].adapters) == list(two[1].adapters) == [PREFIX + adapter_hash(adapter)]
    assert len(two[0].asked) > again  # it was probed, and got turns
    assert re.search(r"is away \(.*\): its \d requests go to others", capsys.readouterr().out)
    assert sample(policy_of(two), adapter) == replies


def test_a_server_that_dies_in_a_load_gets_the_adapter_before_it_gets_a_turn(
    two: list[FakeVllm], tmp_path: Path
) -> None:
    adapter = make_adapter(tmp_path / "adapter", "one")
    two[0].faults.add("dies in a load")
    replies = sample(policy_of(two), adapter)
    assert two[0].adapters == {}
    assert [reply.key for reply in replies] == list(range(30))
    two[0].start()
    fleet = servers.get(policy_of(two))
    until(lambda: all(len(replica.held) == 1 for replica in fleet.replicas))
    assert sample(policy_of(two), adapter) == replies


def test_an_adapter_that_a_restart_took_is_loaded_again(two: list[FakeVllm], tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path / "adapter", "one")
    replies = sample(policy_of(two), adapter)
    two[0].adapters.clear()  # nobody noticed the restart
    sampler = ServerSampler(policy_of(two), adapter, 1.0, 3, 2)
    for key, ids in enumerate(PROMPTS):
        sampler.submit(key, ids, seed=2**62 + key)
    found: list[Sampled] = []
    while sampler.pending:
        found += sampler.step()
    assert sorted(found) == replies


def test_no_server_answers(two: list[FakeVllm], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for fake in two:
        fake.stop()
    with pytest.raises(UserError, match=r"no server has answered for 0 seconds .*start one with `make vllm-server`"):
        sample(policy_of(two, wait_seconds=0.2), make_adapter(tmp_path / "adapter", "one"))
    assert "no server answers" in capsys.readouterr().out


def test_a_server_that_fails_at_a_request_again_and_again(two: list[FakeVllm], tmp_path: Path) -> None:
    sampler = ServerSampler(policy_of(two), make_adapter(tmp_path / "adapter", "one"), 1.0, 3, 2)
    for fake in two:
        fake.faults.add("fails")
    sampler.submit(0, [1], 1)
    sampler.submit(1, [2], 1)
    with pytest.raises(UserError, match="fails at a request: out of memory"):
        sampler.step()
    assert sampler.pending == 0


def test_old_adapters_are_forgotten_and_a_shared_folder_is_used(two: list[FakeVllm], tmp_path: Path) -> None:
    policy = policy_of(two, adapters=str(tmp_path / "shared"))
    for number in range(servers.KEPT + 3):
        sample(policy, make_adapter(tmp_path / f"adapter-{number}", str(number)), [[1, 2]])
    newest = PREFIX + adapter_hash(tmp_path / f"adapter-{servers.KEPT + 2}")
    for fake in two:
        assert len(fake.adapters) == servers.KEPT + 1
        assert list(fake.adapters)[-1] == newest
        assert fake.adapters[newest].parent == tmp_path / "shared"


def test_the_addresses_may_be_in_a_variable(
    two: list[FakeVllm], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = make_adapter(tmp_path / "adapter", "one")
    with pytest.raises(UserError, match=r"policy\.servers\.urls is empty, and so is .* FLYWHEEL_SERVERS"):
        sample(policy_of([]), adapter)
    monkeypatch.setenv("FLYWHEEL_SERVERS", " ".join(fake.url for fake in two))
    assert len(sample(policy_of([]), adapter)) == 30
