"""What users install: the sdist and the wheel, checked, and put into environments of their own,
under each Python that is here; and a cluster of an earlier version that is upgraded to it
(`make test-wheel`)."""
