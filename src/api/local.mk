EXTRA_DIST += src/api/api.h src/api/keys.h src/api/exposition.h src/api/routes.def
