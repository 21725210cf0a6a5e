# contrib: scripts for people; not installed.
EXTRA_DIST += autogen.sh .ci/run contrib/quickstart contrib/check contrib/lib.sh contrib/requirements.txt
