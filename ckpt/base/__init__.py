"""Words: ids, units, limits, errors. Everything stands on this room and it stands on nothing."""
