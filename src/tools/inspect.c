/* inspect.c: `penstock inspect`: what a checkpoint holds, what it would take, and everything that keeps it from loading.
 * Nothing but headers and configuration is read, so the size of the file does not matter, unless values are to be checked. */
#include "cpu/cpu_backend.h"
#include "model/model.h"
#include "model/weight.h"
#include "tools/dry.h"
#include "tools/tool.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

enum { PROBLEMS_SHOWN = 20 };

static const char help[] =
    "usage: penstock inspect [OPTION…] DIR|FILE\n"
    "\n"
    "Shows architecture, tensors, formats, parameters, bytes and KV bytes per token of a checkpoint (a directory with\n"
    "config.json and safetensors) or a GGUF file, and what would not load and why.  Exit status 1 when it would not load.\n"
    "\n"
    "  --tensors        list every tensor\n"
    "  --check-weights  read all weights and report every tensor with a NaN or an infinity, scales included\n";

/* Problems of the load as they come. */
struct report {
	unsigned problems;
};

static void print_problem(void *context, const struct error *error)
{
	struct report *report = context;

	if (report->problems++ < PROBLEMS_SHOWN)
		printf("problem       %s\n", error->message);
}

static void print_shape(const struct checkpoint_tensor *tensor)
{
	printf("[");
	for (unsigned i = 0; i < tensor->n_dims; i++)
		printf("%s%llu", i ? ", " : "", (unsigned long long)tensor->dims[i]);
	printf("]");
}

/* The files' side: types and bytes. */
static void print_tensors(const struct checkpoint *checkpoint, const char *path, bool list)
{
	size_t      count = checkpoint_count(checkpoint), files = 0, of_type[CHECKPOINT_DTYPE_COUNT] = { 0 };
	uint64_t    bytes[CHECKPOINT_DTYPE_COUNT] = { 0 }, total = 0;
	const char *shards[CHECKPOINT_SHARDS_MAX];
	char        size[DRY_SIZE_MAX];

	for (size_t i = 0; i < count; i++) {
		const struct checkpoint_tensor *tensor = checkpoint_at(checkpoint, i);
		size_t                          s = 0;

		/* A shard's name is one string, which all its tensors share. */
		while (s < files && shards[s] != tensor->shard)
			s++;
		if (s == files && files < CHECKPOINT_SHARDS_MAX)
			shards[files++] = tensor->shard;
		of_type[tensor->dtype]++;
		bytes[tensor->dtype] += tensor->bytes;
		total += tensor->bytes;
		if (list) {
			printf("tensor        %s %s ", tensor->name, checkpoint_dtype_name(tensor->dtype));
			print_shape(tensor);
			printf(" %s\n", tensor->shard);
		}
	}
	printf("checkpoint    %s: %zu tensors in %zu file%s, %s (%llu bytes)\n", path, count, files, files == 1 ? "" : "s",
	    dry_size(size, total), (unsigned long long)total);
	for (unsigned type = 0; type < CHECKPOINT_DTYPE_COUNT; type++)
		if (of_type[type])
			printf("tensors of    %-7s %zu, %s\n", checkpoint_dtype_name((enum checkpoint_dtype)type), of_type[type],
			    dry_size(size, bytes[type]));
}

/* The model's side. */
static void print_model(const struct model_info *info, const struct backend *dry)
{
	const struct dry_count *counts = dry_counts(dry);
	uint64_t                values = 0, kv_bytes = 0;
	char                    size[DRY_SIZE_MAX];

	printf("architecture  %s%s: %u layers of width %u, vocabulary %u, context %u\n", info->architecture,
	    info->encoder ? " (encoder)" : "", info->layers, info->width, info->vocab, info->max_context);
	printf("parameters    %llu (%.2f billion)\n", (unsigned long long)info->parameters, (double)info->parameters / 1e9);
	for (unsigned format = 0; format < WEIGHT_FORMAT_COUNT; format++)
		if (counts[format].weights)
			printf("weights in    %-7s %llu, %.4g million parameters, %.3f bits each\n",
			    weight_format_name((enum weight_format)format), (unsigned long long)counts[format].weights,
			    (double)counts[format].values / 1e6, 8.0 * (double)counts[format].bytes / (double)counts[format].values);
	printf("on the CPU    %s\n", dry_size(size, info->weight_bytes));
	if (info->encoder) {
		printf("KV cache      none between texts\n");
		return;
	}
	for (uint32_t g = 0; g < info->kv_group_count; g++) {
		struct kv_group_desc group = info->kv_groups[g];

		group.block_size = 64;
		kv_bytes += dry->ops->kv_bytes(dry, &group) / group.block_size;
		values += kv_group_values(&group);
		if (group.kind == KV_ROWS)
			printf("KV group      %u layers, a row of %u values for all heads\n", group.layers, group.head_dim);
		else
			printf("KV group      %u layers, %u KV heads of %u dimensions\n", group.layers, group.kv_heads, group.head_dim);
	}
	printf("KV cache      %llu bytes per token on the CPU, %llu in 16 bits, %llu in 8 bits\n", (unsigned long long)kv_bytes,
	    (unsigned long long)(2 * values), (unsigned long long)values);
}

static enum status inspect(const char *path, bool list, bool check_weights, struct report *report, struct error *error)
{
	struct model_source source = { .checkpoint = NULL };
	struct backend     *real = NULL, *dry = NULL;
	struct model       *model = NULL;
	struct error        why;
	enum status         status = model_source_open(path, &source, error);

	if (status)
		return status;
	source.check_weights = check_weights;
	print_tensors(source.checkpoint, path, list);
	if ((status = cpu_backend_create(1, &real, error)) || (status = dry_create(real, &dry, error)))
		goto out;
	status = model_load_all(&source, dry, print_problem, report, &model, &why);
	if (!model) /* the architecture or its values, which no tensor can be asked about without */
		print_problem(report, &why);
	else
		print_model(model_info(model), dry);
	status = STATUS_OK;
	if (report->problems > PROBLEMS_SHOWN)
		printf("problem       and %u more\n", report->problems - PROBLEMS_SHOWN);
	printf("loads         %s\n", report->problems ? "no" : "yes");
out:
	model_free(model);
	if (dry)
		dry->ops->destroy(dry);
	if (real)
		real->ops->destroy(real);
	model_source_close(&source);
	return status;
}

int tool_inspect(int argc, char **argv)
{
	static const struct option options[] = {
		{ "tensors", no_argument, NULL, 't' },
		{ "check-weights", no_argument, NULL, 'w' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	struct report report = { 0 };
	struct error  error;
	bool          list = false, check_weights = false;
	int           c;

	while ((c = getopt_long(argc, argv, "thw", options, NULL)) != -1) {
		switch (c) {
		case 't':
			list = true;
			break;
		case 'w':
			check_weights = true;
			break;
		case 'h':
			fputs(help, stdout);
			return TOOL_OK;
		default:
			return tool_usage("inspect", "wrong option");
		}
	}
	if (optind + 1 != argc)
		return tool_usage("inspect", "one directory or file is needed");
	if (inspect(argv[optind], list, check_weights, &report, &error))
		return tool_fail("inspect", &error);
	return report.problems ? TOOL_FAILED : TOOL_OK;
}
