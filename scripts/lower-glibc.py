#!/usr/bin/env python3
"""Makes a packed shared library need no newer glibc than 2.34: what it takes of a newer one it takes from any library of the process, of
which libfreeride_old_glibc.so (base/src/old_glibc.c) is one. In place. Usage: lower-glibc.py LIBRARY

The references lose their version, and the list of needed versions those that are newer. Only for what that library has: another newer
function is an error. Who packs adds the library to those that LIBRARY needs.
"""

import pathlib
import struct
import sys

NEWEST = (2, 34)
OURS = {"arc4random", "_dl_find_object"}
DYNAMIC, LOAD = 2, 1
DT_STRTAB, DT_SYMTAB, DT_VERSYM, DT_VERNEED, DT_VERNEEDNUM = 5, 6, 0x6FFFFFF0, 0x6FFFFFFE, 0x6FFFFFFF
ANY_VERSION = 1


class Library:
    """A little-endian ELF file of 64 bits; the fields that are read here are told in elf(5)."""

    def __init__(self, data):
        self.data = bytearray(data)
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("no ELF file of 64 bits, little-endian")
        at, size, count = (*self.read("<Q", 32), *self.read("<HH", 54))
        headers = [self.read("<IIQQQQQQ", at + size * i) for i in range(count)]
        self.loads = [(vaddr, offset, filesz) for kind, _, offset, vaddr, _, filesz, _, _ in headers if kind == LOAD]
        at, length = next((offset, filesz) for kind, _, offset, _, _, filesz, _, _ in headers if kind == DYNAMIC)
        self.dynamic = dict(self.read("<QQ", where) for where in range(at, at + length, 16))

    def read(self, form, at):
        return struct.unpack_from(form, self.data, at)

    def at(self, tag):
        """Where in the file lies what the dynamic entry `tag` points to."""
        address = self.dynamic[tag]
        return next(address - vaddr + offset for vaddr, offset, size in self.loads if 0 <= address - vaddr < size)

    def text(self, index):
        begin = self.at(DT_STRTAB) + index
        return self.data[begin : self.data.index(0, begin)].decode()

    def newer(self):
        """Each version that is needed and too new: (its number, its name, the fields that point to it and around it)."""
        need = self.at(DT_VERNEED)
        for _ in range(self.dynamic[DT_VERNEEDNUM]):
            _, count, _, aux, step = self.read("<HHIII", need)
            before, entry = None, need + aux
            for _ in range(count):
                _, _, number, name, following = self.read("<IHHII", entry)
                name = self.text(name)
                if name.startswith("GLIBC_2.") and tuple(map(int, name[6:].split("."))) > NEWEST:
                    yield number, name, need, before, entry
                else:
                    before = entry
                entry += following
            need += step

    def forget(self, need, before, entry):
        """Takes the version at `entry` out of the chain of `need`."""
        (_, count, _, aux, _), (following,) = self.read("<HHIII", need), self.read("<I", entry + 12)
        if count == 1:
            raise ValueError("all that it needs of a library is too new")
        struct.pack_into("<H", self.data, need + 2, count - 1)
        if before is None:
            struct.pack_into("<I", self.data, need + 8, aux + following)
        else:
            struct.pack_into("<I", self.data, before + 12, entry + following - before if following else 0)

    def loosen(self, number, name):
        """References of the version `number` are for any version from now on."""
        symbols, versions = self.at(DT_SYMTAB), self.at(DT_VERSYM)
        for i in range((self.end_of_symbols() - symbols) // 24):
            if self.read("<H", versions + 2 * i)[0] != number:
                continue
            symbol = self.text(self.read("<I", symbols + 24 * i)[0])
            if symbol not in OURS:
                raise ValueError(f"it needs {symbol}@{name}, which base/src/old_glibc.c does not have")
            struct.pack_into("<H", self.data, versions + 2 * i, ANY_VERSION)

    def end_of_symbols(self):
        """The table of names follows that of symbols, as every linker lays them out."""
        end = self.at(DT_STRTAB)
        if end <= self.at(DT_SYMTAB):
            raise ValueError("its names do not follow its symbols")
        return end


def main():
    path = pathlib.Path(sys.argv[1])
    try:
        library = Library(path.read_bytes())
        while (found := next(library.newer(), None)) is not None:
            number, name, *where = found
            library.loosen(number, name)
            library.forget(*where)
    except ValueError as error:
        sys.exit(f"lower-glibc.py: {path}: {error}")
    path.write_bytes(library.data)


if __name__ == "__main__":
    main()
