/* load.h: what the master loads once and its children share copy-on-write: vocabulary, tokenizer, chat template,
 * keys. */
#ifndef PENSTOCK_FRONT_LOAD_H
#define PENSTOCK_FRONT_LOAD_H

#include "api/api.h"

#include <sys/stat.h>

struct load {
	struct api            api; /* points to what follows */
	struct vocab         *vocab;
	struct tokenizer     *tokenizer;
	struct chat_template *chat;
	struct stat           file; /* the model file that was read */
};

/* CONF is borrowed and must outlive *ret. */
enum status load_open(const struct conf *conf, struct load *ret, struct error *error);
void        load_close(struct load *load);

/* Reads the key file anew; the old keys stay when it is bad. */
enum status load_keys(struct load *load, struct error *error);

/* Is the model file on disk another one than was read? */
bool load_is_stale(const struct load *load);

#endif
