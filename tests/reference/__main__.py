"""Write them."""

from __future__ import annotations

from tests.reference import IN_PART, WHOLE, written

for page in (*WHOLE, *IN_PART):
    page.write_text(written(page))
