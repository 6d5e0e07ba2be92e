"""A pack is verified as it is, and refused where anything in it was altered, by stock tools too."""

import base64
import hashlib
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from evidence.packs import NAMES, key_pair, make_pack

WANTED = "needs the extra: pip install 'gradaudit[evidence,test]'"
dsse = pytest.importorskip("securesystemslib.dsse", reason=WANTED)
signer = pytest.importorskip("securesystemslib.signer", reason=WANTED)
pem = pytest.importorskip("cryptography.hazmat.primitives.serialization", reason=WANTED)
protobuf = pytest.importorskip("google.protobuf.json_format", reason=WANTED)
results = pytest.importorskip(
    "in_toto_attestation.predicates.test_result.v0.test_result_pb2", reason=WANTED
)
messages = pytest.importorskip("in_toto_attestation.v1.statement_pb2", reason=WANTED)
in_toto = pytest.importorskip("in_toto_attestation.v1.statement", reason=WANTED)
FLIPS = 11
"""Bytes that are altered in each file, each in a pack of its own."""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two packs of one signer, whose keys lie beside them."""
    folder = tmp_path_factory.mktemp("evidence")
    with pytest.MonkeyPatch.context() as patch:
        from report_builder import Leak, Rank

        for module in ("gradaudit.judging.policy", "gradaudit.view.layers", "gradaudit.view.gaps"):
            patch.setattr(f"{module}.audits", lambda: {"leak": Leak, "rank": Rank})
        private, _ = key_pair(folder)
        make_pack(folder / "pack", private)
        make_pack(folder / "other", private, value=1.0)
    return folder


def stock(folder: Path, key: Path) -> dict[str, Any]:
    """The statement of a pack, verified by securesystemslib, in-toto's bindings and SHA-256."""
    envelope = dsse.Envelope.from_dict(json.loads((folder / "statement.json").read_text()))
    envelope.verify([signer.SSlibKey.from_crypto(pem.load_pem_public_key(key.read_bytes()))], 1)
    assert envelope.payload_type == "application/vnd.in-toto+json"
    parsed = protobuf.Parse(envelope.payload, messages.Statement())
    in_toto.Statement.copy_from_pb(parsed).validate()
    statement: dict[str, Any] = json.loads(envelope.payload)
    assert statement["predicateType"] == "https://in-toto.io/attestation/test-result/v0.1"
    protobuf.Parse(json.dumps(statement["predicate"]), results.TestResult())
    for named in (*statement["subject"], *statement["predicate"]["configuration"]):
        if wanted := named["digest"].get("sha256"):
            found = hashlib.sha256((folder / named["name"]).read_bytes()).hexdigest()
            assert found == wanted, named["name"]
    return statement


def test_a_sound_pack_is_verified_by_ours_and_by_stock_tools(desk: Path) -> None:
    done = run("verify", desk / "pack", "--key", desk / "signer.pub", width=1000)
    assert done.status == 0, done
    lines = done.out.splitlines()
    assert len(lines) == len(NAMES) + 2
    assert all(line.startswith("ok ") for line in lines)
    assert "FAILED follows from the report and the policy" in done.out
    assert "before the numbers" in lines[-1]
    statement = stock(desk / "pack", desk / "signer.pub")
    assert [each["name"] for each in statement["subject"]] == ["round-5.safetensors"]
    predicate = statement["predicate"]
    assert (predicate["result"], predicate["failedTests"]) == ("FAILED", ["rule 1: leak.bits fc1"])
    digests = [each["digest"] for each in predicate["configuration"]]
    assert {"gradauditFingerprint": "cd" * 32} in digests


def tampered(desk: Path) -> Iterator[tuple[str, dict[str, bytes | None]]]:
    """What was done to a pack, and the files that it then has; None where one is gone."""
    pack, other = ({n: (desk / f / n).read_bytes() for n in NAMES} for f in ("pack", "other"))
    drawn = random.Random(0)
    for name, content in pack.items():
        for place in drawn.sample(range(len(content)), min(FLIPS, len(content))):
            flipped = bytes([content[place] ^ 1])
            yield f"{name}: byte {place}", {name: content[:place] + flipped + content[place + 1 :]}
        yield f"{name} is gone", {name: None}
        if content != other[name]:
            yield f"{name} of another pack", {name: other[name]}
    yield "all but the statement of another pack", {**other, NAMES[-1]: pack[NAMES[-1]]}
    yield "report and policy of another pack", {n: other[n] for n in NAMES[:2]}
    yield "two files swapped", {NAMES[1]: pack[NAMES[2]], NAMES[2]: pack[NAMES[1]]}
    for what, envelope in envelopes(json.loads(pack[NAMES[-1]]), json.loads(other[NAMES[-1]])):
        yield what, {NAMES[-1]: json.dumps(envelope).encode()}


def envelopes(own: dict[str, Any], other: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    (signature,) = own["signatures"]
    payload = base64.b64decode(own["payload"])
    for old, new in ((b"FAILED", b"PASSED"), (b"failedTests", b"passedTests"), (b"ab", b"ba")):
        altered = base64.b64encode(payload.replace(old, new)).decode()
        yield f"a payload with {new!r}", {**own, "payload": altered}
    yield "the payload of another pack", {**own, "payload": other["payload"]}
    yield "the signature of another pack", {**own, "signatures": other["signatures"]}
    yield "no signature", {**own, "signatures": []}
    yield "another type", {**own, "payloadType": "text/plain"}
    yield "another key's name", {**own, "signatures": [{**signature, "keyid": "ab" * 32}]}
    yield "an empty signature", {**own, "signatures": [{**signature, "sig": ""}]}
    yield "a statement without an envelope", json.loads(payload)


@pytest.mark.slow
def test_a_hundred_tampered_packs_are_refused(desk: Path, tmp_path: Path) -> None:
    cases = list(tampered(desk))
    assert len(cases) >= 100
    for number, (what, files) in enumerate(cases):
        folder = tmp_path / str(number)
        shutil.copytree(desk / "pack", folder)
        for name, content in files.items():
            (folder / name).unlink()
            if content is not None:
                (folder / name).write_bytes(content)
        done = run("verify", folder, "--key", desk / "signer.pub", width=1000)
        assert done.status in (1, 2), (what, done)
        assert "ALTERED" in done.out or "holds 0 statements" in done.err, (what, done)
        assert "unexpected" not in done.err, (what, done)
        with pytest.raises(Exception):  # noqa: B017, PT011 - whatever stock tools say
            stock(folder, desk / "signer.pub")


def test_a_pack_of_another_signer_is_refused(desk: Path, tmp_path: Path) -> None:
    _, public = key_pair(tmp_path, "stranger")
    done = run("verify", desk / "pack", "--key", public, width=1000)
    assert (done.status, done.out.split(":")[0]) == (1, "ALTERED  statement.json")
    unnamed = run("verify", desk / "pack")
    assert (unnamed.status, "--key" in unnamed.err) == (2, True)


def test_keys_that_are_none_are_refused(desk: Path, tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("no key")
    done = run("verify", desk / "pack", "--key", tmp_path / "key.pem")
    assert (done.status, "no public key" in done.err) == (2, True)
    judged, key = desk / "pack" / "judged.json", desk / "signer.pub"
    done = run("attest", judged, "-o", tmp_path / "statement.json", "--sign", key)
    assert (done.status, "no private key" in done.err) == (2, True)
    assert not (tmp_path / "statement.json").exists()
