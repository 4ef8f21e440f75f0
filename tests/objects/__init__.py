"""The object-store room: sinks, the stored format, writer and reader."""
