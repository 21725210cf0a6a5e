/* fuzz_safetensors.c: a hostile safetensors file.  Either it is refused, or what it promises holds: every tensor inside the
 * data section, all of them covering it exactly, each found by its name.
 *
 * Input: with an even first byte, the rest is the file; with an odd one, two bytes are the size of the data section and the
 * rest is the header, whose length is written as it is (so that the fuzzer need not guess it).
 *
 *   ./configure CC=clang --enable-fuzz --with-cuda=no CFLAGS='-g -O1 -fsanitize=address,undefined,fuzzer-no-link'
 *   make && ./fuzz/fuzz_safetensors -dict=tests/corpus/safetensors.dict -max_len=4096 CORPUS tests/corpus/safetensors
 *
 * make check replays tests/corpus/safetensors through the same function (fuzz/replay.c).
 */
#include "file/safetensors.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void require(bool condition, const char *what)
{
	if (condition)
		return;
	fprintf(stderr, "%s\n", what);
	abort();
}

static void check(const struct safetensors *file, const unsigned char *bytes, size_t size)
{
	const unsigned char *at = NULL;
	size_t               with_zero = 0;

	for (size_t i = 0; i < safetensors_count(file); i++) {
		const struct safetensors_tensor *tensor = safetensors_at(file, i);
		const unsigned char             *begin = tensor->data;
		size_t                           elements = 1;

		require(begin >= bytes + 8 && begin <= bytes + size && tensor->bytes <= (size_t)(bytes + size - begin), "outside the file");
		require(!at || begin == at, "a gap or an overlap");
		at = begin + tensor->bytes;
		for (unsigned d = 0; d < tensor->n_dims; d++)
			elements *= tensor->dims[d];
		require(elements * safetensors_dtype_bytes(tensor->dtype) == tensor->bytes, "shape and size differ");
		with_zero += memchr(begin, 0, tensor->bytes) != NULL; /* reads up to all of it */
		require(safetensors_find(file, tensor->name) == tensor, "not found by name");
	}
	require(!at || at == bytes + size, "the end is not covered");
	require(with_zero <= safetensors_count(file), "counted wrongly");
	require(!safetensors_find(file, "\x01"), "a tensor from nowhere");
	safetensors_metadata(file, "format");
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	const unsigned char *bytes = data + 1;
	unsigned char       *made = NULL;
	struct safetensors  *file = NULL;
	struct error         error = { .message = "" };

	if (size < 1)
		return 0;
	if ((data[0] & 1) && size >= 3) {
		size_t   section = (size_t)data[1] << 8 | data[2];
		uint64_t header = size - 3;
		made = calloc(1, 8 + (size_t)header + section);
		if (!made)
			return 0;
		memcpy(made, &header, 8);
		memcpy(made + 8, data + 3, (size_t)header);
		bytes = made;
		size = 8 + (size_t)header + section;
	} else
		size--;
	if (safetensors_parse(bytes, size, "fuzz", &file, &error) == STATUS_OK)
		check(file, bytes, size);
	else
		require(!file && strncmp(error.message, "fuzz: ", 6) == 0 && !strchr(error.message, '\n'), "a bad refusal");
	safetensors_close(file);
	free(made);
	return 0;
}
