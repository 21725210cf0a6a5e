/* quantise.c: `penstock quantise`: owns which layers of a checkpoint are rounded, the directory that is written, and its
 * configuration.  Does not own rounding (quantise_weight.c) nor the translation of GGUF files (quantise_gguf.c).
 *
 * The source is loaded as for a backend that only takes note, so whatever loads can be read, and nothing of it is left out
 * unseen.  Then layer after layer is read, rounded and written: the memory that is needed is that of the largest one.
 *
 * Invariant: the output directory appears whole or not at all; what a signal that can be caught ends leaves nothing. */
#include "cpu/cpu_backend.h"
#include "file/hf_config.h"
#include "model/model.h"
#include "tools/dry.h"
#include "tools/quantise_gguf.h"
#include "tools/quantise_weight.h"
#include "tools/tool.h"

#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KEEP_MAX = 64, PATH_BYTES = 4096, COPY_BYTES = 1 << 16, GROUP_DEFAULT = 128 };

static const char help[] =
    "usage: penstock quantise --format FORMAT --out DIR [OPTION…] MODEL\n"
    "\n"
    "Reads a checkpoint (a directory, safetensors or GGUF file; quantised ones too) and writes another one, its linear layers\n"
    "rounded to nearest, as a directory of the hub: model.safetensors, config.json, tokenizer and chat template.\n"
    "\n"
    "  int4       groups of --group inputs, compressed-tensors (pack-quantized)\n"
    "  gptq, awq  the same in the layouts of GPTQ (symmetric) and AWQ (asymmetric)\n"
    "  int8       a scale per output, inputs by token, compressed-tensors (int-quantized)\n"
    "  fp8        float8 e4m3, a scale per output, inputs by token, compressed-tensors (float-quantized)\n"
    "  fp8-block  float8 e4m3, a scale for 128 × 128\n"
    "  f32, f16, bf16  floats\n"
    "\n"
    "  --group N       of four-bit formats: 32, 64 or 128 (default)\n"
    "  --asymmetric    int4 with zero points\n"
    "  --keep NAME     leave layers in float whose name contains NAME, beside embeddings, the head and routers; as often as\n"
    "                  needed\n"
    "  --float T       what they and all vectors are written in: f32, f16 or bf16 (default: as they are; bf16 for what was\n"
    "                  quantised)\n"
    "  --quiet         no progress on standard error\n"
    "\n"
    "Tokenizers of GGUF files are written where they are byte-level BPE; for others, copy one beside the model.\n";

/* A tensor, or those of a quantised layer, of the output. */
struct layer {
	struct weight_desc   from;
	char                 base[QUANTISE_NAME_MAX]; /* what part names begin with */
	bool                 matrix, rounded; /* a matrix may have one row, and is not rounded then */
	uint32_t             pairs;
	struct quantise_kind kind;
	struct quantise_part parts[QUANTISE_PARTS_MAX];
	unsigned             part_count;
};

struct job {
	const char          *path, *out;
	struct quantise_kind kind;
	const char          *keep[KEEP_MAX];
	size_t               keep_count;
	enum quantise_format floats; /* QUANTISE_FORMATS: as they are */
	bool                 quiet;
};

struct quantise {
	const struct job       *job;
	struct model_source     source;
	struct backend         *real, *dry; /* the model is loaded for DRY, which asks REAL */
	const struct gguf      *gguf; /* NULL: none */
	const struct model_info *info;
	struct layer           *layers;
	size_t                  count, capacity;
	char                    directory[PATH_BYTES]; /* the temporary one; "" while there is none */
};

static volatile sig_atomic_t caught; /* the signal that asks for an end; 0: none yet */

/* ---- what there is ------------------------------------------------------------------------------------------------ */

/* NAME without the ending that says how it is stored. */
static size_t base_length(const char *name)
{
	static const char *const endings[] = { ".weight", ".qweight", ".weight_packed" };
	size_t                   length = strlen(name);

	for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
		size_t ending = strlen(endings[i]);
		if (length > ending && strcmp(name + length - ending, endings[i]) == 0)
			return length - ending;
	}
	return length;
}

/* Takes note of what is loaded. */
static enum status note(void *context, const struct weight_desc *parts, uint32_t count, struct error *error)
{
	struct quantise *quantise = context;

	for (uint32_t i = 0; i < count; i++) {
		if (quantise->count == quantise->capacity) {
			size_t        capacity = quantise->capacity ? 2 * quantise->capacity : 256;
			struct layer *larger = realloc(quantise->layers, capacity * sizeof *larger);

			if (!larger)
				return error_set(error, STATUS_NOMEM, "out of memory for %zu layers", capacity);
			quantise->layers = larger;
			quantise->capacity = capacity;
		}
		if (quantise->count && strcmp(quantise->layers[quantise->count - 1].from.name, parts[i].name) == 0)
			return error_set(error, STATUS_UNSUPPORTED, "tensor %.160s holds all experts of a layer: only checkpoints with a "
			    "tensor for each can be rounded", parts[i].name);
		quantise->layers[quantise->count++] = (struct layer){ .from = parts[i] };
	}
	return STATUS_OK;
}

static bool is_kept(const struct job *job, const char *name)
{
	static const char *const always[] = { "embed", "lm_head", "output_layer", "shared_head.head", "mlp.gate.weight",
		"indexer.weights_proj" };

	for (size_t i = 0; i < sizeof always / sizeof *always; i++)
		if (strstr(name, always[i]))
			return true;
	for (size_t i = 0; i < job->keep_count; i++)
		if (strstr(name, job->keep[i]))
			return true;
	return false;
}

/* What is not rounded of FORMAT is written in. */
static enum quantise_format float_of(const struct job *job, enum weight_format format)
{
	if (job->kind.format <= QUANTISE_BF16)
		return job->kind.format;
	if (job->floats != QUANTISE_FORMATS)
		return job->floats;
	return format == WEIGHT_F32 ? QUANTISE_F32 : format == WEIGHT_F16 ? QUANTISE_F16 : QUANTISE_BF16;
}

/* The output's name and format of a layer. */
static enum status plan_layer(struct quantise *quantise, struct layer *layer, struct error *error)
{
	const struct job               *job = quantise->job;
	const struct checkpoint_tensor *tensor = checkpoint_find(quantise->source.checkpoint, layer->from.name);
	char                            name[QUANTISE_NAME_MAX];
	size_t                          length = base_length(layer->from.name);
	enum status                     status = STATUS_OK;

	if (quantise->gguf)
		status = quantise_gguf_name(quantise->info, layer->from.name, name, &layer->pairs, error);
	else if (snprintf(name, sizeof name, "%.*s%s", (int)length, layer->from.name,
	    length < strlen(layer->from.name) ? ".weight" : "") >= (int)sizeof name)
		status = error_set(error, STATUS_LIMIT, "tensor %.160s: a name over %d bytes", layer->from.name, QUANTISE_NAME_MAX - 1);
	if (status)
		return status;
	layer->matrix = layer->from.rows > 1 || (tensor && tensor->n_dims > 1);
	layer->rounded = layer->from.rows > 1 && !is_kept(job, name) && job->kind.format > QUANTISE_BF16;
	layer->kind = layer->rounded ? job->kind : (struct quantise_kind){ .format = float_of(job, layer->from.format) };
	if (!layer->matrix) { /* a column, so that rows can be moved */
		layer->from.rows = layer->from.columns;
		layer->from.columns = 1;
	}
	status = quantise_plan(&layer->kind, name, layer->from.rows, layer->from.columns, layer->parts, &layer->part_count, error);
	if (!status && !layer->matrix)
		layer->parts[0].n_dims = 1;
	if (!layer->rounded)
		layer->parts[0].suffix = ""; /* the name is whole */
	memcpy(layer->base, name, sizeof name);
	if (layer->rounded)
		layer->base[base_length(name)] = '\0';
	return status;
}

static enum status read_layers(struct quantise *quantise, struct model **ret, struct error *error)
{
	struct model *model = NULL;
	enum status   status = cpu_backend_create(1, &quantise->real, error);

	if (!status)
		status = dry_create(quantise->real, &quantise->dry, error);
	if (!status) {
		dry_watch(quantise->dry, note, quantise);
		status = model_load(&quantise->source, quantise->dry, &model, error);
	}
	if (!status)
		quantise->info = model_info(model);
	for (size_t i = 0; i < quantise->count && !status; i++)
		status = plan_layer(quantise, &quantise->layers[i], error);
	*ret = model;
	return status;
}

/* ---- config.json -------------------------------------------------------------------------------------------------- */

/* Names of matrices that were not rounded, each after PREFIX and without ".weight". */
static json_t *kept_names(const struct quantise *quantise, const char *prefix)
{
	json_t *list = json_array();

	for (size_t i = 0; i < quantise->count; i++) {
		const struct layer *layer = &quantise->layers[i];
		char                name[QUANTISE_NAME_MAX + 8];

		if (!layer->matrix || layer->rounded)
			continue;
		snprintf(name, sizeof name, "%s%.*s", prefix, (int)base_length(layer->base), layer->base);
		json_array_append_new(list, json_string(name));
	}
	return list;
}

static json_t *compressed_tensors(const struct quantise *quantise)
{
	const struct quantise_kind *kind = &quantise->job->kind;
	bool                        four = kind->format == QUANTISE_INT4;
	const char *type = kind->format == QUANTISE_FP8 ? "float" : "int";
	const char *format = four ? "pack-quantized" : kind->format == QUANTISE_FP8 ? "float-quantized" : "int-quantized";
	json_t     *inputs = four ? json_null() : json_pack("{s:i, s:s, s:b, s:s, s:b}", "num_bits", 8, "type", type, "symmetric", 1,
	    "strategy", "token", "dynamic", 1);
	json_t *weights = json_pack("{s:i, s:s, s:b, s:s, s:o, s:b}", "num_bits", four ? 4 : 8, "type", type, "symmetric",
	    !(four && kind->asymmetric), "strategy", four ? "group" : "channel", "group_size",
	    four ? json_integer(kind->group) : json_null(), "dynamic", 0);

	return json_pack("{s:s, s:s, s:s, s:o, s:{s:{s:[s], s:o, s:o, s:n}}}", "quant_method", "compressed-tensors", "format", format,
	    "quantization_status", "compressed", "ignore", kept_names(quantise, ""), "config_groups", "group_0", "targets", "Linear",
	    "weights", weights, "input_activations", inputs, "output_activations");
}

/* NULL for floats. */
static json_t *quantization_config(const struct quantise *quantise)
{
	const struct quantise_kind *kind = &quantise->job->kind;
	json_t                     *config, *names;

	switch (kind->format) {
	case QUANTISE_GPTQ:
		config = json_pack("{s:s, s:i, s:i, s:b, s:b, s:s, s:b, s:{}}", "quant_method", "gptq", "bits", 4, "group_size",
		    (int)kind->group, "desc_act", 0, "sym", 1, "checkpoint_format", "gptq", "lm_head", 0, "dynamic");
		names = kept_names(quantise, "-:");
		for (size_t i = 0; i < json_array_size(names); i++)
			json_object_set_new(json_object_get(config, "dynamic"), json_string_value(json_array_get(names, i)), json_object());
		json_decref(names);
		return config;
	case QUANTISE_AWQ:
		return json_pack("{s:s, s:i, s:i, s:b, s:s, s:o}", "quant_method", "awq", "bits", 4, "group_size", (int)kind->group,
		    "zero_point", 1, "version", "gemm", "modules_to_not_convert", kept_names(quantise, ""));
	case QUANTISE_FP8_BLOCK:
		return json_pack("{s:s, s:s, s:s, s:[i, i], s:o}", "quant_method", "fp8", "fmt", "e4m3", "activation_scheme", "dynamic",
		    "weight_block_size", QUANTISE_BLOCK, QUANTISE_BLOCK, "modules_to_not_convert", kept_names(quantise, ""));
	case QUANTISE_INT4:
	case QUANTISE_INT8:
	case QUANTISE_FP8: return compressed_tensors(quantise);
	default: return NULL;
	}
}

/* DTYPE under each spelling of the key that OBJECT has; false when it has none. */
static bool replace_dtype(json_t *object, const char *dtype)
{
	bool older = json_object_get(object, "torch_dtype") != NULL, newer = json_object_get(object, "dtype") != NULL;

	if (older)
		json_object_set_new(object, "torch_dtype", json_string(dtype));
	if (newer)
		json_object_set_new(object, "dtype", json_string(dtype));
	return older || newer;
}

/* What the config says of floats, where they are not as they were. */
static void set_dtype(json_t *config, enum quantise_format floats)
{
	const char *dtype = floats == QUANTISE_F32 ? "float32" : floats == QUANTISE_F16 ? "float16" : "bfloat16";

	replace_dtype(json_object_get(config, "text_config"), dtype);
	if (!replace_dtype(config, dtype))
		json_object_set_new(config, "torch_dtype", json_string(dtype));
}

static enum status make_config(const struct quantise *quantise, json_t **ret, struct error *error)
{
	json_t     *config = NULL, *quantization;
	enum status status = STATUS_OK;

	if (quantise->gguf)
		status = quantise_gguf_config(quantise->gguf, quantise->info, &config, error);
	else
		config = json_deep_copy(quantise->source.config->object);
	if (status)
		return status;
	json_object_del(config, "quantization_config");
	json_object_del(config, "compression_config");
	if (quantise->job->kind.format <= QUANTISE_BF16 || quantise->job->floats != QUANTISE_FORMATS)
		set_dtype(config, float_of(quantise->job, WEIGHT_BF16));
	quantization = quantization_config(quantise);
	if (quantization)
		json_object_set_new(config, "quantization_config", quantization);
	if (!config || (quantise->job->kind.format > QUANTISE_BF16 && !quantization)) {
		json_decref(config);
		return error_set(error, STATUS_NOMEM, "out of memory for a config.json");
	}
	*ret = config;
	return STATUS_OK;
}

/* ---- the output --------------------------------------------------------------------------------------------------- */

static enum status failed(const char *path, const char *what, struct error *error)
{
	return error_set(error, STATUS_IO, "%.200s: cannot %s: %s", path, what, strerror(errno));
}

static void take_note(int number) { caught = number; }

/* Once each, so that who asks twice does not wait; what is ignored (nohup) stays so. */
static void catch_signals(void)
{
	static const int numbers[] = { SIGINT, SIGTERM, SIGHUP };

	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
		struct sigaction action = { .sa_handler = take_note, .sa_flags = SA_RESETHAND }, before;

		if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
			sigaction(numbers[i], &action, NULL);
	}
}

static enum status output_path(const struct quantise *quantise, const char *name, char ret[PATH_BYTES], struct error *error)
{
	if (snprintf(ret, PATH_BYTES, "%s/%s", quantise->directory, name) < PATH_BYTES)
		return STATUS_OK;
	return error_set(error, STATUS_LIMIT, "--out: a path over %d bytes", PATH_BYTES);
}

static enum status write_json(const struct quantise *quantise, const char *name, const json_t *value, struct error *error)
{
	char        path[PATH_BYTES];
	FILE       *file;
	enum status status = output_path(quantise, name, path, error);

	if (status)
		return status;
	file = fopen(path, "wb");
	if (!file)
		return failed(path, "write", error);
	if (json_dumpf(value, file, JSON_INDENT(1)) || fputc('\n', file) == EOF || fflush(file))
		status = failed(path, "write", error);
	if (fclose(file) && !status)
		status = failed(path, "write", error);
	return status;
}

/* NAME of the source's directory, if it is there. */
static enum status copy_file(const struct quantise *quantise, const char *name, struct error *error)
{
	const char *slash = strrchr(quantise->job->path, '/');
	struct stat info;
	char        from[PATH_BYTES], to[PATH_BYTES];
	char       *piece;
	FILE       *in, *out;
	size_t      n;
	int         length;
	enum status status = output_path(quantise, name, to, error);

	if (stat(quantise->job->path, &info) == 0 && S_ISDIR(info.st_mode))
		length = snprintf(from, sizeof from, "%s/%s", quantise->job->path, name);
	else
		length = snprintf(from, sizeof from, "%.*s%s", slash ? (int)(slash + 1 - quantise->job->path) : 0, quantise->job->path,
		    name);
	if (!status && (length < 0 || length >= (int)sizeof from))
		status = error_set(error, STATUS_LIMIT, "%.200s: a path over %d bytes", quantise->job->path, PATH_BYTES - 1);
	if (status || !(in = fopen(from, "rb")))
		return status || errno == ENOENT ? status : failed(from, "read", error);
	out = fopen(to, "wb");
	piece = malloc(COPY_BYTES);
	if (!piece)
		status = error_set(error, STATUS_NOMEM, "out of memory");
	else if (!out)
		status = failed(to, "write", error);
	while (!status && (n = fread(piece, 1, COPY_BYTES, in)) > 0)
		if (fwrite(piece, 1, n, out) != n)
			status = failed(to, "write", error);
	if (!status && ferror(in))
		status = failed(from, "read", error);
	if (out && fclose(out) && !status)
		status = failed(to, "write", error);
	fclose(in);
	free(piece);
	return status;
}

static enum status write_neighbours(const struct quantise *quantise, struct error *error)
{
	static const char *const names[] = { "tokenizer.json", "tokenizer.model", "tiktoken.model", "qwen.tiktoken",
		"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "vocab.txt",
		"generation_config.json", "chat_template.jinja", "chat_template.json" };
	json_t     *tokenizer = NULL, *config = NULL;
	enum status status = STATUS_OK;

	if (!quantise->gguf) {
		for (size_t i = 0; i < sizeof names / sizeof *names && !status; i++)
			status = copy_file(quantise, names[i], error);
		return status;
	}
	status = quantise_gguf_tokenizer(quantise->gguf, &tokenizer, &config, error);
	if (status == STATUS_UNSUPPORTED || status == STATUS_NOT_FOUND) {
		if (!quantise->job->quiet)
			fprintf(stderr, "penstock quantise: no tokenizer is written: %s\n", error->message);
		return STATUS_OK;
	}
	if (!status)
		status = write_json(quantise, "tokenizer.json", tokenizer, error);
	if (!status)
		status = write_json(quantise, "tokenizer_config.json", config, error);
	json_decref(tokenizer);
	json_decref(config);
	return status;
}

/* Items for all parts; their names follow them in the same memory. */
static struct safetensors_item *make_items(const struct quantise *quantise, size_t *ret_count)
{
	enum { NAME_BYTES = QUANTISE_NAME_MAX + 32 };
	size_t                   parts = 0, n = 0;
	struct safetensors_item *items;
	char                    *names;

	for (size_t i = 0; i < quantise->count; i++)
		parts += quantise->layers[i].part_count;
	items = calloc(parts + 1, sizeof *items + NAME_BYTES);
	if (!items)
		return NULL;
	names = (char *)(items + parts + 1);
	for (size_t i = 0; i < quantise->count; i++)
		for (unsigned p = 0; p < quantise->layers[i].part_count; p++, n++) {
			const struct quantise_part *part = &quantise->layers[i].parts[p];

			snprintf(names + n * NAME_BYTES, NAME_BYTES, "%s%s", quantise->layers[i].base, part->suffix);
			items[n] = (struct safetensors_item){ .name = names + n * NAME_BYTES, .dtype = part->dtype, .n_dims = part->n_dims,
				.dims = { part->dims[0], part->dims[1] } };
		}
	*ret_count = n;
	return items;
}

static enum status write_weights(struct quantise *quantise, struct error *error)
{
	struct safetensors_writer *writer = NULL;
	char                       path[PATH_BYTES];
	size_t                     count = 0;
	uint64_t                   bytes = 0;
	struct safetensors_item   *items = make_items(quantise, &count);
	enum status status = items ? output_path(quantise, "model.safetensors", path, error) :
	    error_set(error, STATUS_NOMEM, "out of memory for the names of %zu layers", quantise->count);

	if (!status)
		status = safetensors_writer_open(path, items, count, &writer, error);
	for (size_t i = 0; i < quantise->count && !status; i++) {
		struct layer *layer = &quantise->layers[i];

		status = caught ? error_set(error, STATUS_CANCELLED, "stopped by signal %d", (int)caught) :
		    quantise_weight(&layer->kind, &layer->from, layer->pairs, layer->parts, layer->part_count, error);
		for (unsigned p = 0; p < layer->part_count && !status; p++) {
			status = safetensors_writer_add(writer, layer->parts[p].data, layer->parts[p].bytes, error);
			bytes += layer->parts[p].bytes;
		}
		quantise_free(layer->parts);
		checkpoint_release(quantise->source.checkpoint, layer->from.data, layer->from.bytes);
		if (!status && !quantise->job->quiet && (i % 64 == 63 || i + 1 == quantise->count))
			fprintf(stderr, "tensor %zu of %zu, %llu MB written\n", i + 1, quantise->count, (unsigned long long)(bytes / 1000000));
	}
	free(items);
	if (!status)
		return safetensors_writer_close(writer, error);
	safetensors_writer_abandon(writer);
	return status;
}

/* Takes the temporary directory away, with the files in it. */
static void remove_directory(struct quantise *quantise)
{
	DIR           *directory = *quantise->directory ? opendir(quantise->directory) : NULL;
	struct dirent *entry;

	while (directory && (entry = readdir(directory)))
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			unlinkat(dirfd(directory), entry->d_name, 0);
	if (directory)
		closedir(directory);
	if (*quantise->directory)
		rmdir(quantise->directory);
}

static enum status make_directory(struct quantise *quantise, struct error *error)
{
	const char *out = quantise->job->out;
	size_t      length = strlen(out);
	mode_t      mask = umask(0);
	struct stat info;

	umask(mask);
	while (length > 1 && out[length - 1] == '/')
		length--;
	if (lstat(out, &info) == 0)
		return error_set(error, STATUS_INVALID, "--out %.200s exists: remove it, or name another directory", out);
	if (snprintf(quantise->directory, PATH_BYTES - 256, "%.*s.XXXXXX", (int)length, out) >= PATH_BYTES - 256) {
		*quantise->directory = '\0';
		return error_set(error, STATUS_LIMIT, "--out: a path over %d bytes", PATH_BYTES - 256);
	}
	if (!mkdtemp(quantise->directory)) {
		*quantise->directory = '\0';
		return failed(out, "make a directory beside it", error);
	}
	return chmod(quantise->directory, 0777 & ~mask) ? failed(quantise->directory, "open it", error) : STATUS_OK;
}

static enum status run(struct quantise *quantise, struct model **model, struct error *error)
{
	json_t     *config = NULL;
	enum status status = model_source_open(quantise->job->path, &quantise->source, error);

	if (status)
		return status;
	quantise->gguf = checkpoint_gguf(quantise->source.checkpoint);
	if ((status = read_layers(quantise, model, error)) || (status = make_config(quantise, &config, error)))
		return status;
	if (!(status = make_directory(quantise, error)) && !(status = write_json(quantise, "config.json", config, error)) &&
	    !(status = write_neighbours(quantise, error)) && !(status = write_weights(quantise, error)) &&
	    rename(quantise->directory, quantise->job->out))
		status = failed(quantise->job->out, "rename the directory to it", error);
	if (status)
		remove_directory(quantise);
	json_decref(config);
	return status;
}

/* ---- the command -------------------------------------------------------------------------------------------------- */

static int quantise(const struct job *job)
{
	struct quantise q = { .job = job };
	struct model   *model = NULL;
	struct error    error;
	enum status     status;
	size_t          rounded = 0;

	catch_signals();
	status = run(&q, &model, &error);
	for (size_t i = 0; i < q.count; i++)
		rounded += q.layers[i].rounded;
	if (!status)
		printf("%s: %s, %zu of %zu tensors rounded to %s\n", job->out, q.info->architecture, rounded, q.count,
		    quantise_format_name(job->kind.format));
	free(q.layers);
	model_free(model);
	if (q.dry)
		q.dry->ops->destroy(q.dry);
	if (q.real)
		q.real->ops->destroy(q.real);
	model_source_close(&q.source);
	if (status)
		tool_fail("quantise", &error);
	if (status && caught)
		raise(caught); /* of the default action again */
	return status ? TOOL_FAILED : TOOL_OK;
}

/* What options say together; TOOL_OK or the complaint's code. */
static int check_job(struct job *job, bool has_format, bool has_group)
{
	if (!has_format)
		return tool_usage("quantise", "--format FORMAT is needed");
	if (!job->out || !*job->out)
		return tool_usage("quantise", "--out DIR is needed");
	if (has_group && !quantise_is_four_bit(job->kind.format))
		return tool_usage("quantise", "--group is for int4, gptq and awq");
	if (job->kind.asymmetric && job->kind.format != QUANTISE_INT4)
		return tool_usage("quantise", "--asymmetric is for int4");
	return TOOL_OK;
}

enum { OPTION_FORMAT = 256, OPTION_OUT, OPTION_GROUP, OPTION_ASYMMETRIC, OPTION_KEEP, OPTION_FLOAT, OPTION_QUIET };

int tool_quantise(int argc, char **argv)
{
	static const struct option options[] = {
		{ "format", required_argument, NULL, OPTION_FORMAT },
		{ "out", required_argument, NULL, OPTION_OUT },
		{ "group", required_argument, NULL, OPTION_GROUP },
		{ "asymmetric", no_argument, NULL, OPTION_ASYMMETRIC },
		{ "keep", required_argument, NULL, OPTION_KEEP },
		{ "float", required_argument, NULL, OPTION_FLOAT },
		{ "quiet", no_argument, NULL, OPTION_QUIET },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	struct job job = { .kind = { .group = GROUP_DEFAULT }, .floats = QUANTISE_FORMATS };
	bool       has_format = false, has_group = false;
	int64_t    group;
	int        c;

	while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		switch (c) {
		case OPTION_FORMAT:
			if (!(has_format = quantise_format_by_name(optarg, &job.kind.format)))
				return tool_usage("quantise", "--format %s: int4, gptq, awq, int8, fp8, fp8-block, f32, f16 or bf16 is needed",
				    optarg);
			break;
		case OPTION_OUT: job.out = optarg; break;
		case OPTION_GROUP:
			if (!tool_int("quantise", "--group", optarg, 32, 128, &group))
				return TOOL_USAGE;
			if (group != 32 && group != 64 && group != 128)
				return tool_usage("quantise", "--group %s: 32, 64 or 128 is needed", optarg);
			job.kind.group = (uint32_t)group;
			has_group = true;
			break;
		case OPTION_ASYMMETRIC: job.kind.asymmetric = true; break;
		case OPTION_KEEP:
			if (job.keep_count == KEEP_MAX)
				return tool_usage("quantise", "--keep: at most %d are possible", KEEP_MAX);
			if (!*optarg)
				return tool_usage("quantise", "--keep: an empty name is in every other one");
			job.keep[job.keep_count++] = optarg;
			break;
		case OPTION_FLOAT:
			if (!quantise_format_by_name(optarg, &job.floats) || job.floats > QUANTISE_BF16)
				return tool_usage("quantise", "--float %s: f32, f16 or bf16 is needed", optarg);
			break;
		case OPTION_QUIET: job.quiet = true; break;
		case 'h':
			fputs(help, stdout);
			return TOOL_OK;
		default:
			return tool_usage("quantise", "wrong option");
		}
	}
	if (optind + 1 != argc)
		return tool_usage("quantise", "one directory or file is needed");
	job.path = argv[optind];
	c = check_job(&job, has_format, has_group);
	return c ? c : quantise(&job);
}
