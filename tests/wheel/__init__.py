"""What users install: the sdist and the wheel, checked, and put into environments of their own,
under each Python that is here (`make test-wheel`)."""
