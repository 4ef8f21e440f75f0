"""`ckpt`, from its first line on: Ctrl-C while it still imports ends it as Ctrl-C later does."""

from __future__ import annotations

# Python has it already. `signal` itself makes enums of it, and a Ctrl-C meanwhile is a traceback.
import _signal  # type: ignore[import-not-found]
import sys


def main() -> int:
    """Run a command. Returns the exit code."""
    # A program that ignores it would hide how those that a command starts have ended.
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    # Some C modules crash when Ctrl-C cuts their import. It waits until the command is imported.
    _signal.pthread_sigmask(_signal.SIG_BLOCK, {_signal.SIGINT})
    try:
        from ckpt.aio.collector import collect_rarely, end_uncollected

        collect_rarely()
        end_uncollected()
        from ckpt.aio.inherited import keep_exit_code, open_missing_streams
        from ckpt_client.cli.main import main as run

        open_missing_streams()
        keep_exit_code()
        return run()
    except KeyboardInterrupt:
        # What would tell it may be what is not imported yet.
        text = '{"message_type":"exit_error","code":130,"message":"interrupted","hint":""}'
        sys.stderr.write(f"{text if '--json' in sys.argv else 'ckpt: interrupted'}\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
