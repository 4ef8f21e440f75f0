"""What docs/compare.md says of others is what their installed packages say: each file that it links
is there, and has, or lacks, the words that the page's cells go by.
"""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

import pytest

from tests.pages import ROOT

PAGE = ROOT / "docs" / "compare.md"
PACKAGES = Path(sysconfig.get_paths()["purelib"])
LINK = re.compile(
    r"https://github\.com/[\w-]+/[\w-]+/blob/[^/]+/"
    r"(?:checkpoint/|(?:s3torchconnector/)?src/)?((?:torch|orbax|lightning|transformers|accelerate|"
    r"s3torchconnector)/[\w./]+)"
)
READ = "s3torchconnector/"
"""Is not installed here: it is for S3 of Amazon, and was read."""
DCP = "torch/distributed/checkpoint"
ORBAX = "orbax/checkpoint/_src"

HAS: dict[str, tuple[str, ...]] = {
    f"{DCP}/state_dict_saver.py": ("def async_save(", "AsyncCheckpointerType.THREAD"),
    f"{DCP}/staging.py": ("use_pinned_memory: bool = True", "self._staging_stream = torch.Stream()"),
    f"{DCP}/filesystem.py": (
        "self.fs.rename(tmp_path, metadata_path)", "overwrite: bool = True",
        "sync_files: bool = True", "os.fsync(stream.fileno())",
    ),
    f"{DCP}/_async_thread_executor.py": ("ThreadPoolExecutor",),
    f"{DCP}/_async_process_executor.py": ("daemon=True",),
    f"{DCP}/planner_helpers.py": ("def create_read_items_for_chunk_list",),
    f"{DCP}/state_dict.py": ("broadcast_from_rank0: bool = False",),
    f"{DCP}/_fsspec_filesystem.py": ("class FsspecWriter(",),
    f"{DCP}/hf_storage.py": ("class HuggingFaceStorageWriter(",),
    f"{ORBAX}/checkpointers/async_checkpointer.py": ("threading.Thread(",),
    f"{ORBAX}/handlers/base_pytree_checkpoint_handler.py": ("pinned_host memory",),
    f"{ORBAX}/path/atomicity.py": ("class AtomicRenameTemporaryPath", "COMMIT_SUCCESS_FILE"),
    f"{ORBAX}/serialization/tensorstore_utils.py": (
        "{'name': 'crc32c'}", "'id': 'zstd'", "'gs://', 's3://'", "def _build_zarr3_metadata(",
    ),
    f"{ORBAX}/serialization/jax_array_restore_args.py": ("sharding:",),
    f"{ORBAX}/serialization/jax_array_handlers.py": ("class SingleReplicaArrayHandler(",),
    f"{ORBAX}/checkpoint_managers/preservation_policy.py": (
        "class LatestN(", "class EveryNSeconds(", "class BestN(", "class PreservationPolicy(Protocol)",
    ),
    f"{ORBAX}/checkpoint_managers/save_decision_policy.py": (
        "class PreemptionCheckpointingPolicy(",
    ),
    "orbax/checkpoint/checkpoint_manager.py": ("def reached_preemption(",),
    "lightning/fabric/utilities/cloud_io.py": ("def _atomic_save(", "with fs.transaction:"),
    "lightning/fabric/plugins/io/torch_io.py": ("_atomic_save(checkpoint, path)",),
    "lightning/fabric/strategies/fsdp.py": ("_distributed_checkpoint_load(",),
    "lightning/pytorch/plugins/io/async_plugin.py": ("ThreadPoolExecutor(", "t.detach().clone()"),
    "lightning/pytorch/strategies/fsdp.py": ("does not use the `CheckpointIO`",),
    "lightning/pytorch/callbacks/model_checkpoint.py": ("save_top_k", "save_last", "monitor"),
    "lightning/pytorch/trainer/connectors/signal_connector.py": (
        "self.trainer.save_checkpoint(hpc_save_path)", '"scontrol", "requeue"',
    ),
    "transformers/trainer.py": (
        "self.save_model(output_dir, _internal_call=True)", "torch.save(self.optimizer.state_dict()",
        "push_to_hub", "safetensors",
    ),
    "transformers/trainer_utils.py": ("max(checkpoints, key=",),
    "transformers/trainer_jit_checkpoint.py": ("signal.SIGTERM",),
    "transformers/training_args.py": ("save_total_limit", "load_best_model_at_end"),
    "accelerate/utils/fsdp_utils.py": ("dist_cp.load(",),
}  # fmt: skip
LACKS: dict[str, tuple[str, ...]] = {
    f"{DCP}/filesystem.py": ("crc", "checksum", "sha256"),
    f"{DCP}/state_dict_saver.py": ("SIGTERM", "keep"),
    f"{ORBAX}/path/atomicity.py": ("fsync",),
    "lightning/fabric/utilities/cloud_io.py": ("fsync",),
    "lightning/fabric/plugins/io/torch_io.py": ("crc", "checksum"),
    "transformers/trainer.py": ("fsync", "checksum", "crc32"),
}


def linked() -> set[str]:
    files = set(LINK.findall(PAGE.read_text()))
    assert len(files) > 20
    return {file for file in files if not file.startswith(READ)}


def test_all_that_the_page_links_is_looked_into() -> None:
    assert linked() == set(HAS)
    assert set(LACKS) <= set(HAS)


@pytest.mark.parametrize("file", sorted(HAS))
def test_a_file_of_others_says_what_the_page_says(file: str) -> None:
    text = (PACKAGES / file).read_text()
    assert [words for words in HAS[file] if words not in text] == []
    assert [words for words in LACKS.get(file, ()) if words in text] == []
