"""What tuning measured: seconds of loop nests, by kernel group and by all else that decides a timing.

A record is used only where everything is as it was when it was measured (it is found by a hash of that), and of its
nests only one that is legal for the group at hand. Kept in the cache (kind ``record``), moved as JSON.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, NamedTuple

from eqsat import cache
from eqsat.cost.machine import Machine
from eqsat.cost.processor import Processor, processor_of
from eqsat.cost.target import Target
from eqsat.ir.digest import group_digest
from eqsat.ir.kernel import KernelGroup
from eqsat.ir.nest import Nest
from eqsat.ir.nest_json import nest_from_json, nest_to_json
from eqsat.plan.backend import backend
from eqsat.schedule import anywhere, check_offered

log = logging.getLogger("eqsat")
FORMAT = 1
KIND = "tuning record"
MOST_NESTS = 32
"""Nests of a record, the fastest are kept."""
MOST_RECORDS = 100_000
MOST_BYTES = 64 << 20
"""Of a document that is imported."""
_MOST_SECONDS = 1e5
_MOST_TEXT = 1000


class Setup(NamedTuple):
    """What decides a timing besides the kernel. ``version``: the backend's key, of its code and what it builds on."""

    processor: Processor
    threads: int
    backend: str
    version: str


def setup_of(machine: Machine, threads: int, backend_name: str) -> Setup:
    """This process's."""
    return Setup(processor_of(machine), threads, backend_name, backend(backend_name).key())


@dataclass(frozen=True)
class TuningRecord:
    """Seconds of nests of one kernel group.

    Attributes:
        group: the group's content (see :func:`content`).
        setup: where they were measured.
        name: what the group computes, in words.
        nests: with their seconds, the fastest first, ties by their text.
        made: Unix time of the last measurement.
        eqsat: the version that measured.
    """

    group: str
    setup: Setup
    name: str
    nests: tuple[tuple[Nest, float], ...]
    made: int = 0
    eqsat: str = ""

    @property
    def key(self) -> str:
        return key_of(self.group, self.setup)

    def to_json(self) -> dict[str, Any]:
        """A JSON object that :meth:`from_json` reads back to an equal record."""
        return {
            "group": self.group,
            "name": self.name,
            "processor": self.setup.processor.to_json(),
            "threads": self.setup.threads,
            "backend": self.setup.backend,
            "version": self.setup.version,
            "made": self.made,
            "eqsat": self.eqsat,
            "nests": [{"seconds": seconds, "nest": nest_to_json(nest)} for nest, seconds in self.nests],
        }

    @staticmethod
    def from_json(data: Any) -> TuningRecord:
        """The record in an object written by :meth:`to_json`.

        Raises:
            ValueError: it is something else; the message says what is wrong.
        """
        if not isinstance(data, Mapping) or set(data) != _FIELDS:
            raise ValueError("a record has the fields " + ", ".join(sorted(_FIELDS)))
        for name in ("group", "name", "backend", "version", "eqsat"):
            if not isinstance(data[name], str) or len(data[name]) > _MOST_TEXT:
                raise ValueError(f"a record's {name} is no text of at most {_MOST_TEXT} characters")
        for name, most in (("threads", 1 << 16), ("made", 1 << 40)):
            if type(data[name]) is not int or not 0 <= data[name] <= most:
                raise ValueError(f"a record's {name} is no number up to {most}")
        if not isinstance(data["nests"], list) or not 0 < len(data["nests"]) <= MOST_NESTS:
            raise ValueError(f"a record has 1 to {MOST_NESTS} nests")
        nests = []
        for item in data["nests"]:
            if not isinstance(item, Mapping) or set(item) != {"seconds", "nest"}:
                raise ValueError("a nest of a record has seconds and a nest")
            seconds = item["seconds"]
            if type(seconds) not in (int, float) or not 0 < seconds < _MOST_SECONDS:
                raise ValueError("a nest's seconds are no positive number of at most a day")
            nests.append((nest_from_json(item["nest"]), float(seconds)))
        setup = Setup(Processor.from_json(data["processor"]), data["threads"], data["backend"], data["version"])
        found = TuningRecord(data["group"], setup, data["name"], _ranked(dict(nests)), data["made"], data["eqsat"])
        if len(found.nests) < len(nests):
            raise ValueError("a record has a nest twice")
        return found

    def marks(self) -> tuple[str, str]:
        """Hashes of the fastest nest, and of all in order: as long as that stays, so does the choice that it made."""
        texts = [_text(nest) for nest, _ in self.nests]
        first, every = (hashlib.blake2b("\0".join(part).encode(), digest_size=8) for part in (texts[:1], texts))
        return f"first {first.hexdigest()}", f"all {every.hexdigest()}"


_FIELDS = {"group", "name", "processor", "threads", "backend", "version", "made", "eqsat", "nests"}


def _text(nest: Nest) -> str:
    return json.dumps(nest_to_json(nest), sort_keys=True)


def _ranked(nests: Mapping[Nest, float]) -> tuple[tuple[Nest, float], ...]:
    return tuple(sorted(nests.items(), key=lambda item: (item[1], _text(item[0]))))[:MOST_NESTS]


def content(group: KernelGroup) -> str:
    """What groups share that are scheduled alike: see ``eqsat.schedule.anywhere``."""
    return group_digest(anywhere(group))


def key_of(group: str, setup: Setup) -> str:
    """What a record is kept under."""
    parts = [FORMAT, group, setup.processor.to_json(), *setup[1:]]
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()


def read(key: str) -> TuningRecord | None:
    """The record kept under ``key``; None, with a line in the log, where it is not one or not that one."""
    data = cache.plan_store().get("record", key)
    if data is None:
        return None
    try:
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise ValueError("it is of another format")
        record = TuningRecord.from_json(data)
        if record.key != key:
            raise ValueError(f"it is of another kernel, or another processor ({record.setup.processor.cpu})")
    except ValueError as error:
        log.info("tuning record %s is not used: %s", key, error)
        return None
    return record


def write(record: TuningRecord) -> bool:
    """Keep a record in place of the one of its key. Whether it was kept."""
    about = {"name": record.name, "arguments": f"{record.setup.threads} threads, {record.setup.processor.cpu}"}
    return cache.plan_store().put("record", record.key, {"format": FORMAT, **record.to_json()}, **about)


def merged(old: TuningRecord | None, new: TuningRecord) -> TuningRecord:
    """Both records' nests, with ``new``'s seconds of those that both have."""
    known = dict(old.nests) if old is not None else {}
    return replace(new, nests=_ranked(known | dict(new.nests)))


def measured(group: str, setup: Setup, name: str, nests: Mapping[Nest, float]) -> TuningRecord:
    """A record of what was measured now."""
    return TuningRecord(group, setup, name[:_MOST_TEXT], _ranked(nests), int(time.time()), version("eqsat"))


def fastest(record: TuningRecord, group: KernelGroup, target: Target) -> tuple[Nest, float] | None:
    """The fastest nest of a record that is legal for ``group`` on ``target``, and its seconds; None if none is."""
    for nest, seconds in record.nests:
        try:
            check_offered(nest, group, target)
        except ValueError as error:
            log.info("a recorded nest of %s is not used: %s", record.name, error)
            continue
        return nest, seconds
    return None


def mark(record: TuningRecord | None, chosen: Nest | None) -> str:
    """What a plan that chose so from a record remembers of it (see :func:`unchanged`)."""
    if record is None:
        return ""
    first, every = record.marks()
    return first if chosen == record.nests[0][0] else every


def unchanged(marks: Mapping[str, str]) -> bool:
    """Whether the records of these keys would be chosen from as when they were marked."""
    for key, before in marks.items():
        record = read(key)
        if before not in (record.marks() if record is not None else ("",)):
            return False
    return True


# documents


class Imported(NamedTuple):
    """How many records were taken, of these in place of others, and left out; ``failed``: could not be written."""

    taken: int
    replaced: int
    other_processor: int
    other_version: int
    failed: int


def all_records() -> list[TuningRecord]:
    """Everything kept, by name.

    Raises:
        OSError: the cache directory is not to be trusted or not to be used.
    """
    keys = [entry.key for entry in cache.entries() if entry.kind == KIND]
    found = [record for key in keys if (record := read(key)) is not None]
    return sorted(found, key=lambda record: (record.name, record.setup.threads, record.key))


def document(found: Sequence[TuningRecord]) -> str:
    """Records as one JSON document, which :func:`import_json` takes."""
    return json.dumps({"format": FORMAT, "records": [record.to_json() for record in found]}, indent=1)


def import_json(text: str, machine: Machine) -> Imported:
    """Keep the records of a document that :func:`document` made, those of this processor and of installed backends.

    All of it is looked at before any is kept.

    Raises:
        ValueError: it is no such document, or of another format; nothing was kept.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not a document of tuning records: {str(error)[:100]}") from None
    if not isinstance(document, dict) or set(document) != {"format", "records"}:
        raise ValueError("not a document of tuning records")
    if type(document["format"]) is not int or document["format"] != FORMAT:
        raise ValueError(f"tuning records of another format than {FORMAT}, from another version of eqsat")
    items = document["records"]
    if not isinstance(items, list) or len(items) > MOST_RECORDS:
        raise ValueError(f"not a document of tuning records: it has no list of at most {MOST_RECORDS} records")
    found: dict[str, TuningRecord] = {}
    for number, item in enumerate(items):
        try:
            record = TuningRecord.from_json(item)
        except ValueError as error:
            raise ValueError(f"record {number}: {error}") from None
        if record.key in found:
            raise ValueError(f"record {number} is of the same kernel as one before it")
        found[record.key] = record
    own, versions = processor_of(machine), dict[str, str | None]()
    counts = dict.fromkeys(Imported._fields, 0)
    for record in found.values():
        name = record.setup.backend
        if name not in versions:
            try:
                versions[name] = backend(name).key()
            except (ValueError, ImportError):  # not installed here
                versions[name] = None
        if record.setup.processor != own:
            counts["other_processor"] += 1
        elif record.setup.version != versions[name]:
            counts["other_version"] += 1
        else:
            before = read(record.key)
            kept = write(record)
            counts["taken" if kept else "failed"] += 1
            counts["replaced"] += kept and before is not None
    return Imported(**counts)
