"""Outlook mails for tests: compound files of a few small streams."""

import struct
from pathlib import Path

SECTOR = 512
MINI_SECTOR = 64
FREE, END, FAT_SECTOR = 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFD
STREAMS = {  # by property: its number, and string or bytes
    "subject": "0037001E",
    "body": "1000001E",
    "html": "10130102",
    "headers": "007D001E",
    "sender": "0C1A001E",
}


def outlook(
    folder: Path, code_page: int = 1252, internet_code_page: int = 0, **texts: bytes
) -> Path:
    """Write a mail with 8-bit strings."""
    numbers = {0x3FFD: code_page, 0x3FDE: internet_code_page or code_page}
    properties = bytes(32)
    for number, value in numbers.items():
        properties += struct.pack("<HHIQ", 3, number, 6, value)
    streams = {"__properties_version1.0": properties}
    for name, text in texts.items():
        streams[f"__substg1.0_{STREAMS[name]}"] = text
    path = folder / "mail.msg"
    path.write_bytes(compound_file(streams))
    return path


def compound_file(streams: dict[str, bytes]) -> bytes:
    """Return a compound file with streams below 4,096 bytes in its root."""
    mini, mini_fat, starts = b"", [], {}
    for name, data in streams.items():
        count = max(1, -(-len(data) // MINI_SECTOR))
        starts[name] = len(mini_fat)
        mini_fat += [*range(len(mini_fat) + 1, len(mini_fat) + count), END]
        mini += data.ljust(count * MINI_SECTOR, b"\0")
    names = sorted(streams, key=lambda name: (len(name), name.upper()))
    directory_sectors = -(-(len(names) + 1) // 4)
    fat_sectors = -(-len(mini_fat) * 4 // SECTOR)
    first_mini = 1 + directory_sectors + fat_sectors
    directory = entry("Root Entry", 5, child=1, start=first_mini, size=len(mini))
    for number, name in enumerate(names, start=1):
        right = number + 1 if number < len(names) else FREE
        directory += entry(name, 2, right=right, start=starts[name], size=len(streams[name]))
    fat = [FAT_SECTOR]
    for count in (directory_sectors, fat_sectors, -(-len(mini) // SECTOR)):
        fat += [*range(len(fat) + 1, len(fat) + count), END]
    fat += [FREE] * (SECTOR // 4 - len(fat))
    head = bytes.fromhex("D0CF11E0A1B11AE1") + bytes(16)
    head += struct.pack("<HHHHH", 0x3E, 3, 0xFFFE, 9, 6) + bytes(6)
    head += struct.pack("<9I", 0, 1, 1, 0, 4096, 1 + directory_sectors, fat_sectors, END, 0)
    head += struct.pack("<I", 0) + struct.pack("<I", FREE) * 108
    return (
        head
        + struct.pack(f"<{len(fat)}I", *fat)
        + directory.ljust(directory_sectors * SECTOR, b"\0")
        + struct.pack(f"<{len(mini_fat)}I", *mini_fat).ljust(fat_sectors * SECTOR, b"\xff")
        + mini.ljust(-(-len(mini) // SECTOR) * SECTOR, b"\0")
    )


def entry(
    name: str, kind: int, child: int = FREE, right: int = FREE, start: int = 0, size: int = 0
) -> bytes:
    """Return a directory entry."""
    written = name.encode("utf-16-le") + bytes(2)
    head = written.ljust(64, b"\0") + struct.pack("<HBB", len(written), kind, 1)
    return (
        head + struct.pack("<III", FREE, right, child) + bytes(36) + struct.pack("<IQ", start, size)
    )
