"""Checks the whole structure: every number against every other. Slow on purpose; for tests and for --debug-kv."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from pagedrun.kv.ids import NONE, FrameIds, PageIds
from pagedrun.kv.manager import PageManager
from pagedrun.kv.pool import FramePool
from pagedrun.kv.table import Conversation


class BrokenInvariant(AssertionError):  # noqa: N818 -- it is said of the structure
    """Something in the page manager contradicts something else. It is a bug."""


def validate(manager: PageManager) -> None:
    """Raise BrokenInvariant when the manager's state contradicts itself."""
    _pages(manager)
    for conversation in manager.conversations.values():
        _conversation(manager, conversation)
    _frames(manager, manager.residency.device, manager.table.device)
    _frames(manager, manager.residency.host, manager.table.host)
    _disk(manager)
    _budgets(manager)
    _windows(manager)
    _stages(manager)
    _snapshots(manager)


def _must(holds: bool | np.bool_, what: str) -> None:
    if not holds:
        raise BrokenInvariant(what)


def _all(holds: npt.NDArray[np.bool_], of: npt.NDArray[np.int64] | range, what: str) -> None:
    if not holds.all():
        raise BrokenInvariant(f"{what}: {[int(of[i]) for i in np.flatnonzero(~holds)[:5]]}")


def _live(manager: PageManager) -> PageIds:
    lists = [c.pages for c in manager.conversations.values()]
    return np.unique(np.concatenate([np.zeros(0, np.int64), *lists]))


def _pages(manager: PageManager) -> None:
    table, live = manager.table, _live(manager)
    _must(len(table) == len(live), f"{len(table)} pages exist, and conversations have {len(live)}")
    refs, pins = np.zeros(table.top, np.int64), np.zeros(table.top, np.int64)
    for c in manager.conversations.values():
        _must(len(np.unique(c.pages)) == c.n_pages, f"conversation {c.id} has a page twice")
        refs[c.pages] += 1
        pins[c.pages] += c.bound
    every = range(table.top)
    _all(table.refs[: table.top] == refs, every, "wrong reference counts of pages")
    _all(table.pins[: table.top] == pins, every, "wrong pins of pages")
    device, host, disk = (column[live] != NONE for column in (table.device, table.host, table.disk))
    _all(device | host | disk, live, "pages without a place")
    may_be_cold = table.sealed[live] & host if manager.spilling.possible else np.zeros(len(live), bool)
    _all(device | (table.pins[live] == 0) | may_be_cold, live, "pinned pages that are not on the device")
    _all(device | ~table.ahead[live], live, "pages brought ahead that are not on the device")
    _all(table.sealed[live] | (table.refs[live] == 1), live, "shared pages that are not sealed")
    _all(table.sealed[live] | (device + 1 * host + disk == 1), live, "pages that are not sealed and in two places")
    gone = np.setdiff1d(np.arange(table.top), live)
    _all((table.device[gone] == NONE) & (table.host[gone] == NONE), gone, "frames of pages that are gone")
    _all(table.disk[gone] == NONE, gone, "slots of the file of pages that are gone")
    _must(not manager.lower.lost, "lost pages that are still there")


def _conversation(manager: PageManager, c: Conversation) -> None:
    geometry, table = manager.geometry, manager.table
    name = f"conversation {c.id}"
    _all(table.index[c.pages] == np.arange(c.n_pages), c.pages, f"{name} has pages of another index")
    _must(
        geometry.pages_for(c.length) <= c.n_pages <= geometry.n_pages, f"{name}: {c.n_pages} pages, {c.length} tokens"
    )
    full = geometry.full_pages(c.length)
    _must(full <= c.n_sealed <= full + 1, f"{name} has {full} full pages and {c.n_sealed} sealed ones")
    _all(table.sealed[c.pages] == (np.arange(c.n_pages) < c.n_sealed), c.pages, f"{name}: wrongly sealed")
    if c.slot is None:
        _must(not c.bound, f"{name} is bound to nothing")
    else:
        _must(manager.shown[c.slot] is c, f"{name} is not what slot {c.slot} shows")


def _frames(manager: PageManager, pool: FramePool, column: FrameIds) -> None:
    """A frame is free, or owned by one page."""
    name = pool.tier.name.lower()
    owned = column[: manager.table.top]
    owned = owned[owned != NONE]
    idle, retiring = np.array(pool.idle_frames, np.int64), np.array(pool.retiring_frames, np.int64)
    every = np.concatenate([owned, idle, retiring])
    _must(len(np.unique(every)) == len(every), f"a {name} frame is in two states")
    _must(len(every) == pool.created, f"{pool.created} {name} frames exist, and {len(every)} are known")
    _must(pool.used == len(owned), f"{pool.used} {name} frames are counted as used, and {len(owned)} are")
    _all((every >= pool.first) & (every < pool.first + pool.most), every, f"{name} frames of another tier")
    _all(~manager.transfers.busy(idle), idle, f"free {name} frames that a copy uses")


def _disk(manager: PageManager) -> None:
    """A slot of the file is free, or owned by one page."""
    file, owned = manager.lower.file, manager.table.disk[: manager.table.top]
    owned = owned[owned != NONE]
    every = np.concatenate([owned, np.array(file.free_slots, np.int64)])
    _must(len(np.unique(every)) == len(every), "a slot of the file is in two states")
    _must(file.used == len(owned) <= file.n_slots, f"{file.used} slots are counted as used, and {len(owned)} are")
    _all((every >= 0) & (every < file.n_slots), every, "slots beyond the file's end")


def _budgets(manager: PageManager) -> None:
    size = manager.geometry.frame_bytes
    device, host, stages = manager.residency.device, manager.residency.host, manager.stages
    in_ram = manager.snapshots.nbytes + manager.index.paid + manager.staging.paid
    uses: Iterable[tuple[str, int, int, int]] = (
        ("device", device.budget.used, device.created * size + stages.created * stages.size, device.budget.limit),
        ("host", host.budget.used, (host.created + host.ordered) * size + in_ram, host.budget.limit),
    )
    _must(0 <= host.ordered <= host.ahead, f"{host.ordered} frames are ordered, and {host.ahead} are wished for")
    _must(device.ordered == 0, "frames of the device are ordered")
    for name, used, found, limit in uses:
        _must(used == found, f"{used} bytes of the {name} budget are taken, and {found} are in use")
        _must(used <= limit, f"{used} bytes of the {name} budget of {limit} are taken")


def _windows(manager: PageManager) -> None:
    table, windows = manager.table, manager.windows
    for slot, c in enumerate(manager.shown):
        frames, writable = windows.of(slot)
        shown = np.flatnonzero(frames != NONE)
        _all(~writable | (frames != NONE), range(len(frames)), f"slot {slot}: writable pages without a frame")
        if c is None:
            _must(not shown.size, f"slot {slot} shows pages of nobody")
            continue
        _must(manager.conversations.get(c.id) is c and c.slot == slot, f"slot {slot} shows a conversation that left")
        _must(not shown.size or shown[-1] < c.n_pages, f"slot {slot} shows more pages than conversation {c.id} has")
        pages = c.pages[shown]
        hot = table.device[pages] != NONE
        there = np.where(hot | (not c.bound), table.device[pages], table.host[pages])
        _all(frames[shown] == there, pages, f"slot {slot} shows other frames than those of pages")
        _all(hot | ~writable[shown], pages, f"slot {slot}: writable pages that are on the host")
        _all(~writable[shown] | (table.refs[pages] == 1), pages, f"slot {slot}: writable pages that are shared")
        _must(not c.bound or len(shown) == c.n_pages, f"slot {slot} does not show all of conversation {c.id}")
        unsealed = np.arange(c.n_sealed, c.n_pages) if c.bound else shown[:0]
        _all(writable[unsealed], unsealed, f"slot {slot}: pages to be written to that cannot be")


def _stages(manager: PageManager) -> None:
    """A stage is free, or used by one cell that shows a frame of the host."""
    windows, stages = manager.windows, manager.stages
    cells = np.flatnonzero(windows.stage != NONE)
    cold = windows.frame >= windows.first_host
    _all(cold[cells], cells, "cells with a stage that are not cold")
    every = np.concatenate([windows.stage[cells], np.array(stages.idle_stages, np.int64)])
    _must(len(np.unique(every)) == len(every), "a stage is used twice")
    _must(len(every) == stages.created, f"{stages.created} stages exist, and {len(every)} are known")
    _must(windows.n_cold == cold.sum(), f"{windows.n_cold} cells are counted as cold, and {cold.sum()} are")
    direct = np.flatnonzero(cold & (windows.stage == NONE))
    _must(not direct.size or manager.geometry.zero_copy, "frames of the host are shown that cannot be")


def _snapshots(manager: PageManager) -> None:
    refs: dict[int, int] = {}
    for number, c in manager.conversations.items():
        of = manager.snapshots.of(number)
        positions = [s.position for s in of]
        _must(positions == sorted(set(positions)), f"snapshots of conversation {number} out of order")
        _must(not positions or positions[-1] <= c.length, f"conversation {number} has a snapshot after its end")
        for s in of:
            refs[id(s)] = refs.get(id(s), 0) + 1
    for s in manager.snapshots:
        _must(s.refs == refs.get(id(s), 0), f"a snapshot at {s.position} has {s.refs} references")
