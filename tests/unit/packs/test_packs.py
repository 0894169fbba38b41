"""A pack has the same bytes for the same entries, has the layout that the C reader expects, and refuses invalid
entries."""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.packs import ffn, ladder, make
from tuner.core.problem.asked import workload_of
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.errors import InvalidInput
from tuner.packs.contents import Entry, Kernel
from tuner.packs.read import read_pack
from tuner.packs.records import DIGEST_OFFSET, HEADER, MAGIC, VERSION
from tuner.packs.shapes import ChainShape, Shape
from tuner.packs.write import ALIGNMENT, FOR_PEOPLE, INDEX, SIGNATURE, SUMS, pack_bytes, write_pack, zipped


@pytest.fixture(scope="module")
def entry() -> Entry:
    return ladder(make(PlanKind.FUSED_PDL).kernel, make(workload=ffn(48)).kernel)


@pytest.fixture(scope="module")
def data(entry: Entry) -> bytes:
    return pack_bytes([entry], provenance={"job": "job-1"})


def test_the_same_entries_give_the_same_bytes(entry: Entry, data: bytes, tmp_path: Path) -> None:
    again = Entry(shape=entry.shape, rungs=tuple(replace(rung) for rung in entry.rungs))
    write_pack([again], tmp_path / "model.tunerpack", provenance={"job": "job-1"})
    assert (tmp_path / "model.tunerpack").read_bytes() == data
    assert [path.name for path in tmp_path.iterdir()] == ["model.tunerpack"]


def test_every_file_is_stored_aligned_and_the_index_is_the_first(data: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        infos = archive.infolist()
        for info in infos:
            local = data[info.header_offset : info.header_offset + 30]
            begin = (
                info.header_offset + 30 + int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:], "little")
            )
            assert begin % ALIGNMENT == 0
            assert data[begin : begin + info.file_size] == archive.read(info)
    assert infos[0].filename == INDEX
    assert data[ALIGNMENT : ALIGNMENT + 8] == MAGIC
    header = HEADER.unpack_from(data, ALIGNMENT)
    assert header[4] == ALIGNMENT
    assert header[3] == infos[0].file_size
    assert data[ALIGNMENT + DIGEST_OFFSET : ALIGNMENT + DIGEST_OFFSET + 32] == header[13]


def test_a_pack_reads_back_as_its_entries(entry: Entry, data: bytes) -> None:
    pack = read_pack(data)
    (found,) = pack.entries
    assert found.shape == entry.shape == Shape(dtype="fp16", activation="silu", d_in=64, d_hidden=256, d_out=128)
    digests = [rung.kernel.digest if rung.kernel else None for rung in found.rungs]
    assert digests == [rung.kernel.digest if rung.kernel else None for rung in entry.rungs]
    assert found.rungs[0].kernel is not None
    assert found.rungs[0].kernel.files == entry.rungs[0].kernel.files  # type: ignore[union-attr]
    assert [(found.at(m) or found.rungs[0]).m_hi for m in (1, 16, 17, 48, 49, 4096)] == [16, 16, 48, 48, 4096, 4096]
    assert found.at(4097) is None
    assert pack.document["provenance"] == {"job": "job-1"}


def test_a_signature_is_of_the_sums_which_name_every_other_file(entry: Entry) -> None:
    signed = pack_bytes([entry], sign=lambda sums: b"signed:" + sums[:8])
    pack = read_pack(signed)
    assert pack.signature == b"signed:" + pack.sums[:8]
    with zipfile.ZipFile(io.BytesIO(signed)) as archive:
        named = {line.split("  ")[1] for line in pack.sums.decode().splitlines()}
        assert named == set(archive.namelist()) - {SUMS, SIGNATURE}


def test_a_byte_that_differs_is_refused(data: bytes) -> None:
    begin = data.index(b"\x7fELF measured")
    between = data.index(b"pack.json") + 20  # padding in the header of a file
    for place in (ALIGNMENT + 40, begin + 5, between, *range(0, len(data), len(data) // 40)):
        broken = bytearray(data)
        broken[place] ^= 1
        with pytest.raises(InvalidInput, match="pack: "):
            read_pack(bytes(broken))
    with pytest.raises(InvalidInput, match="is not an intact pack; fetch or build"):
        read_pack(data[:-30])


def test_a_ladder_that_says_two_things_of_a_row_is_refused(entry: Entry) -> None:
    first, second, library = entry.rungs
    with pytest.raises(InvalidInput, match="rows 10 to 48: not after row 16"):
        pack_bytes([replace(entry, rungs=(first, replace(second, m_lo=10), library))])
    with pytest.raises(InvalidInput, match="supports 1 to 16 rows"):
        pack_bytes([replace(entry, rungs=(replace(first, m_hi=20),))])
    with pytest.raises(InvalidInput, match="occurs twice"):
        pack_bytes([entry, entry])


def test_a_kernel_of_another_shape_or_of_an_older_version_is_refused(entry: Entry) -> None:
    other = make(workload=ffn(16, d_out=192)).kernel
    with pytest.raises(InvalidInput, match="computes fp16 64 -> 256 -> 192"):
        pack_bytes([replace(entry, rungs=(replace(entry.rungs[0], kernel=other),))])
    old = entry.rungs[0].kernel
    assert old is not None
    aged = Kernel(files={**old.files, "manifest.json": old.files["manifest.json"].replace(b'"variants"', b'"none"')})
    with pytest.raises(InvalidInput, match="an older version"):
        pack_bytes([replace(entry, rungs=(replace(entry.rungs[0], kernel=aged),))])
    changed = Kernel(files={**old.files, "plan0.bin": b"other"})
    with pytest.raises(InvalidInput, match=r"plan0.bin does not match its manifest"):
        pack_bytes([replace(entry, rungs=(replace(entry.rungs[0], kernel=changed),))])


def test_a_simulated_kernel_says_so_in_its_pack() -> None:
    pack = read_pack(pack_bytes([ladder(make(simulated=True).kernel)]))
    assert pack.document["simulated"] is True


def test_a_compressed_pack_whose_stream_is_broken_is_refused(data: bytes) -> None:
    """The decompressor alone would raise its own type of error."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as other:
        for info in archive.infolist():
            other.writestr(info.filename, archive.read(info))
        begin = other.infolist()[0].header_offset + 30 + len(other.infolist()[0].filename)
    broken = bytearray(buffer.getvalue())
    broken[begin : begin + 8] = b"\xff" * 8
    with pytest.raises(InvalidInput, match="files of a pack are not compressed"):
        read_pack(bytes(broken))


@pytest.mark.parametrize("document", [b"[]", b'{"format": %d}' % VERSION])
def test_a_document_of_another_form_is_refused_though_its_digests_are_right(document: bytes) -> None:
    sums = f"{hashlib.sha256(document).hexdigest()}  {FOR_PEOPLE}\n".encode()
    with pytest.raises(InvalidInput, match=re.escape(FOR_PEOPLE)):
        read_pack(zipped({FOR_PEOPLE: document, SUMS: sums}, {}))


def test_a_document_with_a_name_twice_is_refused_though_its_digests_are_right(data: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    files[FOR_PEOPLE] = files[FOR_PEOPLE].replace(b"{", b'{"simulated": true, ', 1)
    del files[SUMS]
    sums = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in files.items())
    with pytest.raises(InvalidInput, match="is not an intact pack"):
        read_pack(zipped(files | {SUMS: sums.encode()}, {}))


def test_a_chain_is_named_by_its_ops_and_by_the_columns_that_a_product_reads() -> None:
    front = {"op": "wrap", "name": "front", "source": "x"}
    up = {"name": "up", "source": "front", "n": 256, "k": 512, "activation": "identity"}
    for ops, name in (([front, up], "fp16 front -> up 256"), ([up, front], "fp16 512 -> up 256 -> front")):
        assert str(ChainShape(dtype="fp16", ops_json=json.dumps(ops))) == name


def test_a_chain_of_convolutions_says_for_how_many_images_it_is() -> None:
    network = {"kind": "network-convs", "network": "resnet50", "stage": 3, "images": 4}
    assert ChainShape.of_workload(workload_of(network).to_json()).counted == "images=4"
    decoder = {"kind": "decoder-block", "model": "llama3-8b", "m": 16}
    assert ChainShape.of_workload(workload_of(decoder).to_json()).counted == ""
