"""What makes conversations of a loaded model outlive the process: what their files have to agree with, and a keeper."""

from __future__ import annotations

from pathlib import Path

from pagedrun.config import EngineConfig
from pagedrun.durable import Keeper, Speeds
from pagedrun.durable.rates import ASSUMED_READ
from pagedrun.engine import Call, Engine
from pagedrun.gguf_file import ModelFacts
from pagedrun.native.frames import NativeFrames
from pagedrun.plan import Plan
from pagedrun.rope import Yarn
from pagedrun.runtime.store import find_runtime
from pagedrun.sessions import Identity, SessionFolder, model_digest, text_digest
from pagedrun.slots import PagedSlots
from pagedrun.speeds import remembered


def identity_of(
    facts: ModelFacts, config: EngineConfig, frames: NativeFrames | None, template: str, yarn: Yarn | None
) -> Identity:
    """What files have to agree with. Without pages only texts are saved, and all sizes are 1. Raises ModelFileError."""
    geometry = None if frames is None else frames.geometry
    return Identity(
        model=model_digest(facts.parts),
        kv_type_k=config.kv_types[0],
        kv_type_v=config.kv_types[1],
        page_bytes=geometry.page_bytes if geometry else 1,
        row_bytes=geometry.row_bytes if geometry else 1,
        n_stripes=geometry.n_stripes if geometry else 1,
        rope="none" if yarn is None else f"yarn {yarn.factor:g} of {yarn.original}",
        template=text_digest(template),
        runtime=find_runtime().manifest.base,
    )


def keeper_for(
    engine: Engine,
    slots: PagedSlots,
    frames: NativeFrames,
    sessions: tuple[Path, int],
    identity: Identity,
    *,
    plan: Plan | None,
    name: str,
) -> Keeper:
    """What saves and restores an engine's conversations. sessions: a folder, and bytes of automatic entries in it."""
    root, limit = sessions
    return Keeper(
        slots.manager,
        frames,
        slots.resting,
        SessionFolder(root, limit),
        identity,
        call=lambda work: engine.inbox.put(Call(work)),
        can_rewind=engine.runner.can_rewind,
        model=name,
        budget=limit,
        speeds=Speeds(_disk_rate(root), plan.speeds[0].prefill if plan is not None and plan.speeds else 0.0),
    )


def _disk_rate(folder: Path) -> float:
    """Bytes a second of a folder's disk, where they were measured."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return float(remembered().get("disk", {}).get(str(there.stat().st_dev)) or ASSUMED_READ)
