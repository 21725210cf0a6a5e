# contrib: scripts for people; not installed.
EXTRA_DIST += contrib/quickstart contrib/check contrib/lib.sh contrib/requirements.txt
