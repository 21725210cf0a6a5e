/* loader.h: from a configuration to a model on a backend: file, vocabulary, backend, weights.
 */
#ifndef PENSTOCK_BATCHER_LOADER_H
#define PENSTOCK_BATCHER_LOADER_H

#include "base/conf.h"
#include "engine/engine.h"
#include "model/model.h"
#include "model/plugin.h"
#include "vocab/vocab.h"

enum loader_stage { LOADER_VOCAB, LOADER_BACKEND, LOADER_WEIGHTS, LOADER_STAGES };

/* Owned parts, in the order of their making; each needs those before it. */
struct loader {
	struct model_source source; /* while loading */
	struct vocab   *vocab;
	struct plugin  *plugin;
	struct backend *backend;
	const char     *dtype;   /* that a loadable backend was asked for; "": its own choice; NULL: it has none */
	struct model   *model;
	uint64_t        stage_ns[LOADER_STAGES]; /* what each took; files are opened in the first */
};

/* Loads what [model] and [batcher] of CONF name.  BACKEND_OBJECTS is the directory of loadable backends. */
enum status loader_open(struct loader *loader, const struct conf *conf, const char *backend_objects, struct error *error);
void        loader_close(struct loader *loader); /* half-open ones are fine */

/* The engine's options as CONF and the vocabulary have them. */
struct engine_options loader_engine_options(const struct loader *loader, const struct conf *conf);

#endif
