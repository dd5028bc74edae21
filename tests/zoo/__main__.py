"""Runs every audit on every planted bug, or on sound mechanisms, and prints the table, in
markdown.

`python -m tests.zoo [WORDS]`: the bugs with WORDS in their names.
`python -m tests.zoo alarms N`: the sound mechanisms, N times in all.
"""

import sys

from tests.zoo import alarms, table

if __name__ == "__main__":
    asked = sys.argv[1:]
    found = alarms.rows(int(asked[1])) if asked[:1] == ["alarms"] else table.rows(*asked[:1])
    for row in found:
        print(row, flush=True)
