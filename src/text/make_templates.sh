#!/bin/sh
# make_templates.sh FILE...: the built-in chat templates as rows of a C table, { name, text }.
set -eu
for file; do
	printf '{ "%s", "' "$(basename "$file" .jinja)"
	sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/$/\\n\\/' "$file"
	printf '" },\n'
done
