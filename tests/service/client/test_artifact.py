"""An artifact is used only if every byte of it is as expected."""

from __future__ import annotations

import hashlib
import io
import json
import random
import zipfile
from typing import Any

import httpx
import pytest

from tests.support.serving import Server
from tuner.client import Artifact, Client, ExitCode, open_artifact
from tuner.client.errors import Incompatible, NoResult, Refused, Simulated
from tuner.versions import MANIFEST_FORMAT

SOURCE = b"__global__ void kernel() {}"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def zipped(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def artifact_zip(manifest: dict[str, Any] | None = None, **files: bytes) -> bytes:
    """A zip with `kernel.cu` and its manifest; `files` are added or replaced without updating the manifest."""
    listed = {"kernel.cu": {"sha256": sha256(SOURCE), "size_bytes": len(SOURCE)}}
    content = json.dumps({"simulated": False, "files": listed, **(manifest or {})}).encode()
    return zipped({"manifest.json": content, "kernel.cu": SOURCE, **{n.replace("_", "."): c for n, c in files.items()}})


def opened(content: bytes) -> Artifact:
    return open_artifact(content, sha256(content))


def test_an_intact_artifact_opens() -> None:
    artifact = opened(artifact_zip())
    assert artifact.in_format("cu") == SOURCE
    assert artifact.in_format("zip") == artifact.content


def test_a_manifest_without_a_format_opens_and_so_does_each_known_format() -> None:
    assert "format" not in opened(artifact_zip()).manifest
    for number in range(1, MANIFEST_FORMAT + 1):
        assert opened(artifact_zip({"format": number})).in_format("cu") == SOURCE


def test_a_manifest_of_a_newer_format_is_refused_with_both_numbers() -> None:
    with pytest.raises(Incompatible, match=rf"of format {MANIFEST_FORMAT + 1}, .* up to {MANIFEST_FORMAT}; install"):
        opened(artifact_zip({"format": MANIFEST_FORMAT + 1}))


@pytest.mark.parametrize("number", [0, -1, 1.5, "1", True, None])
def test_a_manifest_whose_format_is_no_number_of_one_is_refused(number: object) -> None:
    with pytest.raises(Refused, match="not a format"):
        opened(artifact_zip({"format": number}))


def test_a_zip_changed_by_any_one_byte_is_refused() -> None:
    content = artifact_zip()
    for index in range(len(content)):
        changed = bytearray(content)
        changed[index] ^= 1
        with pytest.raises(Refused):
            open_artifact(bytes(changed), sha256(content))


def test_whatever_bytes_a_zip_has_it_opens_or_is_refused() -> None:
    rng, refused = random.Random(0), 0
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        whole = zipped(opened(artifact_zip()).files, method)
        for _ in range(500):
            content = bytearray(whole)
            for _ in range(rng.choice((1, 1, 2, 3))):
                content[rng.randrange(len(content))] = rng.randrange(256)
            try:
                opened(bytes(content))
            except Refused:
                refused += 1
    assert 1000 < refused < 2000, "some bytes, such as a date, have no effect; changes of all others are detected"


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_of_another_method_is_refused(method: int) -> None:
    with pytest.raises(Refused, match="a method other than deflate"):
        opened(zipped(opened(artifact_zip()).files, method))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"no zip at all", "not an intact zip"),
        (artifact_zip()[:-30], "not an intact zip"),
        (zipped({"kernel.cu": SOURCE}), "no manifest"),
        (zipped({"manifest.json": b"[]"}), "no manifest"),
        (zipped({"manifest.json": b'{"files": {"kernel.cu": {}}}'}), "no manifest"),
        (artifact_zip(kernel_cu=SOURCE.replace(b"kernel", b"kerneI")), "kernel.cu does not match"),
        (artifact_zip(kernel_cu=SOURCE + b" "), "kernel.cu does not match"),
        (artifact_zip(plan_bin=b"1234"), "plan.bin, which its manifest does not name"),
        (artifact_zip({"files": {"plan.bin": {"sha256": "0", "size_bytes": 1}}}), "lacks plan.bin"),
    ],
)
def test_a_zip_of_the_right_digest_but_the_wrong_content_is_refused(content: bytes, why: str) -> None:
    with pytest.raises(Refused, match=why) as refusal:
        opened(content)
    assert refusal.value.exit_code == ExitCode.REFUSED


@pytest.mark.slow
def test_a_zip_that_unpacks_to_far_too_much_is_refused() -> None:
    with pytest.raises(Refused, match="unpacks to more"):
        opened(artifact_zip(bomb_bin=bytes(2**28)))


def test_a_missing_file_is_no_result_and_a_simulated_one_says_so() -> None:
    with pytest.raises(NoResult, match=r"it has .*kernel\.cu"):
        opened(artifact_zip()).in_format("cubin")
    with pytest.raises(Simulated):
        opened(artifact_zip({"simulated": True})).in_format("cubin")


class OneByteOff(httpx.BaseTransport):
    """A network that flips one bit of every artifact."""

    def __init__(self) -> None:
        self._network = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self._network.handle_request(request)
        if not request.url.path.startswith("/artifacts/"):
            return response
        content = bytearray(response.read())
        content[len(content) // 2] ^= 4
        response.close()
        return httpx.Response(200, content=bytes(content))

    def close(self) -> None:
        self._network.close()


# In CI, tests/unit/client/test_answers.py refuses another artifact.
@pytest.mark.soak
def test_an_artifact_that_changed_on_its_way_is_refused(server: Server, client: Client, job_id: str) -> None:
    digest = client.best(job_id)["artifact"]["digest"]
    assert client.artifact(digest).digest == digest
    with Client(server.url, transport=OneByteOff()) as unlucky, pytest.raises(Refused, match="sha256"):
        unlucky.artifact(digest)
