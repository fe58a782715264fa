import hashlib

from a2cap.data.files.checksum import sha256_of


def test_the_checksum_is_the_sha256_of_the_content(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"content" * 100_000)
    assert sha256_of(path) == hashlib.sha256(b"content" * 100_000).hexdigest()
